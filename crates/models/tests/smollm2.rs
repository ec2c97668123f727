//! SmolLM2 from its GGUF file against the reference's hidden states and ids.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use common::{F32_TOLERANCE, difference, expected, host, on_cpu, workspace};
use foretoken_model_base::{Batch, LoadOptions};
use foretoken_models::load;

#[test]
fn smollm2_gguf_matches_the_reference() {
    on_cpu();
    let file = workspace("models/fetched/SmolLM2-135M-Instruct.Q4_1.gguf");
    let loaded = load(&file, LoadOptions::cpu()).unwrap();
    assert_eq!((loaded.report.used, loaded.report.found), (272, 272));
    assert_eq!(loaded.report.codings, ["F32", "Q4_1", "Q8_0"]);

    let facts = loaded.model.facts();
    assert_eq!((facts.vocabulary, facts.context_length, facts.layers), (49152, 8192, 30));
    assert_eq!((facts.width, facts.heads, facts.kv_heads, facts.head_size), (576, 9, 3, 64));
    assert_eq!((facts.rope_base, facts.norm_epsilon), (100_000.0, 1e-5));
    assert_eq!(facts.end_tokens, [2]);
    let gguf = loaded.gguf.as_ref().expect("metadata is handed on");
    assert_eq!(gguf.get_strings("tokenizer.ggml.tokens").map(<[_]>::len), Some(49152));
    assert_eq!(gguf.get_i32s("tokenizer.ggml.token_type").map(|t| t.len()), Some(49152));
    assert!(gguf.get_str("tokenizer.chat_template").is_some_and(|t| t.contains("im_start")));

    let want = expected("golden/smollm2-135m-mtp/golden-seq.safetensors");
    let tokens = want.at("tokens").ids().unwrap();
    let mut caches = loaded.model.make_caches();
    let batch = Batch::from_ids(&tokens, 0).unwrap();
    let hidden = loaded.model.forward(&batch, &mut [&mut caches]).unwrap();
    let states = host(&want.at("target_hidden").tensor(&[96, 576]).unwrap());
    let off = difference(&host(&hidden.last), &states);
    println!("largest difference of hidden states {off:.1e}");
    assert!(off <= F32_TOLERANCE, "{off}");

    let logits = loaded.model.unembed(&hidden.last).unwrap();
    let best = mlx_rs::ops::indexing::argmax_axis(&logits, -1, None).unwrap();
    let ids = best.try_as_slice::<u32>().unwrap();
    assert_eq!(ids, want.at("target_top_id").ids().unwrap());
}
