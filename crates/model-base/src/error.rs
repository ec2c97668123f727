//! What can go wrong with a model and its files.

use foretoken_cache::CacheError;
use mlx_rs::error::Exception;

/// The result of a model operation.
pub type Result<T> = std::result::Result<T, ModelError>;

/// A model or weight file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file that cannot be read at all.
    #[error("cannot read {path}: {source}; check the path and who may read it")]
    Io {
        /// The file.
        path: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A file whose contents contradict its format.
    #[error("{file}: {what}: expected {expected}, got {got}; {next}")]
    File {
        /// The file.
        file: String,
        /// The tensor or field.
        what: String,
        /// What the format asks for.
        expected: String,
        /// What the file says.
        got: String,
        /// What the user can do.
        next: &'static str,
    },
    /// A tensor that is missing or does not fit.
    #[error("tensor {what}: expected {expected}, got {got}; {next}")]
    Tensor {
        /// The tensor's name in the checkpoint.
        what: String,
        /// The shape or kind that fits.
        expected: String,
        /// What the checkpoint has.
        got: String,
        /// What the user can do.
        next: &'static str,
    },
    /// A configuration value that this program cannot serve.
    #[error("config {what}: expected {expected}, got {got}")]
    Config {
        /// The key.
        what: String,
        /// What is supported.
        expected: String,
        /// What the file says.
        got: String,
    },
    /// Arguments that contradict the model.
    #[error("{what}: expected {expected}, got {got}")]
    Input {
        /// The argument.
        what: &'static str,
        /// What the model takes.
        expected: String,
        /// What it was given.
        got: String,
    },
    /// A cache refused rows.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// MLX refused an operation.
    #[error("array operation failed: {}", .0.what())]
    Array(#[from] Exception),
}
