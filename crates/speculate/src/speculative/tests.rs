//! Parking, resuming, draining and finishing under scripted depths.

use foretoken_sample::{Sampler, SamplingOptions, Seed};
use mlx_rs::Array;

use super::*;
use crate::{
    Coupled, Drafter, Speculation,
    session::{Hearing, Owner},
    testkit::{PairDrafter, Pattern, ScriptedDrafter, ScriptedTarget, Tracker, cached_ids, on_cpu, prefill},
};

const V: usize = 9;
const PROMPT: [u32; 4] = [4, 2, 8, 6];
const TOKENS: usize = 18;

fn wanted(tokens: &[u32]) -> u32 {
    tokens.iter().fold(5, |sum, &t| (sum * 7 + t + 3) % 101) % V as u32
}

fn answer() -> Vec<u32> {
    let mut path = PROMPT.to_vec();
    (0..TOKENS).for_each(|_| path.push(wanted(&path)));
    path[PROMPT.len()..].to_vec()
}

/// Depths in order, repeated.
struct Depths {
    script: Vec<usize>,
    at: usize,
}

impl Controller for Depths {
    fn choose(&mut self, situation: &Situation) -> Choice {
        let depth = self.script[self.at % self.script.len()];
        match depth.min(situation.room).min(situation.seats[0].cap) {
            0 => Choice::PLAIN,
            depth => Choice { source: Some(0), depth },
        }
    }

    fn observe(&mut self, _: &Outcome) {
        self.at += 1;
    }
}

struct Case {
    target: Rc<ScriptedTarget>,
    tracker: Rc<Tracker>,
    request: RequestState,
    decoder: Box<Speculative<Coupled>>,
}

fn case(drafter: Rc<dyn Drafter>, depths: &[usize]) -> Case {
    on_cpu();
    let target = Rc::new(ScriptedTarget::new(V, wanted));
    let tracker = Rc::new(Tracker::new(drafter));
    let sampler = Sampler::new(SamplingOptions::greedy(), V).unwrap();
    let mut request =
        RequestState::new(target.as_ref(), Some(tracker.as_ref()), sampler, &PROMPT, &[]).unwrap();
    let owner = if request.own.is_some() { Owner::Managed } else { Owner::Nobody };
    let audience = Audience::new(vec![Hearing::open(tracker.as_ref(), 0, owner)], 0);
    let director = Speculation::none().director(&audience);
    let director = Director { controller: Box::new(Depths { script: depths.to_vec(), at: 0 }), ..director };
    let mut decoder = Box::new(Speculative::new(target.clone(), audience, Coupled::new(0), director));
    prefill(target.as_ref(), decoder.as_mut(), &mut request).unwrap();
    Case { target, tracker, request, decoder }
}

impl Case {
    fn run(&mut self, tokens: usize) -> Vec<u32> {
        let mut ids = Vec::new();
        while ids.len() < tokens {
            let run = self.decoder.next(&mut self.request, tokens - ids.len()).unwrap();
            ids.extend(run.tokens.iter().map(|t| t.id));
            assert_eq!(self.request.target.offset(), self.request.history.ids().len() - 1);
        }
        ids
    }

    /// Finishes and checks that nothing was lost on the way.
    fn finish(mut self) {
        self.decoder.finish(&mut self.request).unwrap();
        let history = self.request.history.ids();
        assert_eq!(cached_ids(&self.request.target).unwrap(), history[..history.len() - 1]);
        let counts = self.tracker.counts();
        assert_eq!(counts.committed().as_deref(), Some(&history[..history.len() - 1]));
        assert_eq!((counts.settled_with_next, counts.finished, counts.open()), (1, 1, 0));
        if let Some(own) = self.request.own.as_ref() {
            assert_eq!(own.offset(), self.request.target.offset());
        }
    }
}

fn oracle() -> Rc<dyn Drafter> {
    Rc::new(ScriptedDrafter::new(Pattern::Oracle, V, wanted))
}

#[test]
fn parking_and_resuming_lose_no_token() {
    for depths in [&[0, 2][..], &[2, 0], &[0, 0, 0, 3], &[3, 0, 0, 1, 0], &[0], &[1, 1, 0]] {
        for drafter in [oracle(), Rc::new(PairDrafter::new(V))] {
            for tokens in [1, 2, 5, TOKENS] {
                let mut case = case(drafter.clone(), depths);
                assert_eq!(case.run(tokens), answer()[..tokens], "depths {depths:?}");
                case.finish();
            }
        }
    }
}

