//! The golden models of the families with norms on queries, sliding windows and recurrent layers.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use common::{F32_TOLERANCE, difference, expected, golden, greedy, host, logits};

/// Chunks that cross the shapes of prefill, single steps and verification, and a window's wrap.
const CHUNKS: [usize; 5] = [19, 1, 5, 1, 14];

fn check(name: &str) {
    let loaded = golden(name);
    let model = loaded.model.as_ref();
    let want = expected(&format!("golden/{name}/expected.safetensors"));
    let tokens = want.at("tokens").ids().unwrap();
    let reference = host(&want.at("logits").tensor(&[40, 160]).unwrap());
    for chunks in [&[40][..], &CHUNKS, &[1; 40]] {
        let off = difference(&host(&logits(model, &tokens, chunks)), &reference);
        println!("{name} in chunks {chunks:?}: largest difference {off:.1e}");
        assert!(off <= F32_TOLERANCE, "{name} in chunks {chunks:?}: {off} > {F32_TOLERANCE}");
    }
    let ids = want.at("greedy_after_12").ids().unwrap();
    assert_eq!(greedy(model, &tokens[..12], ids.len()), ids, "{name}: greedy ids");
}

#[test]
fn qwen3_matches_the_reference() {
    check("qwen3");
}

#[test]
fn gemma3_matches_the_reference() {
    check("gemma3");
}

#[test]
fn gemma4_matches_the_reference() {
    check("gemma4");
}

#[test]
fn qwen3_5_matches_the_reference() {
    check("qwen3_5");
}
