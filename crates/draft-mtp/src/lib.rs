//! Multi-token-prediction drafters: small heads that were trained on a target's hidden states.
//!
//! Two styles exist, told apart by their tensors alone:
//! - [`SingleHead`] keeps no cache. It re-attends the keys and values of the target's last layers,
//!   always from the position of the last committed slot ([`SingleDrafter`]).
//! - [`SeqHead`] is a Llama layer with a cache of its own over (next token, hidden) pairs
//!   ([`SeqDrafter`]).
//!
//! Both share the target's embeddings, draft over a part of its vocabulary, and draw through the
//! engine's sink; neither waits for an array nor writes the target's caches.

#![deny(missing_docs)]

#[cfg(test)]
mod fakes;
mod head;
mod load;
mod pairs;
mod seq;
mod seq_drafter;
mod session;
mod single;
mod single_drafter;

pub use head::{HeadStyle, load_options};
pub use load::{drafter, find_head, load};
pub use seq::SeqHead;
pub use seq_drafter::{FLUSH_TOKENS, SeqDrafter};
pub use single::SingleHead;
pub use single_drafter::SingleDrafter;
