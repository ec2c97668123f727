//! Fifty alternating conversations with SmolLM2 under a budget of 64 MB: what is held at most, and whether
//! every answer is the one of a runner that remembers nothing.

use anyhow::{Result, ensure};
use criterion::{Criterion, criterion_group, criterion_main};
use foretoken_benches::{answer, report, smollm2, token_hash};
use foretoken_runner::{PrefixOptions, Runner};
use serde_json::json;

const CONVERSATIONS: usize = 50;
const TURNS: usize = 2;
const BUDGET: usize = 64 << 20;
/// Tokens that a turn adds, and tokens of its answer.
const TURN: usize = 24;
const TOKENS: usize = 2;

fn budget(c: &mut Criterion) {
    run(c).unwrap_or_else(|err| panic!("{err:#}"));
}

fn run(c: &mut Criterion) -> Result<()> {
    let model = smollm2()?;
    let options = PrefixOptions { budget_bytes: BUDGET, ..PrefixOptions::default() };
    let mut warm = Runner::new(model.clone()).with_prefix_cache(Some(options));
    let mut cold = Runner::new(model).with_prefix_cache(None);
    let mut chats = vec![Vec::new(); CONVERSATIONS];
    let (mut ids, mut plain, mut held, mut cached) = (Vec::new(), Vec::new(), 0, 0);
    for turn in 0..TURNS {
        for (number, chat) in chats.iter_mut().enumerate() {
            chat.extend((0..TURN).map(|i| ((i * 31 + number * 977 + turn * 53) % 2_000) as u32 + 20));
            let (said, done) = answer(&mut warm, chat, TOKENS)?;
            plain.extend(answer(&mut cold, chat, TOKENS)?.0);
            held = held.max(warm.prefix_cache().map_or(0, |cache| cache.bytes()));
            cached += done.usage.cached_tokens;
            chat.extend(&said);
            ids.extend(said);
        }
    }
    report(
        "budget",
        json!({
            "token_hash": token_hash(&ids),
            "plain_hash": token_hash(&plain),
            "conversations": CONVERSATIONS,
            "budget_bytes": BUDGET,
            "largest_bytes": held,
            "cached_tokens": cached,
        }),
    );
    ensure!(held <= BUDGET, "{held} bytes held");
    c.bench_function("budget/turn", |b| {
        b.iter(|| answer(&mut warm, &chats[0], 1).map(|(ids, _)| ids).map_err(|err| err.to_string()));
    });
    Ok(())
}

criterion_group!(benches, budget);
criterion_main!(benches);
