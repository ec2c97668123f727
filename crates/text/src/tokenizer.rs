//! The tokenizer: text to ids for raw and chat prompts, and what ids mean.

use std::sync::Arc;

use tokenizers::tokenizer::normalizer::Range as SliceRange;
use tokenizers::{Model, NormalizedString, Normalizer, OffsetType, PreTokenizedString, PreTokenizer, Token};

use crate::added::{Cutter, Entry};
use crate::detokenize::Detokenizer;
use crate::error::{Result, TextError};
use crate::special::{END_SPELLINGS, Ends, end_token_union};
use crate::spoof::Rendered;
use crate::stream::TextStream;
use crate::template::{ChatInput, ChatTemplate};
use crate::vocabulary::Vocabulary;

/// Everything that a source of tokenizers delivers.
pub(crate) struct Parts {
    pub(crate) file: String,
    pub(crate) inner: tokenizers::Tokenizer,
    pub(crate) vocabulary: Vocabulary,
    pub(crate) ends: Ends,
    /// Where the chat template came from, and its source.
    pub(crate) template: Option<(String, String)>,
}

/// Text to ids and back, for one model.
pub struct Tokenizer {
    parts: Parts,
    vocabulary: Arc<Vocabulary>,
    /// Added tokens that are looked for in the text as it is.
    raw: Cutter,
    /// Added tokens that are looked for in the normalized text.
    normalized: Cutter,
    /// Ids and spellings of all control tokens.
    control: Vec<(u32, String)>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = out.debug_struct("Tokenizer");
        out.field("file", &self.parts.file).field("vocabulary", &self.vocabulary.len());
        out.field("ends", &self.parts.ends).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Encodes a raw prompt. Control tokens that it spells are control tokens; a start token is
    /// added only where the tokenizer asks for one.
    pub fn encode_raw(&self, text: &str) -> Result<Vec<u32>> {
        self.encode(text, |_| true)
    }

    /// Encodes a rendered chat. Control tokens come only from the template (see [`Rendered`]), and
    /// the start token is there once where the template or the tokenizer asks for one.
    pub fn encode_chat(&self, rendered: &Rendered) -> Result<Vec<u32>> {
        self.encode(rendered.text(), |range| rendered.allows(range))
    }

