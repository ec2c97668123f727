//! The shipped heads against the chains of an independent implementation.

mod common;

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use common::{repository, smollm2};
use foretoken_cache::{CacheSet, Layer, LayerCache};
use foretoken_draft_mtp::{SeqDrafter, SeqHead, SingleDrafter, SingleHead, load_options};
use foretoken_model_base::{
    Batch, DraftHead, DraftVocabulary, Hidden, MTPDraftModel, Model, Result, Weights,
};
use foretoken_speculate::{CommittedRun, DraftCx, DraftError, DraftSink, Drafter, testkit};
use mlx_rs::{Array, fast, ops::indexing::TryIndexOp};

/// Largest difference of hidden states over the largest reference value. A float64 implementation is
/// within 2.1e-6, so this leaves room for another order of summation and for nothing else.
const HIDDEN_TOLERANCE: f32 = 1e-4;
/// A wrong position must be at least this wrong to count as found.
const FOUND: f32 = 1e-2;
const STEPS: usize = 5;

/// The contents of a golden file.
struct Golden {
    tokens: Vec<u32>,
    anchors: Vec<usize>,
    target_hidden: Array,
    chain_hidden: Array,
    chain_top_id: Vec<u32>,
}

impl Golden {
    fn read(style: &str) -> Self {
        testkit::on_cpu();
        let path = repository(&format!("golden/smollm2-135m-mtp/golden-{style}.safetensors"));
        let file: HashMap<String, Array> = Array::load_safetensors(path).expect("readable");
        let ints = |name: &str| file[name].to_vec_exact::<i32>().expect("int32");
        let ids = |name: &str| ints(name).into_iter().map(|id| id as u32).collect();
        Self {
            tokens: ids("tokens"),
            anchors: ints("anchors").into_iter().map(|p| p as usize).collect(),
            target_hidden: file["target_hidden"].clone(),
            chain_hidden: file["chain_hidden"].clone(),
            chain_top_id: ids("chain_top_id"),
        }
    }

    /// The outs of anchor number `index` [5,E].
    fn chain(&self, index: usize) -> Array {
        self.chain_hidden.try_index(index as i32).expect("anchor")
    }

    fn top_ids(&self, index: usize) -> &[u32] {
        &self.chain_top_id[index * STEPS..(index + 1) * STEPS]
    }
}

/// max|a − b| / max|b|.
fn difference(a: &Array, b: &Array) -> f32 {
    let read = |x: &Array| x.contiguous().expect("dense").to_vec_exact::<f32>().expect("float32");
    let (a, b) = (read(a), read(b));
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(0f32, |m, x| m.max(x.abs()));
    a.iter().zip(&b).fold(0f32, |m, (x, y)| m.max((x - y).abs())) / largest
}

/// Hands out the true tokens and notes the best target id of each row of logits.
struct Forced<'a> {
    tokens: &'a [u32],
    top: Vec<u32>,
}

impl DraftSink for Forced<'_> {
    fn room(&self) -> usize {
        STEPS - self.top.len()
    }

    fn draw(
        &mut self,
        logits: &Array,
        vocabulary: Option<&DraftVocabulary>,
    ) -> std::result::Result<Array, DraftError> {
        let best = mlx_rs::ops::indexing::argmax(logits, None)?.item_exact::<u32>();
        self.top.push(vocabulary.expect("a draft vocabulary").ids()[best as usize]);
        let next = self.tokens.get(self.top.len() - 1).copied().unwrap_or(0);
        Ok(Array::from_slice(&[next], &[1, 1]))
    }

    fn known(&mut self, _: &[u32]) -> std::result::Result<(), DraftError> {
        Err(DraftError::Other("MTP drafts are drawn".into()))
    }
}

/// A head that keeps the last out row [E] of every call.
struct Recording<H> {
    head: H,
    outs: RefCell<Vec<Array>>,
}

impl<H> Recording<H> {
    fn new(head: H) -> Rc<Self> {
        Rc::new(Self { head, outs: RefCell::default() })
    }

    fn note(&self, out: &Array) -> Result<()> {
        self.outs.borrow_mut().push(out.try_index((0, -1, ..))?);
        Ok(())
    }

    /// The last five outs [5,E].
    fn chain(&self) -> Array {
        let outs = self.outs.borrow();
        mlx_rs::ops::stack(&outs[outs.len() - STEPS..], 0).expect("five steps")
    }
}

impl MTPDraftModel for Recording<SingleHead> {
    fn vocabulary(&self) -> Option<&DraftVocabulary> {
        self.head.vocabulary()
    }

    fn draft(&self, input: &Array, position: usize, target: &CacheSet) -> Result<(Array, Array)> {
        let (logits, out) = self.head.draft(input, position, target)?;
        self.note(&out)?;
        Ok((logits, out))
    }
}

impl DraftHead for Recording<SeqHead> {
    fn vocabulary(&self) -> Option<&DraftVocabulary> {
        self.head.vocabulary()
    }

