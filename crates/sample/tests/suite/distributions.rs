//! `prob`, `residual`, `slice` and `concat` of all nine pairings against host arithmetic.

use foretoken_sample::Distribution;
use mlx_rs::Array;
use proptest::prelude::*;

use crate::common::*;

/// A residual of less mass than this is rounding of float32 probabilities, not a value to compare.
const SMALLEST_REMAINDER: f64 = 1e-3;
/// Rounding of a residual, which divides by at least the mass above.
const RESIDUAL_TOLERANCE: f64 = 1e-3;

const V: usize = 9;

/// One distribution with what it stands for.
#[derive(Debug, Clone)]
struct Known {
    distribution: Distribution,
    rows: Vec<Vec<f64>>,
}

fn normalised(weights: &[u8]) -> Vec<f64> {
    let sum: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    weights.iter().map(|&w| f64::from(w) / sum).collect()
}

fn log32(p: f64) -> f32 {
    p.ln() as f32
}

fn dense(rows: Vec<Vec<f64>>) -> Known {
    let flat: Vec<f32> = rows.iter().flatten().map(|&p| log32(p)).collect();
    let logprobs = Array::from_slice(&flat, &[rows.len() as i32, V as i32]);
    Known { distribution: Distribution::Dense { logprobs }, rows }
}

/// Sparse rows in the order of `shuffle`, with two padded columns that repeat ids of the row.
fn sparse(rows: Vec<Vec<f64>>, shuffle: &[usize]) -> Known {
    let (mut ids, mut values) = (Vec::new(), Vec::new());
    for row in &rows {
        ids.push(shuffle[0] as u32);
        values.push(f32::NEG_INFINITY);
        for &id in shuffle {
            ids.push(id as u32);
            values.push(log32(row[id]));
        }
        ids.push(shuffle[V - 1] as u32);
        values.push(f32::NEG_INFINITY);
    }
    let shape = [rows.len() as i32, V as i32 + 2];
    let (ids, logprobs) = (Array::from_slice(&ids, &shape), Array::from_slice(&values, &shape));
    Known { distribution: Distribution::Sparse { ids, logprobs }, rows }
}

fn point(rows: &[Vec<f64>]) -> Known {
    let best = |row: &Vec<f64>| (0..V).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
    let ids: Vec<u32> = rows.iter().map(|row| best(row) as u32).collect();
    let certain = |&id: &u32| (0..V).map(|i| f64::from(u8::from(i == id as usize))).collect();
    Known { rows: ids.iter().map(certain).collect(), distribution: Distribution::Point { ids: vector(&ids) } }
}

/// n rows of random weights, many of them 0, as one of the three kinds.
fn known(n: usize) -> impl Strategy<Value = Known> {
    let weight = prop_oneof![Just(0u8), 1u8..20];
    let row = prop::collection::vec(weight, V).prop_filter("some mass", |w| w.iter().any(|&w| w > 0));
    let shuffle = Just((0..V).collect::<Vec<_>>()).prop_shuffle();
    (0..3, prop::collection::vec(row, n), shuffle).prop_map(|(kind, rows, shuffle)| {
        let rows: Vec<Vec<f64>> = rows.iter().map(|row| normalised(row)).collect();
        match kind {
            0 => dense(rows),
            1 => sparse(rows, &shuffle),
            _ => point(&rows),
        }
    })
}

fn residual(p: &[f64], q: &[f64]) -> Option<Vec<f64>> {
    let left: Vec<f64> = p.iter().zip(q).map(|(p, q)| (p - q).max(0.0)).collect();
    let sum: f64 = left.iter().sum();
    match sum {
        0.0 => Some(p.to_vec()),
        small if small < SMALLEST_REMAINDER => None,
        _ => Some(left.iter().map(|x| x / sum).collect()),
    }
}

