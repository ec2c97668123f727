//! What every drafter must hold to, checked against any model.
//!
//! The suite drives sessions as the engine does, but decides by itself how many drafts are kept, and
//! compares what a session knows afterwards with a fresh session that heard the same tokens at once.

use foretoken_model_base::Model;
use mlx_rs::memory;

use super::{
    compare::{self, Difference},
    drive::{Drive, Keep},
};
use crate::Drafter;

/// Drafts per round in the scenarios; the drafter's largest depth may be smaller.
const DEPTH: usize = 4;

/// Whole requests played to see whether memory grows: MLX and the drafter may keep things of the first.
const LEAK_CYCLES: usize = 6;

/// A rule that a drafter broke.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The suite itself could not run.
    #[error("the suite cannot run: {0}")]
    Setup(String),
    /// A legal call failed or panicked.
    #[error("{call} failed: {reason}")]
    Failed {
        /// The call.
        call: &'static str,
        /// What it said.
        reason: String,
    },
    /// Tokens were offered before any row was committed.
    #[error("{offered} tokens were offered before any committed row")]
    Early {
        /// How many.
        offered: usize,
    },
    /// A run out of order was accepted.
    #[error("a committed run at slot {got} was accepted where slot {expected} follows")]
    Gap {
        /// The next slot in order.
        expected: usize,
        /// The slot reported.
        got: usize,
    },
    /// More was offered than there was room for.
    #[error("{offered} tokens were offered into room for {room}")]
    Room {
        /// Tokens offered, refused ones included.
        offered: usize,
        /// The room.
        room: usize,
    },
    /// The target's caches changed.
    #[error("{call} changed the target's caches")]
    TargetWritten {
        /// The call.
        call: &'static str,
    },
    /// Two equal rounds offered different tokens: the drafter drew them itself.
    #[error("two equal rounds made different offers; only the sink may draw")]
    OwnDraw,
    /// Later rows do not depend on the tokens drawn before them.
    #[error("the row after a draft ignores which token was drawn")]
    IgnoresDraws,
    /// Something outlives its session.
    #[error("{what} left behind after {after}")]
    Leak {
        /// What is left.
        what: &'static str,
        /// The call or scenario.
        after: String,
    },
    /// The own caches do not rest where they must.
    #[error("own caches after {after}: expected offset {expected}, got {got}")]
    Level {
        /// The call or scenario.
        after: String,
        /// Where they should rest.
        expected: String,
        /// Where they do.
        got: usize,
    },
    /// The session's state differs from that of a fresh one with the same tokens.
    #[error("after {after} the {what} differ from a fresh prefill by {difference}")]
    Unlike {
        /// The scenario.
        after: String,
        /// What differs.
        what: &'static str,
        /// By how much.
        difference: Difference,
    },
}

/// Rounds to play before the comparison.
const SCENARIOS: [(&str, &[Keep]); 6] = [
    ("a prefill", &[]),
    ("an all-rejected round", &[Keep::None]),
    ("an all-accepted round", &[Keep::All]),
    ("a half-accepted round", &[Keep::Half]),
    ("mixed rounds", &[Keep::All, Keep::None, Keep::Half, Keep::Silent, Keep::All, Keep::Half]),
    ("parked rounds", &[Keep::Half, Keep::Silent, Keep::Silent, Keep::None]),
];

/// Checks a drafter against a model; the prompt has at least four tokens.
pub fn check(model: &dyn Model, drafter: &dyn Drafter, prompt: &[u32]) -> Result<(), Violation> {
    if prompt.len() < 4 {
        return Err(Violation::Setup(format!(
            "expected a prompt of at least 4 tokens, got {}",
            prompt.len()
        )));
    }
    let suite = Suite { model, drafter, prompt };
    suite.early()?;
    suite.gap()?;
    suite.room()?;
    suite.draws()?;
    for (name, rounds) in SCENARIOS {
        for depth in [1, 2, DEPTH] {
            suite.scenario(name, rounds, depth)?;
        }
    }
    suite.cancelled()?;
    suite.leaks()
}

struct Suite<'a> {
    model: &'a dyn Model,
    drafter: &'a dyn Drafter,
    prompt: &'a [u32],
}

