//! `foretoken audit`: the user's own check that speculation changes nothing.
//!
//! Exit code 0 means that nothing beyond rounding was found, 1 that something was.

mod law;
mod parity;
mod report;

use std::{collections::BTreeSet, process::ExitCode};

use anyhow::{Result, bail};
use foretoken_runner::{FailureKind, Runner, RunnerError};
use foretoken_text::{ChatInput, Message};

use crate::{
    args::{AuditArgs, DtypeChoice},
    drafter::Asked,
    failure::{FAILED, Usage},
    load::{self, Known, Loaded, Wanted},
    output,
};
use law::Law;
use parity::{Comparison, Plan};
use report::Findings;

/// Prompts of different kinds, for users who name none: prose, code, a list.
const PROMPTS: [&str; 3] = [
    "Describe a harbour at dawn in a few sentences.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "List five fruits and one colour for each.",
];

/// Depths for users who name none, as far as the drafter goes.
const DEPTHS: [usize; 3] = [1, 4, 8];

/// What is compared, for a model without a tokenizer.
const ID_PROMPTS: [[u32; 6]; 2] = [[1, 2, 3, 4, 5, 6], [7, 3, 7, 3, 7, 3]];

pub(crate) fn run(args: &AuditArgs) -> Result<ExitCode> {
    let asked = Asked::new(&args.which)?;
    if asked.is_nothing() {
        return Err(Usage::new("--draft none leaves nothing to audit; name a head, or use auto").into());
    }
    let wanted = Wanted { draft: Some(asked.or_look_up()), kv_bits: None };
    let Loaded { worker, known } = load::load(&args.model.model, args.model.place, wanted)?;
    let prompts = prompts(args, &known)?;
    let plan = plan(args, &known, prompts)?;
    let draws = args.draws;
    let audited = worker.handle().call(move |runner| audit(runner, &plan, draws))?;
    let (comparisons, law) = audited.map_err(|error| match error.kind() {
        FailureKind::Request => Usage::new(error).into(),
        _ => anyhow::Error::from(error),
    })?;
    let name = known.drafter.map_or("none", |(name, _)| name);
    let findings = Findings { drafter: name, comparisons, law };
    let text = |id: u32| known.tokenizer.get().map(|tokenizer| tokenizer.decode(&[id]));
    output::print(&if args.json { findings.json() } else { findings.table(text) })?;
    Ok(ExitCode::from(if findings.is_clean() { 0 } else { FAILED }))
}

/// Runs on the worker thread.
fn audit(
    runner: &mut Runner,
    plan: &Plan,
    draws: usize,
) -> std::result::Result<(Vec<Comparison>, Option<Law>), RunnerError> {
    let comparisons = plan.compare(runner)?;
    let law = match draws {
        0 => None,
        _ => Some(Law::test(runner, plan, draws)?),
    };
    Ok((comparisons, law))
}

fn plan(args: &AuditArgs, known: &Known, prompts: Vec<Vec<u32>>) -> Result<Plan> {
    let Some((name, most)) = known.drafter else {
        bail!("there is no drafter to audit; name one with --draft or --drafter");
    };
    let depths: Vec<usize> = match &args.depths {
        Some(depths) => depths.0.iter().map(|&depth| depth as usize).collect(),
        None => DEPTHS.iter().map(|&depth| depth.min(most)).collect::<BTreeSet<_>>().into_iter().collect(),
    };
    if depths.is_empty() {
        return Err(Usage::new("--depths: expected at least one depth, got none").into());
    }
    if let Some(depth) = depths.iter().find(|&&depth| depth == 0 || depth > most) {
        return Err(Usage::new(format!("--depths: expected 1 to {most} for {name}, got {depth}")).into());
    }
    let ends = match known.tokenizer.get() {
        Some(tokenizer) => tokenizer.end_tokens_with(&known.facts.end_tokens),
        None => known.facts.end_tokens.clone(),
    };
    let wide = args.model.place.dtype != DtypeChoice::Bf16 && known.computes_in_f32;
    Ok(Plan {
        prompts,
        depths,
        seeds: args.seeds,
        max_tokens: args.max_tokens as usize,
        ends,
        tolerance: if wide { parity::F32_TOLERANCE } else { parity::BF16_TOLERANCE },
    })
}

fn prompts(args: &AuditArgs, known: &Known) -> Result<Vec<Vec<u32>>> {
    let mut prompts: Vec<Vec<u32>> = args.prompt_ids.iter().map(|ids| ids.0.clone()).collect();
    let own = args.prompt.is_empty() && prompts.is_empty();
    let texts: Vec<&str> = match own && known.tokenizer.get().is_some() {
        true => PROMPTS.to_vec(),
        false => args.prompt.iter().map(String::as_str).collect(),
    };
    for text in texts {
        let tokenizer = known.tokenizer.needed("--prompt", &args.model.model)?;
        let messages = [Message::user(text)];
        prompts.push(match tokenizer.has_chat_template() {
            true => tokenizer.encode_messages(&ChatInput::new(&messages))?,
            false => tokenizer.encode_raw(text)?,
        });
    }
    if prompts.is_empty() {
        let below = |ids: [u32; 6]| ids.iter().map(|id| id % known.facts.vocabulary as u32).collect();
        prompts.extend(ID_PROMPTS.map(below));
    }
    Ok(prompts)
}
