//! What a row must not draw: banned sequences, end tokens that come too early, and what a grammar forbids.
//!
//! Positions and most tokens are known on the host; only a sequence that reaches into tokens in flight is
//! compared on the device, by indices that the host knows.

use mlx_rs::ops::indexing;
use mlx_rs::{Array, Dtype, ops};

use crate::arrays::{column, never, scalar};
use crate::{Result, Rows, SampleError, SamplingOptions};

/// The bans of one request, sorted by how they are looked up.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bans {
    /// Ids that are never drawn.
    always: Vec<u32>,
    /// Ids that are not drawn before `min_tokens` tokens were produced.
    early: Vec<u32>,
    min_tokens: usize,
    /// Sequences of two and more ids.
    sequences: Vec<Vec<u32>>,
}

impl Bans {
    /// Checks the sequences against the vocabulary.
    pub(crate) fn new(options: &SamplingOptions, vocabulary: usize) -> Result<Self> {
        let mut bans = Self { min_tokens: options.min_tokens, ..Self::default() };
        for sequence in &options.banned {
            if let Some(id) = sequence.iter().find(|&&id| id as usize >= vocabulary) {
                return Err(SampleError::Option {
                    what: "banned",
                    expected: "ids of the vocabulary",
                    got: id.to_string(),
                });
            }
            match sequence[..] {
                [] => {
                    return Err(SampleError::Option {
                        what: "banned",
                        expected: "sequences of at least one id",
                        got: "an empty one".into(),
                    });
                }
                [id] => bans.always.push(id),
                _ => bans.sequences.push(sequence.clone()),
            }
        }
        bans.check_rest(vocabulary)?;
        Ok(bans)
    }

    /// Adds the request's end tokens, whose place the options decide.
    pub(crate) fn with_ends(
        mut self,
        ends: &[u32],
        options: &SamplingOptions,
        vocabulary: usize,
    ) -> Result<Self> {
        let ends = ends.iter().copied().filter(|&id| (id as usize) < vocabulary);
        match (options.ignore_eos, options.min_tokens) {
            (true, _) => self.always.extend(ends),
            (false, 0) => {}
            (false, _) => self.early.extend(ends),
        }
        self.check_rest(vocabulary)?;
        Ok(self)
    }

    /// Whether any row of a request may lose a column.
    pub(crate) fn active(&self) -> bool {
        !(self.always.is_empty() && self.early.is_empty() && self.sequences.is_empty())
    }

    /// Something must be left to draw whatever came before.
    fn check_rest(&mut self, vocabulary: usize) -> Result<()> {
        self.always.sort_unstable();
        self.always.dedup();
        if self.always.len() < vocabulary {
            return Ok(());
        }
        Err(SampleError::Option {
            what: "banned",
            expected: "at least one id that may be drawn",
            got: "bans of the whole vocabulary".into(),
        })
    }

    /// Which ids are forbidden in each of n rows → `[n,V]` bool, or `[1,V]` when all rows are alike.
    fn forbidden(&self, rows: &Rows<'_>, vocabulary: usize) -> Result<Option<Array>> {
        let n = rows.logits.dim(0) as usize;
        let mut out = self.known(rows, n, vocabulary);
        if let Some(hits) = self.sequences(rows, n, vocabulary)? {
            out = Some(match out {
                Some(known) => known.logical_or(hits)?,
                None => hits,
            });
        }
        Ok(out)
    }

    /// What the host knows: constant bans, and end tokens by each row's position.
    fn known(&self, rows: &Rows<'_>, n: usize, vocabulary: usize) -> Option<Array> {
        let produced = rows.history.produced() + rows.first;
        let early = |row: usize| !self.early.is_empty() && produced + row < self.min_tokens;
        if self.always.is_empty() && !(0..n).any(early) {
            return None;
        }
        let mut flags = vec![false; n * vocabulary];
        for (row, flags) in flags.chunks_mut(vocabulary).enumerate() {
            let early = if early(row) { &self.early[..] } else { &[] };
            self.always.iter().chain(early).for_each(|&id| flags[id as usize] = true);
        }
        Some(Array::from_slice(&flags, &[n as i32, vocabulary as i32]))
    }

    /// The last ids of sequences whose other ids stand at the end of a row's tokens → `[n,V]` bool.
    fn sequences(&self, rows: &Rows<'_>, n: usize, vocabulary: usize) -> Result<Option<Array>> {
        let Some(longest) = self.sequences.iter().map(|s| s.len() - 1).max() else {
            return Ok(None);
        };
        let tail = rows.history.ids();
        let tail = &tail[tail.len().saturating_sub(longest)..];
        let flying = rows.in_flight.map_or(0, |ids| ids.size());
        let mut places = Places::default();
        for row in 0..n {
            let seen = tail.len() + rows.first.saturating_add(row).min(flying);
            self.sequences.iter().for_each(|sequence| places.push(sequence, seen, longest));
        }
        let pool = pool(tail, rows.in_flight)?;
        let shape = [places.possible.len() as i32, longest as i32];
        let standing = pool.take_axis(Array::from_slice(&places.indices, &shape), 0)?;
        let same = standing.eq(Array::from_slice(&places.expected, &shape))?;
        let same = same.logical_or(Array::from_slice(&places.ignored, &shape))?.all_axis(-1, false)?;
        let hit = same.logical_and(Array::from_slice(&places.possible, &shape[..1]))?;
        spread(&hit, &self.sequences, n, vocabulary).map(Some)
    }
}

