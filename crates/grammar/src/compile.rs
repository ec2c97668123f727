//! From the text of a grammar to something that answers can begin with.

use std::{
    fmt,
    sync::{Arc, Mutex},
    thread,
};

use foretoken_sample::{Constraint, Grammar, SampleError};
use llguidance::{Matcher, ParserFactory, api::TopLevelGrammar};
use serde_json::Value;

use crate::{GrammarError, JsonOptions, Result, TokenTable, bounds, place::Place};

const SCHEMA: &str = "JSON schema";
const REGEX: &str = "regular expression";
const LARK: &str = "Lark grammar";

/// Texts longer than this are refused before they are parsed.
const LONGEST: usize = 1 << 18;

/// The compiler calls itself once for every rule of a chain, with some kilobytes each, and the longest text
/// has room for 40,000 of them. The system gives memory only to the part that is used.
const STACK: usize = 1 << 30;

/// A grammar compiled for one token table.
pub struct CompiledGrammar {
    table: TokenTable,
    /// A matcher at the beginning; every answer works on a copy of its own.
    fresh: Arc<Mutex<Matcher>>,
    kind: &'static str,
}

impl CompiledGrammar {
    /// Answers that are JSON values valid under a schema.
    pub fn json_schema(table: &TokenTable, schema: &str, options: &JsonOptions) -> Result<Self> {
        check_length(SCHEMA, schema)?;
        let parsed: Value = serde_json::from_str(schema)
            .map_err(|error| GrammarError::Unreadable { kind: SCHEMA, reason: error.to_string() })?;
        if !matches!(parsed, Value::Object(_) | Value::Bool(_)) {
            let reason = "expected an object or a boolean".to_owned();
            return Err(GrammarError::Unreadable { kind: SCHEMA, reason });
        }
        let open = JsonOptions { white_space: options.white_space.clone(), ..JsonOptions::unbounded() };
        let compile = |options: &JsonOptions| {
            let bounded = bounds::apply(parsed.clone(), options);
            Self::build(table, SCHEMA, || Ok(TopLevelGrammar::from_json_schema(bounded)))
        };
        // Branches that exclude each other must do so before bounds make them narrower.
        if bounds::excludes(&parsed) {
            compile(&open)?;
        }
        // A bound of ours that contradicts the schema is no reason to refuse it.
        compile(options).or_else(|_| compile(&open))
    }

    /// Answers that match a regular expression from their first to their last character.
    pub fn regex(table: &TokenTable, pattern: &str) -> Result<Self> {
        check_length(REGEX, pattern)?;
        Self::build(table, REGEX, || Ok(TopLevelGrammar::from_regex(pattern)))
    }

    /// Answers of a context-free grammar in Lark's notation, as llguidance reads it.
    pub fn lark(table: &TokenTable, grammar: &str) -> Result<Self> {
        check_length(LARK, grammar)?;
        Self::build(table, LARK, || TopLevelGrammar::from_lark_or_grammar_list(grammar))
    }

    fn build(
        table: &TokenTable,
        kind: &'static str,
        grammar: impl FnOnce() -> anyhow::Result<TopLevelGrammar> + Send,
    ) -> Result<Self> {
        let unsupported = |reason: String| GrammarError::Unsupported { kind, reason: short(&reason) };
        let compile = || {
            let mut factory = ParserFactory::new_simple(table.environment())?;
            factory.quiet();
            factory.limits_mut().verbose_errors = false;
            factory.create_parser(grammar()?)
        };
        // The compiler is not ours; neither a panic nor deep recursion in it may end the process.
        let parser = match on_deep_stack(compile) {
            Some(parser) => parser.map_err(|error| unsupported(format!("{error:#}")))?,
            None => return Err(unsupported("the compiler gave up".into())),
        };
        let mut fresh = Matcher::new(Ok(parser));
        // The first mask shows what only matching finds, for example that nothing can match.
        let first = fresh.compute_mask_or_eos().map_err(|error| unsupported(error.to_string()))?;
        if first.is_zero() {
            return Err(unsupported("no answer can match it with this model's tokens".into()));
        }
        Ok(Self { table: table.clone(), fresh: Arc::new(Mutex::new(fresh)), kind })
    }
}

impl Grammar for CompiledGrammar {
    fn begin(&self) -> foretoken_sample::Result<Box<dyn Constraint>> {
        let place = Place::new(Arc::clone(&self.fresh), self.table.ends());
        match place.error() {
            None => Ok(Box::new(place)),
            Some(error) => Err(SampleError::Constraint {
                what: "grammar",
                expected: "one that can begin an answer".into(),
                got: short(&error),
            }),
        }
    }
}

impl fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledGrammar")
            .field("kind", &self.kind)
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

/// What a function returns on a thread with a large stack; `None` when it panics or there is no such thread.
fn on_deep_stack<T: Send>(function: impl FnOnce() -> T + Send) -> Option<T> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("grammar".into()).stack_size(STACK);
        builder.spawn_scoped(scope, function).ok()?.join().ok()
    })
}

fn check_length(kind: &'static str, text: &str) -> Result<()> {
    match text.len() > LONGEST {
        true => Err(GrammarError::TooLarge { kind, limit: LONGEST, got: text.len() }),
        false => Ok(()),
    }
}

/// The first lines of a message that may quote the whole grammar.
pub(crate) fn short(message: &str) -> String {
    const LONGEST_MESSAGE: usize = 400;
    let one_line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match one_line.char_indices().nth(LONGEST_MESSAGE) {
        Some((cut, _)) => format!("{}…", &one_line[..cut]),
        None => one_line,
    }
}
