//! Token bytes to text, one token at a time: never half a character, never a wrong one.

use std::sync::Arc;

use crate::vocabulary::Vocabulary;

/// Bytes in, text out. However the bytes are cut into pushes, the joined output equals
/// [`String::from_utf8_lossy`] of all of them: one U+FFFD per maximal invalid part (Unicode
/// standard, section 3.9, "U+FFFD substitution of maximal subparts").
#[derive(Debug, Default, Clone)]
pub struct Utf8Stream {
    /// The beginning of a character whose end has not arrived; at most three bytes between calls.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// A stream that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes and returns the text that they complete.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let complete = self.pending.len() - incomplete_tail(&self.pending);
        let text = String::from_utf8_lossy(&self.pending[..complete]).into_owned();
        self.pending.drain(..complete);
        text
    }

    /// Ends the stream; an unfinished character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

/// Ids in, text out. Control tokens and ids without a token produce nothing and leave an
/// unfinished character waiting.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    vocabulary: Arc<Vocabulary>,
    stream: Utf8Stream,
    strip_space: bool,
}

impl Detokenizer {
    /// A detokenizer at the beginning of an answer.
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        let strip_space = vocabulary.strips_leading_space();
        Self { vocabulary, stream: Utf8Stream::new(), strip_space }
    }

    /// Takes one id and returns the text that it completes.
    pub fn push(&mut self, id: u32) -> String {
        if self.vocabulary.is_special(id) {
            return String::new();
        }
        let mut bytes = self.vocabulary.token_bytes(id).unwrap_or_default();
        if self.strip_space && !bytes.is_empty() {
            self.strip_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.stream.push(bytes)
    }

    /// Ends the answer; an unfinished character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        self.stream.finish()
    }
}

/// The length of an unfinished but so far valid character at the end.
fn incomplete_tail(bytes: &[u8]) -> usize {
    // Only the last character can be unfinished, and its first byte is among the last three.
    let start = bytes.len().saturating_sub(3);
    (start..bytes.len())
        .find(|&at| {
            bytes[at] >= 0xc0
                && std::str::from_utf8(&bytes[at..])
                    .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .map_or(0, |at| bytes.len() - at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::vocabulary::{Kind, Spelling};

    fn stream_in_chunks(bytes: &[u8], size: usize) -> Vec<String> {
        let mut stream = Utf8Stream::new();
        let mut deltas: Vec<String> = bytes.chunks(size).map(|part| stream.push(part)).collect();
        deltas.push(stream.finish());
        deltas
    }

    #[test]
    fn h48_a_character_over_several_tokens_arrives_whole() {
        let text = "a😀こん✅z";
        for size in 1..=3 {
            let deltas = stream_in_chunks(text.as_bytes(), size);
            assert_eq!(deltas.concat(), text, "{size} bytes per token");
            assert!(deltas.iter().all(|delta| !delta.contains('\u{fffd}')), "{deltas:?}");
        }
    }

    #[test]
    fn h49_invalid_bytes_become_replacement_characters() {
        let cases: [(&[u8], &str); 4] = [
            (&[0xed, 0xa0, 0x80], "\u{fffd}\u{fffd}\u{fffd}"),
            (&[0xf0, 0x80, 0x80, 0x41], "\u{fffd}\u{fffd}\u{fffd}A"),
            (&[0xe2, 0x80, 0x41], "\u{fffd}A"),
            (&[0xe1, 0x80, 0xe2, 0xf0, 0x91, 0x92, 0xf1, 0xbf, 0x41], "\u{fffd}\u{fffd}\u{fffd}\u{fffd}A"),
        ];
        for (bytes, right) in cases {
            assert_eq!(stream_in_chunks(bytes, 1).concat(), right, "{bytes:x?} by byte");
            assert_eq!(stream_in_chunks(bytes, bytes.len()).concat(), right, "{bytes:x?} at once");
        }
    }

    #[test]
    fn h50_last_bytes_that_look_like_spaces_stay() {
        for text in ["done ✅", "voilà", "✅\n", "… \u{a0}"] {
            assert_eq!(stream_in_chunks(text.as_bytes(), 1).concat(), text);
        }
    }

    #[test]
    fn an_unfinished_character_is_flushed_once() {
        let mut stream = Utf8Stream::new();
        assert_eq!(stream.push(&[b'a', 0xf0, 0x9f, 0x98]), "a");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn control_tokens_and_unknown_ids_are_silent() {
        let tokens = [(0, "<|end|>", Kind::Control), (1, "ðŁ", Kind::Learned), (2, "ĺĢ", Kind::Learned)];
        let vocabulary = Arc::new(Vocabulary::build(Spelling::ByteLevel, false, tokens));
        let mut text = Detokenizer::new(vocabulary);
        assert_eq!([1, 0, 77, 2].map(|id| text.push(id)).concat(), "😀");
        assert_eq!(text.finish(), "");
    }

    #[test]
    fn the_dummy_space_is_removed_once() {
        let tokens = [(0, "▁a", Kind::Learned), (1, "▁", Kind::Learned)];
        let spelling = Spelling::Pieces { byte_fallback: true };
        let vocabulary = Arc::new(Vocabulary::build(spelling, true, tokens));
        let decode = |ids: &[u32]| {
            let mut text = Detokenizer::new(Arc::clone(&vocabulary));
            ids.iter().map(|id| text.push(*id)).collect::<String>()
        };
        assert_eq!(decode(&[0, 0]), "a a");
        assert_eq!(decode(&[1, 0, 0]), " a a");
    }

    proptest! {
        #[test]
        fn any_split_equals_the_lossy_conversion(
            bytes in proptest::collection::vec(
                prop_oneof![any::<u8>(), Just(0xe2), Just(0x80), Just(0xf0), Just(0x9f)], 0..40),
            cuts in proptest::collection::vec(0usize..40, 0..10),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut stream = Utf8Stream::new();
            let mut text = String::new();
            for pair in cuts.windows(2) {
                text += &stream.push(&bytes[pair[0]..pair[1]]);
            }
            text += &stream.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
