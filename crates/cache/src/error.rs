//! What can go wrong with a cache.

use mlx_rs::error::Exception;

/// The result of a cache operation.
pub type Result<T> = std::result::Result<T, CacheError>;

/// A cache operation that could not be done. The state is unchanged unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// An offset that the cache cannot rest at.
    #[error("{what}: expected an offset {expected}, got {got}")]
    Offset {
        /// The operation.
        what: &'static str,
        /// The offsets that are legal now.
        expected: String,
        /// The offset asked for.
        got: usize,
    },
    /// An array that does not fit the cache.
    #[error("{what}: expected shape {expected}, got {got}")]
    Shape {
        /// The array.
        what: &'static str,
        /// The shape that fits.
        expected: String,
        /// The shape given.
        got: String,
    },
    /// A call in the wrong state, for example a second transaction.
    #[error("{what}: expected {expected}, got {got}")]
    State {
        /// The operation.
        what: &'static str,
        /// The state it needs.
        expected: String,
        /// The state found.
        got: String,
    },
    /// An evaluation failed while rows of this set were in flight: drop the set, its contents are unknown.
    #[error("the cache set is poisoned by a failed evaluation ({reason}); drop it and prefill again")]
    Poisoned {
        /// Why it was poisoned.
        reason: String,
    },
    /// MLX refused an operation.
    #[error("array operation failed: {}", .0.what())]
    Array(#[from] Exception),
}
