//! Penalised values, and windows against a loop on the host.

#![allow(clippy::unwrap_used)]

use mlx_rs::Device;
use proptest::prelude::*;

use super::*;
use crate::History;

/// float32 rounding of logits of order 10.
const LOGIT_TOLERANCE: f32 = 5e-6;

fn cpu() {
    Device::try_default().unwrap();
    Device::set_default(&Device::cpu());
}

fn options(repeat: f32, frequency: f32, presence: f32) -> SamplingOptions {
    SamplingOptions {
        repeat_penalty: repeat,
        frequency_penalty: frequency,
        presence_penalty: presence,
        repeat_last_n: -1,
        ..SamplingOptions::greedy()
    }
}

/// One row of penalised logits under a history.
fn penalised(logits: &[f32], history: &[u32], options: &SamplingOptions) -> Vec<f32> {
    cpu();
    let (history, width) = (History::new(history), logits.len());
    let logits = Array::from_slice(logits, &[1, width as i32]);
    let rows =
        Rows { logits: &logits, columns: None, history: &history, in_flight: None, first: 0, allowed: None };
    apply(&logits, &rows, options, width).unwrap().to_vec_exact().unwrap()
}

#[test]
fn h29_repeat_penalty_lowers_negative_logits_too() {
    assert_eq!(penalised(&[2.0, -2.0, 0.5], &[0, 1], &options(2.0, 0.0, 0.0)), [1.0, -4.0, 0.5]);
    assert_eq!(penalised(&[0.0, 1.0], &[0], &options(2.0, 0.0, 0.0)), [0.0, 1.0]);
}

#[test]
fn h30_repeat_penalty_counts_an_id_once() {
    for copies in [1, 3, 64] {
        assert_eq!(penalised(&[8.0, 7.0], &vec![0; copies], &options(2.0, 0.0, 0.0)), [4.0, 7.0]);
    }
}

#[test]
fn h31_frequency_counts_and_presence_does_not() {
    let history = [0, 0, 0, 1];
    assert_eq!(penalised(&[3.0; 3], &history, &options(1.0, 0.5, 1.0)), [0.5, 1.5, 3.0]);
    assert_eq!(penalised(&[3.0; 3], &history, &options(1.0, -0.5, -1.0)), [5.5, 4.5, 3.0]);
}

#[test]
fn the_window_holds_the_last_tokens_only() {
    let mut options = options(1.0, 1.0, 0.0);
    options.repeat_last_n = 2;
    assert_eq!(penalised(&[0.0; 3], &[2, 2, 0, 1], &options), [-1.0, -1.0, 0.0]);
    options.repeat_last_n = 100;
    assert_eq!(penalised(&[0.0; 3], &[2, 2, 0, 1], &options), [-1.0, -1.0, -2.0]);
}

#[test]
fn ids_outside_the_vocabulary_touch_nothing() {
    assert_eq!(penalised(&[1.0, 1.0], &[2, 7, u32::MAX, 0], &options(1.0, 1.0, 0.0)), [0.0, 1.0]);
}

#[test]
fn an_impossible_token_stays_impossible() {
    let never = f32::NEG_INFINITY;
    assert_eq!(penalised(&[never, 1.0], &[0], &options(2.0, -1.0, -1.0)), [never, 1.0]);
}

/// The rule as a loop: every row's window is listed and counted.
fn by_loop(
    logits: &[Vec<f32>],
    history: &[u32],
    flying: &[u32],
    first: usize,
    o: &SamplingOptions,
) -> Vec<f32> {
    let mut out = Vec::new();
    for (i, row) in logits.iter().enumerate() {
        let seen = flying[..(first + i).min(flying.len())].iter();
        let all: Vec<u32> = history.iter().chain(seen).copied().collect();
        let keep = usize::try_from(o.repeat_last_n).unwrap_or(usize::MAX).min(all.len());
        let window = &all[all.len() - keep..];
        for (id, &logit) in row.iter().enumerate() {
            let count = window.iter().filter(|&&x| x as usize == id).count() as f32;
            let repeated = if logit > 0.0 { logit / o.repeat_penalty } else { logit * o.repeat_penalty };
            out.push(match count > 0.0 {
                true => repeated - count * o.frequency_penalty - o.presence_penalty,
                false => logit,
            });
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn windows_equal_a_loop_on_the_host(
        logits in prop::collection::vec(prop::collection::vec(-5.0f32..5.0, 6), 1..6),
        history in prop::collection::vec(0u32..8, 0..12),
        flying in prop::collection::vec(0u32..8, 0..6),
        first in 0usize..8,
        last_n in -1i32..16,
        penalties in (0.5f32..2.0, -2.0f32..2.0, -2.0f32..2.0),
    ) {
        cpu();
        let mut options = options(penalties.0, penalties.1, penalties.2);
        options.repeat_last_n = last_n;
        let (n, flat) = (logits.len() as i32, Array::from_slice(&logits.concat(), &[logits.len() as i32, 6]));
        let known = History::new(&history);
        let in_flight = Array::from_slice(&flying, &[flying.len() as i32]);
        let rows = Rows { logits: &flat, columns: None, history: &known, in_flight: Some(&in_flight), first, allowed: None };
        let got: Vec<f32> = apply(&flat, &rows, &options, 6).unwrap().to_vec_exact().unwrap();
        let expected = by_loop(&logits, &history, &flying, first, &options);
        prop_assert_eq!(got.len(), 6 * n as usize);
        for (got, expected) in got.iter().zip(&expected) {
            prop_assert!((got - expected).abs() <= LOGIT_TOLERANCE, "{} {}", got, expected);
        }
    }
}
