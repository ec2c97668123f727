//! Scripted parts for tests: numbers that can be read back instead of weights.
//!
//! The embedding of token n is [n], the hidden state of slot s is [1000 + s], and the fake sequential
//! head stores both as its key and value, so a test sees which pairs its cache really holds.

use std::cell::RefCell;

use foretoken_cache::{CacheSet, KvCache, Layer, LayerCache};
use foretoken_model_base::{
    Batch, DraftHead, DraftVocabulary, Hidden, MTPDraftModel, MTPEmbeddingModel, Model, ModelError,
    ModelFacts, Result,
};
use foretoken_speculate::{DraftError, DraftSink};
use mlx_rs::{Array, Device, ops::indexing::TryIndexOp};

/// Installs MLX's error handler and computes on the CPU.
pub(crate) fn cpu() {
    let _ = Device::try_default().expect("MLX answers");
    Device::set_default(&Device::cpu());
}

/// The hidden state of slots `from..to`, [1,n,1].
pub(crate) fn hidden(from: usize, to: usize) -> Array {
    let rows: Vec<f32> = (from..to).map(|slot| 1000.0 + slot as f32).collect();
    Array::from_slice(&rows, &[1, rows.len() as i32, 1])
}

/// Target caches of one layer that hold `slots` rows of zeros.
pub(crate) fn target(slots: usize) -> CacheSet {
    let mut layer = KvCache::new();
    if slots > 0 {
        let rows = Array::from_slice(&vec![0f32; slots], &[1, 1, slots as i32, 1]);
        layer.append(&rows, &rows).expect("rows fit");
    }
    CacheSet::new(vec![Layer::Kv(layer)])
}

/// The (next token, slot) pairs in a fake head's cache.
pub(crate) fn pairs(own: &CacheSet) -> Vec<(u32, usize)> {
    let Some(view) = own.layer(0).and_then(|layer| layer.get().view().expect("readable")) else {
        return Vec::new();
    };
    let read = |a: &Array| a.contiguous().expect("dense").to_vec_exact::<f32>().expect("float32");
    let (next, hidden) = (read(&view.keys), read(&view.values));
    next.iter().zip(hidden).map(|(&n, h)| (n as u32, (h - 1000.0) as usize)).collect()
}

/// A target whose embedding of token n is [n]. It cannot run.
pub(crate) struct FakeModel {
    facts: ModelFacts,
}

impl FakeModel {
    pub(crate) fn new() -> Self {
        cpu();
        let facts = ModelFacts {
            family: "fake",
            vocabulary: 1000,
            context_length: 10_000,
            layers: 1,
            width: 1,
            heads: 1,
            kv_heads: 1,
            head_size: 1,
            norm_epsilon: 1e-5,
            rope_base: 1e4,
            end_tokens: Vec::new(),
        };
        Self { facts }
    }
}

impl Model for FakeModel {
    fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    fn make_caches(&self) -> CacheSet {
        target(0)
    }

    fn forward(&self, _: &Batch, _: &mut [&mut CacheSet]) -> Result<Hidden> {
        Err(ModelError::Input { what: "forward", expected: "a real model".into(), got: "a fake".into() })
    }

    fn unembed(&self, last: &Array) -> Result<Array> {
        Ok(last.clone())
    }

    fn mtp(&self) -> Option<&dyn MTPEmbeddingModel> {
        Some(self)
    }
}

impl MTPEmbeddingModel for FakeModel {
    fn token_embeddings(&self, ids: &Array) -> Result<Array> {
        Ok(ids.reshape(&[ids.dim(0), ids.dim(1), 1])?.as_type::<f32>()?)
    }

    fn output_rows(&self, ids: &Array) -> Result<Array> {
        Ok(ids.reshape(&[-1, 1])?.as_type::<f32>()?)
    }
}

/// A sequential head that stores what it is given and answers with the sum of a pair's numbers.
pub(crate) struct FakeSeq {
    /// The lengths of its forwards.
    pub(crate) forwards: RefCell<Vec<usize>>,
    /// Fails once this many rows are in its cache.
    pub(crate) fails_at: usize,
}

impl FakeSeq {
    pub(crate) fn new() -> Self {
        Self { forwards: RefCell::default(), fails_at: usize::MAX }
    }
}

impl DraftHead for FakeSeq {
    fn vocabulary(&self) -> Option<&DraftVocabulary> {
        None
    }

    fn make_caches(&self) -> CacheSet {
        target(0)
    }

    fn forward(
        &self,
        embeds: &Array,
        hidden: &Array,
        position: usize,
        _: &CacheSet,
        own: &mut CacheSet,
    ) -> Result<Hidden> {
        let length = embeds.dim(1);
        assert_eq!(own.offset(), position, "rows go where the last ones ended");
        self.forwards.borrow_mut().push(length as usize);
        let rows = |a: &Array| a.reshape(&[1, 1, length, 1]);
        own.layer_mut(0).expect("one layer").get_mut().append(&rows(embeds)?, &rows(hidden)?)?;
        if own.offset() >= self.fails_at {
            return Err(ModelError::Input { what: "fake", expected: "less".into(), got: "enough".into() });
        }
        let out = embeds.add(hidden)?;
        Ok(Hidden { last: out.clone(), aux: out })
    }

    fn unembed(&self, last: &Array) -> Result<Array> {
        Ok(last.clone())
    }
}

/// A single-position head that notes (embedding, hidden, position, target slots) of every step and
/// answers with hidden + 1.
#[derive(Default)]
pub(crate) struct FakeSingle {
    pub(crate) steps: RefCell<Vec<(u32, f32, usize, usize)>>,
}

impl MTPDraftModel for FakeSingle {
    fn vocabulary(&self) -> Option<&DraftVocabulary> {
        None
    }

    fn draft(&self, input: &Array, position: usize, target: &CacheSet) -> Result<(Array, Array)> {
        let numbers = input.contiguous()?.to_vec_exact::<f32>().expect("float32");
        self.steps.borrow_mut().push((numbers[0] as u32, numbers[1], position, target.offset()));
        let out = input.try_index((.., .., 1..))?.add(Array::from_f32(1.0))?;
        Ok((out.clone(), out))
    }
}

/// A sink that hands out prepared tokens and keeps the logits it was given.
pub(crate) struct FakeSink {
    pub(crate) tokens: Vec<u32>,
    pub(crate) logits: Vec<f32>,
    pub(crate) fails_at: usize,
}

impl FakeSink {
    /// Takes as many drafts as there are tokens.
    pub(crate) fn of(tokens: &[u32]) -> Self {
        Self { tokens: tokens.to_vec(), logits: Vec::new(), fails_at: usize::MAX }
    }
}

impl DraftSink for FakeSink {
    fn room(&self) -> usize {
        self.tokens.len() - self.logits.len()
    }

    fn draw(
        &mut self,
        logits: &Array,
        _: Option<&DraftVocabulary>,
    ) -> std::result::Result<Array, DraftError> {
        if self.logits.len() == self.fails_at {
            return Err(DraftError::Other("the sink fails".into()));
        }
        let token = self.tokens[self.logits.len()];
        self.logits.push(logits.contiguous()?.item_exact::<f32>());
        Ok(Array::from_slice(&[token], &[1, 1]))
    }

    fn known(&mut self, _: &[u32]) -> std::result::Result<(), DraftError> {
        Err(DraftError::Other("MTP drafts are drawn".into()))
    }
}
