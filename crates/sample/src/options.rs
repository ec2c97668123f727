//! What a request asks of the sampler, checked once.

use crate::{Result, SampleError};

/// Where a request's randomness comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seed {
    /// Given by the user: the text is reproducible and does not depend on depth or drafter. 0 is a seed.
    Fixed(u64),
    /// Drawn by the caller for this request only.
    Fresh(u64),
}

/// Which acceptance rule speculation uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RuleChoice {
    /// Coupled with a fixed seed, ratio without one.
    #[default]
    Auto,
    /// Accept with min(1, p/q), else draw from the residual.
    Ratio,
    /// Draft and target share noise keyed by seed, slot and id; accept while equal.
    Coupled,
}

/// Sampling options of one request. [`SamplingOptions::greedy`] is the neutral value of every option.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingOptions {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this share of the best; 0 drops none.
    pub min_p: f32,
    /// Divide positive and multiply negative logits of seen tokens; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted once from the logit of every seen token; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted per occurrence from the logit of seen tokens; 0 is off.
    pub frequency_penalty: f32,
    /// How many of the latest tokens (prompt and output) the penalties see; 0 is off, −1 all.
    pub repeat_last_n: i32,
    /// The request's randomness.
    pub seed: Seed,
    /// The acceptance rule.
    pub rule: RuleChoice,
    /// Report the chosen token's log probability and this many of the most likely tokens.
    pub logprobs: Option<usize>,
    /// Added to the raw logits of these ids before anything else; −∞ is not a bias, ban the id instead.
    pub logit_bias: Vec<(u32, f32)>,
    /// Token sequences that must not appear in the answer: the last id of each is not drawn where the ids
    /// before it stand.
    pub banned: Vec<Vec<u32>>,
    /// End tokens are never drawn, so that only the budget or a stop string ends the answer.
    pub ignore_eos: bool,
    /// End tokens are not drawn before this many tokens were produced.
    pub min_tokens: usize,
    /// Report how far each drawn token's score lies above the next best.
    pub margins: bool,
}

impl SamplingOptions {
    /// Always the most likely token, nothing else switched on.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: 64,
            seed: Seed::Fixed(0),
            rule: RuleChoice::Auto,
            logprobs: None,
            logit_bias: Vec::new(),
            banned: Vec::new(),
            ignore_eos: false,
            min_tokens: 0,
            margins: false,
        }
    }

    /// Checks every range; the first option out of its range is the error. NaN is in no range.
    pub fn validate(&self) -> Result<()> {
        let penalty = |value: f32| (-100.0..=100.0).contains(&value);
        check("temperature", "a finite number of at least 0", self.temperature, |t| {
            t.is_finite() && t >= 0.0
        })?;
        check("top_p", "a number above 0 and at most 1 (1 keeps all)", self.top_p, |p| p > 0.0 && p <= 1.0)?;
        check("min_p", "a number from 0 to 1 (0 drops none)", self.min_p, |p| (0.0..=1.0).contains(&p))?;
        check("repeat_penalty", "a number from 0.01 to 100 (1 is off)", self.repeat_penalty, |r| {
            (0.01..=100.0).contains(&r)
        })?;
        let range = "a number from -100 to 100 (0 is off)";
        check("presence_penalty", range, self.presence_penalty, penalty)?;
        check("frequency_penalty", range, self.frequency_penalty, penalty)?;
        let window = "-1 (all), 0 (off) or a number of tokens";
        check("repeat_last_n", window, self.repeat_last_n, |n| n >= -1)
    }

    /// The seed's number, fixed or fresh.
    pub fn seed_value(&self) -> u64 {
        match self.seed {
            Seed::Fixed(seed) | Seed::Fresh(seed) => seed,
        }
    }

    /// Whether speculation uses the coupled rule.
    pub fn coupled(&self) -> bool {
        match self.rule {
            RuleChoice::Auto => matches!(self.seed, Seed::Fixed(_)),
            RuleChoice::Ratio => false,
            RuleChoice::Coupled => true,
        }
    }
}

fn check<T: Copy + ToString>(
    what: &'static str,
    expected: &'static str,
    value: T,
    legal: impl Fn(T) -> bool,
) -> Result<()> {
    match legal(value) {
        true => Ok(()),
        false => Err(SampleError::Option { what, expected, got: value.to_string() }),
    }
}
