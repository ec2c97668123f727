//! Draws: the exact law for every option, seeds, and the two steps that a ratio rule makes of them.

use foretoken_sample::{Distribution, RuleChoice, SamplingOptions, Seed, uniform};
use mlx_rs::ops::broadcast_to;
use mlx_rs::{Array, ops};

use crate::common::*;

fn sampled() -> SamplingOptions {
    SamplingOptions { temperature: 1.0, ..SamplingOptions::greedy() }
}

/// Accepts the drafts with min(1, p/q), else draws from the residual, row by row.
fn ratio(target: &Distribution, draft: &Distribution, drafts: &Array, seed: u64) -> Vec<u32> {
    let (p, q) = (target.prob(drafts).unwrap(), draft.prob(drafts).unwrap());
    let u = uniform(seed, 0..target.rows()).unwrap();
    let accepted = u.lt(p.divide(q).unwrap()).unwrap();
    let rest = target.residual(draft).unwrap().draw(seed + 1, 0).unwrap();
    words(&ops::select(accepted, drafts, rest).unwrap())
}

#[test]
fn draws_follow_the_exact_law_under_every_filter() {
    cpu();
    const N: i32 = 40_000;
    let logits = [1.0, -0.5, 2.0, 0.0, 1.5, -2.0, 0.5, 1.9];
    let rows = broadcast_to(matrix(&[&logits]), &[N, 8]).unwrap();
    let cases = [
        sampled(),
        SamplingOptions { temperature: 0.6, ..sampled() },
        SamplingOptions { temperature: 2.0, ..sampled() },
        SamplingOptions { top_k: 4, ..sampled() },
        SamplingOptions { top_p: 0.8, ..sampled() },
        SamplingOptions { min_p: 0.2, ..sampled() },
        SamplingOptions { temperature: 0.8, top_k: 6, top_p: 0.9, min_p: 0.1, ..sampled() },
    ];
    for (i, options) in cases.iter().enumerate() {
        let exact = table(&sample(options, &matrix(&[&logits])), 8).remove(0);
        let drawn = words(&sample(options, &rows).draw(100 + i as u64, 0).unwrap());
        assert_follows(&drawn, &exact, &format!("case {i}"));
    }
}

#[test]
fn neighbouring_slots_are_drawn_independently() {
    cpu();
    let drawn = words(&repeated(&[0.5, 0.3, 0.2], 60_001).draw(8, 0).unwrap());
    let pairs: Vec<u32> = drawn.windows(2).step_by(2).map(|w| w[0] * 3 + w[1]).collect();
    let p = [0.5, 0.3, 0.2];
    let exact: Vec<f64> = (0..9).map(|i| p[i / 3] * p[i % 3]).collect();
    assert_follows(&pairs, &exact, "pairs of slots");
}

#[test]
fn sparse_and_dense_rows_draw_the_same_ids() {
    cpu();
    let p = [0.05, 0.0, 0.4, 0.25, 0.0, 0.3];
    let dense = repeated(&p, 500);
    let order = [5u32, 2, 0, 3];
    let values: Vec<f32> = order.iter().map(|&i| p[i as usize].ln()).collect();
    let sparse = Distribution::Sparse {
        ids: broadcast_to(Array::from_slice(&order, &[1, 4]), &[500, 4]).unwrap(),
        logprobs: broadcast_to(matrix(&[&values]), &[500, 4]).unwrap(),
    };
    assert_eq!(words(&dense.draw(6, 17).unwrap()), words(&sparse.draw(6, 17).unwrap()));
}

#[test]
fn coupled_draws_agree_more_often_than_independent_ones() {
    cpu();
    const N: usize = 20_000;
    let (p, q) = (repeated(&[0.5, 0.3, 0.2], N), repeated(&[0.4, 0.4, 0.2], N));
    let agreement = |a: &Array, b: &Array| {
        words(a).iter().zip(words(b)).filter(|&(a, b)| *a == b).count() as f64 / N as f64
    };
    let target = p.draw(1, 0).unwrap();
    let (coupled, independent) =
        (agreement(&target, &q.draw(1, 0).unwrap()), agreement(&target, &q.draw(2, 0).unwrap()));
    println!("coupled {coupled:.3}, independent {independent:.3}");
    // Independent: Σ p·q = 0.36. Coupled: at least (1 − d) / (1 + d) with total variation d = 0.1.
    assert!(coupled >= 0.9 / 1.1 - 0.011 && (independent - 0.36).abs() < 0.014);
}

#[test]
fn h13_a_certain_draft_is_scored_as_certain() {
    cpu();
    const N: usize = 100_000;
    let target = repeated(&[0.5, 0.3, 0.2], N);
    let drafts = vector(&vec![0; N]);
    let draft = Distribution::Point { ids: drafts.clone() };
    let drawn = ratio(&target, &draft, &drafts, 77);
    assert_follows(&drawn, &[0.5, 0.3, 0.2], "argmax draft as a point");
}

