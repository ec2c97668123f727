//! What exact mode costs: plain and drafted answers of SmolLM2 with and without it, in turns.

use anyhow::{Result, ensure};
use foretoken_benches::{ENDS, head, median, prompt, report, runner, serve, smollm2, token_hash};
use foretoken_runner::{Request, Runner};
use foretoken_speculate::EXACT_WIDTH;
use serde_json::{Map, json};

const TOKENS: usize = 64;
const TURNS: usize = 3;
/// The chat that asks for code, and one that asks for prose.
const CHATS: [(usize, &str); 2] = [(1, "code"), (0, "prose")];
/// A name, a depth, and whether the mode is on.
const CASES: [(&str, usize, bool); 5] = [
    ("plain", 0, false),
    ("plain, exact", 0, true),
    ("depth 4", 4, false),
    ("depth 4, exact", 4, true),
    ("depth 7, exact", 7, true),
];

fn main() -> Result<()> {
    let model = smollm2()?;
    let mut runners = Vec::new();
    for (_, depth, _) in CASES {
        let drafter = if depth > 0 { Some(head("seq", model.as_ref())?) } else { None };
        runners.push(runner(&model, drafter, depth));
    }
    for (chat, kind) in CHATS {
        compare(kind, &prompt(chat)?, &mut runners)?;
    }
    Ok(())
}

fn compare(kind: &str, prompt: &[u32], runners: &mut [Runner]) -> Result<()> {
    let mut speeds = vec![Vec::new(); CASES.len()];
    let mut exact_ids: Option<Vec<u32>> = None;
    for _ in 0..TURNS {
        for (at, (name, _, exact)) in CASES.iter().enumerate() {
            let (ids, speed) = answer(&mut runners[at], prompt, *exact)?;
            speeds[at].push(speed);
            if *exact {
                let first = exact_ids.get_or_insert_with(|| ids.clone());
                ensure!(*first == ids, "{kind}, {name}: another text");
            }
        }
    }
    let speeds: Vec<f64> = speeds.into_iter().map(median).collect();
    let of_plain = CASES.iter().zip(&speeds).map(|((name, ..), speed)| {
        ((*name).to_owned(), json!({ "tokens_per_second": speed, "of_plain": speed / speeds[0] }))
    });
    let hash = token_hash(&exact_ids.unwrap_or_default());
    report(
        &format!("exact/{kind}"),
        json!({ "exact_hash": hash, "cases": of_plain.collect::<Map<_, _>>(), "width": EXACT_WIDTH }),
    );
    Ok(())
}

fn answer(runner: &mut Runner, prompt: &[u32], exact: bool) -> Result<(Vec<u32>, f64)> {
    let request = Request {
        max_tokens: Some(TOKENS),
        ends: ENDS.to_vec(),
        exact: exact.then_some(EXACT_WIDTH),
        ..Request::greedy(prompt)
    };
    let (ids, report) = serve(runner, &request)?;
    Ok((ids, report.timing.decode_tokens_per_second()))
}