    fn make_caches(&self) -> CacheSet {
        self.head.make_caches()
    }

    fn forward(
        &self,
        embeds: &Array,
        hidden: &Array,
        position: usize,
        target: &CacheSet,
        own: &mut CacheSet,
    ) -> Result<Hidden> {
        let hidden = self.head.forward(embeds, hidden, position, target, own)?;
        self.note(&hidden.last)?;
        Ok(hidden)
    }

    fn unembed(&self, last: &Array) -> Result<Array> {
        self.head.unembed(last)
    }
}

fn head_weights(style: &str, model: &dyn Model) -> Weights {
    let file = repository(&format!("models/smollm2-135m-mtp/mtp-{style}.safetensors"));
    Weights::open(&file, load_options(model).expect("options")).expect("readable")
}

/// The target after the slots up to `anchor`: its caches and hidden states [1,anchor+1,E].
fn prefill(model: &dyn Model, golden: &Golden, anchor: usize) -> (CacheSet, Array) {
    let mut caches = model.make_caches();
    let batch = Batch::from_ids(&golden.tokens[..=anchor], 0).expect("ids");
    let hidden = model.forward(&batch, &mut [&mut caches]).expect("forward").aux;
    mlx_rs::transforms::eval([&hidden]).expect("forward");
    let wanted = golden.target_hidden.try_index((..=anchor as i32, ..)).expect("rows");
    let found = difference(&hidden.try_index(0).expect("row"), &wanted);
    println!("target hidden states through slot {anchor}: {found:.1e}");
    assert!(found <= HIDDEN_TOLERANCE, "the target itself differs by {found:.1e}");
    (caches, hidden)
}

/// Proposes after each anchor with the true tokens; returns the top ids of each.
fn propose_all(
    model: &dyn Model,
    golden: &Golden,
    drafter: &dyn Drafter,
    mut check: impl FnMut(usize),
) -> Vec<Vec<u32>> {
    let mut tops = Vec::new();
    for (index, &anchor) in golden.anchors.iter().enumerate() {
        let (target, hidden) = prefill(model, golden, anchor);
        let mut own = drafter.make_caches();
        let mut session = drafter.open(0).expect("opens");
        let mut cx = DraftCx { model, target: &target, tokens: &[], own: own.as_mut() };
        let run = CommittedRun { ids: &golden.tokens[..=anchor], hidden: Some(&hidden), slot: 0 };
        session.committed(&mut cx, run).expect("in order");
        let mut sink = Forced { tokens: &golden.tokens[anchor + 2..anchor + 1 + STEPS], top: Vec::new() };
        session.propose(&mut cx, golden.tokens[anchor + 1], &mut sink).expect("proposes");
        tops.push(sink.top);
        check(index);
    }
    tops
}

fn check_chain(golden: &Golden, index: usize, chain: &Array) {
    let found = difference(chain, &golden.chain(index));
    println!("chain at anchor {}: largest relative difference {found:.1e}", golden.anchors[index]);
    assert!(found <= HIDDEN_TOLERANCE, "anchor {}: {found:.1e}", golden.anchors[index]);
}

fn check_tops(golden: &Golden, tops: &[Vec<u32>]) {
    for (index, top) in tops.iter().enumerate() {
        assert_eq!(top, golden.top_ids(index), "anchor {}", golden.anchors[index]);
    }
}

#[test]
fn the_single_head_reproduces_the_reference_chain() {
    let (golden, model) = (Golden::read("single"), smollm2());
    let head = SingleHead::load(&head_weights("single", model.as_ref()), model.as_ref()).expect("fits");
    let head = Recording::new(head);
    let drafter = SingleDrafter::new(head.clone());
    let tops =
        propose_all(model.as_ref(), &golden, &drafter, |index| check_chain(&golden, index, &head.chain()));
    check_tops(&golden, &tops);
}

#[test]
fn the_sequential_head_reproduces_the_reference_chain() {
    let (golden, model) = (Golden::read("seq"), smollm2());
    let head = SeqHead::load(&head_weights("seq", model.as_ref()), model.as_ref()).expect("fits");
    let head = Recording::new(head);
    let drafter = SeqDrafter::new(head.clone());
    let tops =
        propose_all(model.as_ref(), &golden, &drafter, |index| check_chain(&golden, index, &head.chain()));
    check_tops(&golden, &tops);
}

