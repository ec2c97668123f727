//! From the command line's prompt to ids.

use std::{
    path::Path,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Result, bail};
use foretoken_text::{ChatInput, Message, TextStream, Tokenizer};

use crate::{
    args::{Ids, PromptArgs},
    failure::{Usage, warn},
    load::Known,
    tokenizer::Found,
};

/// An encoded prompt and what is needed to read the answer.
pub(crate) struct Prompt<'a> {
    pub(crate) ids: Vec<u32>,
    /// Tokens that end the answer.
    pub(crate) ends: Vec<u32>,
    tokenizer: Option<&'a Arc<Tokenizer>>,
}

impl Prompt<'_> {
    /// Turns the answer into text; absent for a model without a tokenizer.
    pub(crate) fn stream(&self, stops: &[String]) -> Result<Option<TextStream>> {
        Ok(self.tokenizer.map(|tokenizer| tokenizer.text_stream(stops)).transpose()?)
    }
}

/// Encodes the prompt of the command line with the model's own tokenizer and template.
pub(crate) fn encode<'a>(args: &PromptArgs, model: &Path, known: &'a Known) -> Result<Prompt<'a>> {
    let ids = match (&args.prompt, &args.prompt_ids) {
        (None, ids) => given(ids.as_ref(), known)?,
        (Some(text), _) if text.is_empty() => {
            return Err(Usage::new("the prompt is empty: give --prompt some text").into());
        }
        (Some(text), _) => {
            let tokenizer = known.tokenizer.needed("--prompt", model)?;
            if args.raw { tokenizer.encode_raw(text)? } else { chat(tokenizer, text)? }
        }
    };
    let tokenizer = known.tokenizer.get();
    let ends = match tokenizer {
        Some(tokenizer) => tokenizer.end_tokens_with(&known.facts.end_tokens),
        None => known.facts.end_tokens.clone(),
    };
    Ok(Prompt { ids, ends, tokenizer })
}

/// Ids from the command line. They need no tokenizer, but the answer will have no text without one.
fn given(ids: Option<&Ids>, known: &Known) -> Result<Vec<u32>> {
    let ids = ids.map(|ids| ids.0.clone()).unwrap_or_default();
    if ids.is_empty() {
        return Err(Usage::new("the prompt is empty: give --prompt-ids at least one id").into());
    }
    if let Found::Broken(reason) = &known.tokenizer {
        warn(&format!("the answer has no text: {reason}"));
    }
    Ok(ids)
}

fn chat(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let messages = [Message::user(text)];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    let now = now.and_then(|since| i64::try_from(since.as_secs()).ok());
    let ids = tokenizer.encode_messages(&ChatInput { now, ..ChatInput::new(&messages) })?;
    match ids.is_empty() {
        true => bail!("the chat template rendered nothing for this prompt: use --raw, or mend the template"),
        false => Ok(ids),
    }
}
