//! The command line against the golden models: ids, logits and the shapes of the JSON.

mod support;

use serde_json::Value;
use support::*;
use tempfile::TempDir;

/// Largest difference of logits, as a share of the largest logit.
const LOGIT_TOLERANCE: f32 = 1e-4;
/// The same for 4-bit weights.
const Q4_LOGIT_TOLERANCE: f32 = 1e-3;
/// Largest difference of log probabilities between two runs of one model.
const LOGPROB_TOLERANCE: f64 = 1e-4;

const MODELS: [(&str, f32); 3] =
    [("llama", LOGIT_TOLERANCE), ("llama-rope3", LOGIT_TOLERANCE), ("llama-q4", Q4_LOGIT_TOLERANCE)];

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

fn greedy(model: &str, more: &[&str]) -> Value {
    let prompt = comma(&golden_ids(model, "tokens")[..12]);
    let args = [&["--prompt-ids", &prompt, "--max-tokens", "24", "--json"], more].concat();
    json_of(with_model("generate", &golden(model), &args))
}

#[test]
fn greedy_ids_equal_the_reference() {
    for (model, _) in MODELS {
        let printed = greedy(model, &[]);
        assert_eq!(ids(&printed["ids"]), golden_ids(model, "greedy_after_12"), "{model}");
        assert_eq!(printed["prompt_ids"], serde_json::json!(golden_ids(model, "tokens")[..12]));
        assert_eq!(printed["finish_reason"], "length");
        assert_eq!(printed["usage"]["completion_tokens"], 24);
        assert_eq!(printed["text"], Value::Null, "no tokenizer, no text");
    }
}

#[test]
fn score_writes_the_logits_of_the_reference() {
    for (model, tolerance) in MODELS {
        let folder = TempDir::new().expect("a temporary folder");
        let file = folder.path().join("logits.safetensors");
        let prompt = comma(&golden_ids(model, "tokens"));
        let file_text = file.to_str().expect("text");
        let args = ["--prompt-ids", &prompt, "--json", "--logits", file_text];
        let printed = json_of(with_model("score", &golden(model), &args));
        let (shape, got) = tensor(&file, "logits");
        let (right_shape, right) = tensor(&golden(model).join("expected.safetensors"), "logits");
        assert_eq!(shape, right_shape);
        let largest = right.iter().fold(0f32, |m, x| m.max(x.abs()));
        let off = got.iter().zip(&right).fold(0f32, |m, (a, b)| m.max((a - b).abs())) / largest;
        println!("{model}: largest difference {off:e} of the largest logit");
        assert!(off <= tolerance, "{model}: {off:e}");
        check_scores(&printed, &got, shape[1], &golden_ids(model, "tokens"));
    }
}

/// The printed numbers against the logits that were written.
fn check_scores(printed: &Value, logits: &[f32], vocabulary: usize, tokens: &[u32]) {
    assert_eq!(keys(printed), ["logprobs", "top_ids", "perplexity"]);
    let logprobs = printed["logprobs"].as_array().expect("a list");
    assert_eq!((logprobs.len(), ids(&printed["top_ids"]).len()), (tokens.len() - 1, tokens.len()));
    let mut sum = 0.0;
    for (at, row) in logits.chunks_exact(vocabulary).enumerate() {
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(row[ids(&printed["top_ids"])[at] as usize], best);
        let Some(&next) = tokens.get(at + 1) else { continue };
        let total: f64 = row.iter().map(|&x| f64::from(x - best).exp()).sum();
        let right = f64::from(row[next as usize] - best) - total.ln();
        let off = (logprobs[at].as_f64().expect("a number") - right).abs();
        assert!(off < LOGPROB_TOLERANCE, "off by {off:e}");
        sum += right;
    }
    let right = (-sum / logprobs.len() as f64).exp();
    let off = (printed["perplexity"].as_f64().expect("a number") / right - 1.0).abs();
    assert!(off < LOGPROB_TOLERANCE, "perplexity off by {off:e}");
}

