//! A drafter with caches of its own: a toy of the sequential heads.
//!
//! Slot S of the cache pairs the token at S + 1 with the target's hidden state at S. Draft logits depend
//! on every pair, so one that is missing, stale or doubled changes what is proposed.

use foretoken_cache::{CacheSet, KvCache, Layer, SetId, View};
use mlx_rs::{
    Array, Dtype,
    ops::{concatenate, indexing::TryIndexOp},
};

use super::broken::{Breakage, Flaw};
use crate::{CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter, DrafterFacts};

const MAX_DEPTH: usize = 8;

/// How much a drafted pair's hidden state keeps of the one before it.
const CARRY: f32 = 0.5;

/// Pairs tokens with hidden states in one layer of its own. Needs a target with E = V and float32.
pub struct PairDrafter {
    facts: DrafterFacts,
    id: SetId,
    vocabulary: usize,
    flaw: Flaw,
}

impl PairDrafter {
    /// A drafter for a target with this vocabulary and width.
    pub fn new(vocabulary: usize) -> Self {
        let facts = DrafterFacts::new("pairs", MAX_DEPTH).with_look_ahead(1).with_hidden();
        Self { facts, id: SetId::fresh(), vocabulary, flaw: Flaw::default() }
    }

    pub(super) fn with_breakage(vocabulary: usize, breakage: Breakage) -> Self {
        Self { flaw: breakage.into(), ..Self::new(vocabulary) }
    }
}

impl Drafter for PairDrafter {
    fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    fn make_caches(&self) -> Option<CacheSet> {
        Some(CacheSet::with_id(self.id, vec![Layer::Kv(KvCache::new())]))
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        let mut flaw = self.flaw.clone();
        let at = flaw.start(at);
        Ok(Box::new(PairSession {
            vocabulary: self.vocabulary,
            at,
            next: at,
            written: at,
            waiting: None,
            offered: 0,
            rounds: 0,
            flaw,
        }))
    }
}

/// The pairs of slots `..written` are in the own cache; `waiting` is the hidden state of the slot after.
struct PairSession {
    vocabulary: usize,
    at: usize,
    /// One past the last committed slot.
    next: usize,
    written: usize,
    /// Hidden state `[1,1,E]` of the last committed slot, until its pair is complete.
    waiting: Option<Array>,
    /// Drafts of the last proposal.
    offered: usize,
    rounds: usize,
    flaw: Flaw,
}

impl DraftSession for PairSession {
    fn propose(
        &mut self,
        cx: &mut DraftCx<'_>,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        self.rounds += 1;
        self.offered = 0;
        let heard = self.next > self.at;
        let replaced = self.flaw.proposal(heard, self.rounds, current, self.vocabulary, out)?;
        if replaced || !heard || out.room() == 0 {
            return Ok(());
        }
        let own = own(cx)?;
        let view = self.close(own, current)?;
        self.chain(own, view, current, out)?;
        self.flaw.rest(own, self.written)
    }

    fn committed(&mut self, cx: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        let next = self.flaw.after(self.next, &run)?;
        self.flaw.heard(cx)?;
        let hidden = run.hidden.ok_or_else(|| DraftError::Other("no hidden states".into()))?;
        let own = own(cx)?;
        let drafted = own.offset().saturating_sub(self.written);
        let stale = self.flaw.stale(drafted, self.offered, run.ids.len() - 1);
        if drafted > 0 {
            own.rewind(self.written + stale)?;
        }
        let (ids, hidden_before) = self.complete(&run, hidden)?;
        let fresh = ids.dim(1) as usize;
        if fresh > stale {
            let from = stale as i32;
            write(own, &ids.try_index((.., from..))?, &hidden_before.try_index((.., from.., ..))?)?;
        }
        self.written += fresh.max(stale);
        self.waiting = Some(hidden.try_index((.., -1.., ..))?);
        self.next = next;
        self.flaw.leave(own)
    }

