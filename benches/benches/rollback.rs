//! What a rejection costs: rounds of eight drafts that are all accepted, and rounds that reject all of them,
//! in turn, on full layers (SmolLM2) and on random models with windows and with folded states.

use std::{ops::ControlFlow, rc::Rc, time::Instant};

use anyhow::{Result, ensure};
use criterion::{Criterion, criterion_group, criterion_main};
use foretoken_benches::{Known, median, random_hybrid, random_window, report, smollm2, token_hash};
use foretoken_model_base::{Batch, Model};
use foretoken_runner::{Event, Request, Runner};
use foretoken_sample::{Sampler, SamplingOptions};
use foretoken_speculate::{Decoder, DraftPolicy, RequestState, make_decoder};
use serde_json::json;

const DEPTH: usize = 8;
const ROUNDS: usize = 24;
/// Longer than the windows, so that they have wrapped.
const CONTEXT: usize = 600;
/// Tokens of the answer that the drafters know.
const ANSWER: usize = (DEPTH + 1) * (ROUNDS + 3);
/// How many tokens later the rejected rounds begin, so that both see the same context on average.
const LATER: usize = DEPTH * ROUNDS / 2;

fn rollback(c: &mut Criterion) {
    run(c).unwrap_or_else(|err| panic!("{err:#}"));
}

fn run(c: &mut Criterion) -> Result<()> {
    let models: [(&str, Rc<dyn Model>, f64); 3] =
        [("full", smollm2()?, 1.1), ("window", random_window()?, 1.3), ("recurrent", random_hybrid()?, 1.3)];
    let mut group = c.benchmark_group("rollback");
    group.sample_size(10);
    for (kind, model, most) in models {
        let mut sequence: Vec<u32> = (0..CONTEXT).map(|i| (i * 31 % 900) as u32 + 20).collect();
        let ids = continuation(&model, &sequence)?;
        sequence.extend(&ids);
        compare(kind, &model, &sequence, most)?;
        for right in [true, false] {
            let name = format!("{kind}/{}", if right { "accepted" } else { "rejected" });
            let mut rounds = Rounds::begin(&model, &sequence, right)?;
            let mut round = || -> Result<f64> {
                if rounds.is_over() {
                    rounds = Rounds::begin(&model, &sequence, right)?;
                }
                rounds.next()
            };
            group.bench_function(name, |b| b.iter(|| round().unwrap_or_else(|err| panic!("{err:#}"))));
        }
    }
    group.finish();
    Ok(())
}

/// The greedy answer, whatever it says: no token ends it.
fn continuation(model: &Rc<dyn Model>, prompt: &[u32]) -> Result<Vec<u32>> {
    let request = Request { max_tokens: Some(ANSWER), ..Request::greedy(prompt) };
    let mut ids = Vec::new();
    Runner::new(model.clone()).generate(&request, &mut |event: Event| {
        if let Event::Token { id, .. } = event {
            ids.push(id);
        }
        ControlFlow::Continue(())
    })?;
    Ok(ids)
}

/// One round of each in turn, so that a noisy neighbour hits both.
fn compare(kind: &str, model: &Rc<dyn Model>, sequence: &[u32], most: f64) -> Result<()> {
    let mut accepted = Rounds::begin(model, sequence, true)?;
    let mut rejected = Rounds::begin(model, sequence, false)?;
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        for (rounds, times) in [&mut accepted, &mut rejected].into_iter().zip(&mut times) {
            let seconds = rounds.next()?;
            // The first rounds still allocate.
            if round >= 2 {
                times.push(seconds * 1e3);
            }
        }
    }
    let [accepted_ms, rejected_ms] = times.map(median);
    let same = sequence.starts_with(rejected.state.history.ids());
    ensure!(same && sequence.starts_with(accepted.state.history.ids()), "{kind}: another text");
    report(
        &format!("rollback/{kind}"),
        json!({
            "token_hash": token_hash(&accepted.state.history.ids()[CONTEXT..]),
            "depth": DEPTH,
            "context": CONTEXT,
            "accepted_milliseconds": accepted_ms,
            "rejected_milliseconds": rejected_ms,
            "ratio": rejected_ms / accepted_ms,
            "required_ratio": most,
        }),
    );
    Ok(())
}

/// A request in the middle of its answer.
struct Rounds {
    state: RequestState,
    decoder: Box<dyn Decoder>,
    right: bool,
    limit: usize,
}

impl Rounds {
    fn begin(model: &Rc<dyn Model>, sequence: &[u32], right: bool) -> Result<Self> {
        let prompt = &sequence[..CONTEXT + if right { 0 } else { LATER }];
        let sampler = Sampler::new(SamplingOptions::greedy(), model.facts().vocabulary)?;
        let mut state = RequestState::new(model.as_ref(), None, sampler, prompt, &[])?;
        let drafter = Rc::new(Known::new(sequence, right));
        let mut decoder = make_decoder(model.clone(), Some(drafter), DraftPolicy::Constant(DEPTH), &state)?;
        let ids = &prompt[..prompt.len() - 1];
        state.target.begin_whole()?;
        let hidden = model.forward(&Batch::from_ids(ids, 0)?, &mut [&mut state.target])?;
        state.target.commit(ids.len())?;
        hidden.last.eval()?;
        decoder.prefilled(&mut state, ids, &hidden.aux, 0)?;
        Ok(Self { state, decoder, right, limit: sequence.len() - 2 * (DEPTH + 1) })
    }

    fn is_over(&self) -> bool {
        self.state.history.ids().len() >= self.limit
    }

    /// The seconds of one round, which goes as it is meant to.
    fn next(&mut self) -> Result<f64> {
        let started = Instant::now();
        let run = self.decoder.next(&mut self.state, 2 * DEPTH)?;
        let seconds = started.elapsed().as_secs_f64();
        let want = if self.right { DEPTH } else { 0 };
        ensure!((run.drafted, run.accepted) == (DEPTH, want), "{} of {} accepted", run.accepted, run.drafted);
        Ok(seconds)
    }
}

criterion_group!(benches, rollback);
criterion_main!(benches);