    /// Encodes text as it stands: without a start token, and what spells a control token is plain text.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_ids(text, |_| false)
    }

    /// Renders a chat with the model's own template and encodes it. A server keeps the parsed
    /// template instead (see [`Tokenizer::chat_template`]).
    pub fn encode_messages(&self, input: &ChatInput<'_>) -> Result<Vec<u32>> {
        self.encode_chat(&self.chat_template()?.render(input)?)
    }

    /// The text of ids. Control tokens have none; invalid bytes become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut detokenizer = self.detokenizer();
        let text: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
        text + &detokenizer.finish()
    }

    /// A detokenizer at the beginning of an answer.
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.vocabulary))
    }

    /// A text stream at the beginning of an answer; fails on an empty stop string.
    pub fn text_stream(&self, stops: &[String]) -> Result<TextStream> {
        TextStream::new(Arc::clone(&self.vocabulary), stops)
    }

    /// The bytes behind the ids, to be shared with a text stream on another thread.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    /// The number of ids: one more than the highest id that has a token. A model may have more
    /// rows; ids without a token have no text.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The bytes of a token (see [`Vocabulary::token_bytes`]).
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.vocabulary.token_bytes(id)
    }

    /// Whether the token is a control token.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocabulary.is_special(id)
    }

    /// The id of a token by its spelling in the file.
    pub fn token_id(&self, spelling: &str) -> Option<u32> {
        self.parts.inner.token_to_id(spelling)
    }

    /// The start token, if there is one.
    pub fn bos(&self) -> Option<u32> {
        self.parts.ends.bos
    }

    /// The tokenizer's own end token, if there is one.
    pub fn eos(&self) -> Option<u32> {
        self.parts.ends.eos
    }

    /// Whether encoding puts the start token in front.
    pub fn adds_bos(&self) -> bool {
        self.parts.ends.add_bos && self.bos().is_some()
    }

    /// Every id that ends an answer as far as the tokenizer's files know: its end token, the end
    /// of a turn, the generation configuration beside it, and control tokens spelled like one of
    /// [`END_SPELLINGS`]. Ascending.
    pub fn end_tokens(&self) -> Vec<u32> {
        self.end_tokens_with(&[])
    }

    /// [`Tokenizer::end_tokens`] and the ids of the model's own configuration.
    pub fn end_tokens_with(&self, config: &[u32]) -> Vec<u32> {
        let ends = &self.parts.ends;
        let eos: Vec<u32> = ends.eos.into_iter().collect();
        let spelled = self.control.iter().filter(|(_, text)| END_SPELLINGS.contains(&text.as_str()));
        let spelled: Vec<u32> = spelled.map(|(id, _)| *id).collect();
        end_token_union(&[config, &eos, &ends.more, &spelled])
    }

    /// Whether the model came with a chat template, readable or not.
    pub fn has_chat_template(&self) -> bool {
        self.parts.template.is_some()
    }

    /// Parses the model's chat template.
    pub fn chat_template(&self) -> Result<ChatTemplate> {
        let Some((file, source)) = &self.parts.template else {
            return Err(TextError::NoTemplate { file: self.parts.file.clone() });
        };
        Ok(self.adopt_template(ChatTemplate::new(file, source)?))
    }

    /// Gives another template this model's start, end and control tokens.
    pub fn adopt_template(&self, template: ChatTemplate) -> ChatTemplate {
        let spelling = |id: Option<u32>| id.and_then(|id| self.parts.inner.id_to_token(id));
        let bos = spelling(self.bos()).unwrap_or_default();
        let eos = spelling(self.eos()).unwrap_or_default();
        let control = self.control.iter().map(|(_, text)| text.clone()).collect();
        template.with_tokens(&bos, &eos, control)
    }

    /// Joins the parts that a file delivered.
    pub(crate) fn assemble(mut parts: Parts) -> Result<Self> {
        let vocabulary = Arc::new(std::mem::take(&mut parts.vocabulary));
        let added = parts.inner.get_added_tokens_decoder();
        let entries: Vec<Entry> = added
            .into_iter()
            .map(|(id, token)| Entry { id, token, control: vocabulary.is_special(id) })
            .collect();
        let control = entries.iter().filter(|entry| entry.control);
        let mut control: Vec<(u32, String)> =
            control.map(|entry| (entry.id, entry.token.content.clone())).collect();
        control.sort_unstable();
        // A control token reads as it is written, whatever the file says about normalizing it.
        let (raw, normalized): (Vec<Entry>, Vec<Entry>) =
            entries.into_iter().partition(|entry| entry.control || !entry.token.normalized);
        let raw = Cutter::new(raw.into_iter().map(|entry| (entry.token.content.clone(), entry)));
        let normalized = normalized.into_iter().map(|entry| {
            let mut spelling = NormalizedString::from(entry.token.content.as_str());
            normalize(&parts.inner, &mut spelling)?;
            Ok((spelling.get().to_owned(), entry))
        });
        let normalized = Cutter::new(normalized.collect::<Result<Vec<_>>>()?);
        Ok(Self { parts, vocabulary, raw, normalized, control })
    }

    /// Ids with the start token where the tokenizer asks for one.
    fn encode(&self, text: &str, allowed: impl Fn(&std::ops::Range<usize>) -> bool) -> Result<Vec<u32>> {
        Ok(self.parts.ends.with_bos(self.encode_ids(text, allowed)?))
    }

    /// Added tokens, normalizer, splitter and merges, in the order of huggingface/tokenizers
    /// `src/tokenizer/mod.rs`; the whole text stays one sequence throughout.
    fn encode_ids(&self, text: &str, allowed: impl Fn(&std::ops::Range<usize>) -> bool) -> Result<Vec<u32>> {
        let inner = &self.parts.inner;
        let mut parts = PreTokenizedString::from(text);
        let failed = |error: tokenizers::Error| TextError::Encode { reason: error.to_string() };
        parts.split(|_, part| cut(&self.raw, part, &allowed)).map_err(failed)?;
        parts
            .split(|_, mut part| {
                if let Some(normalizer) = inner.get_normalizer() {
                    normalizer.normalize(&mut part)?;
                }
                cut(&self.normalized, part, |_| true)
            })
            .map_err(failed)?;
        if let Some(splitter) = inner.get_pre_tokenizer() {
            splitter.pre_tokenize(&mut parts).map_err(failed)?;
        }
        parts.tokenize(|part| merge(inner, part.get())).map_err(failed)?;
        let encoding = parts.into_encoding(None, 0, OffsetType::None).map_err(failed)?;
        Ok(encoding.get_ids().to_vec())
    }
}

type Part = (NormalizedString, Option<Vec<Token>>);

fn cut(
    cutter: &Cutter,
    part: NormalizedString,
    allowed: impl Fn(&std::ops::Range<usize>) -> bool,
) -> tokenizers::Result<Vec<Part>> {
    let cuts = cutter.cut(part.get(), allowed);
    let slice = |cut: crate::added::Cut| {
        let slice = part.slice(SliceRange::Normalized(cut.range)).ok_or("cut outside the text")?;
        let token = cut.id.map(|id| vec![Token::new(id, slice.get().to_owned(), (0, slice.len()))]);
        Ok((slice, token))
    };
    cuts.into_iter().map(slice).collect()
}

/// The tokens of one part. Merging drops characters for which the vocabulary has neither a token nor
/// a fallback; tokens that do not reach the part's end show it.
fn merge(inner: &tokenizers::Tokenizer, part: &str) -> tokenizers::Result<Vec<Token>> {
    let model = inner.get_model();
    let tokens = model.tokenize(part)?;
    if tokens.last().map_or(0, |token| token.offsets.1) == part.len() {
        return Ok(tokens);
    }
    let mut buffer = [0; 4];
    let lost = part.chars().find(|character| {
        model.tokenize(character.encode_utf8(&mut buffer)).is_ok_and(|tokens| tokens.is_empty())
    });
    Err(format!("the vocabulary has no token for {:?}", lost.unwrap_or_default()).into())
}

fn normalize(inner: &tokenizers::Tokenizer, text: &mut NormalizedString) -> Result<()> {
    let Some(normalizer) = inner.get_normalizer() else { return Ok(()) };
    normalizer.normalize(text).map_err(|error| TextError::Encode { reason: error.to_string() })
}
