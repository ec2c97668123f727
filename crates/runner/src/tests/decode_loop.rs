//! The decode loop against a decoder that only plays back runs.

use std::{cell::RefCell, collections::VecDeque, ops::ControlFlow, rc::Rc};

use foretoken_cache::CacheSet;
use foretoken_sample::{History, Sampler, SamplingOptions, SplitMix64};
use foretoken_speculate::{
    Accounting, Decoder, Provenance, RequestState, Run, SpeculateError, States, Statistics, Token,
};

use crate::{
    Event, FinishReason, RunnerError,
    decode::{Decoded, decode},
    memory::crossed,
};

type DecodeResult<T> = Result<T, SpeculateError>;

/// Plays back runs; `log` is what a sink can see of the request's history.
struct Playback {
    runs: VecDeque<DecodeResult<Vec<u32>>>,
    records: bool,
    log: Rc<RefCell<Vec<u32>>>,
    statistics: Statistics,
}

impl Decoder for Playback {
    fn layers(&self) -> Vec<usize> {
        Vec::new()
    }

    fn heard(&mut self, _: &mut RequestState, _: &[u32], _: &States, _: usize) -> DecodeResult<()> {
        Ok(())
    }

    fn next(&mut self, request: &mut RequestState, remaining: usize) -> DecodeResult<Run> {
        assert!(remaining > 0, "a decoder is never asked for nothing");
        let ids = self.runs.pop_front().expect("a scripted run is left")?;
        if self.records {
            request.history.extend(&ids);
            *self.log.borrow_mut() = request.history.ids().to_vec();
        }
        let token = |&id: &u32| Token { id, logprobs: None, margin: None, provenance: Provenance::Plain };
        Ok(Run { tokens: ids.iter().map(token).collect(), ..Run::default() })
    }

    fn drain(&mut self, _: &mut RequestState) -> DecodeResult<Option<Token>> {
        Ok(None)
    }

    fn finish(self: Box<Self>, _: &mut RequestState) -> DecodeResult<()> {
        Ok(())
    }

    fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    fn accounting(&self, _: &RequestState) -> Accounting {
        Accounting::default()
    }
}

fn state(ends: &[u32]) -> RequestState {
    RequestState {
        target: CacheSet::default(),
        own: None,
        others: Vec::new(),
        sampler: Sampler::new(SamplingOptions::greedy(), 1000).expect("greedy is valid"),
        history: History::new(&[1, 2, 3]),
        current: 3,
        prompt_tokens: 3,
        ends: ends.to_vec(),
        stream: SplitMix64::new(0),
        constraint: None,
        exact: None,
    }
}

fn playback(runs: Vec<DecodeResult<Vec<u32>>>) -> Playback {
    Playback { runs: runs.into(), records: true, log: Rc::default(), statistics: Statistics::default() }
}

/// Runs the loop; every streamed token must already be recorded, with the whole run it came in.
fn stream(mut decoder: Playback, ends: &[u32], budget: usize) -> (Vec<u32>, crate::Result<Decoded>) {
    let (mut streamed, log) = (Vec::new(), decoder.log.clone());
    let mut state = state(ends);
    let mut sink = |event: Event| {
        if let Event::Token { id, .. } = event {
            assert_eq!(log.borrow().get(3 + streamed.len()), Some(&id), "streamed before it was recorded");
            streamed.push(id);
        }
        ControlFlow::Continue(())
    };
    let decoded = decode(&mut state, &mut decoder, budget, &mut sink);
    (streamed, decoded)
}

#[test]
fn every_token_of_a_run_is_recorded_before_the_first_is_streamed() {
    let (streamed, decoded) = stream(playback(vec![Ok(vec![5, 6, 7]), Ok(vec![8])]), &[], 4);
    assert_eq!(streamed, [5, 6, 7, 8]);
    let decoded = decoded.expect("no failure");
    assert_eq!((decoded.finish_reason, decoded.count), (FinishReason::Length, 4));
}

#[test]
fn a_decoder_that_does_not_record_is_refused_and_nothing_is_streamed() {
    for records in [false, true] {
        let runs = vec![Ok(if records { vec![] } else { vec![5] })];
        let (streamed, decoded) = stream(Playback { records, ..playback(runs) }, &[], 4);
        assert!(streamed.is_empty());
        assert!(matches!(decoded, Err(RunnerError::Decoder { .. })), "{decoded:?}");
    }
}

#[test]
fn h17_an_end_token_inside_a_run_stops_the_output() {
    for at in 0..4 {
        let mut run = vec![5, 6, 7, 8];
        run.insert(at, 99);
        let (streamed, decoded) = stream(playback(vec![Ok(run.clone())]), &[42, 99], 10);
        assert_eq!(streamed, run[..at]);
        let decoded = decoded.expect("no failure");
        assert_eq!((decoded.finish_reason, decoded.count), (FinishReason::Stop, at));
    }
}

#[test]
fn h18_a_run_longer_than_the_budget_is_cut_and_not_counted() {
    for budget in 1..=5 {
        let (streamed, decoded) = stream(playback(vec![Ok(vec![5, 6]), Ok(vec![7, 8, 9])]), &[], budget);
        assert_eq!(streamed, [5, 6, 7, 8, 9][..budget]);
        let decoded = decoded.expect("no failure");
        assert_eq!((decoded.finish_reason, decoded.count), (FinishReason::Length, budget));
    }
}

#[test]
fn an_end_token_right_after_the_budget_is_length() {
    let (streamed, decoded) = stream(playback(vec![Ok(vec![5, 6, 99])]), &[99], 2);
    assert_eq!(streamed, [5, 6]);
    assert_eq!(decoded.expect("no failure").finish_reason, FinishReason::Length);
}

#[test]
fn a_failure_keeps_the_tokens_before_it() {
    let failure = Err(SpeculateError::NonFinite { step: 2 });
    let (streamed, decoded) = stream(playback(vec![Ok(vec![5]), Ok(vec![6]), failure]), &[], 9);
    assert_eq!(streamed, [5, 6]);
    assert!(decoded.expect_err("it failed").to_string().contains("step 2"));
}

#[test]
fn runs_that_jump_over_a_multiple_still_clear_the_buffers() {
    assert!(crossed(255, 256) && crossed(250, 262) && crossed(0, 600));
    assert!(!crossed(0, 255) && !crossed(256, 511) && !crossed(7, 7));
}
