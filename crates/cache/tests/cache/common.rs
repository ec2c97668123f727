//! The POS toy: rows whose every number tells which token and layer wrote them.

use foretoken_cache::{CacheSet, KvCache, Layer, LayerSnapshot, Snapshot, View};
use mlx_rs::{Array, Device};

/// Heads, key size and value size of each layer; the layers differ so that a mix-up shows.
pub(crate) const SHAPES: [(i32, i32, i32); 2] = [(2, 4, 2), (1, 3, 3)];

/// Installs mlx-rs' error handler and keeps the tests on the CPU.
pub(crate) fn cpu() {
    Device::try_default().expect("MLX answers");
    Device::set_default(&Device::cpu());
}

/// Row-major numbers of any array, whatever its strides.
pub(crate) fn host(array: &Array) -> Vec<f32> {
    array.contiguous().expect("contiguous").to_vec_exact().expect("float32 numbers")
}

/// Keys and values of `tokens` for a layer, [1,K,L,D] each.
pub(crate) fn rows(layer: usize, tokens: &[u32]) -> (Array, Array) {
    let (heads, key, value) = SHAPES[layer];
    (filled(layer, tokens, heads, key), filled(layer, tokens, heads, value))
}

fn filled(layer: usize, tokens: &[u32], heads: i32, size: i32) -> Array {
    let row = |token: &u32| vec![*token as f32 + 0.5 * layer as f32; size as usize];
    let head: Vec<f32> = tokens.iter().flat_map(row).collect();
    Array::from_slice(&head.repeat(heads as usize), &[1, heads, tokens.len() as i32, size])
}

/// The tokens that an array [1,K,S,D] of a layer was filled with; every number must agree.
pub(crate) fn tokens_of(layer: usize, array: &Array) -> Vec<u32> {
    let (heads, slots, size) = (array.dim(1) as usize, array.dim(2) as usize, array.dim(3) as usize);
    let numbers = host(array);
    let token = |slot: usize| numbers[slot * size] - 0.5 * layer as f32;
    for (at, number) in numbers.iter().enumerate() {
        let slot = at / size % slots;
        assert_eq!(
            *number,
            token(slot) + 0.5 * layer as f32,
            "head {} of {heads}, slot {slot}",
            at / size / slots
        );
    }
    (0..slots).map(|slot| token(slot) as u32).collect()
}

/// The tokens in a view, the same in keys and values.
pub(crate) fn seen(layer: usize, view: &View) -> Vec<u32> {
    let keys = tokens_of(layer, &view.keys);
    assert_eq!(keys, tokens_of(layer, &view.values), "keys and values of one token");
    keys
}

/// A set of two full-attention layers.
pub(crate) fn set() -> CacheSet {
    CacheSet::new(layers())
}

pub(crate) fn layers() -> Vec<Layer> {
    SHAPES.iter().map(|_| Layer::Kv(KvCache::new())).collect()
}

/// Appends tokens to every layer, as a model's forward would; what a layer's queries saw is checked
/// against its length only, so that nothing is evaluated here.
pub(crate) fn append(set: &mut CacheSet, tokens: &[u32]) {
    // A layer refuses a block without rows.
    for layer in (0..set.len()).filter(|_| !tokens.is_empty()) {
        let cache = set.layer_mut(layer).expect("a layer").get_mut();
        let (keys, values) = rows(layer, tokens);
        let before = cache.offset();
        let view = cache.append(&keys, &values).expect("rows that fit");
        assert_eq!(view.keys.dim(2) as usize, before + tokens.len());
    }
}

/// The tokens that every layer of a set holds.
pub(crate) fn held(set: &CacheSet) -> Vec<u32> {
    let per_layer = set.layers().iter().enumerate().map(|(layer, cache)| {
        let view = cache.get().view().expect("a view");
        view.map_or(Vec::new(), |view| seen(layer, &view))
    });
    same(per_layer)
}

/// The tokens that a snapshot holds, the same in every layer.
pub(crate) fn kept(snapshot: &Snapshot) -> Vec<u32> {
    let per_layer = snapshot.layers().iter().enumerate().map(|(layer, rows)| match rows {
        LayerSnapshot::Rows(rows) => {
            let (keys, values) = rows.read().expect("rows still known");
            let tokens = tokens_of(layer, &keys);
            assert_eq!(tokens, tokens_of(layer, &values), "keys and values of one token");
            tokens
        }
        other => panic!("unexpected kind {other:?}"),
    });
    same(per_layer)
}

fn same(mut per_layer: impl Iterator<Item = Vec<u32>>) -> Vec<u32> {
    let first = per_layer.next().expect("a layer");
    per_layer.for_each(|other| assert_eq!(first, other, "layers of one set hold the same tokens"));
    first
}

/// `n` tokens from `first` on.
pub(crate) fn run(first: u32, n: usize) -> Vec<u32> {
    (first..first + n as u32).collect()
}

/// The bytes of both buffers of every layer at a capacity of `slots`, float32.
pub(crate) fn bytes(slots: usize) -> usize {
    SHAPES.iter().map(|(heads, key, value)| *heads as usize * slots * (key + value) as usize * 4).sum()
}
