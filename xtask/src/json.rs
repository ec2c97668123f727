//! As much JSON as `cargo metadata`, the command line's `--json` and the benchmark reports need.

use std::fmt;

use crate::failure::{Result, fail};

/// One JSON value. Objects keep the order of their keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads one value that fills the whole text.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut reader = Reader { bytes: text.as_bytes(), at: 0, depth: 0 };
        let value = reader.value()?;
        reader.space();
        if reader.at < reader.bytes.len() { reader.error("the end") } else { Ok(value) }
    }

    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// The value under a key; `None` when it is absent or this is no object.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The value below several keys.
    pub(crate) fn at(&self, keys: &[&str]) -> Option<&Self> {
        keys.iter().try_fold(self, |value, key| value.get(key))
    }

    pub(crate) fn str(&self, key: &str) -> Option<&str> {
        match self.get(key) {
            Some(Self::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn number(&self, keys: &[&str]) -> Option<f64> {
        match self.at(keys) {
            Some(Self::Number(number)) => Some(*number),
            _ => None,
        }
    }

    /// The elements under a key; none when there is no such list.
    pub(crate) fn list(&self, key: &str) -> &[Self] {
        match self.get(key) {
            Some(Self::List(values)) => values,
            _ => &[],
        }
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            // JSON has no infinities and no NaN.
            Self::Number(value) if !value.is_finite() => f.write_str("null"),
            Self::Number(value) => write!(f, "{value}"),
            Self::Text(text) => quoted(f, text),
            Self::List(values) => {
                f.write_str("[")?;
                for (i, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Self::Object(entries) => {
                f.write_str("{")?;
                for (i, (key, value)) in entries.iter().enumerate() {
                    f.write_str(if i == 0 { "" } else { ", " })?;
                    quoted(f, key)?;
                    write!(f, ": {value}")?;
                }
                f.write_str("}")
            }
        }
    }
}

fn quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            c if (c as u32) < 0x20 => write!(f, "\\u{:04x}", c as u32)?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

/// Deeper than anything these programs print, and far below what the stack holds.
const MAX_DEPTH: usize = 128;

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
}

impl Reader<'_> {
    fn value(&mut self) -> Result<Json> {
        self.space();
        match self.peek() {
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            Some(b'"') => self.string().map(Json::Text),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'n') => self.word("null", Json::Null),
            _ => self.float(),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Json>) -> Result<Json> {
        if self.depth == MAX_DEPTH {
            return self.error("less nesting");
        }
        self.depth += 1;
        self.at += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    fn object(&mut self) -> Result<Json> {
        let mut entries = Vec::new();
        while !self.closes(b'}', entries.is_empty())? {
            self.space();
            let key = self.string()?;
            self.space();
            self.expect(b':')?;
            entries.push((key, self.value()?));
        }
        Ok(Json::Object(entries))
    }

    fn array(&mut self) -> Result<Json> {
        let mut values = Vec::new();
        while !self.closes(b']', values.is_empty())? {
            values.push(self.value()?);
        }
        Ok(Json::List(values))
    }

    /// Eats the closing bracket, or the comma that must stand before any element but the first.
    fn closes(&mut self, end: u8, first: bool) -> Result<bool> {
        self.space();
        if self.peek() == Some(end) {
            self.at += 1;
            return Ok(true);
        }
        if !first {
            self.expect(b',')?;
        }
        Ok(false)
    }

    fn string(&mut self) -> Result<String> {
        self.expect(b'"')?;
        let mut text = Vec::new();
        loop {
            let Some(byte) = self.peek() else { return self.error("a closing quote") };
            self.at += 1;
            match byte {
                b'"' => break,
                b'\\' => self.escape(&mut text)?,
                _ => text.push(byte),
            }
        }
        // The input is a `str` and escapes add whole characters, so this never replaces anything.
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn escape(&mut self, text: &mut Vec<u8>) -> Result {
        let Some(byte) = self.peek() else { return self.error("an escape") };
        self.at += 1;
        text.push(match byte {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 8,
            b'f' => 12,
            b'"' | b'\\' | b'/' => byte,
            b'u' => {
                let c = self.unicode()?;
                text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return self.error("a known escape"),
        });
        Ok(())
    }

    fn unicode(&mut self) -> Result<char> {
        let mut code = self.hex4()?;
        if (0xd800..0xdc00).contains(&code) && self.bytes[self.at..].starts_with(b"\\u") {
            self.at += 2;
            let low = self.hex4()?;
            code = 0x10000 + ((code - 0xd800) << 10) + (low.wrapping_sub(0xdc00) & 0x3ff);
        }
        Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex4(&mut self) -> Result<u32> {
        let digits = self.bytes.get(self.at..self.at + 4).and_then(|d| std::str::from_utf8(d).ok());
        let Some(code) = digits.and_then(|d| u32::from_str_radix(d, 16).ok()) else {
            return self.error("four hexadecimal digits");
        };
        self.at += 4;
        Ok(code)
    }

    fn float(&mut self) -> Result<Json> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().take_while(|b| b"+-.0123456789eE".contains(b)).count();
        match std::str::from_utf8(&rest[..length]).ok().and_then(|text| text.parse().ok()) {
            Some(number) => {
                self.at += length;
                Ok(Json::Number(number))
            }
            None => self.error("a value"),
        }
    }

    fn word(&mut self, word: &str, value: Json) -> Result<Json> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return self.error("a value");
        }
        self.at += word.len();
        Ok(value)
    }

    fn expect(&mut self, byte: u8) -> Result {
        if self.peek() != Some(byte) {
            return self.error(&format!("'{}'", byte as char));
        }
        self.at += 1;
        Ok(())
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn error<T>(&self, expected: &str) -> Result<T> {
        fail(format!("bad JSON at byte {}: expected {expected}", self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let text =
            r#"{"a": [1, -2.5, 1000], "b": {"c": null, "d": true, "e": false}, "f": "x\"\\\ny\u0001é"}"#;
        let value = Json::parse(text).unwrap();
        assert_eq!(value.to_string(), text);
        assert_eq!(Json::parse(&value.to_string()).unwrap(), value);
    }

    #[test]
    fn finds_values() {
        let value = Json::parse(r#" {"a":{"b":[{"n":1e2}],"s":"t"}} "#).unwrap();
        assert_eq!(value.get("a").unwrap().str("s"), Some("t"));
        assert_eq!(value.get("a").unwrap().list("b")[0].number(&["n"]), Some(100.0));
        assert_eq!(value.at(&["a", "x"]), None);
        assert!(value.list("a").is_empty());
        assert_eq!(value.number(&["a", "s"]), None);
    }

    #[test]
    fn reads_escapes() {
        let value = Json::parse(r#""\u00e9\ud83d\ude00\t\/\ud800""#).unwrap();
        assert_eq!(value, Json::text("é😀\t/\u{fffd}"));
    }

    #[test]
    fn rejects_bad_text() {
        for bad in ["", "{", "[1,]", "[1 2]", "{\"a\" 1}", "\"a", "tru", "1 2", "\"\\x\"", "\"\\u12\"", "-"] {
            assert!(Json::parse(bad).is_err(), "{bad:?}");
        }
        assert!(Json::parse(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn writes_no_infinity() {
        assert_eq!(Json::Number(f64::NAN).to_string(), "null");
    }
}
