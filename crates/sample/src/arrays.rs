//! Small array helpers that every file of this crate needs.

use std::ops::Range;

use mlx_rs::error::{Exception, Result};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, Stream, ops};

/// Logits in the precision that every later step works in.
pub(crate) fn float32(array: &Array) -> Result<Array> {
    array.as_dtype(Dtype::Float32)
}

/// A float32 scalar. Literals are strongly typed in MLX, so every operand beside it is float32 too.
pub(crate) fn scalar(value: f32) -> Array {
    Array::from_f32(value)
}

/// −∞, the log probability of what cannot be drawn.
pub(crate) fn never() -> Array {
    scalar(f32::NEG_INFINITY)
}

/// 0, 1, …, n − 1 as uint32 `[n]`.
pub(crate) fn positions(n: i32) -> Result<Array> {
    ops::arange::<i32, u32>(None, n, None)
}

/// `[n]` → `[n,1]`.
pub(crate) fn column(array: &Array) -> Result<Array> {
    array.expand_dims(-1)
}

/// Some columns of `[n,k]`.
pub(crate) fn columns(array: &Array, range: Range<i32>) -> Result<Array> {
    array.try_index((.., range))
}

/// One value per row: `[n,k]` and `[n]` → `[n]`.
pub(crate) fn pick(array: &Array, index: &Array) -> Result<Array> {
    array.take_along_axis(column(index)?, -1)?.squeeze_axes(&[-1])
}

/// eˣ. MLX's own `exp` calls a software fused multiply-add per step in builds for plain x86-64 and costs
/// five times as much as a power there; rounding e to float32 changes the exponent by 3·10⁻⁸ of itself.
pub(crate) fn exp(array: &Array) -> Result<Array> {
    ops::power(scalar(std::f32::consts::E), array)
}

/// Σ of each row of weights `[n,k]` → `[n,1]`, as a tree of groups, so that float32 loses nothing over a
/// large vocabulary and a row sums to the same bits alone and beside others.
pub(crate) fn total(weights: &Array) -> Result<Array> {
    const GROUP: i32 = 64;
    let (rows, mut sums) = (weights.dim(0), weights.clone());
    loop {
        let padding = (GROUP - sums.dim(-1) % GROUP) % GROUP;
        if padding > 0 {
            sums = ops::pad(&sums, &[(0, 0), (0, padding)], None, None)?;
        }
        // Columns that lie side by side are summed as vectors.
        sums = sums.reshape(&[rows, GROUP, sums.dim(-1) / GROUP])?.sum_axis(1, false)?;
        if sums.dim(-1) <= 1 {
            return Ok(sums);
        }
    }
}

/// Normalises rows whose best value is 0: x − log Σ eˣ `[n,k]`. Rows without mass stay −∞ throughout.
pub(crate) fn normalise(array: &Array) -> Result<Array> {
    let log_mass = total(&exp(array)?)?.log()?;
    array.subtract(ops::maximum(log_mass, scalar(f32::MIN))?)
}

/// The best value of each row `[n,k]` → `[n,1]`, kept finite for rows without mass.
pub(crate) fn best(array: &Array) -> Result<Array> {
    ops::maximum(array.max_axis(-1, true)?, scalar(f32::MIN))
}

/// Exclusive or of two uint32 arrays, which mlx-rs does not expose.
pub(crate) fn xor(a: &Array, b: &Array) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: both handles are alive for the call, and the binding writes one new handle.
    raw(|out| unsafe { mlx_sys::mlx_bitwise_xor(out, a.as_ptr(), b.as_ptr(), stream.as_ptr()) })
}

/// Logical shift of a uint32 array to the right, which mlx-rs does not expose.
pub(crate) fn shift_right(a: &Array, bits: u32) -> Result<Array> {
    let (stream, bits) = (Stream::thread_local_or_default(), word(bits));
    // SAFETY: as in `xor`.
    raw(|out| unsafe { mlx_sys::mlx_right_shift(out, a.as_ptr(), bits.as_ptr(), stream.as_ptr()) })
}

/// A uint32 scalar.
pub(crate) fn word(value: u32) -> Array {
    Array::from_slice(&[value], &[])
}

fn raw(call: impl FnOnce(*mut mlx_sys::mlx_array) -> i32) -> Result<Array> {
    // SAFETY: an empty handle owns nothing; on success the call has put a new array into it.
    let mut out = unsafe { mlx_sys::mlx_array_new() };
    match call(&mut out) {
        0 => Ok(unsafe { Array::from_ptr(out) }),
        code => Err(Exception::custom(format!("mlx status {code}"))),
    }
}
