//! Layers that several families share. They hold weights, build arrays and evaluate nothing.

mod attention;
mod embedding;
mod linear;
mod mlp;
mod norm;
mod rope;

pub use attention::{attend, join_heads, split_heads};
pub use embedding::Embedding;
pub use linear::Linear;
pub use mlp::Mlp;
pub use norm::RmsNorm;
pub use rope::Rope;
