//! What the other files share: a device, host reads, exact probabilities, bounds.

use foretoken_sample::{Distribution, History, Rows, Sampler, SamplingOptions};
use mlx_rs::{Array, Device};

/// float32 rounding of a few operations on probabilities of order 1.
pub(crate) const PROBABILITY_TOLERANCE: f64 = 2e-6;
/// float32 rounding of logits of order 10.
pub(crate) const LOGIT_TOLERANCE: f64 = 5e-6;
/// Statistical bounds are this many standard deviations; every seed is fixed.
pub(crate) const SIGMAS: f64 = 4.0;

/// Installs MLX's error handler and computes on the CPU.
pub(crate) fn cpu() {
    Device::try_default().unwrap();
    Device::set_default(&Device::cpu());
}

pub(crate) fn floats(array: &Array) -> Vec<f32> {
    array.contiguous().unwrap().to_vec_exact().unwrap()
}

pub(crate) fn words(array: &Array) -> Vec<u32> {
    array.contiguous().unwrap().to_vec_exact().unwrap()
}

pub(crate) fn flags(array: &Array) -> Vec<bool> {
    array.contiguous().unwrap().to_vec_exact().unwrap()
}

/// Rows of equal length as an array [n,k].
pub(crate) fn matrix(rows: &[&[f32]]) -> Array {
    let flat: Vec<f32> = rows.concat();
    Array::from_slice(&flat, &[rows.len() as i32, rows[0].len() as i32])
}

pub(crate) fn vector(ids: &[u32]) -> Array {
    Array::from_slice(ids, &[ids.len() as i32])
}

/// Logits whose softmax is `p`.
pub(crate) fn logs(p: &[f32]) -> Vec<f32> {
    p.iter().map(|p| p.ln()).collect()
}

/// A dense distribution with the same row `n` times.
pub(crate) fn repeated(p: &[f32], n: usize) -> Distribution {
    let row = matrix(&[&logs(p)]);
    let logprobs = mlx_rs::ops::broadcast_to(&row, &[n as i32, p.len() as i32]).unwrap();
    Distribution::Dense { logprobs }
}

/// The distribution that `options` give on raw logits without any history.
pub(crate) fn sample(options: &SamplingOptions, logits: &Array) -> Distribution {
    let sampler = Sampler::new(options.clone(), logits.dim(-1) as usize).unwrap();
    let history = History::default();
    let rows = Rows { logits, columns: None, history: &history, in_flight: None, first: 0, allowed: None };
    sampler.distribution(rows).unwrap()
}

/// Every row's probability of each of 0..v.
pub(crate) fn table(distribution: &Distribution, v: usize) -> Vec<Vec<f64>> {
    let rows = distribution.rows();
    let mut out = vec![vec![0.0; v]; rows];
    match distribution {
        Distribution::Dense { logprobs } => {
            for (i, x) in floats(logprobs).into_iter().enumerate() {
                out[i / v][i % v] = f64::from(x).exp();
            }
        }
        Distribution::Sparse { ids, logprobs } => {
            let k = logprobs.dim(-1) as usize;
            for (i, (id, x)) in words(ids).into_iter().zip(floats(logprobs)).enumerate() {
                out[i / k][id as usize] += f64::from(x).exp();
            }
        }
        Distribution::Point { ids } => {
            for (row, id) in words(ids).into_iter().enumerate() {
                out[row][id as usize] = 1.0;
            }
        }
    }
    out
}

/// The ids that a row can produce.
pub(crate) fn support(row: &[f64]) -> Vec<usize> {
    (0..row.len()).filter(|&i| row[i] > 0.0).collect()
}

/// Asserts that `drawn` follows `exact`: each cell within 4 sigma, χ² within 4 of its own, and nothing
/// outside the support.
pub(crate) fn assert_follows(drawn: &[u32], exact: &[f64], what: &str) {
    let n = drawn.len() as f64;
    let mut counts = vec![0.0; exact.len()];
    for &id in drawn {
        counts[id as usize] += 1.0;
    }
    let (mut chi, mut cells) = (0.0, -1.0);
    for (id, (&count, &p)) in counts.iter().zip(exact).enumerate() {
        if p == 0.0 {
            assert_eq!(count, 0.0, "{what}: id {id} is outside the support");
            continue;
        }
        let sigma = (n * p * (1.0 - p)).sqrt();
        assert!(
            (count - n * p).abs() <= SIGMAS * sigma + PROBABILITY_TOLERANCE * n,
            "{what}: id {id} came {count} times of {n}, expected {}",
            n * p
        );
        chi += (count - n * p).powi(2) / (n * p);
        cells += 1.0;
    }
    assert_chi_square(chi, cells, what);
}

/// χ² of `cells` degrees of freedom has mean `cells` and variance twice that.
pub(crate) fn assert_chi_square(chi: f64, cells: f64, what: &str) {
    let bound = cells + SIGMAS * (2.0 * cells).sqrt();
    println!("{what}: χ² {chi:.2} of {cells} (bound {bound:.2})");
    assert!(chi <= bound.max(PROBABILITY_TOLERANCE), "{what}: χ² {chi} with {cells} degrees of freedom");
}

pub(crate) fn assert_close(got: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let worst = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("{what}: largest difference {worst:.1e}");
    assert!(worst <= tolerance, "{what}: got {got:?}, expected {expected:?}");
}
