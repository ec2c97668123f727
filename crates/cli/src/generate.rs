//! `foretoken generate`: one prompt, one answer.

use std::{
    io::{IsTerminal, stderr, stdout},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use foretoken_runner::{FailureKind, FinishReason, Report, Request};
use foretoken_speculate::EXACT_WIDTH;
use foretoken_text::StopMatcher;

use crate::{
    args::GenerateArgs,
    drafter::{Asked, policy},
    failure::{INTERRUPTED, Usage},
    interrupt,
    json::Generated,
    load::{self, Loaded, Wanted},
    output, prompt,
    sink::{Answer, AnswerSink, Show},
    structured,
};

pub(crate) fn run(args: &GenerateArgs) -> Result<ExitCode> {
    let mut sampling = args.sampling.options(args.logprobs, fresh_seed());
    sampling.validate().map_err(Usage::new)?;
    StopMatcher::new(&args.stop).map_err(|error| Usage::new(format!("--stop: {error}")))?;
    check_options(args)?;
    let source = structured::read(args)?;
    let draft = Asked::new(&args.draft.which)?;
    let speculate = !draft.is_nothing();
    let wanted = Wanted { draft: Some(draft), kv_bits: args.kv_bits };
    let loaded = load::load(&args.model.model, args.model.place, wanted)?;
    let prompt = prompt::encode(&args.prompt, &args.model.model, &loaded.known)?;
    if !args.stop.is_empty() {
        loaded.known.tokenizer.needed("--stop", &args.model.model)?;
    }
    sampling.banned.extend(structured::banned(&args.sampling.ban, &args.model.model, &loaded.known)?);
    // What rounding could change is part of the report.
    sampling.margins = args.json;
    let compile = |source| structured::compile(source, &args.model.model, &loaded.known, &prompt.ends);
    let request = Request {
        prompt: prompt.ids.clone(),
        boundaries: Vec::new(),
        max_tokens: Some(args.max_tokens),
        sampling,
        ends: prompt.ends.clone(),
        policy: policy(args.draft.depth, loaded.known.drafter)?,
        drafters: None,
        speculate,
        grammar: source.as_ref().map(compile).transpose()?,
        exact: args.exact.then_some(EXACT_WIDTH),
    };
    let show = Show {
        streaming: !args.json,
        colour: args.show_drafts && !args.json && stdout().is_terminal(),
        logprobs: args.logprobs.is_some(),
        provenance: args.show_drafts,
    };
    let sink = AnswerSink::new(prompt.stream(&args.stop)?, show);
    interrupt::listen();
    let (answer, report) = answer(&loaded, request, sink)?;
    if args.json {
        output::print(&serde_json::to_string(&Generated::new(&prompt.ids, &answer, &report))?)?;
    } else if stderr().is_terminal() {
        eprintln!("{}", summary(&report));
    }
    Ok(match report.finish_reason {
        FinishReason::Cancelled if interrupt::asked() => ExitCode::from(INTERRUPTED),
        _ => ExitCode::SUCCESS,
    })
}

/// Serves the request with a sink on the worker thread, where it can break at the exact token.
fn answer(loaded: &Loaded, request: Request, mut sink: AnswerSink) -> Result<(Answer, Report)> {
    let (report, answer) = loaded.worker.handle().call(move |runner| {
        let report = runner.generate(&request, &mut sink);
        let answer = sink.finish(report.is_ok());
        (report, answer)
    })?;
    let report = report.map_err(|error| match error.kind() {
        FailureKind::Request => Usage::new(error).into(),
        _ => anyhow::Error::from(error),
    })?;
    Ok((answer?, report))
}

/// Options that contradict each other.
fn check_options(args: &GenerateArgs) -> Result<()> {
    let (least, most) = (args.sampling.min_tokens, args.max_tokens);
    if most > 0 && least > most {
        let expected = format!("--min-tokens: expected at most --max-tokens {most}, got {least}");
        return Err(Usage::new(expected).into());
    }
    Ok(())
}

/// Randomness for a request without a seed.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut mixer =
        foretoken_sample::SplitMix64::new(now.as_nanos() as u64 ^ u64::from(std::process::id()) << 32);
    mixer.next_u64()
}

fn summary(report: &Report) -> String {
    let (timing, statistics) = (&report.timing, &report.statistics);
    let speculation = match report.drafter {
        Some(name) => format!(
            " · {name}: {:.2} tokens a round, {} of {} drafts accepted",
            report.tokens_per_round(),
            statistics.accepted,
            statistics.drafted
        ),
        None => String::new(),
    };
    format!(
        "\x1b[2m{} tokens at {:.1} tokens/s{speculation} · prompt {} tokens at {:.0} tokens/s · loaded in {:.1} s · \
         peak memory {} MiB\x1b[0m",
        report.usage.completion_tokens,
        timing.decode_tokens_per_second(),
        report.usage.prompt_tokens,
        timing.prefill_tokens_per_second(),
        timing.load_seconds,
        report.peak_memory >> 20,
    )
}