/// Moving the position with the step leaves nearly every top id right, so only hidden states find it.
/// A query moved forward by j sees what an unmoved one sees in keys turned back by j.
#[test]
fn a_moved_anchor_fails_the_hidden_check_of_the_single_head() {
    let (golden, model) = (Golden::read("single"), smollm2());
    let head = SingleHead::load(&head_weights("single", model.as_ref()), model.as_ref()).expect("fits");
    let embeddings = model.mtp().expect("shares its embeddings");
    let (index, anchor) = (1, golden.anchors[1]);
    let (target, hidden) = prefill(model.as_ref(), &golden, anchor);
    let mut hidden = hidden.try_index((.., -1.., ..)).expect("row");
    let mut outs = Vec::new();
    for step in 0..STEPS {
        let token = Array::from_slice(&[golden.tokens[anchor + 1 + step]], &[1, 1]);
        let embeds = embeddings.token_embeddings(&token).expect("embeds");
        let input = mlx_rs::ops::concatenate(&[embeds, hidden], -1).expect("joined");
        let moved = turned_back(&target, model.as_ref(), step as i32);
        hidden = head.draft(&input, anchor, &moved).expect("drafts").1;
        outs.push(hidden.try_index((0, 0, ..)).expect("row"));
    }
    let moved = mlx_rs::ops::stack(&outs, 0).expect("five steps");
    let first = difference(
        &moved.try_index((..1, ..)).expect("row"),
        &golden.chain(index).try_index((..1, ..)).expect("row"),
    );
    let found = difference(&moved, &golden.chain(index));
    println!("position moved with the step: {found:.1e} ({first:.1e} at the unmoved first step)");
    assert!(first <= HIDDEN_TOLERANCE, "the first step is not moved yet: {first:.1e}");
    assert!(found > FOUND, "a moved anchor stays within {found:.1e}");
}

/// The same caches with every key turned back by `steps` positions.
fn turned_back(target: &CacheSet, model: &dyn Model, steps: i32) -> CacheSet {
    let mut turned = model.make_caches();
    let base = model.facts().rope_base;
    for (index, layer) in target.layers().iter().enumerate() {
        let view = layer.get().view().expect("readable").expect("rows");
        let size = view.keys.dim(3);
        // One row per sequence, so that every key turns by the same angle.
        let alone = view.keys.reshape(&[-1, 1, 1, size]).expect("rows");
        let back = fast::rope(&alone, size, false, base, 1.0, -steps, None).expect("rope");
        let keys = back.reshape(view.keys.shape()).expect("rows");
        turned.layer_mut(index).expect("layer").get_mut().append(&keys, &view.values).expect("fits");
    }
    turned
}

/// A chain row that overwrites the anchor's slot instead of following it.
#[test]
fn a_moved_slot_fails_the_hidden_check_of_the_sequential_head() {
    let (golden, model) = (Golden::read("seq"), smollm2());
    let head = SeqHead::load(&head_weights("seq", model.as_ref()), model.as_ref()).expect("fits");
    let embeddings = model.mtp().expect("shares its embeddings");
    let (index, anchor) = (1, golden.anchors[1]);
    let (target, hidden) = prefill(model.as_ref(), &golden, anchor);
    let embeds = |ids: &[u32]| {
        embeddings.token_embeddings(&Array::from_slice(ids, &[1, ids.len() as i32])).expect("embeds")
    };
    let mut own = head.make_caches();
    let pairs = embeds(&golden.tokens[1..=anchor + 1]);
    let out = head.forward(&pairs, &hidden, 0, &target, &mut own).expect("pairs").last;
    let mut out = out.try_index((.., -1.., ..)).expect("row");
    let mut outs = vec![out.try_index((0, 0, ..)).expect("row")];
    for step in 1..STEPS {
        own.rewind(anchor).expect("rewinds");
        let token = embeds(&golden.tokens[anchor + 1 + step..anchor + 2 + step]);
        out = head.forward(&token, &out, anchor, &target, &mut own).expect("chain").last;
        outs.push(out.try_index((0, 0, ..)).expect("row"));
    }
    let found = difference(&mlx_rs::ops::stack(&outs, 0).expect("five steps"), &golden.chain(index));
    println!("chain rows on the anchor's slot: {found:.1e}");
    assert!(found > FOUND, "a moved slot stays within {found:.1e}");
}

/// The drafters read the target's caches and nothing more.
#[test]
fn a_proposal_leaves_the_target_as_it_was() {
    let (golden, model) = (Golden::read("single"), smollm2());
    let drafter = common::shipped("single", model.as_ref());
    let (target, hidden) = prefill(model.as_ref(), &golden, 24);
    let before = keys(&target);
    let mut session = drafter.open(0).expect("opens");
    let mut cx = DraftCx { model: model.as_ref(), target: &target, tokens: &[], own: None };
    let run = CommittedRun { ids: &golden.tokens[..=24], hidden: Some(&hidden), slot: 0 };
    session.committed(&mut cx, run).expect("in order");
    let mut sink = Forced { tokens: &golden.tokens[26..], top: Vec::new() };
    session.propose(&mut cx, golden.tokens[25], &mut sink).expect("proposes");
    assert_eq!(keys(&target), before);
}

/// Every key of the last layer, and the offsets of all.
fn keys(target: &CacheSet) -> (Vec<f32>, Vec<usize>) {
    let last: &dyn LayerCache = target.layers().last().map(Layer::get).expect("layers");
    let keys = last.view().expect("readable").expect("rows").keys;
    let offsets = target.layers().iter().map(|layer| layer.get().offset()).collect();
    (keys.contiguous().expect("dense").to_vec_exact().expect("float32"), offsets)
}
