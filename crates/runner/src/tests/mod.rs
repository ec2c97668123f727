//! Tests that need the insides: the decode loop by itself, and the state at rest.

mod decode_loop;
