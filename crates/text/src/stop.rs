//! Stop strings over a stream of text: nothing of a match is ever emitted, and nothing is lost.

use crate::error::{Result, TextError};
use crate::stream::Piece;

/// Watches text deltas for stop strings.
///
/// The match that *ends* first wins, because generation ends there; of those that end together the
/// longest wins. So the result depends on the text alone and not on how it was cut into deltas.
/// Text that could be the beginning of a stop string is held back until it is decided.
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    matched: Option<usize>,
}

impl StopMatcher {
    /// A matcher for any number of stop strings; none means that everything passes.
    pub fn new(stops: &[String]) -> Result<Self> {
        if let Some(index) = stops.iter().position(String::is_empty) {
            return Err(TextError::EmptyStop { index: index + 1 });
        }
        Ok(Self { stops: stops.to_vec(), ..Self::default() })
    }

    /// Takes a delta and returns what is safe to show. `stopped` is set by the delta that
    /// completes a stop string and by every later one, whose text is dropped.
    pub fn push(&mut self, delta: &str) -> Piece {
        if self.matched.is_some() {
            return Piece { text: String::new(), stopped: true };
        }
        let seen = self.held.len();
        self.held.push_str(delta);
        if let Some((start, index)) = self.first_match(seen) {
            self.matched = Some(index);
            self.held.truncate(start);
            return Piece { text: std::mem::take(&mut self.held), stopped: true };
        }
        let rest = self.held.split_off(self.held.len() - self.undecided());
        Piece { text: std::mem::replace(&mut self.held, rest), stopped: false }
    }

    /// Ends the stream: text held back as a possible beginning was ordinary text after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The stop string that ended the stream.
    pub fn matched(&self) -> Option<&str> {
        self.matched.map(|index| self.stops[index].as_str())
    }

    /// Start and stop string of the match that ends first. Held text holds no match by itself, so
    /// each string is looked for only where it would end behind the `seen` bytes.
    fn first_match(&self, seen: usize) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let mut from = (seen + 1).saturating_sub(stop.len());
            while !self.held.is_char_boundary(from) {
                from -= 1;
            }
            let start = from + self.held[from..].find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        });
        found.min().map(|(_, start, index)| (start, index))
    }

    /// The length of the longest end of the held text that begins a stop string.
    fn undecided(&self) -> usize {
        let beginnings = self.stops.iter().filter_map(|stop| {
            let begins =
                |length: &usize| stop.is_char_boundary(*length) && self.held.ends_with(&stop[..*length]);
            (1..stop.len()).rev().find(begins)
        });
        beginnings.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        StopMatcher::new(&stops).unwrap()
    }

    /// Joined text and the index of the delta that completed a stop string.
    fn run(stops: &[&str], deltas: &[&str]) -> (String, Option<usize>) {
        let mut matcher = matcher(stops);
        let mut text = String::new();
        let mut stopped = None;
        for (index, delta) in deltas.iter().enumerate() {
            let piece = matcher.push(delta);
            text += &piece.text;
            if piece.stopped && stopped.is_none() {
                stopped = Some(index);
            }
        }
        (text + &matcher.finish(), stopped)
    }

    /// The rule in its plainest form: the first end at which any stop string ends.
    fn naive(stops: &[&str], text: &str) -> (String, bool) {
        for end in 0..=text.len() {
            let Some(before) = text.get(..end) else { continue };
            let longest = stops.iter().filter(|stop| before.ends_with(**stop)).map(|s| s.len());
            if let Some(length) = longest.max() {
                return (text[..end - length].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    #[test]
    fn h51_a_stop_string_over_several_tokens_leaks_nothing() {
        let fox = run(&["own fox"], &["The quick br", "own", " fox", " jumps"]);
        assert_eq!(fox, ("The quick br".to_owned(), Some(2)));
        let letters = run(&["DEFGHIJ"], &["DEF", "G", "HI", "J", "K"]);
        assert_eq!(letters, (String::new(), Some(3)));
    }

    #[test]
    fn h52_held_text_is_flushed_at_the_end() {
        let deltas = ["UNO", " DUE", " TRE"];
        assert_eq!(run(&["TRE\nAAAA"], &deltas), ("UNO DUE TRE".to_owned(), None));
        let mut matcher = matcher(&["TRE\nAAAA"]);
        let shown: String = deltas.iter().map(|delta| matcher.push(delta).text).collect();
        assert_eq!(shown, "UNO DUE ");
        assert_eq!((matcher.finish(), matcher.finish()), ("TRE".to_owned(), String::new()));
    }

    #[test]
    fn h53_text_before_the_stop_string_in_its_token_is_kept() {
        assert_eq!(run(&["\n"], &[" Mars", "?\n", "x"]), (" Mars?".to_owned(), Some(1)));
    }

    #[test]
    fn h50_stop_handling_cuts_no_character() {
        for text in ["✅", "à", "✅\n", "… \u{a0}"] {
            assert_eq!(run(&["\n\n", "\u{a0}\u{a0}", "✅✅"], &[text]), (text.to_owned(), None));
        }
        assert_eq!(run(&["✅"], &["à ✅"]), ("à ".to_owned(), Some(0)));
    }

    #[test]
    fn the_match_that_ends_first_wins_however_the_text_is_cut() {
        for deltas in [&["abcd"][..], &["a", "b", "c", "d"], &["ab", "cd"]] {
            assert_eq!(run(&["abcd", "bc"], deltas).0, "a");
        }
        assert_eq!(run(&["cd", "bcd"], &["abcd"]).0, "a");
    }

    #[test]
    fn the_matched_string_is_named() {
        let mut matcher = matcher(&["x", "END"]);
        assert_eq!(matcher.matched(), None);
        assert!(matcher.push("the END").stopped);
        assert_eq!(matcher.matched(), Some("END"));
        assert_eq!(matcher.push("more"), Piece { text: String::new(), stopped: true });
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        let error = StopMatcher::new(&["a".to_owned(), String::new()]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "stop string 2: expected at least one character, got none; leave it out"
        );
    }

    proptest! {
        #[test]
        fn equals_the_naive_search(
            deltas in proptest::collection::vec("[abé]{0,4}", 0..8),
            stops in proptest::collection::vec("[abé]{1,4}", 0..4),
        ) {
            let deltas: Vec<&str> = deltas.iter().map(String::as_str).collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let (text, stopped) = run(&stops, &deltas);
            let (right, found) = naive(&stops, &deltas.concat());
            prop_assert_eq!(text, right);
            prop_assert_eq!(stopped.is_some(), found);
            if let Some(index) = stopped {
                let earlier = deltas[..index].concat();
                prop_assert!(!naive(&stops, &earlier).1, "completed by an earlier delta");
            }
        }
    }
}
