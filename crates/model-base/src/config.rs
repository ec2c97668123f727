//! A model's configuration: typed access, with errors that name the key.

use std::path::Path;

use serde_json::{Map, Value};

use crate::{
    ModelError, Result,
    weights::{Quantization, read_json},
};

/// The contents of `config.json`, or the same facts taken from another format.
#[derive(Debug, Clone, Default)]
pub struct Config {
    values: Map<String, Value>,
    prefix: String,
    end_tokens: Vec<u32>,
}

impl Config {
    /// Reads `config.json`, and the end tokens of `generation_config.json`, from a folder.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let mut config =
            Self::from_json(read_json(&path)?).map_err(|e| in_file(&path, e, "fetch the model again"))?;
        let generation = folder.join("generation_config.json");
        if generation.is_file() {
            // A broken file is an error and not a warning: without its end tokens the model would
            // start a second turn by itself.
            let also = Self::from_json(read_json(&generation)?)
                .map_err(|e| in_file(&generation, e, "repair the file, or delete it"))?;
            config.add_end_tokens(&also.end_tokens);
        }
        Ok(config)
    }

    /// A configuration from text.
    pub fn parse(text: &str) -> Result<Self> {
        let value =
            serde_json::from_str(text).map_err(|e| mismatch("text".into(), "valid JSON", e.to_string()))?;
        Self::from_json(value)
    }

    /// A configuration from a JSON object.
    pub fn from_json(value: Value) -> Result<Self> {
        let Value::Object(values) = value else {
            return Err(mismatch("top level".into(), "an object", short(&value)));
        };
        let own = end_tokens(values.get("eos_token_id").unwrap_or(&Value::Null))?;
        // A wrapper around a language model may leave them to the inner configuration.
        let inner = values.get("text_config").and_then(|text| text.get("eos_token_id"));
        let inner = end_tokens(inner.unwrap_or(&Value::Null))?;
        let mut config = Self { values, prefix: String::new(), end_tokens: own };
        config.add_end_tokens(&inner);
        Ok(config)
    }

    /// End tokens of the configuration and the generation configuration, ascending.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// Adds end tokens that another file names.
    pub fn add_end_tokens(&mut self, ids: &[u32]) {
        self.end_tokens.extend(ids);
        self.end_tokens.sort_unstable();
        self.end_tokens.dedup();
    }

    /// What `quantization`, or `quantization_config`, says about packed weights.
    pub fn quantization(&self) -> Result<Quantization> {
        let own = self.values.get("quantization").filter(|v| !v.is_null());
        let value = own.or_else(|| self.values.get("quantization_config"));
        Quantization::from_json(value.unwrap_or(&Value::Null))
    }

    /// A required whole number of at least 1 that fits 31 bits.
    pub fn count(&self, key: &str) -> Result<usize> {
        let expected = "a whole number of at least 1";
        self.optional_count(key)?.ok_or_else(|| mismatch(self.path(key), expected, "nothing".into()))
    }

    /// A whole number of at least 1; absent and null are `None`.
    pub fn optional_count(&self, key: &str) -> Result<Option<usize>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(n) if (1..=i32::MAX as u64).contains(&n) => Ok(Some(n as usize)),
                _ => Err(mismatch(self.path(key), "a whole number from 1 to 2^31 − 1", short(value))),
            },
        }
    }

    /// A finite number; absent and null are `None`.
    pub fn number(&self, key: &str) -> Result<Option<f32>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.as_f64().map(|n| n as f32).filter(|n| n.is_finite()) {
                Some(n) => Ok(Some(n)),
                None => Err(mismatch(self.path(key), "a finite number", short(value))),
            },
        }
    }

    /// A flag; absent and null are false.
    pub fn flag(&self, key: &str) -> Result<bool> {
        Ok(self.optional_flag(key)?.unwrap_or(false))
    }

    /// A flag; absent and null are `None`.
    pub fn optional_flag(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(value) => Err(mismatch(self.path(key), "true or false", short(value))),
        }
    }

    /// A text; absent and null are `None`.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(value) => Err(mismatch(self.path(key), "a text", short(value))),
        }
    }

    /// A list of texts; absent and null are `None`.
    pub fn optional_list(&self, key: &str) -> Result<Option<Vec<String>>> {
        let bad = |value: &Value| mismatch(self.path(key), "a list of texts", short(value));
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(list)) => {
                let text = |v: &Value| v.as_str().map(str::to_owned).ok_or_else(|| bad(v));
                list.iter().map(text).collect::<Result<_>>().map(Some)
            }
            Some(value) => Err(bad(value)),
        }
    }

    /// A required list of whole numbers of at least 0 that fit 31 bits.
    pub fn indices(&self, key: &str) -> Result<Vec<usize>> {
        let bad = |got: String| mismatch(self.path(key), "a list of whole numbers from 0 to 2^31 − 1", got);
        let Some(value) = self.get(key) else { return Err(bad("nothing".into())) };
        let Value::Array(list) = value else { return Err(bad(short(value))) };
        let index = |v: &Value| v.as_u64().filter(|n| *n <= i32::MAX as u64).map(|n| n as usize);
        list.iter().map(|v| index(v).ok_or_else(|| bad(short(value)))).collect()
    }

    /// An object inside; absent and null are `None`.
    pub fn section(&self, key: &str) -> Result<Option<Self>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(values)) => Ok(Some(Self {
                values: values.clone(),
                prefix: self.path(key) + ".",
                end_tokens: Vec::new(),
            })),
            Some(value) => Err(mismatch(self.path(key), "an object", short(value))),
        }
    }

    /// The key with the names of the sections around it.
    pub fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|v| !v.is_null())
    }
}

/// `eos_token_id` is one id or a list of them.
fn end_tokens(value: &Value) -> Result<Vec<u32>> {
    let id = |v: &Value| match v.as_u64().and_then(|n| u32::try_from(n).ok()) {
        Some(id) => Ok(id),
        None => Err(mismatch("eos_token_id".into(), "a token id or a list of them", short(v))),
    };
    let mut ids = match value {
        Value::Null => Vec::new(),
        Value::Array(list) => list.iter().map(id).collect::<Result<Vec<_>>>()?,
        one => vec![id(one)?],
    };
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

fn in_file(path: &Path, error: ModelError, next: &'static str) -> ModelError {
    match error {
        ModelError::Config { what, expected, got } => {
            ModelError::File { file: path.display().to_string(), what, expected, got, next }
        }
        other => other,
    }
}

fn mismatch(what: String, expected: &str, got: String) -> ModelError {
    ModelError::Config { what, expected: expected.into(), got }
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}
