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
