//! GGUF files: every type that is read, and files that are refused.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use std::path::Path;

use common::{Folder, Gguf, f32s, host, on_cpu, refused, refused_file, text};
use foretoken_model_base::{
    LoadOptions, Result, Weights,
    weights::{ComputeType, GgufFile, Matrix, Renamed},
};
use half::{bf16, f16};
use mlx_rs::Array;
use proptest::prelude::*;

const F32: u32 = 0;

fn open(file: &Gguf) -> Result<GgufFile> {
    let folder = Folder::new();
    GgufFile::open(&folder.write("m.gguf", &file.bytes()))
}

fn weights(file: &Gguf) -> Weights {
    open(file).unwrap().weights(LoadOptions::cpu(), |_| None).unwrap()
}

#[test]
fn h38_dimension_products_that_wrap() {
    for (dims, data) in [
        (&[1 << 32, 1 << 32][..], 0),
        (&[(1 << 63) + 2, 2], 16),
        (&[1 << 16, 1 << 16, 1 << 16, 1 << 16], 0),
        (&[1 << 61, 4], 64),
        (&[1 << 62, 1], 64),
    ] {
        let file = Gguf::new().tensor("wrapped", dims, F32, &vec![0; data]);
        refused_file(open(&file), &["tensor wrapped"]);
    }
    refused_file(open(&Gguf::new().tensor("empty", &[4, 0], F32, &[])), &["tensor empty", "above 0"]);
    for dims in [&[][..], &[1, 1, 1, 1, 1]] {
        refused_file(open(&Gguf::new().tensor("rank", dims, F32, &[0; 4])), &["tensor rank", "dimensions"]);
    }
}

#[test]
fn h39_offsets_outside_the_file() {
    let first = Gguf::new().tensor("first", &[8], F32, &[0; 32]);
    // The data is 64 bytes long, and the second tensor needs 32 of them.
    let file = |offset| {
        let mut file = first.clone().tensor("filler", &[8], F32, &[0; 32]).entry("second", &[8], F32, offset);
        file.alignment = 32;
        file
    };
    for offset in [64, 0u64.wrapping_sub(64), 0u64.wrapping_sub(32), u64::MAX / 64 * 64] {
        refused_file(open(&file(offset)), &["tensor second"]);
    }
    let bytes = first.clone().tensor("second", &[8], F32, &[0; 32]).bytes();
    let folder = Folder::new();
    let short = folder.write("short.gguf", &bytes[..bytes.len() - 1]);
    refused_file(GgufFile::open(&short), &["tensor second", "incomplete"]);
    let whole = GgufFile::open(&folder.write("whole.gguf", &bytes)).unwrap();
    assert_eq!(whole.weights(LoadOptions::cpu(), |_| None).unwrap().names().count(), 2);
}

#[test]
fn overlapping_misaligned_and_repeated_tensors_are_refused() {
    let first = Gguf::new().tensor("first", &[16], F32, &[0; 64]);
    refused_file(open(&first.clone().entry("second", &[8], F32, 32)), &["tensor second", "overlap"]);
    refused_file(open(&first.clone().entry("second", &[8], F32, 16)), &["tensor second", "multiple of 32"]);
    refused_file(open(&first.tensor("first", &[8], F32, &[0; 32])), &["tensor first", "two"]);
}

#[test]
fn h43_q4_1_starts_its_nibbles_after_four_bytes() {
    let hex = "00 38 00 bc f0 e1 d2 c3 b4 a5 96 87 78 69 5a 4b 3c 2d 1e 0f";
    let block: Vec<u8> = hex.split(' ').map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
    let values = host(&weights(&Gguf::new().tensor("t", &[32], 3, &block)).at("t").tensor(&[32]).unwrap());
    let ascending: Vec<f32> = (0..16).map(|i| i as f32 * 0.5 - 1.0).collect();
    let descending: Vec<f32> = ascending.iter().rev().copied().collect();
    assert_eq!(values[..16], ascending);
    assert_eq!(values[16..], descending);
}

#[test]
fn h43_every_block_type_matches_the_reference() {
    let data = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/gguf-blocks.safetensors"));
    on_cpu();
    let bytes = std::fs::read(data).unwrap();
    let fixture = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let types = [("Q4_0", 2), ("Q4_1", 3), ("Q5_0", 6), ("Q5_1", 7), ("Q8_0", 8), ("Q4_K", 12), ("Q6_K", 14)];
    for (name, kind) in types {
        let blocks = fixture.tensor(&format!("{name}.bytes")).unwrap();
        let want = fixture.tensor(&format!("{name}.values")).unwrap();
        let want: Vec<f32> = want.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let file = Gguf::new().tensor("t", &[want.len() as u64], kind, blocks.data());
        let got = host(&weights(&file).at("t").tensor(&[want.len()]).unwrap());
        let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        println!("{name}: largest difference {off:.1e}");
        assert!(off <= BLOCK_TOLERANCE, "{name}: {off}");
    }
}

