//! The JSON that `generate` and `score` print. Field names and order are a stable interface.

use foretoken_runner::{FinishReason, Report, Score};
use foretoken_speculate::{Provenance, SourceCounts};
use serde::Serialize;

use crate::{colour, sink::Answer};

#[derive(Debug, Serialize)]
pub(crate) struct Generated<'a> {
    prompt_ids: &'a [u32],
    ids: &'a [u32],
    text: Option<&'a str>,
    finish_reason: &'static str,
    usage: Usage,
    speculation: Speculation<'a>,
    timing: Timing,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<Logprob<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provenance: Option<Vec<Origin>>,
}

/// Where a token came from.
#[derive(Debug, Serialize)]
struct Origin {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    drafter: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<usize>,
}

impl From<Provenance> for Origin {
    fn from(provenance: Provenance) -> Self {
        let (drafter, position) = match provenance {
            Provenance::Drafted { drafter, position } => (Some(drafter), Some(position)),
            Provenance::Forced { position } => (None, Some(position)),
            _ => (None, None),
        };
        Self { kind: colour::name(provenance), drafter, position }
    }
}

#[derive(Debug, Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    cached_tokens: usize,
}

#[derive(Debug, Serialize)]
struct Speculation<'a> {
    drafter: Option<&'static str>,
    rounds: &'a [(usize, usize)],
    drafted: usize,
    accepted: usize,
    tokens_per_round: f64,
    estimated_plain_seconds: Option<f64>,
    /// What the rounds took; null when no clock was read.
    actual_seconds: Option<f64>,
    /// Estimated plain time over actual time; above 1 is faster than plain.
    ratio: Option<f64>,
    /// Time that trying other depths took beyond what the best known one would have.
    probing_seconds: f64,
    sources: Vec<Source>,
    near_ties: &'a [(usize, f32)],
}

/// What one drafter did.
#[derive(Debug, Serialize)]
struct Source {
    drafter: &'static str,
    rounds: usize,
    drafted: usize,
    accepted: usize,
}

impl From<&SourceCounts> for Source {
    fn from(counts: &SourceCounts) -> Self {
        let &SourceCounts { name: drafter, rounds, drafted, accepted } = counts;
        Self { drafter, rounds, drafted, accepted }
    }
}

impl<'a> Speculation<'a> {
    fn new(report: &'a Report, near_ties: &'a [(usize, f32)]) -> Self {
        let (statistics, accounting) = (&report.statistics, &report.accounting);
        let actual = accounting.actual.as_secs_f64();
        Self {
            drafter: report.drafter,
            rounds: &statistics.rounds,
            drafted: statistics.drafted,
            accepted: statistics.accepted,
            tokens_per_round: report.tokens_per_round(),
            estimated_plain_seconds: report.estimated_plain_seconds,
            actual_seconds: (actual > 0.0).then_some(actual),
            ratio: accounting.speedup(),
            probing_seconds: accounting.probing.as_secs_f64(),
            sources: statistics.sources.iter().map(Source::from).collect(),
            near_ties,
        }
    }
}

#[derive(Debug, Serialize)]
struct Timing {
    load_seconds: f64,
    prefill_seconds: f64,
    decode_seconds: f64,
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
}

#[derive(Debug, Serialize)]
struct Logprob<'a> {
    id: u32,
    logprob: f32,
    top: &'a [(u32, f32)],
}

#[derive(Debug, Serialize)]
pub(crate) struct Scored<'a> {
    logprobs: &'a [f32],
    top_ids: &'a [u32],
    perplexity: Option<f64>,
}

impl<'a> Generated<'a> {
    pub(crate) fn new(prompt_ids: &'a [u32], answer: &'a Answer, report: &'a Report) -> Self {
        let logprobs = answer.logprobs.as_ref().map(|all| {
            let one = |(&id, of): (&u32, &'a foretoken_speculate::TokenLogprobs)| Logprob {
                id,
                logprob: of.logprob,
                top: &of.top,
            };
            answer.ids.iter().zip(all).map(one).collect()
        });
        Self {
            prompt_ids,
            ids: &answer.ids,
            text: answer.text.as_deref(),
            finish_reason: finish_reason(report.finish_reason),
            usage: Usage {
                prompt_tokens: report.usage.prompt_tokens,
                completion_tokens: report.usage.completion_tokens,
                cached_tokens: report.usage.cached_tokens,
            },
            speculation: Speculation::new(report, &answer.near_ties),
            timing: Timing {
                load_seconds: report.timing.load_seconds,
                prefill_seconds: report.timing.prefill_seconds,
                decode_seconds: report.timing.decode_seconds,
                prefill_tokens_per_second: report.timing.prefill_tokens_per_second(),
                decode_tokens_per_second: report.timing.decode_tokens_per_second(),
            },
            logprobs,
            provenance: answer.provenance.as_ref().map(|all| all.iter().map(|&p| p.into()).collect()),
        }
    }
}

impl<'a> Scored<'a> {
    pub(crate) fn new(score: &'a Score) -> Self {
        Self { logprobs: &score.logprobs, top_ids: &score.top_ids, perplexity: score.perplexity() }
    }
}

fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        // Only an interrupted answer ends here.
        _ => "cancelled",
    }
}
