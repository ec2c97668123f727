//! What every drafter must hold to, checked against any model.
//!
//! The suite drives sessions as the engine does, but decides by itself how many drafts are kept, and
//! compares what a session knows afterwards with a fresh session that heard the same tokens at once.

mod extend;
mod sessions;
mod set;
mod violation;

use std::cell::RefCell;

use foretoken_model_base::Model;
use mlx_rs::memory;

use super::{
    compare::{self, Difference},
    drive::{Drive, Keep, Offer},
};
use crate::Drafter;

pub use set::{SetSummary, check_set};
pub use violation::Violation;

/// Drafts per round in the scenarios; the drafter's largest depth may be smaller.
const DEPTH: usize = 4;

/// Whole requests played to see whether memory grows: MLX and the drafter may keep things of the first.
const LEAK_CYCLES: usize = 6;

/// What the suite saw of a drafter that holds to every rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Summary {
    /// Sessions opened.
    pub sessions: usize,
    /// Proposals asked for.
    pub proposals: usize,
    /// Tokens offered in proposals; a drafter that offers none is refused.
    pub offered: usize,
    /// Of those, tokens offered as certain.
    pub known: usize,
    /// Tokens offered past the proposals of others.
    pub extended: usize,
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

/// Checks a drafter against a model; the prompt has at least four tokens, and some that let the drafter offer
/// tokens: one that never offers any is refused, since nothing was checked then.
pub fn check(model: &dyn Model, drafter: &dyn Drafter, prompt: &[u32]) -> Result<Summary, Violation> {
    if prompt.len() < 4 {
        return Err(Violation::Setup(format!(
            "expected a prompt of at least 4 tokens, got {}",
            prompt.len()
        )));
    }
    let tally = RefCell::default();
    let suite = Suite { model, drafter, prompt, tally: &tally };
    // First of all, while the drafter has served nobody.
    let alone = suite.alone()?;
    suite.early()?;
    suite.gap()?;
    suite.room()?;
    suite.draws()?;
    for (name, rounds) in SCENARIOS {
        for depth in [1, 2, DEPTH] {
            suite.scenario(name, rounds, depth)?;
        }
    }
    suite.extends()?;
    suite.rejected_drafts_return()?;
    suite.cancelled()?;
    suite.restored()?;
    suite.isolated(&alone)?;
    suite.leaks()?;
    suite.offered(tally.take())
}

struct Suite<'a> {
    model: &'a dyn Model,
    drafter: &'a dyn Drafter,
    prompt: &'a [u32],
    tally: &'a RefCell<Summary>,
}

impl<'a> Suite<'a> {
    fn open(&self) -> Result<Drive<'a>, Violation> {
        self.open_for(self.prompt)
    }

    fn open_for(&self, prompt: &'a [u32]) -> Result<Drive<'a>, Violation> {
        Drive::open(self.model, self.drafter, prompt, self.tally)
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
            let mut fresh = self.like(&subject)?;
            if propose_again {
                self.same_offers(&mut subject, &mut fresh, depth, &after)?;
                after.push_str(" and an all-rejected round");
            }
            self.same_rest(subject, fresh, &after)?;
        }
        Ok(())
    }

    /// A fresh session that heard the same tokens at once.
    fn like(&self, subject: &Drive<'a>) -> Result<Drive<'a>, Violation> {
        let mut fresh = self.open_for(subject.prompt)?;
        fresh.hear(&subject.committed, subject.current)?;
        Ok(fresh)
    }

    /// Settles both sessions and compares what is left.
    fn same_rest(&self, mut subject: Drive<'a>, mut fresh: Drive<'a>, after: &str) -> Result<(), Violation> {
        subject.settle(Some(subject.current), after)?;
        fresh.settle(Some(fresh.current), "a prefill")?;
        self.same_own(&subject, &fresh, after)?;
        subject.finish(after)
    }

    /// Asks both sessions for a proposal, compares what they offer, and rejects it.
    fn same_offers(
        &self,
        subject: &mut Drive<'a>,
        fresh: &mut Drive<'a>,
        depth: usize,
        after: &str,
    ) -> Result<(), Violation> {
        let offer = subject.propose(depth, &[])?;
        let want = fresh.propose(depth, &offer.ids)?;
        if let Some((what, difference)) = unlike(&offer, &want) {
            return Err(Violation::Unlike { after: after.into(), what, difference });
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

    /// What was offered at all is what was checked.
    fn offered(&self, seen: Summary) -> Result<Summary, Violation> {
        match self.drafter.facts().extends {
            _ if seen.offered == 0 => Err(Violation::Silent { call: "propose" }),
            true if seen.extended == 0 => Err(Violation::Silent { call: "extend" }),
            _ => Ok(seen),
        }
    }
}

/// How two offers differ.
fn unlike(offer: &Offer, want: &Offer) -> Option<(&'static str, Difference)> {
    if offer.ids.len() != want.ids.len() || offer.known != want.known {
        return Some(("offers", Difference::Ids));
    }
    let differ = offer.rows.iter().zip(&want.rows).find_map(|(row, wanted)| compare::rows(row, wanted));
    differ.map(|difference| ("draft logits", difference))
}
