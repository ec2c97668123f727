//! Noise: a function of three numbers, and good noise.

use foretoken_sample::{SplitMix64, noise, uniform};
use mlx_rs::Array;
use mlx_rs::ops::indexing::{TryIndexOp, argmax_axis};

use crate::common::*;

const EULER: f64 = 0.577_215_664_901_532_9;

fn range(n: u32) -> Array {
    vector(&(0..n).collect::<Vec<_>>())
}

/// Uniforms recovered from the noise of ids 0..k at `slots`.
fn uniforms(seed: u64, slots: std::ops::Range<usize>, k: u32) -> Vec<f64> {
    let g = noise(seed, slots, &range(k)).unwrap();
    floats(&g).into_iter().map(|g| (-(-f64::from(g)).exp()).exp()).collect()
}

fn assert_uniform(values: &[f64], what: &str) {
    const BINS: usize = 64;
    let mut counts = [0.0; BINS];
    for v in values {
        counts[((v * BINS as f64) as usize).min(BINS - 1)] += 1.0;
    }
    let expected = values.len() as f64 / BINS as f64;
    let chi = counts.iter().map(|count| (count - expected).powi(2) / expected).sum();
    assert_chi_square(chi, BINS as f64 - 1.0, what);
}

fn assert_uncorrelated(a: &[f64], b: &[f64], what: &str) {
    let n = a.len() as f64;
    let mean = |x: &[f64]| x.iter().sum::<f64>() / n;
    let (ma, mb) = (mean(a), mean(b));
    let covariance = |x: &[f64], mx: f64, y: &[f64], my: f64| {
        x.iter().zip(y).map(|(x, y)| (x - mx) * (y - my)).sum::<f64>() / n
    };
    let r = covariance(a, ma, b, mb) / (covariance(a, ma, a, ma) * covariance(b, mb, b, mb)).sqrt();
    println!("{what}: correlation {r:.1e} over {n}");
    assert!(r.abs() <= SIGMAS / n.sqrt(), "{what}: correlation {r} over {n} pairs");
}

#[test]
fn noise_has_the_moments_of_a_standard_gumbel() {
    cpu();
    let g = floats(&noise(7, 0..8, &range(100_000)).unwrap());
    let n = g.len() as f64;
    assert!(g.iter().all(|g| g.is_finite()));
    let mean = g.iter().map(|&g| f64::from(g)).sum::<f64>() / n;
    let variance = g.iter().map(|&g| (f64::from(g) - mean).powi(2)).sum::<f64>() / n;
    let expected = std::f64::consts::PI.powi(2) / 6.0;
    println!("mean {mean:.5}, variance {variance:.5}");
    assert!((mean - EULER).abs() <= SIGMAS * (expected / n).sqrt());
    // The kurtosis of a Gumbel is 5.4, so the variance of the variance is 4.4 σ⁴/n.
    assert!((variance - expected).abs() <= SIGMAS * expected * (4.4 / n).sqrt());
}

#[test]
fn noise_is_uniform_over_ids_slots_and_seeds() {
    cpu();
    assert_uniform(&uniforms(0, 0..1, 49_152), "ids of one row");
    assert_uniform(&uniforms(1, 1_000..1_004, 151_936), "ids of a large vocabulary");
    for id in [0, 1, 2, 49_151] {
        let g = noise(3, 0..50_000, &vector(&[id])).unwrap();
        let v: Vec<_> = floats(&g).into_iter().map(|g| (-(-f64::from(g)).exp()).exp()).collect();
        assert_uniform(&v, &format!("slots at id {id}"));
    }
    let v: Vec<_> = (0..6_400).map(|seed| uniforms(seed, 5..6, 1)[0]).collect();
    assert_uniform(&v, "seeds");
    let high: Vec<_> = (0..6_400).map(|seed| uniforms(seed << 40, 5..6, 1)[0]).collect();
    assert_uniform(&high, "high words of seeds");
}

#[test]
fn neighbours_are_uncorrelated() {
    cpu();
    const K: usize = 100_000;
    let rows = uniforms(11, 0..3, K as u32);
    let (row, next, after) = (&rows[..K], &rows[K..2 * K], &rows[2 * K..]);
    for lag in [1, 2, 256, 4_096, 65_536] {
        assert_uncorrelated(&row[lag..], &row[..K - lag], &format!("ids {lag} apart"));
    }
    assert_uncorrelated(row, next, "slots 1 apart");
    assert_uncorrelated(row, after, "slots 2 apart");
    assert_uncorrelated(&row[1..], &next[..K - 1], "next id against next slot");
    assert_uncorrelated(row, &uniforms(12, 0..1, K as u32), "seeds 1 apart");
    assert_uncorrelated(row, &uniforms(11 ^ 1 << 63, 0..1, K as u32), "seeds a high bit apart");
    assert_uncorrelated(row, &uniforms(10, 1..2, K as u32), "next slot of the seed before");
}

