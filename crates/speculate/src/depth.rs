//! How deep to draft. Arithmetic on numbers; holds no arrays.

/// The depth policy of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DraftPolicy {
    /// Always this depth; 0 decodes plainly.
    Constant(usize),
    /// Two deeper after a fully accepted round up to `max`, one shallower otherwise down to 1.
    Heuristic {
        /// Depth of the first round.
        initial: usize,
        /// Depth never exceeded.
        max: usize,
    },
}

/// Chooses the depth of the next round from what the rounds before it did.
pub(crate) trait DepthControl {
    /// The depth to draft now; 0 parks into plain decoding.
    fn depth(&mut self) -> usize;
    /// Hears how a round with or without drafts went.
    fn observe(&mut self, drafted: usize, accepted: usize);
}

/// The controller of a policy.
pub(crate) fn control(policy: DraftPolicy) -> Box<dyn DepthControl> {
    match policy {
        DraftPolicy::Constant(depth) => Box::new(Constant(depth)),
        DraftPolicy::Heuristic { initial, max } => {
            Box::new(Heuristic { depth: initial.clamp(1, max.max(1)), max: max.max(1) })
        }
    }
}

struct Constant(usize);

impl DepthControl for Constant {
    fn depth(&mut self) -> usize {
        self.0
    }

    fn observe(&mut self, _drafted: usize, _accepted: usize) {}
}

/// A fully accepted round says that deeper drafts would have been kept too, so the depth grows faster
/// than it shrinks.
const STEP_UP: usize = 2;
const STEP_DOWN: usize = 1;

struct Heuristic {
    depth: usize,
    max: usize,
}

impl DepthControl for Heuristic {
    fn depth(&mut self) -> usize {
        self.depth
    }

    fn observe(&mut self, drafted: usize, accepted: usize) {
        // A round without drafts says nothing about their quality.
        if drafted == 0 {
            return;
        }
        self.depth = if accepted == drafted {
            (self.depth + STEP_UP).min(self.max)
        } else {
            self.depth.saturating_sub(STEP_DOWN).max(1)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_never_moves() {
        let mut depth = control(DraftPolicy::Constant(4));
        for (drafted, accepted) in [(4, 4), (4, 0), (0, 0)] {
            depth.observe(drafted, accepted);
            assert_eq!(depth.depth(), 4);
        }
    }

    #[test]
    fn heuristic_goes_two_up_and_one_down() {
        let mut depth = control(DraftPolicy::Heuristic { initial: 4, max: 7 });
        let rounds = [(4, 4, 6), (6, 6, 7), (7, 7, 7), (7, 6, 6), (0, 0, 6), (6, 0, 5)];
        for (drafted, accepted, after) in rounds {
            depth.observe(drafted, accepted);
            assert_eq!(depth.depth(), after, "after {accepted} of {drafted}");
        }
    }

    #[test]
    fn heuristic_stays_between_one_and_max() {
        let mut depth = control(DraftPolicy::Heuristic { initial: 9, max: 3 });
        assert_eq!(depth.depth(), 3);
        (0..5).for_each(|_| depth.observe(3, 0));
        assert_eq!(depth.depth(), 1);
        assert_eq!(control(DraftPolicy::Heuristic { initial: 0, max: 0 }).depth(), 1);
    }
}
