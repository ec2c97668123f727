//! The joint law of three tokens of the table model, many sequences decoded side by side.

use foretoken_sample::{History, Rows, Sampler, SamplingOptions};
use mlx_rs::Array;

use super::{
    faulty::{Fault, Faulty, OBVIOUS},
    judge::{Bench, emitted},
    misleading::misleading,
    options,
};
use crate::{
    Coupled, Ratio,
    accept::Engine,
    testkit::{Fit, TABLE_VOCABULARY as V, TableModel, exact_law, on_cpu},
};

/// The prompt's last two tokens.
pub(super) const BEFORE: [u32; 2] = [3, 5];

/// Tokens whose joint law is tested.
pub(super) const TOKENS: usize = 3;

const SEQUENCES: usize = 30_000;

/// The target.
pub(super) fn table() -> TableModel {
    TableModel::new(11)
}

/// The cell of three tokens: t1·V² + t2·V + t3.
pub(super) fn cell(tokens: &[u32]) -> usize {
    tokens.iter().fold(0, |cell, &t| cell * V + t as usize)
}

/// The joint law of the first three tokens after a prompt. `next` gives the law of a token from all those
/// before it.
pub(super) fn joint(prompt: &[u32], next: impl Fn(&[u32]) -> Vec<f64>) -> Vec<f64> {
    let mut paths = vec![(prompt.to_vec(), 1.0)];
    for _ in 0..TOKENS {
        let longer = paths.iter().flat_map(|(path, p)| {
            // A token that cannot be drawn may leave nothing to draw after it.
            let next = if *p > 0.0 { next(path) } else { vec![0.0; V] };
            let one = |(id, q): (usize, f64)| ([path.as_slice(), &[id as u32]].concat(), p * q);
            next.into_iter().enumerate().map(one).collect::<Vec<_>>()
        });
        paths = longer.collect();
    }
    paths.into_iter().map(|(_, p)| p).collect()
}

fn filters() -> [SamplingOptions; 7] {
    [
        options(|_| {}),
        options(|o| o.temperature = 0.6),
        options(|o| o.temperature = 1.5),
        options(|o| o.top_k = 3),
        options(|o| o.top_p = 0.8),
        options(|o| o.min_p = 0.2),
        options(|o| (o.temperature, o.top_k, o.top_p, o.min_p) = (1.4, 6, 0.9, 0.05)),
    ]
}

fn exact(model: &TableModel, options: &SamplingOptions) -> Vec<f64> {
    joint(&BEFORE, |path| {
        let [.., before, last] = *path else { panic!("two tokens stand before each") };
        exact_law(model.logits(before, last), options, path, |_| true)
    })
}

/// A bad drafter's logits: row t guesses what follows t, from one of the tokens that may stand before it.
pub(super) fn guesses(model: &TableModel) -> Vec<f32> {
    let row = |last: usize| {
        let before = BEFORE[usize::from(last as u32 != BEFORE[1])];
        misleading(model.logits(before, last as u32), last % 2 == 1)
    };
    (0..V).flat_map(row).collect()
}

/// Counts of the first three tokens.
fn sample<R: Engine>(rule: &R, model: &TableModel, options: &SamplingOptions) -> Vec<usize> {
    let sampler = Sampler::new(options.clone(), V).expect("options");
    let guesses = guesses(model);
    let mut paths = vec![BEFORE.to_vec(); SEQUENCES];
    for token in 0..TOKENS {
        let last = paths.iter().map(|path| path[path.len() - 1] as usize);
        let drafts: Vec<f32> = last.flat_map(|t| guesses[t * V..][..V].to_vec()).collect();
        let drafts = Array::from_slice(&drafts, &[1, SEQUENCES as i32, V as i32]);
        let rows = paths.iter().flat_map(|path| model.logits(path[path.len() - 2], path[path.len() - 1]));
        // The bonus row is not looked at.
        let rows: Vec<f32> = rows.copied().chain([0.0; V]).collect();
        let logits = Array::from_slice(&rows, &[SEQUENCES as i32 + 1, V as i32]);
        // Only its length matters: every token of every sequence has a slot of its own.
        let history = History::new(&vec![0; 1 + token * (SEQUENCES + 1)]);
        let rows = Rows {
            logits: &logits,
            columns: None,
            history: &history,
            in_flight: None,
            first: 0,
            allowed: None,
        };
        let target = sampler.distribution(rows).expect("a target");
        let bench = Bench { sampler: &sampler, history: &history, seed: 5 + token as u64 };
        let verdict = bench.judge(rule, &target, |out| out.draw(&drafts, None).map(drop).expect("an offer"));
        paths.iter_mut().zip(emitted(&verdict)).for_each(|(path, id)| path.push(id));
    }
    let mut counts = vec![0; V.pow(TOKENS as u32)];
    paths.iter().for_each(|path| counts[cell(&path[BEFORE.len()..])] += 1);
    counts
}

#[test]
fn both_rules_give_the_joint_law_of_three_tokens() {
    on_cpu();
    let model = table();
    for options in filters() {
        let law = exact(&model, &options);
        let ratio = Fit::of(&sample(&Ratio::new(), &model, &options), &law);
        let coupled = Fit::of(&sample(&Coupled::new(9), &model, &options), &law);
        println!("ratio {:.2}, coupled {:.2} of the bound", ratio.share(), coupled.share());
        assert!(ratio.holds(), "ratio: {ratio:?} under {options:?}");
        assert!(coupled.holds(), "coupled: {coupled:?} under {options:?}");
    }
}

#[test]
fn faulty_rules_miss_the_joint_law() {
    on_cpu();
    let model = table();
    for options in filters() {
        let law = exact(&model, &options);
        for fault in Fault::ALL {
            let fit = Fit::of(&sample(&Faulty::new(fault), &model, &options), &law);
            println!("{fault:?}: {:.2} of the bound", fit.share());
            assert!(fit.share() > OBVIOUS, "{fault:?} passed: {fit:?} under {options:?}");
        }
    }
}
