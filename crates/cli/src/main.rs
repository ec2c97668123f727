//! The foretoken command line.
fn main() {}
