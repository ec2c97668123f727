//! What each possible choice promises.

use super::{
    Choice, Estimates, Seat, Source,
    acceptance::{Acceptance, Chance},
    cost::{Cell, Cost},
    estimates::Bucket,
};

/// A source without any measurement is assumed to cost this much more than plain decoding.
const UNKNOWN_COST: f64 = 1.3;
/// How much less than measured plain decoding may cost, at best.
const PLAIN_HOPE: f64 = 0.9;
/// Tokens that a tail is assumed to add before it was tried: half a token is worth a try, and not a second one
/// if it proves wrong.
const PRIOR_TAIL: f64 = 0.5;

/// One possible choice with what it promises.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arm {
    pub(crate) choice: Choice,
    pub(crate) tokens: f64,
    /// The chance that all its drafts are kept.
    reached: f64,
    pub(crate) cost: f64,
    /// The same three, as good as the measurements leave believable.
    hope: Hope,
    /// The round of its last measurement.
    pub(crate) at: u64,
    pub(crate) sporadic: bool,
}

#[derive(Debug, Clone, Copy)]
struct Hope {
    tokens: f64,
    reached: f64,
    cost: f64,
}

impl Arm {
    /// Plain decoding. Before its first measurement it costs one unit of whatever time it is.
    pub(crate) fn plain(cell: &Cell) -> Self {
        let cost = if cell.known() { cell.ms } else { 1.0 };
        let hope = Hope { tokens: 1.0, reached: 1.0, cost: cost * PLAIN_HOPE };
        let (choice, at) = (Choice::PLAIN, cell.at);
        Self { choice, tokens: 1.0, reached: 1.0, cost, hope, at, sporadic: false }
    }

    /// Expected tokens per millisecond.
    pub(crate) fn rate(&self) -> f64 {
        self.tokens / self.cost
    }

    /// Tokens per millisecond at best, compared with `best`. What both do alike is no reason to hope: drafts
    /// of the same source are as good in one as in the other.
    pub(crate) fn hope(&self, best: &Self) -> f64 {
        let tokens = if self.choice.source != best.choice.source {
            self.hope.tokens
        } else if self.choice.depth <= best.choice.depth {
            self.tokens
        } else {
            let further = (self.hope.tokens - best.hope.tokens) / best.hope.reached.max(f64::MIN_POSITIVE);
            best.tokens + best.reached * further
        };
        tokens / self.hope.cost
    }
}

/// A source that may be asked now.
pub(crate) struct Asked<'a> {
    pub(crate) index: usize,
    pub(crate) sources: &'a [Source],
    pub(crate) seat: Seat,
    /// The deepest proposal that room and limits allow.
    pub(crate) most: usize,
    /// The deepest first proposal of a source that was never measured.
    pub(crate) initial: usize,
}

impl Asked<'_> {
    /// The choices that this source offers, shallow ones first: up to one deeper than was ever measured.
    pub(crate) fn arms(&self, estimates: &Estimates, bucket: Bucket) -> Vec<Arm> {
        let source = &self.sources[self.index];
        let plain = estimates.plain_cell(bucket);
        let curve = estimates.curve(&source.name, bucket);
        let reach = if curve.frontier() == 0 { self.initial } else { curve.frontier() + 1 };
        let depths = self.most.min(reach);
        let mut costs = curve.predict(&plain, depths, estimates.round);
        if costs.is_empty() {
            costs = vec![Cost { mean: UNKNOWN_COST * plain.ms, low: plain.ms }; depths];
        }
        let (chances, tail) = self.chances(estimates, depths);
        let mut tokens = (1.0, 1.0);
        let mut reached = (1.0, 1.0);
        let arm = |(depth, (cost, Chance { mean, high })): (usize, (&Cost, Chance))| {
            reached = (reached.0 * mean, reached.1 * high);
            tokens = (tokens.0 + reached.0, tokens.1 + reached.1);
            Arm {
                choice: Choice { source: Some(self.index), depth },
                tokens: tokens.0 + tail * reached.0,
                reached: reached.0,
                cost: cost.mean,
                hope: Hope { tokens: tokens.1 + tail * reached.1, reached: reached.1, cost: cost.low },
                at: curve.cells.get(depth - 1).map_or(0, |cell| cell.at),
                sporadic: self.seat.sporadic,
            }
        };
        (1..).zip(costs.iter().zip(chances)).map(arm).collect()
    }

    /// Chances by position, and the expected length of the tail behind them.
    fn chances(&self, estimates: &Estimates, depths: usize) -> (Vec<Chance>, f64) {
        let source = &self.sources[self.index];
        let head = source.lengthens.map_or(source, |head| &self.sources[head]);
        let none = Acceptance::default();
        let acceptance = estimates.sources.get(&head.name).map_or(&none, |known| &known.acceptance);
        let seen = estimates.sources.get(&source.name).map(|known| known.tail).filter(|tail| tail.1 > 0.0);
        let tail = source.lengthens.map_or(0.0, |_| seen.map_or(PRIOR_TAIL, |tail| tail.0));
        (acceptance.chances(depths, estimates.round), tail)
    }
}
