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
}

/// A judged proposal, on the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// The n drafts.
    pub ids: Vec<u32>,
    /// Whether each draft is accepted, given that all before it are.
    pub accepted: Vec<bool>,
    /// Whether each draft came from logits that can be sampled.
    pub sound: Vec<bool>,
    /// The token to emit where the run of accepted drafts ends, n + 1 entries.
    pub continuations: Vec<u32>,
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
}

/// Draft and target draw with the same noise, keyed by seed, slot and id; drafts are accepted while they
/// equal the target's own draw (Daliri, Musco, Suresh: Coupling without communication and drafter-invariant
/// speculative decoding, 2024).
#[derive(Debug, Clone, Copy)]
pub struct Coupled {
    seed: u64,
}

impl Coupled {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed }
    }
}

impl sealed::Sealed for Coupled {}

impl Rule for Coupled {
    type Sink<'a> = CoupledSink<'a>;

    fn accept(&self, target: &Distribution, drawn: CoupledSink<'_>) -> Result<Lazy<Verdict>> {
        let drafts = drawn.drafts;
        let drawn = target.draw(self.seed, drafts.first_slot())?;
        let accepted = match drafts.ids() {
            Some(ids) => Some(drawn.try_index(..drafts.count() as i32)?.eq(ids)?),
            None => None,
        };
        verdict(&drafts, accepted, &drawn)
    }
}

impl Engine for Coupled {
    fn sink<'a>(&self, desk: Desk<'a>) -> CoupledSink<'a> {
        CoupledSink::new(desk, self.seed)
    }

    fn drafts<'s>(sink: &'s CoupledSink<'_>) -> &'s Drafts<'s> {
        &sink.drafts
    }
}

/// # Shapes
/// `accepted` `[n]` bool, `continuations` `[n+1]` uint32.
pub(crate) fn verdict(
    drafts: &Drafts<'_>,
    accepted: Option<Array>,
    continuations: &Array,
) -> Result<Lazy<Verdict>> {
    let (Some(ids), Some(sound), Some(accepted)) = (drafts.ids(), drafts.sound(), accepted) else {
        return Lazy::new(&[continuations], |mut hosts| Verdict {
            continuations: hosts.next().map(Host::ids).unwrap_or_default(),
            ..Verdict::default()
        });
    };
    Lazy::new(&[ids, &accepted, sound, continuations], |mut hosts| Verdict {
        ids: hosts.next().map(Host::ids).unwrap_or_default(),
        accepted: hosts.next().map(Host::flags).unwrap_or_default(),
        sound: hosts.next().map(Host::flags).unwrap_or_default(),
        continuations: hosts.next().map(Host::ids).unwrap_or_default(),
    })
}
