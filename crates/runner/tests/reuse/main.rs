//! Reuse across requests: warm answers equal cold ones, and say how much they reused.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod budget;
mod cancelled;
mod drafters;
mod faults;
mod prefixes;
mod support;
