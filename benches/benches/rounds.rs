//! What sampling adds to a whole round: SmolLM2 with its sequential head, five rows, against greedy.
//!
//! The settings take turns, so that a busy machine slows all of them alike.

use std::{ops::ControlFlow, time::Instant};

use anyhow::Result;
use foretoken_benches::{head, median, prompt, report, smollm2};
use foretoken_runner::{Event, FinishReason, Request, Runner};
use foretoken_sample::{SamplingOptions, Seed};
use foretoken_speculate::DraftPolicy;
use serde_json::{Map, Value, json};

/// Four drafts and the current token.
const DEPTH: usize = 4;
const TOKENS: usize = 48;
const TURNS: usize = 5;

fn settings() -> Vec<(&'static str, SamplingOptions)> {
    let coupled = SamplingOptions { temperature: 0.8, seed: Seed::Fixed(7), ..SamplingOptions::greedy() };
    let ratio = SamplingOptions { seed: Seed::Fresh(7), ..coupled.clone() };
    let both = SamplingOptions { top_k: 40, top_p: 0.95, ..SamplingOptions::greedy() };
    let top_p = SamplingOptions { top_p: 0.95, ..SamplingOptions::greedy() };
    let with = |of: &SamplingOptions, base: &SamplingOptions| SamplingOptions {
        top_k: of.top_k,
        top_p: of.top_p,
        ..base.clone()
    };
    vec![
        ("greedy", SamplingOptions::greedy()),
        ("greedy with margins", SamplingOptions { margins: true, ..SamplingOptions::greedy() }),
        ("greedy with 5 logprobs", SamplingOptions { logprobs: Some(5), ..SamplingOptions::greedy() }),
        ("temperature, coupled", coupled.clone()),
        ("temperature, ratio", ratio.clone()),
        ("top-k 40, top-p 0.95, coupled", with(&both, &coupled)),
        ("top-k 40, top-p 0.95, ratio", with(&both, &ratio)),
        ("top-p 0.95, coupled", with(&top_p, &coupled)),
        ("top-p 0.95, ratio", with(&top_p, &ratio)),
    ]
}

fn main() -> Result<()> {
    let model = smollm2()?;
    let mut runner = Runner::new(model.clone())
        .with_prefix_cache(None)
        .with_drafter(head("seq", model.as_ref())?, Some(DraftPolicy::Constant(DEPTH)));
    let (settings, prompt) = (settings(), prompt(1)?);
    let mut times = vec![Vec::new(); settings.len()];
    for turn in 0..=TURNS {
        for ((_, sampling), times) in settings.iter().zip(&mut times) {
            let took = round(&mut runner, &prompt, sampling)?;
            // The first turn warms up.
            if turn > 0 {
                times.push(took);
            }
        }
    }
    let medians: Vec<f64> = times.into_iter().map(median).collect();
    let mut rows = Map::new();
    for ((name, _), &took) in settings.iter().zip(&medians) {
        let row = json!({ "milliseconds": took, "over_greedy": took / medians[0] - 1.0 });
        rows.insert((*name).to_owned(), row);
    }
    report("rounds", json!({ "rows": DEPTH + 1, "settings": Value::Object(rows) }));
    Ok(())
}

/// The median milliseconds of a round that drafted to the full depth.
fn round(runner: &mut Runner, prompt: &[u32], sampling: &SamplingOptions) -> Result<f64> {
    let request = Request { max_tokens: Some(TOKENS), sampling: sampling.clone(), ..Request::greedy(prompt) };
    let (mut last, mut gaps) = (Instant::now(), Vec::new());
    let mut sink = |event: Event| {
        if let Event::Token { .. } = event {
            // Tokens of one round come together; the wait lies before the first.
            let now = Instant::now();
            gaps.push((now - last).as_secs_f64() * 1e3);
            last = now;
        }
        ControlFlow::<FinishReason>::Continue(())
    };
    runner.generate(&request, &mut sink)?;
    gaps.retain(|gap| *gap > WAITED);
    // The first gap holds the prompt, the last round may be cut to the budget.
    let rounds = gaps.get(1..gaps.len().saturating_sub(1)).unwrap_or_default();
    Ok(median(rounds.to_vec()))
}

/// Gaps shorter than this, in milliseconds, lie inside a round.
const WAITED: f64 = 2.0;
