//! Drives one session as the engine does, with verdicts from a script.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
};

use foretoken_cache::CacheSet;
use foretoken_model_base::{Batch, DraftVocabulary, Hidden, Model};
use mlx_rs::{Array, ops::indexing::TryIndexOp};

use super::{
    compare,
    conformance::{Summary, Violation},
};
use crate::{CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter, DrafterFacts};

/// How many drafts of a round are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    None,
    Half,
    All,
    /// Nothing was proposed: drafting is off.
    Silent,
}

impl Keep {
    /// What a round with this verdict is called.
    pub(crate) fn round(self) -> &'static str {
        match self {
            Keep::None => "an all-rejected round",
            Keep::Half => "a half-accepted round",
            Keep::All => "an all-accepted round",
            Keep::Silent => "a round without drafts",
        }
    }
}

/// What a proposal offered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Offer {
    pub(crate) ids: Vec<u32>,
    /// The logits of every drawn row.
    pub(crate) rows: Vec<Vec<f32>>,
    /// Ids offered as certain, with their place.
    pub(crate) known: Vec<(usize, u32)>,
    /// The drawn rows came one by one.
    pub(crate) row_by_row: bool,
    /// Tokens offered past the room.
    pub(crate) refused: usize,
    columns: Vec<u32>,
}

impl Offer {
    /// A token that could have been drawn instead of draft `index`.
    pub(crate) fn other(&self, index: usize) -> u32 {
        let taken = self.ids[index];
        self.columns.iter().copied().find(|&id| id != taken).unwrap_or(taken)
    }
}

/// Draws the best token of each row, or the token that the script forces.
struct Probe<'a> {
    room: usize,
    forced: &'a [u32],
    offer: Offer,
}

impl Probe<'_> {
    fn take(&mut self, more: usize) -> Result<(), DraftError> {
        if more == 0 || more > self.room() {
            self.offer.refused += more;
            return Err(DraftError::Other(format!("room for {} more tokens, got {more}", self.room())));
        }
        Ok(())
    }
}

impl DraftSink for Probe<'_> {
    fn room(&self) -> usize {
        self.room - self.offer.ids.len()
    }

    fn draw(&mut self, logits: &Array, vocabulary: Option<&DraftVocabulary>) -> Result<Array, DraftError> {
        let [1, n, columns] = *logits.shape() else {
            return Err(DraftError::Other(format!("expected logits [1,n,D], got {:?}", logits.shape())));
        };
        self.take(n as usize)?;
        self.offer.row_by_row = n == 1;
        self.offer.columns = match vocabulary {
            Some(vocabulary) => vocabulary.ids().to_vec(),
            None => (0..columns as u32).collect(),
        };
        let values = compare::floats(logits).map_err(|err| DraftError::Other(err.to_string()))?;
        for row in values.chunks(columns as usize) {
            let best = row.iter().enumerate().fold(0, |best, (i, v)| if *v > row[best] { i } else { best });
            let forced = self.forced.get(self.offer.ids.len()).copied();
            self.offer.ids.push(forced.unwrap_or(self.offer.columns[best]));
            self.offer.rows.push(row.to_vec());
        }
        Ok(Array::from_slice(&self.offer.ids[self.offer.ids.len() - n as usize..], &[1, n]))
    }

    fn known(&mut self, ids: &[u32]) -> Result<(), DraftError> {
        self.take(ids.len())?;
        for &id in ids {
            self.offer.known.push((self.offer.ids.len(), id));
            self.offer.ids.push(id);
        }
        Ok(())
    }
}

/// One session with its caches.
pub(crate) struct Drive<'a> {
    model: &'a dyn Model,
    facts: DrafterFacts,
    tally: &'a RefCell<Summary>,
    target: CacheSet,
    pub(crate) own: Option<CacheSet>,
    session: Option<Box<dyn DraftSession>>,
    pub(crate) prompt: &'a [u32],
    /// Tokens in the target's caches.
    pub(crate) committed: Vec<u32>,
    pub(crate) current: u32,
    /// Tokens after the current one are known: the prompt is being read.
    ahead: bool,
}

impl<'a> Drive<'a> {
    pub(crate) fn open(
        model: &'a dyn Model,
        drafter: &'a dyn Drafter,
        prompt: &'a [u32],
        tally: &'a RefCell<Summary>,
    ) -> Result<Self, Violation> {
        let session = guard("open", || drafter.open(0))?;
        tally.borrow_mut().sessions += 1;
        Ok(Self {
            model,
            facts: drafter.facts().clone(),
            tally,
            target: model.make_caches(),
            own: drafter.make_caches(),
            session: Some(session),
            prompt,
            committed: Vec::new(),
            current: prompt[prompt.len() - 1],
            ahead: false,
        })
    }

