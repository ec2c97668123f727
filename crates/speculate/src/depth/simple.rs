//! The depth of a decoder with one source.

use super::DraftPolicy;

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
        DraftPolicy::Throughput { initial, .. } => Box::new(Constant(initial)),
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

struct Heuristic {
    depth: usize,
    max: usize,
}

impl DepthControl for Heuristic {
    fn depth(&mut self) -> usize {
        self.depth
    }

    fn observe(&mut self, drafted: usize, accepted: usize) {
        if drafted == 0 {
            return;
        }
        self.depth = if accepted == drafted {
            (self.depth + 2).min(self.max)
        } else {
            self.depth.saturating_sub(1).max(1)
        };
    }
}
