//! Reading strided arrays to the host: every test here relies on it.

use mlx_rs::{
    Array,
    ops::{broadcast_to, indexing::TryIndexOp},
};

use crate::common::{cpu, host};

#[test]
fn h08_strided_reads_give_the_logical_numbers() {
    cpu();
    let a = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    assert_eq!(host(&a.transpose().expect("2-d")), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    let nine: Vec<f32> = (0..9).map(|n| n as f32).collect();
    let square = Array::from_slice(&nine, &[3, 3]);
    assert_eq!(host(&square.try_index((.., ..2)).expect("columns")), [0.0, 1.0, 3.0, 4.0, 6.0, 7.0]);
    let wide = broadcast_to(Array::from_f32(7.0), &[4]).expect("a scalar");
    assert_eq!(host(&wide), [7.0; 4]);
}

#[test]
fn h08_the_last_row_of_a_block_is_the_last_row() {
    cpu();
    let numbers: Vec<f32> = (0..40).map(|n| n as f32).collect();
    let logits = Array::from_slice(&numbers, &[1, 5, 8]);
    let last = logits.try_index((.., -1, ..)).expect("a row");
    assert_eq!(host(&last), numbers[32..]);
}

#[test]
fn h08_a_strided_read_without_a_copy_is_refused_not_wrong() {
    cpu();
    let a = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    let turned = a.transpose().expect("2-d");
    turned.try_as_slice::<f32>().expect_err("rows are not contiguous");
}
