//! The POS toy: rows whose every number tells which token and layer wrote them.

use foretoken_cache::{
    CacheSet, KvCache, Layer, LayerCache, LayerSnapshot, Mask, RecurrentCache, RecurrentState, Snapshot, View,
};
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

/// Appends tokens to a layer and returns what each of them saw, after the mask.
pub(crate) fn sees(cache: &mut dyn LayerCache, tokens: &[u32]) -> Vec<Vec<u32>> {
    let (keys, values) = rows(0, tokens);
    let view = cache.append(&keys, &values).expect("rows that fit");
    visible(&view, tokens.len())
}

/// What each of the last `queries` tokens in a view of layer 0 may see.
pub(crate) fn visible(view: &View, queries: usize) -> Vec<Vec<u32>> {
    let keys = seen(0, view);
    let bools = match &view.mask {
        Mask::Bool(mask) => {
            assert_eq!(mask.shape(), [queries as i32, keys.len() as i32]);
            mask.contiguous().expect("contiguous").to_vec_exact::<bool>().expect("flags")
        }
        _ => Vec::new(),
    };
    let allowed = |query: usize, key: usize| match &view.mask {
        Mask::All => queries == 1,
        Mask::Causal => key <= keys.len() - queries + query,
        _ => bools[query * keys.len() + key],
    };
    let row = |query| (0..keys.len()).filter(|key| allowed(query, *key)).map(|key| keys[key]).collect();
    (0..queries).map(row).collect()
}

/// One step of the SUM toy: state' = (3·state + token + 1) mod 97.
pub(crate) fn sum(state: u32, token: u32) -> u32 {
    (3 * state + token + 1) % 97
}

/// The last three tokens, zeros where there were fewer, and the SUM state of all of them.
pub(crate) fn folded(tokens: &[u32]) -> (Vec<u32>, u32) {
    let padded = [&[0; TAIL][..], tokens].concat();
    (padded[padded.len() - TAIL..].to_vec(), tokens.iter().fold(0, |state, token| sum(state, *token)))
}

/// Rows of the convolution tail: kernel 4.
pub(crate) const TAIL: usize = 3;

/// A layer's state as numbers on the host.
pub(crate) fn state_of(state: &RecurrentState) -> (Vec<u32>, u32) {
    let numbers = |array: &Option<Array>| array.as_ref().map(host).unwrap_or(vec![0.0; TAIL]);
    (numbers(&state.tail).iter().map(|n| *n as u32).collect(), numbers(&state.state)[0] as u32)
}

/// Folds tokens into a recurrent layer, as a model's forward would: from the layer's state alone, handing
/// over the states after the rows that the layer asks for.
pub(crate) fn fold(cache: &mut RecurrentCache, tokens: &[u32]) {
    let (mut tail, mut sum_of_all) = state_of(&cache.state().expect("a state"));
    let mut states = Vec::new();
    let stops = cache.stops(tokens.len());
    for (index, token) in tokens.iter().enumerate() {
        tail.remove(0);
        tail.push(*token);
        sum_of_all = sum(sum_of_all, *token);
        if stops.contains(&(index + 1)) {
            states.push(folded_arrays(&tail, sum_of_all));
        }
    }
    cache.advance(tokens.len(), states).expect("the states asked for");
}

fn folded_arrays(tail: &[u32], sum: u32) -> RecurrentState {
    let tail: Vec<f32> = tail.iter().map(|token| *token as f32).collect();
    RecurrentState {
        tail: Some(Array::from_slice(&tail, &[1, TAIL as i32, 1])),
        state: Some(Array::from_slice(&[sum as f32], &[1, 1, 1, 1])),
    }
}
