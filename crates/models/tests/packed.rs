//! Keys and values in fewer bits: which layers change, what is refused, and how far logits move.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use common::{difference, expected, host, on_cpu, workspace};
use foretoken_cache::{KvFormat, Layer};
use foretoken_model_base::{Batch, LoadOptions, Model};
use foretoken_models::{kv_format, load, testkit, with_packed_kv};

/// How far SmolLM2's logits may move, as a share of the largest of them.
const EIGHT_BITS: f32 = 2e-3;
const FOUR_BITS: f32 = 5e-2;

fn smollm2() -> Box<dyn Model> {
    on_cpu();
    load(&workspace("models/fetched/SmolLM2-135M-Instruct.Q4_1.gguf"), LoadOptions::cpu()).unwrap().model
}

/// The logits after all tokens, in chunks as a prompt has them, and what the caches hold then.
fn logits(model: &dyn Model, tokens: &[u32]) -> (Vec<f32>, usize) {
    let mut caches = model.make_caches();
    let mut last = None;
    for chunk in tokens.chunks(37) {
        let batch = Batch::from_ids(chunk, caches.offset()).unwrap();
        last = Some(model.forward(&batch, &mut [&mut caches]).unwrap().last);
    }
    (host(&model.unembed(&last.unwrap()).unwrap()), caches.bytes())
}

#[test]
fn logits_move_as_little_as_the_bits_allow_and_the_caches_shrink() {
    let tokens = expected("golden/smollm2-135m-mtp/golden-seq.safetensors").at("tokens").ids().unwrap();
    let (want, whole) = logits(smollm2().as_ref(), &tokens);
    let most = want.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    for (bits, tolerance) in [(8, EIGHT_BITS), (4, FOUR_BITS)] {
        let plain = smollm2();
        let format = kv_format(plain.as_ref(), bits).unwrap();
        assert_eq!(format, KvFormat::new(bits, 64).unwrap());
        let packed = with_packed_kv(plain, format).unwrap();
        assert_eq!((packed.facts().family, packed.mtp().is_some()), ("llama", true));
        let (got, bytes) = logits(packed.as_ref(), &tokens);
        let off = difference(&got, &want) / most;
        println!("{bits} bits: logits move by {off:.1e} of the largest, {bytes} bytes instead of {whole}");
        assert!(off <= tolerance, "{bits} bits: {off:.1e}");
        // Two scales of four bytes for 64 numbers are one bit more a number.
        assert!(bytes * 32 <= whole * (bits + 2), "{bytes} of {whole}");
    }
}

#[test]
fn sets_of_one_model_keep_one_identity_and_only_full_layers_change() {
    on_cpu();
    // No group fits these small heads, but sets can be made all the same.
    let model = testkit::hyb(1).unwrap();
    let format = kv_format(model.as_ref(), 8).unwrap();
    let error = with_packed_kv(model, format).err().unwrap().to_string();
    assert!(error.contains("multiple of 32") && error.contains("size 8"), "{error}");

    let packed = with_packed_kv(smollm2(), KvFormat::new(4, 32).unwrap()).unwrap();
    let (a, b) = (packed.make_caches(), packed.make_caches());
    assert_eq!(a.id(), b.id());
    assert!(a.layers().iter().all(|layer| matches!(layer, Layer::Quantized(_))));
}

#[test]
fn bits_that_do_not_exist_are_refused() {
    on_cpu();
    let model = testkit::tiny(1).unwrap();
    for bits in [0, 1, 2, 3, 5, 6, 16] {
        let error = kv_format(model.as_ref(), bits).unwrap_err().to_string();
        assert!(error.contains("4 or 8") && error.contains(&bits.to_string()), "{error}");
    }
}
