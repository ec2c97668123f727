//! The look-up drafter against a naive reference, behind the engine, and in the suite that every drafter
//! runs.

use std::{path::Path, rc::Rc};

use foretoken_draft_ngram::{NgramDrafter, NgramOptions};
use foretoken_model_base::{Batch, LoadOptions, Model};
use foretoken_speculate::{
    CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter,
    testkit::{Played, Request, ScriptedTarget, conformance::check, on_cpu, play},
};
use mlx_rs::Array;
use proptest::prelude::*;

/// Below this gap between the two best logits another order of summation may choose the other token.
const NEAR_TIE: f32 = 1e-3;

fn ngram() -> Rc<dyn Drafter> {
    Rc::new(NgramDrafter::new(NgramOptions::default()).expect("the default options are legal"))
}

fn options(min_n: usize, max_n: usize) -> NgramOptions {
    let mut options = NgramOptions::default();
    (options.min_n, options.max_n) = (min_n, max_n);
    options
}

/// Collects what is offered as certain.
struct Collect {
    room: usize,
    ids: Vec<u32>,
}

impl DraftSink for Collect {
    fn room(&self) -> usize {
        self.room - self.ids.len()
    }

    fn draw(
        &mut self,
        _: &Array,
        _: Option<&foretoken_model_base::DraftVocabulary>,
    ) -> Result<Array, DraftError> {
        Err(DraftError::Other("a look-up has no logits".into()))
    }

    fn known(&mut self, ids: &[u32]) -> Result<(), DraftError> {
        self.ids.extend(ids);
        Ok(())
    }
}

/// A session and the text it is lent.
struct Bench {
    target: ScriptedTarget,
    session: Box<dyn DraftSession>,
    text: Vec<u32>,
}

impl Bench {
    fn open(options: NgramOptions, at: usize, text: &[u32]) -> Self {
        on_cpu();
        let drafter = NgramDrafter::new(options).expect("legal options");
        let session = drafter.open(at).expect("opens");
        Self { target: ScriptedTarget::new(8, |_| 0), session, text: text.to_vec() }
    }

