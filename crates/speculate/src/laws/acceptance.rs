//! One position judged 100,000 times: both rules, every option, every kind of draft.

use foretoken_model_base::DraftVocabulary;
use foretoken_sample::{Distribution, History, Rows, Sampler, SamplingOptions, SplitMix64};
use mlx_rs::{
    Array,
    ops::{indexing::TryIndexOp, tile},
    transforms::eval,
};

use super::{
    faulty::{Fault, Faulty, OBVIOUS},
    judge::{Bench, emitted},
    misleading::{favourite, misleading},
    options,
};
use crate::{
    Coupled, DraftSink, Ratio,
    accept::Engine,
    testkit::{Fit, exact_law, on_cpu},
};

const V: usize = 16;

/// Positions differ in what the target and the drafter think: row i is one of context i mod 4.
const CONTEXTS: usize = 4;

/// Positions of one call.
const ROWS: usize = 100_000;

/// Logits span this much.
const SPREAD: f32 = 4.0;

/// The penalties see all of it and the rest of a request's options nothing.
const HISTORY: [u32; 12] = [3, 5, 5, 9, 0, 12, 5, 3, 7, 7, 14, 1];

/// The ids of a draft vocabulary.
const FEW: [u32; 7] = [0, 2, 3, 7, 8, 11, 14];

