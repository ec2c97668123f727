//! Log probabilities of given ids. Besides prefill and the decoders the one place that waits for arrays.

use foretoken_cache::CacheSet;
use foretoken_model_base::Batch;
use foretoken_sample::{finite_rows, logprobs};
use mlx_rs::{Array, Dtype, ops::indexing::argmax_axis, transforms::eval};

use crate::{Result, Runner, RunnerError, memory};

/// Rows per forward: every row is unembedded, so a chunk costs this many rows of V logits.
const SCORE_CHUNK: usize = 256;

/// How likely a model finds a sequence.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Score {
    /// Of each id from the second on, given the ids before it.
    pub logprobs: Vec<f32>,
    /// The most likely id after each id.
    pub top_ids: Vec<u32>,
}

impl Score {
    /// exp of the mean negative log probability; absent for a single id.
    pub fn perplexity(&self) -> Option<f64> {
        let sum: f64 = self.logprobs.iter().map(|&logprob| f64::from(logprob)).sum();
        (!self.logprobs.is_empty()).then(|| (-sum / self.logprobs.len() as f64).exp())
    }
}

impl Runner {
    /// Scores a sequence that may fill the whole context. `rows` hears the raw logits of every chunk in
    /// order, already evaluated.
    ///
    /// # Shapes
    /// `rows` is called with `[n,V]` float32, T rows in all for T ids.
    pub fn score(&mut self, ids: &[u32], mut rows: impl FnMut(&Array) -> Result<()>) -> Result<Score> {
        self.check_prompt(ids, self.model.facts().context_length)?;
        memory::begin_request()?;
        let mut caches = self.model.make_caches();
        let mut score = Score::default();
        for chunk in ids.chunks(self.chunk.min(SCORE_CHUNK)) {
            let at = caches.offset();
            // The row of the last id has no next id to judge; a stand-in keeps the shapes equal.
            let next: Vec<u32> =
                (at + 1..=at + chunk.len()).map(|i| ids.get(i).copied().unwrap_or(0)).collect();
            let logits = self.score_chunk(&mut caches, chunk, &next, &mut score)?;
            rows(&logits)?;
            drop(logits);
            memory::clear_buffers()?;
        }
        score.logprobs.truncate(ids.len() - 1);
        Ok(score)
    }

    /// Forwards one chunk and appends what its rows say: logits `[n,V]` float32.
    fn score_chunk(
        &self,
        caches: &mut CacheSet,
        chunk: &[u32],
        next: &[u32],
        score: &mut Score,
    ) -> Result<Array> {
        let n = chunk.len() as i32;
        let at = caches.offset();
        let hidden = self.model.forward(&Batch::from_ids(chunk, at)?, &mut [caches])?;
        let logits = self.model.unembed(&hidden.last)?.reshape(&[n, -1])?.as_dtype(Dtype::Float32)?; // [n,V]
        let chosen = logprobs(&logits, &Array::from_slice(next, &[n]), 0)?.chosen; // [n]
        let top = argmax_axis(&logits, -1, None)?; // [n]
        let finite = finite_rows(&logits)?; // [n]
        eval([&logits, &chosen, &top, &finite])?;
        if let Some(row) = finite.contiguous()?.to_vec_exact::<bool>()?.iter().position(|&fine| !fine) {
            return Err(RunnerError::NonFinite { step: at + row });
        }
        score.logprobs.extend(chosen.contiguous()?.to_vec_exact::<f32>()?);
        score.top_ids.extend(top.contiguous()?.to_vec_exact::<u32>()?);
        Ok(logits)
    }
}