    fn call<T>(&mut self, seen: usize, call: impl FnOnce(&mut dyn DraftSession, &mut DraftCx<'_>) -> T) -> T {
        let caches = self.target.make_caches();
        let tokens = &self.text[..seen];
        let mut cx = DraftCx { model: &self.target, target: &caches, tokens, own: None };
        call(self.session.as_mut(), &mut cx)
    }

    /// Reports the tokens of these slots; the token after them is known by then.
    fn commit(&mut self, from: usize, to: usize) -> Result<(), DraftError> {
        let ids = self.text[from..to].to_vec();
        self.call(to + 1, |s, cx| s.committed(cx, CommittedRun { ids: &ids, hidden: None, slot: from }))
    }

    /// What is offered after `current` tokens were seen, the last of them not committed.
    fn propose(&mut self, seen: usize, room: usize) -> Vec<u32> {
        let (mut out, current) = (Collect { room, ids: Vec::new() }, self.text[seen - 1]);
        self.call(seen, |s, cx| s.propose(cx, current, &mut out)).expect("proposes");
        out.ids
    }

    fn extend(&mut self, seen: usize, drafted: &[u32], room: usize) -> Vec<u32> {
        let (mut out, current) = (Collect { room, ids: Vec::new() }, self.text[seen - 1]);
        self.call(seen, |s, cx| s.extend(cx, current, drafted, &mut out)).expect("extends");
        out.ids
    }
}

/// The definition: the longest run first, then the last place, among committed tokens; the copy goes on
/// with itself.
fn reference(text: &[u32], committed: usize, room: usize, lengths: (usize, usize)) -> Vec<u32> {
    for n in (lengths.0..=lengths.1.min(text.len())).rev() {
        let run = &text[text.len() - n..];
        let Some(end) = (n..=committed).rev().find(|&end| &text[end - n..end] == run) else { continue };
        let mut all = text.to_vec();
        (0..room).for_each(|k| all.push(all[end + k]));
        return all.split_off(text.len());
    }
    Vec::new()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn offers_are_those_of_a_naive_search(
        text in prop::collection::vec(0u32..3, 2..60),
        at in 0usize..60,
        runs in prop::collection::vec((1usize..6, 0usize..9), 1..40),
        drafted in prop::collection::vec(0u32..3, 0..6),
        lengths in (1usize..4, 0usize..4).prop_map(|(min, more)| (min, min + more)),
    ) {
        let mut slot = at.min(text.len() - 1);
        let mut bench = Bench::open(options(lengths.0, lengths.1), slot, &text);
        for (length, room) in runs {
            let seen = slot + 1;
            prop_assert_eq!(bench.propose(seen, room), reference(&text[..seen], slot, room, lengths));
            let longer = [&text[..seen], &drafted].concat();
            prop_assert_eq!(bench.extend(seen, &drafted, room), reference(&longer, slot, room, lengths));
            let end = (slot + length).min(text.len() - 1);
            if end == slot {
                break;
            }
            bench.commit(slot, end).expect("in order");
            slot = end;
        }
    }
}

#[test]
fn periodic_text_goes_on_past_its_end() {
    let mut bench = Bench::open(NgramOptions::default(), 0, &[4, 1, 2, 1, 2, 1]);
    bench.commit(0, 5).expect("in order");
    assert_eq!(bench.propose(6, 7), [2, 1, 2, 1, 2, 1, 2]);
    assert_eq!(bench.propose(6, 0), [0; 0]);
}

#[test]
fn a_lone_token_and_a_new_run_have_no_continuation() {
    let mut bench = Bench::open(NgramOptions::default(), 0, &[1, 2, 3, 1]);
    assert_eq!(bench.propose(1, 4), [0; 0]);
    bench.commit(0, 3).expect("in order");
    assert_eq!(bench.propose(4, 4), [0; 0], "one equal token is no match");
}

#[test]
fn a_restored_prefix_is_known_before_the_first_run() {
    let text = [1, 2, 3, 4, 5, 1, 2];
    let mut bench = Bench::open(NgramOptions::default(), 6, &text);
    assert_eq!(bench.propose(7, 3), [3, 4, 5]);
}

#[test]
fn the_depth_is_limited_by_the_options() {
    let mut shallow = NgramOptions::default();
    shallow.max_depth = 2;
    let mut bench = Bench::open(shallow, 0, &[1, 2, 3, 4, 1, 2]);
    bench.commit(0, 5).expect("in order");
    assert_eq!(bench.propose(6, 9), [3, 4]);
}

#[test]
fn bad_calls_are_errors() {
    assert!(NgramDrafter::new(options(0, 3)).is_err());
    assert!(NgramDrafter::new(options(3, 2)).is_err());
    let mut bench = Bench::open(NgramOptions::default(), 2, &[1, 2, 3, 4]);
    assert!(matches!(bench.commit(1, 2), Err(DraftError::Gap { expected: 2, got: 1 })));
    let mut bench = Bench::open(NgramOptions::default(), 9, &[1, 2, 3, 4]);
    let mut out = Collect { room: 2, ids: Vec::new() };
    let told = bench.call(4, |s, cx| s.propose(cx, 4, &mut out));
    assert!(matches!(told, Err(DraftError::Mismatch { .. })), "{told:?}");
}

#[test]
fn the_drafter_conforms() {
    on_cpu();
    let scripted = ScriptedTarget::new(5, |tokens| tokens.len() as u32 % 3);
    check(&scripted, ngram().as_ref(), &[1, 2, 0, 1, 2, 0, 1]).expect("conforms on a periodic target");
    let tiny = foretoken_models::testkit::tiny(7).expect("builds");
    check(tiny.as_ref(), ngram().as_ref(), &[3, 50, 7, 3, 50, 7, 3]).expect("conforms on a network");
}

fn played(model: &Rc<dyn Model>, drafter: Option<Rc<dyn Drafter>>, asked: &Request) -> Played {
    let played = play(model.clone(), drafter, asked).expect("the request is legal");
    assert!(played.error.is_none(), "{:?}", played.error);
    let ended = played.runs.iter().find_map(|run| run.speculation_ended.as_deref());
    assert_eq!(ended, None, "speculation ended");
    played
}

/// TINY, a 4-bit model whose weights stay packed, and HYB, with seeds whose texts repeat themselves.
fn h12_targets() -> [(&'static str, Rc<dyn Model>); 3] {
    on_cpu();
    let q4 = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/llama-q4"));
    let options = LoadOptions { expand: false, ..LoadOptions::cpu() };
    let packed = foretoken_models::load(q4, options).expect("golden/llama-q4 loads; run `cargo xtask model`");
    [
        ("tiny", Rc::from(foretoken_models::testkit::tiny(8).expect("builds"))),
        ("packed", Rc::from(packed.model)),
        ("hyb", Rc::from(foretoken_models::testkit::hyb(8).expect("builds"))),
    ]
}

/// The gap between the two best logits after `tokens`.
fn top_two_gap(model: &dyn Model, tokens: &[u32]) -> f32 {
    let mut caches = model.make_caches();
    let batch = Batch::from_ids(tokens, 0).expect("tokens");
    let hidden = model.forward(&batch, &mut [&mut caches]).expect("forward");
    let logits = model.unembed(&hidden.last).expect("logits").contiguous().expect("logits");
    let logits: Vec<f32> = logits.to_vec_exact().expect("float32");
    let mut row = logits[(tokens.len() - 1) * model.facts().vocabulary..].to_vec();
    row.sort_by(|a, b| b.total_cmp(a));
    row[0] - row[1]
}

#[test]
fn h12_looked_up_drafts_give_the_plain_text() {
    const TOKENS: usize = 200;
    for (name, model) in h12_targets() {
        let mut accepted = 0;
        for prompt in [&[2, 5, 7, 9][..], &[11, 42, 3, 3, 60, 17, 8, 1, 29], &[63, 0, 31]] {
            let plain = played(&model, None, &Request::greedy(prompt, TOKENS, 0)).ids;
            for depth in 1..=8 {
                let done = played(&model, Some(ngram()), &Request::greedy(prompt, TOKENS, depth));
                accepted += done.statistics.accepted;
                let Some(at) = done.ids.iter().zip(&plain).position(|(a, b)| a != b) else { continue };
                let gap = top_two_gap(model.as_ref(), &[prompt, &plain[..at]].concat());
                println!("{name}, depth {depth}: first difference at {at}, gap {gap:.3e}");
                assert!(gap < NEAR_TIE, "{name}, depth {depth}: {:?} instead of {plain:?}", done.ids);
            }
        }
        assert!(accepted > 0, "{name}: no text repeated itself, so nothing was tested");
    }
}

#[test]
fn h20_look_ups_stop_at_the_context_limit() {
    on_cpu();
    let prompt: Vec<u32> = (0..28).map(|i| i % 3 + 1).collect();
    for (depth, budget) in [(0, 4), (1, 4), (8, 4), (1, 5), (8, 5)] {
        let target = Rc::new(ScriptedTarget::new(5, |tokens| tokens.len() as u32 % 3 + 1).context(32));
        let model: Rc<dyn Model> = target.clone();
        // A budget of 5 lets the engine draft four tokens where only three rows are left.
        let ends = if budget == 5 { vec![4] } else { vec![] };
        let done =
            played(&model, Some(ngram()), &Request { ends, ..Request::greedy(&prompt, budget, depth) });
        assert_eq!(done.ids[..4], [2, 3, 1, 2], "depth {depth}");
        assert!(target.largest_position() < Some(32), "depth {depth}: {:?}", target.largest_position());
        assert_eq!(done.ids.len(), budget, "depth {depth}");
        assert!(depth == 0 || done.statistics.accepted > 0, "depth {depth}");
    }
}

#[test]
fn text_that_repeats_takes_few_rounds() {
    on_cpu();
    let target: Rc<dyn Model> = Rc::new(ScriptedTarget::new(32, |tokens| tokens.len() as u32 % 20));
    let prompt: Vec<u32> = (0..20).chain(0..5).collect();
    let done = played(&target, Some(ngram()), &Request::greedy(&prompt, 60, 8));
    assert_eq!(done.ids, played(&target, None, &Request::greedy(&prompt, 60, 0)).ids);
    let rounds: Vec<(usize, usize)> = done.statistics.rounds.clone();
    assert!(rounds.iter().all(|(drafted, accepted)| drafted == accepted), "{rounds:?}");
    assert_eq!(rounds.len(), 60usize.div_ceil(9), "nine tokens a round: {rounds:?}");
}
