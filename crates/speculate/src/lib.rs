//! Lossless speculative decoding: the contract for drafters, and the engine that runs them.
//!
//! A drafter proposes tokens; it never draws one, never states a distribution and never writes the
//! target's caches. The engine validates a proposal with one target forward and one wait, rolls every
//! cache back to what was kept, and reports the committed run to the drafter. No drafter is named here.
//!
//! `examples/custom_drafter.rs` is a whole drafter; the feature `testkit` brings a scripted target and
//! the conformance suite that every drafter should pass.
#![deny(missing_docs)]

mod accept;
mod audience;
mod decoder;
mod depth;
mod drafter;
mod error;
mod exact;
#[cfg(test)]
mod laws;
mod lazy;
mod plain;
mod round;
mod session;
mod sink;
mod speculation;
mod speculative;
mod states;
mod stats;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use accept::{Coupled, Ratio, Rule, Verdict};
pub use decoder::{Decoder, Provenance, RequestState, Run, Token, TokenLogprobs, make_decoder};
pub use depth::{
    Choice, Clock, Controller, DraftPolicy, Estimates, Outcome, Recorder, ScriptedClock, Seat, Situation,
    Source, SystemClock, Throughput, Trace, Traced,
};
pub use drafter::{CommittedRun, DraftCx, DraftSession, DraftSink, Drafter, DrafterFacts};
// Not public: a glob import would hide the result type of drafters, which fail with `DraftError`.
pub(crate) use error::Result;
pub use error::{DraftError, SpeculateError};
pub use exact::{EXACT_WIDTH, Exact};
pub use lazy::Lazy;
pub use sink::{CoupledSink, RatioSink};
pub use speculation::{Speculation, Traces};
pub use states::States;
pub use stats::{Accounting, SourceCounts, Statistics};
