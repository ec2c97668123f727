//! Why a request, or the worker that should serve it, failed.

use foretoken_cache::CacheError;
use foretoken_model_base::ModelError;
use foretoken_sample::SampleError;
use foretoken_speculate::SpeculateError;
use mlx_rs::error::{ConversionError, Exception};

use crate::FailureKind;

/// The result of a runner operation.
pub type Result<T> = std::result::Result<T, RunnerError>;

/// A request that cannot be served, or that failed while it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunnerError {
    /// Nothing to continue from.
    #[error("the prompt is empty: expected at least {expected} token, got 0")]
    EmptyPrompt {
        /// How many tokens are needed.
        expected: usize,
    },
    /// More tokens than the model can take.
    #[error(
        "the prompt has {got} tokens, expected at most {limit} in this model's context of {context} tokens; \
         shorten the prompt"
    )]
    PromptTooLong {
        /// Tokens in the prompt.
        got: usize,
        /// The most that leave room for what was asked.
        limit: usize,
        /// The longest sequence that the model takes.
        context: usize,
    },
    /// An id that the model has no embedding for.
    #[error(
        "prompt token {index}: expected an id below the vocabulary size {vocabulary}, got {got}; was the \
         prompt encoded with another model's tokenizer?"
    )]
    TokenOutOfRange {
        /// Its place in the prompt.
        index: usize,
        /// The id.
        got: u32,
        /// V of the model.
        vocabulary: usize,
    },
    /// A message that ends outside the prompt.
    #[error("message boundary: expected at most {prompt}, the prompt's length, got {got}")]
    Boundary {
        /// The boundary.
        got: usize,
        /// Tokens in the prompt.
        prompt: usize,
    },
    /// A decoder that broke its contract; nothing of the run was streamed.
    #[error("decoder: expected {expected}, got {got}")]
    Decoder {
        /// What the contract asks for.
        expected: String,
        /// What the decoder did.
        got: String,
    },
    /// Logits that mean nothing.
    #[error("the model's logits after token {step} are not finite; check the weights, or try --dtype f32")]
    NonFinite {
        /// The place of the token, counted from 0.
        step: usize,
    },
    /// A panic inside a request. The request is lost, the worker goes on.
    #[error("the request panicked: {message}; this is a fault in the program, please report it")]
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// The worker thread could not build its runner.
    #[error("{source}")]
    Load {
        /// The builder's own error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The worker thread has ended.
    #[error("the worker has stopped; start a new one")]
    Stopped,
    /// The operating system refused a thread.
    #[error("cannot start the worker thread: {source}")]
    Thread {
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The decoder refused or failed.
    #[error(transparent)]
    Speculate(#[from] SpeculateError),
    /// The model refused or failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A cache refused.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The sampler refused.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The grammar cannot begin an answer.
    #[error("the grammar cannot be used: {source}")]
    Grammar {
        /// What the grammar says.
        source: SampleError,
    },
    /// MLX refused an operation.
    #[error("array operation failed: {}", .0.what())]
    Array(#[from] Exception),
    /// An array could not be read on the host.
    #[error("array cannot be read: {0}")]
    Read(#[from] ConversionError),
}

impl RunnerError {
    /// Whose fault it is: the request's own, or something that went wrong while serving it.
    pub fn kind(&self) -> FailureKind {
        match self {
            RunnerError::EmptyPrompt { .. }
            | RunnerError::PromptTooLong { .. }
            | RunnerError::TokenOutOfRange { .. }
            | RunnerError::Boundary { .. }
            | RunnerError::Grammar { .. }
            | RunnerError::Sample(SampleError::Option { .. })
            | RunnerError::Speculate(SpeculateError::Sample(SampleError::Option { .. })) => {
                FailureKind::Request
            }
            _ => FailureKind::Runtime,
        }
    }
}
