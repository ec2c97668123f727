//! Prints what noise, sampling and residuals cost on the CPU for a block of five rows of 49,152 logits.

use std::time::Instant;

use foretoken_sample::{Distribution, History, Result, Rows, Sampler, SamplingOptions, finite_rows, noise};
use mlx_rs::{Array, Device, transforms};

const ROWS: usize = 5;
const V: usize = 49_152;
const REPEATS: usize = 20;

fn main() -> Result<()> {
    Device::try_default()?;
    Device::set_default(&Device::cpu());
    let logits: Vec<f32> =
        (0..ROWS * V).map(|i| ((i * 7_919) % 10_007) as f32 / 700.0 - (i % 97) as f32 / 20.0).collect();
    let logits = Array::from_slice(&logits, &[ROWS as i32, V as i32]);
    let ids = Array::from_slice(&(0..V as u32).collect::<Vec<_>>(), &[V as i32]);
    report("noise", || Ok(vec![noise(1, 0..ROWS, &ids)?]))?;
    report("finite_rows", || Ok(vec![finite_rows(&logits)?]))?;

    let base = SamplingOptions { temperature: 0.8, ..SamplingOptions::greedy() };
    let penalised = SamplingOptions { repeat_penalty: 1.1, ..base.clone() };
    let cases = [
        ("greedy", SamplingOptions::greedy()),
        ("temperature", base.clone()),
        ("temperature, top-k 40", SamplingOptions { top_k: 40, ..base.clone() }),
        ("temperature, min-p 0.05", SamplingOptions { min_p: 0.05, ..base.clone() }),
        ("temperature, top-p 0.9", SamplingOptions { top_p: 0.9, ..base.clone() }),
        ("temperature, penalty 64", penalised.clone()),
        ("temperature, penalty all of 2,000", SamplingOptions { repeat_last_n: -1, ..penalised }),
    ];
    for (name, options) in cases {
        let distribution = |seed| -> Result<(Distribution, Array)> {
            let history = History::new(&(0..2_000).collect::<Vec<_>>());
            let flying = Array::from_slice(&[1u32, 2, 3, 4], &[4]);
            let rows = Rows {
                logits: &logits,
                columns: None,
                history: &history,
                in_flight: Some(&flying),
                first: 0,
                allowed: None,
            };
            let distribution = Sampler::new(options.clone(), V)?.distribution(rows)?;
            let ids = distribution.draw(seed, 0)?;
            Ok((distribution, ids))
        };
        report(&format!("{name}: filter"), || Ok(arrays(&distribution(1)?.0)))?;
        report(&format!("{name}: filter and draw"), || Ok(vec![distribution(1)?.1]))?;
    }
    residuals(&logits, &base)
}

/// Dense target against drafts over 8,192 columns, and both sparse.
fn residuals(logits: &Array, options: &SamplingOptions) -> Result<()> {
    let history = History::default();
    let rows =
        |columns| Rows { logits, columns, history: &history, in_flight: None, first: 0, allowed: None };
    let dense = Sampler::new(options.clone(), V)?.distribution(rows(None))?;
    let narrow =
        Sampler::new(SamplingOptions { top_k: 40, ..options.clone() }, V)?.distribution(rows(None))?;
    let columns: Vec<u32> = (0..ROWS as u32 * 8_192).map(|i| (i % 8_192) * 6).collect();
    let wide = Distribution::Sparse {
        ids: Array::from_slice(&columns, &[ROWS as i32, 8_192]),
        logprobs: mlx_rs::ops::full::<f32>(&[ROWS as i32, 8_192], Array::from_f32(-(8_192f32.ln())))?,
    };
    for part in [&dense, &narrow, &wide] {
        transforms::eval(&arrays(part))?;
    }
    report("residual dense − sparse 8192", || Ok(arrays(&dense.residual(&wide)?)))?;
    report("residual dense − dense", || Ok(arrays(&dense.residual(&dense)?)))?;
    report("residual sparse 40 − sparse 40", || Ok(arrays(&narrow.residual(&narrow)?)))?;
    report("residual sparse 40 − sparse 8192", || Ok(arrays(&narrow.residual(&wide)?)))
}

fn arrays(distribution: &Distribution) -> Vec<Array> {
    match distribution {
        Distribution::Dense { logprobs } => vec![logprobs.clone()],
        Distribution::Sparse { ids, logprobs } => vec![ids.clone(), logprobs.clone()],
        Distribution::Point { ids } => vec![ids.clone()],
    }
}

/// The best of several runs, each with its own wait.
fn report(name: &str, mut build: impl FnMut() -> Result<Vec<Array>>) -> Result<()> {
    let mut best = f64::INFINITY;
    for _ in 0..REPEATS {
        let start = Instant::now();
        transforms::eval(&build()?)?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{name:<50} {:>8.2} ms", best * 1e3);
    Ok(())
}
