//! What verifying costs: forwards of 1, 2, 5 and 9 tokens of SmolLM2 over a context of 300.

use anyhow::Result;
use criterion::{Criterion, criterion_group, criterion_main};
use foretoken_benches::{median, report, smollm2};
use foretoken_cache::CacheSet;
use foretoken_model_base::{Batch, Model};
use mlx_rs::ops::indexing::argmax_axis;
use serde_json::json;
use std::time::Instant;

const CONTEXT: usize = 300;
const WIDTHS: [usize; 4] = [1, 2, 5, 9];
const ROUNDS: usize = 15;

fn forward(c: &mut Criterion) {
    run(c).unwrap_or_else(|err| panic!("{err:#}"));
}

fn run(c: &mut Criterion) -> Result<()> {
    let model = smollm2()?;
    let mut caches = model.make_caches();
    step(model.as_ref(), &mut caches, CONTEXT)?;
    let mut group = c.benchmark_group("forward");
    group.sample_size(10);
    for width in WIDTHS {
        group.bench_function(width.to_string(), |b| {
            b.iter(|| {
                let last = step(model.as_ref(), &mut caches, width);
                caches.rewind(CONTEXT).map(|()| last.map_err(|err| err.to_string()))
            });
        });
    }
    group.finish();
    ratios(model.as_ref(), &mut caches)
}

/// The widths in turn, so that a noisy neighbour hits all of them.
fn ratios(model: &dyn Model, caches: &mut CacheSet) -> Result<()> {
    let mut times = vec![Vec::new(); WIDTHS.len()];
    for _ in 0..ROUNDS {
        for (width, times) in WIDTHS.iter().zip(&mut times) {
            let start = Instant::now();
            step(model, caches, *width)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
            caches.rewind(CONTEXT)?;
        }
    }
    let milliseconds: Vec<f64> = times.into_iter().map(median).collect();
    let ratios: Vec<f64> = milliseconds.iter().map(|ms| ms / milliseconds[0]).collect();
    report("forward", json!({ "tokens": WIDTHS, "milliseconds": milliseconds, "ratio_to_one": ratios }));
    Ok(())
}

/// Forwards `width` ids, waits, and returns the likeliest id after the last.
fn step(model: &dyn Model, caches: &mut CacheSet, width: usize) -> Result<u32> {
    let ids: Vec<u32> = (0..width).map(|i| (i * 7 % 60) as u32 + 4).collect();
    let hidden = model.forward(&Batch::from_ids(&ids, caches.offset())?, &mut [caches])?;
    let best = argmax_axis(model.unembed(&hidden.last)?, -1, None)?.reshape(&[-1])?;
    let best: Vec<u32> = best.contiguous()?.to_vec_exact()?;
    Ok(best.last().copied().unwrap_or_default())
}

criterion_group!(benches, forward);
criterion_main!(benches);
