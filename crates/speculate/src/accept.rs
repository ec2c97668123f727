//! The two acceptance rules. Each judges only what its own sink drew.

use foretoken_sample::{Distribution, uniform};
use mlx_rs::{Array, ops::concatenate, ops::indexing::TryIndexOp};

use crate::{
    DraftSink, Result,
    lazy::{Host, Lazy},
    sink::{CoupledSink, Desk, Drafts, RatioSink},
};

pub(crate) mod sealed {
    /// Keeps the rules to the two that are proven.
    pub trait Sealed {}
}

/// An acceptance rule, chosen once per request.
pub trait Rule: sealed::Sealed {
    /// Where a proposal for this rule goes.
    type Sink<'a>: DraftSink;
    /// Judges a proposal of n drafts: which drafts a run may keep, and the token that follows if the run
    /// ends before draft i, for every i up to n. Everything stays lazy.
    ///
    /// `target` has n + 1 rows; row i is the target's law after the first i drafts.
    fn accept(&self, target: &Distribution, drawn: Self::Sink<'_>) -> Result<Lazy<Verdict>>;
}

/// What the engine needs from a rule besides the judgement.
pub(crate) trait Engine: Rule {
    /// An empty sink for one round.
    fn sink<'a>(&self, desk: Desk<'a>) -> Self::Sink<'a>;
    /// What a sink was offered.
    fn drafts<'s>(sink: &'s Self::Sink<'_>) -> &'s Drafts<'s>;
    /// Forgets all but the first `count` drafts.
    fn cut(sink: &mut Self::Sink<'_>, count: usize) -> Result<()>;
}

/// A judged proposal, on the host.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Verdict {
    /// The n drafts.
    pub ids: Vec<u32>,
    /// Whether each draft is accepted, given that all before it are.
    pub accepted: Vec<bool>,
    /// Whether each draft came from logits that can be sampled.
    pub sound: Vec<bool>,
    /// The token to emit where the run of accepted drafts ends, n + 1 entries.
    pub continuations: Vec<u32>,
    /// How far each of the target's own draws lies above the next best, n + 1 entries; empty unless the
    /// request reports margins and the rule draws that way.
    pub margins: Vec<f32>,
}

/// Accepts draft x with min(1, p(x)/q(x)) and continues from max(p − q, 0) (Leviathan et al., Fast
/// inference from transformers via speculative decoding, 2023; Chen et al., 2023).
#[derive(Debug, Clone, Copy)]
pub struct Ratio(());

impl Ratio {
    pub(crate) fn new() -> Self {
        Self(())
    }
}

impl sealed::Sealed for Ratio {}

impl Rule for Ratio {
    type Sink<'a> = RatioSink<'a>;

    fn accept(&self, target: &Distribution, drawn: RatioSink<'_>) -> Result<Lazy<Verdict>> {
        let RatioSink { drafts, stream, drawn_from } = drawn;
        let (n, slot) = (drafts.count(), drafts.first_slot());
        let (accept_key, continue_key) = (stream.next_u64(), stream.next_u64());
        let Some(ids) = drafts.ids() else {
            return verdict(&drafts, None, &target.draw(continue_key, slot)?);
        };
        let q = Distribution::concat(&drawn_from.iter().collect::<Vec<_>>())?;
        let p = target.slice(0..n)?;
        // u < p/q without the division; a q that is not a number accepts nothing.
        let threshold = uniform(accept_key, slot..slot + n)?.multiply(&q.prob(ids)?)?;
        let accepted = threshold.lt(&p.prob(ids)?)?;
        let rejected_at = p.residual(&q)?.draw(continue_key, slot)?;
        let bonus = target.slice(n..n + 1)?.draw(continue_key, slot + n)?;
        verdict(&drafts, Some(accepted), &concatenate(&[&rejected_at, &bonus], 0)?)
    }
}

impl Engine for Ratio {
    fn sink<'a>(&self, desk: Desk<'a>) -> RatioSink<'a> {
        RatioSink::new(desk)
    }

    fn drafts<'s>(sink: &'s RatioSink<'_>) -> &'s Drafts<'s> {
        &sink.drafts
    }

    fn cut(sink: &mut RatioSink<'_>, count: usize) -> Result<()> {
        sink.cut(count)
    }
}

/// Draft and target draw with the same noise, keyed by seed, slot and id; drafts are accepted while they
/// equal the target's own draw (Daliri, Musco, Suresh: Coupling without communication and drafter-invariant
/// speculative decoding, 2024).
#[derive(Debug, Clone, Copy)]
pub struct Coupled {
    seed: u64,
    margins: bool,
}

impl Coupled {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, margins: false }
    }

    /// Also reports how far each draw lies above the next best.
    pub(crate) fn with_margins(self, margins: bool) -> Self {
        Self { margins, ..self }
    }
}

impl sealed::Sealed for Coupled {}

impl Rule for Coupled {
    type Sink<'a> = CoupledSink<'a>;

    fn accept(&self, target: &Distribution, drawn: CoupledSink<'_>) -> Result<Lazy<Verdict>> {
        let (drafts, seed) = (drawn.drafts, self.seed);
        let slot = drafts.first_slot();
        let (drawn, margins) = match self.margins {
            true => target.draw_with_margin(seed, slot).map(|(ids, margins)| (ids, Some(margins)))?,
            false => (target.draw(seed, slot)?, None),
        };
        let accepted = match drafts.ids() {
            Some(ids) => Some(drawn.try_index(..drafts.count() as i32)?.eq(ids)?),
            None => None,
        };
        let verdict = verdict(&drafts, accepted, &drawn)?;
        let Some(margins) = margins else {
            return Ok(verdict);
        };
        let margins = Lazy::new(&[&margins], |mut hosts| hosts.next().map(Host::floats).unwrap_or_default())?;
        Ok(verdict.with(margins).map(|(verdict, margins)| Verdict { margins, ..verdict }))
    }
}

impl Engine for Coupled {
    fn sink<'a>(&self, desk: Desk<'a>) -> CoupledSink<'a> {
        CoupledSink::new(desk, self.seed)
    }

    fn drafts<'s>(sink: &'s CoupledSink<'_>) -> &'s Drafts<'s> {
        &sink.drafts
    }

    fn cut(sink: &mut CoupledSink<'_>, count: usize) -> Result<()> {
        sink.drafts.cut(count)
    }
}

/// The continuations come first among the arrays, where [`continuations`] finds them.
///
/// # Shapes
/// `accepted` `[n]` bool, `continuations` `[n+1]` uint32.
pub(crate) fn verdict(
    drafts: &Drafts<'_>,
    accepted: Option<Array>,
    continuations: &Array,
) -> Result<Lazy<Verdict>> {
    let mut arrays = vec![continuations];
    if let (Some(ids), Some(sound), Some(accepted)) = (drafts.ids(), drafts.sound(), accepted.as_ref()) {
        arrays.extend([ids, accepted, sound]);
    }
    Lazy::new(&arrays, |mut hosts| Verdict {
        continuations: hosts.next().map(Host::ids).unwrap_or_default(),
        ids: hosts.next().map(Host::ids).unwrap_or_default(),
        accepted: hosts.next().map(Host::flags).unwrap_or_default(),
        sound: hosts.next().map(Host::flags).unwrap_or_default(),
        margins: Vec::new(),
    })
}

/// The continuations of a verdict that is not computed yet `[n+1]` uint32.
pub(crate) fn continuations(verdict: &Lazy<Verdict>) -> Option<&Array> {
    verdict.arrays().first()
}
