//! Drafters with one known fault each. The conformance suite must refuse every one of them.

use std::{cell::RefCell, rc::Rc};

use foretoken_cache::{CacheSet, Snapshot};
use foretoken_sample::SplitMix64;
use mlx_rs::Array;

use super::{lookup::LookUp, pairs::PairDrafter};
use crate::{CommittedRun, DraftCx, DraftError, DraftSink, Drafter};

/// What a broken drafter does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breakage {
    /// Keeps snapshots of the own caches.
    LeaksSnapshots,
    /// Keeps arrays of every session.
    LeaksArrays,
    /// Leaves a transaction of the own caches open.
    LeavesTransactionOpen,
    /// Rewinds the own caches by one pair too many after a proposal.
    RewindsOneTooMany,
    /// Writes into the target's buffers.
    WritesTarget,
    /// Accepts a run that does not follow the last one.
    IgnoresGap,
    /// Draws tokens itself and offers them as certain.
    DrawsItself,
    /// Goes on from a token of its own instead of the one that was drawn.
    IgnoresDraws,
    /// Goes on after the sink refused a token.
    IgnoresRoom,
    /// Proposes before any committed row.
    ProposesEarly,
    /// Keeps drafted pairs when every draft was rejected.
    StaleAfterRejected,
    /// Keeps drafted pairs when every draft was accepted.
    StaleAfterAccepted,
    /// Keeps drafted pairs when some drafts were accepted.
    StaleAfterMixed,
    /// Does not complete the pair at the frontier.
    SettlesShort,
    /// Panics in its second round.
    Panics,
    /// Takes every session for one that begins at slot 0.
    IgnoresStart,
    /// Looks at nothing before the slot that the session was opened at.
    ForgetsStart,
    /// Keeps committed tokens for later sessions.
    SharesSessions,
    /// Keeps what it proposed as if it had been committed.
    LearnsDrafts,
    /// Offers nothing at all.
    NeverOffers,
    /// Keeps what another drafter proposed as if it had been committed.
    ExtendLearns,
    /// Lengthens a proposal past the room.
    ExtendsPastRoom,
}

impl Breakage {
    /// Every kind.
    pub const ALL: [Breakage; 22] = [
        Breakage::LeaksSnapshots,
        Breakage::LeaksArrays,
        Breakage::LeavesTransactionOpen,
        Breakage::RewindsOneTooMany,
        Breakage::WritesTarget,
        Breakage::IgnoresGap,
        Breakage::DrawsItself,
        Breakage::IgnoresDraws,
        Breakage::IgnoresRoom,
        Breakage::ProposesEarly,
        Breakage::StaleAfterRejected,
        Breakage::StaleAfterAccepted,
        Breakage::StaleAfterMixed,
        Breakage::SettlesShort,
        Breakage::Panics,
        Breakage::IgnoresStart,
        Breakage::ForgetsStart,
        Breakage::SharesSessions,
        Breakage::LearnsDrafts,
        Breakage::NeverOffers,
        Breakage::ExtendLearns,
        Breakage::ExtendsPastRoom,
    ];
}

/// A [`PairDrafter`] or [`LookUp`] with one fault.
pub fn broken(vocabulary: usize, breakage: Breakage) -> Rc<dyn Drafter> {
    match breakage {
        Breakage::ForgetsStart
        | Breakage::SharesSessions
        | Breakage::LearnsDrafts
        | Breakage::NeverOffers
        | Breakage::ExtendLearns
        | Breakage::ExtendsPastRoom => Rc::new(LookUp::with_breakage(vocabulary, breakage)),
        _ => Rc::new(PairDrafter::with_breakage(vocabulary, breakage)),
    }
}

/// What a broken drafter keeps past its sessions.
#[derive(Default)]
pub(super) struct Hoard {
    snapshots: Vec<Snapshot>,
    arrays: Vec<Array>,
    draws: u64,
}

/// The fault of a session, if it has one.
#[derive(Clone, Default)]
pub(super) struct Flaw {
    pub(super) breakage: Option<Breakage>,
    pub(super) hoard: Rc<RefCell<Hoard>>,
    /// The slot that the session was opened at.
    opened: usize,
}

impl From<Breakage> for Flaw {
    fn from(breakage: Breakage) -> Self {
        Self { breakage: Some(breakage), ..Self::default() }
    }
}

impl Flaw {
    pub(super) fn is(&self, breakage: Breakage) -> bool {
        self.breakage == Some(breakage)
    }

