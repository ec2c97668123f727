//! Every kind passes the conformance kit, and every broken cache is found by it.

use std::time::Instant;

use foretoken_cache::{
    KvCache, KvFormat, Layer, LayerCache, QuantizedCache, RecurrentCache, RotatingCache,
    testkit::{
        Fault, Plan, Report, RowForm, Toy, ToyState, Violation, check_layers, check_rows, check_states,
        on_cpu,
    },
};

/// Sequences per kind.
const CASES: u64 = 10_000;
const SEED: u64 = 0x466f_7265_746f_6b65;
/// Sequences in which a broken cache must be found.
const FAULTY: u64 = 500;

/// Fails on a violation; a run must also have done what it is for.
fn passes(name: &str, run: impl FnOnce(&Plan) -> Result<Report, Violation>) {
    on_cpu();
    let (plan, began) = (Plan::new(SEED, CASES), Instant::now());
    let report = run(&plan).unwrap_or_else(|violation| panic!("{name}: {violation}"));
    println!("{name}: {report:?} in {:?}", began.elapsed());
    let busy = report.looks.min(report.rejections).min(report.restores).min(report.refusals);
    assert!(busy as u64 > CASES / 4, "{name}: {report:?}");
}

fn one(make: impl Fn() -> Layer, form: RowForm) -> impl FnOnce(&Plan) -> Result<Report, Violation> {
    move |plan| check_layers(plan, form, || vec![make()])
}

#[test]
fn full_attention_conforms() {
    passes("kv", one(|| Layer::Kv(KvCache::new()), RowForm::SMALL));
}

#[test]
fn a_small_window_conforms() {
    passes("window 5", one(|| Layer::Rotating(RotatingCache::new(5)), RowForm::SMALL));
}

#[test]
fn a_window_that_wraps_now_and_then_conforms() {
    passes("window 16", one(|| Layer::Rotating(RotatingCache::new(16)), RowForm::SMALL));
}

#[test]
fn folded_states_conform() {
    passes("recurrent", one(|| Layer::Recurrent(RecurrentCache::new()), RowForm::SMALL));
}

#[test]
fn packed_rows_conform() {
    let format = KvFormat::new(4, 32).expect("a known format");
    passes("quantized", one(|| Layer::Quantized(QuantizedCache::new(format)), RowForm::PACKED));
}

#[test]
fn a_set_of_every_kind_conforms() {
    let layers = || {
        vec![
            Layer::Kv(KvCache::new()),
            Layer::Rotating(RotatingCache::new(7)),
            Layer::Recurrent(RecurrentCache::new()),
        ]
    };
    passes("mixed", |plan| check_layers(plan, RowForm::SMALL, layers));
}

#[test]
fn layers_conform_without_a_set_too() {
    on_cpu();
    let plan = Plan::new(SEED, FAULTY);
    check_rows(&plan, RowForm::SMALL, None, KvCache::new).unwrap_or_else(|v| panic!("{v}"));
    check_rows(&plan, RowForm::SMALL, Some(6), || RotatingCache::new(6)).unwrap_or_else(|v| panic!("{v}"));
    check_states(&plan, RecurrentCache::new).unwrap_or_else(|v| panic!("{v}"));
}

const PAIR: RowForm = RowForm { heads: 2, key: 2, value: 1 };

fn toy(window: Option<usize>, fault: Fault) -> Result<Report, Violation> {
    on_cpu();
    check_rows(&Plan::new(SEED, FAULTY), PAIR, window, || Toy::new(window, fault))
}

fn toy_state(fault: Fault) -> Result<Report, Violation> {
    on_cpu();
    check_states(&Plan::new(SEED, FAULTY), || ToyState::new(fault))
}

#[test]
fn caches_that_share_no_code_with_ours_can_conform() {
    toy(None, Fault::None).unwrap_or_else(|v| panic!("{v}"));
    toy(Some(6), Fault::None).unwrap_or_else(|v| panic!("{v}"));
    toy_state(Fault::None).unwrap_or_else(|v| panic!("{v}"));
}

