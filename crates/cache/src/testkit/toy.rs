//! The toy that the kit feeds: rows filled with their token's number, and a state that folds tokens.

use mlx_rs::{
    Array,
    ops::{concatenate, indexing::TryIndexOp},
};

use crate::{Mask, RecurrentCache, RecurrentState, Result, View};

/// Sizes of the rows that are fed; keys hold the token's number, values its negative.
#[derive(Debug, Clone, Copy)]
pub struct RowForm {
    /// K, key/value heads.
    pub heads: usize,
    /// D of the keys.
    pub key: usize,
    /// D of the values.
    pub value: usize,
}

impl RowForm {
    /// One head, two numbers a key, one a value.
    pub const SMALL: Self = Self { heads: 1, key: 2, value: 1 };
    /// One head of 32, the smallest that can be quantized; equal numbers are packed without an error.
    pub const PACKED: Self = Self { heads: 1, key: 32, value: 32 };

    /// Keys and values of tokens.
    ///
    /// # Shapes
    /// Both `[1,K,L,D]`.
    pub fn rows(&self, tokens: &[u32]) -> (Array, Array) {
        let filled = |size: usize, sign: f32| {
            let head: Vec<f32> = tokens.iter().flat_map(|t| vec![sign * *t as f32; size]).collect();
            let shape = [1, self.heads as i32, tokens.len() as i32, size as i32];
            Array::from_slice(&head.repeat(self.heads), &shape)
        };
        (filled(self.key, 1.0), filled(self.value, -1.0))
    }
}

/// The tokens in a view; anything but rows of tokens is a complaint.
pub(crate) fn tokens_in(view: &View) -> std::result::Result<Vec<u32>, String> {
    let keys = filled_with(&view.keys, 1.0)?;
    let values = filled_with(&view.values, -1.0)?;
    match keys == values {
        true => Ok(keys.iter().map(|number| *number as u32).collect()),
        false => Err(format!("keys of tokens {keys:?} beside values of tokens {values:?}")),
    }
}

fn filled_with(array: &Array, sign: f32) -> std::result::Result<Vec<f32>, String> {
    let numbers = host(array)?;
    let (slots, size) = (array.dim(2) as usize, array.dim(3) as usize);
    let slot: Vec<f32> = numbers.chunks(size).take(slots).map(|row| sign * row[0]).collect();
    for (index, number) in numbers.iter().enumerate() {
        let at = index / size % slots;
        if sign * number != slot[at] {
            return Err(format!("{} and {} in slot {at} of one view", slot[at], sign * number));
        }
    }
    Ok(slot)
}

/// Fails unless the last `queries` tokens of `tokens` see in `view` exactly the tokens before them that
/// a window allows, and themselves.
pub(crate) fn check_view(
    view: &View,
    tokens: &[u32],
    queries: usize,
    window: Option<usize>,
) -> std::result::Result<(), String> {
    let keys = tokens_in(view)?;
    let mask = match &view.mask {
        Mask::Bool(mask) => flags(mask, queries * keys.len())?,
        _ => Vec::new(),
    };
    let allowed = |query: usize, key: usize| match &view.mask {
        Mask::All => true,
        Mask::Causal => key + queries <= keys.len() + query,
        Mask::Bool(_) => mask[query * keys.len() + key],
    };
    for query in 0..queries {
        let end = tokens.len() - queries + query + 1;
        let from = window.map_or(0, |window| end.saturating_sub(window));
        let seen: Vec<u32> = (0..keys.len()).filter(|key| allowed(query, *key)).map(|at| keys[at]).collect();
        if seen != tokens[from..end] {
            return Err(format!("slot {} sees {seen:?}, not {:?}", end - 1, &tokens[from..end]));
        }
    }
    Ok(())
}

/// Rows of the convolution tail.
const TAIL: usize = 3;
/// How much of the state stays with each token.
const DECAY: f32 = 0.75;
/// The largest difference between a state and its recomputation, as a share of the state: sums of
/// float32 in another order.
pub const STATE_TOLERANCE: f32 = 1e-5;

