//! Defaults of drafting, draft vocabularies and batches.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use common::{on_cpu, refused};
use foretoken_model_base::{Batch, DraftVocabulary, MTPDefaults, MTPDefaultsProvider};
use mlx_rs::Array;

struct Prefers(MTPDefaults);

impl MTPDefaultsProvider for Prefers {
    fn mtp_defaults(&self) -> MTPDefaults {
        self.0
    }
}

fn resolved(initial: usize, max: usize, enabled: bool) -> (usize, usize, bool) {
    let prefers = Prefers(MTPDefaults { initial_draft_tokens: initial, max_draft_tokens: max, enabled });
    let d = MTPDefaults::resolve(Some(&prefers));
    (d.initial_draft_tokens, d.max_draft_tokens, d.enabled)
}

#[test]
fn defaults_of_drafting_fill_zeros_and_cut_the_initial_depth() {
    let none = MTPDefaults::resolve(None);
    assert_eq!((none.initial_draft_tokens, none.max_draft_tokens, none.enabled), (4, 16, true));
    assert_eq!(resolved(2, 8, true), (2, 8, true));
    assert_eq!(resolved(0, 0, true), (4, 16, true));
    assert_eq!(resolved(0, 2, true), (2, 2, true));
    assert_eq!(resolved(9, 3, false), (3, 3, false));
    assert_eq!(resolved(20, 0, true), (16, 16, true));
}

#[test]
fn draft_vocabularies_ascend_and_stay_inside_the_target() {
    on_cpu();
    let good = DraftVocabulary::new(vec![0, 3, 9], 10).unwrap();
    assert_eq!((good.ids(), good.len(), good.is_empty()), (&[0, 3, 9][..], 3, false));
    assert_eq!(good.array().shape(), [3]);
    refused(DraftVocabulary::new(vec![0, 3, 3], 10), &["ascending", "3 before 3"]);
    refused(DraftVocabulary::new(vec![4, 3], 10), &["4 before 3"]);
    refused(DraftVocabulary::new(vec![0, 10], 10), &["below 10", "10"]);
    refused(DraftVocabulary::new(vec![], 10), &["at least one id"]);
}

#[test]
fn batches_hold_one_row_of_at_least_one_id() {
    on_cpu();
    let batch = Batch::from_ids(&[5, 6], 7).unwrap();
    assert_eq!(
        (batch.ids.shape(), &batch.offsets[..], &batch.lengths[..]),
        (&[1, 2][..], &[7][..], &[2][..])
    );
    refused(Batch::from_ids(&[], 0), &["batch ids", "[1,L]"]);
    refused(Batch::single(Array::from_slice(&[1u32, 2], &[2]), 0), &["[2]"]);
    refused(Batch::single(Array::from_slice(&[1u32, 2], &[2, 1]), 0), &["[2, 1]"]);
}
