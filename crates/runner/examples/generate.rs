//! Answers one prompt with SmolLM2 and its sequential head, and prints the text as it comes.
//!
//! `cargo xtask native`, `cargo xtask model`, then
//! `cargo run --release -p foretoken-runner --example generate -- "Why is the sky blue?"`

use std::io::{Write, stdout};
use std::{ops::ControlFlow, path::Path, rc::Rc};

use anyhow::{Context, Result};
use foretoken_draft_mtp as mtp;
use foretoken_model_base::{LoadOptions, Model, weights::GgufMetadata};
use foretoken_runner::{Event, Request, Runner};
use foretoken_speculate::DraftPolicy;
use foretoken_text::{ChatInput, GgufVocabulary, Message, Tokenizer};

const MODEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/fetched/SmolLM2-135M-Instruct.Q4_1.gguf");
const HEAD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/smollm2-135m-mtp/mtp-seq.safetensors");

fn main() -> Result<()> {
    let question = std::env::args().nth(1).unwrap_or_else(|| "Why is the sky blue?".into());
    // The first call into MLX turns its errors into results from then on.
    mlx_rs::Device::try_default()?;
    let loaded = foretoken_models::load(Path::new(MODEL), LoadOptions::detect()?)
        .context("`cargo xtask model` fetches the model")?;
    let metadata = loaded.gguf.context("a GGUF file has metadata")?;
    let tokenizer = tokenizer(&metadata)?;
    let model: Rc<dyn Model> = Rc::from(loaded.model);
    let drafter = mtp::load(Path::new(HEAD), model.as_ref())?;
    let ends = tokenizer.end_tokens_with(&model.facts().end_tokens);
    let mut runner = Runner::new(model).with_drafter(drafter, Some(DraftPolicy::Constant(2)));

    let prompt = tokenizer.encode_messages(&ChatInput::new(&[Message::user(question)]))?;
    let request = Request { ends, max_tokens: Some(128), ..Request::greedy(prompt) };
    let mut stream = tokenizer.text_stream(&[])?;
    let report = runner.generate(&request, &mut |event: Event| {
        if let Event::Token { id, .. } = event {
            print!("{}", stream.push(id).text);
            let _ = stdout().flush();
        }
        ControlFlow::Continue(())
    })?;
    println!("{}", stream.finish());
    let (speed, per_round) = (report.timing.decode_tokens_per_second(), report.tokens_per_round());
    eprintln!("{speed:.1} tokens/s, {per_round:.2} tokens a round");
    Ok(())
}

/// The tokenizer inside a GGUF file.
fn tokenizer(metadata: &GgufMetadata) -> Result<Tokenizer> {
    Ok(Tokenizer::from_gguf(&GgufVocabulary {
        model: metadata.get_str("tokenizer.ggml.model").context("no tokenizer")?,
        pre: metadata.get_str("tokenizer.ggml.pre"),
        tokens: metadata.get_strings("tokenizer.ggml.tokens").context("no tokens")?,
        token_types: &metadata.get_i32s("tokenizer.ggml.token_type").unwrap_or_default(),
        merges: metadata.get_strings("tokenizer.ggml.merges").unwrap_or_default(),
        eos: metadata.get_u32("tokenizer.ggml.eos_token_id"),
        chat_template: metadata.get_str("tokenizer.chat_template"),
        ..GgufVocabulary::default()
    })?)
}