#[test]
fn a_token_under_way_goes_out_before_the_first_draft() {
    let mut case = case(oracle(), &[0, 4]);
    let before = case.target.forwards();
    let run = case.decoder.next(&mut case.request, 10).unwrap();
    assert_eq!((run.tokens.len(), case.target.forwards() - before), (1, 2), "one token, one under way");
    let run = case.decoder.next(&mut case.request, 9).unwrap();
    assert_eq!((run.tokens.len(), run.drafted, case.target.forwards() - before), (1, 0, 2), "no new forward");
    case.finish();
}

#[test]
fn draining_records_the_token_under_way() {
    let mut case = case(Rc::new(PairDrafter::new(V)), &[0]);
    let mut ids = vec![case.decoder.next(&mut case.request, 10).unwrap().tokens[0].id];
    ids.extend(case.decoder.drain(&mut case.request).unwrap().map(|t| t.id));
    assert_eq!(ids, answer()[..2]);
    assert_eq!(case.decoder.drain(&mut case.request).unwrap(), None);
    assert!(!case.request.target.is_open());
    assert_eq!(case.decoder.statistics().rounds, [(0, 0), (0, 0)]);
    case.finish();
}

#[test]
fn finishing_takes_the_token_under_way_back() {
    let mut case = case(Rc::new(PairDrafter::new(V)), &[0]);
    let run = case.decoder.next(&mut case.request, 10).unwrap();
    assert!(case.decoder.plain.is_pending());
    assert_eq!(run.tokens[0].id, answer()[0]);
    case.finish();
}

#[test]
fn an_end_token_costs_no_forward_ahead() {
    let mut case = case(oracle(), &[0]);
    case.request.ends = vec![answer()[0]];
    let before = case.target.forwards();
    case.decoder.next(&mut case.request, 10).unwrap();
    assert!(!case.decoder.plain.is_pending());
    // The scripted target runs while it is built; a lazy one would not have been computed.
    assert_eq!(case.target.forwards() - before, 2);
    assert_eq!(case.decoder.drain(&mut case.request).unwrap(), None);
    case.finish();
}

#[test]
fn a_prefill_out_of_order_is_an_error() {
    let Case { target, request: mut state, mut decoder, .. } = case(oracle(), &[2]);
    let hidden = Array::from_slice(&[0.0_f32; V], &[1, 1, V as i32]);
    for (ids, slot) in [(&[1][..], 7), (&[1, 2], PROMPT.len() - 1), (&[], PROMPT.len() - 1)] {
        let told = decoder.prefilled(&mut state, ids, &hidden, slot);
        assert!(matches!(told, Err(SpeculateError::Input { .. })), "{ids:?} at {slot}");
    }
    assert!(decoder.next(&mut state, 0).is_err());
    // Caches that do not hold the prompt are found before anything is drawn.
    let sampler =
        Sampler::new(SamplingOptions { seed: Seed::Fresh(1), ..SamplingOptions::greedy() }, V).unwrap();
    let mut cold = RequestState::new(target.as_ref(), None, sampler, &PROMPT, &[]).unwrap();
    assert!(matches!(decoder.next(&mut cold, 4), Err(SpeculateError::Input { what: "target caches", .. })));
    assert!(!cold.target.is_open());
}

#[test]
fn log_probabilities_come_with_every_token_of_a_round() {
    let options =
        SamplingOptions { logprobs: Some(3), temperature: 0.5, top_k: 1, ..SamplingOptions::greedy() };
    on_cpu();
    let tracker = Rc::new(Tracker::new(Rc::new(PairDrafter::new(3))));
    let asked = crate::testkit::Request { options, ..crate::testkit::Request::greedy(&[0, 1, 2], 4, 4) };
    let target = Rc::new(ScriptedTarget::constant(&[2.0, 1.0, 0.0]));
    let done = crate::testkit::play(target, Some(tracker.clone()), &asked).unwrap();
    assert!(tracker.counts().proposals > 0 && done.statistics.drafted > 0);
    for token in done.runs.iter().flat_map(|r| &r.tokens) {
        let report = token.logprobs.as_ref().expect("log probabilities");
        let want = [(0, -0.4076), (1, -1.4076), (2, -2.4076)];
        assert!((report.logprob - want[0].1).abs() < 1e-3);
        for (got, want) in report.top.iter().zip(want) {
            assert!(got.0 == want.0 && (got.1 - want.1).abs() < 1e-3, "{:?}", report.top);
        }
    }
}
