//! A target whose next token is any function of the tokens in its caches.

use std::{cell::Cell, rc::Rc};

use foretoken_cache::{CacheSet, KvCache, Layer, SetId};
use foretoken_model_base::{Batch, Hidden, Model, ModelError, ModelFacts, Result};
use mlx_rs::{Array, Dtype, error::Exception, ops};

/// The logit of the scripted token; the others have 0.
const SHARP: f32 = 10.0;

/// The context length unless a test sets another.
const CONTEXT: usize = 4096;

type Logits = Rc<dyn Fn(&[u32]) -> Vec<f32>>;

/// A model whose hidden state is its logits, so E = V and `unembed` changes nothing.
///
/// Two full-attention layers store the token ids themselves. Every forward reads the whole sequence back
/// from the caches and asks the script for the row after each token: a row kept too long, or rolled back
/// too far, changes the text.
pub struct ScriptedTarget {
    facts: ModelFacts,
    id: SetId,
    script: Logits,
    fail_at: Option<usize>,
    fail_evaluation_at: Option<usize>,
    nan_at: Option<usize>,
    forwards: Cell<usize>,
    largest: Cell<Option<usize>>,
}

impl ScriptedTarget {
    /// A target that always wants the token `next` returns for the tokens so far.
    pub fn new(vocabulary: usize, next: impl Fn(&[u32]) -> u32 + 'static) -> Self {
        Self::with_logits(vocabulary, move |tokens| {
            let mut row = vec![0.0; vocabulary];
            row[next(tokens) as usize % vocabulary] = SHARP;
            row
        })
    }

    /// A target with any logits, V numbers for the tokens so far.
    pub fn with_logits(vocabulary: usize, logits: impl Fn(&[u32]) -> Vec<f32> + 'static) -> Self {
        Self {
            facts: facts("scripted", vocabulary),
            id: SetId::fresh(),
            script: Rc::new(logits),
            fail_at: None,
            fail_evaluation_at: None,
            nan_at: None,
            forwards: Cell::new(0),
            largest: Cell::new(None),
        }
    }

    /// CONST: the same logits at every step.
    pub fn constant(logits: &[f32]) -> Self {
        let row = logits.to_vec();
        Self::with_logits(logits.len(), move |_| row.clone())
    }

    /// SCRIPT: `answer` after a prompt of `prompt` tokens, its last token for ever after.
    pub fn script(vocabulary: usize, prompt: usize, answer: &[u32]) -> Self {
        let answer = answer.to_vec();
        Self::new(vocabulary, move |tokens| {
            let step = tokens.len().saturating_sub(prompt).min(answer.len() - 1);
            answer[step]
        })
    }

    /// Limits the context length.
    #[must_use]
    pub fn context(mut self, tokens: usize) -> Self {
        self.facts.context_length = tokens;
        self
    }

    /// Makes forward number `forward`, counted from 0, fail after its first layer was written.
    #[must_use]
    pub fn fail_at(mut self, forward: usize) -> Self {
        self.fail_at = Some(forward);
        self
    }

    /// Makes the evaluation of forward number `forward` fail, counted from 0.
    #[must_use]
    pub fn fail_evaluation_at(mut self, forward: usize) -> Self {
        self.fail_evaluation_at = Some(forward);
        self
    }

    /// Makes the row that predicts the token at `slot` not a number.
    #[must_use]
    pub fn nan_at(mut self, slot: usize) -> Self {
        self.nan_at = Some(slot);
        self
    }

    /// Forwards so far.
    pub fn forwards(&self) -> usize {
        self.forwards.get()
    }

    /// The largest slot forwarded so far.
    pub fn largest_position(&self) -> Option<usize> {
        self.largest.get()
    }

    /// The token that the script wants after `tokens`.
    pub fn wants(&self, tokens: &[u32]) -> u32 {
        let row = (self.script)(tokens);
        let best =
            row.iter().enumerate().fold(0, |best, (id, logit)| if *logit > row[best] { id } else { best });
        best as u32
    }

    fn rows(&self, tokens: &[u32], from: usize) -> Vec<f32> {
        let row = |end: usize| match self.nan_at {
            Some(slot) if slot == end => vec![f32::NAN; self.facts.vocabulary],
            _ => (self.script)(&tokens[..end]),
        };
        (from + 1..=tokens.len()).flat_map(row).collect()
    }
}

