//! Penalties through the sampler: options, tokens in flight and draft columns.

use foretoken_sample::{Distribution, History, Rows, Sampler, SamplingOptions};
use mlx_rs::Array;

use crate::common::*;

fn presence(last_n: i32) -> Sampler {
    let options =
        SamplingOptions { presence_penalty: 5.0, repeat_last_n: last_n, ..SamplingOptions::greedy() };
    Sampler::new(options, 4).unwrap()
}

/// Eight greedy tokens of constant logits, each block of drafts verified as one call.
fn greedy_text(sampler: &Sampler, draft: impl Fn(usize) -> Vec<u32>) -> Vec<u32> {
    let mut history = History::default();
    while history.ids().len() < 8 {
        let drafts = draft(history.ids().len());
        let flat = [2.0, 1.5, 1.0, 0.0].repeat(drafts.len() + 1);
        let logits = Array::from_slice(&flat, &[drafts.len() as i32 + 1, 4]);
        let in_flight = vector(&drafts);
        let rows = Rows {
            logits: &logits,
            columns: None,
            history: &history,
            in_flight: (!drafts.is_empty()).then_some(&in_flight),
            first: 0,
            allowed: None,
        };
        let targets = words(&sampler.distribution(rows).unwrap().draw(0, 0).unwrap());
        let accepted = drafts.iter().zip(&targets).take_while(|(draft, target)| draft == target).count();
        history.extend(&targets[..=accepted]);
    }
    history.ids()[..8].to_vec()
}

#[test]
fn h15_every_row_sees_the_drafts_before_it() {
    cpu();
    let (all, one) = ([0, 1, 2, 3, 0, 0, 0, 0], [0, 1, 0, 1, 0, 1, 0, 1]);
    for (last_n, expected) in [(-1, all), (1, one)] {
        let sampler = presence(last_n);
        assert_eq!(greedy_text(&sampler, |_| vec![]), expected, "plain");
        assert_eq!(greedy_text(&sampler, |_| vec![0; 4]), expected, "bad drafts");
        let oracle = |at: usize| expected[at..].iter().copied().take(4).collect();
        assert_eq!(greedy_text(&sampler, oracle), expected, "perfect drafts");
    }
}

#[test]
fn first_counts_the_tokens_that_row_zero_has_seen() {
    cpu();
    let sampler = presence(-1);
    let (history, in_flight) = (History::new(&[3]), vector(&[0, 1]));
    let logits = matrix(&[&[2.0, 1.5, 1.0, 0.0]]);
    for (first, expected) in [(0, 0), (1, 1), (2, 2), (9, 2)] {
        let rows = Rows {
            logits: &logits,
            columns: None,
            history: &history,
            in_flight: Some(&in_flight),
            first,
            allowed: None,
        };
        let ids = words(&sampler.distribution(rows).unwrap().draw(0, 0).unwrap());
        assert_eq!(ids, [expected], "first {first}");
    }
}

#[test]
fn draft_columns_are_penalised_by_their_target_ids() {
    cpu();
    let columns = vector(&[2, 5, 9]);
    let (history, in_flight) = (History::new(&[5, 5, 0]), vector(&[9]));
    let logits = matrix(&[&[1.0, 1.0, 1.0], &[1.0, 1.0, 1.0]]);
    let rows = Rows {
        logits: &logits,
        columns: Some(&columns),
        history: &history,
        in_flight: Some(&in_flight),
        first: 0,
        allowed: None,
    };
    let options = SamplingOptions {
        temperature: 1.0,
        frequency_penalty: 1.0,
        repeat_last_n: -1,
        ..SamplingOptions::greedy()
    };
    let weights = [vec![(2, 0.0), (5, -2.0), (9, 0.0)], vec![(2, 0.0), (5, -2.0), (9, -1.0)]];
    let exact = weights.map(|row: Vec<(usize, f64)>| {
        let sum: f64 = row.iter().map(|(_, x)| x.exp()).sum();
        let mut out = vec![0.0; 12];
        row.iter().for_each(|&(id, x)| out[id] = x.exp() / sum);
        out
    });
    let got = Sampler::new(options.clone(), 12).unwrap().distribution(rows).unwrap();
    assert!(matches!(got, Distribution::Sparse { .. }));
    for (got, exact) in table(&got, 12).iter().zip(&exact) {
        assert_close(got, exact, PROBABILITY_TOLERANCE, "columns");
    }
    let greedy = SamplingOptions { temperature: 0.0, ..options.clone() };
    let got = Sampler::new(greedy, 12).unwrap().distribution(rows).unwrap();
    assert_eq!(words(&got.draw(0, 0).unwrap()), [2, 2]);
    let two = Sampler::new(SamplingOptions { top_k: 2, ..options }, 12).unwrap().distribution(rows).unwrap();
    let tables = table(&two, 12);
    assert_eq!((support(&tables[0]), support(&tables[1])), (vec![2, 9], vec![2, 9]));
}

#[test]
fn neutral_penalties_leave_rows_bit_equal() {
    cpu();
    let logits = matrix(&[&[0.3, -0.7, 1.1, 0.2]]);
    let history = History::new(&[0, 1, 1, 2]);
    let with = |options: SamplingOptions| {
        let rows = Rows {
            logits: &logits,
            columns: None,
            history: &history,
            in_flight: None,
            first: 0,
            allowed: None,
        };
        table(&Sampler::new(options, 4).unwrap().distribution(rows).unwrap(), 4)
    };
    let neutral = SamplingOptions { temperature: 1.0, ..SamplingOptions::greedy() };
    let off = SamplingOptions { repeat_penalty: 3.0, repeat_last_n: 0, ..neutral.clone() };
    assert_eq!(with(neutral.clone()), table(&sample(&neutral, &logits), 4));
    assert_eq!(with(off), with(neutral));
}

#[test]
fn arrays_of_the_wrong_shape_are_refused() {
    cpu();
    let sampler = presence(-1);
    let (history, pair) = (History::default(), vector(&[0, 1]));
    let (good, narrow) = (matrix(&[&[0.0; 4]]), matrix(&[&[0.0; 3]]));
    let square = Array::from_slice(&[0u32; 4], &[2, 2]);
    let none = Array::from_slice(&[0.0f32; 0], &[0, 4]);
    let refused = |logits: &Array, columns: Option<&Array>, in_flight: Option<&Array>| {
        let rows = Rows { logits, columns, history: &history, in_flight, first: 0, allowed: None };
        sampler.distribution(rows).unwrap_err().to_string()
    };
    assert_eq!(refused(&narrow, None, None), "logits: expected shape [n,4] with n ≥ 1, got [1, 3]");
    assert_eq!(refused(&good, Some(&pair), None), "logits: expected shape [n,2] with n ≥ 1, got [1, 4]");
    assert_eq!(refused(&good, Some(&square), None), "columns: expected shape [D], got [2, 2]");
    assert_eq!(refused(&good, None, Some(&square)), "tokens in flight: expected shape [m], got [2, 2]");
    assert_eq!(refused(&none, None, None), "logits: expected shape [n,4] with n ≥ 1, got [0, 4]");
}
