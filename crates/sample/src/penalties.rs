//! Repeat, presence and frequency penalties over a window that may reach into unknown tokens.
//!
//! Row i's window is the last `repeat_last_n` of the history and the first min(first + i, m) tokens in
//! flight. The part of the history that every row sees is counted once; what differs between rows is at
//! most 2m tokens, gathered by indices that the host knows although the tokens in flight are lazy.

use std::ops::Range;

use mlx_rs::ops::indexing;
use mlx_rs::{Array, Dtype, ops};

use crate::arrays::{column, columns, scalar, word};
use crate::{Result, Rows, SamplingOptions};

/// Whether any penalty changes a logit.
pub(crate) fn active(options: &SamplingOptions) -> bool {
    let neutral =
        options.repeat_penalty == 1.0 && options.presence_penalty == 0.0 && options.frequency_penalty == 0.0;
    options.repeat_last_n != 0 && !neutral
}

/// Penalised logits: `logits` `[n,D]` float32 → `[n,D]` float32.
///
/// A repeat penalty divides positive and multiplies negative logits once per distinct id (Keskar et al.:
/// CTRL, 2019, with the sign rule); then frequency × count and presence are subtracted.
pub(crate) fn apply(
    logits: &Array,
    rows: &Rows<'_>,
    options: &SamplingOptions,
    vocabulary: usize,
) -> Result<Array> {
    let mut counts = counts(rows, logits.dim(0) as usize, options.repeat_last_n, vocabulary)?;
    if let Some(columns) = rows.columns {
        counts = counts.take_axis(columns, -1)?;
    }
    let (seen, zero) = (counts.gt(scalar(0.0))?, scalar(0.0));
    let mut out = logits.clone();
    if options.repeat_penalty != 1.0 {
        let penalty = scalar(options.repeat_penalty);
        let changed = ops::select(out.gt(&zero)?, out.divide(&penalty)?, out.multiply(&penalty)?)?;
        out = ops::select(&seen, changed, &out)?;
    }
    if options.frequency_penalty != 0.0 {
        out = out.subtract(counts.multiply(scalar(options.frequency_penalty))?)?;
    }
    if options.presence_penalty != 0.0 {
        out = out.subtract(ops::select(&seen, scalar(options.presence_penalty), &zero)?)?;
    }
    Ok(out)
}

/// Occurrences of every id in every row's window → `[n,V]` float32 (one column more is cut off).
fn counts(rows: &Rows<'_>, n: usize, last_n: i32, vocabulary: usize) -> Result<Array> {
    let flying = rows.in_flight.map_or(0, |ids| ids.size());
    let windows = Windows::new(rows.history.ids().len(), flying, rows.first, n, last_n);
    let width = vocabulary as i32 + 1;
    let shared = host_ids(&rows.history.ids()[windows.shared.clone()], vocabulary);
    let mut counts = ops::broadcast_to(&tally(&shared, width)?.reshape(&[1, width])?, &[n as i32, width])?;
    if windows.width > 0 {
        let own = own_ids(rows, &windows, vocabulary)?;
        let bases: Vec<u32> = (0..n as u32).map(|row| row * width as u32).collect();
        let flat = own.add(column(&Array::from_slice(&bases, &[n as i32]))?)?.flatten(None, None)?;
        counts = counts.add(tally(&flat, n as i32 * width)?.reshape(&[n as i32, width])?)?;
    }
    Ok(columns(&counts, 0..width - 1)?)
}

/// The ids that row after row sees beyond the shared part: `[n,width]` uint32, padded with V.
fn own_ids(rows: &Rows<'_>, windows: &Windows, vocabulary: usize) -> Result<Array> {
    let mut known = vec![vocabulary as u32];
    known.extend(rows.history.ids()[windows.edge.clone()].iter().map(|&id| id.min(vocabulary as u32)));
    let mut pool = Array::from_slice(&known, &[known.len() as i32]);
    if let Some(flying) = rows.in_flight {
        let flying = ops::minimum(flying.as_dtype(Dtype::Uint32)?, word(vocabulary as u32))?;
        pool = ops::concatenate(&[&pool, &flying], 0)?;
    }
    let shape = [windows.rows.len() as i32, windows.width as i32];
    Ok(pool.take_axis(Array::from_slice(&windows.indices(), &shape), 0)?)
}

/// History ids as an array; an id outside the vocabulary has no logit and counts for the cut column.
fn host_ids(ids: &[u32], vocabulary: usize) -> Array {
    let ids: Vec<u32> = ids.iter().map(|&id| id.min(vocabulary as u32)).collect();
    Array::from_slice(&ids, &[ids.len() as i32])
}

/// How often each of 0..width occurs: `[k]` uint32 → `[width]` float32.
fn tally(ids: &Array, width: i32) -> Result<Array> {
    let zeros = ops::zeros::<f32>(&[width])?;
    if ids.size() == 0 {
        return Ok(zeros);
    }
    let ones = ops::ones::<f32>(&[ids.size() as i32, 1])?;
    Ok(indexing::scatter_add_single(zeros, ids, ones, 0)?)
}

/// Every row's window, as ranges of the history and of the tokens in flight.
#[derive(Debug)]
struct Windows {
    /// History that every row sees.
    shared: Range<usize>,
    /// History before it that only some rows see.
    edge: Range<usize>,
    /// Per row: how much of the end of `edge`, and which tokens in flight.
    rows: Vec<(usize, Range<usize>)>,
    /// The longest row.
    width: usize,
}

impl Windows {
    fn new(history: usize, flying: usize, first: usize, n: usize, last_n: i32) -> Self {
        let limit = usize::try_from(last_n).unwrap_or(usize::MAX);
        let known = |i: usize| first.saturating_add(i).min(flying);
        // A later row sees more tokens in flight, hence no more history than an earlier one.
        let old = |i: usize| limit.saturating_sub(known(i)).min(history);
        let least = old(n.saturating_sub(1));
        let rows: Vec<_> =
            (0..n).map(|i| (old(i) - least, known(i) - known(i).min(limit)..known(i))).collect();
        let width = rows.iter().map(|(edge, range)| edge + range.len()).max().unwrap_or(0);
        Self { shared: history - least..history, edge: history - old(0)..history - least, rows, width }
    }

    /// Places in [padding, edge…, in flight…], row after row: n · width entries.
    fn indices(&self) -> Vec<u32> {
        let flying = 1 + self.edge.len();
        let mut out = Vec::with_capacity(self.rows.len() * self.width);
        for (edge, range) in &self.rows {
            let end = out.len() + self.width;
            out.extend((flying - edge..flying).map(|i| i as u32));
            out.extend(range.clone().map(|i| (flying + i) as u32));
            out.resize(end, 0);
        }
        out
    }
}

#[cfg(test)]
mod tests;
