//! A grammar's part in a round: what each row may draw, and what must come next.

use foretoken_sample::{Constraint, TokenMask};
use mlx_rs::Array;

use crate::{DraftError, Result, SpeculateError};

/// A proposal as the grammar sees it.
#[derive(Debug)]
pub(super) struct Walk {
    /// How many drafts are judged: up to and including the first that is not allowed, or that ends the
    /// answer. It stays, because a rejection is judged against what it was drawn from.
    pub(super) judged: usize,
    /// What the grammar forces after a proposal that it allows as a whole.
    pub(super) tail: Vec<u32>,
    /// What may follow each row: of the current token, of each judged draft, of each token of the tail.
    masks: Vec<TokenMask>,
}

impl Walk {
    /// The masks as an array `[1+n,V]` bool.
    pub(super) fn allowed(&self) -> Array {
        flags(&self.masks)
    }
}

/// Walks the grammar over drafts, and back to where it was.
pub(super) fn walk(
    constraint: &mut dyn Constraint,
    drafts: &[u32],
    room: usize,
    vocabulary: usize,
    is_end: impl Fn(u32) -> bool,
) -> Result<Walk> {
    let mut steps = Steps { constraint, taken: 0, vocabulary };
    let mut walk = Walk { judged: 0, tail: Vec::new(), masks: Vec::new() };
    let walked = steps.over(drafts, room, &mut walk, is_end);
    let taken = steps.taken;
    constraint.rollback(taken)?;
    walked.map(|()| walk)
}

/// The tokens that must come next, at most `room`; none outside the vocabulary.
pub(super) fn forced(constraint: &mut dyn Constraint, room: usize, vocabulary: usize) -> Result<Vec<u32>> {
    let mut forced = constraint.forced()?;
    forced.truncate(room);
    let known = forced.iter().take_while(|&&id| (id as usize) < vocabulary).count();
    forced.truncate(known);
    Ok(forced)
}

/// What may come next, as one row `[1,V]` bool.
pub(crate) fn allowed_next(constraint: &mut dyn Constraint, vocabulary: usize) -> Result<Array> {
    let mut mask = TokenMask::all(vocabulary);
    constraint.mask(&mut mask)?;
    Ok(flags(&[mask]))
}

/// The engine's own offer was refused by its own sink.
pub(super) fn refused(error: DraftError) -> SpeculateError {
    SpeculateError::Input {
        what: "forced tokens",
        expected: "tokens that fit the round".into(),
        got: error.to_string(),
    }
}

struct Steps<'a> {
    constraint: &'a mut dyn Constraint,
    taken: usize,
    vocabulary: usize,
}

impl Steps<'_> {
    fn over(
        &mut self,
        drafts: &[u32],
        room: usize,
        walk: &mut Walk,
        is_end: impl Fn(u32) -> bool,
    ) -> Result<()> {
        for &id in drafts {
            walk.judged += 1;
            if !self.step(id, walk)? || is_end(id) {
                // No row after this one is ever read.
                walk.masks.push(TokenMask::all(self.vocabulary));
                return Ok(());
            }
        }
        let tail = match room {
            0 => Vec::new(),
            // The mask says what is wrong there.
            _ => forced(self.constraint, room, self.vocabulary).or_else(|error| self.only_guessed(error))?,
        };
        for id in tail {
            walk.tail.push(id);
            if !self.step(id, walk)? || is_end(id) {
                walk.masks.push(TokenMask::all(self.vocabulary));
                return Ok(());
            }
        }
        let last = self.mask()?;
        walk.masks.push(last);
        Ok(())
    }

    /// What may follow. Behind a draft a grammar may find that nothing can: the answer ends there with an
    /// error if it comes that far, and not because of a guess.
    fn mask(&mut self) -> Result<TokenMask> {
        let mut mask = TokenMask::all(self.vocabulary);
        let masked = self.constraint.mask(&mut mask).map(|()| mask);
        masked.or_else(|error| self.only_guessed(error.into()).map(|()| TokenMask::none(self.vocabulary)))
    }

    /// An error counts only where the answer already is.
    fn only_guessed<T: Default>(&self, error: SpeculateError) -> Result<T> {
        if self.taken > 0 { Ok(T::default()) } else { Err(error) }
    }

    /// Masks the row before `id` and moves past it, if it is allowed.
    fn step(&mut self, id: u32, walk: &mut Walk) -> Result<bool> {
        let mask = self.mask()?;
        let allowed = mask.allows(id);
        walk.masks.push(mask);
        if allowed {
            self.constraint.advance(id)?;
            self.taken += 1;
        }
        Ok(allowed)
    }
}

/// # Shapes
/// → `[masks,V]` bool.
fn flags(masks: &[TokenMask]) -> Array {
    let all: Vec<bool> = masks.iter().flat_map(TokenMask::flags).collect();
    let vocabulary = masks.first().map_or(0, TokenMask::vocabulary);
    Array::from_slice(&all, &[masks.len() as i32, vocabulary as i32])
}
