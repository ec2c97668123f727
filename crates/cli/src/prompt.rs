//! From the command line's prompt to ids.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Result, bail};
use foretoken_text::{ChatInput, Message, TextStream, Tokenizer};

use crate::{args::PromptArgs, failure::Usage, load::Known};

/// An encoded prompt and what is needed to read the answer.
pub(crate) struct Prompt<'a> {
    pub(crate) ids: Vec<u32>,
    /// Tokens that end the answer.
    pub(crate) ends: Vec<u32>,
    tokenizer: Option<&'a Tokenizer>,
}

impl Prompt<'_> {
    /// Turns the answer into text; absent for a model without a tokenizer.
    pub(crate) fn stream(&self, stops: &[String]) -> Result<Option<TextStream>> {
        match self.tokenizer {
            Some(tokenizer) => Ok(Some(tokenizer.text_stream(stops)?)),
            None if stops.is_empty() => Ok(None),
            None => bail!("--stop needs text, but this model has no tokenizer; add its tokenizer.json"),
        }
    }
}

/// Encodes the prompt of the command line with the model's own tokenizer and template.
pub(crate) fn encode<'a>(args: &PromptArgs, model: &Path, known: &'a Known) -> Result<Prompt<'a>> {
    let tokenizer = known.tokenizer.as_ref();
    let ids = match (&args.prompt, &args.prompt_ids, tokenizer) {
        (None, ids, _) => ids.as_ref().map(|ids| ids.0.clone()).unwrap_or_default(),
        (Some(_), _, None) => bail!(
            "{} has no tokenizer, so --prompt cannot be encoded: add its tokenizer.json, or give --prompt-ids",
            model.display()
        ),
        (Some(text), _, Some(_)) if text.is_empty() => {
            return Err(Usage::new("the prompt is empty: give --prompt some text").into());
        }
        (Some(text), _, Some(tokenizer)) if args.raw => tokenizer.encode_raw(text)?,
        (Some(text), _, Some(tokenizer)) => chat(tokenizer, text)?,
    };
    let ends = match tokenizer {
        Some(tokenizer) => tokenizer.end_tokens_with(&known.facts.end_tokens),
        None => known.facts.end_tokens.clone(),
    };
    Ok(Prompt { ids, ends, tokenizer })
}

fn chat(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let messages = [Message::user(text)];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    let now = now.and_then(|since| i64::try_from(since.as_secs()).ok());
    Ok(tokenizer.encode_messages(&ChatInput { now, ..ChatInput::new(&messages) })?)
}
