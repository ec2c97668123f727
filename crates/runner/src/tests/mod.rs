//! Tests that need the insides: the decode loop by itself, and the state at rest.

mod budget;
mod decode_loop;
mod failures;
mod sampling;
mod scoring;

use std::{ops::ControlFlow, rc::Rc};

use foretoken_model_base::Model;
use foretoken_speculate::{
    DraftPolicy, Drafter, RequestState, TokenLogprobs,
    testkit::{Pattern, ScriptedDrafter, ScriptedTarget, cached_ids, on_cpu},
};

use crate::{Event, FinishReason, Report, Request, Runner, RunnerError};

/// Depths that every comparison with plain decoding goes through.
const DEPTHS: [usize; 6] = [1, 2, 3, 4, 8, 16];

/// The scripted vocabulary.
const V: usize = 29;

const PROMPT: [u32; 5] = [3, 1, 4, 1, 5];

/// What the scripted target wants: a function of the last three tokens and the length.
fn rule(tokens: &[u32]) -> u32 {
    let recent = tokens.iter().rev().take(3).fold(7u32, |sum, &id| sum * 31 % 997 + id);
    (recent + tokens.len() as u32 * 5) % V as u32
}

fn target() -> ScriptedTarget {
    on_cpu();
    ScriptedTarget::new(V, rule)
}

fn scripted(pattern: Pattern) -> Rc<dyn Drafter> {
    Rc::new(ScriptedDrafter::new(pattern, V, rule))
}

/// A drafter that knows an answer to a prompt by heart.
fn by_heart(pattern: Pattern, vocabulary: usize, prompt: usize, answer: &[u32]) -> Rc<dyn Drafter> {
    let answer = answer.to_vec();
    Rc::new(ScriptedDrafter::new(pattern, vocabulary, move |tokens| {
        answer.get(tokens.len().saturating_sub(prompt)).copied().unwrap_or(0)
    }))
}

fn plain(model: Rc<dyn Model>) -> Runner {
    Runner::new(model)
}

fn drafting(model: Rc<dyn Model>, drafter: Rc<dyn Drafter>, depth: usize) -> Runner {
    Runner::new(model).with_drafter(drafter, Some(DraftPolicy::Constant(depth)))
}

fn asked(max_tokens: usize) -> Request {
    Request { max_tokens: Some(max_tokens), ..Request::greedy(PROMPT) }
}

/// Everything that a sink heard, and the state at rest.
#[derive(Default)]
struct Heard {
    ids: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    prefill: Vec<(usize, usize)>,
    ended: Vec<String>,
    report: Option<Report>,
    error: Option<RunnerError>,
    state: Option<RequestState>,
}

impl Heard {
    fn report(&self) -> &Report {
        self.report.as_ref().unwrap_or_else(|| panic!("failed: {:?}", self.error))
    }

    fn error(&self) -> String {
        self.error.as_ref().expect("the request fails").to_string()
    }
}

/// Serves a request and ends it with `Cancelled` once `limit` tokens were streamed.
fn hear_until(runner: &mut Runner, request: &Request, limit: usize) -> Heard {
    let mut heard = Heard::default();
    let mut sink = |event: Event| {
        match event {
            Event::Token { id, logprobs, .. } => {
                heard.ids.push(id);
                heard.logprobs.extend(logprobs);
            }
            Event::Prefill { done, total } => heard.prefill.push((done, total)),
            Event::SpeculationEnded { reason } => heard.ended.push(reason),
            other => panic!("only `generate` sends {other:?}"),
        }
        let more = heard.ids.len() < limit;
        if more { ControlFlow::Continue(()) } else { ControlFlow::Break(FinishReason::Cancelled) }
    };
    let outcome = runner.serve(request, &mut sink);
    heard.state = outcome.rest.map(|(state, _)| state);
    match outcome.result {
        Ok(report) => heard.report = Some(report),
        Err(error) => heard.error = Some(error),
    }
    heard
}

fn hear(runner: &mut Runner, request: &Request) -> Heard {
    hear_until(runner, request, usize::MAX)
}

/// The state holds every token but the last, and what was streamed is a part of it.
fn assert_at_rest(heard: &Heard) {
    let state = heard.state.as_ref().expect("the request was admitted");
    let history = state.history.ids();
    state.target.level().expect("the target's layers are level");
    assert_eq!(state.target.offset(), history.len() - 1, "cached length and recorded tokens");
    assert_eq!(cached_ids(&state.target).expect("scripted caches hold ids"), history[..history.len() - 1]);
    assert!(history[state.prompt_tokens..].starts_with(&heard.ids), "streamed tokens are recorded");
}
