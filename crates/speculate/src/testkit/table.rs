//! A target whose logits come from a table over the last two tokens: small enough to enumerate its laws.

use foretoken_cache::{CacheSet, SetId};
use foretoken_model_base::{Batch, Hidden, Model, ModelFacts, Result};
use foretoken_sample::SplitMix64;
use mlx_rs::{
    Array, Dtype,
    ops::{concatenate, indexing::TryIndexOp},
};

use super::scripted::{facts, single, two_layers};

/// The vocabulary of a [`TableModel`].
pub const TABLE_VOCABULARY: usize = 8;

/// Logits span this much, so that some tokens are rare and none is impossible.
const SPREAD: f64 = 4.0;

/// A lazy model: row i's logits are the table's entry for tokens i − 1 and i; before slot 0 stands id 0.
pub struct TableModel {
    facts: ModelFacts,
    id: SetId,
    /// `[V·V,V]` float32.
    table: Array,
    host: Vec<f32>,
}

impl TableModel {
    /// A random table; a seed gives the same table everywhere.
    pub fn new(seed: u64) -> Self {
        let v = TABLE_VOCABULARY;
        let host = random_logits(seed, v * v * v);
        let table = Array::from_slice(&host, &[(v * v) as i32, v as i32]);
        Self { facts: facts("table", v), id: SetId::fresh(), table, host }
    }

    /// The logits after `before`, `last`.
    pub fn logits(&self, before: u32, last: u32) -> &[f32] {
        let at = (before as usize * TABLE_VOCABULARY + last as usize) * TABLE_VOCABULARY;
        &self.host[at..at + TABLE_VOCABULARY]
    }
}

/// Reproducible logits in [0, [`SPREAD`]).
pub(crate) fn random_logits(seed: u64, count: usize) -> Vec<f32> {
    let mut stream = SplitMix64::new(seed);
    (0..count).map(|_| ((stream.next_u64() >> 40) as f64 / (1u64 << 24) as f64 * SPREAD) as f32).collect()
}

impl Model for TableModel {
    fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    fn make_caches(&self) -> CacheSet {
        two_layers(self.id)
    }

    fn forward(&self, batch: &Batch, caches: &mut [&mut CacheSet]) -> Result<Hidden> {
        let set = single(batch, caches)?;
        let rows = batch.ids.reshape(&[1, 1, -1, 1])?.as_dtype(Dtype::Float32)?; // [1,1,L,1]
        let mut view = None;
        for index in 0..set.len() {
            view = set.layer_mut(index).map(|l| l.get_mut().append(&rows, &rows)).transpose()?;
        }
        let length = batch.lengths[0] as i32;
        let last = batch.ids.reshape(&[-1])?; // [L]
        let padded = match view {
            // The slot before row 0 comes from the cache, so a wrong rollback changes the law.
            Some(view) if batch.offsets[0] > 0 => {
                view.keys.reshape(&[-1])?.try_index(-(length + 1)..)?.as_dtype(Dtype::Uint32)?
            }
            _ => concatenate(&[&Array::from_slice(&[0_u32], &[1]), &last], 0)?,
        };
        let before = padded.try_index(..length)?;
        let index = before.multiply(Array::from_slice(&[TABLE_VOCABULARY as u32], &[]))?.add(&last)?;
        let logits = self.table.take_axis(&index, 0)?.expand_dims(0)?; // [1,L,V]
        Ok(Hidden { aux: logits.clone(), last: logits })
    }

    fn unembed(&self, last: &Array) -> Result<Array> {
        Ok(last.clone())
    }
}
