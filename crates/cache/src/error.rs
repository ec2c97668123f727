//! What can go wrong with a cache.

use mlx_rs::{Dtype, error::Exception};

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
    /// An array of another type than the rows already cached.
    #[error("{what}: expected {expected:?}, got {got:?}; cast the rows first")]
    Dtype {
        /// The array.
        what: &'static str,
        /// The type of the cached rows.
        expected: Dtype,
        /// The type given.
        got: Dtype,
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
    /// A layer or snapshot of another kind than the operation needs.
    #[error("{what}: expected {expected}, got {got}")]
    Kind {
        /// The operation.
        what: &'static str,
        /// The kind it needs.
        expected: String,
        /// The kind found.
        got: String,
    },
    /// A snapshot of another model's cache set.
    #[error("{what}: expected a snapshot of {expected}, got one of {got}; prefill instead")]
    Foreign {
        /// The operation.
        what: &'static str,
        /// The set that was asked.
        expected: String,
        /// The set that the snapshot was taken from.
        got: String,
    },
    /// A snapshot whose rows are gone: its set was dropped or poisoned before they were copied.
    #[error("the snapshot of slots {from}..{to} is lost ({reason}); drop it and prefill again")]
    Lost {
        /// First slot of the snapshot.
        from: usize,
        /// One past its last slot.
        to: usize,
        /// Why it was lost.
        reason: String,
    },
    /// A recurrent state that cannot be trusted: its set was poisoned while it held the state.
    #[error("the recurrent state is lost ({reason}); drop it and prefill again")]
    LostState {
        /// Why it was lost.
        reason: String,
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
