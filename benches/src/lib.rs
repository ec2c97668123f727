//! What the benchmarks share: SmolLM2 with its heads, random models, traced prompts, and the report line.
//!
//! Every timed closure ends in an evaluation and yields tokens or numbers that prove it: with lazy
//! arrays a benchmark is otherwise won by never running.

mod chat;
mod known;
mod random;
pub mod simulator;

use std::{ops::ControlFlow, path::PathBuf, rc::Rc};

use anyhow::{Context, Result};
use foretoken_model_base::{LoadOptions, Model};
use foretoken_runner::{Event, Report, Request, Runner};
use foretoken_speculate::{DraftPolicy, Drafter};
use serde_json::{Value, json};

pub use chat::{chat, tokenizer};
pub use known::Known;
pub use random::{random_hybrid, random_window};

/// End tokens of SmolLM2-135M-Instruct: `<|endoftext|>` and `<|im_end|>`.
pub const ENDS: [u32; 2] = [0, 2];

/// A file of this repository.
pub fn repository(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)
}

/// SmolLM2-135M-Instruct on the default device.
pub fn smollm2() -> Result<Rc<dyn Model>> {
    mlx_rs::Device::try_default()?;
    let path = repository("models/fetched/SmolLM2-135M-Instruct.Q4_1.gguf");
    let loaded = foretoken_models::load(&path, LoadOptions::detect()?)
        .with_context(|| "SmolLM2 is missing; run `cargo xtask model`")?;
    Ok(Rc::from(loaded.model))
}

/// One of the heads that the project ships: `single` or `seq`.
pub fn head(style: &str, model: &dyn Model) -> Result<Rc<dyn Drafter>> {
    let path = repository(&format!("models/smollm2-135m-mtp/mtp-{style}.safetensors"));
    Ok(foretoken_draft_mtp::load(&path, model)?)
}

/// The prompt of a traced chat.
pub fn prompt(chat: usize) -> Result<Vec<u32>> {
    let text = std::fs::read_to_string(repository("golden/smollm2-greedy-trace.json"))?;
    let trace: Value = serde_json::from_str(&text)?;
    Ok(serde_json::from_value(trace[chat]["prompt_ids"].clone())?)
}

/// A greedy answer of at most `tokens` tokens.
pub fn answer(runner: &mut Runner, prompt: &[u32], tokens: usize) -> Result<(Vec<u32>, Report)> {
    serve(runner, &Request { max_tokens: Some(tokens), ends: ENDS.to_vec(), ..Request::greedy(prompt) })
}

/// The ids that answer a request, and the report.
pub fn serve(runner: &mut Runner, request: &Request) -> Result<(Vec<u32>, Report)> {
    let mut ids = Vec::new();
    let mut sink = |event: Event| {
        if let Event::Token { id, .. } = event {
            ids.push(id);
        }
        ControlFlow::Continue(())
    };
    let report = runner.generate(request, &mut sink)?;
    Ok((ids, report))
}

/// A runner for one drafter at one depth, or plain without one. It remembers nothing, so that every request
/// of a benchmark does the same work.
pub fn runner(model: &Rc<dyn Model>, drafter: Option<Rc<dyn Drafter>>, depth: usize) -> Runner {
    let plain = Runner::new(model.clone()).with_prefix_cache(None);
    match drafter {
        Some(drafter) => plain.with_drafter(drafter, Some(DraftPolicy::Constant(depth))),
        None => plain,
    }
}

/// FNV-1a over all ids, as text: equal answers have equal hashes.
pub fn token_hash(ids: &[u32]) -> String {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, mix))
}

/// Prints the line that `cargo xtask bench` collects.
pub fn report(name: &str, mut facts: Value) {
    facts["name"] = json!(name);
    println!("foretoken-bench {facts}");
}

/// The middle of the measurements.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_tell_answers_apart() {
        assert_eq!(token_hash(&[]), "cbf29ce484222325");
        assert_ne!(token_hash(&[1, 2]), token_hash(&[2, 1]));
        assert_eq!(token_hash(&[1, 2]), token_hash(&[1, 2]));
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
