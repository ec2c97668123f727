//! Collecting the hidden states of inner layers while a forward passes them.

use foretoken_model_base::{ModelError, Result};
use mlx_rs::{Array, ops::concatenate};

/// The states that one forward is asked to keep.
pub(crate) struct Taps<'l> {
    layers: &'l [usize],
    /// One entry for each of `layers`, in the same order.
    states: Vec<Option<Array>>,
}

impl<'l> Taps<'l> {
    /// Nothing is kept.
    pub(crate) fn none() -> Self {
        Self { layers: &[], states: Vec::new() }
    }

    /// Keeps the states after these layers of a model with `count` of them, in this order.
    pub(crate) fn new(layers: &'l [usize], count: usize) -> Result<Self> {
        let expected = || format!("at least one layer, each from 0 to {}", count.saturating_sub(1));
        let refuse = |got| Err(ModelError::Input { what: "tapped layers", expected: expected(), got });
        match layers.iter().find(|&&layer| layer >= count) {
            Some(layer) => refuse(layer.to_string()),
            None if layers.is_empty() => refuse("none".into()),
            None => Ok(Self { layers, states: vec![None; layers.len()] }),
        }
    }

    /// Looks at the state `[B,L,E]` after layer `index`.
    pub(crate) fn pass(&mut self, index: usize, state: &Array) {
        for (layer, kept) in self.layers.iter().zip(&mut self.states) {
            if *layer == index {
                *kept = Some(state.clone());
            }
        }
    }

    /// `[B,L,E·t]`.
    pub(crate) fn joined(self) -> Result<Array> {
        let states: Vec<Array> = self.states.into_iter().flatten().collect();
        match <[Array; 1]>::try_from(states) {
            Ok([only]) => Ok(only),
            Err(several) => Ok(concatenate(&several, -1)?),
        }
    }
}
