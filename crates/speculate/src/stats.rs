//! Counts of what speculation did.

/// Statistics of one request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Tokens drafted and accepted in each round, in order; `(0, 0)` without drafts.
    pub rounds: Vec<(usize, usize)>,
    /// Tokens drafted.
    pub drafted: usize,
    /// Drafted tokens accepted.
    pub accepted: usize,
    /// Rounds that rejected a draft.
    pub mismatches: usize,
    /// Rounds that accepted every draft.
    pub all_accepted: usize,
    /// The deepest proposal.
    pub deepest: usize,
    /// Waits beyond one per round.
    pub extra_waits: usize,
}
