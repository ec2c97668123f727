//! What the loaded model's rounds have taught: plain numbers that outlive a request.

use std::collections::BTreeMap;

use super::{
    acceptance::Acceptance,
    cost::{Cell, Curve},
    probe::Ledger,
};

/// Contexts up to this length cost the same: attention is still small beside the weights.
const SHORT_CONTEXT: usize = 1024;
/// Plain rounds that must be measured before their cost is worth reporting, and before a model counts as known:
/// the first may meet a hiccup, and of three the middle one is right.
pub(crate) const REPORTED: f64 = 3.0;
/// One outcome is luck: a source must have been judged more often before it is trusted.
const LUCK: f64 = 1.0;
/// How many measurements an estimate counts for that was made at another context length.
const INHERITED: f64 = 2.0;

/// Rounds that cost alike: powers of two of the context length, and whether a constraint makes every
/// round wait once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Bucket {
    pub(crate) constrained: bool,
    pub(crate) length: u32,
}

impl Bucket {
    pub(crate) fn of(context: usize, constrained: bool) -> Self {
        let length = (context.max(1) / SHORT_CONTEXT).checked_ilog2().map_or(0, |log| log + 1);
        Self { constrained, length }
    }

    /// How unlike two buckets are.
    fn distance(self, other: Self) -> u32 {
        // A constraint changes more than any length does.
        self.length.abs_diff(other.length) + 64 * u32::from(self.constrained != other.constrained)
    }
}

/// What is known of one source of drafts.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct SourceEstimates {
    pub(crate) curves: BTreeMap<Bucket, Curve>,
    pub(crate) acceptance: Acceptance,
    /// Tokens that a tail adds once the whole head of the proposal is kept, and how often that was seen.
    pub(crate) tail: (f64, f64),
}

/// Cost and acceptance as measured since the model was loaded.
///
/// The owner of the model keeps one and lends it to every request's decoder, so that an answer starts where
/// the one before it left off. It holds plain numbers and no arrays.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Estimates {
    /// Rounds observed.
    pub(crate) round: u64,
    pub(crate) plain: BTreeMap<Bucket, Cell>,
    /// Plain rounds measured in a steady state, over all contexts.
    pub(crate) plain_rounds: f64,
    pub(crate) sources: BTreeMap<String, SourceEstimates>,
    pub(crate) ledger: Ledger,
}

impl Estimates {
    /// Nothing known yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Milliseconds of a plain token at this context length; `None` until three rounds of plain decoding
    /// were measured.
    pub fn plain_ms(&self, context: usize, constrained: bool) -> Option<f64> {
        let known = self.plain_rounds >= REPORTED;
        Some(self.plain_cell(Bucket::of(context, constrained)).ms).filter(|_| known)
    }

    /// The chance that the drafts of a source are kept, by position, each given all before it.
    pub fn acceptance(&self, source: &str, depth: usize) -> Vec<f64> {
        let none = Acceptance::default();
        let acceptance = self.sources.get(source).map_or(&none, |s| &s.acceptance);
        acceptance.chances(depth, self.round).iter().map(|chance| chance.mean).collect()
    }

    /// Whether the first drafts of a source were judged, and this share of them kept.
    pub(crate) fn kept_often(&self, source: &str, share: f64) -> bool {
        let first = self.sources.get(source).and_then(|source| source.acceptance.positions.first());
        first.is_some_and(|first| first.count > LUCK && first.mean >= share)
    }

    /// Takes sources for good ones, so that tests see their tails.
    #[cfg(feature = "testkit")]
    pub(crate) fn trust<'a>(&mut self, sources: impl Iterator<Item = &'a str>) {
        for name in sources {
            for round in 0..4 {
                let _ = self.source(name).acceptance.learn(1, false, round);
            }
        }
    }

    /// Another request begins, with a text of its own.
    pub(crate) fn another_text(&mut self) {
        self.sources.values_mut().for_each(|source| source.acceptance.another_text());
    }

    /// Whether any source was ever measured.
    pub(crate) fn untouched(&self) -> bool {
        self.sources.values().all(|source| source.curves.is_empty())
    }

    pub(crate) fn plain_cell(&self, bucket: Bucket) -> Cell {
        nearest(&self.plain, bucket).map_or_else(Cell::default, |(at, cell)| inherit(*cell, at == bucket))
    }

    /// Milliseconds of a plain token, as far as it is known.
    pub(crate) fn price(&self, bucket: Bucket) -> f64 {
        self.plain_cell(bucket).ms.max(0.0)
    }

    pub(crate) fn learn_plain(&mut self, bucket: Bucket, ms: f64) {
        let mut cell = self.plain_cell(bucket);
        cell.learn(ms, self.round);
        self.plain.insert(bucket, cell);
        self.plain_rounds += 1.0;
    }

    /// The costs of a source, borrowed from the nearest context length when there are none at this one.
    pub(crate) fn curve(&self, source: &str, bucket: Bucket) -> Curve {
        let curves = self.sources.get(source).map(|source| &source.curves);
        let Some((at, curve)) = curves.and_then(|curves| nearest(curves, bucket)) else {
            return Curve::default();
        };
        let cells = curve.cells.iter().map(|&cell| inherit(cell, at == bucket)).collect();
        Curve { cells }
    }

    pub(crate) fn learn_cost(&mut self, source: &str, bucket: Bucket, depth: usize, ms: f64) {
        let mut curve = self.curve(source, bucket);
        curve.learn(depth, ms, self.round);
        self.source(source).curves.insert(bucket, curve);
    }

    pub(crate) fn source(&mut self, name: &str) -> &mut SourceEstimates {
        if !self.sources.contains_key(name) {
            self.sources.insert(name.to_owned(), SourceEstimates::default());
        }
        self.sources.get_mut(name).expect("the source was put there")
    }
}

fn nearest<T>(map: &BTreeMap<Bucket, T>, bucket: Bucket) -> Option<(Bucket, &T)> {
    map.iter().min_by_key(|(at, _)| at.distance(bucket)).map(|(at, value)| (*at, value))
}

fn inherit(cell: Cell, own: bool) -> Cell {
    if own { cell } else { Cell { samples: cell.samples.min(INHERITED), streak: 0, ..cell } }
}
