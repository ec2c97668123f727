//! Snapshots of a whole set: taking them, scheduling them, and going back to them.

use std::ops::Range;

use crate::{CacheError, CacheSet, LayerSnapshot, Result, Snapshot};

/// Offsets at which snapshots are captured while rows are appended.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// Where the first range starts: the offset when it was scheduled.
    start: usize,
    /// Ascending, all past `start`.
    offsets: Vec<usize>,
}

impl CacheSet {
    /// Remembers `slots` of every layer, at no cost until they are about to be overwritten.
    ///
    /// Restoring it takes a set to `slots.end`. The range must hold at least one slot and end at or
    /// before the offset; kinds that fold the past can be captured at the offset only.
    pub fn snapshot(&mut self, slots: Range<usize>) -> Result<Snapshot> {
        self.check()?;
        self.closed("snapshot")?;
        self.level()?;
        if slots.is_empty() || slots.end > self.offset() {
            let expected = format!("of at most {} that ends a range of one slot or more", self.offset());
            return Err(CacheError::Offset { what: "snapshot", expected, got: slots.end });
        }
        self.capture(slots)
    }

    /// Plans snapshots at `offsets`, captured while the rows around them are written, in however many
    /// appends. [`collect`](Self::collect) hands them over.
    ///
    /// Offsets ascend and lie ahead of the set; the first snapshot starts at the current offset, each
    /// other where the one before it ends. There is one schedule at a time.
    pub fn schedule(&mut self, offsets: &[usize]) -> Result<()> {
        self.check()?;
        self.closed("schedule")?;
        self.level()?;
        if let Some(pending) = &self.scheduled {
            let got = format!("one from offset {} that waits for collect", pending.start);
            return Err(CacheError::State { what: "schedule", expected: "no other schedule".into(), got });
        }
        let start = self.offset();
        let mut last = start;
        for &offset in offsets {
            if offset <= last {
                let expected = format!("past {last}, because scheduled offsets ascend and lie ahead");
                return Err(CacheError::Offset { what: "schedule", expected, got: offset });
            }
            last = offset;
        }
        self.layers.iter_mut().for_each(|layer| layer.get_mut().schedule(offsets));
        self.scheduled = Some(Schedule { start, offsets: offsets.to_vec() });
        Ok(())
    }

    /// Ends the schedule and returns the snapshots of the offsets that were reached, in order. An
    /// offset whose rows were taken back again counts as not reached. Without a schedule there are none.
    pub fn collect(&mut self) -> Result<Vec<Snapshot>> {
        self.check()?;
        self.closed("collect")?;
        self.level()?;
        let mut snapshots = Vec::new();
        if let Some(schedule) = &self.scheduled {
            let (mut from, reached) = (schedule.start, self.offset());
            for to in schedule.offsets.clone().into_iter().take_while(|to| *to <= reached) {
                snapshots.push(self.capture(from..to)?);
                from = to;
            }
        }
        self.unschedule();
        Ok(snapshots)
    }

    /// Ends the schedule, if there is one, and drops what it captured.
    pub fn unschedule(&mut self) {
        if self.scheduled.take().is_some() {
            self.layers.iter_mut().for_each(|layer| layer.get_mut().unschedule());
        }
    }

    /// Takes the set to the end of `snapshot`: [`restore_path`](Self::restore_path) with one step.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.restore_path(&[snapshot])
    }

    /// Takes the set to the end of `path`, whose snapshots follow each other without gaps and whose
    /// first starts at or before the offset. Rows before that start stay as they are: the caller knows
    /// that they belong to the same sequence. A pending schedule is dropped.
    ///
    /// Bad input changes nothing. Should MLX fail in the middle, the set rests at the start of the path
    /// if every layer can, and is poisoned otherwise.
    pub fn restore_path(&mut self, path: &[&Snapshot]) -> Result<()> {
        self.can_restore_path(path)?;
        let (Some(first), Some(last)) = (path.first(), path.last()) else {
            return Ok(());
        };
        let (start, end) = (first.range().start, last.range().end);
        let steps = self.steps(path);
        self.unschedule();
        let mut layers = self.layers.iter_mut().zip(&steps);
        if let Err(error) = layers.try_for_each(|(layer, steps)| layer.get_mut().restore(steps)) {
            if self.rewind_layers("restore", start).is_err() {
                self.poison(format!("restore failed: {error}"));
            }
            return Err(error);
        }
        self.rest_at(end);
        Ok(())
    }

    /// Whether [`restore_path`](Self::restore_path) would accept `path`: every layer can be taken to its
    /// end. The error says why not.
    pub fn can_restore_path(&self, path: &[&Snapshot]) -> Result<()> {
        self.check()?;
        self.closed("restore")?;
        self.check_path(path)?;
        let steps = self.steps(path);
        let mut layers = self.layers.iter().zip(&steps);
        layers.try_for_each(|(layer, steps)| layer.get().can_restore(steps))
    }

    /// The snapshots of `path` for each layer.
    fn steps<'a>(&self, path: &[&'a Snapshot]) -> Vec<Vec<&'a LayerSnapshot>> {
        let layers = 0..self.layers.len();
        layers.map(|index| path.iter().map(|snapshot| &snapshot.layers()[index]).collect()).collect()
    }

    fn capture(&mut self, slots: Range<usize>) -> Result<Snapshot> {
        let layers = self.layers.iter_mut().map(|layer| layer.get_mut().snapshot(slots.clone()));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        Ok(Snapshot::new(self.id(), slots, layers, &self.ledger))
    }

    /// Fails unless the snapshots are usable, belong to this set's model, and follow each other from
    /// an offset that the set has.
    fn check_path(&self, path: &[&Snapshot]) -> Result<()> {
        let mut reached = None;
        for snapshot in path {
            snapshot.belongs("restore", self.id(), self.layers.len())?;
            snapshot.usable()?;
            let start = snapshot.range().start;
            let follows = reached.map_or(start <= self.offset(), |end| start == end);
            if !follows {
                let expected = match reached {
                    Some(end) => format!("{end} for the next snapshot to start at"),
                    None => format!("of at most {} for the snapshot to start at", self.offset()),
                };
                return Err(CacheError::Offset { what: "restore", expected, got: start });
            }
            reached = Some(snapshot.range().end);
        }
        Ok(())
    }
}
