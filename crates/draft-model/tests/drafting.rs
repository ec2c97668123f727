//! A small model drafting for another: the suite that every drafter runs, texts against plain decoding,
//! and what the draft model has read after every round.

use std::{cell::Cell, path::Path, rc::Rc};

use foretoken_cache::CacheSet;
use foretoken_draft_model::{ModelDrafter, SharedVocabulary, TokenTable, VocabularyError, check_vocabulary};
use foretoken_model_base::{Batch, DraftVocabulary, Hidden, LoadOptions, Model, ModelError, ModelFacts};
use foretoken_models::testkit::{hyb, tiny, tiny_window};
use foretoken_sample::{RuleChoice, Sampler, SamplingOptions, Seed};
use foretoken_speculate::{
    CommittedRun, DraftCx, DraftError, DraftPolicy, DraftSession, DraftSink, Drafter, DrafterFacts,
    RequestState, make_decoder,
    testkit::{Played, Request, ScriptedTarget, conformance::check, on_cpu, play, prefill},
};
use mlx_rs::{Array, ops::indexing::TryIndexOp};

const PROMPT: [u32; 9] = [3, 50, 7, 7, 19, 2, 61, 33, 8];
const PROMPTS: [&[u32]; 3] = [&[2, 5, 7, 9], &[11, 42, 3, 3, 60, 17, 8, 1, 29], &[63, 0, 31]];

/// Below this gap between the two best logits another order of summation may choose the other token.
const NEAR_TIE: f32 = 1e-3;

/// One draft in so many is a token that the target does not want.
const SPOILED: usize = 7;

type Built = foretoken_model_base::Result<Box<dyn Model>>;

fn built(model: Built) -> Rc<dyn Model> {
    on_cpu();
    Rc::from(model.expect("builds"))
}

/// The vocabulary of two models whose logits have `tokens` columns or more.
fn shared(tokens: usize) -> SharedVocabulary {
    let names: Vec<Option<String>> = (0..tokens).map(|id| Some(id.to_string())).collect();
    let table = TokenTable { tokens: &names, ends: &[] };
    check_vocabulary(&table, &table).expect("a table is like itself")
}

fn drafter(target: &Rc<dyn Model>, model: Rc<dyn Model>) -> Rc<dyn Drafter> {
    let tokens = target.facts().vocabulary.min(model.facts().vocabulary);
    Rc::new(ModelDrafter::new(shared(tokens), target.facts(), model).expect("the models fit"))
}

/// Like [`drafter`], reading committed tokens in chunks of three.
fn eager(target: &Rc<dyn Model>, model: Rc<dyn Model>) -> Rc<dyn Drafter> {
    let tokens = target.facts().vocabulary.min(model.facts().vocabulary);
    Rc::new(ModelDrafter::with_catch_up(shared(tokens), target.facts(), model, 3).expect("the models fit"))
}

fn played(model: &Rc<dyn Model>, drafter: Option<Rc<dyn Drafter>>, asked: &Request) -> Played {
    let played = play(model.clone(), drafter, asked).expect("the request is legal");
    assert!(played.error.is_none(), "{:?}", played.error);
    assert_eq!(ended(&played), None, "speculation ended");
    played
}

fn ended(played: &Played) -> Option<&str> {
    played.runs.iter().find_map(|run| run.speculation_ended.as_deref())
}

#[test]
fn every_kind_of_draft_model_conforms() {
    let target = built(tiny(7));
    for model in [tiny(8), tiny_window(8), hyb(8)] {
        let model = built(model);
        for drafter in [drafter(&target, model.clone()), eager(&target, model.clone())] {
            check(target.as_ref(), drafter.as_ref(), &PROMPT)
                .unwrap_or_else(|violation| panic!("{}: {violation}", model.facts().family));
        }
    }
}

