//! Block heads: the trained one on its small target, random ones on every family.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod acceptance;
mod common;
mod conformance;
mod golden;
mod misfits;
mod parity;
mod sessions;
mod sets;
