//! Tokenizers from model folders, good and bad.

use foretoken_text::{ChatInput, Message, Tokenizer};
use proptest::prelude::*;
use serde_json::json;

use crate::toy::{EOS, TURN, byte_level_json, byte_level_splitter, load, with_config};

/// A splitter of two stages, numbers first.
fn two_stages() -> serde_json::Value {
    let split = |pattern: &str| {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
               "invert": false})
    };
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                       "use_regex": false});
    let words = r"[^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    json!({"type": "Sequence", "pretokenizers": [split(r"\p{N}{1,3}"), split(words), bytes]})
}

fn two_stage_tokenizer() -> Tokenizer {
    load(&[("tokenizer.json", &byte_level_json(two_stages()).to_string())]).unwrap()
}

#[test]
fn h46_a_second_splitting_stage_repeats_nothing() {
    let tokenizer = two_stage_tokenizer();
    let text = "ab12\n\ncd345e";
    let ids = tokenizer.encode_raw(text).unwrap();
    assert_eq!(ids.len(), 12);
    assert_eq!(tokenizer.decode(&ids), text);
}

#[test]
fn h46_pieces_join_to_the_text_for_a_thousand_strings() {
    let tokenizer = two_stage_tokenizer();
    let config = ProptestConfig::with_cases(1_000);
    proptest!(config, |(text in r"(\PC|[0-9]|[ \n\t']|[a-z]){0,40}")| {
        let ids = tokenizer.encode_raw(&text).unwrap();
        let pieces: Vec<u8> =
            ids.iter().flat_map(|id| tokenizer.token_bytes(*id).unwrap().to_vec()).collect();
        prop_assert_eq!(pieces, text.as_bytes());
        prop_assert_eq!(tokenizer.decode(&ids), text);
    });
}

#[test]
fn h54_end_tokens_are_the_union_of_all_files() {
    let json = byte_level_json(byte_level_splitter()).to_string();
    let ends = |generation: Option<&str>, eos: &str, config: &[u32]| {
        let tokenizer_config = json!({"eos_token": eos}).to_string();
        let mut files = vec![("tokenizer.json", json.as_str()), ("tokenizer_config.json", &tokenizer_config)];
        files.extend(generation.map(|content| ("generation_config.json", content)));
        load(&files).map(|tokenizer| tokenizer.end_tokens_with(config))
    };
    // `<|im_end|>` is a control token, so it is always among them.
    let with = |ids: &[u32]| [ids, &[TURN]].concat();
    assert_eq!(ends(Some(r#"{"eos_token_id": [5, 7]}"#), "nope", &[5]).unwrap(), with(&[5, 7]));
    assert_eq!(ends(Some(r#"{"eos_token_id": 7}"#), "nope", &[5]).unwrap(), with(&[5, 7]));
    assert_eq!(ends(None, "nope", &[5]).unwrap(), with(&[5]));
    assert_eq!(ends(Some(r#"{"eos_token_id": [5]}"#), "<e>", &[5]).unwrap(), with(&[5, EOS]));
    let error = ends(Some("{\"eos_token_id\": "), "<e>", &[5]).unwrap_err().to_string();
    assert!(error.contains("generation_config.json: the generation configuration"), "{error}");
}

#[test]
fn a_start_token_of_the_post_processor_is_found() {
    let mut json = byte_level_json(byte_level_splitter());
    json["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}},
    });
    let json = json.to_string();
    let alone = load(&[("tokenizer.json", &json)]).unwrap();
    assert_eq!(alone.encode_raw("a").unwrap(), [256, 97]);
    let refused = json!({"bos_token": {"content": "<s>"}, "add_bos_token": false}).to_string();
    let refused = load(&[("tokenizer.json", &json), ("tokenizer_config.json", &refused)]).unwrap();
    assert_eq!((refused.bos(), refused.encode_raw("a").unwrap()), (Some(256), vec![97]));
}

#[test]
fn of_several_templates_the_default_is_taken() {
    let json = byte_level_json(byte_level_splitter()).to_string();
    let config = json!({"chat_template": [
        {"name": "tool_use", "template": "wrong"}, {"name": "default", "template": "right"}]});
    let files = [("tokenizer.json", json.as_str()), ("tokenizer_config.json", &config.to_string())];
    let template = load(&files).unwrap().chat_template().unwrap();
    assert_eq!(template.render(&ChatInput::new(&[])).unwrap().text(), "right");
}

#[test]
fn an_unreadable_template_spares_raw_prompts() {
    let tokenizer = with_config(json!({}), "x\n{% endfor %}");
    let error = tokenizer.encode_messages(&ChatInput::new(&[Message::user("a")])).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("chat_template.jinja: chat template, line 2"), "{error}");
    assert_eq!(tokenizer.encode_raw("a").unwrap(), [97]);
}

#[test]
fn bad_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    assert!(!Tokenizer::exists_in(folder.path()));
    let missing = Tokenizer::from_folder(folder.path()).unwrap_err().to_string();
    assert!(missing.contains("tokenizer.json: cannot read the tokenizer"), "{missing}");
    assert!(missing.contains("--prompt-ids"), "{missing}");

    let good = byte_level_json(byte_level_splitter()).to_string();
    for content in ["", "{", "[]", "{}", &good[..good.len() / 2], &"[".repeat(10_000)] {
        let error = load(&[("tokenizer.json", content)]).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json: the tokenizer: expected"), "{error}");
    }
    let files = [("tokenizer.json", good.as_str()), ("tokenizer_config.json", "[1]")];
    let error = load(&files).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json: the tokenizer configuration"), "{error}");
}

#[test]
fn an_unknown_decoder_is_named() {
    let mut json = byte_level_json(byte_level_splitter());
    json["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    let error = load(&[("tokenizer.json", &json.to_string())]).unwrap_err().to_string();
    assert!(error.contains("decoder \"WordPiece\" is not supported; known: ByteLevel"), "{error}");
}

#[test]
fn added_tokens_that_are_not_special_are_text() {
    let mut json = byte_level_json(byte_level_splitter());
    let added = json!({"id": 300, "content": "<think é>", "single_word": false, "lstrip": false,
                       "rstrip": false, "normalized": true, "special": false});
    json["added_tokens"].as_array_mut().unwrap().push(added);
    let tokenizer = load(&[("tokenizer.json", &json.to_string())]).unwrap();
    assert_eq!(tokenizer.encode_raw("a<think é>").unwrap(), [97, 259], "ids follow the vocabulary");
    assert!(!tokenizer.is_special(259));
    assert_eq!(tokenizer.decode(&[97, 259]), "a<think é>");
}
