//! Writing a long prefill in batches gives the same cache and the same drafts as writing it at once.

mod common;

use std::rc::Rc;

use common::{random_head, tiny};
use foretoken_cache::CacheSet;
use foretoken_draft_mtp::{FLUSH_TOKENS, SeqDrafter, SeqHead};
use foretoken_model_base::{DraftVocabulary, LoadOptions, Weights};
use foretoken_sample::SplitMix64;
use foretoken_speculate::{CommittedRun, DraftCx, DraftError, DraftSink, Drafter};
use mlx_rs::Array;

const TOKENS: usize = 600;
/// Largest difference over the largest value: rows of 256 and of 600 sum in another order.
const ORDER_TOLERANCE: f32 = 1e-5;

#[test]
fn a_long_prefill_in_batches_equals_one_forward() {
    let model = tiny();
    let facts = model.facts();
    let weights = Weights::from_arrays(random_head("seq", facts, 2), LoadOptions::cpu());
    let head = Rc::new(SeqHead::load(&weights, model.as_ref()).expect("fits"));
    let mut random = SplitMix64::new(4);
    let ids: Vec<u32> = (0..TOKENS).map(|_| (random.next_u64() % facts.vocabulary as u64) as u32).collect();
    let values: Vec<f32> = (0..TOKENS * facts.width)
        .map(|_| (random.next_u64() >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
        .collect();
    let hidden = Array::from_slice(&values, &[1, TOKENS as i32, facts.width as i32]);
    let run = CommittedRun { ids: &ids, hidden: Some(&hidden), slot: 0 };
    let target = resting(TOKENS);

    let result = |flush: usize| {
        let drafter = SeqDrafter::with_flush(head.clone(), flush);
        let mut own = drafter.make_caches().expect("own caches");
        let mut session = drafter.open(0).expect("opens");
        let mut cx = DraftCx { model: model.as_ref(), target: &target, tokens: &[], own: Some(&mut own) };
        session.committed(&mut cx, run).expect("in order");
        let mut sink = Rows { room: 3, logits: Vec::new() };
        session.propose(&mut cx, 9, &mut sink).expect("proposes");
        let view = own.layer(0).expect("a layer").get().view().expect("readable").expect("rows");
        assert_eq!(view.keys.dim(2) as usize, TOKENS);
        [read(&view.keys), read(&view.values), sink.logits]
    };
    let whole = result(usize::MAX);
    for flush in [FLUSH_TOKENS, 7] {
        for (what, (got, want)) in ["keys", "values", "logits"].iter().zip(result(flush).iter().zip(&whole)) {
            let found = difference(got, want);
            println!("{what} in batches of {flush}: {found:.1e}");
            assert!(found <= ORDER_TOLERANCE, "{what} in batches of {flush}: {found:.1e}");
        }
    }
}

/// Target caches at an offset; a sequential head reads nothing else of them.
fn resting(slots: usize) -> CacheSet {
    use foretoken_cache::{KvCache, Layer, LayerCache};
    let mut layer = KvCache::new();
    let rows = Array::from_slice(&vec![0f32; slots], &[1, 1, slots as i32, 1]);
    layer.append(&rows, &rows).expect("fits");
    CacheSet::new(vec![Layer::Kv(layer)])
}

/// Keeps every row of logits and draws token 1.
struct Rows {
    room: usize,
    logits: Vec<f32>,
}

impl DraftSink for Rows {
    fn room(&self) -> usize {
        self.room
    }

    fn draw(&mut self, logits: &Array, _: Option<&DraftVocabulary>) -> Result<Array, DraftError> {
        self.room -= 1;
        self.logits.extend(read(logits));
        Ok(Array::from_slice(&[1u32], &[1, 1]))
    }

    fn known(&mut self, _: &[u32]) -> Result<(), DraftError> {
        Err(DraftError::Other("MTP drafts are drawn".into()))
    }
}

fn read(array: &Array) -> Vec<f32> {
    array.contiguous().expect("dense").to_vec_exact().expect("float32")
}

/// max|a − b| / max|b|.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(0f32, |m, x| m.max(x.abs()));
    a.iter().zip(b).fold(0f32, |m, (x, y)| m.max((x - y).abs())) / largest
}
