//! Safetensors files: what is read, and what is refused without reading anything.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use common::{Folder, f32s, host, on_cpu, open, refused, refused_file, safetensors};
use foretoken_model_base::{LoadOptions, Weights};
use half::{bf16, f16};
use proptest::prelude::*;

const ENTRY: &str = r#"{"dtype":"F32","shape":[4],"data_offsets":[0,16]}"#;

fn one(entry: &str, data: &[u8]) -> Vec<u8> {
    safetensors(&format!(r#"{{"t":{entry}}}"#), data)
}

#[test]
fn plain_types_arrive_as_float32() {
    let header = r#"{"__metadata__":{"format":"pt"},
        "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "b":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},
        "c":{"dtype":"BF16","shape":[1,2],"data_offsets":[12,16]},
        "ids":{"dtype":"I32","shape":[2],"data_offsets":[16,24]}}"#;
    let mut data = f32s(&[1.5, -2.0]);
    data.extend([0.25, -8.0].iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()));
    data.extend([0.5, 96.0].iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()));
    data.extend([7i32, 9].iter().flat_map(|v| v.to_le_bytes()));
    let weights = open(&safetensors(header, &data)).unwrap();
    assert_eq!(host(&weights.at("a").tensor(&[2]).unwrap()), [1.5, -2.0]);
    assert_eq!(host(&weights.at("b").tensor(&[2]).unwrap()), [0.25, -8.0]);
    assert_eq!(host(&weights.at("c").tensor(&[1, 2]).unwrap()), [0.5, 96.0]);
    assert_eq!(weights.at("ids").ids().unwrap(), [7, 9]);
    let report = weights.finish(&[]).unwrap();
    assert_eq!((report.found, report.used, report.unused.len()), (4, 4, 0));
    assert_eq!(report.codings, ["BF16", "F16", "F32", "I32"]);
}

