//! Packed rows: the stated error, exact rollback of what was packed, and clear refusals.

use foretoken_cache::{CacheError, CacheSet, KvCache, KvFormat, Layer, LayerCache, QuantizedCache};
use mlx_rs::{Array, Dtype, ops::zeros_dtype};

use crate::common::{cpu, host};

const HEADS: usize = 2;
const SIZE: usize = 64;
/// What a float32 sum may add to an error that is stated in real numbers, as a share of the largest.
const ROUNDING: f32 = 1e-6;

/// Numbers in ±1 from a fixed linear congruential sequence, `[1,2,L,64]`.
fn noise(seed: u32, rows: usize) -> Array {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let numbers: Vec<f32> = (0..HEADS * rows * SIZE).map(|_| next()).collect();
    Array::from_slice(&numbers, &[1, HEADS as i32, rows as i32, SIZE as i32])
}

fn packed(bits: usize, group: usize) -> QuantizedCache {
    QuantizedCache::new(KvFormat::new(bits, group).expect("a known format"))
}

fn push(cache: &mut QuantizedCache, seed: u32, rows: usize) {
    cache.append(&noise(seed, rows), &noise(seed + 1, rows)).expect("rows that fit");
}

fn holds(cache: &QuantizedCache) -> Vec<f32> {
    let view = cache.view().expect("a view").expect("rows");
    [host(&view.keys), host(&view.values)].concat()
}

#[test]
fn the_error_is_at_most_one_step_of_each_group() {
    cpu();
    for (bits, group) in [(8, 32), (8, 64), (4, 32), (4, 64)] {
        let mut cache = packed(bits, group);
        let keys = noise(3, 50);
        let view = cache.append(&keys, &noise(4, 50)).expect("fits");
        let (own, back) = (host(&keys), host(&view.keys));
        let mut worst = (0.0f32, 0.0f32);
        for (own, back) in own.chunks(group).zip(back.chunks(group)) {
            let most = own.iter().copied().fold(f32::MIN, f32::max);
            let step = (most - own.iter().copied().fold(f32::MAX, f32::min)) / ((1 << bits) - 1) as f32;
            for (own, back) in own.iter().zip(back) {
                let error = (own - back).abs();
                assert!(error <= step + ROUNDING, "{error} for a step of {step}, {bits} bits");
                worst = (worst.0.max(error / step), worst.1.max(error));
            }
        }
        println!("{bits} bits, group {group}: {} of a step, {} at most", worst.0, worst.1);
        assert!(worst.1 > 0.0, "nothing was packed");
    }
}

#[test]
fn packed_rows_take_the_stated_memory() {
    cpu();
    let mut full = KvCache::new();
    full.append(&noise(1, 10), &noise(2, 10)).expect("fits");
    for (bits, group) in [(8, 64), (4, 32)] {
        let mut cache = packed(bits, group);
        push(&mut cache, 1, 10);
        let per_number = bits as f64 / 8.0 + 2.0 * 4.0 / group as f64;
        assert_eq!(cache.bytes() as f64, full.bytes() as f64 * per_number / 4.0);
        assert_eq!((cache.format().bits(), cache.format().group()), (bits, group));
    }
}

#[test]
fn rejected_rows_leave_the_packed_rows_bit_for_bit() {
    cpu();
    let (mut cache, mut twin) = (packed(4, 32), packed(4, 32));
    push(&mut cache, 1, 20);
    push(&mut twin, 1, 20);
    cache.begin();
    push(&mut cache, 50, 5);
    cache.rewind(20).expect("back");
    cache.end();
    assert_eq!(holds(&cache), holds(&twin));
    push(&mut cache, 60, 300);
    push(&mut twin, 60, 300);
    assert_eq!(holds(&cache), holds(&twin), "also after growing");
}

