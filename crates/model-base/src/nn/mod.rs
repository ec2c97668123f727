//! Layers that several families share. They hold weights, build arrays and evaluate nothing.

mod activation;
mod attention;
mod embedding;
pub mod gated_delta;
mod linear;
mod mlp;
mod norm;
mod rope;
mod short_conv;

pub use activation::{Activation, scaled, soft_cap};
pub use attention::{attend, join_heads, split_heads};
pub use embedding::Embedding;
pub use linear::Linear;
pub use mlp::Mlp;
pub use norm::RmsNorm;
pub use rope::Rope;
pub use short_conv::{ConvLayout, ShortConv};
