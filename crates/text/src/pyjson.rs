//! JSON in and out of templates. It is written as Python's `json.dumps` writes it, which is what
//! models were trained with: a space behind commas and colons, no escaping of HTML.

use minijinja::value::ValueKind;
use serde_json::{Map, Number, Value};

/// How to write.
#[derive(Debug, Clone, Default)]
pub(crate) struct Style {
    /// Spaces per level; `None` writes one line.
    pub(crate) indent: Option<usize>,
    /// Item and key separators; `None` is Python's default for the indent.
    pub(crate) separators: Option<(String, String)>,
    /// Whether keys are sorted.
    pub(crate) sort_keys: bool,
}

/// Writes a value. Characters beyond ASCII are written as they are.
pub(crate) fn dumps(value: &Value, style: &Style) -> String {
    let default_item = if style.indent.is_some() { "," } else { ", " };
    let (item, key) = match &style.separators {
        Some((item, key)) => (item.as_str(), key.as_str()),
        None => (default_item, ": "),
    };
    let mut writer = Writer { style, item, key, out: String::new() };
    writer.value(value, 0);
    writer.out
}

/// A JSON value as a template sees it.
pub(crate) fn to_template(value: &Value) -> minijinja::Value {
    match value {
        Value::Null => minijinja::Value::from(()),
        Value::Bool(truth) => (*truth).into(),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => number.into(),
            (_, Some(number)) => number.into(),
            _ => number.as_f64().unwrap_or(f64::NAN).into(),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => items.iter().map(to_template).collect::<Vec<_>>().into(),
        Value::Object(fields) => {
            let pairs = fields.iter().map(|(key, value)| (key.as_str(), to_template(value)));
            minijinja::Value::from_pairs(pairs)
        }
    }
}

/// A template's value as JSON; undefined, functions and the like are errors.
pub(crate) fn from_template(value: &minijinja::Value) -> Result<Value, minijinja::Error> {
    let number = |value: &minijinja::Value| {
        i64::try_from(value.clone())
            .map(Number::from)
            .ok()
            .or_else(|| f64::try_from(value.clone()).ok().and_then(Number::from_f64))
    };
    let json = match value.kind() {
        ValueKind::None => Some(Value::Null),
        ValueKind::Bool => Some(value.is_true().into()),
        ValueKind::Number => number(value).map(Value::Number),
        ValueKind::String => value.as_str().map(Value::from),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Result<Vec<Value>, _> = value.try_iter()?.map(|item| from_template(&item)).collect();
            Some(items?.into())
        }
        ValueKind::Map => {
            let mut fields = Map::new();
            for key in value.try_iter()? {
                fields.insert(key.to_string(), from_template(&value.get_item(&key)?)?);
            }
            Some(fields.into())
        }
        _ => None,
    };
    json.ok_or_else(|| {
        let detail = format!("{} cannot be written as JSON", value.kind());
        minijinja::Error::new(minijinja::ErrorKind::BadSerialization, detail)
    })
}

struct Writer<'a> {
    style: &'a Style,
    item: &'a str,
    key: &'a str,
    out: String,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, level: usize) {
        match value {
            Value::Array(items) => self.list('[', ']', items.iter(), level, |writer, item| {
                writer.value(item, level + 1);
            }),
            Value::Object(fields) => {
                let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
                if self.style.sort_keys {
                    fields.sort_by_key(|(key, _)| *key);
                }
                self.list('{', '}', fields.into_iter(), level, |writer, (key, value)| {
                    writer.scalar(&Value::from(key.as_str()));
                    writer.out.push_str(writer.key);
                    writer.value(value, level + 1);
                });
            }
            scalar => self.scalar(scalar),
        }
    }

    fn list<T>(
        &mut self,
        open: char,
        close: char,
        items: impl ExactSizeIterator<Item = T>,
        level: usize,
        mut write: impl FnMut(&mut Self, T),
    ) {
        let filled = items.len() > 0;
        self.out.push(open);
        for (index, item) in items.enumerate() {
            if index > 0 {
                self.out.push_str(self.item);
            }
            self.line(level + 1);
            write(self, item);
        }
        if filled {
            self.line(level);
        }
        self.out.push(close);
    }

    fn line(&mut self, level: usize) {
        if let Some(width) = self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', width * level));
        }
    }

    fn scalar(&mut self, value: &Value) {
        // Strings, numbers, booleans and null look the same in both languages.
        self.out.push_str(&value.to_string());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_line_has_spaces_and_keeps_the_order_and_html() {
        let value = json!({"b": [1, 2.5, true, null], "a": {"<é>&'": "x\n\"y\""}, "e": []});
        assert_eq!(
            dumps(&value, &Style::default()),
            r#"{"b": [1, 2.5, true, null], "a": {"<é>&'": "x\n\"y\""}, "e": []}"#
        );
    }

    #[test]
    fn values_survive_the_way_through_a_template() {
        let value = json!({"z": [1, -2, 2.5, true, null, "x"], "a": {"b": {}}, "big": u64::MAX >> 1});
        assert_eq!(from_template(&to_template(&value)).unwrap(), value);
        assert!(from_template(&minijinja::Value::UNDEFINED).is_err());
    }

    #[test]
    fn indent_separators_and_sorting_follow_python() {
        let value = json!({"b": [1, {}], "a": 2});
        let indented = Style { indent: Some(2), ..Style::default() };
        assert_eq!(dumps(&value, &indented), "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": 2\n}");
        let separators = Some((",".to_owned(), ":".to_owned()));
        let tight = Style { separators, sort_keys: true, ..Style::default() };
        assert_eq!(dumps(&value, &tight), r#"{"a":2,"b":[1,{}]}"#);
    }
}
