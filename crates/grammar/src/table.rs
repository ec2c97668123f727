//! The bytes of every token, as a trie that grammars walk.

use std::sync::Arc;

use foretoken_text::Tokenizer;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::{GrammarError, Result};

/// Marks spellings that no text can have: control tokens are never part of a structured answer.
const CONTROL: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// The tokens of one model as grammars see them. Cheap to clone.
#[derive(Clone)]
pub struct TokenTable {
    environment: TokEnv,
    ends: Arc<[u32]>,
}

impl TokenTable {
    /// The tokens of a tokenizer for a model of `vocabulary` ids whose answers end with one of `ends`.
    ///
    /// Ids without a token, and control tokens, are never part of a structured answer.
    pub fn new(tokenizer: &Arc<Tokenizer>, vocabulary: usize, ends: &[u32]) -> Result<Self> {
        let own = Arc::clone(tokenizer);
        let bytes = (0..vocabulary as u32).map(|id| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            if tokenizer.is_special(id) { control(bytes) } else { plain(bytes) }
        });
        let trie = trie(bytes.collect(), ends)?;
        let environment = Environment { trie, tokenizer: Some(own) };
        Ok(Self { environment: Arc::new(environment), ends: ends.into() })
    }

    /// Tokens given by their bytes, id by id; forced texts are cut into the longest tokens that fit.
    pub fn from_bytes(tokens: &[Vec<u8>], ends: &[u32]) -> Result<Self> {
        let is_end = |id: usize| ends.contains(&(id as u32));
        let words = tokens.iter().enumerate();
        let words = words.map(|(id, word)| if is_end(id) { control(word) } else { plain(word) }).collect();
        let trie = trie(words, ends)?;
        let environment = Environment { trie, tokenizer: None };
        Ok(Self { environment: Arc::new(environment), ends: ends.into() })
    }

    /// V, the number of ids.
    pub fn vocabulary(&self) -> usize {
        self.environment.tok_trie().vocab_size()
    }

    /// The tokens that end an answer.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    pub(crate) fn environment(&self) -> &TokEnv {
        &self.environment
    }
}

impl std::fmt::Debug for TokenTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenTable")
            .field("vocabulary", &self.vocabulary())
            .field("ends", &self.ends)
            .finish_non_exhaustive()
    }
}

fn control(bytes: &[u8]) -> Vec<u8> {
    [&[CONTROL], bytes].concat()
}

/// Text never begins with a byte that UTF-8 does not use, so such a token cannot be matched.
fn plain(bytes: &[u8]) -> Vec<u8> {
    if bytes.first() == Some(&CONTROL) { Vec::new() } else { bytes.to_vec() }
}

fn trie(words: Vec<Vec<u8>>, ends: &[u32]) -> Result<TokTrie> {
    let vocabulary = |expected, got| Err(GrammarError::Vocabulary { expected, got });
    let count = words.len();
    let Some(&end) = ends.first() else {
        return vocabulary("an end token, so that a complete answer can stop", "none".into());
    };
    if let Some(id) = ends.iter().find(|&&id| id as usize >= count) {
        return vocabulary("end tokens of the vocabulary", id.to_string());
    }
    if let Some(word) = words.iter().find(|word| word.len() > usize::from(u16::MAX)) {
        return vocabulary("tokens shorter than 64 KiB", format!("{} bytes", word.len()));
    }
    let info = TokRxInfo::new(count as u32, end);
    Ok(TokTrie::from(&info, &words).with_eos_tokens(ends))
}

/// The trie with the model's own way of cutting text into tokens.
struct Environment {
    trie: TokTrie,
    tokenizer: Option<Arc<Tokenizer>>,
}

impl Environment {
    /// The tokenizer's own ids; the longest tokens that fit where it has none or refuses.
    fn encode(&self, text: &str) -> Vec<TokenId> {
        let ids = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.encode_text(text).ok());
        // Tokenizers that put a space before the first word spell another text.
        let spells = |ids: &Vec<TokenId>| self.trie.decode(ids) == text.as_bytes();
        ids.filter(spells).unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
    }
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| self.encode(text))
    }
}