    fn settle(&mut self, cx: &mut DraftCx<'_>, next: Option<u32>) -> Result<(), DraftError> {
        match next {
            Some(next) if self.next > self.at && !self.flaw.is(Breakage::SettlesShort) => {
                self.close(own(cx)?, next).map(drop)
            }
            _ => Ok(()),
        }
    }
}

impl PairSession {
    /// Completes the pair of the last committed slot and returns what the cache holds then.
    fn close(&mut self, own: &mut CacheSet, next: u32) -> Result<View, DraftError> {
        if let Some(hidden) = self.waiting.take() {
            self.written += 1;
            return write(own, &Array::from_slice(&[next], &[1, 1]), &hidden);
        }
        let view = own.layer(0).map(|l| l.get().view()).transpose()?.flatten();
        view.ok_or_else(|| DraftError::Other("no pair".into()))
    }

    /// The first token comes from the committed pairs, each later one from a drafted pair more.
    fn chain(
        &mut self,
        own: &mut CacheSet,
        mut view: View,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        let mut ids = out.draw(&thought(&view, self.vocabulary)?, None)?; // [1,1]
        self.offered = 1;
        let steps = if self.flaw.is(Breakage::IgnoresRoom) { MAX_DEPTH } else { out.room() + 1 };
        for _ in 1..steps.min(MAX_DEPTH) {
            if self.flaw.is(Breakage::IgnoresDraws) {
                ids = Array::from_slice(&[(current + 1) % self.vocabulary as u32], &[1, 1]);
            }
            let before = last_value(&view, self.vocabulary)?;
            drop(view);
            view = write(own, &ids, &before.multiply(Array::from_f32(CARRY))?)?;
            match out.draw(&thought(&view, self.vocabulary)?, None) {
                Ok(drawn) => ids = drawn,
                Err(_) if self.flaw.is(Breakage::IgnoresRoom) => continue,
                Err(err) => return Err(err),
            }
            self.offered += 1;
        }
        Ok(())
    }

    /// The pairs that a run completes: (ids `[1,n]`, hidden `[1,n,E]`), n possibly 0.
    fn complete(&mut self, run: &CommittedRun<'_>, hidden: &Array) -> Result<(Array, Array), DraftError> {
        let ids = Array::from_slice(run.ids, &[1, run.ids.len() as i32]);
        let inner = hidden.try_index((.., ..-1, ..))?;
        Ok(match self.waiting.take() {
            // The run's first token completes the pair at the frontier, if no proposal did.
            Some(before) => (ids, concatenate(&[&before, &inner], 1)?),
            None => (ids.try_index((.., 1..))?, inner),
        })
    }
}

fn own<'c>(cx: &'c mut DraftCx<'_>) -> Result<&'c mut CacheSet, DraftError> {
    cx.own.as_deref_mut().ok_or_else(|| DraftError::Other("no own caches".into()))
}

/// # Shapes
/// `ids` `[1,n]`, `hidden` `[1,n,E]`.
fn write(own: &mut CacheSet, ids: &Array, hidden: &Array) -> Result<View, DraftError> {
    let keys = ids.reshape(&[1, 1, -1, 1])?.as_dtype(Dtype::Float32)?;
    let layer = own.layer_mut(0).ok_or_else(|| DraftError::Other("no layer".into()))?;
    Ok(layer.get_mut().append(&keys, &hidden.expand_dims(1)?)?)
}

/// The newest value row `[1,1,E]`.
fn last_value(view: &View, width: usize) -> Result<Array, DraftError> {
    Ok(view.values.try_index((.., .., -1.., ..))?.reshape(&[1, 1, width as i32])?)
}

/// Draft logits from all pairs: the newest state leads, all states weighted by their tokens follow.
///
/// # Shapes
/// → `[1,1,V]`.
fn thought(view: &View, width: usize) -> Result<Array, DraftError> {
    let weights = view.keys.add(Array::from_f32(1.0))?; // [1,1,S,1]
    let mean = view.values.multiply(&weights)?.mean_axis(2, false)?; // [1,1,E]
    Ok(last_value(view, width)?.add(mean)?)
}
