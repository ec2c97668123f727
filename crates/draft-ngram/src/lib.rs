//! Prompt look-up drafting: what followed the same n tokens before.

#![deny(missing_docs)]
