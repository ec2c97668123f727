//! Tiny tokenizers as files: one token per byte, no merges.

use foretoken_text::Tokenizer;
use serde_json::{Value, json};

pub(crate) const BOS: u32 = 256;
pub(crate) const EOS: u32 = 257;
/// A control token that no configuration names.
pub(crate) const TURN: u32 = 258;

/// The character that stands for each byte, as GPT-2 has it.
pub(crate) fn byte_character(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let shifted = (0..byte).filter(|earlier| !printable(*earlier)).count() as u32;
    char::from_u32(0x100 + shifted).unwrap()
}

/// A byte-level tokenizer.json; ids 0 to 255 are the bytes.
pub(crate) fn byte_level_json(pre_tokenizer: Value) -> Value {
    let vocab: serde_json::Map<String, Value> =
        (0..=u8::MAX).map(|byte| (byte_character(byte).to_string(), byte.into())).collect();
    let added = |id: u32, text: &str| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(BOS, "<s>"), added(EOS, "<e>"), added(TURN, "<|im_end|>")],
        "normalizer": null, "pre_tokenizer": pre_tokenizer, "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                    "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

/// The usual splitter.
pub(crate) fn byte_level_splitter() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

/// Loads a tokenizer from files of the given names and contents.
pub(crate) fn load(files: &[(&str, &str)]) -> Result<Tokenizer, foretoken_text::TextError> {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    Tokenizer::from_folder(folder.path())
}

/// The byte-level toy with a tokenizer configuration and a chat template.
pub(crate) fn with_config(config: Value, template: &str) -> Tokenizer {
    let json = byte_level_json(byte_level_splitter()).to_string();
    let (config, template) = (config.to_string(), template);
    let files = [
        ("tokenizer.json", json.as_str()),
        ("tokenizer_config.json", config.as_str()),
        ("chat_template.jinja", template),
    ];
    load(&files).unwrap()
}
