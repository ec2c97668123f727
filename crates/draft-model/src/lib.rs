//! Drafting with a second, smaller model.

#![deny(missing_docs)]