#[test]
fn blocks_that_stay_packed_keep_their_values() {
    on_cpu();
    let keep = LoadOptions { expand: false, compute: ComputeType::F32, ..LoadOptions::gpu() };
    for (name, kind, size) in [("Q4_0", 2, 18), ("Q4_1", 3, 20), ("Q8_0", 8, 34)] {
        // Two rows of two blocks; finite scales, all kinds of words.
        let mut data: Vec<u8> = (0..4 * size).map(|i| (i * 89 + 7) as u8).collect();
        data.chunks_mut(size).for_each(|block| {
            block[..2].copy_from_slice(&f16::from_f32(0.25).to_le_bytes());
            if kind == 3 {
                block[2..4].copy_from_slice(&f16::from_f32(-1.5).to_le_bytes());
            }
        });
        let file = Gguf::new().tensor("m.weight", &[64, 2], kind, &data);
        let want = host(&weights(&file).at("m.weight").tensor(&[2, 64]).unwrap());
        for heads in [None, Some(1)] {
            let rename = |name: &str| Some(Renamed { name: name.into(), interleaved_heads: heads });
            let kept = open(&file).unwrap().weights(keep, rename).unwrap();
            let Matrix::Affine(packed) = kept.at("m").matrix(2, 64).unwrap() else { panic!("expanded") };
            let ids = Array::from_slice(&[0u32, 1], &[2]);
            assert_eq!(host(&packed.rows(&ids).unwrap()), want, "{name}");
        }
    }
}

/// The reference multiplies in another order; values are below 300.
const BLOCK_TOLERANCE: f32 = 1e-4;

#[test]
fn plain_types_match() {
    let values = [0.5f32, -3.0, 96.0, 0.0];
    let halves: Vec<u8> = values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
    let brains: Vec<u8> = values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
    let file = Gguf::new()
        .tensor("f32", &[2, 2], F32, &f32s(&values))
        .tensor("f16", &[4], 1, &halves)
        .tensor("bf16", &[4], 30, &brains);
    let weights = weights(&file);
    assert_eq!(host(&weights.at("f32").tensor(&[2, 2]).unwrap()), values);
    assert_eq!(host(&weights.at("f16").tensor(&[4]).unwrap()), values);
    assert_eq!(host(&weights.at("bf16").tensor(&[4]).unwrap()), values);
}

#[test]
fn h43_other_types_are_refused_by_name() {
    for (kind, name) in [(10, "Q2_K"), (11, "Q3_K"), (13, "Q5_K"), (23, "IQ4_XS"), (39, "MXFP4")] {
        let weights = weights(&Gguf::new().tensor("t", &[256], kind, &[0; 256]));
        refused(weights.at("t").tensor(&[256]), &["tensor t", name, "not supported"]);
    }
    refused_file(open(&Gguf::new().tensor("t", &[32], 4, &[0; 64])), &["tensor t", "type 4"]);
    refused_file(open(&Gguf::new().tensor("t", &[32], 999, &[0; 64])), &["tensor t", "type 999"]);
    refused_file(open(&Gguf::new().tensor("t", &[16, 2], 3, &[0; 64])), &["tensor t", "whole blocks of 32"]);
}

#[test]
fn rows_of_interleaved_heads_come_back_half_split() {
    // Two heads of four rows; row values are their own numbers.
    let file = Gguf::new().tensor("q", &[1, 8], F32, &f32s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]));
    let rename = |heads| move |_: &str| Some(Renamed { name: "q".into(), interleaved_heads: Some(heads) });
    let load = |heads| open(&file).unwrap().weights(LoadOptions::cpu(), rename(heads)).unwrap();
    let rows = load(2).at("q").tensor(&[8, 1]).unwrap();
    assert_eq!(host(&rows), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    refused(load(3).at("q").tensor(&[8, 1]), &["q", "3 heads"]);
    let twice = Gguf::new().tensor("a", &[1], F32, &[0; 4]).tensor("b", &[1], F32, &[0; 4]);
    let both = open(&twice).unwrap().weights(LoadOptions::cpu(), rename(1));
    refused_file(both, &["becomes q"]);
}