    /// Opens the session of the next request, whose prompt begins with what this one left in the caches.
    pub(crate) fn reopen(mut self, drafter: &dyn Drafter) -> Result<Self, Violation> {
        let at = self.committed.len();
        self.session = Some(guard("open", || drafter.open(at))?);
        self.tally.borrow_mut().sessions += 1;
        self.current = self.prompt[self.prompt.len() - 1];
        Ok(self)
    }

    /// Commits what is left of the prompt, all but its last token, in chunks of these sizes and the rest.
    pub(crate) fn prefill(&mut self, chunks: &[usize]) -> Result<(), Violation> {
        let mut left = &self.prompt[self.committed.len()..self.prompt.len() - 1];
        self.ahead = true;
        for &size in chunks.iter().chain([&usize::MAX]) {
            let (chunk, rest) = left.split_at(size.min(left.len()));
            if !chunk.is_empty() {
                self.commit_tokens(chunk, chunk.len(), "a prefill chunk")?;
            }
            left = rest;
        }
        self.ahead = false;
        Ok(())
    }

    /// Commits `tokens` as one chunk, `next` is the current token then.
    pub(crate) fn hear(&mut self, tokens: &[u32], next: u32) -> Result<(), Violation> {
        self.current = next;
        self.commit_tokens(tokens, tokens.len(), "a prefill")
    }

    /// Asks for a proposal; drawn tokens are forced while `forced` lasts.
    pub(crate) fn propose(&mut self, room: usize, forced: &[u32]) -> Result<Offer, Violation> {
        let mut probe = Probe { room, forced, offer: Offer::default() };
        let current = self.current;
        self.call("propose", |session, cx| session.propose(cx, current, &mut probe))?;
        let mut tally = self.tally.borrow_mut();
        tally.proposals += 1;
        tally.offered += probe.offer.ids.len();
        tally.known += probe.offer.known.len();
        Ok(probe.offer)
    }

    /// Asks for tokens after a proposal that another drafter made.
    pub(crate) fn extend(&mut self, room: usize, drafted: &[u32]) -> Result<Offer, Violation> {
        let mut probe = Probe { room, forced: &[], offer: Offer::default() };
        let current = self.current;
        self.call("extend", |session, cx| session.extend(cx, current, drafted, &mut probe))?;
        self.tally.borrow_mut().extended += probe.offer.ids.len();
        Ok(probe.offer)
    }

    /// One round whose verdict is scripted.
    pub(crate) fn round(&mut self, depth: usize, keep: Keep, after: &str) -> Result<(), Violation> {
        self.played(depth, keep, after).map(drop)
    }

    /// One round whose verdict is scripted, and what was offered in it.
    pub(crate) fn played(&mut self, depth: usize, keep: Keep, after: &str) -> Result<Offer, Violation> {
        let offer = match keep {
            Keep::Silent => Offer::default(),
            _ => self.propose(depth.min(self.facts.max_depth), &[])?,
        };
        self.commit(&offer.ids, keep, after)?;
        Ok(offer)
    }

    /// A round without drafts after which `next` is the current token.
    pub(crate) fn step(&mut self, next: u32, after: &str) -> Result<(), Violation> {
        let fed = [self.current];
        self.current = next;
        self.commit_tokens(&fed, 1, after)
    }

    /// Verifies a proposal and keeps as many drafts as the script says.
    pub(crate) fn commit(&mut self, drafts: &[u32], keep: Keep, after: &str) -> Result<(), Violation> {
        let kept = match keep {
            Keep::None | Keep::Silent => 0,
            Keep::Half => drafts.len() / 2,
            Keep::All => drafts.len(),
        };
        let fed: Vec<u32> = [self.current].iter().chain(drafts).copied().collect();
        // Never the token that was drafted there, so that the verdict is a true rejection.
        let avoid = drafts.get(kept).copied().unwrap_or(self.current);
        self.current = (avoid + 1) % self.model.facts().vocabulary as u32;
        self.commit_tokens(&fed, 1 + kept, after)
    }

    /// Forwards tokens, keeps the first `kept`, and reports them.
    fn commit_tokens(&mut self, fed: &[u32], kept: usize, after: &str) -> Result<(), Violation> {
        let slot = self.committed.len();
        let hidden = self.forward(fed, kept).map_err(|err| Violation::Setup(err.to_string()))?;
        let ids = &fed[..kept];
        self.committed.extend(ids);
        let shown = self.facts.needs_hidden.then_some(&hidden);
        self.call("committed", |session, cx| {
            session.committed(cx, CommittedRun { ids, hidden: shown, slot })
        })?;
        self.check_own(after)
    }

