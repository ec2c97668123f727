//! Whether two models read the same tokens. Plain data: nothing here knows tokenizers or files.

use std::fmt::Display;

/// The vocabulary of one model.
#[derive(Debug)]
pub struct TokenTable<'a, T> {
    /// The string or bytes of every id; `None` for an id without a token.
    pub tokens: &'a [Option<T>],
    /// Ids that end a text, in any order.
    pub ends: &'a [u32],
}

/// The proof that a target and a draft model share one vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedVocabulary {
    tokens: usize,
}

impl SharedVocabulary {
    /// The number of ids, one more than the highest that has a token.
    pub fn tokens(self) -> usize {
        self.tokens
    }
}

/// Two models that do not read the same tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VocabularyError {
    /// One id, two tokens.
    #[error(
        "draft model's token {id}: expected {expected}, got {got}; use a draft model with the target's tokenizer"
    )]
    Token {
        /// The first id that differs.
        id: u32,
        /// The target's token.
        expected: String,
        /// The draft model's.
        got: String,
    },
    /// An id that ends a text for one of the two alone.
    #[error(
        "draft model's end tokens: expected {expected:?}, got {got:?}, which differ in {id} ({token}); use a draft model with the target's end tokens"
    )]
    End {
        /// The first id that differs.
        id: u32,
        /// Its token.
        token: String,
        /// The target's end tokens.
        expected: Vec<u32>,
        /// The draft model's.
        got: Vec<u32>,
    },
    /// A model without logits for some of its tokens.
    #[error(
        "{model} model's logits: expected at least {expected} columns, one for each token, got {got}; check its config.json"
    )]
    Columns {
        /// `target` or `draft`.
        model: &'static str,
        /// The number of tokens.
        expected: usize,
        /// The model's columns.
        got: usize,
    },
}

/// Compares ids, tokens and end tokens.
///
/// Ids past the last token do not count: models pad their logits, and two sizes of one family often pad
/// them differently.
pub fn check_vocabulary<T: AsRef<[u8]>, U: AsRef<[u8]>>(
    target: &TokenTable<'_, T>,
    draft: &TokenTable<'_, U>,
) -> Result<SharedVocabulary, VocabularyError> {
    let (tokens, others) = (target.tokens.len(), draft.tokens.len());
    for id in 0..tokens.max(others) {
        let (want, got) = (bytes(target.tokens, id), bytes(draft.tokens, id));
        if want != got {
            let (expected, got) = (quoted(want), quoted(got));
            return Err(VocabularyError::Token { id: id as u32, expected, got });
        }
    }
    let (expected, got) = (sorted(target.ends), sorted(draft.ends));
    let lone = |&id: &u32| expected.contains(&id) != got.contains(&id);
    if let Some(id) = expected.iter().chain(&got).copied().filter(lone).min() {
        let token = quoted(bytes(target.tokens, id as usize));
        return Err(VocabularyError::End { id, token, expected, got });
    }
    let used = (0..tokens).rev().find(|&id| target.tokens[id].is_some());
    Ok(SharedVocabulary { tokens: used.map_or(0, |id| id + 1) })
}

fn bytes<T: AsRef<[u8]>>(tokens: &[Option<T>], id: usize) -> Option<&[u8]> {
    tokens.get(id)?.as_ref().map(AsRef::as_ref)
}

fn quoted(token: Option<&[u8]>) -> String {
    let shown: &dyn Display = match token {
        Some(bytes) => &format!("{:?}", String::from_utf8_lossy(bytes)),
        None => &"no token",
    };
    shown.to_string()
}

fn sorted(ids: &[u32]) -> Vec<u32> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(count: usize) -> Vec<Option<String>> {
        (0..count).map(|id| Some(format!("<{id}>"))).collect()
    }

    fn check(
        target: &[Option<String>],
        draft: &[Option<String>],
        ends: [&[u32]; 2],
    ) -> Result<SharedVocabulary, VocabularyError> {
        let target = TokenTable { tokens: target, ends: ends[0] };
        check_vocabulary(&target, &TokenTable { tokens: draft, ends: ends[1] })
    }

    #[test]
    fn h16_swapped_tokens_are_named() {
        let mut swapped = table(64);
        swapped.swap(17, 40);
        let message = check(&table(64), &swapped, [&[2], &[2]]).expect_err("another vocabulary").to_string();
        assert!(
            message.contains("token 17") && message.contains("<17>") && message.contains("<40>"),
            "{message}"
        );
    }

    #[test]
    fn h16_a_smaller_vocabulary_is_named_by_its_first_missing_token() {
        for (target, draft, expected, got) in
            [(64, 48, "\"<48>\"", "no token"), (48, 64, "no token", "\"<48>\"")]
        {
            let error = check(&table(target), &table(draft), [&[2], &[2]]).expect_err("another size");
            let want = VocabularyError::Token { id: 48, expected: expected.into(), got: got.into() };
            assert_eq!(error, want);
        }
    }

    #[test]
    fn h16_another_end_token_is_named() {
        let error = check(&table(64), &table(64), [&[2], &[0]]).expect_err("another end").to_string();
        assert!(error.contains("[2]") && error.contains("[0]") && error.contains("differ in 0"), "{error}");
        let error = check(&table(64), &table(64), [&[2, 7], &[2]]).expect_err("one end less").to_string();
        assert!(error.contains("differ in 7 (\"<7>\")"), "{error}");
    }

    #[test]
    fn equal_vocabularies_are_proven() {
        let shared = check(&table(64), &table(64), [&[2, 0, 2], &[0, 2]]).expect("one vocabulary");
        assert_eq!(shared.tokens(), 64);
        // Ids without a token at the end are padding, those in the middle are not.
        let mut padded = table(64);
        padded.extend([None, None]);
        assert_eq!(check(&table(64), &padded, [&[], &[]]).map(SharedVocabulary::tokens), Ok(64));
        assert_eq!(check(&padded, &table(64), [&[], &[]]).map(SharedVocabulary::tokens), Ok(64));
        padded[5] = None;
        assert!(check(&table(64), &padded, [&[], &[]]).is_err());
    }

    #[test]
    fn bytes_that_are_no_text_can_be_compared() {
        let (target, draft) = ([Some(vec![0xff_u8])], [Some(&[0xfe_u8][..])]);
        let (target, draft) =
            (TokenTable { tokens: &target, ends: &[] }, TokenTable { tokens: &draft, ends: &[] });
        assert!(matches!(check_vocabulary(&target, &draft), Err(VocabularyError::Token { id: 0, .. })));
    }
}
