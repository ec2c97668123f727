//! Top-k, temperature, top-p and min-p: kept sets and renormalised values.

use foretoken_sample::{Distribution, SamplingOptions};
use mlx_rs::{Array, Dtype};
use proptest::prelude::*;

use crate::common::*;

/// 1 in float32 rounding at the edge of a filter: proptest keeps clear of edges by this share.
const EDGE: f64 = 1e-4;

fn sampled() -> SamplingOptions {
    SamplingOptions { temperature: 1.0, ..SamplingOptions::greedy() }
}

fn kept(options: &SamplingOptions, p: &[f32]) -> Vec<usize> {
    support(&table(&sample(options, &matrix(&[&logs(p)])), p.len())[0])
}

#[test]
fn h24_top_k_then_top_p_never_empties_the_set() {
    cpu();
    let p = [0.3, 0.25, 0.2, 0.15, 0.1];
    for temperature in [1.0, 0.01] {
        for (top_k, top_p, legal) in [(1, 0.8, &[0][..]), (2, 0.99, &[0, 1]), (5, 0.01, &[0])] {
            let options = SamplingOptions { temperature, top_k, top_p, ..sampled() };
            let rows = mlx_rs::ops::broadcast_to(matrix(&[&logs(&p)]), &[2_000, 5]).unwrap();
            let drawn = words(&sample(&options, &rows).draw(3, 0).unwrap());
            assert!(drawn.iter().all(|id| legal.contains(id)), "{options:?}");
            if temperature == 1.0 {
                assert!(legal.iter().all(|id| drawn.contains(id)), "{options:?}");
            }
        }
    }
}

#[test]
fn h25_top_k_keeps_the_largest() {
    cpu();
    let options = SamplingOptions { top_k: 3, ..sampled() };
    let rows = mlx_rs::ops::broadcast_to(matrix(&[&[0.0, 1.0, 2.0, 3.0]]), &[10_000, 4]).unwrap();
    let distribution = sample(&options, &rows);
    let exact: Vec<f64> = [0.0, 1.0, 2.0].iter().map(|x: &f64| x.exp()).collect();
    let sum: f64 = exact.iter().sum();
    let exact = [0.0, exact[0] / sum, exact[1] / sum, exact[2] / sum];
    assert_close(&exact, &[0.0, 0.0900, 0.2447, 0.6652], 5e-5, "stated numbers");
    assert_close(&table(&distribution, 4)[0], &exact, PROBABILITY_TOLERANCE, "top-k");
    assert_follows(&words(&distribution.draw(1, 0).unwrap()), &exact, "top-k draws");
}

#[test]
fn h26_top_p_smaller_than_best_keeps_one() {
    cpu();
    let p = [0.1, 0.6, 0.3];
    let cases: [(f32, &[usize]); 6] =
        [(0.5, &[1]), (0.6, &[1]), (0.61, &[1, 2]), (0.9, &[1, 2]), (1.0, &[0, 1, 2]), (1e-6, &[1])];
    for (top_p, expected) in cases {
        let options = SamplingOptions { top_p, ..sampled() };
        let row = table(&sample(&options, &matrix(&[&logs(&p)])), 3).remove(0);
        assert_eq!(support(&row), expected, "top_p {top_p}");
        let mass: f64 = expected.iter().map(|&i| f64::from(p[i])).sum();
        let exact: Vec<f64> =
            (0..3).map(|i| if expected.contains(&i) { f64::from(p[i]) / mass } else { 0.0 }).collect();
        assert_close(&row, &exact, PROBABILITY_TOLERANCE, "renormalised");
    }
}

#[test]
fn h28_rows_do_not_see_each_other() {
    cpu();
    let rows = [[3.0, 2.0, 1.0, 0.0], [0.0; 4]];
    let both = matrix(&[&rows[0], &rows[1]]);
    let filters = [
        SamplingOptions { top_k: 2, ..sampled() },
        SamplingOptions { top_p: 0.7, ..sampled() },
        SamplingOptions { min_p: 0.3, ..sampled() },
    ];
    for options in filters {
        let together = sample(&options, &both);
        for (i, row) in rows.iter().enumerate() {
            let alone = sample(&options, &matrix(&[row]));
            let part = together.slice(i..i + 1).unwrap();
            assert_eq!(table(&alone, 4), table(&part, 4), "row {i} of {options:?}");
        }
    }
}

