//! Block drafting: one forward fills a block of mask positions from tapped target layers.

#![deny(missing_docs)]
