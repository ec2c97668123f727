//! The random models of the testkit: they answer in text that varies, and do not depend on how it is cut.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use std::collections::BTreeSet;

use common::{F32_TOLERANCE, difference, greedy, host, logits, on_cpu};
use foretoken_cache::Layer;
use foretoken_model_base::Model;
use foretoken_models::testkit::{TINY_VOCABULARY, hyb, tiny_window};

const SEED: u64 = 7;

fn toys() -> [(&'static str, Box<dyn Model>); 2] {
    on_cpu();
    [("tiny_window", tiny_window(SEED).unwrap()), ("hyb", hyb(SEED).unwrap())]
}

#[test]
fn toys_have_the_layers_that_their_names_promise() {
    for (name, model) in toys() {
        let caches = model.make_caches();
        let kinds: Vec<&str> = caches.layers().iter().map(Layer::kind).collect();
        match name {
            "tiny_window" => assert_eq!(kinds, ["sliding window", "full attention"].repeat(2)),
            _ => assert_eq!(kinds, ["recurrent", "full attention"].repeat(2)),
        }
        let facts = model.facts();
        assert_eq!((facts.layers, facts.width, facts.vocabulary), (4, 32, TINY_VOCABULARY));
    }
}

#[test]
fn toys_say_more_than_one_thing() {
    for (name, model) in toys() {
        let said: BTreeSet<u32> = greedy(model.as_ref(), &[2, 5, 7, 9], 64).into_iter().collect();
        println!("{name} says {} different ids", said.len());
        assert!(said.len() >= 8, "{name}: {said:?}");
    }
}

#[test]
fn toys_do_not_depend_on_how_a_text_is_cut() {
    let ids: Vec<u32> = (0..60).map(|i| (i * 37 + 11) % 64).collect();
    for (name, model) in toys() {
        let whole = host(&logits(model.as_ref(), &ids, &[60]));
        for chunks in [&[1; 60][..], &[30, 30], &[7, 1, 9, 9, 1, 3, 30], &[20, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]]
        {
            let off = difference(&host(&logits(model.as_ref(), &ids, chunks)), &whole);
            println!("{name} in {} chunks: largest difference {off:.1e}", chunks.len());
            assert!(off <= F32_TOLERANCE, "{name} in chunks {chunks:?}: {off}");
        }
    }
}
