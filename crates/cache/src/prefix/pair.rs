//! A target's caches and its drafter's: moved together, remembered together.

use std::{fmt, ops::Range};

use crate::{CacheError, CacheSet, Layer, Result, SetId, Snapshot};

/// The sets of one request, lent for a call.
pub(crate) struct Sets<'a> {
    pub(crate) target: &'a mut CacheSet,
    /// The drafter's own caches. They may lag behind the target's while a request runs.
    pub(crate) own: Option<&'a mut CacheSet>,
}

impl Sets<'_> {
    /// The offset that both have reached.
    pub(crate) fn offset(&self) -> usize {
        self.each().map(CacheSet::offset).min().unwrap_or(0)
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.each().any(CacheSet::is_poisoned)
    }

    /// Bytes of the sets themselves.
    pub(crate) fn bytes(&self) -> usize {
        self.each().map(CacheSet::bytes).sum()
    }

    /// Fails unless both can be used, with no transaction open.
    pub(crate) fn at_rest(&self, what: &'static str) -> Result<()> {
        self.each().try_for_each(|set| set.check().and_then(|()| set.closed(what)))
    }

    /// Whether every offset can be gone back to, because every layer keeps all its rows.
    pub(crate) fn cuttable(&self) -> bool {
        let whole = |layer: &Layer| matches!(layer, Layer::Kv(_) | Layer::Quantized(_));
        self.each().all(|set| set.layers().iter().all(whole))
    }

    /// Back to before the first token.
    pub(crate) fn reset(&mut self) -> Result<()> {
        self.unschedule();
        self.each_mut().try_for_each(|set| set.rewind(0))
    }

    /// Plans captures at `offsets`, which ascend and lie ahead of both.
    pub(crate) fn schedule(&mut self, offsets: &[usize]) -> Result<()> {
        self.unschedule();
        self.each_mut().try_for_each(|set| set.schedule(offsets))
    }

    pub(crate) fn unschedule(&mut self) {
        self.each_mut().for_each(CacheSet::unschedule);
    }

    /// Remembers `slots` of both; `None` if a layer has neither reached nor captured their end.
    pub(crate) fn capture(&mut self, slots: Range<usize>) -> Result<Option<Kept>> {
        let taken = self.target.snapshot(slots.clone()).and_then(|target| {
            let own = self.own.as_mut().map(|own| own.snapshot(slots)).transpose()?;
            Ok(Kept { target, own })
        });
        match taken {
            Ok(kept) => Ok(Some(kept)),
            Err(CacheError::Offset { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether [`restore`](Self::restore) would accept `path`; the error says why not.
    pub(crate) fn can_restore(&self, path: &[&Kept]) -> Result<()> {
        let target: Vec<&Snapshot> = path.iter().map(|kept| &kept.target).collect();
        self.target.can_restore_path(&target)?;
        self.own.as_ref().map_or(Ok(()), |own| own.can_restore_path(&own_path(path)))
    }

    /// Takes both to the end of `path`, which starts at slot 0.
    pub(crate) fn restore(&mut self, path: &[&Kept]) -> Result<()> {
        self.can_restore(path)?;
        let target: Vec<&Snapshot> = path.iter().map(|kept| &kept.target).collect();
        self.target.restore_path(&target)?;
        let own = self.own.as_mut().map_or(Ok(()), |own| own.restore_path(&own_path(path)));
        own.inspect_err(|_| {
            // The sets stay level; the error says more than a second one would.
            self.reset().ok();
        })
    }

    fn each(&self) -> impl Iterator<Item = &CacheSet> {
        [Some(&*self.target), self.own.as_deref()].into_iter().flatten()
    }

    fn each_mut(&mut self) -> impl Iterator<Item = &mut CacheSet> {
        [Some(&mut *self.target), self.own.as_deref_mut()].into_iter().flatten()
    }
}

fn own_path<'a>(path: &[&'a Kept]) -> Vec<&'a Snapshot> {
    path.iter().filter_map(|kept| kept.own.as_ref()).collect()
}

/// What is remembered of one run of slots.
#[derive(Debug)]
pub(crate) struct Kept {
    target: Snapshot,
    own: Option<Snapshot>,
}

impl Kept {
    /// Bytes held for it beside the sets.
    pub(crate) fn bytes(&self) -> usize {
        self.each().map(Snapshot::bytes).sum()
    }

    /// Whether both can be taken to `offset` with this, cut there.
    pub(crate) fn reaches(&self, offset: usize) -> bool {
        self.each().all(|snapshot| snapshot.reaches(offset))
    }

    /// The last offset at or before `at_most` that this [`reaches`](Self::reaches).
    pub(crate) fn restore_point(&self, at_most: usize) -> Option<usize> {
        let mut at = self.target.restore_point(at_most)?;
        while let Some(own) = &self.own {
            let lower = own.restore_point(at)?;
            if lower == at {
                break;
            }
            at = self.target.restore_point(lower)?;
        }
        Some(at)
    }

    /// Whether no set that it was taken from was poisoned.
    pub(crate) fn usable(&self) -> bool {
        self.each().all(|snapshot| snapshot.usable().is_ok())
    }

    /// The slots before `at`, and from `at` on.
    pub(crate) fn split(&self, at: usize) -> Result<(Self, Self)> {
        let (front, back) = self.target.split(at)?;
        let own = self.own.as_ref().map(|own| own.split(at)).transpose()?;
        let (own_front, own_back) = own.unzip();
        Ok((Self { target: front, own: own_front }, Self { target: back, own: own_back }))
    }

    fn each(&self) -> impl Iterator<Item = &Snapshot> {
        std::iter::once(&self.target).chain(&self.own)
    }
}

/// The sets of the last request, whose rows the tree refers to instead of holding copies.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) target: CacheSet,
    pub(crate) own: Option<CacheSet>,
}

impl Live {
    /// Gives these sets to a request in place of its own.
    pub(crate) fn exchange(self, sets: &mut Sets<'_>) {
        *sets.target = self.target;
        if let (Some(own), Some(live)) = (sets.own.as_deref_mut(), self.own) {
            *own = live;
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.target.bytes() + self.own.as_ref().map_or(0, CacheSet::bytes)
    }
}

/// Which sets belong here: identity and number of layers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Models {
    target: (SetId, usize),
    own: Option<(SetId, usize)>,
}

impl Models {
    pub(crate) fn of(sets: &Sets<'_>) -> Self {
        let name = |set: &CacheSet| (set.id(), set.len());
        Self { target: name(sets.target), own: sets.own.as_deref().map(name) }
    }

    pub(crate) fn admit(&self, what: &'static str, sets: &Sets<'_>) -> Result<()> {
        let got = Self::of(sets);
        match *self == got {
            true => Ok(()),
            false => Err(CacheError::Foreign { what, expected: self.to_string(), got: got.to_string() }),
        }
    }
}

impl fmt::Display for Models {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, layers) = self.target;
        write!(f, "{id} with {layers} layers")?;
        match self.own {
            Some((id, layers)) => write!(f, " and a drafter's {id} with {layers} layers"),
            None => write!(f, " without a drafter's"),
        }
    }
}