pub(crate) fn facts(family: &'static str, vocabulary: usize) -> ModelFacts {
    ModelFacts {
        family,
        vocabulary,
        context_length: CONTEXT,
        layers: 2,
        width: vocabulary,
        heads: 1,
        kv_heads: 1,
        head_size: 1,
        norm_epsilon: 1e-5,
        rope_base: 10_000.0,
        end_tokens: Vec::new(),
    }
}

pub(crate) fn two_layers(id: SetId) -> CacheSet {
    CacheSet::with_id(id, vec![Layer::Kv(KvCache::new()), Layer::Kv(KvCache::new())])
}

impl Model for ScriptedTarget {
    fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    fn make_caches(&self) -> CacheSet {
        two_layers(self.id)
    }

    fn forward(&self, batch: &Batch, caches: &mut [&mut CacheSet]) -> Result<Hidden> {
        let number = self.forwards.replace(self.forwards.get() + 1);
        let set = single(batch, caches)?;
        let rows = batch.ids.reshape(&[1, 1, -1, 1])?.as_dtype(Dtype::Float32)?; // [1,1,L,1]
        let mut seen = None;
        for index in 0..set.len() {
            let layer = set.layer_mut(index).map(|l| l.get_mut());
            let view = layer.map(|l| l.append(&rows, &rows)).transpose()?;
            let tokens = view.map(|v| host_ids(&v.keys)).transpose()?.unwrap_or_default();
            if self.fail_at == Some(number) {
                return Err(input("scripted forward", "success".into(), format!("failure {number}")));
            }
            agree(seen.replace(tokens), seen.as_deref())?;
        }
        let tokens = seen.unwrap_or_default();
        let (offset, length) = (batch.offsets[0], batch.lengths[0]);
        if tokens.len() != offset + length {
            return Err(input("caches", format!("{offset} slots"), (tokens.len() - length).to_string()));
        }
        self.largest.set(self.largest.get().max(Some(offset + length - 1)));
        let shape = [1, length as i32, self.facts.vocabulary as i32];
        let mut last = Array::from_slice(&self.rows(&tokens, offset), &shape); // [1,L,V]
        if self.fail_evaluation_at == Some(number) {
            last = failing(&last)?;
        }
        Ok(Hidden { aux: last.clone(), last })
    }

    fn unembed(&self, last: &Array) -> Result<Array> {
        Ok(last.clone())
    }
}

/// Two layers that disagree about the sequence.
fn agree(before: Option<Vec<u32>>, now: Option<&[u32]>) -> Result<()> {
    match (before, now) {
        (Some(before), Some(now)) if before != now => {
            Err(input("layers", format!("{before:?}"), format!("{now:?}")))
        }
        _ => Ok(()),
    }
}

fn input(what: &'static str, expected: String, got: String) -> ModelError {
    ModelError::Input { what, expected, got }
}

/// The one cache set of a batch of one row.
pub(crate) fn single<'a>(batch: &Batch, caches: &'a mut [&mut CacheSet]) -> Result<&'a mut CacheSet> {
    match (batch.offsets.len(), caches) {
        (1, [set]) => Ok(set),
        (rows, caches) => {
            Err(input("batch", "one row, one cache set".into(), format!("{rows}, {}", caches.len())))
        }
    }
}

/// An array that can be built and not computed: MLX has no such product on the CPU.
fn failing(like: &Array) -> Result<Array> {
    let half = ops::ones_dtype(&[1, 1, 1], Dtype::Bfloat16)?;
    let broken = ops::gather_mm(&half, &half, None, Some(&Array::from_slice(&[0_u32], &[1])), None)?;
    Ok(like.add(broken.reshape(&[1])?.as_dtype(Dtype::Float32)?)?)
}

fn host_ids(rows: &Array) -> Result<Vec<u32>> {
    let ids = rows.reshape(&[-1])?.as_dtype(Dtype::Uint32)?.contiguous()?;
    ids.to_vec_exact().map_err(|err| ModelError::Array(Exception::custom(err.to_string())))
}

/// The token ids that a scripted target's cache set holds, layer 0.
pub fn cached_ids(set: &CacheSet) -> Result<Vec<u32>> {
    let view = set.layer(0).map(|l| l.get().view()).transpose()?.flatten();
    Ok(view.map(|v| host_ids(&v.keys)).transpose()?.unwrap_or_default())
}
