//! SUM: a target of one recurrent layer whose every token changes everything after it.

use foretoken_cache::{CacheSet, Layer, RecurrentCache, RecurrentState, SetId};
use foretoken_model_base::{Batch, Hidden, Model, ModelError, ModelFacts, Result};
use mlx_rs::{Array, error::Exception};

use super::scripted::{facts, single};

/// Logit of the wanted token; the others have 0.
const SHARP: f32 = 10.0;
/// What sums are taken modulo.
const MODULUS: u32 = 97;
/// Tokens that the tail of the layer remembers: those of a convolution with four taps.
pub const SUM_TAIL: usize = 3;

/// state' = (3·state + token + 1) mod 97, and the next token is state' mod V.
pub struct SumModel {
    facts: ModelFacts,
    id: SetId,
}

/// The state of a [`SumModel`] after some tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SumState {
    /// The folded tokens.
    pub sum: u32,
    /// The last tokens, the newest last; zeros stand before the first.
    pub tail: [u32; SUM_TAIL],
}

impl SumState {
    /// The state after `tokens`.
    pub fn of(tokens: &[u32]) -> Self {
        tokens.iter().fold(Self::default(), |state, &token| state.after(token))
    }

    fn after(self, token: u32) -> Self {
        let [_, a, b] = self.tail;
        Self { sum: (3 * self.sum + token + 1) % MODULUS, tail: [a, b, token] }
    }

    /// What the recurrent layer of a set holds.
    pub fn cached(set: &CacheSet) -> Result<Self> {
        match set.layer(0) {
            Some(Layer::Recurrent(layer)) => Self::read(&layer.state()?),
            _ => Err(input("a recurrent layer", "another one".into())),
        }
    }

    fn read(state: &RecurrentState) -> Result<Self> {
        let (Some(tail), Some(sum)) = (&state.tail, &state.state) else {
            return Ok(Self::default());
        };
        let (tail, sum) = (floats(tail)?, floats(sum)?);
        match (&tail[..], &sum[..]) {
            (&[a, b, c], &[sum]) => Ok(Self { sum: sum as u32, tail: [a as u32, b as u32, c as u32] }),
            _ => {
                Err(input("a tail of three tokens and one sum", format!("{} and {}", tail.len(), sum.len())))
            }
        }
    }

    fn arrays(self) -> RecurrentState {
        let tail = self.tail.map(|token| token as f32);
        RecurrentState {
            tail: Some(Array::from_slice(&tail, &[1, SUM_TAIL as i32, 1])),
            state: Some(Array::from_slice(&[self.sum as f32], &[1, 1, 1, 1])),
        }
    }
}

impl SumModel {
    /// A model with this vocabulary.
    pub fn new(vocabulary: usize) -> Self {
        Self { facts: ModelFacts { layers: 1, ..facts("sum", vocabulary) }, id: SetId::fresh() }
    }

    /// The token that follows `tokens`.
    pub fn wants(&self, tokens: &[u32]) -> u32 {
        SumState::of(tokens).sum % self.facts.vocabulary as u32
    }
}

impl Model for SumModel {
    fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    fn make_caches(&self) -> CacheSet {
        CacheSet::with_id(self.id, vec![Layer::Recurrent(RecurrentCache::new())])
    }

    fn forward(&self, batch: &Batch, caches: &mut [&mut CacheSet]) -> Result<Hidden> {
        let set = single(batch, caches)?;
        let layer = set.layer_mut(0).ok_or_else(|| input("one layer", "none".into()))?.recurrent_mut()?;
        let mut state = SumState::read(&layer.state()?)?;
        let ids: Vec<u32> = host(batch.ids.reshape(&[-1])?.contiguous()?.to_vec_exact())?;
        let mut after = Vec::new();
        let mut logits = vec![0.0; ids.len() * self.facts.vocabulary];
        for (row, &id) in logits.chunks_mut(self.facts.vocabulary).zip(&ids) {
            state = state.after(id);
            row[state.sum as usize % self.facts.vocabulary] = SHARP;
            after.push(state);
        }
        let stops = layer.stops(ids.len());
        layer.advance(ids.len(), stops.into_iter().map(|row| after[row - 1].arrays()))?;
        let last = Array::from_slice(&logits, &[1, ids.len() as i32, self.facts.vocabulary as i32]); // [1,L,V]
        Ok(Hidden { aux: last.clone(), last })
    }

    fn unembed(&self, last: &Array) -> Result<Array> {
        Ok(last.clone())
    }
}

fn floats(array: &Array) -> Result<Vec<f32>> {
    host(array.contiguous()?.to_vec_exact())
}

fn host<T>(read: std::result::Result<T, impl std::fmt::Display>) -> Result<T> {
    read.map_err(|err| ModelError::Array(Exception::custom(err.to_string())))
}

fn input(expected: &str, got: String) -> ModelError {
    ModelError::Input { what: "caches", expected: expected.into(), got }
}
