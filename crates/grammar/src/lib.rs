//! Structured output: JSON schemas, regular expressions and Lark grammars as token masks.

#![deny(missing_docs)]