#[test]
fn a_row_is_bit_equal_alone_and_in_a_block() {
    cpu();
    // Plain decoding samples one row at a time, verification several.
    const V: usize = 49_152;
    let logits: Vec<f32> = (0..5 * V).map(|i| ((i * 7_919) % 10_007) as f32 / 500.0).collect();
    let block = Array::from_slice(&logits, &[5, V as i32]);
    let filters = [
        sampled(),
        SamplingOptions { temperature: 0.7, ..sampled() },
        SamplingOptions { top_k: 40, ..sampled() },
        SamplingOptions { top_p: 0.9, min_p: 0.05, ..sampled() },
    ];
    for options in filters {
        let together = sample(&options, &block);
        for i in 0..5 {
            let row = Array::from_slice(&logits[i * V..(i + 1) * V], &[1, V as i32]);
            match (sample(&options, &row), together.slice(i..i + 1).unwrap()) {
                (Distribution::Dense { logprobs: a }, Distribution::Dense { logprobs: b }) => {
                    assert!(a.eq_exact(&b).unwrap(), "row {i} of {options:?}");
                }
                (
                    Distribution::Sparse { ids: a, logprobs: x },
                    Distribution::Sparse { ids: b, logprobs: y },
                ) => {
                    assert!(a.eq_exact(&b).unwrap() && x.eq_exact(&y).unwrap(), "row {i} of {options:?}");
                }
                other => panic!("kinds differ: {other:?}"),
            }
        }
    }
}

#[test]
fn the_order_is_top_k_temperature_top_p_min_p() {
    cpu();
    let p = [0.4, 0.3, 0.2, 0.1];
    // Top-p sees what top-k left: 0.4 / 0.7 = 0.571 reaches 0.55, 0.4 alone would not.
    assert_eq!(kept(&SamplingOptions { top_k: 2, top_p: 0.55, ..sampled() }, &p), [0]);
    assert_eq!(kept(&SamplingOptions { top_p: 0.55, ..sampled() }, &p), [0, 1]);
    // Top-p sees the temperature: squared weights are 0.533, 0.3, 0.133, 0.033.
    assert_eq!(kept(&SamplingOptions { temperature: 0.5, top_p: 0.5, ..sampled() }, &p), [0]);
    assert_eq!(kept(&SamplingOptions { top_p: 0.5, ..sampled() }, &p), [0, 1]);
    // Min-p is a share of the best, not a probability.
    assert_eq!(kept(&SamplingOptions { min_p: 0.45, ..sampled() }, &p), [0, 1, 2]);
    assert_eq!(kept(&SamplingOptions { min_p: 1.0, ..sampled() }, &p), [0]);
}

#[test]
fn extreme_temperatures_keep_rows_finite() {
    cpu();
    let logits = matrix(&[&[30_000.0, 29_999.0, -30_000.0], &[-3e38, 3e38, 0.0]]);
    for temperature in [1e-30, 0.01, 1.0, 1e30] {
        let rows = table(&sample(&SamplingOptions { temperature, ..sampled() }, &logits), 3);
        for row in rows {
            let sum: f64 = row.iter().sum();
            assert!((sum - 1.0).abs() <= PROBABILITY_TOLERANCE, "{temperature}: {row:?}");
        }
    }
}

#[test]
fn a_large_vocabulary_sums_to_one() {
    cpu();
    // Nearly flat rows: a running float32 sum would drift by a share of 1e-3.
    for v in [151_936, 128_257] {
        let logits: Vec<f32> = (0..v).map(|i| if i == 7 { 1.2 } else { (i % 3) as f32 * 1e-3 }).collect();
        let row = table(&sample(&sampled(), &matrix(&[&logits])), v).remove(0);
        assert_close(&[row.iter().sum()], &[1.0], PROBABILITY_TOLERANCE, "sum");
    }
}

