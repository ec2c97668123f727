//! Added tokens: spellings that are cut out of a text before the learned vocabulary sees it.
//!
//! The order follows huggingface/tokenizers `src/tokenizer/added_vocabulary.rs`: leftmost longest
//! match, raw spellings before normalized ones, white space swallowed where a token says so. The
//! one addition is that a control token can be forbidden at a place (see [`crate::Rendered`]),
//! which is why the library's own cutting is not used.

use std::ops::Range;

use tokenizers::AddedToken;

/// An added token and its id.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) id: u32,
    pub(crate) token: AddedToken,
    pub(crate) control: bool,
}

/// A part of a text: an added token, or text for the learned vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) range: Range<usize>,
    pub(crate) id: Option<u32>,
}

/// Finds added tokens in a text.
#[derive(Debug, Default)]
pub(crate) struct Cutter {
    /// Longest spelling first among those that share a first byte.
    by_first_byte: Vec<Vec<(String, Entry)>>,
}

impl Cutter {
    /// A cutter for tokens with the spellings to look for.
    pub(crate) fn new(entries: impl IntoIterator<Item = (String, Entry)>) -> Self {
        let mut by_first_byte = vec![Vec::new(); 256];
        for (spelling, entry) in entries {
            if let Some(first) = spelling.bytes().next() {
                by_first_byte[usize::from(first)].push((spelling, entry));
            }
        }
        for group in &mut by_first_byte {
            group.sort_by_key(|(spelling, _)| std::cmp::Reverse(spelling.len()));
        }
        Self { by_first_byte }
    }

    /// Cuts a text into parts that cover it. `allowed` says whether a control token may stand at a
    /// range; a forbidden one is left as text.
    pub(crate) fn cut(&self, text: &str, allowed: impl Fn(&Range<usize>) -> bool) -> Vec<Cut> {
        let mut cuts = Vec::new();
        let mut done = 0;
        let mut at = 0;
        while at < text.len() {
            let Some((range, entry)) = self.match_at(text, at, &allowed) else {
                at += 1;
                continue;
            };
            let range = with_white_space(text, range, &entry.token, done);
            if done < range.start {
                cuts.push(Cut { range: done..range.start, id: None });
            }
            done = range.end;
            at = range.end;
            cuts.push(Cut { range, id: Some(entry.id) });
        }
        if done < text.len() {
            cuts.push(Cut { range: done..text.len(), id: None });
        }
        cuts
    }

    fn match_at(
        &self,
        text: &str,
        at: usize,
        allowed: impl Fn(&Range<usize>) -> bool,
    ) -> Option<(Range<usize>, &Entry)> {
        let bytes = text.as_bytes();
        self.by_first_byte.get(usize::from(bytes[at]))?.iter().find_map(|(spelling, entry)| {
            let range = at..at + spelling.len();
            let fits = bytes[at..].starts_with(spelling.as_bytes())
                && (!entry.control || allowed(&range))
                && (!entry.token.single_word || is_single_word(text, &range));
            fits.then_some((range, entry))
        })
    }
}

fn with_white_space(text: &str, range: Range<usize>, token: &AddedToken, done: usize) -> Range<usize> {
    let before = &text[done..range.start];
    let after = &text[range.end..];
    let start = if token.lstrip { done + before.trim_end().len() } else { range.start };
    let end = if token.rstrip { text.len() - after.trim_start().len() } else { range.end };
    start..end
}

fn is_single_word(text: &str, range: &Range<usize>) -> bool {
    let word = |character: char| character.is_alphanumeric() || character == '_';
    let before = text[..range.start].chars().next_back();
    let after = text[range.end..].chars().next();
    !before.is_some_and(word) && !after.is_some_and(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u32, text: &str, control: bool) -> (String, Entry) {
        let token = AddedToken::from(text, control);
        (text.to_owned(), Entry { id, token, control })
    }

    fn shown(text: &str, cuts: &[Cut]) -> Vec<(String, Option<u32>)> {
        cuts.iter().map(|cut| (text[cut.range.clone()].to_owned(), cut.id)).collect()
    }

    #[test]
    fn the_longest_of_several_tokens_is_cut_and_the_rest_covers_the_text() {
        let cutter = Cutter::new([entry(0, "<a", false), entry(1, "<a>", true)]);
        let text = "é<a><ab";
        let cuts = cutter.cut(text, |_| true);
        let right = [("é", None), ("<a>", Some(1)), ("<a", Some(0)), ("b", None)];
        assert_eq!(shown(text, &cuts), right.map(|(part, id)| (part.to_owned(), id)));
        assert!(cutter.cut("", |_| true).is_empty());
    }

    #[test]
    fn a_forbidden_control_token_gives_way_to_what_else_stands_there() {
        let cutter = Cutter::new([entry(0, "<a", false), entry(1, "<a>", true)]);
        let cuts = cutter.cut("<a><a>", |range| range.start > 0);
        let ids: Vec<Option<u32>> = cuts.iter().map(|cut| cut.id).collect();
        assert_eq!(ids, [Some(0), None, Some(1)]);
    }

    #[test]
    fn white_space_and_word_rules_are_followed() {
        let strip = AddedToken::from("[M]", false).lstrip(true).rstrip(true);
        let word = AddedToken::from("cat", false).single_word(true);
        let cutter = Cutter::new([
            ("[M]".to_owned(), Entry { id: 0, token: strip, control: false }),
            ("cat".to_owned(), Entry { id: 1, token: word, control: false }),
        ]);
        let text = "a  [M] \n cat cats [M]";
        let right =
            [("a", None), ("  [M] \n ", Some(0)), ("cat", Some(1)), (" cats", None), (" [M]", Some(0))];
        let cuts = cutter.cut(text, |_| true);
        assert_eq!(shown(text, &cuts), right.map(|(part, id)| (part.to_owned(), id)));
    }
}
