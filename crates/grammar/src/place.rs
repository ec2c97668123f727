//! One answer's place in a grammar.

use foretoken_sample::{Constraint, Result, SampleError, TokenMask};
use llguidance::Matcher;

use crate::compile::short;

/// A matcher, and the end token that closed it if one did.
pub(crate) struct Place {
    matcher: Matcher,
    ends: Box<[u32]>,
    /// Tokens passed, end tokens apart.
    passed: usize,
    /// End tokens passed; the matcher itself never sees them.
    closed: usize,
}

impl Place {
    pub(crate) fn new(matcher: Matcher, ends: &[u32]) -> Self {
        Self { matcher, ends: ends.into(), passed: 0, closed: 0 }
    }

    /// Whether the answer may end here.
    fn may_end(&mut self) -> Result<bool> {
        self.matcher.is_accepting().map_err(broken)
    }

    /// The tokens that may come next, ends apart; empty where the grammar is complete.
    fn inner(&mut self) -> Result<Vec<u32>> {
        if self.matcher.is_stopped() {
            return self.complete().map(|()| Vec::new());
        }
        let mask = self.matcher.compute_mask();
        match mask {
            Ok(mask) => Ok(mask.as_slice().to_vec()),
            // The last mask may have found that nothing is left.
            Err(error) if self.matcher.is_error() => Err(broken(error)),
            Err(_) => Ok(Vec::new()),
        }
    }

    /// A matcher stops by itself where its grammar is complete, or because of an error.
    fn complete(&self) -> Result<()> {
        match self.matcher.get_error() {
            Some(error) => Err(broken(error)),
            None => Ok(()),
        }
    }
}

impl Constraint for Place {
    fn mask(&mut self, allowed: &mut TokenMask) -> Result<()> {
        if self.closed > 0 {
            return allowed.intersect(&[]);
        }
        let may_end = self.may_end()?;
        let mut words = self.inner()?;
        words.resize(allowed.vocabulary().div_ceil(32), 0);
        for &id in &*self.ends {
            if let Some(word) = words.get_mut(id as usize / 32) {
                let bit = 1 << (id % 32);
                *word = if may_end { *word | bit } else { *word & !bit };
            }
        }
        allowed.intersect(&words)
    }

    fn advance(&mut self, id: u32) -> Result<()> {
        let refused = |expected: &str| {
            Err(SampleError::Constraint {
                what: "next token",
                expected: expected.to_owned(),
                got: id.to_string(),
            })
        };
        if self.closed > 0 {
            return refused("nothing after an end token");
        }
        if self.ends.contains(&id) {
            if !self.may_end()? {
                return refused("more of the answer before its end");
            }
            self.closed = 1;
            return Ok(());
        }
        // Asking first keeps the matcher usable: a token that does not fit would break it.
        let fits = !self.matcher.is_stopped() && self.matcher.validate_tokens(&[id]).map_err(broken)? == 1;
        if !fits {
            return refused("a token that the grammar allows");
        }
        self.matcher.consume_token(id).map_err(broken)?;
        self.passed += 1;
        Ok(())
    }

    fn rollback(&mut self, tokens: usize) -> Result<()> {
        if tokens > self.passed + self.closed {
            return Err(SampleError::Constraint {
                what: "rollback",
                expected: format!("at most {} tokens", self.passed + self.closed),
                got: tokens.to_string(),
            });
        }
        let ends = tokens.min(self.closed);
        self.matcher.rollback(tokens - ends).map_err(broken)?;
        (self.closed, self.passed) = (self.closed - ends, self.passed - (tokens - ends));
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>> {
        if self.closed > 0 {
            return Ok(Vec::new());
        }
        if !self.matcher.is_stopped() {
            let forced = self.matcher.compute_ff_tokens();
            self.complete()?;
            if !forced.is_empty() {
                let end = forced.iter().position(|id| self.ends.contains(id)).unwrap_or(forced.len());
                return Ok(forced[..end].to_vec());
            }
        }
        // A complete grammar leaves one thing to say, if there is one way to say it.
        let complete = self.may_end()? && self.inner()?.iter().all(|&word| word == 0);
        match *self.ends {
            [end] if complete => Ok(vec![end]),
            _ => Ok(Vec::new()),
        }
    }
}

fn broken(error: impl std::fmt::Display) -> SampleError {
    SampleError::Constraint {
        what: "grammar",
        expected: "an answer that it can follow; simplify the grammar".into(),
        got: short(&error.to_string()),
    }
}
