//! Text in and out: templates, stop strings, end tokens, and what a redirected output holds.

mod support;

use std::fs;

use serde_json::{Value, json};
use support::*;
use tempfile::TempDir;

fn prompt() -> String {
    comma(&golden_ids("llama", "tokens")[..12])
}

fn answer() -> Vec<u32> {
    golden_ids("llama", "greedy_after_12")
}

fn generate(folder: &TempDir, more: &[&str]) -> Value {
    let prompt = prompt();
    let args = [&["--prompt-ids", &prompt, "--max-tokens", "24", "--json"], more].concat();
    json_of(with_model("generate", folder.path(), &args))
}

#[test]
fn h71_a_redirected_answer_is_the_answer_and_one_newline() {
    let folder = with_tokenizer();
    let output = with_model("generate", folder.path(), &["--prompt-ids", &prompt(), "--max-tokens", "24"]);
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), text_of(&answer()) + "\n");
    assert!(output.stderr.is_empty(), "{:?}", String::from_utf8_lossy(&output.stderr));
    let unknown = with_model("generate", &folder.path().join("nowhere"), &["--prompt", "hi"]);
    assert!(error_of(&unknown).contains("nowhere"));
}

#[test]
fn a_model_without_a_tokenizer_streams_ids() {
    let args = ["--prompt-ids", &prompt(), "--max-tokens", "3"];
    let output = with_model("generate", &golden("llama"), &args);
    assert_eq!(String::from_utf8_lossy(&output.stdout), comma(&answer()[..3]) + "\n");
    for args in [["--prompt-ids", "1", "--stop", "x"].as_slice(), &["--prompt", "hi"]] {
        let refused = with_model("generate", &golden("llama"), args);
        assert!(error_of(&refused).contains("tokenizer.json"), "{args:?}");
    }
}

#[test]
fn text_and_ids_agree() {
    let printed = generate(&with_tokenizer(), &[]);
    assert_eq!(ids(&printed["ids"]), answer());
    assert_eq!(printed["text"], text_of(&answer()).as_str());
}

#[test]
fn h51_a_stop_string_over_two_tokens_leaks_nothing() {
    let folder = with_tokenizer();
    // The first two tokens are "gc" and "dc".
    let printed = generate(&folder, &["--stop", "never", "--stop", "cd"]);
    assert_eq!(printed["text"], "g");
    assert_eq!(ids(&printed["ids"]), answer()[..2], "through the token that completes the stop string");
    assert_eq!(printed["usage"]["completion_tokens"], 2);
    assert_eq!(printed["finish_reason"], "stop");
    let logged = generate(&folder, &["--stop", "cd", "--logprobs", "1"]);
    assert_eq!(logged["logprobs"].as_array().map(Vec::len), Some(2));
}

#[test]
fn h52_text_held_back_for_a_stop_string_comes_out_at_the_end() {
    let folder = with_tokenizer();
    let printed = generate(&folder, &["--stop", &(spelled(answer()[23]) + "zzz")]);
    assert_eq!(printed["text"], text_of(&answer()).as_str());
    assert_eq!(printed["finish_reason"], "length");
}

#[test]
fn the_template_is_applied_unless_the_prompt_is_raw() {
    let folder = with_tokenizer();
    let ask = |more: &[&str]| {
        let args = [&["--prompt", "adag", "--max-tokens", "1", "--json"], more].concat();
        ids(&json_of(with_model("generate", folder.path(), &args))["prompt_ids"])
    };
    assert_eq!(ask(&[]), [0, 3, 6, 1]);
    assert_eq!(ask(&["--raw"]), [3, 6]);
}

#[test]
fn h54_every_source_of_end_tokens_counts() {
    let (end, right) = (answer()[5], answer());
    let before = right.iter().position(|&id| id == end).expect("it occurs");
    let unused = 5;
    assert!(!right.contains(&unused));
    let cases = [
        (json!({"eos_token_id": [unused, end]}), None, true),
        (json!({"eos_token_id": end}), None, true),
        (Value::Null, None, false),
        (json!({"eos_token_id": [unused]}), Some(end), true),
    ];
    for (generation, tokenizer_end, stops) in cases {
        let folder = with_tokenizer();
        configure(&folder, json!({"eos_token_id": unused}));
        if !generation.is_null() {
            write(&folder, "generation_config.json", generation.to_string());
        }
        if let Some(end) = tokenizer_end {
            write(&folder, "tokenizer_config.json", json!({"eos_token": spelled(end)}).to_string());
        }
        let printed = generate(&folder, &[]);
        let length = if stops { before } else { right.len() };
        assert_eq!(ids(&printed["ids"]), right[..length], "{generation} {tokenizer_end:?}");
        assert_eq!(printed["text"], text_of(&right[..length]).as_str(), "no text for the end token");
        assert_eq!(printed["finish_reason"], if stops { "stop" } else { "length" });
    }
    let broken = with_tokenizer();
    write(&broken, "generation_config.json", "{\"eos_token_id\": [");
    let refused = with_model("generate", broken.path(), &["--prompt-ids", "1"]);
    assert!(error_of(&refused).contains("generation_config.json"));
}

#[test]
fn an_unreadable_template_says_where_and_what_to_do() {
    let folder = with_tokenizer();
    fs::remove_file(folder.path().join("tokenizer_config.json")).expect("it is there");
    let ask = |more: &[&str]| {
        with_model("generate", folder.path(), &[&["--prompt", "ad", "--max-tokens", "1"], more].concat())
    };
    assert!(error_of(&ask(&[])).contains("--raw"), "no template at all");
    write(&folder, "chat_template.jinja", "{% for m in messages %}{{ m.content }");
    let error = error_of(&ask(&[]));
    assert!(error.contains("chat_template.jinja") && error.contains("--raw"), "{error}");
    write(&folder, "chat_template.jinja", "{{ raise_exception('roles must alternate') }}");
    assert!(error_of(&ask(&[])).contains("roles must alternate"));
    assert!(ask(&["--raw"]).status.success(), "raw prompts do not need it");
}

#[cfg(unix)]
#[test]
fn a_reader_that_has_seen_enough_is_not_an_error() {
    use std::process::{Command, Stdio};
    let folder = with_tokenizer();
    let mut child = Command::new(env!("CARGO_BIN_EXE_foretoken"))
        .args(["generate", "--prompt-ids", &prompt(), "--model"])
        .arg(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{:?}", String::from_utf8_lossy(&output.stderr));
}