    /// Whether drafted pairs stay in the cache until the verdict is known.
    pub(super) fn keeps_drafted_pairs(&self) -> bool {
        [Breakage::StaleAfterRejected, Breakage::StaleAfterAccepted, Breakage::StaleAfterMixed]
            .iter()
            .any(|&b| self.is(b))
    }

    /// How many of `drafted` pairs wrongly stay after `kept` of `offered` drafts were accepted.
    pub(super) fn stale(&self, drafted: usize, offered: usize, kept: usize) -> usize {
        match self.breakage {
            Some(Breakage::StaleAfterRejected) if kept == 0 => drafted,
            Some(Breakage::StaleAfterAccepted) if kept == offered => drafted,
            Some(Breakage::StaleAfterMixed) if kept < offered => drafted.min(kept),
            _ => 0,
        }
    }

    /// A proposal that replaces the right one.
    pub(super) fn proposal(
        &self,
        heard: bool,
        rounds: usize,
        current: u32,
        vocabulary: usize,
        out: &mut dyn DraftSink,
    ) -> Result<bool, DraftError> {
        if self.is(Breakage::Panics) && rounds == 2 {
            panic!("scripted panic");
        }
        if self.is(Breakage::ProposesEarly) && !heard && out.room() > 0 {
            out.known(&[current])?;
            return Ok(true);
        }
        if self.is(Breakage::DrawsItself) && heard && out.room() > 0 {
            let mut hoard = self.hoard.borrow_mut();
            hoard.draws += 1;
            let id = SplitMix64::new(hoard.draws).next_u64() % vocabulary as u64;
            out.known(&[id as u32])?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Leaves the own caches as the flaw wants them after a proposal that closed `written` pairs.
    pub(super) fn rest(&self, own: &mut CacheSet, written: usize) -> Result<(), DraftError> {
        match self.breakage {
            _ if self.keeps_drafted_pairs() => return Ok(()),
            Some(Breakage::RewindsOneTooMany) => own.rewind(written.saturating_sub(1))?,
            _ => own.rewind(written)?,
        }
        if self.is(Breakage::LeaksSnapshots) && written > 0 {
            self.hoard.borrow_mut().snapshots.push(own.snapshot(0..written)?);
        }
        if self.is(Breakage::LeaksArrays)
            && let Some(view) = own.layer(0).map(|l| l.get().view()).transpose()?.flatten()
        {
            self.hoard.borrow_mut().arrays.push(view.keys);
        }
        Ok(())
    }

    /// What the flaw does to a committed run before the session sees it.
    pub(super) fn heard(&self, cx: &mut DraftCx<'_>) -> Result<(), DraftError> {
        if self.is(Breakage::WritesTarget) {
            overwrite(cx.target)?;
        }
        Ok(())
    }

    /// What the flaw does after a committed run.
    pub(super) fn leave(&self, own: &mut CacheSet) -> Result<(), DraftError> {
        if self.is(Breakage::LeavesTransactionOpen) && !own.is_open() {
            own.begin()?;
        }
        Ok(())
    }

    /// The slot after a run; one in the wrong place is refused.
    pub(super) fn after(&self, next: usize, run: &CommittedRun<'_>) -> Result<usize, DraftError> {
        match self.breakage {
            Some(Breakage::IgnoresGap) => run.after(run.slot),
            Some(Breakage::IgnoresStart) if next == 0 => run.after(self.opened),
            _ => run.after(next),
        }
    }

    /// The slot that a session opened at `at` believes in.
    pub(super) fn start(&mut self, at: usize) -> usize {
        self.opened = at;
        if self.is(Breakage::IgnoresStart) { 0 } else { at }
    }
}

/// Writes one number into the target's first buffer behind everyone's back: the read-only loan allows no
/// honest way.
fn overwrite(target: &CacheSet) -> Result<(), DraftError> {
    let Some(view) = target.layer(0).map(|l| l.get().view()).transpose()?.flatten() else {
        return Ok(());
    };
    view.keys.eval()?;
    // SAFETY: the view is evaluated float32, shares the buffer of the cache, and nothing else runs; the
    // pointer is valid for its first element.
    unsafe {
        let data = mlx_sys::mlx_array_data_float32(view.keys.as_ptr()).cast_mut();
        if !data.is_null() {
            *data += 1.0;
        }
    }
    Ok(())
}
