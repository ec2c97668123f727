//! The measuring depth policy on SmolLM2 with its sequential head: chats of at least a hundred tokens, each
//! compared with plain decoding in A B B A order and with every fixed depth.
//!
//! Arguments name chats; `--estimates` shows what was learned and every round.
//!
//! One runner serves all chats, as it would for a user: what it measured on one chat it knows on the next.

use std::rc::Rc;

use anyhow::Result;
use foretoken_benches::{answer, chat, head, median, prompt, report, smollm2, token_hash};
use foretoken_draft_ngram::{NgramDrafter, NgramOptions};
use foretoken_model_base::Model;
use foretoken_runner::{Report, Runner};
use foretoken_speculate::{DraftPolicy, Drafter};
use serde_json::json;

/// The deepest fixed depth.
const DEEPEST: usize = 6;
/// Comparisons with plain decoding, in A B B A order.
const PAIRS: usize = 5;
/// Answers of each fixed depth; the first of the pairs go with them.
const FIXED: usize = 2;
/// Tokens of an answer to a traced chat, and to a long one.
const TRACED_TOKENS: usize = 112;
const LONG_TOKENS: usize = 112;

const LONG: [(&str, &str); 4] = [
    ("story", "Write a long story about a lighthouse keeper who finds a letter in a bottle."),
    (
        "code",
        "Write a Python class for a stack with push, pop, peek, size and is_empty, with a test for each.",
    ),
    ("list", "List the planets of the solar system with three facts about each of them."),
    ("explain", "Explain in detail how a refrigerator works, step by step."),
];

fn main() -> Result<()> {
    let model = smollm2()?;
    let drafter = head("seq", model.as_ref())?;
    let mut chats = Vec::new();
    for index in 0..4 {
        chats.push((format!("traced-{index}"), prompt(index)?, TRACED_TOKENS));
    }
    for (name, message) in LONG {
        chats.push((name.to_owned(), chat(message)?, LONG_TOKENS));
    }
    let look_up: Rc<dyn Drafter> = Rc::new(NgramDrafter::new(NgramOptions::default())?);
    let both = Runner::new(model.clone()).with_prefix_cache(None);
    let mut measuring = Measuring {
        head: runner(&model, Some(&drafter), None),
        both: both.with_drafters(vec![drafter.clone(), look_up], None)?,
    };
    let mut ratios = Vec::new();
    let asked: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let wanted = |name: &str| asked.iter().any(|a| "depth".contains(a.as_str()) || name.contains(a.as_str()));
    chats.retain(|(name, ..)| asked.is_empty() || wanted(name));
    for (name, prompt, tokens) in &chats {
        ratios.push(compare(&model, &drafter, &mut measuring, (name, prompt, *tokens))?);
    }
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let lowest = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    report(
        "depth/all",
        json!({ "chats": ratios.len(), "geometric_mean_ratio": mean, "lowest_ratio": lowest }),
    );
    Ok(())
}

/// Without a policy, the runner's default; without a drafter, plain.
fn runner(model: &Rc<dyn Model>, drafter: Option<&Rc<dyn Drafter>>, policy: Option<DraftPolicy>) -> Runner {
    let plain = Runner::new(model.clone()).with_prefix_cache(None);
    match drafter {
        Some(drafter) => plain.with_drafter(drafter.clone(), policy),
        None => plain,
    }
}

/// Runners under the default policy, whose estimates go from chat to chat.
struct Measuring {
    /// With the head.
    head: Runner,
    /// With the head and look-ups.
    both: Runner,
}

/// Returns how many times as fast as plain decoding the policy was, the median of pairs.
fn compare(
    model: &Rc<dyn Model>,
    drafter: &Rc<dyn Drafter>,
    measuring: &mut Measuring,
    (name, prompt, tokens): (&str, &[u32], usize),
) -> Result<f64> {
    let mut plain = runner(model, None, None);
    let constant = |depth| runner(model, Some(drafter), Some(DraftPolicy::Constant(depth)));
    let mut fixed: Vec<Runner> = (1..=DEEPEST).map(constant).collect();
    let (mut against, mut both) = (vec![Vec::new(); DEEPEST], Vec::new());
    let (mut ratios, mut answers) = (Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        let (mut speeds, mut hashes) = ([0.0; 2], [String::new(), String::new()]);
        for turn in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
            let asked = if turn == 0 { &mut plain } else { &mut measuring.head };
            let (ids, done) = answer(asked, prompt, tokens)?;
            (speeds[turn], hashes[turn]) = (done.timing.decode_tokens_per_second(), token_hash(&ids));
            if turn == 1 {
                answers.push(done);
            }
        }
        ratios.push(speeds[1] / speeds[0]);
        anyhow::ensure!(hashes[0] == hashes[1], "{name}: drafting changed the text");
        if pair < FIXED {
            let (ids, done) = answer(&mut measuring.both, prompt, tokens)?;
            anyhow::ensure!(hashes[0] == token_hash(&ids), "{name}: look-ups changed the text");
            both.push(done.timing.decode_tokens_per_second() / speeds[0]);
        }
        for (depth, runner) in fixed.iter_mut().enumerate().filter(|_| pair < FIXED) {
            let (_, done) = answer(runner, prompt, tokens)?;
            against[depth].push(done.timing.decode_tokens_per_second() / speeds[0]);
        }
    }
    let (ratio, fixed) =
        (median(ratios.clone()), against.iter().map(|ratios| mean(ratios)).collect::<Vec<f64>>());
    if std::env::args().any(|a| a == "--estimates") {
        eprintln!("{:?}", measuring.head.estimates().borrow());
        answers.iter().for_each(|done| eprintln!("{:?}", done.statistics.rounds));
    }
    tell(name, (&ratios, ratio, &fixed), mean(&both), answers.last());
    Ok(ratio)
}

fn mean(ratios: &[f64]) -> f64 {
    ratios.iter().sum::<f64>() / ratios.len() as f64
}

fn tell(name: &str, (ratios, ratio, fixed): (&[f64], f64, &[f64]), both: f64, last: Option<&Report>) {
    let best = fixed.iter().copied().fold(1.0, f64::max);
    let Some(last) = last else { return };
    report(
        &format!("depth/{name}"),
        json!({
            "tokens": last.usage.completion_tokens,
            "ratio": ratio,
            "ratios": ratios,
            "fixed_ratios": fixed,
            "of_best_fixed": ratio / best,
            "with_look_ups": both,
            "tokens_per_round": last.tokens_per_round(),
            "estimated_ratio": last.accounting.speedup(),
            "probing_seconds": last.accounting.probing.as_secs_f64(),
            "decode_seconds": last.timing.decode_seconds,
        }),
    );
}
