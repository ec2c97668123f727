//! What can go wrong while decoding, and what a drafter can report.

use foretoken_cache::CacheError;
use foretoken_model_base::ModelError;
use foretoken_sample::SampleError;
use mlx_rs::error::Exception;

/// The result of a decoding operation.
pub(crate) type Result<T> = std::result::Result<T, SpeculateError>;

/// A decoding failure that ends the request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpeculateError {
    /// The target's logits cannot be sampled.
    #[error("the model's logits at step {step} are not finite; check the weights, or try --dtype f32")]
    NonFinite {
        /// The output position, counted from 0.
        step: usize,
    },
    /// Filters and masks left no token to draw.
    #[error("no token is left to draw at step {step}; loosen the filters or the grammar")]
    EmptySupport {
        /// The output position, counted from 0.
        step: usize,
    },
    /// Arguments that contradict each other.
    #[error("{what}: expected {expected}, got {got}")]
    Input {
        /// The argument.
        what: &'static str,
        /// What is legal.
        expected: String,
        /// What was given.
        got: String,
    },
    /// The model refused.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A cache refused.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The sampler refused.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// MLX refused an operation.
    #[error("array operation failed: {}", .0.what())]
    Array(#[from] Exception),
}

/// A drafter's failure: speculation ends for the request, the text goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// Committed runs that do not follow each other.
    #[error("committed run: expected slot {expected}, got {got}")]
    Gap {
        /// The next slot in order.
        expected: usize,
        /// The slot reported.
        got: usize,
    },
    /// A target that this drafter cannot serve.
    #[error("{what}: expected {expected}, got {got}")]
    Mismatch {
        /// What does not fit.
        what: String,
        /// What the drafter needs.
        expected: String,
        /// What the target has.
        got: String,
    },
    /// Anything else, in the drafter's own words.
    #[error("{0}")]
    Other(String),
    /// A head refused.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A cache refused.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The sampler refused.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// MLX refused an operation.
    #[error("array operation failed: {}", .0.what())]
    Array(#[from] Exception),
}
