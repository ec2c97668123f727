//! Control tokens come only from the template.
//!
//! A message may *spell* a control token. Before rendering, every such spelling inside a message
//! gets a mark, a private-use character that occurs in none of the inputs, behind its first
//! character; so does a message's end that begins a control token and a beginning that ends one.
//! The template then places the text as it likes: it may trim, join or quote it, and the marks
//! travel along. After rendering the marks are taken out and their places are kept; the encoder
//! accepts no control token across a mark.
//!
//! Messages that spell nothing carry no marks, so an ordinary chat is rendered as it is, and the
//! text around the marks is never encoded in pieces: ids equal those of the reference encoder.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::{Map, Value};

/// A rendered prompt and the places where no control token may stand.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rendered {
    text: String,
    /// Ascending byte offsets into `text`.
    marks: Vec<usize>,
}

impl Rendered {
    /// The prompt's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether some message spelled a control token (or a part of one at its edge).
    pub fn is_marked(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Takes the marks out of a template's output.
    pub(crate) fn from_marked(marked: &str, mark: Option<char>) -> Self {
        let mut rendered = Self::default();
        for character in marked.chars() {
            if Some(character) == mark {
                rendered.marks.push(rendered.text.len());
            } else {
                rendered.text.push(character);
            }
        }
        rendered
    }

    /// Whether a control token may stand at the range. A spelling of one character has no inside;
    /// it is fenced by a mark on each side.
    pub(crate) fn allows(&self, range: &Range<usize>) -> bool {
        let from = self.marks.partition_point(|mark| *mark < range.start);
        let near = self.marks[from..].iter().take_while(|mark| **mark <= range.end);
        let inside = near.clone().any(|mark| *mark > range.start && *mark < range.end);
        let one_character = self.text[range.clone()].chars().nth(1).is_none();
        let fenced =
            near.clone().any(|mark| *mark == range.start) && near.clone().any(|mark| *mark == range.end);
        !(inside || one_character && fenced)
    }
}

/// A prompt written by hand, whose control tokens are all meant.
impl From<String> for Rendered {
    fn from(text: String) -> Self {
        Self { text, marks: Vec::new() }
    }
}

/// Marks the spellings of control tokens in message values.
#[derive(Debug)]
pub(crate) struct Marker<'a> {
    spellings: &'a [String],
    mark: char,
}

impl<'a> Marker<'a> {
    /// A marker whose character occurs in none of the texts; `None` in the unheard-of case that
    /// they use up all 6,400 private-use characters.
    pub(crate) fn new(spellings: &'a [String], texts: &[&str]) -> Option<Self> {
        let free = |mark: &char| texts.iter().all(|text| !text.contains(*mark));
        let mark = ('\u{e000}'..='\u{f8ff}').rev().find(free)?;
        Some(Self { spellings, mark })
    }

    /// The mark's character.
    pub(crate) fn mark(&self) -> char {
        self.mark
    }

    /// The value with every string in it marked.
    pub(crate) fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text).into_owned()),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => Value::Object(self.fields(fields)),
            other => other.clone(),
        }
    }

    /// The object with every string in it marked, keys included.
    pub(crate) fn fields(&self, fields: &Map<String, Value>) -> Map<String, Value> {
        let marked = |(key, value): (&String, &Value)| (self.text(key).into_owned(), self.value(value));
        fields.iter().map(marked).collect()
    }

    fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let places = places(self.spellings, text);
        if places.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut marked = String::with_capacity(text.len() + 3 * places.len());
        let mut done = 0;
        for place in places {
            marked.push_str(&text[done..place]);
            marked.push(self.mark);
            done = place;
        }
        Cow::Owned(marked + &text[done..])
    }
}

/// Where a text needs marks, ascending.
fn places(spellings: &[String], text: &str) -> Vec<usize> {
    let mut places = Vec::new();
    for spelling in spellings {
        let Some(first) = spelling.chars().next().map(char::len_utf8) else { continue };
        // Occurrences may overlap, so the search goes on one character later.
        let mut from = 0;
        while let Some(found) = text[from..].find(spelling.as_str()) {
            let start = from + found;
            places.push(start + first);
            if first == spelling.len() {
                places.push(start);
            }
            from = start + first;
        }
        let cuts = (first..spelling.len()).filter(|cut| spelling.is_char_boundary(*cut));
        for (beginning, end) in cuts.map(|cut| spelling.split_at(cut)) {
            if text.ends_with(beginning) {
                places.push(text.len() - beginning.len() + first);
            }
            if text.starts_with(end) {
                places.push(0);
            }
        }
    }
    places.sort_unstable();
    places.dedup();
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spellings(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn only_spellings_and_their_halves_at_the_edges_are_marked() {
        let control = spellings(&["<|im_end|>", "</s>"]);
        assert_eq!(places(&control, "an ordinary text, 3 < 4 > 2"), [] as [usize; 0]);
        assert_eq!(places(&control, "a<|im_end|>b</s>"), [2, 13]);
        assert_eq!(places(&control, "end|> of the <|im"), [0, 14]);
        assert_eq!(places(&control, "3 <"), [3]);
        assert_eq!(places(&control, "> quote"), [0]);
        assert_eq!(places(&control, ""), [] as [usize; 0]);
    }

    #[test]
    fn overlapping_spellings_are_all_marked() {
        assert_eq!(places(&spellings(&["aXa"]), "-aXaXa-"), [2, 4]);
        assert_eq!(places(&spellings(&["§"]), "a§"), [1, 3]);
    }

    #[test]
    fn no_control_token_is_allowed_across_a_mark() {
        let control = spellings(&["<e>"]);
        let marker = Marker::new(&control, &["\u{f8ff}"]).unwrap();
        assert_eq!(marker.mark(), '\u{f8fe}');
        let content = marker.text("say <e>");
        let rendered = Rendered::from_marked(&format!("{content}<e>"), Some(marker.mark()));
        assert_eq!(rendered.text(), "say <e><e>");
        assert!(!rendered.allows(&(4..7)));
        assert!(rendered.allows(&(7..10)));
    }

    #[test]
    fn a_token_joined_from_two_messages_is_not_allowed() {
        let control = spellings(&["<|e|>"]);
        let marker = Marker::new(&control, &[]).unwrap();
        let joined = format!("{}{}", marker.text("a<"), marker.text("|e|>b"));
        let rendered = Rendered::from_marked(&joined, Some(marker.mark()));
        assert_eq!(rendered.text(), "a<|e|>b");
        assert!(!rendered.allows(&(1..6)));
    }

    #[test]
    fn a_token_of_one_character_is_fenced() {
        let control = spellings(&["§"]);
        let marker = Marker::new(&control, &[]).unwrap();
        let text = format!("§{}§", marker.text("a§b"));
        let rendered = Rendered::from_marked(&text, Some(marker.mark()));
        assert_eq!(rendered.text(), "§a§b§");
        let allowed = [0..2, 3..5, 6..8].map(|range| rendered.allows(&range));
        assert_eq!(allowed, [true, false, true]);
    }

    #[test]
    fn nested_values_and_keys_are_marked() {
        let control = spellings(&["<e>"]);
        let marker = Marker::new(&control, &[]).unwrap();
        let value = serde_json::json!({"a<e>": ["<e>", 1, null, {"k": "v"}]});
        let marked = marker.value(&value).to_string();
        assert_eq!(marked.matches(marker.mark()).count(), 2, "{marked}");
    }
}
