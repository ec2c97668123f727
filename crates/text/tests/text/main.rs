//! Tests of whole tokenizers: toys built in memory, folders, and the SmolLM2 vocabulary.
#![allow(clippy::unwrap_used)]

mod chat;
mod folder;
mod gguf_file;
mod pieces;
mod smollm2;
mod toy;