/// Fails unless the kit found the fault, in words like these.
fn rejected(found: Result<Report, Violation>, words: &str) {
    let violation = found.expect_err("a broken cache");
    println!("{violation}");
    assert!(violation.what.contains(words), "{violation}");
    assert!(!violation.calls.is_empty() && violation.to_string().contains("of seed"));
}

#[test]
fn h02_a_window_off_by_one_is_rejected() {
    rejected(toy(Some(6), Fault::WideWindow), "not [");
}

#[test]
fn h07_a_view_instead_of_a_copy_is_rejected() {
    rejected(toy(None, Fault::ViewSnapshot), "not [");
}

#[test]
fn h05_one_stale_layer_is_rejected() {
    rejected(toy(None, Fault::StaleLayer), "in slot");
}

#[test]
fn h21_a_state_that_kept_a_rejected_token_is_rejected() {
    rejected(toy_state(Fault::KeptToken), "the state is ");
}

#[test]
fn h22_a_tail_that_kept_rejected_inputs_is_rejected() {
    rejected(toy_state(Fault::KeptTail), "the tail holds inputs");
}

#[test]
fn bytes_that_are_not_given_back_are_rejected() {
    rejected(toy(None, Fault::KeptBytes), "bytes are still held");
    rejected(toy_state(Fault::KeptBytes), "bytes are still held");
}

/// A window cache of ours with the mask left out for single queries, as a full cache has none.
struct Unmasked(KvCache);

impl LayerCache for Unmasked {
    fn offset(&self) -> usize {
        self.0.offset()
    }

    fn append(
        &mut self,
        keys: &mlx_rs::Array,
        values: &mlx_rs::Array,
    ) -> foretoken_cache::Result<foretoken_cache::View> {
        let view = self.0.append(keys, values)?;
        if keys.dim(2) == 1 { Ok(view) } else { view.narrow(keys.dim(2) as usize, 6) }
    }

    fn view(&self) -> foretoken_cache::Result<Option<foretoken_cache::View>> {
        self.0.view()?.map(|view| view.narrow(1, 5)).transpose()
    }

    fn can_rewind(&self, offset: usize) -> bool {
        self.0.can_rewind(offset)
    }

    fn rewind(&mut self, offset: usize) -> foretoken_cache::Result<()> {
        self.0.rewind(offset)
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn snapshot(
        &mut self,
        slots: std::ops::Range<usize>,
    ) -> foretoken_cache::Result<foretoken_cache::LayerSnapshot> {
        self.0.snapshot(slots)
    }

    fn can_restore(&self, path: &[&foretoken_cache::LayerSnapshot]) -> foretoken_cache::Result<()> {
        self.0.can_restore(path)
    }

    fn restore(&mut self, path: &[&foretoken_cache::LayerSnapshot]) -> foretoken_cache::Result<()> {
        self.0.restore(path)
    }

    fn snapshot_bytes(&self) -> usize {
        self.0.snapshot_bytes()
    }

    fn abandon(&mut self) {
        self.0.abandon();
    }
}

#[test]
fn h02_a_window_without_a_mask_for_single_queries_is_rejected() {
    on_cpu();
    let plan = Plan::new(SEED, FAULTY);
    rejected(check_rows(&plan, RowForm::SMALL, Some(6), || Unmasked(KvCache::new())), "sees [");
}

#[test]
fn one_plan_is_always_the_same_run() {
    on_cpu();
    let plan = Plan::new(7, 50);
    let run = || {
        let report = check_states(&plan, RecurrentCache::new).unwrap_or_else(|v| panic!("{v}"));
        format!("{report:?}")
    };
    assert_eq!(run(), run());
    let (first, second) = (toy_state(Fault::KeptTail), toy_state(Fault::KeptTail));
    assert_eq!(first.expect_err("broken").to_string(), second.expect_err("broken").to_string());
}