#[test]
fn h13_a_draft_drawn_from_q_gives_p_again() {
    cpu();
    const N: usize = 100_000;
    let (target, draft) = (repeated(&[0.5, 0.3, 0.2], N), repeated(&[0.2, 0.7, 0.1], N));
    let residual = table(&target.slice(0..1).unwrap().residual(&draft.slice(0..1).unwrap()).unwrap(), 3);
    assert_close(&residual[0], &[0.75, 0.0, 0.25], PROBABILITY_TOLERANCE, "residual");
    let acceptance: f64 = (0..3)
        .map(|id| {
            let id = vector(&[id]);
            let of = |d: &Distribution| f64::from(floats(&d.slice(0..1).unwrap().prob(&id).unwrap())[0]);
            of(&target).min(of(&draft))
        })
        .sum();
    assert_close(&[acceptance], &[0.6], PROBABILITY_TOLERANCE, "acceptance");
    let drafts = draft.draw(78, 0).unwrap();
    let drawn = ratio(&target, &draft, &drafts, 79);
    assert_follows(&drawn, &[0.5, 0.3, 0.2], "accepted or residual");
}

#[test]
fn h14_a_broken_draft_row_never_brings_its_token_back() {
    cpu();
    const N: usize = 10_000;
    let p = [0.0, 0.97, 0.03];
    let target = repeated(&p, N);
    let drafts = vector(&vec![0; N]);
    let broken = |value: f32| Distribution::Dense {
        logprobs: broadcast_to(Array::from_f32(value), &[N as i32, 3]).unwrap(),
    };
    let sparse = Distribution::Sparse {
        ids: vector(&vec![0; N]).reshape(&[N as i32, 1]).unwrap(),
        logprobs: broadcast_to(Array::from_f32(f32::NAN), &[N as i32, 1]).unwrap(),
    };
    let cases = [
        ("NaN", broken(f32::NAN)),
        ("all −∞", broken(f32::NEG_INFINITY)),
        ("NaN at id 0 only", sparse),
        ("q = p", target.clone()),
    ];
    for (what, draft) in cases {
        let rest = words(&target.residual(&draft).unwrap().draw(5, 0).unwrap());
        assert_follows(&rest, &[0.0, 0.97, 0.03], what);
        let drawn = ratio(&target, &draft, &drafts, 6);
        assert!(!drawn.contains(&0), "{what}");
    }
}

#[test]
fn h14_draft_logits_that_are_broken_stay_in_their_row() {
    cpu();
    let logits = matrix(&[&[f32::NAN; 3], &[0.0, 1.0, 2.0], &[f32::NEG_INFINITY; 3]]);
    let target = repeated(&[0.5, 0.25, 0.25], 3);
    for options in [sampled(), SamplingOptions { top_k: 2, ..sampled() }] {
        let draft = sample(&options, &logits);
        let rest = table(&target.residual(&draft).unwrap(), 3);
        for row in [0, 2] {
            assert_close(&rest[row], &[0.5, 0.25, 0.25], PROBABILITY_TOLERANCE, "broken row");
        }
        let alone = target.slice(1..2).unwrap().residual(&draft.slice(1..2).unwrap()).unwrap();
        assert_eq!(rest[1], table(&alone, 3)[0]);
    }
}

#[test]
fn h33_seed_zero_is_a_seed() {
    cpu();
    let logits = Array::from_slice(&[0.0f32; 32 * 16], &[32, 16]);
    let text = |seed: Seed| {
        let options = SamplingOptions { seed, ..sampled() };
        words(&sample(&options, &logits).draw(options.seed_value(), 5).unwrap())
    };
    assert_eq!(text(Seed::Fixed(0)), text(Seed::Fixed(0)));
    assert_eq!(text(Seed::Fixed(1)), text(Seed::Fixed(1)));
    assert_ne!(text(Seed::Fixed(0)), text(Seed::Fixed(1)));
    assert_ne!(text(Seed::Fresh(2)), text(Seed::Fresh(3)));
    let rule = |seed, rule| SamplingOptions { seed, rule, ..sampled() }.coupled();
    assert!(rule(Seed::Fixed(0), RuleChoice::Auto) && !rule(Seed::Fresh(0), RuleChoice::Auto));
    assert!(rule(Seed::Fresh(0), RuleChoice::Coupled) && !rule(Seed::Fixed(0), RuleChoice::Ratio));
}

#[test]
fn one_slot_at_a_time_draws_the_same_text() {
    cpu();
    let all = words(&repeated(&[0.1; 10], 20).draw(4, 100).unwrap());
    let single = repeated(&[0.1; 10], 1);
    let one_by_one: Vec<u32> = (100..120).map(|slot| words(&single.draw(4, slot).unwrap())[0]).collect();
    assert_eq!(all, one_by_one);
}