#[test]
fn h12_drafts_of_another_model_give_the_plain_text() {
    const TOKENS: usize = 200;
    for (target, draft) in h12_pairs() {
        for (index, prompt) in PROMPTS.into_iter().enumerate() {
            let plain = played(&target, None, &Request::greedy(prompt, TOKENS, 0)).ids;
            // The prompts share the depths: each forward of a draft model takes its time.
            for depth in (1 + index..=8).step_by(PROMPTS.len()) {
                let drafter: Rc<dyn Drafter> = Rc::new(Spoiled(drafter(&target, draft.clone())));
                let done = played(&target, Some(drafter), &Request::greedy(prompt, TOKENS, depth));
                assert_same(target.as_ref(), prompt, &done.ids, &plain, depth);
                let (drafted, accepted) = (done.statistics.drafted, done.statistics.accepted);
                assert!(accepted > 0 && accepted < drafted, "depth {depth}: {accepted} of {drafted}");
            }
        }
    }
}

/// TINY, a 4-bit model whose weights stay packed, and HYB, each with a draft model that is often right: the
/// test spoils some of its drafts.
fn h12_pairs() -> [(Rc<dyn Model>, Rc<dyn Model>); 3] {
    on_cpu();
    let load = |name: &str, expand: bool| {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden")).join(name);
        let options = LoadOptions { expand, ..LoadOptions::cpu() };
        let loaded = foretoken_models::load(&path, options);
        Rc::from(loaded.unwrap_or_else(|err| panic!("golden/{name}: {err}; run `cargo xtask model`")).model)
    };
    [
        (built(tiny(7)), built(tiny(7))),
        (load("llama-q4", false), load("llama-q4", true)),
        (built(hyb(7)), built(hyb(7))),
    ]
}

/// Equal ids, or a first difference where the target's two best tokens were all but equal.
fn assert_same(model: &dyn Model, prompt: &[u32], got: &[u32], want: &[u32], depth: usize) {
    let Some(at) = got.iter().zip(want).position(|(a, b)| a != b) else {
        return assert_eq!(got.len(), want.len());
    };
    let gap = top_two_gap(model, &[prompt, &want[..at]].concat());
    println!("{}, depth {depth}: first difference at {at}, gap {gap:.3e}", model.facts().family);
    assert!(gap < NEAR_TIE, "depth {depth}: {got:?} instead of {want:?}");
}

fn top_two_gap(model: &dyn Model, tokens: &[u32]) -> f32 {
    let mut caches = model.make_caches();
    let batch = Batch::from_ids(tokens, 0).expect("tokens");
    let hidden = model.forward(&batch, &mut [&mut caches]).expect("forward").last;
    let last = hidden.try_index((.., -1.., ..)).expect("a row");
    let logits = model.unembed(&last).expect("logits").contiguous().expect("logits");
    let mut row: Vec<f32> = logits.to_vec_exact().expect("float32");
    row.sort_by(|a, b| b.total_cmp(a));
    row[0] - row[1]
}

#[test]
fn both_rules_and_every_seed_give_the_plain_text() {
    let target = built(tiny(7));
    let asked = |seed, rule, temperature, depth| {
        let options = SamplingOptions { temperature, seed, rule, ..SamplingOptions::greedy() };
        Request { options, ..Request::greedy(&PROMPT, 32, depth) }
    };
    for (temperature, rule) in
        [(0.0, RuleChoice::Ratio), (0.0, RuleChoice::Coupled), (0.8, RuleChoice::Coupled)]
    {
        for seed in [Seed::Fixed(1), Seed::Fixed(2)] {
            let plain = played(&target, None, &asked(seed, rule, temperature, 0)).ids;
            for depth in [2, 6] {
                for model in [tiny(7), tiny(8), hyb(8)] {
                    let drafter = drafter(&target, built(model));
                    let done = played(&target, Some(drafter), &asked(seed, rule, temperature, depth));
                    assert_eq!(done.ids, plain, "{rule:?}, {seed:?}, depth {depth}");
                }
            }
        }
    }
    // Samples under the ratio rule depend on the draft model, and repeat with it.
    let once = || {
        let drafter = drafter(&target, built(tiny(8)));
        played(&target, Some(drafter), &asked(Seed::Fixed(3), RuleChoice::Ratio, 0.8, 4)).ids
    };
    assert_eq!(once(), once());
}

