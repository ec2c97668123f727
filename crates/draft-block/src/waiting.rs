//! Committed slots that wait to be written to the head's caches.

use mlx_rs::{Array, error::Exception, ops::concatenate};

/// A queue in slot order.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    ids: Vec<u32>,
    /// Tapped states `[1,k,E·t]`, together as long as `ids`.
    taps: Vec<Array>,
}

impl Waiting {
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Adds k slots with their states `[1,k,E·t]`.
    pub(crate) fn push(&mut self, ids: &[u32], taps: Array) {
        self.ids.extend_from_slice(ids);
        self.taps.push(taps);
    }

    /// Everything: ids `[1,n]` and states `[1,n,E·t]`; `None` when nothing waits.
    pub(crate) fn joined(&self) -> Result<Option<(Array, Array)>, Exception> {
        let ids = || Array::from_slice(&self.ids, &[1, self.ids.len() as i32]);
        Ok(match &self.taps[..] {
            [] => None,
            [only] => Some((ids(), only.clone())),
            several => Some((ids(), concatenate(several, 1)?)),
        })
    }

    /// Drops what was written.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