fn worst(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

fn kind(distribution: &Distribution) -> u8 {
    match distribution {
        Distribution::Point { .. } => 0,
        Distribution::Sparse { .. } => 1,
        Distribution::Dense { .. } => 2,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn residuals_of_all_pairings_equal_host_arithmetic(
        (p, q) in (1usize..4).prop_flat_map(|n| (known(n), known(n))),
    ) {
        cpu();
        let got = p.distribution.residual(&q.distribution).unwrap();
        for (row, got) in table(&got, V).iter().enumerate() {
            let Some(exact) = residual(&p.rows[row], &q.rows[row]) else { continue };
            prop_assert!(worst(got, &exact) <= RESIDUAL_TOLERANCE, "{:?} {:?}\n{:?}\n{:?}", p, q, got, exact);
            prop_assert!((got.iter().sum::<f64>() - 1.0).abs() <= RESIDUAL_TOLERANCE);
        }
        prop_assert_eq!(kind(&got), kind(&p.distribution));
    }

    #[test]
    fn probabilities_equal_host_arithmetic(p in known(3), ids in prop::collection::vec(0u32..V as u32, 3)) {
        cpu();
        let got = floats(&p.distribution.prob(&vector(&ids)).unwrap());
        for (row, (got, id)) in got.iter().zip(ids).enumerate() {
            prop_assert!((f64::from(*got) - p.rows[row][id as usize]).abs() <= PROBABILITY_TOLERANCE);
        }
    }

    #[test]
    fn concatenated_rows_come_back_in_order(
        parts in prop::collection::vec((1usize..3).prop_flat_map(known), 1..4),
        cut in (0usize..7, 0usize..7),
    ) {
        cpu();
        let views: Vec<&Distribution> = parts.iter().map(|part| &part.distribution).collect();
        let joined = Distribution::concat(&views).unwrap();
        let rows: Vec<Vec<f64>> = parts.iter().flat_map(|part| part.rows.clone()).collect();
        prop_assert_eq!(Some(kind(&joined)), views.iter().map(|part| kind(part)).max());
        for (got, exact) in table(&joined, V).iter().zip(&rows) {
            prop_assert!(worst(got, exact) <= PROBABILITY_TOLERANCE);
        }
        let (start, end) = (cut.0.min(cut.1).min(rows.len()), cut.0.max(cut.1).min(rows.len()));
        prop_assume!(start < end);
        let part = joined.slice(start..end).unwrap();
        prop_assert_eq!(part.rows(), end - start);
        for (got, exact) in table(&part, V).iter().zip(&rows[start..end]) {
            prop_assert!(worst(got, exact) <= PROBABILITY_TOLERANCE);
        }
        // A concatenation is a distribution like any other.
        let drawn = words(&joined.draw(1, 0).unwrap());
        prop_assert!(drawn.iter().zip(&rows).all(|(&id, row)| row[id as usize] > 0.0));
    }
}

#[test]
fn a_point_is_one_or_zero() {
    cpu();
    let point = Distribution::Point { ids: vector(&[3, 3]) };
    assert_eq!(floats(&point.prob(&vector(&[3, 4])).unwrap()), [1.0, 0.0]);
    assert_eq!(flags(&point.support().unwrap()), [true, true]);
}

#[test]
fn sparse_rows_over_a_draft_vocabulary_need_no_square_of_memory() {
    cpu();
    // Forty candidates against eight thousand: comparing all pairs of five rows would be 1.6 million.
    let (k, d) = (40i32, 8_192i32);
    let target: Vec<u32> = (0..5 * k).map(|i| ((i % k) * 311 + i / k) as u32).collect();
    let draft: Vec<u32> = (0..5 * d).map(|i| ((i % d) * 3) as u32).collect();
    let uniform = |n: i32| vec![-(n as f32).ln(); 5 * n as usize];
    let p = Distribution::Sparse {
        ids: Array::from_slice(&target, &[5, k]),
        logprobs: Array::from_slice(&uniform(k), &[5, k]),
    };
    let q = Distribution::Sparse {
        ids: Array::from_slice(&draft, &[5, d]),
        logprobs: Array::from_slice(&uniform(d), &[5, d]),
    };
    let (p_value, q_value) = (1.0 / f64::from(k), 1.0 / f64::from(d));
    let rest = table(&p.residual(&q).unwrap(), 3 * d as usize);
    for (row, ids) in rest.iter().zip(target.chunks(k as usize)) {
        let left = |id: u32| if id.is_multiple_of(3) { p_value - q_value } else { p_value };
        let sum: f64 = ids.iter().map(|&id| left(id)).sum();
        for &id in ids {
            assert!((row[id as usize] - left(id) / sum).abs() <= PROBABILITY_TOLERANCE);
        }
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    cpu();
    let (two, three) = (repeated(&[0.5, 0.5], 2), repeated(&[0.5, 0.25, 0.25], 3));
    assert!(Distribution::concat(&[]).is_err());
    assert!(Distribution::concat(&[&two, &three]).is_err());
    assert!(two.residual(&three).is_err());
    assert!(two.prob(&vector(&[0])).is_err());
    let message = two.slice(1..3).unwrap_err().to_string();
    assert_eq!(message, "rows: expected shape a range within 0..2, got 1..3");
}
