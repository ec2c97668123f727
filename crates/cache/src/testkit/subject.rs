//! What the kit drives: a layer of rows, a layer of states, or a whole set.

use std::ops::Range;

use crate::{
    CacheSet, Layer, LayerCache, LayerSnapshot, Result, SetId, Snapshot,
    testkit::{
        Folding, RowForm,
        toy::{check_state, check_view, fold, tokens_in},
    },
};

/// What a check found wrong, in words.
pub type Complaint = String;

/// A cache of one sequence as the kit sees it. Tokens are fed; everything else is the cache's own.
///
/// Errors of the cache are passed on as they are: the kit decides which of them are right.
pub trait Subject {
    /// What the cache calls a snapshot.
    type Mark;

    /// Whether every offset behind the current one can be reached, and every snapshot cut anywhere.
    fn cuts(&self) -> bool;
    /// See [`LayerCache::offset`].
    fn offset(&self) -> usize;
    /// Appends tokens. With `look`, which holds all tokens including these, also what each of them saw is
    /// compared.
    fn feed(&mut self, tokens: &[u32], look: Option<&[u32]>) -> std::result::Result<(), Complaint>;
    /// Compares what is held with what `tokens`, fed from scratch, would leave.
    fn holds(&self, tokens: &[u32]) -> std::result::Result<(), Complaint>;

    /// See [`CacheSet::begin`] and [`CacheSet::begin_whole`].
    fn begin(&mut self, whole: bool) -> Result<()>;
    /// Ends the transaction that began at `base`, keeping `kept` rows.
    fn finish(&mut self, base: usize, kept: usize) -> Result<()>;
    /// See [`LayerCache::can_rewind`].
    fn can_rewind(&self, offset: usize) -> bool;
    /// Goes back and ends the transaction, if one is open; see [`CacheSet::rewind`].
    fn rewind(&mut self, offset: usize) -> Result<()>;

    /// See [`LayerCache::snapshot`].
    fn mark(&mut self, slots: Range<usize>) -> Result<Self::Mark>;
    /// See [`CacheSet::schedule`].
    fn schedule(&mut self, offsets: &[usize]) -> Result<()>;
    /// Ends the schedule; snapshots of the `reached` offsets, the first from `from` on.
    fn collect(&mut self, from: usize, reached: &[usize]) -> Result<Vec<Self::Mark>>;
    /// See [`LayerCache::can_restore`].
    fn can_restore(&self, path: &[&Self::Mark]) -> Result<()>;
    /// See [`LayerCache::restore`].
    fn restore(&mut self, path: &[&Self::Mark]) -> Result<()>;
    /// See [`LayerSnapshot::reaches`].
    fn reaches(mark: &Self::Mark, offset: usize) -> bool;
    /// See [`LayerSnapshot::split`].
    fn split(mark: &Self::Mark, at: usize) -> Result<(Self::Mark, Self::Mark)>;
    /// See [`LayerSnapshot::merge`].
    fn merge(first: &Self::Mark, second: &Self::Mark) -> Result<Self::Mark>;
    /// See [`LayerCache::snapshot_bytes`].
    fn mark_bytes(&self) -> usize;
}

/// A layer of keys and values.
pub struct Rows<C> {
    cache: C,
    form: RowForm,
    window: Option<usize>,
}

impl<C: LayerCache> Rows<C> {
    /// A layer that is fed rows of `form`, and whose queries see `window` keys, or all.
    pub fn new(cache: C, form: RowForm, window: Option<usize>) -> Self {
        Self { cache, form, window }
    }
}

/// A layer of folded states.
pub struct States<C>(pub C);

/// How the two kinds of layer differ for the kit.
trait Fed {
    fn cache(&self) -> &dyn LayerCache;
    fn cache_mut(&mut self) -> &mut dyn LayerCache;
    fn is_cut(&self) -> bool;
    fn give(&mut self, tokens: &[u32], look: Option<&[u32]>) -> std::result::Result<(), Complaint>;
    fn compare(&self, tokens: &[u32]) -> std::result::Result<(), Complaint>;
}

impl<C: LayerCache> Fed for Rows<C> {
    fn cache(&self) -> &dyn LayerCache {
        &self.cache
    }

    fn cache_mut(&mut self) -> &mut dyn LayerCache {
        &mut self.cache
    }

    fn is_cut(&self) -> bool {
        self.window.is_none()
    }

