//! One random sequence, and the oracle beside it: a list of tokens, and a copy of it per snapshot.

use std::{fmt, ops::Range};

use crate::testkit::{Complaint, Plan, Report, SplitMix, Subject};

type Checked = Result<(), Complaint>;

/// A snapshot beside the oracle's copy of what it must restore.
struct Kept<M> {
    slots: Range<usize>,
    /// All tokens up to the end of `slots`.
    history: Vec<u32>,
    /// Offsets that it was captured at.
    points: Vec<usize>,
    mark: M,
}

/// The cache under test beside the oracle.
pub(crate) struct Twin<'a, S: Subject, F> {
    plan: &'a Plan,
    make: &'a F,
    report: &'a mut Report,
    random: SplitMix,
    subject: S,
    tokens: Vec<u32>,
    /// Where the open transaction began, and whether it is kept whole or not at all.
    open: Option<(usize, bool)>,
    schedule: Option<(usize, Vec<usize>)>,
    kept: Vec<Kept<S::Mark>>,
    next: u32,
    log: Vec<String>,
}

impl<'a, S: Subject, F: Fn() -> S> Twin<'a, S, F> {
    pub(crate) fn new(plan: &'a Plan, case: u64, make: &'a F, report: &'a mut Report) -> Self {
        let random = SplitMix::case(plan.seed, case);
        let (tokens, kept, log) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            plan,
            make,
            report,
            random,
            subject: make(),
            tokens,
            open: None,
            schedule: None,
            kept,
            next: 0,
            log,
        }
    }

    /// One call, chosen at random.
    pub(crate) fn call(&mut self) -> Checked {
        self.report.calls += 1;
        if self.tokens.len() > self.plan.length {
            return self.empty();
        }
        match (self.random.below(32), self.open.is_some()) {
            (0..=4, _) => self.feed(),
            (5..=6, false) => self.begin(),
            (7..=9, false) => self.round(),
            (10..=11, _) => self.rewind(),
            (12..=13, _) => self.look(),
            (14, _) => self.drop_one(),
            (15, true) => self.feed(),
            // The rest is for closed transactions.
            (_, true) => self.finish(),
            (15..=18, _) => self.snapshot(),
            (19..=24, _) => self.restore(),
            (25..=26, _) => self.split(),
            (27, _) => self.merge(),
            (28..=29, _) => self.plan_ahead(),
            (30, _) => self.collect(),
            _ => self.renew(),
        }
    }

    /// The end of a sequence: everything compared, everything given back.
    pub(crate) fn close(&mut self) -> Checked {
        self.look()?;
        if self.open.take().is_some_and(|(base, _)| self.subject.finish(base, 0).is_err()) {
            return Err("the transaction could not be rolled back".into());
        }
        self.schedule = None;
        self.kept.clear();
        self.subject.collect(0, &[]).map_err(|error| error.to_string())?;
        self.note(format_args!("drop every snapshot"));
        match self.subject.mark_bytes() {
            0 => Ok(()),
            bytes => Err(format!("{bytes} bytes are still held for snapshots")),
        }
    }

    /// The calls made, in words.
    pub(crate) fn into_log(self) -> Vec<String> {
        self.log
    }

    fn note(&mut self, call: fmt::Arguments<'_>) {
        self.log.push(call.to_string());
    }

    fn fresh(&mut self, count: usize) -> Vec<u32> {
        // Small numbers, so that float32 holds them and sums of them well.
        let mut fresh = || {
            self.next = self.next % 251 + 1;
            self.next
        };
        (0..count).map(|_| fresh()).collect()
    }

    fn block(&mut self) -> usize {
        match self.random.below(4) {
            0 => 1,
            1 | 2 => 1 + self.random.below(6),
            _ => 1 + self.random.below(self.plan.longest),
        }
    }

    fn feed(&mut self) -> Checked {
        let count = self.block();
        let tokens = self.fresh(count);
        self.tokens.extend(&tokens);
        let look = self.random.once_in(4);
        self.note(format_args!("append {count}{}", if look { " and look" } else { "" }));
        self.report.looks += usize::from(look);
        self.subject.feed(&tokens, look.then_some(&self.tokens))?;
        self.at_offset()
    }

    fn begin(&mut self) -> Checked {
        let whole = self.random.once_in(4);
        self.note(format_args!("begin{}", if whole { " whole" } else { "" }));
        self.open = Some((self.tokens.len(), whole));
        self.subject.begin(whole).map_err(|error| error.to_string())
    }

    fn finish(&mut self) -> Checked {
        let Some((base, whole)) = self.open.take() else { return Ok(()) };
        let pending = self.tokens.len() - base;
        let kept = match whole {
            true => pending * self.random.below(2),
            false => self.random.below(pending + 1),
        };
        self.note(format_args!("keep {kept} of {pending}"));
        self.report.rejections += usize::from(kept < pending);
        self.subject.finish(base, kept).map_err(|error| error.to_string())?;
        self.tokens.truncate(base + kept);
        self.at_offset()
    }

    /// One round of speculation.
    fn round(&mut self) -> Checked {
        self.begin()?;
        self.feed()?;
        self.finish()
    }

    fn rewind(&mut self) -> Checked {
        let (at, now) = (self.random.below(self.tokens.len() + 2), self.tokens.len());
        // Usually a little; anywhere otherwise.
        let at = if self.random.once_in(2) { at } else { now.saturating_sub(self.random.below(6)) };
        self.rewind_to(at)
    }

    fn rewind_to(&mut self, at: usize) -> Checked {
        let now = self.tokens.len();
        self.note(format_args!("go back to {at} of {now}"));
        let promised = self.subject.can_rewind(at);
        let in_transaction = self.open.is_some_and(|(base, whole)| at == base || (at > base && !whole));
        if at <= now && !promised && (at == now || self.subject.cuts() || in_transaction) {
            return Err(format!("offset {at} must be reached from {now}"));
        }
        let went = self.subject.rewind(at);
        if went.is_ok() != promised || (promised && at > now) {
            return Err(format!("can_rewind says {promised}, but rewind {}", told(&went)));
        }
        match went {
            Ok(()) => {
                self.open = None;
                self.tokens.truncate(at);
            }
            Err(_) => self.report.refusals += 1,
        }
        self.at_offset()
    }

    fn look(&mut self) -> Checked {
        self.note(format_args!("look"));
        self.report.looks += 1;
        self.at_offset()?;
        self.subject.holds(&self.tokens)
    }

    fn at_offset(&self) -> Checked {
        match self.subject.offset() {
            at if at == self.tokens.len() => Ok(()),
            at => Err(format!("the offset is {at}, not {}", self.tokens.len())),
        }
    }

    fn pick(&mut self) -> Option<usize> {
        (!self.kept.is_empty()).then(|| self.random.below(self.kept.len()))
    }

    fn drop_one(&mut self) -> Checked {
        if let Some(at) = self.pick() {
            self.note(format_args!("drop {:?}", self.kept[at].slots.clone()));
            self.kept.swap_remove(at);
        }
        Ok(())
    }

    fn snapshot(&mut self) -> Checked {
        let now = self.tokens.len();
        let end = if self.random.once_in(3) { self.random.below(now + 2) } else { now };
        let start = if self.random.once_in(2) { 0 } else { self.random.below(end + 1) };
        let slots = start..end;
        self.note(format_args!("snapshot {slots:?} of {now}"));
        let legal = !slots.is_empty() && end <= now;
        match self.subject.mark(slots.clone()) {
            Ok(mark) if legal => self.keep(slots, mark),
            Ok(_) => Err("a snapshot of slots that are not there".into()),
            Err(error) if legal && (end == now || self.subject.cuts()) => Err(error.to_string()),
            Err(_) => {
                self.report.refusals += 1;
                Ok(())
            }
        }
    }

    fn keep(&mut self, slots: Range<usize>, mark: S::Mark) -> Checked {
        let (history, points) = (self.tokens[..slots.end].to_vec(), vec![slots.end]);
        let kept = Kept { slots, history, points, mark };
        let sound = self.sound(&kept);
        self.kept.push(kept);
        sound
    }

    /// A snapshot reaches at least what it was captured at, and nothing outside.
    fn sound(&self, kept: &Kept<S::Mark>) -> Checked {
        let (mark, slots) = (&kept.mark, &kept.slots);
        let reached = |at: usize| self.subject.cuts() || kept.points.contains(&at);
        if let Some(at) = (slots.start + 1..=slots.end).find(|at| reached(*at) && !S::reaches(mark, *at)) {
            return Err(format!("a snapshot of {slots:?} must reach {at}"));
        }
        match S::reaches(mark, slots.start) || S::reaches(mark, slots.end + 1) {
            true => Err(format!("a snapshot of {slots:?} reaches past its slots")),
            false => Ok(()),
        }
    }

    fn restore(&mut self) -> Checked {
        let Some(first) = self.pick() else { return Ok(()) };
        let follows = |kept: &Kept<S::Mark>| {
            let own = &self.kept[first];
            kept.slots.start == own.slots.end && kept.history.starts_with(&own.history)
        };
        let second = self.kept.iter().position(follows).filter(|_| self.log.len().is_multiple_of(2));
        if !self.is_true(first) && self.random.once_in(2) {
            self.rewind_to(0)?;
        }
        match second {
            Some(second) => self.restore_path(&[first, second]),
            None if self.random.once_in(4) => {
                let other = self.random.below(self.kept.len());
                self.restore_path(&[first, other])
            }
            None => self.restore_path(&[first]),
        }
    }

    /// Whether the tokens before a snapshot are those that the cache holds.
    fn is_true(&self, index: usize) -> bool {
        let kept = &self.kept[index];
        self.tokens.starts_with(&kept.history[..kept.slots.start])
    }

    fn restore_path(&mut self, path: &[usize]) -> Checked {
        let (first, last) = (&self.kept[path[0]], &self.kept[path[path.len() - 1]]);
        let gapless =
            path.windows(2).all(|pair| self.kept[pair[0]].slots.end == self.kept[pair[1]].slots.start);
        let legal = gapless && first.slots.start <= self.tokens.len();
        let lied = path.len() > 1 && !last.history.starts_with(&first.history);
        if legal && (lied || !self.is_true(path[0])) {
            // The caller vouches for what lies before a snapshot; nothing to check if that is wrong.
            return Ok(());
        }
        let end = last.slots.end;
        let must = legal && (self.subject.cuts() || last.points.contains(&end));
        let marks: Vec<&S::Mark> = path.iter().map(|at| &self.kept[*at].mark).collect();
        let promised = self.subject.can_restore(&marks).is_ok();
        let reached = legal && S::reaches(&last.mark, end);
        let went = self.subject.restore(&marks);
        let (to, history) = (last.slots.clone(), last.history.clone());
        self.note(format_args!("restore {to:?} in {} steps at {}", path.len(), self.tokens.len()));
        if promised != went.is_ok() || promised != reached || (must && !promised) {
            return Err(format!(
                "must restore: {must}, reached: {reached}, promised: {promised}, but restore {}",
                told(&went)
            ));
        }
        match went {
            Ok(()) => {
                self.tokens = history;
                self.schedule = None;
                self.report.restores += 1;
            }
            Err(_) => self.report.refusals += 1,
        }
        self.at_offset()
    }

    fn split(&mut self) -> Checked {
        let Some(index) = self.pick() else { return Ok(()) };
        let slots = self.kept[index].slots.clone();
        let at = slots.start + self.random.below(slots.len() + 1);
        self.note(format_args!("split {slots:?} at {at}"));
        let inside = at > slots.start && at < slots.end;
        let (front, back) = match S::split(&self.kept[index].mark, at) {
            Ok(halves) if inside => halves,
            Err(_) if !inside => return Ok(()),
            Ok(_) => return Err(format!("{slots:?} was split at {at}")),
            Err(error) => return Err(error.to_string()),
        };
        let Kept { history, points, .. } = self.kept.swap_remove(index);
        let (before, after) = points.into_iter().partition(|point| *point <= at);
        let front =
            Kept { slots: slots.start..at, history: history[..at].to_vec(), points: before, mark: front };
        let back = Kept { slots: at..slots.end, history, points: after, mark: back };
        let sound = self.sound(&front).and_then(|()| self.sound(&back));
        self.kept.extend([front, back]);
        sound
    }

    fn merge(&mut self) -> Checked {
        let (Some(first), Some(second)) = (self.pick(), self.pick()) else { return Ok(()) };
        let own = &self.kept[first];
        let follows = |kept: &Kept<S::Mark>| {
            kept.slots.start == own.slots.end && kept.history.starts_with(&own.history)
        };
        let second = self.kept.iter().find(|kept| follows(kept)).unwrap_or(&self.kept[second]);
        let slots = own.slots.start..second.slots.end;
        let (legal, sane) = (own.slots.end == second.slots.start, follows(second));
        let merged = S::merge(&own.mark, &second.mark);
        let (history, points) = (second.history.clone(), [&own.points[..], &second.points[..]].concat());
        self.note(format_args!("merge to {slots:?}"));
        match merged {
            Ok(mark) if sane => {
                let kept = Kept { slots, history, points, mark };
                let sound = self.sound(&kept);
                self.kept.push(kept);
                sound
            }
            // Two branches that happen to touch: legal, and meaningless.
            Ok(_) if legal => Ok(()),
            Ok(_) => Err("snapshots with a gap were merged".into()),
            Err(error) if legal => Err(error.to_string()),
            Err(_) => Ok(()),
        }
    }

    fn plan_ahead(&mut self) -> Checked {
        if self.schedule.is_some() {
            return Ok(());
        }
        let now = self.tokens.len();
        let first = now + 1 + self.random.below(6);
        let offsets = vec![first, first + 1 + self.random.below(6)];
        self.note(format_args!("schedule {offsets:?}"));
        self.subject.schedule(&offsets).map_err(|error| error.to_string())?;
        self.schedule = Some((now, offsets));
        Ok(())
    }

    fn collect(&mut self) -> Checked {
        let Some((mut from, offsets)) = self.schedule.take() else { return Ok(()) };
        let reached: Vec<usize> = offsets.into_iter().filter(|at| *at <= self.tokens.len()).collect();
        self.note(format_args!("collect {reached:?}"));
        let marks = self.subject.collect(from, &reached).map_err(|error| error.to_string())?;
        if marks.len() != reached.len() {
            return Err(format!("{} snapshots of the offsets {reached:?}", marks.len()));
        }
        for (mark, to) in marks.into_iter().zip(reached) {
            self.keep(from..to, mark)?;
            from = to;
        }
        Ok(())
    }

    /// Another cache of the same model takes over; snapshots outlive the first.
    fn renew(&mut self) -> Checked {
        self.note(format_args!("start anew"));
        self.subject = (self.make)();
        self.tokens.clear();
        (self.open, self.schedule) = (None, None);
        Ok(())
    }

    /// Back to the start, in place if the cache can.
    fn empty(&mut self) -> Checked {
        match self.subject.can_rewind(0) {
            true => self.rewind_to(0),
            false => self.renew(),
        }
    }
}

fn told(result: &crate::Result<()>) -> String {
    match result {
        Ok(()) => "did it".into(),
        Err(error) => format!("fails: {error}"),
    }
}
