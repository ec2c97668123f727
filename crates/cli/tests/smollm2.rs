//! The real model with its two heads: short answers only, long ones are benchmarks.

mod support;

use std::{fs, path::PathBuf};

use serde_json::Value;
use support::*;

const TOKENS: usize = 16;
/// Enough for the small schema with the widest layout that is allowed.
const SCHEMA_TOKENS: usize = 48;

fn model() -> PathBuf {
    repository("models/fetched/SmolLM2-135M-Instruct.Q4_1.gguf")
}

fn head(name: &str) -> String {
    repository(&format!("models/smollm2-135m-mtp/mtp-{name}.safetensors")).to_str().expect("text").to_owned()
}

/// The last chat of the trace, whose answer is short.
fn chat() -> Value {
    let text = fs::read(repository("golden/smollm2-greedy-trace.json")).expect("the trace");
    let chats: Vec<Value> = serde_json::from_slice(&text).expect("JSON");
    chats.last().expect("four chats").clone()
}

fn generate(more: &[&str]) -> Value {
    generate_up_to(TOKENS, more)
}

fn generate_up_to(tokens: usize, more: &[&str]) -> Value {
    let chat = chat();
    let prompt = chat["prompt"].as_str().expect("text");
    let limit = tokens.to_string();
    let args = [&["--prompt", prompt, "--max-tokens", &limit, "--json"], more].concat();
    json_of(with_model("generate", &model(), &args))
}

#[test]
fn a_chat_is_the_same_plainly_and_with_both_heads() {
    let chat = chat();
    let plain = generate(&[]);
    assert_eq!(plain["prompt_ids"], chat["prompt_ids"], "the template and the tokenizer agree");
    assert_eq!(ids(&plain["ids"]), ids(&chat["plain"])[..TOKENS]);
    for name in ["single", "seq"] {
        let drafted = generate(&["--draft", &head(name), "--depth", "4"]);
        assert_eq!(drafted["ids"], plain["ids"], "{name}");
        assert_eq!(drafted["text"], plain["text"]);
        assert_eq!(drafted["speculation"]["drafter"], format!("mtp-{name}").as_str());
        // The trace goes on where this answer is cut, so only rounds of full depth compare.
        let full = |rounds: &Value| -> Vec<Value> {
            let all = rounds.as_array().expect("a list").iter();
            all.take_while(|round| round[0] == 4).cloned().collect()
        };
        let rounds = full(&drafted["speculation"]["rounds"]);
        assert!(rounds.len() > 3, "{rounds:?}");
        assert_eq!(rounds[..], full(&chat[name]["rounds"])[..rounds.len()], "{name}: as in the trace");
    }
}

#[test]
fn a_seeded_answer_is_the_same_plainly_and_with_both_heads() {
    let hot = ["--temperature", "0.8", "--seed", "7"];
    let plain = generate(&hot);
    for name in ["single", "seq"] {
        let drafted = generate(&[&hot[..], &["--draft", &head(name), "--depth", "4"]].concat());
        assert_eq!(drafted["ids"], plain["ids"], "{name}");
        assert!(drafted["speculation"]["drafted"].as_u64() > Some(0));
    }
}

#[test]
fn keys_and_values_in_fewer_bits_speculate_exactly_and_refuse_a_head_that_reads_them_again() {
    for bits in ["8", "4"] {
        let packed = generate(&["--kv-bits", bits]);
        // Another text, so it may also end elsewhere.
        assert!(ids(&packed["ids"]).len() > TOKENS / 2, "{bits} bits");
        let drafted = generate(&["--kv-bits", bits, "--draft", &head("seq"), "--depth", "4"]);
        assert_eq!(drafted["ids"], packed["ids"], "{bits} bits");
        assert!(drafted["speculation"]["accepted"].as_u64() > Some(0));
    }
    let chat = chat();
    let prompt = chat["prompt"].as_str().expect("text");
    let args = ["--prompt", prompt, "--max-tokens", "2", "--kv-bits", "8", "--draft", &head("single")];
    let error = error_of(&with_model("generate", &model(), &args));
    for word in ["mtp-single", "full attention", "quantized", "--draft none"] {
        assert!(error.contains(word), "{word:?} in {error:?}");
    }
}

#[test]
fn a_schema_holds_with_the_real_tokenizer_and_every_drafter() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let schema = serde_json::json!({ "type": "object", "required": ["ok", "n"],
        "properties": { "ok": { "type": "boolean" }, "n": { "type": "integer", "minimum": 0, "maximum": 9 } } });
    write(&folder, "schema.json", schema.to_string());
    let file = folder.path().join("schema.json");
    let asked = ["--json-schema", file.to_str().expect("text"), "--temperature", "0.9", "--seed", "3"];
    let asked = [&asked[..], &["--repeat-penalty", "1.1", "--logprobs", "2", "--show-drafts"]].concat();
    let plain = generate_up_to(SCHEMA_TOKENS, &asked);
    assert_eq!(plain["finish_reason"], "stop");
    let answer: Value = serde_json::from_str(plain["text"].as_str().expect("text")).expect("JSON");
    assert!(jsonschema::is_valid(&schema, &answer), "{answer}");
    let head = head("seq");
    let more = [&asked[..], &["--draft", &head, "--drafter", "mtp,ngram"]].concat();
    let drafted = generate_up_to(SCHEMA_TOKENS, &more);
    assert_eq!((&drafted["ids"], &drafted["text"]), (&plain["ids"], &plain["text"]));
    let origins = drafted["provenance"].as_array().expect("a list");
    assert!(origins.iter().any(|origin| origin["kind"] == "forced"), "{origins:?}");
}