#[test]
fn the_json_of_generate_has_exactly_the_documented_fields() {
    let plain = greedy("llama", &[]);
    let fields = ["prompt_ids", "ids", "text", "finish_reason", "usage", "speculation", "timing"];
    assert_eq!(keys(&plain), fields);
    assert_eq!(keys(&plain["usage"]), ["prompt_tokens", "completion_tokens", "cached_tokens"]);
    let speculation = [
        "drafter",
        "rounds",
        "drafted",
        "accepted",
        "tokens_per_round",
        "estimated_plain_seconds",
        "actual_seconds",
        "ratio",
        "probing_seconds",
        "sources",
        "near_ties",
    ];
    assert_eq!(keys(&plain["speculation"]), speculation);
    assert_eq!(plain["speculation"]["drafter"], Value::Null);
    assert_eq!(plain["speculation"]["rounds"][0], serde_json::json!([0, 0]));
    assert!(plain["speculation"]["estimated_plain_seconds"].is_f64());
    assert_eq!(
        keys(&plain["timing"]),
        [
            "load_seconds",
            "prefill_seconds",
            "decode_seconds",
            "prefill_tokens_per_second",
            "decode_tokens_per_second"
        ]
    );
    let two = json_of(with_model(
        "generate",
        &golden("llama"),
        &["--prompt-ids", "1,2", "--max-tokens", "2", "--json"],
    ));
    assert_eq!(two["speculation"]["estimated_plain_seconds"], Value::Null, "two rounds say too little");
}

#[test]
fn logprobs_come_with_the_ids_and_agree_with_score() {
    let printed = greedy("llama", &["--logprobs", "3"]);
    let all = printed["logprobs"].as_array().expect("a list");
    assert_eq!(all.len(), 24);
    let sequence = [ids(&printed["prompt_ids"]), ids(&printed["ids"])].concat();
    let scored =
        json_of(with_model("score", &golden("llama"), &["--prompt-ids", &comma(&sequence), "--json"]));
    for (at, one) in all.iter().enumerate() {
        assert_eq!(keys(one), ["id", "logprob", "top"]);
        assert_eq!(one["id"], printed["ids"][at]);
        let top = one["top"].as_array().expect("a list");
        assert_eq!(top.len(), 3);
        assert_eq!(top[0], serde_json::json!([one["id"], one["logprob"]]), "greedy takes the best");
        let off =
            one["logprob"].as_f64().zip(scored["logprobs"][11 + at].as_f64()).map(|(a, b)| (a - b).abs());
        assert!(off.is_some_and(|off| off < LOGPROB_TOLERANCE), "{off:?}");
    }
}

#[test]
fn a_seeded_answer_can_be_repeated_and_an_unseeded_one_cannot() {
    let hot = |more: &[&str]| ids(&greedy("llama", &[&["--temperature", "5"], more].concat())["ids"]);
    assert_eq!(hot(&["--seed", "0"]), hot(&["--seed", "0"]), "seed 0 is a seed");
    assert_ne!(hot(&["--seed", "0"]), hot(&["--seed", "1"]));
    assert_ne!(hot(&[]), hot(&[]));
}

#[test]
fn inspect_tells_what_was_loaded_and_what_computes() {
    let printed = json_of(with_model("inspect", &golden("llama-q4"), &["--json"]));
    assert_eq!(keys(&printed), ["model", "weights", "machine"]);
    assert_eq!(printed["model"]["family"], "llama");
    assert_eq!(printed["model"]["vocabulary"], 160);
    assert_eq!(printed["weights"]["quantization"]["bits"], 4);
    assert_eq!(printed["weights"]["missing"], serde_json::json!([]));
    assert_eq!(printed["machine"]["mlx_version"], "0.32.2");
    if cfg!(target_os = "linux") {
        let blas = &printed["machine"]["blas"];
        assert_eq!(blas["library"], "libmlxc.so", "products go through the library in front of MLX's own");
        assert!(blas["openblas"]["config"].as_str().is_some_and(|c| c.contains("OpenBLAS")), "{blas}");
    }
    let text = with_model("inspect", &golden("llama"), &[]);
    assert!(text.status.success());
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    for word in ["llama, 4 layers", "38 found, 38 used", "MLX", "cpu in use"] {
        assert!(text.contains(word), "{word:?} in {text}");
    }
    assert!(run(&["inspect"]).status.success(), "the machine alone");
}
