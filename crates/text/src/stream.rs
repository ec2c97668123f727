//! Detokenizer and stop matcher in one: what a command line or a server feeds produced ids into.

use std::sync::Arc;

use crate::detokenize::Detokenizer;
use crate::error::Result;
use crate::stop::StopMatcher;
use crate::vocabulary::Vocabulary;

/// A part of an answer's text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Piece {
    /// Text that can be shown; often empty.
    pub text: String,
    /// Whether a stop string is complete. The first id that returns `true` is the one that
    /// completed it; generation ends there.
    pub stopped: bool,
}

/// Turns produced ids into text deltas that end before the first stop string.
#[derive(Debug, Clone)]
pub struct TextStream {
    detokenizer: Detokenizer,
    stops: StopMatcher,
}

impl TextStream {
    /// A stream at the beginning of an answer; fails on an empty stop string.
    pub fn new(vocabulary: Arc<Vocabulary>, stops: &[String]) -> Result<Self> {
        let stops = StopMatcher::new(stops)?;
        Ok(Self { detokenizer: Detokenizer::new(vocabulary), stops })
    }

    /// Takes one id, end tokens excluded, and returns the text that it settles.
    pub fn push(&mut self, id: u32) -> Piece {
        self.stops.push(&self.detokenizer.push(id))
    }

    /// Ends the answer and returns what was held back. Call it once, however the answer ended.
    pub fn finish(&mut self) -> String {
        let last = self.stops.push(&self.detokenizer.finish());
        last.text + &self.stops.finish()
    }

    /// The stop string that ended the answer.
    pub fn matched_stop(&self) -> Option<&str> {
        self.stops.matched()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Kind, Spelling};

    /// One token per text, in order, behind one control token with id 0.
    fn script(texts: &[&str], stops: &[&str]) -> TextStream {
        let control = std::iter::once((0, "<|end|>", Kind::Control));
        let texts = texts.iter().zip(1..).map(|(text, id)| (id, *text, Kind::Added));
        let vocabulary = Vocabulary::build(Spelling::ByteLevel, false, control.chain(texts));
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        TextStream::new(Arc::new(vocabulary), &stops).unwrap()
    }

    #[test]
    fn h51_the_completing_token_is_reported() {
        let mut stream = script(&["The quick br", "own", " fox", " jumps"], &["own fox"]);
        let pieces: Vec<Piece> = (1..=4).map(|id| stream.push(id)).collect();
        let stopped: Vec<bool> = pieces.iter().map(|piece| piece.stopped).collect();
        assert_eq!(stopped, [false, false, true, true]);
        let text: String = pieces.into_iter().map(|piece| piece.text).collect();
        assert_eq!(text + &stream.finish(), "The quick br");
        assert_eq!(stream.matched_stop(), Some("own fox"));
    }

    #[test]
    fn h52_nothing_is_lost_behind_an_end_token() {
        let mut stream = script(&["UNO", " DUE", " TRE"], &["TRE\nAAAA"]);
        let mut text: String = [1, 2, 3, 0].map(|id| stream.push(id).text).concat();
        text += &stream.finish();
        assert_eq!(text, "UNO DUE TRE");
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn h48_a_stop_string_may_end_inside_a_token_of_several_characters() {
        let mut stream = script(&["ok ", "✅?\n"], &["?"]);
        assert_eq!(stream.push(1), Piece { text: "ok ".to_owned(), stopped: false });
        assert_eq!(stream.push(2), Piece { text: "✅".to_owned(), stopped: true });
    }
}
