//! Where a model's tokenizer comes from: files beside the weights, or the metadata of a GGUF file.

use std::path::Path;

use anyhow::Result;
use foretoken_model_base::weights::GgufMetadata;
use foretoken_text::{GgufVocabulary, Tokenizer};

/// The tokenizer of a model; absent when there is none anywhere.
pub(crate) fn find(model: &Path, gguf: Option<&GgufMetadata>) -> Result<Option<Tokenizer>> {
    if let Some(metadata) = gguf {
        return match metadata.get_strings("tokenizer.ggml.tokens") {
            Some(tokens) => Ok(Some(from_gguf(metadata, tokens)?)),
            None => Ok(None),
        };
    }
    let folder = if model.is_dir() { Some(model) } else { model.parent() };
    match folder {
        Some(folder) if Tokenizer::exists_in(folder) => Ok(Some(Tokenizer::from_folder(folder)?)),
        _ => Ok(None),
    }
}

fn from_gguf(metadata: &GgufMetadata, tokens: &[String]) -> Result<Tokenizer> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| metadata.get_u32(&key(&format!("{name}_token_id")));
    let token_types = metadata.get_i32s(&key("token_type")).unwrap_or_default();
    let scores = metadata.get_f32s(&key("scores")).unwrap_or_default();
    Ok(Tokenizer::from_gguf(&GgufVocabulary {
        model: metadata.get_str(&key("model")).unwrap_or_default(),
        pre: metadata.get_str(&key("pre")),
        tokens,
        token_types: &token_types,
        scores: &scores,
        merges: metadata.get_strings(&key("merges")).unwrap_or_default(),
        bos: id("bos"),
        eos: id("eos"),
        eot: id("eot"),
        unk: id("unknown"),
        add_bos: metadata.get_bool(&key("add_bos_token")),
        add_space_prefix: metadata.get_bool(&key("add_space_prefix")),
        chat_template: metadata.get_str("tokenizer.chat_template"),
    })?)
}