    fn forward(&mut self, fed: &[u32], kept: usize) -> crate::Result<Array> {
        self.target.begin()?;
        let batch = Batch::from_ids(fed, self.committed.len())?;
        let Hidden { aux, .. } = match self.model.taps().filter(|_| !self.facts.taps.is_empty()) {
            Some(taps) => taps.forward_tapped(&batch, &mut [&mut self.target], &self.facts.taps)?,
            None => self.model.forward(&batch, &mut [&mut self.target])?,
        };
        aux.eval()?;
        self.target.commit(kept)?;
        Ok(aux.try_index((.., ..kept as i32, ..))?)
    }

    /// Reports a run one slot too late; only an error is right.
    pub(crate) fn gap(mut self) -> Result<(), Violation> {
        let expected = self.committed.len();
        let fed = [self.current, self.current];
        let hidden = self.forward(&fed, fed.len()).map_err(|err| Violation::Setup(err.to_string()))?;
        let hidden = hidden.try_index((.., 1.., ..)).map_err(|err| Violation::Setup(err.to_string()))?;
        let run = CommittedRun { ids: &fed[1..], hidden: Some(&hidden), slot: expected + 1 };
        let told = self.call("committed", |session, cx| session.committed(cx, run));
        match told {
            Err(Violation::Failed { reason, .. }) if !reason.contains("panicked") => Ok(()),
            Err(other) => Err(other),
            Ok(()) => Err(Violation::Gap { expected, got: expected + 1 }),
        }
    }

    /// Settles the session and checks where the own caches rest.
    pub(crate) fn settle(&mut self, next: Option<u32>, after: &str) -> Result<(), Violation> {
        self.call("settle", |session, cx| session.settle(cx, next))?;
        self.check_own(after)?;
        let target = self.target.offset();
        match self.own.as_ref().map(|own| own.offset()) {
            Some(got) if next.is_some() && got != target => {
                Err(Violation::Level { after: after.into(), expected: target.to_string(), got })
            }
            _ => Ok(()),
        }
    }

    /// Finishes the session; no snapshot of the own caches may live on.
    pub(crate) fn finish(&mut self, after: &str) -> Result<(), Violation> {
        if let Some(session) = self.session.take() {
            guard("finish", || session.finish())?;
        }
        match self.own.as_ref().map_or(0, |own| own.snapshots()) {
            0 => Ok(()),
            _ => Err(Violation::Leak { what: "a snapshot", after: after.into() }),
        }
    }

    /// After every committed run the own caches hold nothing but committed pairs.
    fn check_own(&self, after: &str) -> Result<(), Violation> {
        let Some(own) = self.own.as_ref() else { return Ok(()) };
        let level = |expected: String, got| Violation::Level { after: after.into(), expected, got };
        if own.is_open() {
            return Err(Violation::Leak { what: "an open transaction", after: after.into() });
        }
        if own.level().is_err() {
            return Err(level("one for all layers".into(), own.offset()));
        }
        match own.offset() > self.target.offset() {
            true => Err(level(format!("at most {}", self.target.offset()), own.offset())),
            false => Ok(()),
        }
    }

    /// Calls into the session and checks that the target's caches stay as they were.
    fn call(
        &mut self,
        name: &'static str,
        call: impl FnOnce(&mut dyn DraftSession, &mut DraftCx<'_>) -> Result<(), DraftError>,
    ) -> Result<(), Violation> {
        let setup = |err: crate::SpeculateError| Violation::Setup(err.to_string());
        let before = compare::fingerprint(&self.target).map_err(setup)?;
        let session =
            self.session.as_mut().ok_or_else(|| Violation::Setup("the session is finished".into()))?;
        let tokens = match self.ahead {
            true => self.prompt.to_vec(),
            false => [self.committed.as_slice(), &[self.current]].concat(),
        };
        let mut cx =
            DraftCx { model: self.model, target: &self.target, tokens: &tokens, own: self.own.as_mut() };
        guard(name, || call(session.as_mut(), &mut cx))?;
        if let Some(own) = self.own.as_ref() {
            // A lazy write into the target's buffers would show only now.
            compare::contents(own).map_err(setup)?;
        }
        match compare::fingerprint(&self.target).map_err(setup)? == before {
            true => Ok(()),
            false => Err(Violation::TargetWritten { call: name }),
        }
    }
}

fn guard<T>(name: &'static str, call: impl FnOnce() -> Result<T, DraftError>) -> Result<T, Violation> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(err)) => Err(Violation::Failed { call: name, reason: err.to_string() }),
        Err(_) => Err(Violation::Failed { call: name, reason: "the drafter panicked".into() }),
    }
}
