//! Logits to tokens on MLX: penalties, filters, distributions and seeded draws.
//!
//! Nothing in this crate evaluates an array: everything it returns is lazy, so that a whole round of
//! speculative decoding costs one wait. The order is fixed: logit bias, penalties, bans (sequences, end
//! tokens, a grammar's mask), top-k, temperature and softmax, top-p, min-p, renormalisation.
//!
//! # Shapes
//! n rows, V vocabulary, D logit columns (V, or a head's own draft vocabulary), k kept candidates.

#![deny(missing_docs)]

mod arrays;
mod constraint;
mod distribution;
mod draw;
mod error;
mod filter;
mod history;
mod logprobs;
mod masks;
mod noise;
mod options;
mod penalties;
mod residual;
mod sampler;

pub use constraint::{Constraint, Grammar, TokenMask};
pub use distribution::Distribution;
pub use error::{Result, SampleError};
pub use history::History;
pub use logprobs::{Logprobs, finite_rows, logprobs};
pub use noise::{SplitMix64, noise, uniform};
pub use options::{RuleChoice, SamplingOptions, Seed};
pub use sampler::{Rows, Sampler};
