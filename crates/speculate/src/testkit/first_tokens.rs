//! The joint law of an answer's first two tokens, for any target and drafter.

use std::rc::Rc;

use foretoken_model_base::{Batch, Model, ModelError};
use foretoken_sample::{Sampler, SamplingOptions, Seed};
use mlx_rs::ops::indexing::TryIndexOp;

use super::{
    compare, exact_law,
    fit::Fit,
    play::{Request, prefill},
};
use crate::{Drafter, RequestState, Result, Statistics, make_decoder};

/// Neighbouring cells count as one until they are expected this often.
const LEAST: f64 = 20.0;

/// Begins `requests` requests that differ in their seeds alone, and compares their first two tokens with the
/// law of the target's own logits. Also returns what speculation did until then, summed up.
///
/// Few likely tokens (a small top-k) make few cells, so that some hundred requests say much. Grammars and
/// end tokens are not looked at.
pub fn first_two_tokens(
    model: &Rc<dyn Model>,
    drafter: &Rc<dyn Drafter>,
    request: &Request,
    requests: u64,
) -> Result<(Fit, Statistics)> {
    let vocabulary = model.facts().vocabulary;
    let mut counts = vec![0; vocabulary * vocabulary];
    let mut sum = Statistics::default();
    for seed in 0..requests {
        let options = SamplingOptions { seed: Seed::Fresh(seed * 7919 + 1), ..request.options.clone() };
        let (first, second, did) = opening(model, drafter, &Request { options, ..request.clone() })?;
        counts[first as usize * vocabulary + second as usize] += 1;
        sum.drafted += did.drafted;
        sum.accepted += did.accepted;
        sum.mismatches += did.mismatches;
    }
    Ok((Fit::merged(&counts, &joint(model.as_ref(), request)?, LEAST), sum))
}

/// The first two tokens of a request, and what speculation did until they were there.
fn opening(
    model: &Rc<dyn Model>,
    drafter: &Rc<dyn Drafter>,
    asked: &Request,
) -> Result<(u32, u32, Statistics)> {
    let sampler = Sampler::new(asked.options.clone(), model.facts().vocabulary)?;
    let mut request = RequestState::new(model.as_ref(), Some(drafter.as_ref()), sampler, &asked.prompt, &[])?;
    let mut decoder = make_decoder(Rc::clone(model), Some(Rc::clone(drafter)), asked.policy, &request)?;
    prefill(model.as_ref(), decoder.as_mut(), &mut request)?;
    let tokens = |request: &RequestState| request.history.ids()[asked.prompt.len()..].to_vec();
    loop {
        let tokens = tokens(&request);
        if let [first, second, ..] = *tokens {
            return Ok((first, second, decoder.statistics().clone()));
        }
        decoder.next(&mut request, asked.max_tokens.max(2) - tokens.len())?;
    }
}

/// Cell first·V + second.
fn joint(model: &dyn Model, request: &Request) -> Result<Vec<f64>> {
    let next = |seen: &[u32]| -> Result<Vec<f64>> {
        let logits = last_logits(model, seen)?;
        Ok(exact_law(&logits, &request.options, seen, |_| true))
    };
    let mut joint = Vec::new();
    for (id, first) in next(&request.prompt)?.into_iter().enumerate() {
        let second = match first {
            0.0 => vec![0.0; model.facts().vocabulary],
            _ => next(&[request.prompt.as_slice(), &[id as u32]].concat())?,
        };
        joint.extend(second.into_iter().map(|second| first * second));
    }
    Ok(joint)
}

/// The logits after these tokens, by one plain forward.
fn last_logits(model: &dyn Model, ids: &[u32]) -> Result<Vec<f32>> {
    let hidden = model.forward(&Batch::from_ids(ids, 0)?, &mut [&mut model.make_caches()])?;
    let last = hidden.last.try_index((.., -1.., ..)).map_err(ModelError::from)?;
    compare::floats(&model.unembed(&last)?)
}
