//! Scripted drafters: what they offer is known beforehand.

use std::rc::Rc;

use mlx_rs::Array;

use super::table::{TABLE_VOCABULARY, random_logits};
use crate::{CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter, DrafterFacts};

const MAX_DEPTH: usize = 16;

/// The logit of an offered token in drawn rows; the others have 0.
const SHARP: f32 = 10.0;

type Next = Rc<dyn Fn(&[u32]) -> u32>;

fn facts(name: &'static str) -> DrafterFacts {
    DrafterFacts::new(name, MAX_DEPTH)
}

/// Which of its tokens a [`ScriptedDrafter`] gets right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Always the token that the target wants.
    Oracle,
    /// Always the id after it.
    Wrong,
    /// Right, right, wrong, over all tokens offered.
    Mix,
    /// Right, but nothing at all on every second round.
    Sometimes,
}

/// Knows what the target wants and offers it, or not, as point masses.
pub struct ScriptedDrafter {
    facts: DrafterFacts,
    pattern: Pattern,
    vocabulary: usize,
    next: Next,
    drawn: bool,
}

impl ScriptedDrafter {
    /// A drafter for a target that wants `next` after the tokens so far.
    pub fn new(pattern: Pattern, vocabulary: usize, next: impl Fn(&[u32]) -> u32 + 'static) -> Self {
        Self { facts: facts("scripted"), pattern, vocabulary, next: Rc::new(next), drawn: false }
    }

    /// Offers rows of logits that point at its tokens instead of point masses.
    #[must_use]
    pub fn drawn(mut self) -> Self {
        self.drawn = true;
        self
    }
}

impl Drafter for ScriptedDrafter {
    fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        Ok(Box::new(Scripted {
            pattern: self.pattern,
            vocabulary: self.vocabulary as u32,
            next: Rc::clone(&self.next),
            drawn: self.drawn,
            at,
            heard: at,
            offered: 0,
            rounds: 0,
        }))
    }
}

struct Scripted {
    pattern: Pattern,
    vocabulary: u32,
    next: Next,
    drawn: bool,
    at: usize,
    heard: usize,
    offered: usize,
    rounds: usize,
}

impl Scripted {
    fn wrong(&self) -> bool {
        match self.pattern {
            Pattern::Oracle | Pattern::Sometimes => false,
            Pattern::Wrong => true,
            Pattern::Mix => self.offered % 3 == 2,
        }
    }
}

impl DraftSession for Scripted {
    fn propose(
        &mut self,
        cx: &mut DraftCx<'_>,
        _current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        self.rounds += 1;
        let silent = self.pattern == Pattern::Sometimes && self.rounds.is_multiple_of(2);
        if silent || self.heard == self.at {
            return Ok(());
        }
        let mut path = cx.tokens.to_vec();
        while out.room() > 0 {
            let right = (self.next)(&path) % self.vocabulary;
            let id = (right + u32::from(self.wrong())) % self.vocabulary;
            self.offered += 1;
            path.push(id);
            match self.drawn {
                true => out.draw(&point_row(self.vocabulary, id), None).map(drop)?,
                false => out.known(&[id])?,
            }
        }
        Ok(())
    }

    fn committed(&mut self, _: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        self.heard = run.after(self.heard)?;
        Ok(())
    }
}

/// # Shapes
/// → `[1,1,V]`.
fn point_row(vocabulary: u32, id: u32) -> Array {
    let mut row = vec![0.0_f32; vocabulary as usize];
    row[id as usize] = SHARP;
    Array::from_slice(&row, &[1, 1, vocabulary as i32])
}

/// Draws every token from the same row of logits, one row a call or the whole proposal as one block.
pub struct RowsDrafter {
    facts: DrafterFacts,
    row: Vec<f32>,
    block: bool,
}

impl RowsDrafter {
    /// A drafter whose law is `logits` whatever came before.
    pub fn new(logits: &[f32]) -> Self {
        Self { facts: facts("rows"), row: logits.to_vec(), block: false }
    }

    /// Fills the proposal with one call.
    #[must_use]
    pub fn block(mut self) -> Self {
        self.block = true;
        self
    }
}

impl Drafter for RowsDrafter {
    fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        Ok(Box::new(FixedRows { row: self.row.clone(), block: self.block, at, heard: at }))
    }
}

struct FixedRows {
    row: Vec<f32>,
    block: bool,
    at: usize,
    heard: usize,
}

impl DraftSession for FixedRows {
    fn propose(&mut self, _: &mut DraftCx<'_>, _: u32, out: &mut dyn DraftSink) -> Result<(), DraftError> {
        if self.heard == self.at {
            return Ok(());
        }
        let rows = if self.block { out.room() } else { 1 };
        let logits = Array::from_slice(&self.row.repeat(rows), &[1, rows as i32, self.row.len() as i32]);
        while out.room() > 0 {
            out.draw(&logits, None)?;
        }
        Ok(())
    }

    fn committed(&mut self, _: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        self.heard = run.after(self.heard)?;
        Ok(())
    }
}

/// A bad draft model for [`TableModel`](super::TableModel): a random table over the last token alone.
pub struct TableDrafter {
    facts: DrafterFacts,
    /// `[V,V]` float32.
    table: Array,
}

impl TableDrafter {
    /// A drafter with a table of its own.
    pub fn new(seed: u64) -> Self {
        Self::of(&random_logits(seed, TABLE_VOCABULARY * TABLE_VOCABULARY))
    }

    /// A drafter that draws from these logits: V for each last token, V·V in all.
    pub fn of(table: &[f32]) -> Self {
        let v = TABLE_VOCABULARY as i32;
        Self { facts: facts("table"), table: Array::from_slice(table, &[v, v]) }
    }
}

impl Drafter for TableDrafter {
    fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        Ok(Box::new(TableSession { table: self.table.clone(), at, heard: at }))
    }
}

struct TableSession {
    table: Array,
    at: usize,
    heard: usize,
}

impl DraftSession for TableSession {
    fn propose(
        &mut self,
        _: &mut DraftCx<'_>,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        let mut last = Array::from_slice(&[current], &[1, 1]);
        while self.heard > self.at && out.room() > 0 {
            last = out.draw(&self.table.take_axis(&last, 0)?.reshape(&[1, 1, -1])?, None)?;
        }
        Ok(())
    }

    fn committed(&mut self, _: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        self.heard = run.after(self.heard)?;
        Ok(())
    }
}

/// Implements the required methods and nothing else: offers the last token again.
pub struct Minimal {
    facts: DrafterFacts,
}

impl Minimal {
    /// A drafter without state.
    pub fn new() -> Self {
        Self { facts: facts("minimal") }
    }
}

impl Default for Minimal {
    fn default() -> Self {
        Self::new()
    }
}

impl Drafter for Minimal {
    fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        Ok(Box::new(MinimalSession { at, heard: at }))
    }
}

struct MinimalSession {
    at: usize,
    heard: usize,
}

impl DraftSession for MinimalSession {
    fn propose(
        &mut self,
        _: &mut DraftCx<'_>,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        match self.heard > self.at && out.room() > 0 {
            true => out.known(&[current]),
            false => Ok(()),
        }
    }

    fn committed(&mut self, _: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        self.heard = run.after(self.heard)?;
        Ok(())
    }
}
