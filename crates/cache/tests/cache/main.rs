//! Tests of the public surface, on the POS toy: keys and values of token n are filled with n.

mod common;
mod conformance;
mod host_reads;
mod in_place;
mod kv;
mod mixed;
mod properties;
mod quantized;
mod recurrent;
mod set;
mod snapshots;
mod window;
