//! A request's draft session behind a guard: its errors and panics end speculation, never the request.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use foretoken_cache::CacheSet;
use foretoken_model_base::Model;

use crate::{
    CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter, DrafterFacts, RequestState, States,
};

/// Which caches of the request belong to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// None.
    Nobody,
    /// `RequestState.own`, which the prefix cache manages.
    Managed,
    /// The entry of `RequestState.others`.
    Other(usize),
}

impl Owner {
    pub(crate) fn caches<'a>(
        self,
        own: &'a mut Option<CacheSet>,
        others: &'a mut [Option<CacheSet>],
    ) -> Option<&'a mut CacheSet> {
        match self {
            Owner::Nobody => None,
            Owner::Managed => own.as_mut(),
            Owner::Other(index) => others.get_mut(index).and_then(Option::as_mut),
        }
    }

    fn of(self, request: &mut RequestState) -> Option<&mut CacheSet> {
        self.caches(&mut request.own, &mut request.others)
    }
}

/// The session, what it has heard, and where its caches last rested.
pub(crate) struct Hearing {
    session: Option<Box<dyn DraftSession>>,
    facts: DrafterFacts,
    owner: Owner,
    /// It only listens.
    muted: bool,
    /// The slot of the next run to report.
    heard: usize,
    /// The own caches' offset after the last committed run; rows behind it may be speculative.
    rest: usize,
    /// Why speculation ended, until it was said.
    ended: Option<String>,
}

impl Hearing {
    /// Opens a session whose first committed slot will be `at`.
    pub(crate) fn open(drafter: &dyn Drafter, at: usize, owner: Owner) -> Self {
        let facts = drafter.facts().clone();
        // Other caches than the managed ones start empty wherever the target rests.
        let rest = if matches!(owner, Owner::Other(_)) { 0 } else { at };
        let mut hearing = Self { session: None, facts, owner, muted: false, heard: at, rest, ended: None };
        match guard(|| drafter.open(at)) {
            Ok(session) => hearing.session = Some(session),
            Err(reason) => hearing.end(&reason),
        }
        hearing
    }

    pub(crate) fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    /// Whether the session still proposes and listens.
    pub(crate) fn alive(&self) -> bool {
        self.session.is_some()
    }

    /// Whether committed runs must carry hidden states.
    pub(crate) fn wants_hidden(&self) -> bool {
        self.alive() && self.facts.needs_hidden
    }

    /// The slot of the next run to report.
    pub(crate) fn heard(&self) -> usize {
        self.heard
    }

    /// Why speculation ended; said once.
    pub(crate) fn take_ended(&mut self) -> Option<String> {
        self.ended.take()
    }

    /// The same, never to be asked.
    pub(crate) fn muted(self) -> Self {
        Self { muted: true, ..self }
    }

    pub(crate) fn is_muted(&self) -> bool {
        self.muted
    }

    /// Which caches it keeps.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// How many tokens it could offer now, when it knows without drafting.
    pub(crate) fn ready(&mut self, tokens: &[u32]) -> Option<usize> {
        let session = self.session.as_ref()?;
        let ready = guard(|| Ok(session.ready(tokens)));
        // Between rounds the own caches rest, so there is nothing to take back.
        ready.unwrap_or_else(|reason| {
            self.fail_with(None, &reason);
            Some(0)
        })
    }

    /// Asks for a proposal, or for a tail after `drafted`. Returns false when the session failed: what it
    /// offered does not count.
    pub(crate) fn propose(
        &mut self,
        model: &dyn Model,
        lent: Lent<'_>,
        (current, drafted): (u32, Option<&[u32]>),
        out: &mut dyn DraftSink,
    ) -> bool {
        let Lent { target, tokens, mut own } = lent;
        let Some(session) = self.session.as_mut() else {
            return false;
        };
        let asked = guard(|| {
            let mut cx = DraftCx { model, target, tokens, own: own.as_deref_mut() };
            match drafted {
                None => session.propose(&mut cx, current, out),
                Some(drafted) => session.extend(&mut cx, current, drafted, out),
            }
        });
        asked.map_err(|reason| self.fail_with(own, &reason)).is_ok()
    }

