//! Whatever a drafter offers, and wherever a request ends, the text is the plain one and the caches hold
//! the history.

mod common;

use std::rc::Rc;

use common::*;
use foretoken_cache::Layer;
use foretoken_model_base::Model;
use foretoken_sample::{Sampler, SamplingOptions, Seed};
use foretoken_speculate::{
    DraftPolicy, Drafter, RequestState, make_decoder,
    testkit::{PairDrafter, Pattern, Request, ScriptedDrafter, ScriptedTarget, Tracker, on_cpu, prefill},
};
use mlx_rs::Array;
use proptest::prelude::*;

/// A script chosen by `salt`, and one that agrees with it more or less often.
fn script(salt: u32) -> impl Fn(&[u32]) -> u32 + Clone + 'static {
    move |tokens| {
        let mix = |sum: u32, &t: &u32| sum.wrapping_mul(1_664_525).wrapping_add(t + salt);
        (tokens.iter().rev().take(4).fold(salt, mix) >> 7) % VOCABULARY as u32
    }
}

fn half_right(salt: u32, luck: u32) -> impl Fn(&[u32]) -> u32 + 'static {
    let right = script(salt);
    move |tokens| {
        let slip = (tokens.len() as u32).wrapping_mul(2_654_435_761).wrapping_add(salt) >> 16;
        right(tokens) + u32::from(slip % 8 >= luck)
    }
}

fn policies() -> impl Strategy<Value = DraftPolicy> {
    prop_oneof![
        (0..9_usize).prop_map(DraftPolicy::Constant),
        (1..6_usize, 1..9_usize).prop_map(|(initial, max)| DraftPolicy::Heuristic { initial, max }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_drafter_gives_the_plain_text_and_level_caches(
        salt in 0..1000_u32,
        luck in 0..9_u32,
        prompt in prop::collection::vec(0..VOCABULARY as u32, 1..12),
        ends in prop::collection::vec(0..VOCABULARY as u32, 0..3),
        max_tokens in 1..20_usize,
        policy in policies(),
        seed in prop::option::of(0..5_u64),
        own in any::<bool>(),
    ) {
        on_cpu();
        let options = seed.map_or_else(SamplingOptions::greedy, |seed| sampled(Seed::Fixed(seed)));
        let asked = Request { prompt, ends, max_tokens, options, policy, ..Request::greedy(&[0], 1, 0) };
        let target = || Rc::new(ScriptedTarget::new(VOCABULARY, script(salt)));
        let plain = played(target(), None, &asked);
        check_contents(&plain);
        let inner: Rc<dyn Drafter> = match own {
            true => Rc::new(PairDrafter::new(VOCABULARY)),
            false => Rc::new(ScriptedDrafter::new(Pattern::Oracle, VOCABULARY, half_right(salt, luck))),
        };
        let tracker = Rc::new(Tracker::new(inner));
        let done = played(target(), Some(tracker.clone()), &asked);
        prop_assert_eq!(&done.ids, &plain.ids);
        check_contents(&done);
        let history = done.request.history.ids();
        let counts = tracker.counts();
        if policy != DraftPolicy::Constant(0) || own {
            let committed = counts.committed();
            prop_assert_eq!(committed.as_deref(), Some(&history[..history.len() - 1]));
        }
        prop_assert_eq!((counts.opened, counts.finished), (counts.settled_with_next, counts.settled_with_next));
        prop_assert_eq!(counts.open(), 0);
        if let Some(own) = done.request.own.as_ref() {
            prop_assert_eq!(own.offset(), done.request.target.offset());
        }
    }
}

/// Where the first keys and values of every layer lie in memory.
fn buffers(request: &RequestState) -> Vec<usize> {
    let address = |array: &Array| {
        array.eval().expect("an evaluation");
        // SAFETY: the array is evaluated float32; the pointer is compared, never read.
        unsafe { mlx_sys::mlx_array_data_float32(array.as_ptr()) as usize }
    };
    let of = |layer: &Layer| {
        let view = layer.get().view().expect("a view").expect("rows");
        [address(&view.keys), address(&view.values)]
    };
    request.target.layers().iter().flat_map(of).collect()
}

#[test]
fn decoding_writes_the_caches_in_place() {
    on_cpu();
    let model: Rc<dyn Model> = Rc::from(foretoken_models::testkit::tiny(7).expect("a tiny model"));
    let drafters: [Option<Rc<dyn Drafter>>; 2] =
        [None, Some(Rc::new(ScriptedDrafter::new(Pattern::Oracle, 64, |tokens| tokens[0])))];
    for drafter in drafters {
        let sampler = Sampler::new(SamplingOptions::greedy(), 64).expect("options");
        let mut request =
            RequestState::new(model.as_ref(), drafter.as_deref(), sampler, &PROMPT, &[]).expect("a request");
        let policy = DraftPolicy::Constant(3);
        let mut decoder = make_decoder(model.clone(), drafter, policy, &request).expect("a decoder");
        prefill(model.as_ref(), decoder.as_mut(), &mut request).expect("a prefill");
        decoder.next(&mut request, 100).expect("a run");
        let before = buffers(&request);
        for _ in 0..21 {
            decoder.next(&mut request, 100).expect("a run");
        }
        assert_eq!(buffers(&request), before, "a step copied a buffer");
        // A view kept over a step is what makes MLX copy, and this test see it.
        let held = request.target.layers()[0].get().view().expect("a view");
        decoder.next(&mut request, 100).expect("a run");
        assert_ne!(buffers(&request), before);
        drop(held);
        decoder.finish(&mut request).expect("an end");
    }
}