/// Folds tokens into a layer as a model's forward does: lazily, on top of its own state.
pub(crate) fn fold(before: RecurrentState, tokens: &[u32], stops: &[usize]) -> Result<Vec<RecurrentState>> {
    let zeros = || Array::from_slice(&[0.0f32; TAIL], &[1, TAIL as i32, 1]);
    let numbers: Vec<f32> = tokens.iter().map(|token| *token as f32).collect();
    let inputs = Array::from_slice(&numbers, &[1, tokens.len() as i32, 1]);
    let padded = concatenate(&[&before.tail.unwrap_or_else(zeros), &inputs], 1)?;
    let mut state = before.state.unwrap_or_else(|| Array::from_slice(&[0.0f32], &[1, 1, 1, 1]));
    let mut states = Vec::new();
    for (index, number) in numbers.iter().enumerate() {
        let row = index as i32 + 1;
        state = state.multiply(Array::from_f32(DECAY))?.add(Array::from_f32(*number))?;
        if stops.contains(&(index + 1)) {
            let tail = padded.try_index((.., row..row + TAIL as i32, ..))?;
            states.push(RecurrentState { tail: Some(tail), state: Some(state.clone()) });
        }
    }
    Ok(states)
}

/// Fails unless a state is what folding `tokens` from scratch gives.
pub(crate) fn check_state(state: &RecurrentState, tokens: &[u32]) -> std::result::Result<(), String> {
    let tail = state.tail.as_ref().map_or(Ok(vec![0.0; TAIL]), host)?;
    let got = state.state.as_ref().map_or(Ok(vec![0.0]), host)?;
    let padded = [&[0; TAIL][..], tokens].concat();
    let inputs: Vec<f32> = padded[padded.len() - TAIL..].iter().map(|token| *token as f32).collect();
    if tail != inputs {
        return Err(format!("the tail holds inputs {tail:?}, not {inputs:?}"));
    }
    let want = tokens.iter().fold(0.0f64, |state, token| state * f64::from(DECAY) + f64::from(*token));
    let difference = (f64::from(got[0]) - want).abs();
    match difference <= f64::from(STATE_TOLERANCE) * want.abs() {
        true => Ok(()),
        false => Err(format!("the state is {}, not {want}", got[0])),
    }
}

/// The flags of a mask, which must be this many.
fn flags(mask: &Array, numbers: usize) -> std::result::Result<Vec<bool>, String> {
    let read = mask.contiguous().map_err(|e| e.what().to_string())?;
    let flags = read.to_vec_exact::<bool>().map_err(|e| e.to_string())?;
    match flags.len() == numbers {
        true => Ok(flags),
        false => Err(format!("a mask of shape {:?} for {numbers} pairs", mask.shape())),
    }
}

fn host(array: &Array) -> std::result::Result<Vec<f32>, String> {
    let read = array.contiguous().map_err(|e| e.what().to_string())?;
    read.to_vec_exact().map_err(|e| e.to_string())
}

/// What the kit asks of a cache of folded states, beside [`LayerCache`](crate::LayerCache).
pub trait Folding: crate::LayerCache {
    /// See [`RecurrentCache::state`].
    fn state(&self) -> Result<RecurrentState>;
    /// See [`RecurrentCache::stops`].
    fn stops(&self, rows: usize) -> Vec<usize>;
    /// See [`RecurrentCache::advance`]; there is one state per stop.
    fn advance(&mut self, rows: usize, states: Vec<RecurrentState>) -> Result<()>;
}

impl Folding for RecurrentCache {
    fn state(&self) -> Result<RecurrentState> {
        RecurrentCache::state(self)
    }

    fn stops(&self, rows: usize) -> Vec<usize> {
        RecurrentCache::stops(self, rows)
    }

    fn advance(&mut self, rows: usize, states: Vec<RecurrentState>) -> Result<()> {
        RecurrentCache::advance(self, rows, states)
    }
}
