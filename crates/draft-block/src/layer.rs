//! One layer of a block head.

use foretoken_cache::{Layer, Mask, View};
use foretoken_model_base::{
    Result,
    nn::{Linear, Mlp, RmsNorm, attend, join_heads, split_heads},
    weights::Cursor,
};
use mlx_rs::{Array, ops::add};

use crate::shape::Shape;

/// A Llama layer whose queries come from the block, and whose keys and values come from committed slots as
/// well, through projections of their own.
#[derive(Debug)]
pub(crate) struct BlockLayer {
    input_norm: RmsNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    context_key: Linear,
    context_value: Linear,
    output: Linear,
    post_norm: RmsNorm,
    mlp: Mlp,
}

impl BlockLayer {
    pub(crate) fn load(at: &Cursor<'_>, shape: &Shape) -> Result<Self> {
        let (attention, width) = (at.at("self_attn"), shape.width);
        let (queries, kv) = (shape.heads * shape.head_size, shape.kv_heads * shape.head_size);
        let linear = |name, from, to| Linear::load(&attention.at(name), from, to, false);
        let norm = |name| RmsNorm::load(&at.at(name), width, shape.epsilon);
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            query: linear("q_proj", width, queries)?,
            key: linear("k_proj", width, kv)?,
            value: linear("v_proj", width, kv)?,
            context_key: linear("context_k_proj", shape.context(), kv)?,
            context_value: linear("context_v_proj", shape.context(), kv)?,
            output: linear("o_proj", queries, width)?,
            post_norm: norm("post_attention_layernorm")?,
            mlp: Mlp::load(&at.at("mlp"), width, shape.inner, false)?,
        })
    }

    /// Appends committed slots: `context` `[1,L,E·(1+t)]`.
    pub(crate) fn append(
        &self,
        shape: &Shape,
        context: &Array,
        position: usize,
        own: &mut Layer,
    ) -> Result<()> {
        let keys = split_heads(&self.context_key.forward(context)?, shape.kv_heads as i32)?;
        let values = split_heads(&self.context_value.forward(context)?, shape.kv_heads as i32)?;
        own.get_mut().append(&shape.rope.forward(&keys, position)?, &values)?;
        Ok(())
    }

    /// `[1,N,E]` → `[1,N,E]`, appending the block's rows to `own`.
    pub(crate) fn forward(
        &self,
        shape: &Shape,
        x: &Array,
        position: usize,
        own: &mut Layer,
    ) -> Result<Array> {
        let y = self.input_norm.forward(x)?;
        let queries = split_heads(&self.query.forward(&y)?, shape.heads as i32)?;
        let keys = split_heads(&self.key.forward(&y)?, shape.kv_heads as i32)?;
        let values = split_heads(&self.value.forward(&y)?, shape.kv_heads as i32)?;
        let queries = shape.rope.forward(&queries, position)?;
        let view = own.get_mut().append(&shape.rope.forward(&keys, position)?, &values)?;
        // The cache's own mask hides later rows; in a block every row sees every other.
        let view = View { mask: Mask::All, ..view };
        let attended = join_heads(&attend(&queries, &view, shape.scale())?)?;
        let x = add(x, self.output.forward(&attended)?)?;
        Ok(add(&x, self.mlp.forward(&self.post_norm.forward(&x)?)?)?)
    }
}
