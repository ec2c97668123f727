//! Runs requests: prompt ids in, typed token events out.
//!
//! A [`Runner`] composes prefill and decode for one loaded model. It handles ids, never text, and names
//! no model family and no drafter. The decode loop is the only place that emits tokens and the only one
//! that enforces a request's budget. A [`Worker`] keeps a runner on the one OS thread that touches MLX;
//! its [`Handle`], a [`Request`] and every [`Event`] may cross threads and hold no arrays.
//!
//! What a request computed is remembered for the next ones that begin with the same tokens
//! ([`Runner::with_prefix_cache`]); [`Usage::cached_tokens`] says how many those were.
#![deny(missing_docs)]

mod decode;
mod error;
mod event;
mod memory;
mod prefill;
mod request;
mod reuse;
mod runner;
mod score;
#[cfg(test)]
mod tests;
mod worker;

pub use error::{Result, RunnerError};
pub use foretoken_cache::prefix::PrefixOptions;

pub use event::{Event, FailureKind, FinishReason, Report, Timing, TokenSink, Usage};
pub use memory::MemoryUse;
pub use prefill::PREFILL_CHUNK;
pub use request::Request;
pub use runner::{Runner, default_policy};
pub use score::Score;
pub use worker::{Events, Handle, Worker};