#[test]
fn metadata_of_every_kind_is_read() {
    let strings = [text(b"a"), text(&[0xFF, b'b']), text(b"c\0d")].concat();
    let ints: Vec<u8> = [1i32, -2].iter().flat_map(|v| v.to_le_bytes()).collect();
    let file = Gguf::new()
        .pair("u8", 0, &[200])
        .pair("i8", 1, &[0xFF])
        .pair("u32", 4, &7u32.to_le_bytes())
        .pair("f32", 6, &1.5f32.to_le_bytes())
        .pair("bool", 7, &[1])
        .pair("str", 8, &text("größe".as_bytes()))
        .pair("u64", 10, &u64::MAX.to_le_bytes())
        .pair("f64", 12, &0.25f64.to_le_bytes())
        .list("strs", 8, 3, &strings)
        .list("ints", 5, 2, &ints)
        .list("floats", 6, 2, &f32s(&[1.0, -1.0]))
        .list("none", 4, 0, &[]);
    let opened = open(&file).unwrap();
    let meta = opened.metadata();
    assert_eq!((meta.get_u32("u8"), meta.get_u32("i8"), meta.get_u32("u32")), (Some(200), None, Some(7)));
    assert_eq!((meta.get_u32("u64"), meta.get_u64("u64")), (None, Some(u64::MAX)));
    assert_eq!(
        (meta.get_f32("f32"), meta.get_f32("f64"), meta.get_f32("u32")),
        (Some(1.5), Some(0.25), Some(7.0))
    );
    assert_eq!((meta.get_bool("bool"), meta.get_bool("u8")), (Some(true), None));
    assert_eq!((meta.get_str("str"), meta.get_str("absent")), (Some("größe"), None));
    assert_eq!(meta.get_strings("strs").unwrap(), ["a", "\u{FFFD}b", "c\0d"]);
    assert_eq!(meta.get_i32s("ints"), Some(vec![1, -2]));
    assert_eq!((meta.get_i32s("floats"), meta.get_f32s("floats")), (None, Some(vec![1.0, -1.0])));
    assert_eq!(meta.get_i32s("none"), Some(vec![]));
    assert_eq!(meta.keys().count(), 12);
}

#[test]
fn broken_headers_are_refused() {
    let plain = Gguf::new().tensor("t", &[1], F32, &[0; 4]);
    refused_file(open(&Gguf { magic: *b"GGML", ..plain.clone() }), &["magic"]);
    for version in [0, 1, 4, 3 << 24] {
        refused_file(open(&Gguf { version, ..plain.clone() }), &["version"]);
    }
    let folder = Folder::new();
    let file = |bytes: &[u8]| GgufFile::open(&folder.write("m.gguf", bytes));
    refused_file(file(&[]), &["magic"]);
    for (at, part) in [(8, "tensor count"), (16, "metadata count")] {
        let mut bytes = plain.bytes();
        bytes[at..at + 8].copy_from_slice(&(1u64 << 60).to_le_bytes());
        refused_file(file(&bytes), &[part]);
    }
    let long = Gguf::new().pair("k", 8, &u64::MAX.to_le_bytes());
    refused_file(open(&long), &["k", "left"]);
    refused_file(open(&Gguf::new().list("k", 10, u64::MAX / 8 + 1, &[])), &["k", "at most"]);
    refused_file(open(&Gguf::new().list("k", 8, 1 << 40, &[])), &["k", "at most"]);
    refused_file(open(&Gguf::new().pair("k", 13, &[0; 8])), &["metadata k", "type 13"]);
    refused_file(open(&Gguf::new().list("k", 9, 1, &[0; 24])), &["metadata k", "nested"]);
    refused_file(open(&Gguf::new().pair("k", 0, &[1]).pair("k", 0, &[1])), &["metadata k", "two"]);
    for alignment in [0u32, 3, 1 << 21] {
        let file = plain.clone().pair("general.alignment", 4, &alignment.to_le_bytes());
        refused_file(open(&file), &["general.alignment", "power of two"]);
    }
}

#[test]
fn another_alignment_is_followed() {
    let mut file = Gguf::new();
    file.alignment = 128;
    let file = file
        .pair("general.alignment", 4, &128u32.to_le_bytes())
        .tensor("a", &[1], F32, &f32s(&[1.0]))
        .tensor("b", &[1], F32, &f32s(&[2.0]));
    assert_eq!(host(&weights(&file).at("b").tensor(&[1]).unwrap()), [2.0]);
}

/// Opens bytes and reads whatever they declare; any outcome but a panic is right.
fn survive(bytes: &[u8]) {
    let folder = Folder::new();
    let Ok(file) = GgufFile::open(&folder.write("m.gguf", bytes)) else { return };
    let count = file.metadata().keys().count();
    assert!(count <= bytes.len());
    let Ok(weights) = file.weights(LoadOptions::cpu(), |_| None) else { return };
    for name in weights.names().map(str::to_owned).collect::<Vec<_>>() {
        let shape = weights.shape(&name).unwrap_or_default().to_vec();
        let _ = weights.at(&name).tensor(&shape);
    }
}

fn valid() -> Vec<u8> {
    Gguf::new()
        .pair("general.architecture", 8, &text(b"llama"))
        .list("tokens", 8, 2, &[text(b"a"), text(b"b")].concat())
        .list("types", 5, 2, &[0; 8])
        .tensor("a", &[32, 2], 3, &[1; 40])
        .tensor("b", &[3], F32, &[0; 12])
        .bytes()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn random_bytes_after_the_magic_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        survive(&bytes);
        survive(&[b"GGUF\x03\0\0\0", &bytes[..]].concat());
        survive(&[b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0", &bytes[..]].concat());
    }

    #[test]
    fn mutations_of_a_valid_file_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        truncate in any::<bool>(),
    ) {
        let mut bytes = valid();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if truncate {
            bytes.truncate(cut.index(bytes.len()));
        }
        survive(&bytes);
    }
}
