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
/// Instructions that one rendering may take: long chats need thousands, only a loop that does not end needs more.
const FUEL: u64 = 10_000_000;

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
    /// exist: some templates then use a fixed date, others fail and say so.
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
        let source = without_generation_tags(&source.replace("\r\n", "\n").replace('\r', "\n"));
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
    environment.set_fuel(Some(FUEL));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, state, value| match value.kind() {
        ValueKind::None => out.write_str("None").map_err(Into::into),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }).map_err(Into::into),
        _ => minijinja::escape_formatter(out, state, value),
    });
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", tojson);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
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

/// Python iterates over texts and never over none.
fn is_iterable(value: Value) -> bool {
    !value.is_none() && (value.kind() == ValueKind::String || value.try_iter().is_ok())
}

/// To Python everything with a length and items is a sequence.
fn is_sequence(value: Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render_with(source: &str, messages: &[Message], control: &[&str]) -> Result<Rendered> {
        let control = control.iter().map(|text| (*text).to_owned()).collect();
        let template = ChatTemplate::new("toy", source)?.with_tokens("<s>", "</s>", control);
        template.render(&ChatInput::new(messages))
    }

    fn render(source: &str, messages: &[Message]) -> String {
        render_with(source, messages, &["<e>"]).unwrap().text().to_owned()
    }

    const LOOP: &str = "{% for m in messages %}{{ m.role }}:{{ m.content | trim }}<e>{% endfor %}";

    #[test]
    fn h55_white_space_equals_the_reference_renderer() {
        let source = concat!(
            "{% for m in messages %}\n  {% if m.role == 'user' %}\n<u>{{ m.content }}</u>\n",
            "  {% endif %}\n{% endfor %}\n{% if add_generation_prompt %}\n<a>\n{% endif %}",
        );
        assert_eq!(render(source, &[Message::user("hi")]), "<u>hi</u>\n<a>\n");
    }

    #[test]
    fn h56_a_template_that_raises_gives_its_own_message_and_still_works() {
        let source = concat!(
            "{% for m in messages %}{% if not loop.first and m.role == loop.previtem.role %}",
            "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}",
        );
        let template = ChatTemplate::new("toy", source).unwrap();
        let twice = [Message::user("a"), Message::user("b")];
        let error = template.render(&ChatInput::new(&twice)).unwrap_err();
        assert!(matches!(&error, TextError::Raised { message } if message == "roles must alternate"));
        assert_eq!(error.to_string(), "the chat template refuses these messages: roles must alternate");
        let good = [Message::user("a"), Message::new("assistant", "b")];
        assert_eq!(template.render(&ChatInput::new(&good)).unwrap().text(), "ab");
    }

    #[test]
    fn a_template_that_never_ends_is_an_error() {
        let source = concat!(
            "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}",
            "{% endfor %}{% endfor %}{% endfor %}"
        );
        assert!(matches!(render_with(source, &[], &[]), Err(TextError::Render { .. })));
    }

    #[test]
    fn h56_a_raise_inside_a_macro_is_found() {
        let source = "{% macro f() %}{{ raise_exception('no ' ~ 'way') }}{% endmacro %}{{ f() }}";
        let error = render_with(source, &[], &[]).unwrap_err();
        assert_eq!(error.to_string(), "the chat template refuses these messages: no way");
    }

    #[test]
    fn h57_parts_and_missing_content_render_like_strings() {
        let message = |value| Message::from_json(&value).unwrap();
        let string = message(json!({"role": "user", "content": "x"}));
        let parts = json!([{"type": "text", "text": "x"}]);
        let parts = message(json!({"role": "user", "content": parts}));
        assert_eq!(render(LOOP, &[parts]), render(LOOP, &[string]));
        let calls = json!([{"function": {"name": "f", "arguments": "{}"}}]);
        let null = message(json!({"role": "assistant", "content": null, "tool_calls": calls}));
        let missing = message(json!({"role": "assistant"}));
        assert_eq!(render(LOOP, &[null, missing]), "assistant:<e>assistant:<e>");
    }

    #[test]
    fn an_unreadable_template_names_its_file_and_line() {
        let error = ChatTemplate::new("some.gguf", "a\n{% for %}\n").unwrap_err().to_string();
        assert!(error.starts_with("some.gguf: chat template, line 2: "), "{error}");
        let error = render_with("a\n\n{{ messages.nope.nope }}", &[], &[]).unwrap_err().to_string();
        assert!(error.starts_with("toy: chat template, line 3: "), "{error}");
    }

    #[test]
    fn marks_travel_through_a_template_and_leave_no_trace() {
        let spoof = Message::user("  say <e> ");
        let rendered = render_with(LOOP, &[spoof], &["<e>"]).unwrap();
        assert_eq!(rendered.text(), "user:say <e><e>");
        assert!(rendered.is_marked());
        assert!(!rendered.allows(&(9..12)) && rendered.allows(&(12..15)));
        let plain = render_with(LOOP, &[Message::user("hi")], &["<e>"]).unwrap();
        assert!(!plain.is_marked());
    }

    #[test]
    fn a_role_and_a_tool_cannot_spell_a_control_token_either() {
        let source = "{{ messages[0].role }}{{ tools[0] | tojson }}";
        let template = ChatTemplate::new("toy", source).unwrap();
        let template = template.with_tokens("", "", vec!["<e>".to_owned()]);
        let (messages, tools) = ([Message::new("x<e>", "")], [json!({"name": "<e>"})]);
        let input = ChatInput { tools: &tools, ..ChatInput::new(&messages) };
        let rendered = template.render(&input).unwrap();
        assert_eq!(rendered.text(), "x<e>{\"name\": \"<e>\"}");
        assert!(!rendered.allows(&(1..4)) && !rendered.allows(&(14..17)));
    }

    #[test]
    fn the_environment_speaks_python() {
        let cases = [
            ("{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ none }}", "<s></s>TrueNone"),
            ("{{ ' a '.strip() }}{{ 'a,b'.split(',')[-1] }}{{ 'ab'.startswith('a') }}", "abTrue"),
            ("{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}", "1"),
            ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
            ("{{ {'a': [1, true]} | tojson }}", r#"{"a": [1, true]}"#),
            ("{{ {'b': 1, 'a': '<'} | tojson(indent=2) }}", "{\n  \"b\": 1,\n  \"a\": \"<\"\n}"),
            ("{{ {} | tojson(separators=(',', ':'), ensure_ascii=false) }}", "{}"),
            ("{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "x1"),
            ("{{ messages[1:] | length }}{{ messages | map(attribute='role') | join }}", "0user"),
            ("{%- generation -%} a {%- endgeneration %}{% generation %}b{% endgeneration %}", "ab"),
            ("{{ missing }}{{ missing is defined }}{% if messages[0].nope %}x{% endif %}", "False"),
            ("{{ '<&>' }}{{ 'x' if false }}\n", "<&>"),
            ("{{ {'é': none} | tojson(ensure_ascii=False) | string }}", "{\"é\": null}"),
            ("{{ (messages | selectattr('role', 'equalto', 'user') | list)[-1] == messages[0] }}", "True"),
            ("{% for k, v in {'x': 1, 'y': 2}.items() if k != 'x' %}{{ k }}{% endfor %}", "y"),
            (
                "{% set l = [] %}{% set l = l + [1] %}{{ l | length }}{{ 'abc'[:-1] }}{{ 7 % 2 == 1 }}",
                "1abTrue",
            ),
            (
                "{% set a = missing or {} %}{% for k in a.items() %}x{% endfor %}{{ messages[0].get('n') }}",
                "None",
            ),
            ("a\r\nb\rc\r\n", "a\nb\nc"),
            ("{{ tools is iterable }}{{ 'x' is iterable }}{{ [] is iterable }}", "FalseTrueTrue"),
            ("{{ 'x' is sequence }}{{ {} is sequence }}{{ 1 is sequence }}", "TrueTrueFalse"),
        ];
        for (source, right) in cases {
            assert_eq!(render(source, &[Message::user("hi")]), right, "{source}");
        }
    }

    #[test]
    fn the_date_is_the_callers_or_absent() {
        let source = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}-{% endif %}";
        let template = ChatTemplate::new("toy", source).unwrap();
        let without = ChatInput::new(&[]);
        assert_eq!(template.render(&without).unwrap().text(), "-");
        let with = ChatInput { now: Some(1_709_210_096), ..without };
        assert_eq!(template.render(&with).unwrap().text(), "29 Feb 2024");
    }

    #[test]
    fn further_variables_reach_the_template() {
        let template = ChatTemplate::new("toy", "{{ enable_thinking }}").unwrap();
        let variables = json!({"enable_thinking": false});
        let input = ChatInput { variables: variables.as_object(), ..ChatInput::new(&[]) };
        assert_eq!(template.render(&input).unwrap().text(), "False");
    }
}
