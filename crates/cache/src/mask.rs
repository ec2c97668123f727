//! Masks of sliding windows.

use mlx_rs::{Array, ops};

use crate::{Mask, Result};

/// Masks up to this many numbers are made on the host: one array instead of a handful of operations.
const HOST_NUMBERS: usize = 1 << 14;

/// What `queries` queries see of the `past` keys before them and of each other's, when each sees
/// `window` keys, its own included. There are `past` + `queries` keys; `past` is below `window`.
pub(crate) fn window_mask(queries: usize, past: usize, window: usize) -> Result<Mask> {
    let keys = past + queries;
    if keys <= window {
        return Ok(if queries == 1 { Mask::All } else { Mask::Causal });
    }
    let mask = match queries * keys <= HOST_NUMBERS {
        true => on_host(queries, past, window),
        false => on_device(queries, past, window)?,
    };
    Ok(Mask::Bool(mask))
}

/// # Shapes
/// `[L,S]`.
fn on_host(queries: usize, past: usize, window: usize) -> Array {
    let keys = past + queries;
    let row = |query: usize| {
        let own = past + query;
        (0..keys).map(move |key| key <= own && own - key < window)
    };
    let mask: Vec<bool> = (0..queries).flat_map(row).collect();
    Array::from_slice(&mask, &[queries as i32, keys as i32])
}

/// # Shapes
/// `[L,S]`.
fn on_device(queries: usize, past: usize, window: usize) -> Result<Array> {
    let keys = (past + queries) as i32;
    let own = ops::arange::<i32, i32>(past as i32, keys, None)?.expand_dims(1)?;
    let ago = own.subtract(ops::arange::<i32, i32>(None, keys, None)?)?;
    let past_or_own = ago.ge(Array::from_int(0))?;
    Ok(past_or_own.logical_and(ago.lt(Array::from_int(window as i32))?)?)
}

#[cfg(test)]
mod tests {
    use mlx_rs::Device;

    use super::*;

    #[test]
    fn both_ways_to_make_a_mask_agree() {
        Device::try_default().expect("MLX answers");
        Device::set_default(&Device::cpu());
        for (queries, past, window) in [(1, 3, 4), (10, 0, 4), (4, 7, 8), (5, 1, 2), (3, 0, 1)] {
            let host = on_host(queries, past, window);
            let device = on_device(queries, past, window).expect("a mask");
            assert_eq!(host.shape(), device.shape());
            assert!(
                host.eq_exact(&device).expect("compares"),
                "{queries} queries, {past} before, window {window}"
            );
        }
    }
}