/// Whether caches of the draft model come with a restored prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Restored {
    Level,
    Behind,
    Empty,
}

#[test]
fn a_restored_prefix_is_read_as_far_as_it_is_missing() {
    let target = built(tiny(7));
    let more = [PROMPT.as_slice(), &[5, 6, 1, 44]].concat();
    for draft in [tiny(7), tiny(8), hyb(8)].map(built) {
        let plain = played(&target, None, &Request::greedy(&more, 40, 0)).ids;
        let cold = played(&target, Some(drafter(&target, draft.clone())), &Request::greedy(&more, 40, 4));
        assert_eq!(cold.ids, plain);
        for restored in [Restored::Level, Restored::Behind, Restored::Empty] {
            for known in [PROMPT.len() - 1, more.len() - 1] {
                let (ids, accepted) = warm(&target, &draft, &more, known, restored);
                assert_eq!(ids, plain, "{restored:?} at {known}");
                assert_eq!(accepted, cold.statistics.accepted, "{restored:?} at {known}");
            }
        }
    }
}

/// Decodes 40 tokens after a prompt of which `known` tokens are in the target's caches already.
fn warm(
    target: &Rc<dyn Model>,
    draft: &Rc<dyn Model>,
    prompt: &[u32],
    known: usize,
    restored: Restored,
) -> (Vec<u32>, usize) {
    let drafter = eager(target, draft.clone());
    let sampler = Sampler::new(SamplingOptions::greedy(), target.facts().vocabulary).expect("legal");
    let mut request =
        RequestState::new(target.as_ref(), Some(drafter.as_ref()), sampler, prompt, &[]).expect("legal");
    read(target.as_ref(), &mut request.target, &prompt[..known]);
    let own = request.own.as_mut().expect("own caches");
    match restored {
        Restored::Level => read(draft.as_ref(), own, &prompt[..known]),
        Restored::Behind => read(draft.as_ref(), own, &prompt[..known - 3]),
        Restored::Empty => {}
    }
    let mut decoder =
        make_decoder(target.clone(), Some(drafter), DraftPolicy::Constant(4), &request).expect("legal");
    prefill(target.as_ref(), decoder.as_mut(), &mut request).expect("prefill");
    let mut ids = Vec::new();
    while ids.len() < 40 {
        let run = decoder.next(&mut request, 40 - ids.len()).expect("a run");
        assert_eq!(run.speculation_ended, None);
        ids.extend(run.tokens.iter().map(|token| token.id));
    }
    let accepted = decoder.statistics().accepted;
    decoder.finish(&mut request).expect("finishes");
    assert_eq!(request.own.expect("own caches").offset(), request.target.offset());
    (ids, accepted)
}

fn read(model: &dyn Model, caches: &mut CacheSet, tokens: &[u32]) {
    let batch = Batch::from_ids(tokens, 0).expect("tokens");
    model.forward(&batch, &mut [caches]).expect("forward").last.eval().expect("evaluates");
}

/// A drafter whose every seventh draft is the token it wants least.
struct Spoiled(Rc<dyn Drafter>);

impl Drafter for Spoiled {
    fn facts(&self) -> &DrafterFacts {
        self.0.facts()
    }

    fn make_caches(&self) -> Option<CacheSet> {
        self.0.make_caches()
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        Ok(Box::new(SpoiledSession { inner: self.0.open(at)?, drawn: 0 }))
    }
}

struct SpoiledSession {
    inner: Box<dyn DraftSession>,
    /// Drafts so far.
    drawn: usize,
}

impl DraftSession for SpoiledSession {
    fn propose(
        &mut self,
        cx: &mut DraftCx<'_>,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        self.inner.propose(cx, current, &mut Spoiler { out, drawn: &mut self.drawn })
    }

