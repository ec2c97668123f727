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

impl Statistics {
    /// Counts a round that rejected no draft unless `rejected`: an accepted end token leaves the drafts
    /// after it unjudged.
    pub(crate) fn record(&mut self, drafted: usize, accepted: usize, rejected: bool) {
        self.rounds.push((drafted, accepted));
        self.drafted += drafted;
        self.accepted += accepted;
        self.mismatches += usize::from(rejected);
        self.all_accepted += usize::from(drafted > 0 && accepted == drafted);
        self.deepest = self.deepest.max(drafted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_counted_by_kind() {
        let mut statistics = Statistics::default();
        for (drafted, accepted, rejected) in [(4, 4, false), (2, 1, true), (0, 0, false), (5, 3, false)] {
            statistics.record(drafted, accepted, rejected);
        }
        assert_eq!(statistics.rounds, [(4, 4), (2, 1), (0, 0), (5, 3)]);
        assert_eq!((statistics.drafted, statistics.accepted), (11, 8));
        assert_eq!((statistics.mismatches, statistics.all_accepted, statistics.deepest), (1, 1, 5));
    }
}
