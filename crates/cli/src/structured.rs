//! What an answer must match, and what it must not contain, as files and texts of the command line.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use foretoken_grammar::{CompiledGrammar, JsonOptions, TokenTable};
use foretoken_sample::Grammar;
use foretoken_text::Tokenizer;

use crate::{args::GenerateArgs, load::Known};

/// A grammar that was read and not compiled yet.
pub(crate) enum Source {
    Schema(String),
    Regex(String),
    Lark(String),
}

/// Reads the grammar that the command line names, before anything is loaded.
pub(crate) fn read(args: &GenerateArgs) -> Result<Option<Source>> {
    Ok(match (&args.json_schema, &args.grammar) {
        (Some(file), _) => Some(Source::Schema(text("--json-schema", file)?)),
        (_, Some(file)) => {
            let text = text("--grammar", file)?;
            let is_regex = file.extension().is_some_and(|kind| kind == "regex");
            Some(if is_regex { Source::Regex(text.trim_end().to_owned()) } else { Source::Lark(text) })
        }
        _ => None,
    })
}

/// Compiles a grammar for a model, whose tokenizer it needs.
pub(crate) fn compile(
    source: &Source,
    model: &Path,
    known: &Known,
    ends: &[u32],
) -> Result<Arc<dyn Grammar>> {
    let tokenizer = known.tokenizer.needed("a grammar", model)?;
    let table = TokenTable::new(tokenizer, known.facts.vocabulary, ends)?;
    Ok(Arc::new(match source {
        Source::Schema(text) => CompiledGrammar::json_schema(&table, text, &JsonOptions::default())?,
        Source::Regex(text) => CompiledGrammar::regex(&table, text)?,
        Source::Lark(text) => CompiledGrammar::lark(&table, text)?,
    }))
}

/// The id sequences of banned texts: each as it is, and as the start of a word.
pub(crate) fn banned(texts: &[String], model: &Path, known: &Known) -> Result<Vec<Vec<u32>>> {
    if texts.is_empty() {
        return Ok(Vec::new());
    }
    let tokenizer: &Arc<Tokenizer> = known.tokenizer.needed("--ban", model)?;
    let mut sequences = Vec::new();
    for text in texts {
        for text in [text.clone(), format!(" {text}")] {
            let ids = tokenizer.encode_text(&text).context("--ban")?;
            if !ids.is_empty() && !sequences.contains(&ids) {
                sequences.push(ids);
            }
        }
    }
    Ok(sequences)
}

fn text(option: &str, file: &PathBuf) -> Result<String> {
    fs::read_to_string(file)
        .with_context(|| format!("{option}: cannot read {}; give it a text file", file.display()))
}
