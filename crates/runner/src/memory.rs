//! MLX's allocator: how much a request needed, and giving unused buffers back.

use mlx_rs::memory;

use crate::Result;

/// Tokens between two clearings of the buffer cache while decoding.
pub(crate) const CLEAR_EVERY: usize = 256;

/// Bytes that MLX holds for this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// In arrays.
    pub active: usize,
    /// In freed buffers that are kept for reuse.
    pub cached: usize,
    /// The most at one time since the last request began.
    pub peak: usize,
}

impl MemoryUse {
    /// Asks MLX now. The counters belong to the process, so any thread may ask.
    pub fn now() -> Result<Self> {
        let (active, cached) = (memory::active_memory()?, memory::cache_memory()?);
        // A reset peak is 0 until the next allocation, although the weights are there.
        Ok(Self { active, cached, peak: memory::peak_memory()?.max(active) })
    }
}

/// Starts measuring the peak of one request.
pub(crate) fn begin_request() -> Result<()> {
    Ok(memory::reset_peak_memory()?)
}

/// Gives freed buffers back, so that shapes of the past do not pile up.
pub(crate) fn clear_buffers() -> Result<()> {
    Ok(memory::clear_cache()?)
}

/// Whether a count that grew from `before` to `after` crossed a multiple of [`CLEAR_EVERY`]. A run of
/// several tokens may jump over the multiple itself, so the quotients are compared.
pub(crate) fn crossed(before: usize, after: usize) -> bool {
    before / CLEAR_EVERY != after / CLEAR_EVERY
}
