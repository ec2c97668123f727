//! A tokenizer from a model folder: tokenizer.json and the small files beside it.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Result, TextError};
use crate::generation::{GenerationConfig, read_object, read_text};
use crate::special::{END_SPELLINGS, Ends};
use crate::tokenizer::{Parts, Tokenizer};
use crate::vocabulary::{Kind, Spelling, Vocabulary};

const FILE: &str = "tokenizer.json";
const NEXT: &str = "fetch the file again, or work with ids (--prompt-ids)";

impl Tokenizer {
    /// Reads `tokenizer.json` and, where they exist, `tokenizer_config.json`,
    /// `generation_config.json` and `chat_template.jinja` of a folder.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let what = "the tokenizer";
        let json = std::fs::read_to_string(&path).map_err(|source| TextError::Read {
            path: path.clone(),
            what,
            source,
            next: NEXT,
        })?;
        let file = path.display().to_string();
        let inner: tokenizers::Tokenizer =
            json.parse().map_err(|error: tokenizers::Error| TextError::Format {
                file: file.clone(),
                what: what.to_owned(),
                expected: "a tokenizer".to_owned(),
                got: error.to_string(),
                next: NEXT,
            })?;
        let config_path = folder.join("tokenizer_config.json");
        let config = read_object(&config_path, "the tokenizer configuration", NEXT)?;
        let config = config.unwrap_or_default();
        let generation = GenerationConfig::from_folder(folder)?.unwrap_or_default();
        let decoding = Decoding::of(&inner, &file)?;
        Tokenizer::assemble(Parts {
            vocabulary: vocabulary(&inner, &config, decoding),
            ends: ends(&inner, &config, generation)?,
            template: template(folder, &config, &config_path)?,
            file,
            inner,
        })
    }

    /// Whether a folder has a tokenizer at all. One without it still works with ids.
    pub fn exists_in(folder: &Path) -> bool {
        folder.join(FILE).is_file()
    }
}

/// How the file says that tokens become text.
#[derive(Debug, Clone, Copy)]
struct Decoding {
    spelling: Spelling,
    strips_leading_space: bool,
}

impl Decoding {
    fn of(inner: &tokenizers::Tokenizer, file: &str) -> Result<Self> {
        let decoder = serde_json::to_value(inner.get_decoder()).unwrap_or_default();
        let stages = flatten(&decoder, "decoders");
        let has = |kind: &str| stages.iter().any(|stage| stage["type"] == kind);
        let spelling = if has("ByteLevel") {
            Spelling::ByteLevel
        } else if has("ByteFallback") || has("Metaspace") {
            Spelling::Pieces { byte_fallback: has("ByteFallback") }
        } else {
            let names: Vec<&str> = stages.iter().filter_map(|stage| stage["type"].as_str()).collect();
            return Err(TextError::Unsupported {
                file: file.to_owned(),
                what: "decoder",
                got: if names.is_empty() { "none".to_owned() } else { names.join(", ") },
                known: "ByteLevel, ByteFallback, Metaspace".to_owned(),
            });
        };
        let strips = |stage: &&Value| match stage["type"].as_str() {
            Some("Strip") => stage["content"] == " " && stage["start"].as_u64() > Some(0),
            Some("Metaspace") => stage["prepend_scheme"] != "never",
            _ => false,
        };
        Ok(Self { spelling, strips_leading_space: stages.iter().any(strips) })
    }
}

/// A stage, or the stages of a sequence.
fn flatten<'a>(stage: &'a Value, field: &str) -> Vec<&'a Value> {
    match stage.get(field).and_then(Value::as_array) {
        Some(stages) => stages.iter().flat_map(|stage| flatten(stage, field)).collect(),
        None if stage.is_null() => Vec::new(),
        None => vec![stage],
    }
}

fn vocabulary(inner: &tokenizers::Tokenizer, config: &Map<String, Value>, decoding: Decoding) -> Vocabulary {
    let learned = inner.get_vocab(false);
    let learned = learned.iter().map(|(text, id)| (*id, text.as_str(), Kind::Learned));
    let named = ["bos_token", "eos_token"].map(|name| token_text(config, name));
    let decoder = inner.get_added_tokens_decoder();
    let added = decoder.iter().map(|(id, token)| {
        let text = token.content.as_str();
        let control = token.special || END_SPELLINGS.contains(&text) || named.contains(&Some(text));
        (*id, text, if control { Kind::Control } else { Kind::Added })
    });
    Vocabulary::build(decoding.spelling, decoding.strips_leading_space, learned.chain(added))
}

/// The tokenizer's configuration decides; where it is silent, the pipeline's own start token and
/// the generation configuration do. A start token of null means that there is none.
fn ends(
    inner: &tokenizers::Tokenizer,
    config: &Map<String, Value>,
    generation: GenerationConfig,
) -> Result<Ends> {
    let id = |name: &str| token_text(config, name).and_then(|text| inner.token_to_id(text));
    let first = inner.encode("", true).ok().and_then(|empty| empty.get_ids().first().copied());
    let bos = match config.contains_key("bos_token") {
        true => id("bos_token"),
        false => first.or(generation.bos),
    };
    let asked = config.get("add_bos_token").and_then(Value::as_bool);
    let add_bos = asked.unwrap_or(bos.is_some() && first == bos);
    let more = id("eot_token").into_iter().chain(generation.eos).collect();
    Ok(Ends { bos, eos: id("eos_token"), add_bos, more })
}

/// A token of the configuration, written as a string or as an object with its content.
fn token_text<'a>(config: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    let value = config.get(name)?;
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// Where the template came from, and its source. A file of its own wins over the configuration; of
/// several named ones it is `default`.
fn template(
    folder: &Path,
    config: &Map<String, Value>,
    config_path: &Path,
) -> Result<Option<(String, String)>> {
    let path = folder.join("chat_template.jinja");
    if let Some(source) = read_text(&path, "the chat template", NEXT)? {
        return Ok(Some((path.display().to_string(), source)));
    }
    let source = match config.get("chat_template") {
        Some(Value::String(source)) => Some(source.as_str()),
        Some(Value::Array(named)) => {
            let default = named.iter().find(|template| template["name"] == "default");
            default.and_then(|template| template["template"].as_str())
        }
        _ => None,
    };
    Ok(source.map(|source| (config_path.display().to_string(), source.to_owned())))
}