fn filters(temperature: f32) -> [(&'static str, SamplingOptions); 6] {
    let with = |change: fn(&mut SamplingOptions)| {
        options(|o| {
            o.temperature = temperature;
            change(o);
        })
    };
    [
        ("nothing", with(|_| {})),
        ("top-k", with(|o| o.top_k = 6)),
        ("top-p", with(|o| o.top_p = 0.85)),
        ("min-p", with(|o| o.min_p = 0.08)),
        (
            "penalties",
            with(|o| (o.repeat_penalty, o.presence_penalty, o.frequency_penalty) = (1.3, 0.5, 0.4)),
        ),
        ("mask", with(|_| {})),
    ]
}

/// The target's logits in every context.
fn target_logits() -> Vec<f32> {
    random_logits(20, V)
}

/// Which ids a grammar allows in a context: the target's best and about half of the others.
fn allowed(context: usize, id: usize) -> bool {
    let best = favourite(&target_logits()[context * V..][..V]);
    id == best || (id * 7 + context * 3) % 5 < 3
}

/// Reproducible logits for every context.
fn random_logits(seed: u64, width: usize) -> Vec<f32> {
    let mut random = SplitMix64::new(seed);
    let share = |bits: u64| (bits >> 40) as f32 / (1 << 24) as f32;
    (0..CONTEXTS * width).map(|_| (share(random.next_u64()) - 0.3) * SPREAD).collect()
}

/// One row per context → one row per position, [`ROWS`] of them and `more`.
fn repeated(contexts: &Array, more: usize) -> Array {
    let rows = ROWS + more;
    let all = tile(contexts, &[rows.div_ceil(CONTEXTS) as i32, 1]).expect("copies");
    all.try_index(..rows as i32).expect("fewer rows")
}

/// The kinds of draft laws.
enum Drafts {
    /// Every id has a logit `[1,n,V]`.
    Dense(Array),
    /// Only those of a draft vocabulary `[1,n,7]`.
    Sparse(Array, DraftVocabulary),
    /// One certain id each.
    Point(Vec<u32>),
}

impl Drafts {
    fn all() -> [(&'static str, Self); 3] {
        let rows = |logits: &[f32], width: usize| {
            let contexts = Array::from_slice(logits, &[CONTEXTS as i32, width as i32]);
            repeated(&contexts, 0).expand_dims(0).expect("a batch")
        };
        let dense = target_logits();
        let dense = dense.chunks(V).enumerate().flat_map(|(i, row)| misleading(row, i % 2 == 0));
        let few = DraftVocabulary::new(FEW.to_vec(), V).expect("ascending ids");
        [
            ("dense", Self::Dense(rows(&dense.collect::<Vec<_>>(), V))),
            ("sparse", Self::Sparse(rows(&random_logits(22, FEW.len()), FEW.len()), few)),
            ("point", Self::Point((0..ROWS).map(|i| (i / CONTEXTS * 5 % V) as u32).collect())),
        ]
    }

    fn offer(&self, out: &mut dyn DraftSink) {
        match self {
            Self::Dense(logits) => out.draw(logits, None).map(drop),
            Self::Sparse(logits, few) => out.draw(logits, Some(few)).map(drop),
            Self::Point(ids) => out.known(ids),
        }
        .expect("an offer");
    }
}

/// A target under some options.
struct Case {
    name: String,
    sampler: Sampler,
    history: History,
    /// One row per position and a bonus row.
    target: Distribution,
    /// Cell context·V + id.
    law: Vec<f64>,
}

impl Case {
    fn new(filter: &str, options: SamplingOptions) -> Self {
        let host = target_logits();
        let masked = |context: usize, id: usize| filter != "mask" || allowed(context, id);
        let laws = (0..CONTEXTS).flat_map(|context| {
            let logits = &host[context * V..][..V];
            exact_law(logits, &options, &HISTORY, |id| masked(context, id as usize))
        });
        let law = laws.map(|p| p / CONTEXTS as f64).collect();
        let shape = [CONTEXTS as i32, V as i32];
        let logits = repeated(&Array::from_slice(&host, &shape), 1);
        let flags: Vec<bool> = (0..CONTEXTS * V).map(|i| masked(i / V, i % V)).collect();
        let flags = repeated(&Array::from_slice(&flags, &shape), 1);
        let (name, history) =
            (format!("{filter} at temperature {}", options.temperature), History::new(&HISTORY));
        let sampler = Sampler::new(options, V).expect("options");
        let allowed = (filter == "mask").then_some(&flags);
        let rows =
            Rows { logits: &logits, columns: None, history: &history, in_flight: None, first: 0, allowed };
        let target = sampler.distribution(rows).expect("a target");
        match &target {
            Distribution::Dense { logprobs } => eval([logprobs]),
            Distribution::Sparse { ids, logprobs } => eval([ids, logprobs]),
            Distribution::Point { ids } => eval([ids]),
        }
        .expect("an evaluation");
        Self { name, sampler, history, target, law }
    }

    fn all(temperatures: &[f32]) -> impl Iterator<Item = Self> {
        let options = temperatures.iter().flat_map(|&t| filters(t));
        options.map(|(name, options)| Self::new(name, options))
    }

    /// How [`ROWS`] emitted tokens fit the target's law.
    fn fit<R: Engine>(&self, rule: &R, drafts: &Drafts, seed: u64) -> Fit {
        let bench = Bench { sampler: &self.sampler, history: &self.history, seed };
        let verdict = bench.judge(rule, &self.target, |out| drafts.offer(out));
        let mut counts = vec![0; CONTEXTS * V];
        for (row, id) in emitted(&verdict).into_iter().enumerate() {
            counts[row % CONTEXTS * V + id as usize] += 1;
        }
        assert_eq!(counts.iter().sum::<usize>(), ROWS);
        Fit::of(&counts, &self.law)
    }
}

#[test]
fn each_rule_emits_the_targets_law() {
    on_cpu();
    let drafts = Drafts::all();
    for (seed, case) in (40..).zip(Case::all(&[0.6, 1.0, 1.5])) {
        for (kind, drafts) in &drafts {
            let ratio = case.fit(&Ratio::new(), drafts, seed);
            let coupled = case.fit(&Coupled::new(seed), drafts, seed);
            println!(
                "{}, {kind} drafts: ratio {:.2}, coupled {:.2} of the bound",
                case.name,
                ratio.share(),
                coupled.share()
            );
            assert!(ratio.holds(), "ratio, {}, {kind} drafts: {ratio:?}", case.name);
            assert!(coupled.holds(), "coupled, {}, {kind} drafts: {coupled:?}", case.name);
        }
    }
}

#[test]
fn faulty_rules_are_refused_under_every_option() {
    on_cpu();
    let [dense, ..] = Drafts::all();
    for (seed, case) in (40..).zip(Case::all(&[1.0])) {
        for fault in Fault::ALL {
            let fit = case.fit(&Faulty::new(fault), &dense.1, seed);
            println!("{}: {fault:?} {:.2} of the bound", case.name, fit.share());
            assert!(fit.share() > OBVIOUS, "{fault:?} passed, {}: {fit:?}", case.name);
        }
    }
}
