//! What a chat of 1,000 tokens holds at most, against the weights in float32, and how long loading takes.

use std::time::Instant;

use anyhow::Result;
use criterion::{Criterion, criterion_group, criterion_main};
use foretoken_benches::{answer, head, report, runner, smollm2, token_hash};
use serde_json::json;

/// Parameters of SmolLM2-135M, the embedding counted once.
const PARAMETERS: usize = 134_515_008;
const PROMPT: usize = 936;
const TOKENS: usize = 64;

fn memory(c: &mut Criterion) {
    run(c).unwrap_or_else(|err| panic!("{err:#}"));
}

fn run(c: &mut Criterion) -> Result<()> {
    let start = Instant::now();
    let model = smollm2()?;
    let load_seconds = start.elapsed().as_secs_f64();
    let prompt: Vec<u32> = (0..PROMPT).map(|i| (i * 31 % 2000) as u32 + 20).collect();
    let mut drafted = runner(&model, Some(head("seq", model.as_ref())?), 4);
    let mut group = c.benchmark_group("memory");
    group.sample_size(10);
    let (ids, last) = answer(&mut drafted, &prompt, TOKENS)?;
    group.bench_function("load", |b| {
        b.iter(|| smollm2().map(|m| m.facts().layers).map_err(|e| e.to_string()))
    });
    group.finish();
    let weights = PARAMETERS * size_of::<f32>();
    report(
        "memory",
        json!({
            "token_hash": token_hash(&ids),
            "chat_tokens": PROMPT + ids.len(),
            "peak_bytes": last.peak_memory,
            "float32_weight_bytes": weights,
            "ratio": last.peak_memory as f64 / weights as f64,
            "load_seconds": load_seconds,
        }),
    );
    Ok(())
}

criterion_group!(benches, memory);
criterion_main!(benches);
