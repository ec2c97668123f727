//! What can go wrong between logits and tokens.

use mlx_rs::error::Exception;

/// The result of a sampling operation.
pub type Result<T> = std::result::Result<T, SampleError>;

/// A sampling request that cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// An option out of its range.
    #[error("option {what}: expected {expected}, got {got}")]
    Option {
        /// The option's name.
        what: &'static str,
        /// The legal values.
        expected: &'static str,
        /// The value given.
        got: String,
    },
    /// An array of the wrong shape.
    #[error("{what}: expected shape {expected}, got {got}")]
    Shape {
        /// The array.
        what: &'static str,
        /// The shape that fits.
        expected: String,
        /// The shape given.
        got: String,
    },
    /// A grammar that cannot be compiled, or an answer that left it.
    #[error("{what}: expected {expected}, got {got}")]
    Constraint {
        /// The grammar or the step.
        what: &'static str,
        /// What it needs.
        expected: String,
        /// What came.
        got: String,
    },
    /// MLX refused an operation.
    #[error("array operation failed: {}", .0.what())]
    Array(#[from] Exception),
}