    fn give(&mut self, tokens: &[u32], look: Option<&[u32]>) -> std::result::Result<(), Complaint> {
        feed_rows(&mut self.cache, self.form, self.window, tokens, look)
    }

    fn compare(&self, tokens: &[u32]) -> std::result::Result<(), Complaint> {
        check_rows(&self.cache, self.window, tokens)
    }
}

impl<C: Folding> Fed for States<C> {
    fn cache(&self) -> &dyn LayerCache {
        &self.0
    }

    fn cache_mut(&mut self) -> &mut dyn LayerCache {
        &mut self.0
    }

    fn is_cut(&self) -> bool {
        false
    }

    fn give(&mut self, tokens: &[u32], _: Option<&[u32]>) -> std::result::Result<(), Complaint> {
        feed_states(&mut self.0, tokens)
    }

    fn compare(&self, tokens: &[u32]) -> std::result::Result<(), Complaint> {
        check_state(&self.0.state().map_err(words)?, tokens)
    }
}

impl<T: Fed> Subject for T {
    type Mark = LayerSnapshot;

    fn cuts(&self) -> bool {
        self.is_cut()
    }

    fn offset(&self) -> usize {
        self.cache().offset()
    }

    fn feed(&mut self, tokens: &[u32], look: Option<&[u32]>) -> std::result::Result<(), Complaint> {
        self.give(tokens, look)
    }

    fn holds(&self, tokens: &[u32]) -> std::result::Result<(), Complaint> {
        self.compare(tokens)
    }

    fn begin(&mut self, whole: bool) -> Result<()> {
        match whole {
            true => self.cache_mut().begin_whole(),
            false => self.cache_mut().begin(),
        }
        Ok(())
    }

    fn finish(&mut self, base: usize, kept: usize) -> Result<()> {
        self.cache_mut().rewind(base + kept)?;
        self.cache_mut().end();
        Ok(())
    }

    fn can_rewind(&self, offset: usize) -> bool {
        self.cache().can_rewind(offset)
    }

    fn rewind(&mut self, offset: usize) -> Result<()> {
        self.cache_mut().rewind(offset)?;
        self.cache_mut().end();
        Ok(())
    }

    fn mark(&mut self, slots: Range<usize>) -> Result<LayerSnapshot> {
        self.cache_mut().snapshot(slots)
    }

    fn schedule(&mut self, offsets: &[usize]) -> Result<()> {
        self.cache_mut().schedule(offsets);
        Ok(())
    }

    fn collect(&mut self, from: usize, reached: &[usize]) -> Result<Vec<LayerSnapshot>> {
        let starts = [from].into_iter().chain(reached.iter().copied());
        let ranges = starts.zip(reached).map(|(from, to)| from..*to);
        let marks = ranges.map(|slots| self.cache_mut().snapshot(slots)).collect();
        self.cache_mut().unschedule();
        marks
    }

    fn can_restore(&self, path: &[&LayerSnapshot]) -> Result<()> {
        self.cache().can_restore(path)
    }

    fn restore(&mut self, path: &[&LayerSnapshot]) -> Result<()> {
        // As a set does: a refusal changes nothing, a restore ends the schedule first.
        self.cache().can_restore(path)?;
        self.cache_mut().unschedule();
        self.cache_mut().restore(path)
    }

    fn reaches(mark: &LayerSnapshot, offset: usize) -> bool {
        mark.reaches(offset)
    }

    fn split(mark: &LayerSnapshot, at: usize) -> Result<(LayerSnapshot, LayerSnapshot)> {
        mark.split(at)
    }

    fn merge(first: &LayerSnapshot, second: &LayerSnapshot) -> Result<LayerSnapshot> {
        first.merge(second)
    }

    fn mark_bytes(&self) -> usize {
        self.cache().snapshot_bytes()
    }
}

/// A whole set, driven through its transactions.
pub struct Set {
    set: CacheSet,
    form: RowForm,
}

impl Set {
    /// A set of `layers` whose attention layers are fed rows of `form`.
    pub fn new(id: SetId, layers: Vec<Layer>, form: RowForm) -> Self {
        Self { set: CacheSet::with_id(id, layers), form }
    }
}

impl Subject for Set {
    type Mark = Snapshot;

    fn cuts(&self) -> bool {
        self.set.layers().iter().all(|layer| matches!(layer, Layer::Kv(_) | Layer::Quantized(_)))
    }

