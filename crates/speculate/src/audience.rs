//! Every session of a request: all of them hear what is committed, each may fail by itself.

use foretoken_model_base::Model;

use crate::{RequestState, States, session::Hearing};

/// The sessions of one request, in the order in which drafters were given.
pub(crate) struct Audience {
    hearings: Vec<Hearing>,
    /// The slot of the next run to report.
    heard: usize,
}

impl Audience {
    /// Sessions whose first committed slot will be `at`; there may be none.
    pub(crate) fn new(hearings: Vec<Hearing>, at: usize) -> Self {
        Self { hearings, heard: at }
    }

    pub(crate) fn hearings(&self) -> &[Hearing] {
        &self.hearings
    }

    pub(crate) fn get_mut(&mut self, source: usize) -> Option<&mut Hearing> {
        self.hearings.get_mut(source)
    }

    /// The name of a source; plain decoding has none.
    pub(crate) fn name(&self, source: Option<usize>) -> &'static str {
        source.and_then(|source| self.hearings.get(source)).map_or("", |hearing| hearing.facts().name)
    }

    pub(crate) fn wants_hidden(&self) -> bool {
        self.hearings.iter().any(Hearing::wants_hidden)
    }

    /// The layers that live sessions tap, ascending.
    pub(crate) fn layers(&self) -> Vec<usize> {
        let live = self.hearings.iter().filter(|hearing| hearing.alive());
        let mut layers: Vec<usize> = live.flat_map(|hearing| hearing.facts().taps.iter().copied()).collect();
        layers.sort_unstable();
        layers.dedup();
        layers
    }

    /// The slot of the next run to report.
    pub(crate) fn heard(&self) -> usize {
        self.heard
    }

    /// Whether some session still listens.
    pub(crate) fn alive(&self) -> bool {
        self.hearings.iter().any(Hearing::alive)
    }

    /// Reports a committed run to everybody.
    pub(crate) fn committed(
        &mut self,
        model: &dyn Model,
        request: &mut RequestState,
        ids: &[u32],
        states: Option<&States>,
        slot: usize,
    ) {
        for hearing in &mut self.hearings {
            hearing.committed(model, request, ids, states, slot);
        }
        self.heard = slot + ids.len();
    }

    /// Takes own caches back to where they rested after the last committed run.
    pub(crate) fn rewind_own(&self, request: &mut RequestState) {
        self.hearings.iter().for_each(|hearing| hearing.rewind_own(request));
    }

    /// Which sessions have ended and why; each says so once. One that is never asked ends unnoticed.
    pub(crate) fn take_ended(&mut self) -> Option<String> {
        let asked = self.hearings.iter_mut().filter(|hearing| !hearing.is_muted());
        let ended: Vec<String> = asked.filter_map(Hearing::take_ended).collect();
        (!ended.is_empty()).then(|| ended.join("; "))
    }

    /// Settles and finishes every session.
    pub(crate) fn finish(self, model: &dyn Model, request: &mut RequestState, next: Option<u32>) {
        for hearing in self.hearings {
            let complete = hearing.heard() == request.target.offset();
            hearing.finish(model, request, next.filter(|_| complete));
        }
    }
}
