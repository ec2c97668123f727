//! `generation_config.json`: the start and end tokens that a model's publisher set for generation.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Result, TextError};

const NEXT: &str = "mend the file, or remove it to do without";

/// The ids of a model's generation configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GenerationConfig {
    /// The start token.
    pub bos: Option<u32>,
    /// Every end token.
    pub eos: Vec<u32>,
}

impl GenerationConfig {
    /// Reads `generation_config.json` of a folder; `None` when there is none. A broken file is an
    /// error that names it.
    pub fn from_folder(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join("generation_config.json");
        let Some(fields) = read_object(&path, "the generation configuration", NEXT)? else {
            return Ok(None);
        };
        let file = path.display().to_string();
        let ids = |name: &str| match fields.get(name) {
            Some(value) => token_ids(&file, name, value),
            None => Ok(Vec::new()),
        };
        Ok(Some(Self { bos: ids("bos_token_id")?.first().copied(), eos: ids("eos_token_id")? }))
    }
}

/// The ids of a field that may hold null, a number or a list of numbers, as `eos_token_id` does.
/// `file` is named in the error.
pub fn token_ids(file: &str, field: &str, value: &Value) -> Result<Vec<u32>> {
    let single = std::slice::from_ref(value);
    let items = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(items) => items.as_slice(),
        _ => single,
    };
    let id = |item: &Value| item.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids: Option<Vec<u32>> = items.iter().map(id).collect();
    ids.ok_or_else(|| TextError::Format {
        file: file.to_owned(),
        what: field.to_owned(),
        expected: "a token id or a list of them".to_owned(),
        got: shorten(&value.to_string()),
        next: NEXT,
    })
}

/// Reads a JSON object; `None` when there is no such file.
pub(crate) fn read_object(
    path: &Path,
    what: &'static str,
    next: &'static str,
) -> Result<Option<Map<String, Value>>> {
    let Some(text) = read_text(path, what, next)? else { return Ok(None) };
    let got = match serde_json::from_str(&text) {
        Ok(Value::Object(fields)) => return Ok(Some(fields)),
        Ok(other) => shorten(&other.to_string()),
        Err(error) => error.to_string(),
    };
    let (file, expected) = (path.display().to_string(), "a JSON object".to_owned());
    Err(TextError::Format { file, what: what.to_owned(), expected, got, next })
}

/// Reads a text file; `None` when there is no such file.
pub(crate) fn read_text(path: &Path, what: &'static str, next: &'static str) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Read { path: path.to_owned(), what, source, next }),
    }
}

/// A value short enough for a message of one line.
pub(crate) fn shorten(text: &str) -> String {
    const LIMIT: usize = 60;
    match text.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &str) -> Result<Option<GenerationConfig>> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("generation_config.json"), content).unwrap();
        GenerationConfig::from_folder(folder.path())
    }

    #[test]
    fn h54_a_number_a_list_null_and_no_file_are_all_read() {
        let eos = |content| read(content).unwrap().unwrap().eos;
        assert_eq!(eos(r#"{"eos_token_id": [5, 7]}"#), [5, 7]);
        assert_eq!(eos(r#"{"eos_token_id": 7}"#), [7]);
        assert_eq!(eos(r#"{"eos_token_id": null}"#), [] as [u32; 0]);
        assert_eq!(eos("{}"), [] as [u32; 0]);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(GenerationConfig::from_folder(folder.path()).unwrap(), None);
    }

    #[test]
    fn h54_a_broken_file_is_a_clear_error() {
        for content in ["{", "[]", "", r#"{"eos_token_id": "x"}"#, r#"{"eos_token_id": [1, -2]}"#] {
            let error = read(content).unwrap_err().to_string();
            assert!(error.contains("generation_config.json: "), "{error}");
            assert!(error.contains("expected") && error.contains("got"), "{error}");
        }
    }
}