    fn committed(&mut self, cx: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        self.inner.committed(cx, run)
    }

    fn settle(&mut self, cx: &mut DraftCx<'_>, next: Option<u32>) -> Result<(), DraftError> {
        self.inner.settle(cx, next)
    }
}

struct Spoiler<'a> {
    out: &'a mut dyn DraftSink,
    drawn: &'a mut usize,
}

impl DraftSink for Spoiler<'_> {
    fn room(&self) -> usize {
        self.out.room()
    }

    fn draw(&mut self, logits: &Array, vocabulary: Option<&DraftVocabulary>) -> Result<Array, DraftError> {
        *self.drawn += 1;
        match *self.drawn % SPOILED {
            0 => self.out.draw(&logits.negative()?, vocabulary),
            _ => self.out.draw(logits, vocabulary),
        }
    }

    fn known(&mut self, ids: &[u32]) -> Result<(), DraftError> {
        self.out.known(ids)
    }
}

#[test]
fn h23_a_model_drafting_for_itself_is_accepted_but_for_forced_rejections() {
    const TOKENS: usize = 100;
    let target = built(tiny(7));
    let plain = played(&target, None, &Request::greedy(&PROMPT, TOKENS, 0)).ids;
    for depth in 1..=8 {
        let drafter: Rc<dyn Drafter> = Rc::new(Spoiled(drafter(&target, built(tiny(7)))));
        let asked = Request::greedy(&PROMPT, TOKENS, depth);
        let sampler = Sampler::new(asked.options.clone(), target.facts().vocabulary).expect("legal");
        let mut request =
            RequestState::new(target.as_ref(), Some(drafter.as_ref()), sampler, &PROMPT, &[]).expect("legal");
        let mut decoder = make_decoder(target.clone(), Some(drafter), asked.policy, &request).expect("legal");
        prefill(target.as_ref(), decoder.as_mut(), &mut request).expect("prefill");
        let (mut ids, mut forced) = (Vec::new(), 0);
        while ids.len() < TOKENS {
            let drawn = decoder.statistics().drafted;
            let run = decoder.next(&mut request, TOKENS - ids.len()).expect("a run");
            let spoiled = (0..run.drafted).find(|index| (drawn + index + 1).is_multiple_of(SPOILED));
            assert_eq!(run.accepted, spoiled.unwrap_or(run.drafted), "depth {depth}, after {drawn} drafts");
            forced += usize::from(spoiled.is_some());
            ids.extend(run.tokens.iter().map(|token| token.id));
            // The last draft of a full proposal was not read; every other round ends level.
            let behind = usize::from(run.drafted > 0 && spoiled.is_none());
            let own = request.own.as_ref().expect("own caches");
            if run.drafted > 0 {
                assert_eq!(
                    own.offset() + behind,
                    request.target.offset(),
                    "depth {depth}, after {drawn} drafts"
                );
            }
        }
        assert!(forced >= TOKENS / 2 / SPOILED, "depth {depth}: {forced} forced rejections");
        assert_eq!(ids, plain, "depth {depth}");
        decoder.finish(&mut request).expect("finishes");
        assert_eq!(request.own.expect("own caches").offset(), request.target.offset());
    }
}

/// A model that fails, or does not, at a forward of its own counting.
struct Failing {
    inner: Rc<dyn Model>,
    left: Cell<usize>,
    /// Whether the caches are written before the failure.
    after: bool,
}

impl Model for Failing {
    fn facts(&self) -> &ModelFacts {
        self.inner.facts()
    }

    fn make_caches(&self) -> CacheSet {
        self.inner.make_caches()
    }

    fn forward(&self, batch: &Batch, caches: &mut [&mut CacheSet]) -> foretoken_model_base::Result<Hidden> {
        let failing = self.left.get() == 0;
        self.left.set(self.left.get().saturating_sub(1));
        let fault = || ModelError::Input {
            what: "scripted forward",
            expected: "success".into(),
            got: "failure".into(),
        };
        match failing {
            false => self.inner.forward(batch, caches),
            true if self.after => self.inner.forward(batch, caches).and(Err(fault())),
            true => Err(fault()),
        }
    }

