//! Start and end tokens: which ids they are, and the union of everything that ends an answer.

/// Control tokens that end an answer wherever they exist, whatever the files say.
pub const END_SPELLINGS: [&str; 5] = ["<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "</s>"];

/// The union of several lists of end tokens, ascending and without repetitions.
///
/// No list replaces another: a model that leaves an end token out of one file still stops at it.
pub fn end_token_union(lists: &[&[u32]]) -> Vec<u32> {
    let mut ids = lists.concat();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// What a tokenizer knows about the ends of a text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ends {
    /// The start token, if there is one.
    pub(crate) bos: Option<u32>,
    /// The tokenizer's own end token.
    pub(crate) eos: Option<u32>,
    /// Whether encoding puts the start token in front.
    pub(crate) add_bos: bool,
    /// End tokens from elsewhere: end of turn, generation configuration.
    pub(crate) more: Vec<u32>,
}

impl Ends {
    /// Puts the start token in front where the tokenizer asks for one. A text that already begins
    /// with it, because a template wrote it, is left alone.
    pub(crate) fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(bos) = self.bos.filter(|_| self.add_bos)
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h54_lists_are_joined_and_none_replaces_another() {
        assert_eq!(end_token_union(&[&[5], &[5, 7]]), [5, 7]);
        assert_eq!(end_token_union(&[&[5], &[7]]), [5, 7]);
        assert_eq!(end_token_union(&[&[7], &[], &[5]]), [5, 7]);
        assert_eq!(end_token_union(&[&[5], &[], &[5]]), [5]);
    }

    #[test]
    fn h47_the_start_token_is_added_once_or_not_at_all() {
        let ends = |bos, add_bos| Ends { bos, add_bos, ..Ends::default() };
        assert_eq!(ends(Some(1), true).with_bos(vec![5, 6]), [1, 5, 6]);
        assert_eq!(ends(Some(1), true).with_bos(vec![1, 5]), [1, 5]);
        assert_eq!(ends(Some(1), true).with_bos(vec![]), [1]);
        assert_eq!(ends(Some(1), false).with_bos(vec![5]), [5]);
        assert_eq!(ends(None, true).with_bos(vec![5]), [5]);
    }
}
