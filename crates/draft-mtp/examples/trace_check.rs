//! Plays the four recorded chats with both shipped heads and compares tokens and rounds.
//!
//! Takes minutes on a CPU, so it is not a test: `cargo run --release -p foretoken-draft-mtp --example
//! trace_check`. Exits with an error when anything differs.

#[path = "../tests/common/mod.rs"]
mod common;

use std::{process::ExitCode, time::Instant};

use common::{STYLES, Trace, shipped, smollm2};
use foretoken_speculate::testkit::play;

fn main() -> ExitCode {
    let model = smollm2();
    let heads = STYLES.map(|style| (style, shipped(style, model.as_ref())));
    let mut wrong = 0;
    println!(
        "| chat | drafter | tokens | rounds | accepted/drafted | tokens/round | tokens/s | ids | rounds |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (chat, trace) in Trace::all().iter().enumerate() {
        let plain = [("plain", None)];
        let drafted = heads.iter().map(|(style, drafter)| (*style, Some(drafter.clone())));
        for (style, drafter) in plain.into_iter().chain(drafted) {
            let depth = if drafter.is_some() { Trace::DEPTH } else { 0 };
            let start = Instant::now();
            let played = play(model.clone(), drafter, &trace.request(depth)).expect("the request is legal");
            let seconds = start.elapsed().as_secs_f64();
            let (ids, statistics) = (played.ids, played.statistics);
            let same_ids = ids == trace.plain;
            let same_rounds = depth == 0 || statistics.rounds == trace.rounds(style);
            wrong += usize::from(!same_ids) + usize::from(!same_rounds);
            println!(
                "| {} | {style} | {} | {} | {}/{} | {:.3} | {:.1} | {} | {} |",
                chat + 1,
                ids.len(),
                statistics.rounds.len(),
                statistics.accepted,
                statistics.drafted,
                ids.len() as f64 / statistics.rounds.len() as f64,
                ids.len() as f64 / seconds,
                verdict(same_ids),
                if depth == 0 { "–" } else { verdict(same_rounds) },
            );
        }
    }
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn verdict(same: bool) -> &'static str {
    if same { "equal" } else { "DIFFER" }
}