#[test]
fn snapshots_restore_bit_for_bit_and_split_anywhere() {
    cpu();
    let mut cache = packed(8, 64);
    push(&mut cache, 1, 16);
    let before = holds(&cache);
    let snapshot = cache.snapshot(4..16).expect("live rows");
    cache.rewind(2).expect("back");
    push(&mut cache, 70, 20);
    let row = cache.bytes() / 256;
    assert_eq!((snapshot.bytes(), cache.snapshot_bytes()), (12 * row, 12 * row));
    let (front, back) = snapshot.split(9).expect("inside");
    drop(snapshot);
    cache.rewind(0).expect("back");
    push(&mut cache, 1, 16);
    cache.rewind(4).expect("back");
    cache.restore(&[&front, &back]).expect("no gap");
    assert_eq!(holds(&cache), before);
    drop((front, back));
    assert_eq!(cache.snapshot_bytes(), 0);
}

#[test]
fn packed_snapshots_do_not_fit_other_formats() {
    cpu();
    let mut cache = packed(8, 64);
    push(&mut cache, 1, 4);
    let snapshot = cache.snapshot(0..4).expect("live rows");
    let error = packed(4, 64).restore(&[&snapshot]).expect_err("other bits");
    assert_eq!(
        error.to_string(),
        "rows of a snapshot: expected rows of 4 bits in groups of 64, got rows of 8 bits in groups of 64"
    );
    assert!(matches!(KvCache::new().restore(&[&snapshot]), Err(CacheError::Kind { .. })));
    let mut sibling = packed(8, 64);
    sibling.restore(&[&snapshot]).expect("the same format");
    assert_eq!(holds(&sibling), holds(&cache));
    let narrow = zeros_dtype(&[1, 2, 1, 32], Dtype::Float32).expect("a small array");
    packed(8, 32).append(&narrow, &narrow).expect("a head of 32");
    assert!(matches!(sibling.append(&narrow, &narrow), Err(CacheError::Shape { .. })));
}

#[test]
fn formats_and_head_sizes_that_are_not_served_are_named() {
    cpu();
    let error = KvFormat::new(3, 64).expect_err("3 bits");
    assert_eq!(error.to_string(), "bits of quantized keys and values: expected 4 or 8, got 3");
    let error = KvFormat::new(8, 128).expect_err("128");
    assert_eq!(error.to_string(), "group of quantized keys and values: expected 32 or 64, got 128");
    let odd = zeros_dtype(&[1, 2, 1, 48], Dtype::Float32).expect("a small array");
    let mut cache = packed(8, 32);
    let error = cache.append(&odd, &odd).expect_err("48 is not a multiple of 32");
    assert_eq!(
        error.to_string(),
        "keys and values to quantize: expected shape [1,K,L,D] with D in whole groups of 32, got D = 48"
    );
    assert_eq!((cache.offset(), cache.bytes()), (0, 0));
}

#[test]
fn rows_keep_their_type() {
    cpu();
    let mut cache = packed(8, 64);
    let half = |rows| noise(1, rows).as_dtype(Dtype::Bfloat16).expect("casts");
    let view = cache.append(&half(3), &half(3)).expect("fits");
    assert_eq!((view.keys.dtype(), view.values.dtype()), (Dtype::Bfloat16, Dtype::Bfloat16));
    let error = cache.append(&noise(1, 1), &noise(1, 1)).expect_err("float32");
    assert_eq!(error.to_string(), "keys: expected Bfloat16, got Float32; cast the rows first");
}

#[test]
fn a_reader_that_needs_the_rows_as_they_came_is_refused() {
    cpu();
    let mut cache = packed(4, 64);
    push(&mut cache, 1, 4);
    let mut full = KvCache::new();
    full.append(&noise(1, 4), &noise(2, 4)).expect("fits");
    let set = CacheSet::new(vec![Layer::Quantized(cache), Layer::Kv(full)]);
    let error = set.layers()[0].raw_view().expect_err("packed");
    assert_eq!(
        error.to_string(),
        "raw view: expected a layer of keys and values as they came, got one of kind quantized full attention"
    );
    assert!(set.layers()[0].get().view().expect("a view").is_some(), "unpacked copies are served");
    assert!(set.layers()[1].raw_view().expect("as they came").is_some());
}

#[test]
fn printing_packed_rows_evaluates_nothing() {
    cpu();
    let cache = packed(4, 64);
    let want = "QuantizedCache { format: KvFormat { bits: 4, group: 64 }, offset: 0, bytes: 0, .. }";
    assert_eq!(format!("{cache:?}"), want);
}
