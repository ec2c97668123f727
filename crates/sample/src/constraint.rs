//! What an answer must match, token by token.

use crate::{Result, SampleError};

/// A compiled grammar that many requests may share.
pub trait Grammar: Send + Sync + std::fmt::Debug {
    /// A fresh constraint for one answer, before its first token.
    fn begin(&self) -> Result<Box<dyn Constraint>>;
}

/// One answer's place in a grammar.
///
/// Once the grammar may end here, its mask allows the request's end tokens. After an end token was
/// advanced over nothing is allowed any more.
pub trait Constraint: Send {
    /// Leaves only the tokens that may come next. The mask arrives with every token allowed; a mask that
    /// ends up empty means that no continuation is valid.
    fn mask(&mut self, allowed: &mut TokenMask) -> Result<()>;
    /// Moves past a token. A token that the mask does not allow is an error and moves nothing.
    fn advance(&mut self, id: u32) -> Result<()>;
    /// Takes the last `tokens` advances back.
    fn rollback(&mut self, tokens: usize) -> Result<()>;
    /// The tokens that must come next whatever is drawn, without moving; often none.
    fn forced(&mut self) -> Result<Vec<u32>>;
}

/// A set of token ids, one bit each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    vocabulary: usize,
}

impl TokenMask {
    /// Every id of a vocabulary.
    pub fn all(vocabulary: usize) -> Self {
        Self { words: vec![u32::MAX; vocabulary.div_ceil(32)], vocabulary }
    }

    /// No id of a vocabulary.
    pub fn none(vocabulary: usize) -> Self {
        Self { words: vec![0; vocabulary.div_ceil(32)], vocabulary }
    }

    /// V, the number of ids.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Whether an id is allowed; ids outside the vocabulary are not.
    pub fn allows(&self, id: u32) -> bool {
        (id as usize) < self.vocabulary && self.words[id as usize / 32] >> (id % 32) & 1 == 1
    }

    /// Allows an id of the vocabulary; any other is ignored.
    pub fn allow(&mut self, id: u32) {
        if (id as usize) < self.vocabulary {
            self.words[id as usize / 32] |= 1 << (id % 32);
        }
    }

    /// Forbids an id.
    pub fn forbid(&mut self, id: u32) {
        if (id as usize) < self.vocabulary {
            self.words[id as usize / 32] &= !(1 << (id % 32));
        }
    }

    /// Keeps what both allow: bit id % 32 of word id / 32, missing words allow nothing.
    pub fn intersect(&mut self, words: &[u32]) -> Result<()> {
        if words.len() > self.words.len() {
            return Err(SampleError::Shape {
                what: "token mask",
                expected: format!("at most {} words", self.words.len()),
                got: words.len().to_string(),
            });
        }
        let others = words.iter().copied().chain(std::iter::repeat(0));
        self.words.iter_mut().zip(others).for_each(|(own, other)| *own &= other);
        Ok(())
    }

    /// One flag per id, V of them.
    pub fn flags(&self) -> impl Iterator<Item = bool> + '_ {
        (0..self.vocabulary as u32).map(|id| self.allows(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_a_set_of_the_vocabulary() {
        let mut mask = TokenMask::all(40);
        mask.forbid(33);
        assert!(mask.allows(39) && !mask.allows(33) && !mask.allows(40));
        mask.intersect(&[0b101]).unwrap();
        assert_eq!(mask.flags().filter(|&f| f).count(), 2);
        mask.allow(33);
        mask.allow(99);
        assert!(mask.allows(33) && mask.allows(2) && !mask.allows(1));
        assert!(mask.intersect(&[0; 3]).is_err());
        assert_eq!(TokenMask::none(40).flags().count(), 40);
    }
}
