//! The sampler's contract, seen from outside: one binary, one file per part.

#![allow(clippy::unwrap_used)]

mod common;
mod distributions;
mod draws;
mod filters;
mod masks;
mod noise;
mod options;
mod penalties;
mod reported;
