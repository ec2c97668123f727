//! Where a model's tokenizer comes from: files beside the weights, or the metadata of a GGUF file.

use std::{path::Path, sync::Arc};

use anyhow::{Result, bail};
use foretoken_model_base::weights::GgufMetadata;
use foretoken_text::{GgufVocabulary, Tokenizer};

/// What became of a model's tokenizer.
pub(crate) enum Found {
    Tokenizer(Arc<Tokenizer>),
    /// There is none anywhere.
    None,
    /// There is one that cannot be used. Token ids need none, so it is no error yet.
    Broken(String),
}

impl Found {
    pub(crate) fn get(&self) -> Option<&Arc<Tokenizer>> {
        match self {
            Found::Tokenizer(tokenizer) => Some(tokenizer),
            _ => None,
        }
    }

    /// The tokenizer, or why there is none; `needed` says what for.
    pub(crate) fn needed(&self, needed: &str, model: &Path) -> Result<&Arc<Tokenizer>> {
        match self {
            Found::Tokenizer(tokenizer) => Ok(tokenizer),
            Found::None => {
                bail!("{needed} needs a tokenizer, but {} has none: add its tokenizer.json", model.display())
            }
            Found::Broken(reason) => bail!("{needed} needs a tokenizer, but {reason}"),
        }
    }
}

/// Looks for the tokenizer of a model.
pub(crate) fn find(model: &Path, gguf: Option<&GgufMetadata>) -> Found {
    match read(model, gguf) {
        Ok(Some(tokenizer)) => Found::Tokenizer(Arc::new(tokenizer)),
        Ok(None) => Found::None,
        Err(error) => Found::Broken(format!("{error:#}")),
    }
}

fn read(model: &Path, gguf: Option<&GgufMetadata>) -> Result<Option<Tokenizer>> {
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
