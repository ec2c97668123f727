//! How deep to draft, and from which source. Arithmetic on numbers; holds no arrays.

mod acceptance;
mod arms;
mod clock;
mod cost;
mod estimates;
mod fixed;
mod learner;
mod lines;
mod probe;
mod throughput;
mod trace;

pub use clock::{Clock, ScriptedClock, SystemClock};
pub(crate) use estimates::Bucket;
pub use estimates::Estimates;
pub(crate) use fixed::Fixed;
pub use throughput::Throughput;
pub use trace::{Recorder, Trace, Traced};

/// The depth policy of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DraftPolicy {
    /// Always this depth; 0 decodes plainly.
    Constant(usize),
    /// Two deeper after a fully accepted round up to `max`, one shallower otherwise down to 1.
    Heuristic {
        /// Depth of the first round.
        initial: usize,
        /// Depth never exceeded.
        max: usize,
    },
    /// The source and depth with the most expected tokens per measured millisecond, plain decoding included.
    Throughput {
        /// Depth of the first rounds of a model that was never measured.
        initial: usize,
        /// Depth never exceeded.
        max: usize,
        /// Whether costs stay as they are and no clock is read: choices then follow from the estimates and
        /// from what this request accepted, and repeat exactly.
        frozen: bool,
    },
}

/// A source of drafts, as a controller sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The name under which estimates are kept.
    pub name: String,
    /// The deepest proposal.
    pub max_depth: usize,
    /// The source whose proposals this one is, with a tail of known tokens behind them.
    pub lengthens: Option<usize>,
}

/// What one source can do in the coming round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seat {
    /// The deepest proposal it could make now; 0 when it cannot be asked.
    pub cap: usize,
    /// Whether it has something to offer only now and then, so that most of its rounds follow another kind.
    pub sporadic: bool,
}

/// The round ahead.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Situation {
    /// Tokens before the current one.
    pub context: usize,
    /// Drafts that budget and context allow.
    pub room: usize,
    /// Whether a constraint masks the answer.
    pub constrained: bool,
    /// One entry per source.
    pub seats: Vec<Seat>,
}

impl Situation {
    /// The choice that comes closest to `choice` and can be carried out.
    pub(crate) fn allow(&self, choice: Choice) -> Choice {
        let cap = choice.source.and_then(|source| self.seats.get(source)).map_or(0, |seat| seat.cap);
        match choice.depth.min(cap).min(self.room) {
            0 => Choice::PLAIN,
            depth => Choice { depth, ..choice },
        }
    }
}

/// What to do in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Choice {
    /// The source to ask; none decodes plainly.
    pub source: Option<usize>,
    /// How many drafts to ask for; 0 exactly when there is no source.
    pub depth: usize,
}

impl Choice {
    /// Plain decoding.
    pub const PLAIN: Self = Self { source: None, depth: 0 };
}

/// How a round went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Drafts offered by the source, without a tail.
    pub drafted: usize,
    /// Drafts accepted, without a tail.
    pub accepted: usize,
    /// Drafts of the tail that were accepted.
    pub tail: usize,
    /// Whether the draft after the accepted ones was turned down.
    pub rejected: bool,
    /// Tokens produced.
    pub tokens: usize,
    /// How long the round took, in nanoseconds; `None` when no clock was read.
    pub nanos: Option<u64>,
    /// Whether the round says nothing about the choice: it only brought in a plain token that was already under
    /// way, or a grammar made the proposal.
    pub beside: bool,
}

/// Chooses source and depth of each round from what the rounds before it did.
pub trait Controller {
    /// What to do in the coming round.
    fn choose(&mut self, situation: &Situation) -> Choice;
    /// Hears how the round went that [`choose`](Self::choose) was last asked about.
    fn observe(&mut self, outcome: &Outcome);
    /// Time spent on probes beyond what the best choice would have taken, in milliseconds.
    fn probing_ms(&self) -> f64 {
        0.0
    }
}
