//! Any model with its keys and values in fewer bits.

use foretoken_cache::{CacheSet, KvFormat, Layer, QuantizedCache};
use foretoken_model_base::{
    Batch, Hidden, HiddenTaps, MTPDefaultsProvider, MTPEmbeddingModel, Model, ModelError, ModelFacts, Result,
};
use mlx_rs::Array;

/// A family knows nothing of this: only the kind of its full-attention layers changes.
struct PackedKv {
    inner: Box<dyn Model>,
    format: KvFormat,
}

/// The same model with the keys and values of its full-attention layers packed. Window and recurrent
/// layers, which do not grow, stay as they are.
///
/// The text is no longer that of the model itself; how far a number may be off is stated at [`KvFormat`].
/// Speculation, rollback and reuse are as exact as before, because rows are packed once. A model without
/// full-attention layers, and heads whose size is not whole groups, are errors.
pub fn with_packed_kv(inner: Box<dyn Model>, format: KvFormat) -> Result<Box<dyn Model>> {
    let facts = inner.facts();
    if !inner.make_caches().layers().iter().any(grows) {
        return Err(ModelError::Input {
            what: "keys and values in fewer bits",
            expected: "a model with full-attention layers".into(),
            got: format!("family {}, which has none", facts.family),
        });
    }
    if !facts.head_size.is_multiple_of(format.group()) {
        return Err(ModelError::Input {
            what: "keys and values in fewer bits",
            expected: format!("heads whose size is a multiple of {}, the group", format.group()),
            got: format!("heads of size {}", facts.head_size),
        });
    }
    Ok(Box::new(PackedKv { inner, format }))
}

/// The largest group that divides the model's heads; an error of [`with_packed_kv`] follows if none does.
pub fn kv_format(model: &dyn Model, bits: usize) -> Result<KvFormat> {
    let group = if model.facts().head_size.is_multiple_of(64) { 64 } else { 32 };
    Ok(KvFormat::new(bits, group)?)
}

fn grows(layer: &Layer) -> bool {
    matches!(layer, Layer::Kv(_))
}

impl Model for PackedKv {
    fn facts(&self) -> &ModelFacts {
        self.inner.facts()
    }

    fn make_caches(&self) -> CacheSet {
        let mut set = self.inner.make_caches();
        for index in 0..set.len() {
            if let Some(layer) = set.layer_mut(index).filter(|layer| grows(layer)) {
                *layer = Layer::Quantized(QuantizedCache::new(self.format));
            }
        }
        set
    }

    fn forward(&self, batch: &Batch, caches: &mut [&mut CacheSet]) -> Result<Hidden> {
        self.inner.forward(batch, caches)
    }

    fn unembed(&self, last: &Array) -> Result<Array> {
        self.inner.unembed(last)
    }

    fn mtp(&self) -> Option<&dyn MTPEmbeddingModel> {
        self.inner.mtp()
    }

    fn mtp_defaults(&self) -> Option<&dyn MTPDefaultsProvider> {
        self.inner.mtp_defaults()
    }

    fn taps(&self) -> Option<&dyn HiddenTaps> {
        self.inner.taps()
    }
}
