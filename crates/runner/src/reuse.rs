//! What a request takes over from earlier ones, and what it leaves to later ones.
//!
//! Nothing here can fail a request: what cannot be brought back or kept is computed again.

use foretoken_cache::prefix::{PrefixCache, PrefixOptions, PrefixSession};
use foretoken_speculate::RequestState;

/// The prefix cache of one model and its drafter, or none.
pub(crate) struct Reuse {
    options: Option<PrefixOptions>,
    /// Made for the first request, because a drafter may still be added before it.
    cache: Option<PrefixCache>,
}

/// One request's part; empty when the request is served without reuse.
#[derive(Debug, Default)]
pub(crate) struct Lease(Option<PrefixSession>);

impl Reuse {
    pub(crate) fn new(options: Option<PrefixOptions>) -> Self {
        Self { options, cache: None }
    }

    /// The cache, once a request was served.
    pub(crate) fn cache(&self) -> Option<&PrefixCache> {
        self.cache.as_ref()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.cache = None;
    }

    /// Takes both sets to the longest known beginning of the prompt. `None` when the sets could not be
    /// used for that; they must be replaced by new ones then.
    pub(crate) fn begin(
        &mut self,
        look_ahead: usize,
        boundaries: &[usize],
        state: &mut RequestState,
    ) -> Option<Lease> {
        let Some(options) = &self.options else {
            return Some(Lease::default());
        };
        // Without caches of its own a drafter's look-ahead concerns no state.
        let look_ahead = if state.own.is_some() { look_ahead } else { 0 };
        let cache = self
            .cache
            .get_or_insert_with(|| PrefixCache::new(PrefixOptions { look_ahead, ..options.clone() }));
        let RequestState { target, own, history, .. } = state;
        cache.begin(history.ids(), boundaries, target, own.as_mut()).ok().map(|session| Lease(Some(session)))
    }

    /// Keeps the restore points that the request has passed.
    pub(crate) fn collect(&mut self, lease: &mut Lease, state: &mut RequestState) {
        let (Some(cache), Some(session)) = (&mut self.cache, &mut lease.0) else {
            return;
        };
        if cache.collect(session, &mut state.target, state.own.as_mut()).is_err() {
            // What was kept so far stays; the rest of the request goes unremembered.
            lease.0 = None;
        }
    }

    /// Takes the request's sets, however it ended. Poisoned ones are dropped there.
    pub(crate) fn close(&mut self, lease: Lease, state: RequestState) {
        let (Some(cache), Some(session)) = (&mut self.cache, lease.0) else {
            return;
        };
        // The answer is complete, and the cache is consistent also when it refuses.
        let _ = cache.close(session, state.history.ids(), state.target, state.own);
    }
}

impl Lease {
    /// Prompt tokens whose state was already there.
    pub(crate) fn cached_tokens(&self) -> usize {
        self.0.as_ref().map_or(0, PrefixSession::cached_tokens)
    }
}