    /// Reports a committed run in slot order.
    pub(crate) fn committed(
        &mut self,
        model: &dyn Model,
        request: &mut RequestState,
        ids: &[u32],
        states: Option<&States>,
        slot: usize,
    ) {
        let Some(session) = self.session.as_mut() else {
            return;
        };
        let RequestState { target, own, others, history, .. } = request;
        let (tokens, mut own) = (history.ids(), self.owner.caches(own, others));
        let facts = &self.facts;
        let told = guard(|| {
            let asked = states.map(|states| states.asked_by(facts)).transpose();
            let hidden = asked.map_err(|err| DraftError::Other(err.to_string()))?.flatten();
            let mut cx = DraftCx { model, target, tokens, own: own.as_deref_mut() };
            session.committed(&mut cx, CommittedRun { ids, hidden: hidden.as_ref(), slot })
        });
        match told {
            Ok(()) => {
                self.heard = slot + ids.len();
                self.rest = own.map_or(self.heard, |o| o.offset());
            }
            Err(reason) => self.fail_with(own, &reason),
        }
    }

    /// Ends this session; the own caches return to where they last rested.
    pub(crate) fn fail(&mut self, request: &mut RequestState, reason: &str) {
        let own = self.owner.of(request);
        self.fail_with(own, reason);
    }

    fn fail_with(&mut self, own: Option<&mut CacheSet>, reason: &str) {
        if let Some(session) = self.session.take() {
            // A broken session may also panic while it is dropped.
            let _ = catch_unwind(AssertUnwindSafe(move || drop(session)));
        }
        self.end(reason);
        rewind_to(own, self.rest);
    }

    fn end(&mut self, reason: &str) {
        self.ended = Some(format!("{}: {reason}", self.facts.name));
    }

    /// Takes the own caches back to where they rested after the last committed run.
    pub(crate) fn rewind_own(&self, request: &mut RequestState) {
        rewind_to(self.owner.of(request), self.rest);
    }

    /// Settles and finishes the session, with the token after the target's last slot when the request is
    /// healthy. Nothing that goes wrong here concerns the answer.
    pub(crate) fn finish(mut self, model: &dyn Model, request: &mut RequestState, next: Option<u32>) {
        if let Some(session) = self.session.as_mut() {
            let RequestState { target, own, others, history, .. } = &mut *request;
            let (tokens, own) = (history.ids(), self.owner.caches(own, others));
            let told = guard(|| session.settle(&mut DraftCx { model, target, tokens, own }, next));
            if let Err(reason) = told {
                self.fail(request, &reason);
            }
        }
        let at = request.target.offset();
        cut(self.owner.of(request), at);
        if let Some(session) = self.session.take() {
            let _ = guard(|| session.finish());
        }
    }
}

/// What a proposal may look at.
pub(crate) struct Lent<'a> {
    pub(crate) target: &'a CacheSet,
    pub(crate) tokens: &'a [u32],
    pub(crate) own: Option<&'a mut CacheSet>,
}

fn rewind_to(own: Option<&mut CacheSet>, rest: usize) {
    if let Some(own) = own
        && let Err(err) = own.rewind(rest.min(own.offset()))
    {
        own.poison(err.to_string());
    }
}

/// The own caches hold nothing past the target's offset. The target stays where it is when they are behind: a
/// drafter's failure must not cost states that fold the past and cannot go back.
fn cut(own: Option<&mut CacheSet>, at: usize) {
    if let Some(own) = own.filter(|own| own.offset() > at && !own.is_poisoned())
        && let Err(err) = own.rewind(at)
    {
        own.poison(err.to_string());
    }
}

/// Runs a call into a drafter; an error or a panic becomes its reason.
fn guard<T>(call: impl FnOnce() -> Result<T, DraftError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|err| err.to_string()),
        Err(panic) => Err(format!("the drafter panicked: {}", message(panic.as_ref()))),
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
