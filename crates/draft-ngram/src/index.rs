//! Where each run of n tokens stood last. Numbers only: no arrays, no contract.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    ops::RangeInclusive,
};

/// An index over a text that only grows. It keeps positions, one for each token and length, and no tokens:
/// the caller has them.
pub(crate) struct Index {
    lengths: RangeInclusive<usize>,
    /// The end of the last run with this hash.
    ends: HashMap<u64, usize>,
    /// Tokens learned so far.
    learned: usize,
}

impl Index {
    pub(crate) fn new(lengths: RangeInclusive<usize>) -> Self {
        Self { lengths, ends: HashMap::new(), learned: 0 }
    }

    /// Learns the part of `text` that is new, so that each token is looked at once.
    pub(crate) fn learn(&mut self, text: &[u32]) {
        for end in self.learned + 1..=text.len() {
            for n in self.lengths.clone().take_while(|&n| n <= end) {
                self.ends.insert(hash(&text[end - n..end]), end);
            }
        }
        self.learned = self.learned.max(text.len());
    }

    /// Where the last learned occurrence of the longest known run that `text` ends with has its end.
    /// `text` begins with what was learned.
    pub(crate) fn find(&self, text: &[u32]) -> Option<usize> {
        let known = self.lengths.clone().rev().filter(|&n| n <= text.len());
        known.map(|n| &text[text.len() - n..]).find_map(|run| {
            let end = *self.ends.get(&hash(run))?;
            // Another run of the same hash is no match.
            (text[end - run.len()..end] == *run).then_some(end)
        })
    }
}

fn hash(run: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    run.hash(&mut hasher); // The length is part of a slice's hash.
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(text: &[u32]) -> Index {
        let mut index = Index::new(2..=3);
        index.learn(text);
        index
    }

    #[test]
    fn the_longest_run_wins_over_a_later_one() {
        let text = [1, 2, 3, 9, 2, 3, 8, 1, 2, 3];
        assert_eq!(learned(&text[..9]).find(&text), Some(3));
    }

    #[test]
    fn of_equal_runs_the_last_wins() {
        let text = [2, 3, 9, 2, 3, 8, 2, 3];
        assert_eq!(learned(&text[..7]).find(&text), Some(5));
    }

    #[test]
    fn what_was_not_learned_is_not_found() {
        let text = [1, 2, 5, 1, 2];
        assert_eq!(learned(&text[..1]).find(&text), None);
        assert_eq!(learned(&[]).find(&[]), None);
    }

    #[test]
    fn each_token_is_learned_once_and_takes_constant_space() {
        let mut index = Index::new(2..=5);
        let text: Vec<u32> = (0..1000).collect();
        for end in 0..=text.len() {
            index.learn(&text[..end]);
            assert!(index.ends.len() <= 4 * end);
        }
        index.learn(&text[..10]);
        assert_eq!((index.learned, index.ends.len()), (1000, 4 * 1000 - 10));
    }
}
