//! Times one model on the default device: loading, plain decoding, and forwards of 1, 2, 5 and 9 tokens.
//!
//! `cargo run --release -p foretoken-models --example forward -- MODEL`

use std::{error::Error, path::Path, time::Instant};

use foretoken_cache::CacheSet;
use foretoken_model_base::{Batch, LoadOptions, Model};
use foretoken_models::load;
use mlx_rs::{Device, ops::indexing::argmax_axis};

/// Tokens in the cache before anything is timed.
const CONTEXT: usize = 300;
const REPEATS: usize = 20;

fn main() -> Result<(), Box<dyn Error>> {
    Device::try_default()?;
    let path = std::env::args().nth(1).ok_or("usage: forward MODEL")?;
    let start = Instant::now();
    let loaded = load(Path::new(&path), LoadOptions::detect()?)?;
    println!("load              {:8.2} s", start.elapsed().as_secs_f64());
    println!(
        "memory            {:8.0} MB active, {:.0} MB peak",
        megabytes(mlx_rs::memory::active_memory()?),
        megabytes(mlx_rs::memory::peak_memory()?)
    );
    let model = loaded.model.as_ref();
    let prompt: Vec<u32> = (0..CONTEXT).map(|i| (i * 7 % 60) as u32 + 4).collect();
    let mut caches = model.make_caches();
    let start = Instant::now();
    let mut next = step(model, &prompt, &mut caches)?;
    println!("prefill           {:8.0} ms for {CONTEXT} tokens", start.elapsed().as_secs_f64() * 1e3);
    for width in [1, 2, 3, 5, 9] {
        let ids: Vec<u32> = (0..width).map(|i| next + i).collect();
        let mut times = Vec::new();
        for _ in 0..REPEATS {
            let start = Instant::now();
            step(model, &ids, &mut caches)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
            caches.rewind(CONTEXT)?;
        }
        times.sort_by(f64::total_cmp);
        println!("forward of {width}      {:8.1} ms (best {:.1})", times[REPEATS / 2], times[0]);
    }
    let start = Instant::now();
    for _ in 0..REPEATS * 2 {
        next = step(model, &[next], &mut caches)?;
    }
    let rate = (REPEATS * 2) as f64 / start.elapsed().as_secs_f64();
    println!("decode            {rate:8.1} tok/s, last id {next}");
    println!("peak memory       {:8.0} MB", megabytes(mlx_rs::memory::peak_memory()?));
    Ok(())
}

/// Forwards ids, waits, and returns the likeliest next id.
fn step(model: &dyn Model, ids: &[u32], caches: &mut CacheSet) -> Result<u32, Box<dyn Error>> {
    let offset = caches.layer(0).map_or(0, |l| l.get().offset());
    let hidden = model.forward(&Batch::from_ids(ids, offset)?, &mut [caches])?;
    let logits = model.unembed(&hidden.last)?;
    let best = argmax_axis(&logits, -1, None)?;
    Ok(*best.try_as_slice::<u32>()?.last().ok_or("no rows")?)
}

fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}