#[test]
fn ties_go_to_the_lowest_ids() {
    cpu();
    let logits = matrix(&[&[1.0, 2.0, 2.0, 2.0, 0.0]]);
    let greedy = sample(&SamplingOptions::greedy(), &logits);
    assert!(matches!(greedy, Distribution::Point { .. }));
    assert_eq!(words(&greedy.draw(9, 0).unwrap()), [1]);
    let two = sample(&SamplingOptions { top_k: 2, ..sampled() }, &logits);
    assert_eq!(support(&table(&two, 5)[0]), [1, 2]);
}

#[test]
fn half_precision_logits_are_sampled_in_float32() {
    cpu();
    let wide: Vec<f32> = (0..4_096).map(|i| (i % 64) as f32 / 16.0).collect();
    let logits = matrix(&[&wide]);
    let half = logits.as_dtype(Dtype::Bfloat16).unwrap();
    let (a, b) = (sample(&sampled(), &logits), sample(&sampled(), &half));
    assert_close(&table(&a, 4_096)[0], &table(&b, 4_096)[0], PROBABILITY_TOLERANCE, "bfloat16");
}

#[test]
fn a_single_minus_infinity_is_legal_and_an_empty_row_has_no_support() {
    cpu();
    let never = f32::NEG_INFINITY;
    let logits = matrix(&[&[0.0, never, 1.0], &[never; 3], &[f32::NAN; 3]]);
    for options in [sampled(), SamplingOptions { top_k: 2, ..sampled() }] {
        let distribution = sample(&options, &logits);
        assert_eq!(flags(&distribution.support().unwrap()), [true, false, false]);
        assert_eq!(support(&table(&distribution, 3)[0]), [0, 2]);
    }
}

/// The documented rules in float64, one row.
fn oracle(logits: &[f32], options: &SamplingOptions) -> Option<Vec<f64>> {
    let t = f64::from(options.temperature);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if options.top_k > 0 {
        order.truncate(options.top_k as usize);
    }
    let best = f64::from(logits[order[0]]);
    let weight = |i: usize| ((f64::from(logits[i]) - best) / t).exp();
    let total: f64 = order.iter().map(|&i| weight(i)).sum();
    let (mut kept, mut before) = (Vec::new(), 0.0);
    for &i in &order {
        let (p, m) = (f64::from(options.top_p), f64::from(options.min_p));
        let near = |a: f64, b: f64| (a - b).abs() <= EDGE * b;
        if (p < 1.0 && near(before, p)) || (m > 0.0 && near(weight(i), m)) {
            return None;
        }
        if (p >= 1.0 || before < p) && weight(i) >= m {
            kept.push(i);
        }
        before += weight(i) / total;
    }
    let total: f64 = kept.iter().map(|&i| weight(i)).sum();
    Some((0..logits.len()).map(|i| if kept.contains(&i) { weight(i) / total } else { 0.0 }).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn every_combination_follows_the_rules(
        rows in prop::collection::vec(prop::collection::vec(-6.0f32..6.0, 9), 1..4),
        temperature in prop::sample::select(vec![0.2f32, 0.7, 1.0, 2.5]),
        top_k in 0u32..12,
        top_p in prop::sample::select(vec![0.1f32, 0.5, 0.9, 0.99, 1.0]),
        min_p in prop::sample::select(vec![0.0f32, 0.05, 0.3, 1.0]),
    ) {
        cpu();
        let options = SamplingOptions { temperature, top_k, top_p, min_p, ..sampled() };
        let views: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let got = table(&sample(&options, &matrix(&views)), 9);
        for (row, got) in rows.iter().zip(got) {
            // A best token is always exactly at its own share of 1.
            let Some(exact) = oracle(row, &options) else { continue };
            let worst = got.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            prop_assert!(worst <= PROBABILITY_TOLERANCE, "{:?}: {:?} {:?}", options, got, exact);
        }
    }
}
