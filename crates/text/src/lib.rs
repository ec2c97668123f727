//! Text at the edges of a model: tokenizers, chat templates, incremental output and stop strings.
//!
//! Nothing here knows a model or an array; ids go in and text comes out, or the other way round.
//!
//! - [`Tokenizer`] reads a model folder or GGUF metadata and turns text into ids.
//! - [`ChatTemplate`] renders messages the way the model was trained on. Control tokens come only
//!   from the template: a message that spells one is encoded as plain text (see [`Rendered`]).
//! - [`TextStream`] turns produced ids into text deltas and watches for stop strings. It never
//!   emits half a character and never the beginning of a stop string.
//!
//! ```
//! use foretoken_text::{StopMatcher, Utf8Stream};
//!
//! let mut text = Utf8Stream::new();
//! assert_eq!(text.push(&[0xf0, 0x9f]), "");
//! assert_eq!(text.push(&[0x98, 0x80, b'!']), "😀!");
//!
//! let mut stops = StopMatcher::new(&["own fox".to_owned()])?;
//! assert_eq!(stops.push("The quick br").text, "The quick br");
//! assert_eq!(stops.push("own").text, "");
//! assert!(stops.push(" fox jumps").stopped);
//! # Ok::<(), foretoken_text::TextError>(())
//! ```
#![deny(missing_docs)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod added;
mod clock;
mod detokenize;
mod error;
mod folder;
mod generation;
mod gguf;
mod message;
mod pretokenize;
mod pyjson;
mod special;
mod spoof;
mod stop;
mod stream;
mod template;
mod tokenizer;
mod vocabulary;

pub use detokenize::{Detokenizer, Utf8Stream};
pub use error::{Result, TextError};
pub use generation::{GenerationConfig, token_ids};
pub use gguf::GgufVocabulary;
pub use message::Message;
pub use special::{END_SPELLINGS, end_token_union};
pub use spoof::Rendered;
pub use stop::StopMatcher;
pub use stream::{Piece, TextStream};
pub use template::{ChatInput, ChatTemplate};
pub use tokenizer::Tokenizer;
pub use vocabulary::Vocabulary;