#[test]
fn negative_ids_are_refused() {
    let data: Vec<u8> = [3i32, -1].iter().flat_map(|v| v.to_le_bytes()).collect();
    let weights = open(&one(r#"{"dtype":"I32","shape":[2],"data_offsets":[0,8]}"#, &data)).unwrap();
    refused(weights.at("t").ids(), &["t", "id -1"]);
}

#[test]
fn h36_shape_larger_than_its_bytes() {
    let entry = r#"{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}"#;
    refused_file(open(&one(entry, &[0; 4])), &["tensor t", "4000000", "4 bytes"]);
    for (entry, part) in [
        (r#"{"dtype":"F32","shape":[1],"data_offsets":[4,0]}"#, "4..0"),
        (r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#, "0..8"),
        (r#"{"dtype":"F32","shape":[1],"data_offsets":[0,2,4]}"#, "length"),
        (r#"{"dtype":"F33","shape":[1],"data_offsets":[0,4]}"#, "F33"),
        (r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#, "-1"),
        (r#"{"dtype":"F32","shape":[1]}"#, "data_offsets"),
        (r#"{"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,4]}"#, "size"),
        (r#"{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}"#, "size"),
    ] {
        refused_file(open(&one(entry, &[0; 4])), &["tensor t", part]);
    }
}

#[test]
fn h37_overlaps_and_unclaimed_bytes() {
    let two = |b: &str| format!(r#"{{"a":{ENTRY},"b":{{"dtype":"F32","shape":[4],"data_offsets":{b}}}}}"#);
    refused_file(open(&safetensors(&two("[0,16]"), &[0; 16])), &["tensor b", "overlap with a"]);
    refused_file(open(&safetensors(&two("[32,48]"), &[0; 48])), &["tensor b", "hole after a"]);
    refused_file(open(&one(ENTRY, &[0; 32])), &["16 unclaimed bytes after t"]);
    let swapped = format!(r#"{{"b":{{"dtype":"F32","shape":[4],"data_offsets":[16,32]}},"a":{ENTRY}}}"#);
    let data = f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let weights = open(&safetensors(&swapped, &data)).unwrap();
    assert_eq!(host(&weights.at("b").tensor(&[4]).unwrap()), [5.0, 6.0, 7.0, 8.0]);
}

#[test]
fn broken_headers_are_refused() {
    let whole = one(ENTRY, &[0; 16]);
    refused_file(open(&[]), &["0 bytes"]);
    refused_file(open(&whole[..5]), &["5 bytes"]);
    refused_file(open(&whole[..30]), &["header", "left"]);
    refused_file(open(&whole[..whole.len() - 1]), &["tensor t", "15 bytes"]);
    refused_file(open(&[&u64::MAX.to_le_bytes()[..], b"{}"].concat()), &["header", "at most 100000000"]);
    refused_file(open(&safetensors("not json", &[])), &["JSON"]);
    refused_file(open(&safetensors("[]", &[])), &["JSON"]);
    refused_file(open(&safetensors(&"[".repeat(100_000), &[])), &["JSON"]);
    let nested = format!(r#"{{"t":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    refused_file(open(&safetensors(&nested, &[])), &["JSON"]);
    refused_file(open(&[&2u64.to_le_bytes()[..], &[0xFF, 0xFE]].concat()), &["UTF-8"]);
    let twice = format!(r#"{{"t":{ENTRY},"t":{ENTRY}}}"#);
    refused_file(open(&safetensors(&twice, &[0; 16])), &["tensor t", "two"]);
}

#[test]
fn a_type_that_nothing_reads_is_named_when_asked_for() {
    let weights = open(&one(r#"{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}"#, &[0; 4])).unwrap();
    refused(weights.at("t").tensor(&[4]), &["t", "F8_E4M3"]);
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    let weights = open(&one(ENTRY, &[0; 16])).unwrap();
    refused(weights.at("model").at("layers").at(3).tensor(&[4]), &["model.layers.3", "model.safetensors"]);
    refused(weights.at("t").tensor(&[2, 2]), &["t", "[2, 2]", "[4]", "config"]);
    assert_eq!(weights.report(&[]).missing, ["model.layers.3"]);
    refused(open(&one(ENTRY, &[0; 16])).unwrap().finish(&[]), &["tensor t", "does not use"]);
    let report = open(&one(ENTRY, &[0; 16])).unwrap().finish(&["t"]).unwrap();
    assert_eq!(report.ignored, ["t"]);
}

#[test]
fn h42_index_names_a_shard_that_is_not_there() {
    let folder = Folder::new();
    let shard = |name: &str| safetensors(&format!(r#"{{"{name}":{ENTRY}}}"#), &f32s(&[1.0, 2.0, 3.0, 4.0]));
    let index = r#"{"metadata":{},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}}"#;
    folder.write("model.safetensors.index.json", index.as_bytes());
    folder.write("one.safetensors", &shard("a"));
    let load = || Weights::open(&folder.path(""), LoadOptions::cpu());
    refused_file(load(), &["two.safetensors", "incomplete"]);
    folder.write("two.safetensors", b"");
    refused_file(load(), &["two.safetensors", "0 bytes", "incomplete"]);
    folder.write("two.safetensors", &shard("c"));
    refused_file(load(), &["tensor b", "two.safetensors", "incomplete"]);
    folder.write("two.safetensors", &shard("a"));
    refused_file(load(), &["tensor a", "second"]);
    folder.write("two.safetensors", &shard("b"));
    assert_eq!(load().unwrap().names().collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_bad_index_is_refused() {
    let folder = Folder::new();
    for (index, part) in [
        (r#"{"weight_map":{"a":"../secret.safetensors"}}"#, "beside the index"),
        (r#"{"weight_map":{"a":"/etc/passwd"}}"#, "beside the index"),
        (r#"{"weight_map":{"a":3}}"#, "file names"),
        (r#"{"weight_map":{}}"#, "weight_map"),
        ("{", "JSON"),
    ] {
        folder.write("model.safetensors.index.json", index.as_bytes());
        refused_file(Weights::open(&folder.path(""), LoadOptions::cpu()), &[part]);
    }
    refused_file(Weights::open(Folder::new().path("").as_path(), LoadOptions::cpu()), &["neither"]);
    refused(Weights::open(&folder.path("nothing.safetensors"), LoadOptions::cpu()), &["nothing.safetensors"]);
}

#[test]
fn draft_heads_are_reported_and_not_an_error() {
    let folder = Folder::new();
    folder.write("model.safetensors", &safetensors(&format!(r#"{{"mtp.fc.weight":{ENTRY}}}"#), &[0; 16]));
    folder.write("mtp-seq.safetensors", b"");
    let weights = Weights::open(&folder.path(""), LoadOptions::cpu()).unwrap();
    let report = weights.finish(&[]).unwrap();
    assert!(report.draft.inside);
    assert_eq!(report.draft.files, [folder.path("mtp-seq.safetensors")]);
    assert_eq!(report.ignored, ["mtp.fc.weight"]);
}

/// Opens bytes and reads whatever they declare; any outcome but a panic is right.
fn survive(bytes: &[u8]) {
    if let Ok(weights) = open(bytes) {
        for name in weights.names().map(str::to_owned).collect::<Vec<_>>() {
            let shape = weights.shape(&name).unwrap_or_default().to_vec();
            let _ = (weights.at(&name).tensor(&shape), weights.at(&name).ids());
        }
    }
}

fn valid() -> Vec<u8> {
    let header = r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]},"c":{"dtype":"U32","shape":[2],"data_offsets":[24,32]}}"#;
    safetensors(header, &[7; 32])
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        on_cpu();
        survive(&bytes);
        let mut framed = (bytes.len() as u64).to_le_bytes().to_vec();
        framed.extend(&bytes);
        survive(&framed);
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
            // Digits turn into digits: sizes and offsets change while the header stays readable.
            bytes[at] = if bytes[at].is_ascii_digit() { b'0' + value % 10 } else { value };
        }
        if truncate {
            bytes.truncate(cut.index(bytes.len()));
        }
        survive(&bytes);
    }

    #[test]
    fn changed_digits_never_read_outside(
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..10u8), 1..4),
    ) {
        let mut bytes = valid();
        let digits: Vec<_> = (8..bytes.len() - 32).filter(|&i| bytes[i].is_ascii_digit()).collect();
        for (at, value) in changes {
            bytes[digits[at.index(digits.len())]] = b'0' + value;
        }
        survive(&bytes);
    }
}