#[test]
fn neighbouring_pairs_fill_the_square() {
    cpu();
    const SIDE: usize = 16;
    let rows = uniforms(5, 0..2, 100_000);
    let (row, next) = rows.split_at(100_000);
    for (what, a, b) in [("ids", &row[1..], &row[..99_999]), ("slots", row, next)] {
        let mut counts = vec![0.0; SIDE * SIDE];
        for (a, b) in a.iter().zip(b) {
            let bin = |v: &f64| ((v * SIDE as f64) as usize).min(SIDE - 1);
            counts[bin(a) * SIDE + bin(b)] += 1.0;
        }
        let expected = a.len() as f64 / counts.len() as f64;
        let chi = counts.iter().map(|count| (count - expected).powi(2) / expected).sum();
        assert_chi_square(chi, counts.len() as f64 - 1.0, &format!("pairs of neighbouring {what}"));
    }
}

#[test]
fn the_winner_among_equals_is_uniform() {
    cpu();
    let g = noise(0, 0..64_000, &range(10)).unwrap();
    let winners = words(&argmax_axis(&g, -1, false).unwrap());
    assert_follows(&winners, &[0.1; 10], "winner of ten");
}

#[test]
fn a_sparse_row_equals_a_gather_of_the_dense_row() {
    cpu();
    for v in [1, 7, 64, 1_000, 49_152] {
        let dense = noise(42, 9..12, &range(v)).unwrap();
        for k in [1, 3, 40, 65] {
            let ids: Vec<u32> = (0..3 * k).map(|i| (i * 7_919 + i / 3) % v).collect();
            let ids = Array::from_slice(&ids, &[3, k as i32]);
            let sparse = noise(42, 9..12, &ids).unwrap();
            let gathered = dense.take_along_axis(&ids, -1).unwrap();
            assert!(sparse.eq_exact(&gathered).unwrap(), "{v} ids, {k} candidates");
        }
    }
}

#[test]
fn noise_does_not_depend_on_the_other_rows() {
    cpu();
    let all = noise(1, 0..9, &range(101)).unwrap();
    for slot in 0..9_usize {
        let alone = noise(1, slot..slot + 1, &range(101)).unwrap();
        let row = all.try_index(slot as i32..slot as i32 + 1).unwrap();
        assert!(alone.eq_exact(&row).unwrap(), "slot {slot}");
    }
}

#[test]
fn ids_of_the_wrong_shape_are_refused() {
    cpu();
    let ids = Array::from_slice(&[0u32; 6], &[3, 2]);
    let error = noise(0, 0..2, &ids).unwrap_err();
    assert_eq!(error.to_string(), "noise ids: expected shape [k] or [2,k], got [3, 2]");
}

#[test]
fn uniform_is_uniform_and_inside_the_open_interval() {
    cpu();
    let u: Vec<f64> = floats(&uniform(0, 0..200_000).unwrap()).into_iter().map(f64::from).collect();
    assert!(u.iter().all(|&u| u > 0.0 && u < 1.0));
    assert_uniform(&u, "uniform over slots");
    assert_uncorrelated(&u[1..], &u[..u.len() - 1], "uniform of neighbouring slots");
    let g = noise(0, 0..200_000, &vector(&[0])).unwrap();
    let v: Vec<_> = floats(&g).into_iter().map(|g| (-(-f64::from(g)).exp()).exp()).collect();
    assert_uncorrelated(&u, &v, "uniform against noise");
    let seeds: Vec<_> = (0..64_000).map(|s| f64::from(floats(&uniform(s, 3..4).unwrap())[0])).collect();
    assert_uniform(&seeds, "uniform over seeds");
}

#[test]
fn the_counter_stream_is_split_mix_64() {
    // Values of the reference implementation for state 1234567.
    let mut stream = SplitMix64::new(1_234_567);
    let got: Vec<u64> = (0..3).map(|_| stream.next_u64()).collect();
    assert_eq!(got, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
}
