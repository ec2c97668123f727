//! How tokens are drawn, as options.

use clap::{Args, ValueEnum};
use foretoken_sample::{RuleChoice, SamplingOptions, Seed};

use super::values::{Ids, bias, ids};

#[derive(Debug, Args)]
pub(crate) struct SamplingArgs {
    /// 0 is greedy.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// Keep the K most likely tokens; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) top_k: u32,
    /// Keep the smallest set whose probability reaches P.
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Drop tokens less likely than this share of the best.
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) min_p: f32,
    /// Divide positive and multiply negative logits of seen tokens.
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) repeat_penalty: f32,
    /// Subtract once from the logit of seen tokens.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// Subtract per occurrence from the logit of seen tokens.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// How many of the latest tokens the penalties see; 0 none, -1 all.
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true)]
    pub(crate) repeat_last_n: i32,
    /// How drafts are accepted: coupled (the default with a seed), ratio (the default without), or auto.
    #[arg(long, value_enum, default_value_t = RuleArg::Auto)]
    pub(crate) rule: RuleArg,
    /// Add to the logit of a token, from -100 to 100; may be repeated.
    #[arg(long, value_name = "ID=VALUE", value_parser = bias, allow_hyphen_values = true)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Never produce this text, at the start of a word or inside one, where it is cut into tokens as it is
    /// by itself; may be repeated.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) ban: Vec<String>,
    /// Never produce this sequence of token ids; may be repeated.
    #[arg(long, value_name = "1,2,3", value_parser = ids)]
    pub(crate) ban_ids: Vec<Ids>,
    /// Go on to the budget: end tokens are never drawn.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Draw no end token before this many tokens.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) min_tokens: usize,
    /// Makes the answer reproducible; 0 is a seed like any other.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
}

/// An acceptance rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RuleArg {
    Auto,
    Ratio,
    Coupled,
}

impl From<RuleArg> for RuleChoice {
    fn from(rule: RuleArg) -> Self {
        match rule {
            RuleArg::Auto => Self::Auto,
            RuleArg::Ratio => Self::Ratio,
            RuleArg::Coupled => Self::Coupled,
        }
    }
}

impl SamplingArgs {
    /// The sampler's options but for banned texts, which need a tokenizer; `fresh` is used without a seed.
    pub(crate) fn options(&self, logprobs: Option<usize>, fresh: u64) -> SamplingOptions {
        SamplingOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repeat_last_n: self.repeat_last_n,
            seed: self.seed.map_or(Seed::Fresh(fresh), Seed::Fixed),
            logprobs,
            rule: self.rule.into(),
            logit_bias: self.logit_bias.clone(),
            banned: self.ban_ids.iter().map(|ids| ids.0.clone()).collect(),
            ignore_eos: self.ignore_eos,
            min_tokens: self.min_tokens,
            margins: false,
        }
    }
}
