//! Policies that follow a rule instead of measuring. What their rounds cost is learned all the same, so that
//! plain time can be estimated and the measuring policy finds the model known.

use std::{cell::RefCell, rc::Rc};

use super::{Choice, Controller, Estimates, Outcome, Situation, Source, learner::Learner};

/// A fully accepted round says that deeper drafts would have been kept too, so the depth grows faster
/// than it shrinks.
const STEP_UP: usize = 2;
const STEP_DOWN: usize = 1;

/// Which rule.
#[derive(Debug, Clone, Copy)]
enum Rule {
    Constant,
    Heuristic { max: usize },
}

/// A depth that follows a rule; the source is the first that can be asked.
pub(crate) struct Fixed {
    depth: usize,
    rule: Rule,
    learner: Learner,
}

impl Fixed {
    /// Always this depth.
    pub(crate) fn constant(depth: usize, sources: Vec<Source>, estimates: Rc<RefCell<Estimates>>) -> Self {
        Self { depth, rule: Rule::Constant, learner: Learner::new(sources, estimates) }
    }

    /// Two deeper after a fully accepted round, one shallower otherwise.
    pub(crate) fn heuristic(
        (initial, max): (usize, usize),
        sources: Vec<Source>,
        estimates: Rc<RefCell<Estimates>>,
    ) -> Self {
        let max = max.max(1);
        let learner = Learner::new(sources, estimates);
        Self { depth: initial.clamp(1, max), rule: Rule::Heuristic { max }, learner }
    }
}

impl Controller for Fixed {
    fn choose(&mut self, situation: &Situation) -> Choice {
        let most = self.depth.min(situation.room);
        let seats = situation.seats.iter().map(|seat| seat.cap.min(most)).enumerate();
        let asked = seats.filter(|(index, _)| self.learner.is_whole(*index)).find(|(_, depth)| *depth > 0);
        let choice = asked.map_or(Choice::PLAIN, |(index, depth)| Choice { source: Some(index), depth });
        self.learner.begin(choice, situation);
        choice
    }

    fn observe(&mut self, outcome: &Outcome) {
        self.learner.observe(outcome);
        // A round without drafts says nothing about their quality.
        let Rule::Heuristic { max } = self.rule else { return };
        if outcome.drafted == 0 {
            return;
        }
        self.depth = if outcome.accepted == outcome.drafted {
            (self.depth + STEP_UP).min(max)
        } else {
            self.depth.saturating_sub(STEP_DOWN).max(1)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Seat, *};

    fn sources() -> Vec<Source> {
        vec![Source { name: "drafter".into(), max_depth: 16, lengthens: None }]
    }

    fn ahead(room: usize, cap: usize) -> Situation {
        Situation { context: 9, room, constrained: false, seats: vec![Seat { cap, sporadic: false }] }
    }

    fn outcome(drafted: usize, accepted: usize) -> Outcome {
        Outcome {
            drafted,
            accepted,
            rejected: accepted < drafted,
            tokens: accepted + 1,
            ..Outcome::default()
        }
    }

    #[test]
    fn constant_never_moves() {
        let mut fixed = Fixed::constant(4, sources(), Rc::default());
        for (drafted, accepted) in [(4, 4), (4, 0), (0, 0)] {
            assert_eq!(fixed.choose(&ahead(9, 9)), Choice { source: Some(0), depth: 4 });
            fixed.observe(&outcome(drafted, accepted));
        }
        assert_eq!(fixed.choose(&ahead(3, 9)).depth, 3, "the room");
        assert_eq!(fixed.choose(&ahead(9, 2)).depth, 2, "the drafter");
        assert_eq!(fixed.choose(&ahead(9, 0)), Choice::PLAIN, "a drafter that has failed");
    }

    #[test]
    fn heuristic_goes_two_up_and_one_down() {
        let mut fixed = Fixed::heuristic((4, 7), sources(), Rc::default());
        for (drafted, accepted, after) in [(4, 4, 6), (6, 6, 7), (7, 7, 7), (7, 6, 6), (0, 0, 6), (6, 0, 5)] {
            fixed.choose(&ahead(16, 16));
            fixed.observe(&outcome(drafted, accepted));
            assert_eq!(fixed.choose(&ahead(16, 16)).depth, after, "after {accepted} of {drafted}");
        }
    }

    #[test]
    fn heuristic_stays_between_one_and_max() {
        let mut fixed = Fixed::heuristic((9, 3), sources(), Rc::default());
        assert_eq!(fixed.choose(&ahead(16, 16)).depth, 3);
        (0..5).for_each(|_| {
            fixed.choose(&ahead(16, 16));
            fixed.observe(&outcome(3, 0));
        });
        assert_eq!(fixed.choose(&ahead(16, 16)).depth, 1);
        let mut none = Fixed::heuristic((0, 0), sources(), Rc::default());
        assert_eq!(none.choose(&ahead(16, 16)).depth, 1);
    }
}
