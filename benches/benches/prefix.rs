//! The second turn of a chat of 4,000 tokens with SmolLM2: what is prefilled, and how long the first token
//! takes, with the first turn remembered and without.

use std::{ops::ControlFlow, time::Instant};

use anyhow::{Result, ensure};
use criterion::{Criterion, criterion_group, criterion_main};
use foretoken_benches::{median, report, smollm2, token_hash};
use foretoken_runner::{Event, Report, Request, Runner};
use serde_json::json;

/// Tokens of the first turn, its answer included.
const CHAT: usize = 4_000;
/// Of these, the answer.
const ANSWER: usize = 8;
/// What the second turn adds.
const TURN: usize = 40;
/// Tokens decoded to compare both.
const TOKENS: usize = 4;
/// Second turns measured warm; each differs from the others.
const ROUNDS: usize = 5;
/// How much sooner the first token must come.
const REQUIRED: f64 = 20.0;

fn prefix(c: &mut Criterion) {
    run(c).unwrap_or_else(|err| panic!("{err:#}"));
}

fn run(c: &mut Criterion) -> Result<()> {
    let model = smollm2()?;
    let mut warm = Runner::new(model.clone());
    let mut chat = ids(0, CHAT - ANSWER);
    chat.extend(serve(&mut warm, &chat, ANSWER)?.ids);
    let mut turns = (1..).map(|turn| [&chat[..], &ids(turn, TURN)].concat());
    let mut next = || turns.next().unwrap_or_default();
    let measured = (0..ROUNDS).map(|_| next()).map(|turn| Ok((serve(&mut warm, &turn, TOKENS)?, turn)));
    let measured = measured.collect::<Result<Vec<_>>>()?;
    let (last, turn) = &measured[ROUNDS - 1];
    let mut cold = Runner::new(model).with_prefix_cache(None);
    let plain = serve(&mut cold, turn, TOKENS)?;
    let warm_seconds = median(measured.iter().map(|(served, _)| served.seconds).collect());
    let (timing, usage) = (&last.report.timing, &last.report.usage);
    report(
        "prefix",
        json!({
            "token_hash": token_hash(&last.ids),
            "plain_hash": token_hash(&plain.ids),
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "prefilled_tokens": timing.prefilled_tokens,
            "cold_prefilled_tokens": plain.report.timing.prefilled_tokens,
            "cold_seconds_to_first_token": plain.seconds,
            "warm_seconds_to_first_token": warm_seconds,
            "ratio": plain.seconds / warm_seconds,
            "required_ratio": REQUIRED,
            "prefix_cache_bytes": warm.prefix_cache().map_or(0, |cache| cache.bytes()),
        }),
    );
    // The last token of a prompt, or of an answer, is evaluated when its successor is wanted.
    let prefilled = timing.prefilled_tokens;
    ensure!(prefilled <= TURN, "{prefilled} tokens prefilled, {TURN} are new");
    ensure!(plain.seconds / warm_seconds >= REQUIRED, "the first token comes less than {REQUIRED}x sooner");
    let mut group = c.benchmark_group("prefix");
    group.sample_size(10);
    group.bench_function("second turn", |b| {
        b.iter_batched(
            &mut next,
            |turn| {
                serve(&mut warm, &turn, 1)
                    .map(|served| token_hash(&served.ids))
                    .map_err(|err| err.to_string())
            },
            criterion::BatchSize::PerIteration,
        );
    });
    group.finish();
    Ok(())
}

struct Served {
    ids: Vec<u32>,
    /// Until the first token.
    seconds: f64,
    report: Report,
}

fn serve(runner: &mut Runner, prompt: &[u32], tokens: usize) -> Result<Served> {
    let request = Request { max_tokens: Some(tokens), ..Request::greedy(prompt) };
    let (mut ids, mut seconds, started) = (Vec::new(), f64::NAN, Instant::now());
    let report = runner.generate(&request, &mut |event: Event| {
        if let Event::Token { id, .. } = event {
            if ids.is_empty() {
                seconds = started.elapsed().as_secs_f64();
            }
            ids.push(id);
        }
        ControlFlow::Continue(())
    })?;
    Ok(Served { ids, seconds, report })
}

/// Ids of words; a seed gives the same ones everywhere.
fn ids(seed: usize, count: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * 31 + seed * 977) % 2_000) as u32 + 20).collect()
}

criterion_group!(benches, prefix);
criterion_main!(benches);
