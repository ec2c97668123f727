//! The bytes behind every token id. Encoding is elsewhere; this is all that decoding needs.

use std::collections::HashMap;
use std::sync::LazyLock;

/// How a token's spelling in the file stands for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// Every character stands for one byte (GPT-2).
    ByteLevel,
    /// Text with `▁` for a space; `<0xHH>` stands for a byte when `byte_fallback` is set
    /// (SentencePiece).
    Pieces {
        /// Whether `<0xHH>` is a byte.
        byte_fallback: bool,
    },
}

/// What a token is, next to its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A learned piece of text, spelled as [`Spelling`] says.
    Learned,
    /// A piece of text added by hand, spelled as it reads.
    Added,
    /// A control token. It has a spelling but produces no text.
    Control,
}

/// The bytes of every token, and which tokens are control tokens.
#[derive(Debug, Default)]
pub struct Vocabulary {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    strips_leading_space: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Span {
    start: usize,
    end: usize,
    assigned: bool,
    control: bool,
}

impl Vocabulary {
    /// Collects tokens in any order; a later token of the same id wins.
    pub(crate) fn build<'a>(
        spelling: Spelling,
        strips_leading_space: bool,
        tokens: impl IntoIterator<Item = (u32, &'a str, Kind)>,
    ) -> Self {
        let mut built = Self { strips_leading_space, ..Self::default() };
        for (id, text, kind) in tokens {
            let start = built.bytes.len();
            match kind {
                Kind::Learned => spelled_bytes(spelling, text, &mut built.bytes),
                Kind::Added | Kind::Control => built.bytes.extend_from_slice(text.as_bytes()),
            }
            let index = id as usize;
            if built.spans.len() <= index {
                built.spans.resize(index + 1, Span::default());
            }
            let end = built.bytes.len();
            built.spans[index] = Span { start, end, assigned: true, control: kind == Kind::Control };
        }
        built
    }

    /// The number of ids: one more than the highest id that has a token.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The bytes of a token; `None` for an id without one. A control token has the bytes of its
    /// spelling, which are never part of an answer's text.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let span = self.spans.get(id as usize).filter(|span| span.assigned)?;
        Some(&self.bytes[span.start..span.end])
    }

    /// Whether the token is a control token.
    pub fn is_special(&self, id: u32) -> bool {
        self.spans.get(id as usize).is_some_and(|span| span.control)
    }

    /// Whether the first space of a decoded text is the tokenizer's own and belongs to no answer.
    pub(crate) fn strips_leading_space(&self) -> bool {
        self.strips_leading_space
    }
}

fn spelled_bytes(spelling: Spelling, text: &str, out: &mut Vec<u8>) {
    match spelling {
        Spelling::ByteLevel => {
            for character in text.chars() {
                match BYTE_OF.get(&character) {
                    Some(byte) => out.push(*byte),
                    None => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
        }
        Spelling::Pieces { byte_fallback } => match byte_spelling(text).filter(|_| byte_fallback) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(text.replace('▁', " ").as_bytes()),
        },
    }
}

/// The byte that `<0xHH>` stands for.
fn byte_spelling(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || digits.starts_with('+') {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// The character that stands for a byte in byte-level vocabularies: itself when it is printable
/// Latin-1, else the next free one from U+0100 on (openai/gpt-2 `src/encoder.py`).
pub(crate) fn byte_characters() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        let byte = byte as u32;
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if printable { byte } else { next };
        next += u32::from(!printable);
        char::from_u32(code).expect("both ranges lie below the surrogates")
    })
}

static BYTE_OF: LazyLock<HashMap<char, u8>> =
    LazyLock::new(|| byte_characters().into_iter().zip(0..=u8::MAX).collect());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_level_characters_are_the_published_ones() {
        let table = byte_characters();
        assert_eq!(table[b' ' as usize], 'Ġ');
        assert_eq!(table[b'\n' as usize], 'Ċ');
        assert_eq!(table[b'a' as usize], 'a');
        assert_eq!(table[0xad], 'Ń');
        let distinct: std::collections::HashSet<char> = table.into_iter().collect();
        assert_eq!(distinct.len(), 256);
    }

    #[test]
    fn each_spelling_gives_its_bytes() {
        let level = Vocabulary::build(
            Spelling::ByteLevel,
            false,
            [(0, "Ġhi", Kind::Learned), (1, "Ġé<x>", Kind::Added), (3, "<|e|>", Kind::Control)],
        );
        assert_eq!(level.token_bytes(0), Some(b" hi".as_slice()));
        assert_eq!(level.token_bytes(1), Some("Ġé<x>".as_bytes()));
        assert_eq!(level.token_bytes(2), None);
        assert_eq!(level.token_bytes(4), None);
        assert!(level.is_special(3) && !level.is_special(1) && !level.is_special(2));
        assert_eq!(level.len(), 4);

        let pieces = |byte_fallback| {
            let tokens = [(0, "▁a▁", Kind::Learned), (1, "<0xC4>", Kind::Learned)];
            Vocabulary::build(Spelling::Pieces { byte_fallback }, false, tokens)
        };
        assert_eq!(pieces(true).token_bytes(0), Some(b" a ".as_slice()));
        assert_eq!(pieces(true).token_bytes(1), Some([0xc4].as_slice()));
        assert_eq!(pieces(false).token_bytes(1), Some(b"<0xC4>".as_slice()));
    }

    #[test]
    fn only_two_hexadecimal_digits_spell_a_byte() {
        assert_eq!(byte_spelling("<0x0A>"), Some(10));
        for text in ["<0x0>", "<0x+1>", "<0x100>", "0x0A", "<0xZZ>", "<0xé>"] {
            assert_eq!(byte_spelling(text), None, "{text}");
        }
    }
}
