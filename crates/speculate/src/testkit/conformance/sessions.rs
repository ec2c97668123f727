//! What sessions owe to each other: one may go on where another ended, and none knows of any other.

use super::{DEPTH, Drive, Keep, Offer, Suite, Violation, unlike};

/// Rounds of the session whose offers are compared.
const ROUNDS: [Keep; 3] = [Keep::All, Keep::None, Keep::Half];

impl<'a> Suite<'a> {
    /// What a session offers round by round.
    pub(super) fn alone(&self) -> Result<Vec<Offer>, Violation> {
        let mut drive = self.prefilled(&[2])?;
        ROUNDS.iter().map(|&keep| drive.played(DEPTH, keep, keep.round())).collect()
    }

    /// An equal session makes equal offers after others, and beside another.
    pub(super) fn isolated(&self, alone: &[Offer]) -> Result<(), Violation> {
        let others: Vec<u32> = self.prompt.iter().rev().copied().collect();
        let beside = Suite { prompt: &others, ..*self };
        beside.alone()?;
        same(alone, &self.alone()?, "other requests")?;
        let (mut drive, mut other) = (self.prefilled(&[2])?, beside.prefilled(&[2])?);
        let mut offers = Vec::new();
        for keep in ROUNDS {
            other.played(DEPTH, keep, keep.round())?;
            offers.push(drive.played(DEPTH, keep, keep.round())?);
        }
        same(alone, &offers, "runs of another session")
    }

    /// A session that goes on where an earlier request ended is like one that heard everything.
    pub(super) fn restored(&self) -> Result<(), Violation> {
        let last = self.prompt.len() - 1;
        for at in [1, last / 2, last] {
            let after = format!("a restored prefix of {at} tokens");
            let mut subject = self.resumed(at, &after)?;
            subject.prefill(&[1])?;
            // Whether the restored rows count as committed is the drafter's choice until it hears a run.
            subject.round(DEPTH, Keep::Half, &after)?;
            let mut fresh = self.like(&subject)?;
            self.same_offers(&mut subject, &mut fresh, DEPTH, &after)?;
            self.same_rest(subject, fresh, &after)?;
            self.resumed(at, &after)?.gap()?;
        }
        Ok(())
    }

    /// A session opened at slot `at`, with the caches of a request that ended there.
    fn resumed(&self, at: usize, after: &str) -> Result<Drive<'a>, Violation> {
        let mut earlier = self.open()?;
        earlier.hear(&self.prompt[..at], self.prompt[at])?;
        earlier.settle(Some(self.prompt[at]), after)?;
        earlier.finish(after)?;
        earlier.reopen(self.drafter)
    }

    /// Drafts that were rejected come back as the target's own tokens: a session that learned from them
    /// offers something else than one that never saw them.
    pub(super) fn rejected_drafts_return(&self) -> Result<(), Violation> {
        let drafts = self.prefilled(&[])?.propose(DEPTH, &[])?.ids;
        self.return_of(&drafts, |drive| drive.propose(DEPTH, &[]))
    }

    /// Rejects what `offer` made, and lets `drafts` return one by one.
    pub(super) fn return_of(
        &self,
        drafts: &[u32],
        offer: impl Fn(&mut Drive<'a>) -> Result<Offer, Violation>,
    ) -> Result<(), Violation> {
        for end in 1..=drafts.len() {
            let after = format!("the return of {end} rejected drafts");
            let mut subject = self.prefilled(&[])?;
            offer(&mut subject)?;
            subject.commit(drafts, Keep::None, &after)?;
            for &id in &drafts[..end] {
                subject.step(id, &after)?;
            }
            let mut fresh = self.like(&subject)?;
            self.same_offers(&mut subject, &mut fresh, DEPTH, &after)?;
            self.same_rest(subject, fresh, &after)?;
        }
        Ok(())
    }
}

fn same(want: &[Offer], got: &[Offer], after: &'static str) -> Result<(), Violation> {
    match want.iter().zip(got).any(|(want, got)| unlike(got, want).is_some()) {
        true => Err(Violation::Shared { after }),
        false => Ok(()),
    }
}
