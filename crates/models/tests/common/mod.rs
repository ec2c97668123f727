//! What the tests of this crate share: the device, the golden files, forwards and comparisons.

#![allow(dead_code, reason = "each test program uses a part")]

use std::path::{Path, PathBuf};

use foretoken_cache::CacheSet;
use foretoken_model_base::{Batch, LoadOptions, Model, Weights};
use foretoken_models::{Loaded, load};
use mlx_rs::{Array, Device, Dtype, ops::concatenate};

/// Largest difference of logits or states over the largest value, float32 against float32.
pub(crate) const F32_TOLERANCE: f32 = 1e-4;
/// The same for weights packed in four bits.
pub(crate) const Q4_TOLERANCE: f32 = 1e-3;

/// Installs MLX's error handler and computes on the CPU.
pub(crate) fn on_cpu() {
    Device::try_default().expect("MLX has a default device");
    Device::set_default(&Device::cpu());
}

/// A path from the root of the workspace; it must exist.
pub(crate) fn workspace(path: &str) -> PathBuf {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path);
    assert!(path.exists(), "{} is missing: run `cargo xtask model` first", path.display());
    path
}

pub(crate) fn golden(name: &str) -> Loaded {
    on_cpu();
    load(&workspace(&format!("golden/{name}")), LoadOptions::cpu()).expect("the golden model loads")
}

/// The tensors of a golden file.
pub(crate) fn expected(path: &str) -> Weights {
    Weights::open(&workspace(path), LoadOptions::cpu()).expect("the golden file opens")
}

/// Logits [1,n,V] of ids forwarded in chunks.
pub(crate) fn logits(model: &dyn Model, ids: &[u32], chunks: &[usize]) -> Array {
    let mut caches = model.make_caches();
    let (mut at, mut rows) = (0, Vec::new());
    for &length in chunks {
        rows.push(step(model, &ids[at..at + length], &mut caches));
        at += length;
    }
    assert_eq!(at, ids.len(), "the chunks cover the ids");
    concatenate(&rows.iter().collect::<Vec<_>>(), 1).unwrap()
}

/// Logits [1,n,V] of ids that follow what is cached.
pub(crate) fn step(model: &dyn Model, ids: &[u32], caches: &mut CacheSet) -> Array {
    let offset = caches.layer(0).map_or(0, |l| l.get().offset());
    let batch = Batch::from_ids(ids, offset).unwrap();
    let hidden = model.forward(&batch, &mut [caches]).unwrap();
    model.unembed(&hidden.last).unwrap()
}

/// The id of the largest logit of the last row.
pub(crate) fn best(logits: &Array) -> u32 {
    let vocabulary = logits.dim(2) as usize;
    let all = host(logits);
    let row = &all[all.len() - vocabulary..];
    (0..vocabulary).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a))).unwrap() as u32
}

/// Greedy continuation of a prompt.
pub(crate) fn greedy(model: &dyn Model, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut caches = model.make_caches();
    let mut next = best(&step(model, prompt, &mut caches));
    let mut out = vec![next];
    while out.len() < count {
        next = best(&step(model, &[next], &mut caches));
        out.push(next);
    }
    out
}

pub(crate) fn host(array: &Array) -> Vec<f32> {
    let array = array.as_dtype(Dtype::Float32).unwrap().contiguous().unwrap();
    array.try_as_slice::<f32>().unwrap().to_vec()
}

/// max|a−b| / max|b|.
pub(crate) fn difference(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len(), "as many values");
    assert!(got.iter().all(|v| v.is_finite()), "values are finite");
    let largest = |values: &mut dyn Iterator<Item = f32>| values.fold(0f32, |m, v| m.max(v.abs()));
    largest(&mut got.iter().zip(want).map(|(a, b)| a - b)) / largest(&mut want.iter().copied())
}
