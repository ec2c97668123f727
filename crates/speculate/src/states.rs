//! One target forward with every hidden state that somebody listens to.

use foretoken_cache::CacheSet;
use foretoken_model_base::{Batch, Hidden, Model};
use mlx_rs::{
    Array,
    ops::{concatenate, indexing::TryIndexOp},
};

use crate::{DrafterFacts, Result, SpeculateError};

/// The hidden states of a forward that drafters condition on.
#[derive(Debug, Clone)]
pub struct States {
    /// `Hidden.aux` `[1,n,E]`.
    pub aux: Array,
    /// The states after the tapped layers `[1,n,E·t]`, in ascending order of the layers.
    pub taps: Option<Array>,
    /// The tapped layers, ascending.
    pub layers: Vec<usize>,
}

impl States {
    /// Only `Hidden.aux` of a forward.
    ///
    /// # Shapes
    /// `aux` `[1,n,E]`.
    pub fn plain(aux: Array) -> Self {
        Self { aux, taps: None, layers: Vec::new() }
    }

    /// Forwards a batch of one row and returns the state to unembed `[1,L,E]` with the states to listen to.
    /// `layers`, ascending, are the ones to tap; a model without taps is an error when there are any.
    pub fn forward(
        model: &dyn Model,
        batch: &Batch,
        target: &mut CacheSet,
        layers: &[usize],
    ) -> Result<(Array, Self)> {
        if layers.is_empty() {
            let Hidden { last, aux } = model.forward(batch, &mut [target])?;
            return Ok((last, Self::plain(aux)));
        }
        let taps = model.taps().ok_or_else(|| no_taps(layers))?;
        let (Hidden { last, aux }, tapped) = taps.forward_both(batch, &mut [target], layers)?;
        Ok((last, Self { aux, taps: Some(tapped), layers: layers.to_vec() }))
    }

    /// The rows from `first` on, `count` of them.
    pub(crate) fn rows(&self, first: usize, count: usize) -> Result<Self> {
        let (from, to) = (first as i32, (first + count) as i32);
        let cut = |array: &Array| array.try_index((.., from..to, ..));
        let (aux, taps) = (cut(&self.aux)?, self.taps.as_ref().map(cut).transpose()?);
        Ok(Self { aux, taps, layers: self.layers.clone() })
    }

    /// What a drafter asked for: `Hidden.aux` `[1,n,E]`, or its own layers `[1,n,E·t]` in its own order.
    pub(crate) fn asked_by(&self, facts: &DrafterFacts) -> Result<Option<Array>> {
        if !facts.needs_hidden {
            return Ok(None);
        }
        if facts.taps.is_empty() {
            return Ok(Some(self.aux.clone()));
        }
        let taps = self.taps.as_ref().ok_or_else(|| no_taps(&facts.taps))?;
        if facts.taps == self.layers {
            return Ok(Some(taps.clone()));
        }
        let width = taps.dim(2) / self.layers.len().max(1) as i32;
        let part = |layer: &usize| {
            let at = self.layers.binary_search(layer).map_err(|_| no_taps(&facts.taps))? as i32;
            Ok(taps.try_index((.., .., at * width..(at + 1) * width))?)
        };
        let parts: Vec<Array> = facts.taps.iter().map(part).collect::<Result<_>>()?;
        Ok(Some(concatenate(&parts, 2)?))
    }

    /// Everything that has to be evaluated with the round.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        std::iter::once(&self.aux).chain(&self.taps)
    }
}

fn no_taps(layers: &[usize]) -> SpeculateError {
    SpeculateError::Input {
        what: "hidden states",
        expected: format!("a model that taps the layers {layers:?}"),
        got: "a forward without them".into(),
    }
}
