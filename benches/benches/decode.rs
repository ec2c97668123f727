//! Greedy decoding of traced chats, plainly and with both heads: criterion times whole answers, and one
//! report per head and depth compares it with plain decoding in A B B A order.

use anyhow::Result;
use criterion::{Criterion, criterion_group, criterion_main};
use foretoken_benches::{answer, head, median, prompt, report, runner, smollm2, token_hash};
use foretoken_runner::Runner;
use serde_json::json;

const TOKENS: usize = 64;
/// The chat that asks for code, and one that asks for prose.
const CHATS: [(usize, &str); 2] = [(1, "code"), (0, "prose")];
const CASES: [(&str, usize); 4] = [("seq", 2), ("seq", 4), ("single", 2), ("single", 4)];

fn decode(c: &mut Criterion) {
    run(c).unwrap_or_else(|err| panic!("{err:#}"));
}

fn run(c: &mut Criterion) -> Result<()> {
    let model = smollm2()?;
    let mut group = c.benchmark_group("decode");
    group.sample_size(10);
    for (chat, kind) in CHATS {
        let prompt = prompt(chat)?;
        let mut plain = runner(&model, None, 0);
        group.bench_function(format!("plain/{kind}"), |b| {
            b.iter(|| answer(&mut plain, &prompt, TOKENS).map(|(ids, _)| token_hash(&ids)));
        });
        for (style, depth) in CASES {
            let mut drafted = runner(&model, Some(head(style, model.as_ref())?), depth);
            compare(&format!("decode/{style}-{depth}/{kind}"), &mut plain, &mut drafted, &prompt)?;
        }
    }
    group.finish();
    Ok(())
}

/// Plain, drafted, drafted, plain.
fn compare(name: &str, plain: &mut Runner, drafted: &mut Runner, prompt: &[u32]) -> Result<()> {
    let (first, before) = answer(plain, prompt, TOKENS)?;
    let (ids, one) = answer(drafted, prompt, TOKENS)?;
    let (_, two) = answer(drafted, prompt, TOKENS)?;
    let (_, after) = answer(plain, prompt, TOKENS)?;
    let speed = |reports: [&foretoken_runner::Report; 2]| {
        median(reports.iter().map(|r| r.timing.decode_tokens_per_second()).collect())
    };
    let (plain_speed, drafted_speed) = (speed([&before, &after]), speed([&one, &two]));
    report(
        name,
        json!({
            "token_hash": token_hash(&ids),
            "plain_hash": token_hash(&first),
            "tokens_per_second": drafted_speed,
            "plain_tokens_per_second": plain_speed,
            "ratio": drafted_speed / plain_speed,
            "tokens_per_round": one.tokens_per_round(),
            "accepted": one.statistics.accepted,
            "drafted": one.statistics.drafted,
            "peak_memory_bytes": one.peak_memory,
        }),
    );
    Ok(())
}

criterion_group!(benches, decode);
criterion_main!(benches);
