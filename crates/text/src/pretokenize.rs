//! The splitters that GGUF files name in `tokenizer.ggml.pre`, and the rules behind the names.

use serde_json::{Value, json};

use crate::error::{Result, TextError};

/// How byte-level text is split before merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Splitter {
    /// Patterns applied one after the other; what a pattern does not match stays one part.
    patterns: &'static [&'static str],
    /// Whether a part that is itself a token is taken as it is, without merging.
    pub(crate) ignore_merges: bool,
    /// Whether a start token is added when the file does not say.
    pub(crate) add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|]+";

const fn splitter(patterns: &'static [&'static str]) -> Splitter {
    Splitter { patterns, ignore_merges: false, add_bos: false }
}

/// Names in sorted order (ggml-org/llama.cpp `src/llama-vocab.cpp`).
const KNOWN: [(&str, Splitter); 14] = [
    ("codeshell", splitter(&[r"\p{N}", GPT2])),
    ("command-r", splitter(&[r"\p{N}", GPT2])),
    ("dbrx", splitter(&[LLAMA3])),
    ("deepseek-r1-qwen", splitter(&[QWEN2])),
    ("default", splitter(&[PUNCTUATION, GPT2, r"\p{N}+", "[0-9][0-9][0-9]"])),
    ("gpt-2", splitter(&[GPT2])),
    ("llama-bpe", Splitter { patterns: &[LLAMA3], ignore_merges: true, add_bos: true }),
    ("llama3", Splitter { patterns: &[LLAMA3], ignore_merges: true, add_bos: true }),
    ("phi-2", splitter(&[GPT2])),
    ("qwen2", splitter(&[QWEN2])),
    ("refact", splitter(&[r"\p{N}", GPT2])),
    ("smaug-bpe", splitter(&[LLAMA3])),
    ("smollm", splitter(&[r"\p{N}", GPT2])),
    ("starcoder", splitter(&[r"\p{N}", GPT2])),
];

impl Splitter {
    /// The splitter of a name; without a name it is `default`.
    pub(crate) fn named(name: Option<&str>) -> Result<Self> {
        let name = name.unwrap_or("default");
        let found = KNOWN.iter().find(|(known, _)| *known == name);
        found.map(|(_, splitter)| *splitter).ok_or_else(|| TextError::Unsupported {
            file: "tokenizer.ggml.pre".to_owned(),
            what: "pre-tokenizer",
            got: name.to_owned(),
            known: KNOWN.map(|(known, _)| known).join(", "),
        })
    }

    /// The splitter as a `pre_tokenizer` of tokenizer.json.
    pub(crate) fn to_json(self) -> Value {
        let split = |pattern: &&str| {
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                   "invert": false})
        };
        let mut stages: Vec<Value> = self.patterns.iter().map(split).collect();
        stages.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                           "use_regex": false}));
        json!({"type": "Sequence", "pretokenizers": stages})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(KNOWN.is_sorted_by(|left, right| left.0 < right.0));
    }

    #[test]
    fn an_unknown_name_is_listed_with_the_known_ones() {
        let error = Splitter::named(Some("mystery")).unwrap_err().to_string();
        assert!(error.starts_with("tokenizer.ggml.pre: pre-tokenizer \"mystery\" is not supported"));
        assert!(error.contains("llama-bpe") && error.contains("smollm"), "{error}");
    }
}
