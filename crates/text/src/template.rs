//! Chat templates: Jinja as the model's publisher meant it, rendered with `minijinja`.
//!
//! The environment matches the Python reference: trimmed blocks, Python's string methods and
//! `None`/`True`/`False`, `raise_exception`, `tojson` without HTML escapes, loop controls.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, State, UndefinedBehavior, Value};
use serde_json::Map;

use crate::clock::strftime;
use crate::error::{Result, TextError};
use crate::message::Message;
use crate::pyjson::{Style, dumps, from_template, to_template};
use crate::spoof::{Marker, Rendered};

const NAME: &str = "chat_template";

/// What a template is rendered with.
#[derive(Debug, Clone, Copy)]
pub struct ChatInput<'a> {
    /// The conversation so far.
    pub messages: &'a [Message],
    /// Tool definitions; an empty list is `none` to the template.
    pub tools: &'a [serde_json::Value],
    /// Whether the prompt ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// Seconds since 1970 in local time, for `strftime_now`; without it the function does not
    /// exist and templates use their fixed date.
    pub now: Option<i64>,
    /// Further variables, such as `enable_thinking`.
    pub variables: Option<&'a Map<String, serde_json::Value>>,
}

impl<'a> ChatInput<'a> {
    /// Messages to be answered, and nothing else.
    pub fn new(messages: &'a [Message]) -> Self {
        Self { messages, tools: &[], add_generation_prompt: true, now: None, variables: None }
    }
}

/// A parsed chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    file: String,
    bos: String,
    eos: String,
    control: Vec<String>,
}

impl ChatTemplate {
    /// Parses a template. `file` says in errors where it came from. Start and end token are empty
    /// and no control token is known; [`crate::Tokenizer::chat_template`] fills them in.
    pub fn new(file: impl Into<String>, source: &str) -> Result<Self> {
        let file = file.into();
        let mut environment = environment();
        let source = without_generation_tags(source);
        environment.add_template_owned(NAME, source).map_err(|error| {
            let (line, reason) = described(&error);
            TextError::UnreadableTemplate { file: file.clone(), line, reason }
        })?;
        let (bos, eos) = (String::new(), String::new());
        Ok(Self { environment, file, bos, eos, control: Vec::new() })
    }

    /// The same template with the texts of the start and end token, and the spellings that only
    /// the template may write.
    pub fn with_tokens(mut self, bos: &str, eos: &str, control: Vec<String>) -> Self {
        self.bos = bos.to_owned();
        self.eos = eos.to_owned();
        self.control = control;
        self
    }

    /// Renders a conversation. A template that refuses it is [`TextError::Raised`] with the
    /// template's own message; no other template is tried.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<Rendered> {
        let messages: Vec<serde_json::Value> =
            input.messages.iter().map(|message| message.to_fields().into()).collect();
        let messages = serde_json::Value::from(messages);
        let tools = serde_json::Value::from(input.tools);
        let marker = self.marker(&[&messages, &tools])?;
        let marked = |value: &serde_json::Value| to_template(&marker.value(value));
        let tools = if input.tools.is_empty() { Value::from(()) } else { marked(&tools) };
        let mut context = vec![
            ("messages".to_owned(), marked(&messages)),
            ("tools".to_owned(), tools),
            ("documents".to_owned(), Value::from(())),
            ("add_generation_prompt".to_owned(), input.add_generation_prompt.into()),
            ("bos_token".to_owned(), self.bos.as_str().into()),
            ("eos_token".to_owned(), self.eos.as_str().into()),
        ];
        if let Some(now) = input.now {
            context.push(("strftime_now".to_owned(), clock(now)));
        }
        for (name, value) in input.variables.into_iter().flatten() {
            context.push((name.clone(), to_template(value)));
        }
        let text = self.render_values(Value::from_pairs(context))?;
        Ok(Rendered::from_marked(&text, Some(marker.mark())))
    }

    /// A marker whose character is neither in the inputs nor in the template.
    fn marker(&self, inputs: &[&serde_json::Value]) -> Result<Marker<'_>> {
        let mut texts: Vec<String> = inputs.iter().map(ToString::to_string).collect();
        texts.extend([self.bos.clone(), self.eos.clone()]);
        let template = self.environment.get_template(NAME);
        let source = template.as_ref().map_or("", |template| template.source());
        let texts: Vec<&str> = texts.iter().map(String::as_str).chain([source]).collect();
        Marker::new(&self.control, &texts).ok_or_else(|| TextError::Message {
            what: "content".to_owned(),
            expected: "at least one unused private-use character",
            got: "all of them".to_owned(),
        })
    }

    fn render_values(&self, context: Value) -> Result<String> {
        let rendered = self.environment.get_template(NAME).and_then(|template| template.render(context));
        rendered.map_err(|error| match raised(&error) {
            Some(message) => TextError::Raised { message },
            None => {
                let (line, reason) = described(&error);
                TextError::Render { file: self.file.clone(), line, reason }
            }
        })
    }
}

/// The error behind `raise_exception`, found again among the causes of a render error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct RaisedByTemplate(String);

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the usual delimiters differ from each other"));
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, state, value| match value.kind() {
        ValueKind::None => out.write_str("None").map_err(Into::into),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }).map_err(Into::into),
        _ => minijinja::escape_formatter(out, state, value),
    });
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", tojson);
    environment
}

fn raise_exception(message: String) -> std::result::Result<Value, minijinja::Error> {
    let error = minijinja::Error::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(RaisedByTemplate(message)))
}

fn tojson(_: &State<'_, '_>, value: Value, options: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let separators: Option<Vec<String>> = options.get("separators")?;
    let style = Style {
        indent: options.get("indent")?,
        separators: separators.and_then(|pair| <[String; 2]>::try_from(pair).ok()).map(Into::into),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    // Escaping beyond ASCII is never used by published templates and would hide the marks.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    Ok(dumps(&from_template(&value)?, &style))
}

fn clock(now: i64) -> Value {
    Value::from_function(move |format: String| {
        strftime(now, &format).map_err(|reason| minijinja::Error::new(ErrorKind::InvalidOperation, reason))
    })
}

/// `{% generation %}` only tells a trainer where answers are; here it becomes a plain condition.
fn without_generation_tags(source: &str) -> String {
    let mut out = source.to_owned();
    for (tag, plain) in [("generation", "if true"), ("endgeneration", "endif")] {
        for (open, close) in [("", ""), ("-", ""), ("", "-"), ("-", "-")] {
            for space in ["", " "] {
                let from = format!("{{%{open}{space}{tag}{space}{close}%}}");
                out = out.replace(&from, &format!("{{%{open} {plain} {close}%}}"));
            }
        }
    }
    out
}

fn described(error: &minijinja::Error) -> (usize, String) {
    let reason = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    (error.line().unwrap_or(0), reason)
}

fn raised(error: &minijinja::Error) -> Option<String> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(RaisedByTemplate(message)) = current.downcast_ref() {
            return Some(message.clone());
        }
        cause = current.source();
    }
    None
}
