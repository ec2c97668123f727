//! A tokenizer from GGUF metadata: the vocabulary becomes the same pipeline as a tokenizer.json.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use crate::error::{Result, TextError};
use crate::pretokenize::Splitter;
use crate::special::{END_SPELLINGS, Ends};
use crate::tokenizer::{Parts, Tokenizer};
use crate::vocabulary::{Kind, Spelling, Vocabulary};

const NEXT: &str = "fetch the file again or convert it anew";

/// The tokenizer part of a GGUF file's metadata, as plain values. Each field is named after its
/// key `tokenizer.ggml.…`.
#[derive(Debug, Clone, Copy, Default)]
pub struct GgufVocabulary<'a> {
    /// `model`: `gpt2` (byte-level) or `llama` (SentencePiece).
    pub model: &'a str,
    /// `pre`: the name of the splitter; only for `gpt2`.
    pub pre: Option<&'a str>,
    /// `tokens`: the spelling of every id.
    pub tokens: &'a [String],
    /// `token_type`: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte. Empty means
    /// that all are normal.
    pub token_types: &'a [i32],
    /// `scores`: only for `llama`, where merges are missing.
    pub scores: &'a [f32],
    /// `merges`: pairs separated by a space.
    pub merges: &'a [String],
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`.
    pub eot: Option<u32>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `add_bos_token`; absent means what the format's first user does: yes for `llama` and for
    /// the splitters of Llama 3, else no.
    pub add_bos: Option<bool>,
    /// `add_space_prefix`; absent means yes. Only for `llama`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<&'a str>,
}

/// Token types of the format.
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

impl Tokenizer {
    /// Builds a tokenizer from GGUF metadata.
    pub fn from_gguf(gguf: &GgufVocabulary<'_>) -> Result<Self> {
        gguf.check()?;
        let (pipeline, spelling, add_bos) = match gguf.model {
            "gpt2" => {
                let splitter = Splitter::named(gguf.pre)?;
                (gguf.byte_level(splitter)?, Spelling::ByteLevel, splitter.add_bos)
            }
            "llama" => (gguf.pieces()?, Spelling::Pieces { byte_fallback: true }, true),
            other => {
                return Err(TextError::Unsupported {
                    file: "tokenizer.ggml.model".to_owned(),
                    what: "tokenizer",
                    got: other.to_owned(),
                    known: "gpt2, llama".to_owned(),
                });
            }
        };
        let inner = serde_json::from_value(pipeline).map_err(|error: serde_json::Error| {
            wrong("tokens and merges", "merges of known tokens", error.to_string())
        })?;
        let strips = gguf.model == "llama" && gguf.space_prefix();
        let tokens = gguf.tokens.iter().zip(0..);
        let tokens = tokens.map(|(text, id)| (id, text.as_str(), gguf.kind(id)));
        Tokenizer::assemble(Parts {
            file: "GGUF metadata".to_owned(),
            inner,
            vocabulary: Vocabulary::build(spelling, strips, tokens),
            ends: Ends {
                bos: gguf.bos,
                eos: gguf.eos,
                add_bos: gguf.add_bos.unwrap_or(add_bos),
                more: gguf.eot.into_iter().collect(),
            },
            template: gguf
                .chat_template
                .map(|source| ("tokenizer.chat_template".to_owned(), source.to_owned())),
        })
    }
}

impl GgufVocabulary<'_> {
    fn check(&self) -> Result<()> {
        let count = self.tokens.len();
        if count == 0 {
            return Err(wrong("tokens", "at least one", "none".to_owned()));
        }
        for (what, length) in [("token_type", self.token_types.len()), ("scores", self.scores.len())] {
            if length != 0 && length != count {
                let expected = format!("{count}, one per token");
                return Err(wrong(what, &expected, length.to_string()));
            }
        }
        let ids = [("bos", self.bos), ("eos", self.eos), ("eot", self.eot), ("unknown", self.unk)];
        for (name, id) in ids {
            if let Some(id) = id.filter(|id| *id as usize >= count) {
                let what = format!("{name}_token_id");
                return Err(wrong(&what, &format!("an id below {count}"), id.to_string()));
            }
        }
        Ok(())
    }

    fn kind(&self, id: u32) -> Kind {
        let text = self.tokens[id as usize].as_str();
        let ends = [self.bos, self.eos, self.eot].contains(&Some(id));
        match self.token_types.get(id as usize) {
            _ if ends || END_SPELLINGS.contains(&text) => Kind::Control,
            Some(&UNKNOWN | &CONTROL) => Kind::Control,
            Some(&USER_DEFINED) => Kind::Added,
            _ => Kind::Learned,
        }
    }

    fn space_prefix(&self) -> bool {
        self.add_space_prefix.unwrap_or(true)
    }

    fn byte_level(&self, splitter: Splitter) -> Result<Value> {
        let merges: Option<Vec<(&str, &str)>> = self.merges.iter().map(|pair| halves(pair)).collect();
        let merges = merges.ok_or_else(|| {
            let bad = self.merges.iter().find(|pair| halves(pair).is_none());
            wrong("merges", "two tokens and a space", format!("{bad:?}"))
        })?;
        let model = json!({
            "type": "BPE", "byte_fallback": false, "fuse_unk": false, "unk_token": null,
            "ignore_merges": splitter.ignore_merges, "vocab": self.ids(), "merges": merges,
        });
        Ok(self.pipeline(model, Value::Null, splitter.to_json()))
    }

    fn pieces(&self) -> Result<Value> {
        if self.merges.is_empty() && self.scores.is_empty() {
            return Err(wrong("scores", "one per token", "none".to_owned()));
        }
        let given: Vec<(&str, &str)> = self.merges.iter().filter_map(|pair| halves(pair)).collect();
        let merges = if given.is_empty() { self.merges_by_score() } else { given };
        let unk = self.unk.map(|id| self.tokens[id as usize].as_str());
        let model = json!({
            "type": "BPE", "byte_fallback": true, "fuse_unk": true, "unk_token": unk,
            "vocab": self.ids(), "merges": merges,
        });
        let mut stages = Vec::new();
        if self.space_prefix() {
            stages.push(json!({"type": "Prepend", "prepend": "▁"}));
        }
        stages.push(json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}));
        let normalizer = json!({"type": "Sequence", "normalizers": stages});
        Ok(self.pipeline(model, normalizer, Value::Null))
    }

    /// Every pair of tokens that joins to a token, the best-scored result first; ties go to the
    /// longer halves (huggingface/transformers `convert_slow_tokenizer.py`, `generate_merges`).
    fn merges_by_score(&self) -> Vec<(&str, &str)> {
        let known: HashSet<&str> = self.tokens.iter().map(String::as_str).collect();
        let mut merges = Vec::new();
        for (text, score) in self.tokens.iter().zip(self.scores) {
            let cuts = (1..text.len()).filter(|cut| text.is_char_boundary(*cut));
            let pairs = cuts.map(|cut| text.split_at(cut));
            let pairs = pairs.filter(|(left, right)| known.contains(left) && known.contains(right));
            merges.extend(pairs.map(|(left, right)| (*score, left, right)));
        }
        merges.sort_by(|a, b| {
            let lengths = |x: &(f32, &str, &str)| (x.1.chars().count(), x.2.chars().count());
            b.0.total_cmp(&a.0).then_with(|| lengths(b).cmp(&lengths(a)))
        });
        merges.into_iter().map(|(_, left, right)| (left, right)).collect()
    }

    /// The first id of every spelling.
    fn ids(&self) -> HashMap<&str, u32> {
        let mut ids = HashMap::with_capacity(self.tokens.len());
        for (text, id) in self.tokens.iter().zip(0..) {
            ids.entry(text.as_str()).or_insert(id);
        }
        ids
    }

    fn pipeline(&self, model: Value, normalizer: Value, pre_tokenizer: Value) -> Value {
        let added: Vec<Value> = (0..)
            .zip(self.tokens)
            .filter_map(|(id, text)| {
                let kind = self.kind(id);
                (kind != Kind::Learned && !text.is_empty()).then(|| {
                    json!({"id": id, "content": text, "single_word": false, "lstrip": false,
                           "rstrip": false, "normalized": false, "special": kind == Kind::Control})
                })
            })
            .collect();
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null,
            "decoder": null, "model": model,
        })
    }
}

/// The two halves of a merge. A half may begin with the separator, never end with it.
fn halves(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let space = first + merge[first..].find(' ')?;
    Some((&merge[..space], &merge[space + 1..]))
}

fn wrong(what: &str, expected: &str, got: String) -> TextError {
    TextError::Format {
        file: "GGUF metadata".to_owned(),
        what: format!("tokenizer.ggml.{what}"),
        expected: expected.to_owned(),
        got,
        next: NEXT,
    }
}
