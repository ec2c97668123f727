//! Every kind of drafter from the command line, alone and together: the ids never change.

mod support;

use serde_json::{Value, json};
use support::*;

const TOKENS: &str = "24";

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("test paths are text")
}

fn answer(model: &std::path::Path, more: &[&str]) -> Value {
    let prompt = comma(&golden_ids("llama", "tokens")[..12]);
    let args = [&["--prompt-ids", &prompt, "--max-tokens", TOKENS, "--json"], more].concat();
    json_of(with_model("generate", model, &args))
}

fn names(printed: &Value) -> Vec<&str> {
    let sources = printed["speculation"]["sources"].as_array().expect("a list");
    sources.iter().map(|source| source["drafter"].as_str().expect("text")).collect()
}

#[test]
fn any_set_of_drafters_gives_the_plain_ids() {
    let (folder, block) = (with_tokenizer(), golden("llama-block"));
    let sets: [(&[&str], &[&str]); 6] = [
        (&["--drafter", "ngram"], &["ngram"]),
        (&["--draft", text(&block)], &["block"]),
        (&["--draft", text(folder.path())], &["model"]),
        (&["--draft", text(&block), "--drafter", "block,ngram"], &["block", "ngram"]),
        (&["--draft", text(folder.path()), "--drafter", "ngram,model"], &["model", "ngram"]),
        (
            &["--draft", text(&block), "--draft", text(folder.path()), "--drafter", "block,model,ngram"],
            &["block", "model", "ngram"],
        ),
    ];
    for sampling in [&["--seed", "0"][..], &["--temperature", "0.9", "--seed", "5"]] {
        let plain = answer(folder.path(), sampling);
        assert_eq!(plain["speculation"]["sources"], json!([]));
        for (set, drafters) in &sets {
            for depth in ["auto", "3"] {
                let args = [*set, &["--depth", depth], sampling].concat();
                let drafted = answer(folder.path(), &args);
                assert_eq!(drafted["ids"], plain["ids"], "{args:?}");
                assert_eq!(names(&drafted), *drafters, "{args:?}");
                assert_eq!(drafted["speculation"]["drafter"], drafters[0]);
            }
        }
    }
    assert_eq!(ids(&answer(folder.path(), sets[1].0)["ids"]), golden_ids("llama", "greedy_after_12"));
}

#[test]
fn what_was_spent_is_accounted_for() {
    let printed = answer(&golden("llama"), &["--draft", text(&golden("llama-block")), "--depth", "3"]);
    let speculation = &printed["speculation"];
    assert_eq!(speculation["sources"][0]["drafted"], speculation["drafted"]);
    assert_eq!(speculation["sources"][0]["accepted"], speculation["accepted"]);
    let actual = speculation["actual_seconds"].as_f64().expect("rounds were timed");
    let decode = printed["timing"]["decode_seconds"].as_f64().expect("a number");
    assert!(actual > 0.0 && actual <= decode, "{actual} of {decode}");
    assert_eq!(speculation["probing_seconds"], 0.0, "a fixed depth tries nothing");
    let plain = answer(&golden("llama"), &[]);
    let ratio = plain["speculation"]["ratio"].as_f64().expect("plain rounds were measured");
    assert!((0.5..2.0).contains(&ratio), "plain against plain: {ratio}");
}

#[test]
fn h16_a_draft_model_with_another_vocabulary_is_refused_by_its_first_other_token() {
    let (target, other) = (with_tokenizer(), with_tokenizer());
    let file = other.path().join("tokenizer.json");
    let tokenizer = std::fs::read_to_string(&file).expect("there is a tokenizer");
    write(&other, "tokenizer.json", tokenizer.replace("\"bd\"", "\"zz\""));
    let args = ["--prompt-ids", "1", "--draft", text(other.path())];
    let output = with_model("generate", target.path(), &args);
    let error = error_of(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    for word in ["19", "\"bd\"", "\"zz\""] {
        assert!(error.contains(word), "{word:?} in {error:?}");
    }
}

#[test]
fn sets_that_contradict_themselves_are_errors() {
    let (folder, block) = (with_tokenizer(), golden("llama-block"));
    let refused = |args: &[&str], code: i32, words: &[&str]| {
        let args = [&["--prompt-ids", "1", "--max-tokens", "2"], args].concat();
        let output = with_model("generate", folder.path(), &args);
        let error = error_of(&output);
        assert_eq!(output.status.code(), Some(code), "{error}");
        words.iter().for_each(|word| assert!(error.contains(word), "{word:?} in {error:?}"));
    };
    refused(&["--drafter", "auto,ngram"], 2, &["--drafter", "alone"]);
    refused(&["--drafter", "ngram,ngram"], 2, &["--drafter", "ngram", "twice"]);
    refused(&["--draft", "none", "--draft", text(&block)], 2, &["--draft", "alone"]);
    refused(&["--draft", "none", "--drafter", "ngram"], 2, &["--draft none", "--drafter ngram"]);
    refused(&["--draft", text(&block), "--drafter", "ngram"], 1, &["block", "--drafter"]);
    refused(&["--drafter", "block"], 1, &["--drafter block", "--draft"]);
    refused(&["--draft", text(&block), "--drafter", "mtp"], 1, &["llama-block"]);
    refused(&["--draft", text(&block), "--draft", text(&block)], 1, &["block as another one"]);
    refused(&["--draft", text(&block), "--depth", "9"], 2, &["--depth", "block", "9"]);
}