    fn offset(&self) -> usize {
        self.set.offset() + self.set.pending()
    }

    fn feed(&mut self, tokens: &[u32], look: Option<&[u32]>) -> std::result::Result<(), Complaint> {
        for index in 0..self.set.len() {
            let Some(layer) = self.set.layer_mut(index) else { continue };
            let window = window(layer);
            let fed = match layer {
                Layer::Recurrent(cache) => feed_states(cache, tokens),
                other => feed_rows(other.get_mut(), self.form, window, tokens, look),
            };
            fed.map_err(|complaint| format!("layer {index}: {complaint}"))?;
        }
        Ok(())
    }

    fn holds(&self, tokens: &[u32]) -> std::result::Result<(), Complaint> {
        self.set.level().map_err(words)?;
        for (index, layer) in self.set.layers().iter().enumerate() {
            let compared = match layer {
                Layer::Recurrent(cache) => {
                    cache.state().map_err(words).and_then(|state| check_state(&state, tokens))
                }
                other => check_rows(other.get(), window(other), tokens),
            };
            compared.map_err(|complaint| format!("layer {index}: {complaint}"))?;
        }
        Ok(())
    }

    fn begin(&mut self, whole: bool) -> Result<()> {
        match whole {
            true => self.set.begin_whole().map(drop),
            false => self.set.begin().map(drop),
        }
    }

    fn finish(&mut self, _: usize, kept: usize) -> Result<()> {
        self.set.commit(kept)
    }

    fn can_rewind(&self, offset: usize) -> bool {
        self.set.can_rewind(offset)
    }

    fn rewind(&mut self, offset: usize) -> Result<()> {
        self.set.rewind(offset)
    }

    fn mark(&mut self, slots: Range<usize>) -> Result<Snapshot> {
        self.set.snapshot(slots)
    }

    fn schedule(&mut self, offsets: &[usize]) -> Result<()> {
        self.set.schedule(offsets)
    }

    fn collect(&mut self, _: usize, _: &[usize]) -> Result<Vec<Snapshot>> {
        self.set.collect()
    }

    fn can_restore(&self, path: &[&Snapshot]) -> Result<()> {
        self.set.can_restore_path(path)
    }

    fn restore(&mut self, path: &[&Snapshot]) -> Result<()> {
        self.set.restore_path(path)
    }

    fn reaches(mark: &Snapshot, offset: usize) -> bool {
        mark.reaches(offset)
    }

    fn split(mark: &Snapshot, at: usize) -> Result<(Snapshot, Snapshot)> {
        mark.split(at)
    }

    fn merge(first: &Snapshot, second: &Snapshot) -> Result<Snapshot> {
        first.merge(second)
    }

    fn mark_bytes(&self) -> usize {
        self.set.snapshot_bytes()
    }
}

fn window(layer: &Layer) -> Option<usize> {
    match layer {
        Layer::Rotating(cache) => Some(cache.window()),
        _ => None,
    }
}

fn feed_rows(
    cache: &mut dyn LayerCache,
    form: RowForm,
    window: Option<usize>,
    tokens: &[u32],
    look: Option<&[u32]>,
) -> std::result::Result<(), Complaint> {
    let (keys, values) = form.rows(tokens);
    let view = cache.append(&keys, &values).map_err(words)?;
    look.map_or(Ok(()), |all| check_view(&view, all, tokens.len(), window))
}

fn check_rows(
    cache: &dyn LayerCache,
    window: Option<usize>,
    tokens: &[u32],
) -> std::result::Result<(), Complaint> {
    let from = window.map_or(0, |window| tokens.len().saturating_sub(window - 1));
    let got = match cache.view().map_err(words)? {
        Some(view) => tokens_in(&view)?,
        None => Vec::new(),
    };
    match got == tokens[from..] {
        true => Ok(()),
        false => Err(format!("the view holds {got:?}, not {:?}", &tokens[from..])),
    }
}

fn feed_states(cache: &mut impl Folding, tokens: &[u32]) -> std::result::Result<(), Complaint> {
    let stops = cache.stops(tokens.len());
    let states = fold(cache.state().map_err(words)?, tokens, &stops).map_err(words)?;
    cache.advance(tokens.len(), states).map_err(words)
}

fn words(error: crate::CacheError) -> Complaint {
    error.to_string()
}
