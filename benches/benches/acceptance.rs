//! How often a draft is kept under each rule, and how often an independent draw would just happen to match:
//! SmolLM2's own sampled answers, both heads, step by step.
//!
//! Drafts follow the answer's real tokens, so every step of every position is judged on the same text. The
//! shares of the ratio rule, Σ min(p, q), and of independent draws, Σ p·q, are exact; the coupled rule's is
//! counted over draws with the sampler's noise.

use std::{ops::ControlFlow, rc::Rc};

use anyhow::{Context, Result, ensure};
use foretoken_benches::{ENDS, head, prompt, report, runner, smollm2, token_hash};
use foretoken_cache::CacheSet;
use foretoken_model_base::{Batch, DraftVocabulary, Model};
use foretoken_runner::{Event, Request};
use foretoken_sample::{Distribution, History, Rows, Sampler, SamplingOptions, Seed};
use foretoken_speculate::{CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter};
use mlx_rs::{
    Array,
    ops::{concatenate, indexing::TryIndexOp},
    transforms::eval,
};
use serde_json::json;

const HEADS: [&str; 2] = ["single", "seq"];
const TEMPERATURES: [f32; 2] = [0.6, 1.0];
/// Prose, code and a list; the fourth chat's answers are too short.
const CHATS: [usize; 3] = [0, 1, 2];
/// Tokens of an answer, at least and at most.
const TOKENS: (usize, usize) = (100, 120);
/// Answers that end early are drawn again with the next seed, this often.
const ATTEMPTS: u64 = 20;
const DEPTH: usize = 4;
/// Draws per position for the coupled rule.
const DRAWS: u64 = 16;
/// How far the coupled rule may lie below the ratio rule at temperature 1.
const ALLOWED: f64 = 0.06;

fn main() -> Result<()> {
    let model = smollm2()?;
    let drafters = HEADS.map(|style| head(style, model.as_ref()));
    for temperature in TEMPERATURES {
        let (mut tallies, mut all) = (vec![[Tally::default(); DEPTH]; HEADS.len()], Vec::new());
        for chat in CHATS {
            let prompt = prompt(chat)?;
            let answer = sampled_answer(&model, &prompt, temperature)?;
            let text = Text { ids: [prompt.as_slice(), &answer].concat(), prompt: prompt.len(), temperature };
            all.extend(answer);
            for (drafter, tally) in drafters.iter().zip(&mut tallies) {
                let drafter = drafter.as_ref().map_err(|err| anyhow::anyhow!("{err:#}"))?;
                text.judge(model.as_ref(), drafter.as_ref(), tally)?;
            }
        }
        for (style, tally) in HEADS.iter().zip(&tallies) {
            tell(style, temperature, tally, &all)?;
        }
    }
    Ok(())
}

fn tell(style: &str, temperature: f32, tally: &[Tally; DEPTH], all: &[u32]) -> Result<()> {
    let share = |of: fn(&Tally) -> f64| tally.each_ref().map(|t| of(t) / t.positions as f64);
    let (ratio, coupled, independent) = (share(|t| t.ratio), share(|t| t.coupled), share(|t| t.independent));
    report(
        &format!("acceptance/{style}/{temperature}"),
        json!({
            "token_hash": token_hash(all),
            "tokens": all.len(),
            "positions": tally.map(|t| t.positions),
            "ratio": ratio,
            "coupled": coupled,
            "independent": independent,
        }),
    );
    for (step, (ratio, coupled)) in ratio.into_iter().zip(coupled).enumerate() {
        let fair = temperature < 1.0 || coupled > ratio - ALLOWED;
        ensure!(fair, "{style}, step {}: coupled {coupled:.3}, ratio {ratio:.3}", step + 1);
    }
    Ok(())
}

/// An answer of the wanted length.
fn sampled_answer(model: &Rc<dyn Model>, prompt: &[u32], temperature: f32) -> Result<Vec<u32>> {
    let mut runner = runner(model, Some(head("seq", model.as_ref())?), 2);
    for seed in 0..ATTEMPTS {
        let mut request = Request::greedy(prompt);
        request.sampling =
            SamplingOptions { temperature, seed: Seed::Fixed(seed), ..SamplingOptions::greedy() };
        request.max_tokens = Some(TOKENS.1);
        request.ends = ENDS.to_vec();
        let mut ids = Vec::new();
        let mut sink = |event: Event| {
            if let Event::Token { id, .. } = event {
                ids.push(id);
            }
            ControlFlow::Continue(())
        };
        runner.generate(&request, &mut sink)?;
        if ids.len() >= TOKENS.0 {
            return Ok(ids);
        }
    }
    anyhow::bail!("every answer ended before {} tokens", TOKENS.0)
}

/// Sums over positions of the probability that a draft is kept.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    positions: usize,
    ratio: f64,
    coupled: f64,
    independent: f64,
}

impl Tally {
    fn count(&mut self, target: &Target, q: &Distribution, slot: usize) -> Result<()> {
        let Distribution::Sparse { ids, logprobs: q_logs } = q else {
            anyhow::bail!("a head drafts over a vocabulary of its own");
        };
        let p_logs = target.logprobs.take_along_axis(ids, -1)?;
        let drawn = draws(q, slot)?;
        for (p, q) in floats(&p_logs)?.into_iter().zip(floats(q_logs)?) {
            let (p, q) = (f64::from(p).exp(), f64::from(q).exp());
            self.ratio += p.min(q);
            self.independent += p * q;
        }
        let same = drawn.iter().zip(&target.drawn).filter(|(a, b)| a == b).count();
        self.coupled += same as f64 / DRAWS as f64;
        self.positions += 1;
        Ok(())
    }
}

/// The target at one slot.
struct Target {
    /// `[1,V]`.
    logprobs: Array,
    drawn: Vec<u32>,
}

