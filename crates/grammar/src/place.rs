//! One answer's place in a grammar.

use std::sync::{Arc, Mutex, PoisonError};

use foretoken_sample::{Constraint, Result, SampleError, TokenMask};
use llguidance::Matcher;

use crate::compile::short;

/// A matcher, and the end token that closed it if one did.
pub(crate) struct Place {
    matcher: Matcher,
    /// The grammar's own one, which stays at the beginning.
    fresh: Arc<Mutex<Matcher>>,
    ends: Box<[u32]>,
    /// Tokens passed, end tokens apart.
    passed: Vec<u32>,
    /// End tokens passed; the matcher itself never sees them.
    closed: usize,
}

impl Place {
    pub(crate) fn new(fresh: Arc<Mutex<Matcher>>, ends: &[u32]) -> Self {
        Self { matcher: beginning(&fresh), fresh, ends: ends.into(), passed: Vec::new(), closed: 0 }
    }

    /// Why the matcher cannot go on, if it cannot.
    pub(crate) fn error(&self) -> Option<String> {
        self.matcher.get_error()
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
        Ok(self.matcher.compute_mask().map_err(broken)?.as_slice().to_vec())
    }

    /// Goes to where only the first `tokens` tokens were passed. A matcher that failed, or whose grammar counts
    /// tokens, cannot go back; another one can go there.
    fn back_to(&mut self, tokens: usize) -> Result<()> {
        let steps = self.passed.len() - tokens;
        self.passed.truncate(tokens);
        if steps == 0 && !self.matcher.is_error() || self.matcher.rollback(steps).is_ok() {
            return Ok(());
        }
        self.matcher = beginning(&self.fresh);
        self.passed.iter().try_for_each(|&id| self.matcher.consume_token(id).map_err(broken))
    }

    /// A matcher stops by itself where its grammar is complete, or because of an error.
    fn complete(&self) -> Result<()> {
        match self.error() {
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
        self.passed.push(id);
        Ok(())
    }

    fn rollback(&mut self, tokens: usize) -> Result<()> {
        let most = self.passed.len() + self.closed;
        if tokens > most {
            return Err(SampleError::Constraint {
                what: "rollback",
                expected: format!("at most {most} tokens"),
                got: tokens.to_string(),
            });
        }
        let ends = tokens.min(self.closed);
        self.closed -= ends;
        self.back_to(self.passed.len() - (tokens - ends))
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

/// A matcher of one's own at the beginning of an answer.
fn beginning(fresh: &Mutex<Matcher>) -> Matcher {
    fresh.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
}

fn broken(error: impl std::fmt::Display) -> SampleError {
    SampleError::Constraint {
        what: "grammar",
        expected: "an answer that it can follow; simplify the grammar".into(),
        got: short(&error.to_string()),
    }
}