/// What each (row, sequence) compares, row after row, `longest` entries each.
#[derive(Default)]
struct Places {
    /// Places in [padding, tail…, in flight…].
    indices: Vec<u32>,
    expected: Vec<u32>,
    /// Entries that a shorter sequence does not have.
    ignored: Vec<bool>,
    /// Whether the row has seen enough tokens, one flag per (row, sequence).
    possible: Vec<bool>,
}

impl Places {
    fn push(&mut self, sequence: &[u32], seen: usize, longest: usize) {
        let before = &sequence[..sequence.len() - 1];
        let possible = before.len() <= seen;
        self.possible.push(possible);
        for i in 0..longest {
            let used = possible && i < before.len();
            self.indices.push(if used { (1 + seen - before.len() + i) as u32 } else { 0 });
            self.expected.push(if used { before[i] } else { 0 });
            self.ignored.push(!used);
        }
    }
}

/// [padding, tail…, in flight…] `[1+t+m]` uint32.
fn pool(tail: &[u32], in_flight: Option<&Array>) -> Result<Array> {
    let known: Vec<u32> = [u32::MAX].iter().chain(tail).copied().collect();
    let known = Array::from_slice(&known, &[known.len() as i32]);
    Ok(match in_flight {
        Some(flying) => ops::concatenate(&[&known, &flying.as_dtype(Dtype::Uint32)?], 0)?,
        None => known,
    })
}

/// Hits `[n·s]`, one per (row, sequence), at the sequences' last ids → `[n,V]` bool.
fn spread(hit: &Array, sequences: &[Vec<u32>], n: usize, vocabulary: usize) -> Result<Array> {
    let places: Vec<u32> = (0..n)
        .flat_map(|row| sequences.iter().map(move |s| (row, s)))
        .map(|(row, sequence)| (row * vocabulary) as u32 + sequence[sequence.len() - 1])
        .collect();
    let places = Array::from_slice(&places, &[places.len() as i32]);
    let zeros = ops::zeros::<f32>(&[(n * vocabulary) as i32])?;
    let weights = column(&hit.as_dtype(Dtype::Float32)?)?;
    let counts = indexing::scatter_add_single(zeros, places, weights, 0)?;
    Ok(counts.gt(scalar(0.0))?.reshape(&[n as i32, vocabulary as i32])?)
}

/// Logits `[n,D]` float32 with −∞ wherever a ban or the rows' own mask forbids the column.
pub(crate) fn apply(logits: Array, bans: &Bans, rows: &Rows<'_>, vocabulary: usize) -> Result<Array> {
    let mut out = logits;
    let forbidden = if bans.active() { bans.forbidden(rows, vocabulary)? } else { None };
    let never = never();
    let gathered = |mask: &Array| match rows.columns {
        Some(ids) => mask.take_axis(ids, -1),
        None => Ok(mask.clone()),
    };
    if let Some(forbidden) = forbidden {
        out = ops::select(gathered(&forbidden)?, &never, &out)?;
    }
    if let Some(allowed) = rows.allowed {
        out = ops::select(gathered(allowed)?, &out, &never)?;
    }
    Ok(out)
}

/// Adds the bias of each id: `[n,D]` float32 → `[n,D]` float32.
pub(crate) fn bias(logits: &Array, bias: &[(u32, f32)], rows: &Rows<'_>, vocabulary: usize) -> Result<Array> {
    let mut values = vec![0.0; vocabulary];
    bias.iter().for_each(|&(id, value)| values[id as usize] = value);
    let mut values = Array::from_slice(&values, &[1, vocabulary as i32]);
    if let Some(ids) = rows.columns {
        values = values.take_axis(ids, -1)?;
    }
    Ok(logits.add(values)?)
}

/// Fails unless every bias is finite and names an id of the vocabulary once.
pub(crate) fn check_bias(bias: &[(u32, f32)], vocabulary: usize) -> Result<()> {
    let wrong = |expected, got: String| Err(SampleError::Option { what: "logit_bias", expected, got });
    let mut ids: Vec<u32> = bias.iter().map(|&(id, _)| id).collect();
    ids.sort_unstable();
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        return wrong("one bias for each id", format!("two for {}", pair[0]));
    }
    for &(id, value) in bias {
        if id as usize >= vocabulary {
            return wrong("ids of the vocabulary", id.to_string());
        }
        if !(-100.0..=100.0).contains(&value) {
            return wrong("a number from -100 to 100; ban an id to forbid it", value.to_string());
        }
    }
    Ok(())
}

/// Greedy choice of masked rows as one column each, −∞ where nothing is left: `[n,D]` → (`[n,1]`, `[n,1]`).
pub(crate) fn best_or_nothing(logits: &Array) -> Result<(Array, Array)> {
    let best = column(&indexing::argmax_axis(logits, -1, false)?)?;
    let left = logits.max_axis(-1, true)?.gt(never())?;
    let logprobs = ops::select(left, scalar(0.0), never())?;
    Ok((best, logprobs))
}

/// How far the best of each row lies above the second: `[n,k]` float32 → `[n]` float32, ∞ with one column.
pub(crate) fn gap(scores: &Array) -> Result<Array> {
    let width = scores.dim(-1);
    if width < 2 {
        return Ok(ops::full::<f32>(&[scores.dim(0)], scalar(f32::INFINITY))?);
    }
    let best = column(&indexing::argmax_axis(scores, -1, false)?)?;
    let others = scores.put_along_axis(&best, ops::full::<f32>(best.shape(), never())?, -1)?;
    Ok(scores.max_axis(-1, false)?.subtract(others.max_axis(-1, false)?)?)
}
