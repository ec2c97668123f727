//! What drawing costs: five rows over SmolLM2's vocabulary, greedy against each filter.

use anyhow::Result;
use criterion::{Criterion, criterion_group, criterion_main};
use foretoken_benches::{median, report};
use foretoken_sample::{History, Rows, Sampler, SamplingOptions, Seed};
use mlx_rs::{Array, Device, random};
use serde_json::{Value, json};
use std::time::Instant;

const ROWS: i32 = 5;
const VOCABULARY: i32 = 49_152;
const ROUNDS: usize = 15;

fn cases() -> Vec<(&'static str, SamplingOptions)> {
    let warm = SamplingOptions { temperature: 0.8, seed: Seed::Fixed(7), ..SamplingOptions::greedy() };
    vec![
        ("greedy", SamplingOptions::greedy()),
        ("temperature", warm.clone()),
        ("top-k 40, top-p 0.95", SamplingOptions { top_k: 40, top_p: 0.95, ..warm.clone() }),
        ("top-p 0.95", SamplingOptions { top_p: 0.95, ..warm.clone() }),
        ("min-p 0.05", SamplingOptions { min_p: 0.05, ..warm.clone() }),
        ("repeat penalty", SamplingOptions { repeat_penalty: 1.1, ..warm }),
    ]
}

fn sampling(c: &mut Criterion) {
    run(c).unwrap_or_else(|err| panic!("{err:#}"));
}

fn run(c: &mut Criterion) -> Result<()> {
    Device::try_default()?;
    let key = random::key(1)?;
    let logits = random::normal::<f32>(&[ROWS, VOCABULARY], None, Some(3.0), &key)?;
    logits.eval()?;
    let history = History::new(&(0..64).collect::<Vec<u32>>());
    let samplers = cases()
        .into_iter()
        .map(|(name, options)| Ok((name, Sampler::new(options, VOCABULARY as usize)?)))
        .collect::<Result<Vec<_>>>()?;
    let mut group = c.benchmark_group("sampling");
    group.sample_size(20);
    for (name, sampler) in &samplers {
        group.bench_function(*name, |b| {
            b.iter(|| draw(sampler, &logits, &history).map_err(|err| err.to_string()));
        });
    }
    group.finish();
    in_turn(&samplers, &logits, &history)
}

fn in_turn(samplers: &[(&str, Sampler)], logits: &Array, history: &History) -> Result<()> {
    let mut times = vec![Vec::new(); samplers.len()];
    for _ in 0..ROUNDS {
        for ((_, sampler), times) in samplers.iter().zip(&mut times) {
            let start = Instant::now();
            draw(sampler, logits, history)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    let names = samplers.iter().map(|(name, _)| (*name).to_owned());
    let milliseconds: serde_json::Map<String, Value> =
        names.zip(times.into_iter().map(|t| json!(median(t)))).collect();
    report("sampling", json!({ "rows": ROWS, "vocabulary": VOCABULARY, "milliseconds": milliseconds }));
    Ok(())
}

fn draw(sampler: &Sampler, logits: &Array, history: &History) -> Result<Vec<u32>> {
    let rows = Rows { logits, columns: None, history, in_flight: None, first: 0, allowed: None };
    let drawn = sampler.distribution(rows)?.draw(sampler.options().seed_value(), history.ids().len())?;
    Ok(drawn.contiguous()?.to_vec_exact()?)
}

criterion_group!(benches, sampling);
criterion_main!(benches);
