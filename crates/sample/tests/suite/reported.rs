//! Reported log probabilities, and rows that cannot be sampled.

use foretoken_sample::{finite_rows, logprobs};
use mlx_rs::{Array, Dtype};

use crate::common::*;

#[test]
fn h27_rows_that_cannot_be_sampled_are_told_apart() {
    cpu();
    let (nan, inf, never) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    let rows: [(&[f32], bool); 9] = [
        (&[nan, 1.0, 2.0], false),
        (&[1.0, nan, 2.0], false),
        (&[1.0, inf, 2.0], false),
        (&[never, never, never], false),
        (&[nan, nan, nan], false),
        (&[never, nan, never], false),
        (&[inf, never, never], false),
        (&[never, 1.0, 2.0], true),
        (&[-3e38, 3e38, 0.0], true),
    ];
    let logits = matrix(&rows.map(|(row, _)| row));
    assert_eq!(flags(&finite_rows(&logits).unwrap()), rows.map(|(_, finite)| finite));
    let half = logits.as_dtype(Dtype::Bfloat16).unwrap();
    assert_eq!(flags(&finite_rows(&half).unwrap()), rows.map(|(_, finite)| finite));
}

#[test]
fn logprobs_are_the_raw_log_softmax_best_first() {
    cpu();
    let rows = [[0.5f32, 3.0, -1.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0, 9.0]];
    let logits = matrix(&[&rows[0], &rows[1]]);
    let got = logprobs(&logits, &vector(&[2, 0]), 3).unwrap();
    let exact = rows.map(|row| {
        let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        row.map(|x| f64::from(x) - sum.ln())
    });
    let wide = |array: &Array| floats(array).into_iter().map(f64::from).collect::<Vec<_>>();
    assert_close(&wide(&got.chosen), &[exact[0][2], exact[1][0]], LOGIT_TOLERANCE, "chosen");
    // Equal values: the lowest ids come first.
    assert_eq!(words(&got.top_ids), [1, 3, 4, 4, 0, 1]);
    let top = [exact[0][1], exact[0][3], exact[0][4], exact[1][4], exact[1][0], exact[1][1]];
    assert_close(&wide(&got.top), &top, LOGIT_TOLERANCE, "top");
}

#[test]
fn logprobs_of_none_and_of_all() {
    cpu();
    let logits = matrix(&[&[1.0, 2.0, 0.0]]);
    let none = logprobs(&logits, &vector(&[1]), 0).unwrap();
    assert_eq!((none.top_ids.shape(), none.top.shape()), (&[1, 0][..], &[1, 0][..]));
    assert_eq!(words(&logprobs(&logits, &vector(&[1]), 3).unwrap().top_ids), [1, 0, 2]);
    assert_eq!(words(&logprobs(&logits, &vector(&[1]), 99).unwrap().top_ids), [1, 0, 2]);
    assert!(logprobs(&logits, &vector(&[1, 2]), 1).is_err());
    assert!(logprobs(&vector(&[1]), &vector(&[1]), 1).is_err());
}
