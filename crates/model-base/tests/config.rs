//! Configurations: end tokens, typed access, and rotations that are asked for.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use common::{Folder, refused, refused_file};
use foretoken_model_base::{Config, nn::Rope};

fn folder(config: &str, generation: Option<&str>) -> Folder {
    let folder = Folder::new();
    folder.write("config.json", config.as_bytes());
    if let Some(text) = generation {
        folder.write("generation_config.json", text.as_bytes());
    }
    folder
}

#[test]
fn h54_end_tokens_are_the_union_of_both_files() {
    for (generation, want) in [
        (Some(r#"{"eos_token_id": [5, 7]}"#), &[5, 7][..]),
        (Some(r#"{"eos_token_id": 7}"#), &[5, 7]),
        (None, &[5]),
        (Some(r#"{"eos_token_id": [5]}"#), &[5]),
        (Some("{}"), &[5]),
        (Some(r#"{"eos_token_id": null}"#), &[5]),
    ] {
        let folder = folder(r#"{"eos_token_id": 5}"#, generation);
        let config = Config::open(&folder.path("")).unwrap();
        assert_eq!(config.end_tokens(), want, "{generation:?}");
    }
    let list = folder(r#"{"eos_token_id": [9, 5, 9]}"#, None);
    assert_eq!(Config::open(&list.path("")).unwrap().end_tokens(), [5, 9]);
}

#[test]
fn h54_a_broken_generation_config_is_a_clear_error() {
    for broken in ["{", "[]", r#"{"eos_token_id": "end"}"#, r#"{"eos_token_id": -1}"#] {
        let folder = folder(r#"{"eos_token_id": 5}"#, Some(broken));
        refused_file(Config::open(&folder.path("")), &["generation_config.json", "repair the file"]);
    }
}

#[test]
fn values_of_the_wrong_kind_name_their_key() {
    let config = Config::parse(r#"{"a": "x", "b": 0, "c": 1.5, "d": 1e300, "s": {"t": []}}"#).unwrap();
    refused(config.count("a"), &["a", "\"x\""]);
    refused(config.count("b"), &["b", "0"]);
    refused(config.count("c"), &["c", "1.5"]);
    refused(config.count("missing"), &["missing", "nothing"]);
    refused(config.number("d"), &["d", "finite"]);
    refused(config.flag("a"), &["a", "true or false"]);
    refused(config.text("b"), &["b", "a text"]);
    refused(config.section("a"), &["a", "an object"]);
    refused(config.section("s").unwrap().unwrap().text("t"), &["s.t"]);
    refused(config.optional_list("s"), &["s", "list"]);
    refused(Config::parse("3"), &["top level"]);
    refused(Config::open(&Folder::new().path("")), &["config.json"]);
}

#[test]
fn rotations_that_cannot_be_served_are_refused() {
    let rope = |text: &str| Rope::from_config(&Config::parse(text).unwrap(), 8, 1e4);
    for good in [
        "{}",
        r#"{"rope_scaling": null}"#,
        r#"{"rope_scaling": {"rope_type": "default"}}"#,
        r#"{"rope_scaling": {"type": "linear", "factor": 2}}"#,
        r#"{"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}"#,
    ] {
        assert!(rope(good).is_ok(), "{good}");
    }
    refused(
        rope(r#"{"rope_scaling": {"rope_type": "yarn", "factor": 2}}"#),
        &["rope_type", "yarn", "llama3"],
    );
    refused(rope(r#"{"rope_scaling": {"type": "linear"}}"#), &["rope_scaling.factor", "nothing"]);
    refused(rope(r#"{"rope_scaling": {"type": "linear", "factor": 0}}"#), &["rope_scaling.factor", "0"]);
    let same = r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4}}"#;
    refused(rope(same), &["high_freq_factor"]);
}
