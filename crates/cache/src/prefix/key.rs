//! What a slot's state depends on: its token and, for drafters that look ahead, the tokens after it.

/// The keys of a run of slots. The key of a slot is its token and the `ahead` tokens that follow, so that
/// two runs share a slot only where a drafter's state of that slot is the same in both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Keys {
    /// The run's tokens and the `ahead` tokens after it.
    tokens: Vec<u32>,
    ahead: usize,
}

impl Keys {
    /// The keys that `tokens` are enough for: one less for each token of look-ahead.
    pub(crate) fn new(tokens: &[u32], ahead: usize) -> Self {
        Self { tokens: tokens.to_vec(), ahead }
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len().saturating_sub(self.ahead)
    }

    /// How many keys, from the first on, `tokens` begin with.
    pub(crate) fn common(&self, tokens: &[u32]) -> usize {
        let same = self.tokens.iter().zip(tokens).take_while(|(own, other)| own == other).count();
        same.saturating_sub(self.ahead)
    }

    /// The first `at` keys, and the others.
    pub(crate) fn split(&self, at: usize) -> (Self, Self) {
        (Self::new(&self.tokens[..at + self.ahead], self.ahead), Self::new(&self.tokens[at..], self.ahead))
    }

    /// These keys and those of `next`, which follow them: its first tokens are the look-ahead of these.
    pub(crate) fn join(&mut self, next: &Self) {
        self.tokens.truncate(self.len());
        self.tokens.extend(&next.tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_match_only_where_the_tokens_ahead_match_too() {
        let with = |ahead| Keys::new(&[1, 2, 3, 4], ahead);
        let shared = |ahead| with(ahead).common(&[1, 2, 3, 9, 4]);
        assert_eq!((with(0).len(), with(1).len(), with(3).len(), with(5).len()), (4, 3, 1, 0));
        assert_eq!((shared(0), shared(1), shared(2), shared(3)), (3, 2, 1, 0));
        assert_eq!(with(1).common(&[1, 2]), 1, "the key of token 2 is not known yet");
        assert_eq!(with(0).common(&[]), 0);
    }

    #[test]
    fn keys_that_were_split_join_again() {
        for (ahead, keys) in [(0, 6), (1, 5), (2, 4)] {
            let whole = Keys::new(&[1, 2, 3, 4, 5, 6], ahead);
            for at in 1..keys {
                let (mut front, back) = whole.split(at);
                assert_eq!((front.len(), back.len()), (at, keys - at));
                front.join(&back);
                assert_eq!(front, whole);
            }
        }
    }
}
