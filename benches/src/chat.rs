//! A user's message as SmolLM2 reads it.

use anyhow::{Context, Result};
use foretoken_model_base::weights::{GgufFile, GgufMetadata};
use foretoken_text::{ChatInput, GgufVocabulary, Message, Tokenizer};

use crate::repository;

/// The ids of a chat with one message, up to where the answer begins.
pub fn chat(message: &str) -> Result<Vec<u32>> {
    let messages = [Message::user(message)];
    Ok(tokenizer()?.encode_messages(&ChatInput::new(&messages))?)
}

/// SmolLM2's tokenizer, from its GGUF file.
pub fn tokenizer() -> Result<Tokenizer> {
    let file = GgufFile::open(&repository("models/fetched/SmolLM2-135M-Instruct.Q4_1.gguf"))
        .with_context(|| "SmolLM2 is missing; run `cargo xtask model`")?;
    of_gguf(file.metadata())
}

fn of_gguf(metadata: &GgufMetadata) -> Result<Tokenizer> {
    let id = |name: &str| metadata.get_u32(&format!("tokenizer.ggml.{name}_token_id"));
    Ok(Tokenizer::from_gguf(&GgufVocabulary {
        model: metadata.get_str("tokenizer.ggml.model").unwrap_or_default(),
        pre: metadata.get_str("tokenizer.ggml.pre"),
        tokens: metadata.get_strings("tokenizer.ggml.tokens").context("a tokenizer")?,
        token_types: &metadata.get_i32s("tokenizer.ggml.token_type").unwrap_or_default(),
        scores: &metadata.get_f32s("tokenizer.ggml.scores").unwrap_or_default(),
        merges: metadata.get_strings("tokenizer.ggml.merges").unwrap_or_default(),
        bos: id("bos"),
        eos: id("eos"),
        eot: id("eot"),
        unk: id("unknown"),
        add_bos: metadata.get_bool("tokenizer.ggml.add_bos_token"),
        add_space_prefix: metadata.get_bool("tokenizer.ggml.add_space_prefix"),
        chat_template: metadata.get_str("tokenizer.chat_template"),
    })?)
}
