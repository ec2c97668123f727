//! Counts of what speculation did, and where the time went.

use std::time::Duration;

/// Drafts of one source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceCounts {
    /// The drafter's name.
    pub name: &'static str,
    /// Rounds with drafts of it.
    pub rounds: usize,
    /// Tokens it drafted.
    pub drafted: usize,
    /// Its drafts that were accepted.
    pub accepted: usize,
}

/// What decoding took, and what it would have taken without drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accounting {
    /// Time of all rounds; nothing when no clock was read.
    pub actual: Duration,
    /// Time that plain decoding takes for as many tokens, as measured since the model was loaded; `None` until
    /// three plain rounds were.
    pub estimated_plain: Option<Duration>,
    /// Time that trying other depths took beyond what the best known one would have.
    pub probing: Duration,
}

impl Accounting {
    /// How many times as fast as plain decoding; `None` while one of the two is unknown.
    pub fn speedup(&self) -> Option<f64> {
        let actual = self.actual.as_secs_f64();
        self.estimated_plain.filter(|_| actual > 0.0).map(|plain| plain.as_secs_f64() / actual)
    }
}

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
    /// By drafter, in the order in which they were given.
    pub sources: Vec<SourceCounts>,
}

impl Statistics {
    /// Nothing counted yet, for sources of these names.
    pub(crate) fn of(names: impl Iterator<Item = &'static str>) -> Self {
        let sources = names.map(|name| SourceCounts { name, ..SourceCounts::default() }).collect();
        Self { sources, ..Self::default() }
    }

    /// Counts drafts for the source that made them.
    pub(crate) fn credit(&mut self, source: usize, drafted: usize, accepted: usize) {
        if let Some(counts) = self.sources.get_mut(source) {
            counts.rounds += usize::from(drafted > 0);
            counts.drafted += drafted;
            counts.accepted += accepted;
        }
    }

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
    fn drafts_are_credited_to_their_source() {
        let mut statistics = Statistics::of(["one", "two"].into_iter());
        statistics.credit(1, 4, 2);
        statistics.credit(1, 0, 0);
        statistics.credit(7, 1, 1);
        assert_eq!(statistics.sources[0], SourceCounts { name: "one", ..SourceCounts::default() });
        assert_eq!(statistics.sources[1], SourceCounts { name: "two", rounds: 1, drafted: 4, accepted: 2 });
    }

    #[test]
    fn the_speedup_needs_both_times() {
        let second = Duration::from_secs(1);
        assert_eq!(Accounting::default().speedup(), None);
        assert_eq!(Accounting { actual: second, ..Accounting::default() }.speedup(), None);
        let both = Accounting { actual: second, estimated_plain: Some(2 * second), ..Accounting::default() };
        assert_eq!(both.speedup(), Some(2.0));
    }

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
