//! What the measuring depth policy costs on machines that exist only as numbers, and whether recorded traces
//! replay. `FILE…` arguments that end in `.trace` are replayed as well.

use std::path::Path;

use anyhow::{Context, Result};
use foretoken_benches::{
    report,
    simulator::{Machine, Summary, changes, machines, replayed, summary},
};
use foretoken_speculate::Trace;
use serde_json::json;

const ROUNDS: usize = 2_000;
const SEEDS: std::ops::Range<u64> = 0..8;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    for file in arguments.iter().filter(|a| a.ends_with(".trace")) {
        replay(Path::new(file))?;
    }
    let wanted = |name: &str| arguments.is_empty() || arguments.iter().any(|a| name.contains(a.as_str()));
    if !wanted("simulator") {
        return Ok(());
    }
    println!(
        "{:<62} {:>8} {:>8} {:>8} {:>8} {:>10}",
        "machine", "best", "regret", "worst", "oracle", "over plain"
    );
    let stationary: Vec<Vec<Machine>> = machines().into_iter().map(|machine| vec![machine]).collect();
    table("simulator/stationary", &stationary);
    let changing: Vec<Vec<Machine>> = changes().into_iter().map(|(one, two)| vec![one, two]).collect();
    table("simulator/changing", &changing);
    Ok(())
}

/// One line per run of machines, and one report for all of them.
fn table(name: &str, runs: &[Vec<Machine>]) {
    let summaries: Vec<Summary> = runs.iter().map(|machines| summary(machines, ROUNDS, SEEDS)).collect();
    for s in &summaries {
        let best: Vec<String> = s.best.iter().map(usize::to_string).collect();
        let [regret, worst, oracle, over] = [s.regret, s.worst, s.oracle, s.over_plain].map(|x| 100.0 * x);
        let best = best.join(",");
        println!("{:<62} {best:>8} {regret:>7.2}% {worst:>7.2}% {oracle:>7.2}% {over:>9.2}%", s.name);
    }
    let mean = summaries.iter().map(|s| s.regret).sum::<f64>() / summaries.len() as f64;
    let worst = summaries.iter().map(|s| s.regret).fold(f64::NEG_INFINITY, f64::max);
    let no_pay = summaries.iter().filter(|s| s.best.iter().all(|&depth| depth == 0));
    let over_plain = no_pay.map(|s| s.over_plain).fold(f64::NEG_INFINITY, f64::max);
    report(
        name,
        json!({
            "rounds": ROUNDS,
            "texts": SEEDS.end,
            "machines": summaries.len(),
            "mean_regret": mean,
            "largest_regret": worst,
            "largest_over_plain_where_no_depth_pays": over_plain.is_finite().then_some(over_plain),
        }),
    );
}

fn replay(file: &Path) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let trace: Trace = text.parse().with_context(|| format!("{} is no trace", file.display()))?;
    let (same, rounds) = replayed(&trace);
    report(
        &format!("simulator/replay/{}", file.file_stem().unwrap_or_default().to_string_lossy()),
        json!({ "rounds": rounds, "decided_alike": same }),
    );
    anyhow::ensure!(same == rounds, "{} of {rounds} rounds were decided otherwise", rounds - same);
    Ok(())
}
