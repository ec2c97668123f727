//! The golden models: every logit and the greedy ids of the Python reference.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use common::{F32_TOLERANCE, Q4_TOLERANCE, difference, expected, golden, greedy, host, logits};

/// Chunks that cross the shapes of prefill, single steps and verification.
const CHUNKS: [usize; 5] = [19, 1, 5, 1, 14];

fn check(name: &str, tolerance: f32) {
    let loaded = golden(name);
    let model = loaded.model.as_ref();
    let want = expected(&format!("golden/{name}/expected.safetensors"));
    let tokens = want.at("tokens").ids().unwrap();
    let reference = host(&want.at("logits").tensor(&[40, 160]).unwrap());
    for chunks in [&[40][..], &CHUNKS] {
        let off = difference(&host(&logits(model, &tokens, chunks)), &reference);
        println!("{name} in chunks {chunks:?}: largest difference {off:.1e}");
        assert!(off <= tolerance, "{name} in chunks {chunks:?}: {off} > {tolerance}");
    }
    let ids = want.at("greedy_after_12").ids().unwrap();
    assert_eq!(greedy(model, &tokens[..12], ids.len()), ids, "{name}: greedy ids");
}

#[test]
fn llama_matches_the_reference() {
    check("llama", F32_TOLERANCE);
}

#[test]
fn llama_with_biases_and_scaled_rotation_matches_the_reference() {
    check("llama-rope3", F32_TOLERANCE);
}

#[test]
fn llama_packed_in_four_bits_matches_the_reference() {
    check("llama-q4", Q4_TOLERANCE);
}