impl<'a> Suite<'a> {
    fn open(&self) -> Result<Drive<'a>, Violation> {
        Drive::open(self.model, self.drafter, self.prompt)
    }

    /// A session that heard all but the last prompt token in chunks.
    fn prefilled(&self, chunks: &[usize]) -> Result<Drive<'a>, Violation> {
        let mut drive = self.open()?;
        drive.prefill(chunks)?;
        Ok(drive)
    }

    fn early(&self) -> Result<(), Violation> {
        let mut drive = self.open()?;
        match drive.propose(DEPTH, &[])?.ids.len() {
            0 => Ok(()),
            offered => Err(Violation::Early { offered }),
        }
    }

    fn gap(&self) -> Result<(), Violation> {
        self.open()?.gap()?;
        self.prefilled(&[2])?.gap()
    }

    fn room(&self) -> Result<(), Violation> {
        let max = self.drafter.facts().max_depth;
        for room in [0, 1, 2, max.min(DEPTH), max] {
            let mut drive = self.prefilled(&[])?;
            let offer = drive.propose(room, &[])?;
            let offered = offer.ids.len() + offer.refused;
            if offered > room {
                return Err(Violation::Room { offered, room });
            }
        }
        Ok(())
    }

    /// Equal rounds make equal offers, and a chain goes on from what was drawn.
    fn draws(&self) -> Result<(), Violation> {
        let ask = |current: u32, forced: &[u32]| {
            let mut drive = self.prefilled(&[])?;
            drive.current = current;
            drive.propose(DEPTH, forced)
        };
        let (current, v) = (self.prompt[self.prompt.len() - 1], self.model.facts().vocabulary as u32);
        let first = ask(current, &[])?;
        for _ in 0..2 {
            let again = ask(current, &first.ids)?;
            if again.known != first.known || again.ids.len() != first.ids.len() {
                return Err(Violation::OwnDraw);
            }
        }
        // Only a drafter that looks at the current token, and draws row by row, can ignore a draft.
        let [row, next, ..] = first.rows.as_slice() else { return Ok(()) };
        let other = ask((current + 1) % v, &first.ids)?;
        let looks = other.rows.first().is_some_and(|other| compare::rows(row, other).is_some());
        let swapped = ask(current, &[first.other(0), first.ids[1]])?;
        let same = swapped.rows.get(1).is_some_and(|other| compare::rows(next, other).is_none());
        match first.row_by_row && looks && same {
            true => Err(Violation::IgnoresDraws),
            false => Ok(()),
        }
    }

    /// Plays the rounds and compares proposals and own caches with a fresh session.
    fn scenario(&self, name: &str, rounds: &[Keep], depth: usize) -> Result<(), Violation> {
        for propose_again in [false, true] {
            let mut after = format!("{name} at depth {depth}");
            let mut subject = self.prefilled(&[1, 2])?;
            for &keep in rounds {
                subject.round(depth, keep, &after)?;
            }
            let mut fresh = self.open()?;
            fresh.hear(&subject.committed, subject.current)?;
            if propose_again {
                self.same_offers(&mut subject, &mut fresh, depth, &after)?;
                after.push_str(" and an all-rejected round");
            }
            subject.settle(Some(subject.current), &after)?;
            fresh.settle(Some(fresh.current), "a prefill")?;
            self.same_own(&subject, &fresh, &after)?;
            subject.finish(&after)?;
        }
        Ok(())
    }

    fn same_offers(
        &self,
        subject: &mut Drive<'a>,
        fresh: &mut Drive<'a>,
        depth: usize,
        after: &str,
    ) -> Result<(), Violation> {
        let offer = subject.propose(depth, &[])?;
        let want = fresh.propose(depth, &offer.ids)?;
        let unlike = |what, difference| Err(Violation::Unlike { after: after.into(), what, difference });
        if offer.ids.len() != want.ids.len() || offer.known != want.known {
            return unlike("offers", Difference::Ids);
        }
        for (row, wanted) in offer.rows.iter().zip(&want.rows) {
            if let Some(difference) = compare::rows(row, wanted) {
                return unlike("draft logits", difference);
            }
        }
        // Every proposal is followed by a committed run.
        subject.commit(&offer.ids, Keep::None, after)?;
        fresh.commit(&want.ids, Keep::None, "a prefill")
    }

    fn same_own(&self, subject: &Drive<'a>, fresh: &Drive<'a>, after: &str) -> Result<(), Violation> {
        let (Some(own), Some(want)) = (subject.own.as_ref(), fresh.own.as_ref()) else {
            return Ok(());
        };
        let unlike = |what, difference| Violation::Unlike { after: after.into(), what, difference };
        match compare::sets(own, want).map_err(|err| Violation::Setup(err.to_string()))? {
            Some(difference) => Err(unlike("own caches", difference)),
            None => Ok(()),
        }
    }

    /// Settled without a next token, both sets rest at the last complete pair.
    fn cancelled(&self) -> Result<(), Violation> {
        let after = "a cancelled request";
        for rounds in [&[][..], &[Keep::Half], &[Keep::All, Keep::None]] {
            let mut subject = self.prefilled(&[1])?;
            for &keep in rounds {
                subject.round(DEPTH, keep, after)?;
            }
            subject.settle(None, after)?;
            if let Some(at) = subject.own.as_ref().map(|own| own.offset()) {
                let mut fresh = self.open()?;
                let next = subject.committed.get(at).copied().unwrap_or(subject.current);
                if at > 0 {
                    fresh.hear(&subject.committed[..at], next)?;
                    fresh.settle(Some(next), after)?;
                    self.same_own(&subject, &fresh, after)?;
                }
            }
            subject.finish(after)?;
        }
        Ok(())
    }

    /// Whole requests leave nothing behind.
    fn leaks(&self) -> Result<(), Violation> {
        let mut active = Vec::new();
        for _ in 0..LEAK_CYCLES {
            let mut drive = self.prefilled(&[2])?;
            for keep in [Keep::Half, Keep::All, Keep::None] {
                drive.round(DEPTH, keep, "a request")?;
            }
            drive.settle(Some(drive.current), "a request")?;
            drive.finish("a request")?;
            drop(drive);
            active.push(memory::active_memory().map_err(|err| Violation::Setup(err.to_string()))?);
        }
        // Growth in every cycle is a leak; a single step up is MLX's own.
        match active.windows(2).skip(1).all(|w| w[1] > w[0]) {
            true => Err(Violation::Leak { what: "memory", after: "a request".into() }),
            false => Ok(()),
        }
    }
}
