//! One message of a chat, in every legal form of its content.

use serde_json::{Map, Value};

use crate::error::{Result, TextError};
use crate::generation::shorten;

/// A message. Its content is always one text; the forms that arrive over the wire are unified
/// by [`Message::from_json`].
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`, or whatever the template knows.
    pub role: String,
    /// What is said.
    pub content: String,
    /// Further fields for the template, such as `tool_calls` or `name`.
    pub fields: Map<String, Value>,
}

impl Message {
    /// A message of a role and a text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), fields: Map::new() }
    }

    /// A message by the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// Reads a message object. Content may be a string, a list of text parts (joined without a
    /// separator), null or missing (both empty). The arguments of tool calls may be JSON in a
    /// string, as the wire has them; templates get the value itself.
    pub fn from_json(value: &Value) -> Result<Self> {
        let Value::Object(fields) = value else {
            return Err(wrong("message", "an object", value));
        };
        let mut fields = fields.clone();
        let role = match fields.shift_remove("role") {
            Some(Value::String(role)) => role,
            other => return Err(wrong("role", "a string", &other.unwrap_or_default())),
        };
        let content = content(&fields.shift_remove("content").unwrap_or_default())?;
        if let Some(Value::Array(calls)) = fields.get_mut("tool_calls") {
            calls.iter_mut().for_each(parse_arguments);
        }
        Ok(Self { role, content, fields })
    }

    /// The message as a template sees it.
    pub(crate) fn to_fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("role".to_owned(), self.role.clone().into());
        fields.insert("content".to_owned(), self.content.clone().into());
        fields.extend(self.fields.clone());
        fields
    }
}

fn content(value: &Value) -> Result<String> {
    match value {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => parts.iter().map(part).collect(),
        other => Err(wrong("content", "a string, a list of text parts or null", other)),
    }
}

fn part(value: &Value) -> Result<&str> {
    let kind = value.get("type").and_then(Value::as_str);
    let text = value.get("text").and_then(Value::as_str);
    match (kind, text) {
        (Some("text"), Some(text)) => Ok(text),
        (Some(kind), _) if kind != "text" => Err(TextError::Message {
            what: "content part".to_owned(),
            expected: "type \"text\"",
            got: format!("type {kind:?}"),
        }),
        _ => Err(wrong("content part", "an object with type \"text\" and a text", value)),
    }
}

fn parse_arguments(call: &mut Value) {
    let function = match call.get_mut("function") {
        Some(function) => function,
        None => call,
    };
    if let Some(arguments) = function.get_mut("arguments")
        && let Some(text) = arguments.as_str()
        && let Ok(parsed @ Value::Object(_)) = serde_json::from_str(text)
    {
        *arguments = parsed;
    }
}

fn wrong(what: &str, expected: &'static str, got: &Value) -> TextError {
    let got = match got {
        Value::Null => "nothing".to_owned(),
        other => shorten(&other.to_string()),
    };
    TextError::Message { what: what.to_owned(), expected, got }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn content_of(message: Value) -> String {
        Message::from_json(&message).unwrap().content
    }

    #[test]
    fn h57_every_legal_form_of_content_is_one_text() {
        assert_eq!(content_of(json!({"role": "user", "content": "x"})), "x");
        let parts = json!([{"type": "text", "text": "x"}]);
        assert_eq!(content_of(json!({"role": "user", "content": parts})), "x");
        assert_eq!(content_of(json!({"role": "tool", "content": parts})), "x");
        let two = json!([{"type": "text", "text": "x "}, {"type": "text", "text": "y"}]);
        assert_eq!(content_of(json!({"role": "user", "content": two})), "x y");
        assert_eq!(content_of(json!({"role": "assistant", "content": null})), "");
        assert_eq!(content_of(json!({"role": "assistant"})), "");
    }

    #[test]
    fn h57_an_unsupported_part_is_named() {
        let parts = json!([{"type": "image_url", "image_url": {"url": "x"}}]);
        let error = Message::from_json(&json!({"role": "user", "content": parts})).unwrap_err();
        assert_eq!(
            error.to_string(),
            "message: content part: expected type \"text\", got type \"image_url\""
        );
        for illegal in [json!(3), json!([3]), json!([{"type": "text"}]), json!({"text": "x"})] {
            let message = json!({"role": "user", "content": illegal});
            assert!(Message::from_json(&message).is_err(), "{message}");
        }
        for illegal in [json!("x"), json!({"content": "x"}), json!({"role": 1})] {
            assert!(Message::from_json(&illegal).is_err(), "{illegal}");
        }
    }

    #[test]
    fn arguments_of_tool_calls_become_values() {
        let call = |arguments: Value| json!({"function": {"name": "f", "arguments": arguments}});
        let calls = json!([call(json!("{\"a\": 1}")), call(json!("not json")), {"arguments": "{}"}]);
        let message = json!({"role": "assistant", "content": null, "tool_calls": calls});
        let message = Message::from_json(&message).unwrap();
        let right = json!([call(json!({"a": 1})), call(json!("not json")), {"arguments": {}}]);
        assert_eq!(message.fields["tool_calls"], right);
    }
}
