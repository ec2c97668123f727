//! `foretoken score`: log probabilities of a given sequence.

use std::path::Path;

use anyhow::{Context, Result, bail};
use foretoken_runner::{Runner, RunnerError, Score};
use mlx_rs::{Array, ops::concatenate};

use crate::{args::ScoreArgs, json::Scored, load, output, prompt};

pub(crate) fn run(args: &ScoreArgs) -> Result<()> {
    if let Some(file) = &args.logits {
        check_place(file)?;
    }
    let loaded = load::load(&args.model.model, args.model.place, load::Wanted::default())?;
    let ids = prompt::encode(&args.prompt, &args.model.model, &loaded.known)?.ids;
    let logits = args.logits.clone();
    let score = loaded.worker.handle().call(move |runner| score(runner, &ids, logits.as_deref()))??;
    if args.json {
        output::print(&serde_json::to_string(&Scored::new(&score))?)?;
    } else {
        match score.perplexity() {
            Some(perplexity) => {
                output::print(&format!("perplexity {perplexity:.4} over {} tokens", score.logprobs.len()))?;
            }
            None => output::print("one token: nothing to score")?,
        }
    }
    Ok(())
}

/// Fails early when a file cannot be made at this place.
fn check_place(file: &Path) -> Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if !folder.is_dir() => {
            bail!("--logits: no folder {}; make it first, or give --logits another place", folder.display())
        }
        _ if file.is_dir() => bail!("--logits: {} is a folder; name a file in it", file.display()),
        _ => Ok(()),
    }
}

/// Runs on the worker thread.
fn score(runner: &mut Runner, ids: &[u32], file: Option<&Path>) -> Result<Score> {
    let mut kept: Vec<Array> = Vec::new();
    let score = runner.score(ids, |rows| {
        if file.is_some() {
            kept.push(rows.clone());
        }
        Ok::<(), RunnerError>(())
    })?;
    if let Some(file) = file {
        let rows: Vec<&Array> = kept.iter().collect();
        let logits = concatenate(&rows, 0)?; // [T,V]
        Array::save_safetensors([("logits", &logits)], None, file).with_context(|| {
            format!(
                "cannot write {}: give --logits a new .safetensors file in a folder that exists",
                file.display()
            )
        })?;
    }
    Ok(score)
}
