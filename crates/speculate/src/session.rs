//! A request's draft session behind a guard: its errors and panics end speculation, never the request.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use foretoken_cache::CacheSet;
use foretoken_model_base::Model;
use mlx_rs::Array;

use crate::{
    CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter, DrafterFacts, RequestState,
};

/// The session, what it has heard, and where its caches last rested.
pub(crate) struct Hearing {
    session: Option<Box<dyn DraftSession>>,
    facts: DrafterFacts,
    /// The slot of the next run to report.
    heard: usize,
    /// The own caches' offset after the last committed run; rows behind it may be speculative.
    rest: usize,
    /// Why speculation ended, until it was said.
    ended: Option<String>,
}

impl Hearing {
    /// Opens a session whose first committed slot will be `at`.
    pub(crate) fn open(drafter: &dyn Drafter, at: usize) -> Self {
        let facts = drafter.facts().clone();
        let mut hearing = Self { session: None, facts, heard: at, rest: at, ended: None };
        match guard(|| drafter.open(at)) {
            Ok(session) => hearing.session = Some(session),
            Err(reason) => hearing.end(&reason),
        }
        hearing
    }

    /// No session at all.
    pub(crate) fn nobody(at: usize) -> Self {
        Self { session: None, facts: DrafterFacts::new("none", 0), heard: at, rest: at, ended: None }
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

    /// Asks for a proposal. Returns false when the session failed: what it offered does not count.
    pub(crate) fn propose(
        &mut self,
        model: &dyn Model,
        lent: Lent<'_>,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> bool {
        let Lent { target, tokens, mut own } = lent;
        let Some(session) = self.session.as_mut() else {
            return false;
        };
        let asked = guard(|| {
            let mut cx = DraftCx { model, target, tokens, own: own.as_deref_mut() };
            session.propose(&mut cx, current, out)
        });
        asked.map_err(|reason| self.fail(own, reason)).is_ok()
    }

    /// Reports a committed run in slot order.
    pub(crate) fn committed(
        &mut self,
        model: &dyn Model,
        request: &mut RequestState,
        ids: &[u32],
        hidden: Option<&Array>,
        slot: usize,
    ) {
        let Some(session) = self.session.as_mut() else {
            return;
        };
        let hidden = hidden.filter(|_| self.facts.needs_hidden);
        let (tokens, mut own) = (request.history.ids(), request.own.as_mut());
        let told = guard(|| {
            let mut cx = DraftCx { model, target: &request.target, tokens, own: own.as_deref_mut() };
            session.committed(&mut cx, CommittedRun { ids, hidden, slot })
        });
        match told {
            Ok(()) => {
                self.heard = slot + ids.len();
                self.rest = own.map_or(self.heard, |o| o.offset());
            }
            Err(reason) => self.fail(own, reason),
        }
    }

    /// Ends speculation for the request; the own caches return to where they last rested.
    pub(crate) fn fail(&mut self, own: Option<&mut CacheSet>, reason: String) {
        if let Some(session) = self.session.take() {
            // A broken session may also panic while it is dropped.
            let _ = catch_unwind(AssertUnwindSafe(move || drop(session)));
        }
        self.end(&reason);
        self.rewind_own(own);
    }

    fn end(&mut self, reason: &str) {
        self.ended = Some(format!("{}: {reason}", self.facts.name));
    }

    /// Takes the own caches back to where they rested after the last committed run.
    pub(crate) fn rewind_own(&self, own: Option<&mut CacheSet>) {
        if let Some(own) = own
            && let Err(err) = own.rewind(self.rest.min(own.offset()))
        {
            own.poison(err.to_string());
        }
    }

    /// Settles and finishes the session, with the token after the target's last slot when the request is
    /// healthy. Nothing that goes wrong here concerns the answer.
    pub(crate) fn finish(mut self, model: &dyn Model, request: &mut RequestState, next: Option<u32>) {
        if let Some(session) = self.session.as_mut() {
            let (target, tokens, own) = (&request.target, request.history.ids(), request.own.as_mut());
            let told = guard(|| session.settle(&mut DraftCx { model, target, tokens, own }, next));
            if let Err(reason) = told {
                self.fail(request.own.as_mut(), reason);
            }
        }
        cut_own(request);
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

/// The own caches hold nothing past the target's. The target stays where it is when they are behind: a
/// drafter's failure must not cost states that fold the past and cannot go back.
fn cut_own(request: &mut RequestState) {
    let at = request.target.offset();
    if let Some(own) = request.own.as_mut().filter(|own| own.offset() > at && !own.is_poisoned())
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
