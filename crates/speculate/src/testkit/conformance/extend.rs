//! Lengthening the proposals of other drafters.

use super::{DEPTH, Keep, Suite, Violation, unlike};

impl Suite<'_> {
    /// Checks [`extend`](crate::DraftSession::extend) of a drafter that says it can.
    pub(super) fn extends(&self) -> Result<(), Violation> {
        if !self.drafter.facts().extends {
            return Ok(());
        }
        for drafted in [self.prompt[..2].to_vec(), self.unseen()] {
            self.extends_into_room(&drafted)?;
            self.extends_alike(&drafted)?;
            for keep in [Keep::None, Keep::Half, Keep::All] {
                self.extended(&drafted, keep)?;
            }
            self.return_of(&drafted, |drive| drive.extend(DEPTH, &drafted))?;
        }
        Ok(())
    }

    /// Tokens that the prompt does not have, as far as there are any: nothing is known of them.
    fn unseen(&self) -> Vec<u32> {
        let ids = 0..self.model.facts().vocabulary as u32;
        let unseen = ids.filter(|id| !self.prompt.contains(id));
        unseen.chain(self.prompt.iter().rev().copied()).take(DEPTH).collect()
    }

    fn extends_into_room(&self, drafted: &[u32]) -> Result<(), Violation> {
        for room in [0, 1, 2, DEPTH] {
            let offer = self.prefilled(&[])?.extend(room, drafted)?;
            let offered = offer.ids.len() + offer.refused;
            if offered > room {
                return Err(Violation::Room { offered, room });
            }
        }
        Ok(())
    }

    fn extends_alike(&self, drafted: &[u32]) -> Result<(), Violation> {
        let ask = || self.prefilled(&[])?.extend(DEPTH, drafted);
        match unlike(&ask()?, &ask()?) {
            Some(_) => Err(Violation::OwnDraw),
            None => Ok(()),
        }
    }

    /// After a round that lengthened a proposal the session is like one that only heard what was kept.
    fn extended(&self, drafted: &[u32], keep: Keep) -> Result<(), Violation> {
        let after = format!("{} of a lengthened proposal", keep.round());
        let mut subject = self.prefilled(&[])?;
        let tail = subject.extend(DEPTH, drafted)?.ids;
        subject.commit(&[drafted, &tail].concat(), keep, &after)?;
        let mut fresh = self.like(&subject)?;
        self.same_offers(&mut subject, &mut fresh, DEPTH, &after)?;
        self.same_rest(subject, fresh, &after)
    }
}
