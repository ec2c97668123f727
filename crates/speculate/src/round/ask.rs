//! Asking sessions for drafts: the source that was picked, and another one for a tail.

use foretoken_cache::CacheSet;
use foretoken_model_base::{DraftVocabulary, Model};
use mlx_rs::Array;

use super::Plan;
use crate::{DraftError, DraftSink, SpeculateError, audience::Audience, session::Lent};

type Drafted<T> = std::result::Result<T, DraftError>;

/// The sessions, and what they may look at while they propose.
pub(super) struct Asked<'a> {
    pub(super) model: &'a dyn Model,
    pub(super) audience: &'a mut Audience,
    pub(super) own: &'a mut Option<CacheSet>,
    pub(super) others: &'a mut Vec<Option<CacheSet>>,
    pub(super) current: u32,
}

impl Asked<'_> {
    /// Asks the plan's source. Returns false when it failed.
    pub(super) fn head(
        &mut self,
        plan: Plan,
        (target, tokens): (&CacheSet, &[u32]),
        sink: &mut dyn DraftSink,
    ) -> bool {
        let Some(hearing) = plan.source.and_then(|source| self.audience.get_mut(source)) else {
            return true;
        };
        let own = hearing.owner().caches(self.own, self.others);
        let mut limited = Limited { left: plan.room, sink };
        hearing.propose(self.model, Lent { target, tokens, own }, (self.current, None), &mut limited)
    }

    /// Asks another session for what may follow what was drafted. What a session that fails here has offered
    /// is only a tail of certain tokens, which are judged like all others.
    pub(super) fn tail(
        &mut self,
        (tail, most): (usize, usize),
        (target, tokens): (&CacheSet, &[u32]),
        drafted: &[u32],
        sink: &mut dyn DraftSink,
    ) {
        if let Some(hearing) = self.audience.get_mut(tail) {
            let own = hearing.owner().caches(self.own, self.others);
            let mut limited = Limited { left: most, sink };
            let asked = (self.current, Some(drafted));
            hearing.propose(self.model, Lent { target, tokens, own }, asked, &mut limited);
        }
    }

    /// A failed evaluation leaves rows in flight unknown, also those that drafting has only built.
    pub(super) fn poison(&mut self, target: &mut CacheSet, error: SpeculateError) -> SpeculateError {
        let own = self.own.iter_mut().chain(self.others.iter_mut().flatten());
        std::iter::once(target).chain(own).for_each(|set| set.poison(error.to_string()));
        error
    }
}

/// A sink that takes fewer tokens than the round has room for.
struct Limited<'a> {
    left: usize,
    sink: &'a mut dyn DraftSink,
}

impl Limited<'_> {
    /// Passes an offer of so many tokens on.
    fn spend<T>(
        &mut self,
        tokens: usize,
        offer: impl FnOnce(&mut dyn DraftSink) -> Drafted<T>,
    ) -> Drafted<T> {
        if tokens > self.left {
            return Err(DraftError::Mismatch {
                what: "proposal".into(),
                expected: format!("at most {} more tokens", self.left),
                got: tokens.to_string(),
            });
        }
        let taken = offer(self.sink)?;
        self.left -= tokens;
        Ok(taken)
    }
}

impl DraftSink for Limited<'_> {
    fn room(&self) -> usize {
        self.left.min(self.sink.room())
    }

    fn draw(&mut self, logits: &Array, vocabulary: Option<&DraftVocabulary>) -> Drafted<Array> {
        let rows = logits.shape().get(1).map_or(0, |&rows| rows as usize);
        self.spend(rows, |sink| sink.draw(logits, vocabulary))
    }

    fn known(&mut self, ids: &[u32]) -> Drafted<()> {
        self.spend(ids.len(), |sink| sink.known(ids))
    }
}
