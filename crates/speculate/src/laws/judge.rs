//! Judges many independent positions in one call, as a round judges its drafts.

use foretoken_sample::{Distribution, History, Sampler, SplitMix64};

use crate::{
    DraftSink,
    accept::{Engine, Verdict},
    round::wait,
    sink::Desk,
};

/// What all positions of a call share.
pub(super) struct Bench<'a> {
    pub(super) sampler: &'a Sampler,
    /// Penalties see it, and its length is the first position's slot: every position has a slot of its own,
    /// hence noise of its own.
    pub(super) history: &'a History,
    /// Where the ratio rule's keys come from.
    pub(super) seed: u64,
}

impl Bench<'_> {
    /// Judges one draft in each of n positions. `target` has a row for each and one more, which is not
    /// looked at.
    pub(super) fn judge<R: Engine>(
        &self,
        rule: &R,
        target: &Distribution,
        offer: impl FnOnce(&mut dyn DraftSink),
    ) -> Verdict {
        let mut stream = SplitMix64::new(self.seed);
        let room = target.rows() - 1;
        let desk = Desk { sampler: self.sampler, history: self.history, stream: &mut stream, room };
        let mut sink = rule.sink(desk);
        offer(&mut sink);
        wait(rule.accept(target, sink).expect("a verdict"), None).expect("an evaluation")
    }
}

/// What each position emits: its draft, or the token that continues there.
pub(super) fn emitted(verdict: &Verdict) -> Vec<u32> {
    let kept = |i: usize| verdict.sound[i] && verdict.accepted[i];
    (0..verdict.ids.len()).map(|i| if kept(i) { verdict.ids[i] } else { verdict.continuations[i] }).collect()
}