/// One draw for each seed.
fn draws(law: &Distribution, slot: usize) -> Result<Vec<u32>> {
    let drawn = (0..DRAWS).map(|seed| Ok(law.draw(seed, slot)?)).collect::<Result<Vec<_>>>()?;
    Ok(concatenate(&drawn.iter().collect::<Vec<_>>(), 0)?.contiguous()?.to_vec_exact()?)
}

fn floats(array: &Array) -> Result<Vec<f32>> {
    Ok(array.contiguous()?.to_vec_exact()?)
}

/// A prompt with its answer.
struct Text {
    ids: Vec<u32>,
    prompt: usize,
    temperature: f32,
}

impl Text {
    /// Walks along the answer and judges every step that a head would have drafted.
    fn judge(&self, model: &dyn Model, drafter: &dyn Drafter, tally: &mut [Tally; DEPTH]) -> Result<()> {
        let options = SamplingOptions { temperature: self.temperature, ..SamplingOptions::greedy() };
        let sampler = Sampler::new(options, model.facts().vocabulary)?;
        let mut walk = Walk {
            model,
            target: model.make_caches(),
            own: drafter.make_caches(),
            session: drafter.open(0)?,
            ids: &self.ids,
        };
        walk.forward(self.prompt - 1)?;
        // What was drafted for each slot, by step, from slot `prompt` on.
        let mut drafted: Vec<Vec<Distribution>> = vec![Vec::new(); self.ids.len() - self.prompt];
        for slot in self.prompt..self.ids.len() {
            for (step, row) in walk.propose(&sampler)?.into_iter().enumerate() {
                if let Some(rows) = drafted.get_mut(slot - self.prompt + step) {
                    rows.push(row);
                }
            }
            let logits = walk.forward(slot)?;
            let p = law(&sampler, &logits, None, &self.ids[..slot])?;
            let drawn = draws(&p, slot)?;
            let Distribution::Dense { logprobs } = p else {
                anyhow::bail!("temperature alone leaves every token");
            };
            let target = Target { logprobs, drawn };
            // The first step was drafted last.
            for (tally, q) in tally.iter_mut().zip(drafted[slot - self.prompt].iter().rev()) {
                tally.count(&target, q, slot)?;
            }
        }
        Ok(())
    }
}

/// A request that is forced along a text.
struct Walk<'a> {
    model: &'a dyn Model,
    target: CacheSet,
    own: Option<CacheSet>,
    session: Box<dyn DraftSession>,
    ids: &'a [u32],
}

impl Walk<'_> {
    /// What the head drafts from at the next steps, evaluated.
    fn propose(&mut self, sampler: &Sampler) -> Result<Vec<Distribution>> {
        let at = self.target.offset();
        let mut forced =
            Forced { sampler, ids: self.ids, next: at + 1, end: at + 1 + DEPTH, rows: Vec::new() };
        let mut cx = DraftCx {
            model: self.model,
            target: &self.target,
            tokens: &self.ids[..=at],
            own: self.own.as_mut(),
        };
        self.session.propose(&mut cx, self.ids[at], &mut forced)?;
        for row in &forced.rows {
            if let Distribution::Sparse { ids, logprobs } = row {
                eval([ids, logprobs])?;
            }
        }
        Ok(forced.rows)
    }

    /// Forwards tokens up to `end` and tells the session; the logits of the last one `[1,V]`.
    fn forward(&mut self, end: usize) -> Result<Array> {
        let slot = self.target.offset();
        let ids = &self.ids[slot..end];
        let hidden = self.model.forward(&Batch::from_ids(ids, slot)?, &mut [&mut self.target])?;
        let logits = self.model.unembed(&hidden.last)?;
        let last = logits.try_index((0, -1.., ..))?;
        eval([&last, &hidden.aux])?;
        let mut cx = DraftCx {
            model: self.model,
            target: &self.target,
            tokens: &self.ids[..=end.min(self.ids.len() - 1)],
            own: self.own.as_mut(),
        };
        self.session.committed(&mut cx, CommittedRun { ids, hidden: Some(&hidden.aux), slot })?;
        Ok(last)
    }
}

/// The law of one row of logits `[1,D]`.
fn law(
    sampler: &Sampler,
    logits: &Array,
    vocabulary: Option<&DraftVocabulary>,
    seen: &[u32],
) -> Result<Distribution> {
    let history = History::new(seen);
    let columns = vocabulary.map(DraftVocabulary::array);
    let rows = Rows { logits, columns, history: &history, in_flight: None, first: 0, allowed: None };
    Ok(sampler.distribution(rows)?)
}

/// Keeps what drafts are drawn from, and answers with the text's own tokens.
struct Forced<'a> {
    sampler: &'a Sampler,
    ids: &'a [u32],
    /// The slot of the next draft.
    next: usize,
    end: usize,
    rows: Vec<Distribution>,
}

impl DraftSink for Forced<'_> {
    fn room(&self) -> usize {
        self.end.min(self.ids.len()) - self.next
    }

    fn draw(&mut self, logits: &Array, vocabulary: Option<&DraftVocabulary>) -> Result<Array, DraftError> {
        let logits = logits.reshape(&[1, -1])?;
        let row = law(self.sampler, &logits, vocabulary, &self.ids[..self.next]);
        self.rows.push(row.map_err(|err| DraftError::Other(err.to_string()))?);
        let id = self.ids.get(self.next).copied().context("room was left");
        self.next += 1;
        id.map(|id| Array::from_slice(&[id], &[1, 1])).map_err(|err| DraftError::Other(err.to_string()))
    }

    fn known(&mut self, _: &[u32]) -> Result<(), DraftError> {
        Err(DraftError::Other("heads draw".into()))
    }
}