    fn unembed(&self, last: &Array) -> foretoken_model_base::Result<Array> {
        self.inner.unembed(last)
    }
}

#[test]
fn a_failing_forward_ends_speculation_and_changes_no_token() {
    let target = built(tiny(7));
    let plain = played(&target, None, &Request::greedy(&PROMPT, 40, 0)).ids;
    for draft in [tiny(8), hyb(8)].map(built) {
        for (left, after) in (0..9).flat_map(|left| [(left, false), (left, true)]) {
            let failing = Rc::new(Failing { inner: draft.clone(), left: Cell::new(left), after });
            let drafter = eager(&target, failing);
            let done = play(target.clone(), Some(drafter), &Request::greedy(&PROMPT, 40, 3)).expect("legal");
            assert!(done.error.is_none(), "{:?}", done.error);
            assert_eq!(done.ids, plain, "failure after {left} forwards");
            assert!(ended(&done).is_some_and(|reason| reason.contains("scripted forward")), "{left}");
            let own = done.request.own.expect("own caches");
            assert!(own.is_poisoned() || own.offset() <= done.request.target.offset());
            assert!(!own.is_open(), "no transaction is left open");
        }
    }
}

#[test]
fn padding_of_either_model_is_not_drafted() {
    on_cpu();
    let script = |vocabulary| -> Rc<dyn Model> {
        // What the row wants most lies past 8 columns, if there are so many.
        Rc::new(ScriptedTarget::with_logits(vocabulary, move |tokens| {
            let wanted = tokens.len() % 8;
            let value = |id| {
                if id >= 8 {
                    20.0
                } else if id == wanted {
                    10.0
                } else {
                    0.0
                }
            };
            (0..vocabulary).map(value).collect()
        }))
    };
    let (narrow, wide) = (script(8), script(12));
    let done = played(&narrow, Some(drafter(&narrow, wide.clone())), &Request::greedy(&[0, 1, 2], 20, 4));
    assert_eq!(done.ids, (3..23).map(|slot| slot % 8).collect::<Vec<u32>>());
    assert_eq!(done.statistics.accepted, done.statistics.drafted);
    // A target that wants a token which the draft model does not know ends speculation, no more.
    let done = play(wide.clone(), Some(drafter(&wide, narrow.clone())), &Request::greedy(&[0, 1, 2], 20, 4));
    let done = done.expect("legal");
    assert!(done.error.is_none() && done.ids.iter().all(|&id| id >= 8), "{:?}", done.ids);
    assert!(ended(&done).is_some_and(|reason| reason.contains("below 8")), "{:?}", ended(&done));
}

#[test]
fn h16_logits_without_columns_for_every_token_are_refused() {
    let (target, draft) = (built(tiny(7)), built(tiny(8)));
    let refused = ModelDrafter::new(shared(65), target.facts(), draft).err();
    let want = VocabularyError::Columns { model: "target", expected: 65, got: 64 };
    assert_eq!(refused, Some(want));
}

#[test]
fn a_shorter_context_ends_drafts_and_not_the_answer() {
    on_cpu();
    let next = |tokens: &[u32]| tokens.len() as u32 % 5;
    let target: Rc<dyn Model> = Rc::new(ScriptedTarget::new(5, next));
    let draft = Rc::new(ScriptedTarget::new(5, next).context(20));
    for depth in [1, 4, 8] {
        let done =
            played(&target, Some(drafter(&target, draft.clone())), &Request::greedy(&[0, 1, 2], 40, depth));
        assert_eq!(done.ids, (3..43).map(|slot| slot % 5).collect::<Vec<u32>>());
        assert_eq!(draft.largest_position(), Some(19), "depth {depth}");
        let late = done.runs.iter().rev().take(20).map(|run| run.drafted).sum::<usize>();
        assert_eq!(late, 0, "nothing is drafted past the context");
    }
}
