//! Random scripts against an oracle that keeps plain lists of tokens and always copies.

use std::ops::Range;

use foretoken_cache::{CacheSet, SetId, Snapshot};
use proptest::prelude::*;

use crate::common::{append, cpu, held, kept, layers, run};

/// Scripts per run, and calls per script.
const SCRIPTS: u32 = 2000;
const CALLS: usize = 40;

/// One call. Numbers are reduced to what the state offers, plus one step beyond it, so that refusals
/// are exercised too.
#[derive(Debug, Clone)]
enum Call {
    Append(usize),
    Begin,
    Commit(usize),
    Rollback,
    Rewind(usize),
    Snapshot(usize, usize),
    Restore(usize),
    RestorePair(usize, usize),
    Drop(usize),
    Split(usize, usize),
    Merge(usize, usize),
    Schedule(usize, usize),
    Collect,
    /// Another set of the same model takes over; snapshots outlive the first.
    Replace,
    Look,
}

fn call() -> impl Strategy<Value = Call> {
    let any = 0usize..1000;
    prop_oneof![
        8 => prop_oneof![4 => 1usize..6, 1 => 1usize..200].prop_map(Call::Append),
        4 => Just(Call::Begin),
        3 => any.clone().prop_map(Call::Commit),
        1 => Just(Call::Rollback),
        3 => any.clone().prop_map(Call::Rewind),
        4 => (any.clone(), any.clone()).prop_map(|(a, b)| Call::Snapshot(a, b)),
        3 => any.clone().prop_map(Call::Restore),
        2 => (any.clone(), any.clone()).prop_map(|(a, b)| Call::RestorePair(a, b)),
        1 => any.clone().prop_map(Call::Drop),
        2 => (any.clone(), any.clone()).prop_map(|(a, b)| Call::Split(a, b)),
        2 => (any.clone(), any.clone()).prop_map(|(a, b)| Call::Merge(a, b)),
        2 => (any.clone(), any).prop_map(|(a, b)| Call::Schedule(a, b)),
        2 => Just(Call::Collect),
        1 => Just(Call::Replace),
        3 => Just(Call::Look),
    ]
}

/// A snapshot beside the copy that the oracle made of it.
struct Copied {
    slots: Range<usize>,
    tokens: Vec<u32>,
    real: Snapshot,
}

/// The set under test beside its oracle.
struct Twin {
    set: CacheSet,
    tokens: Vec<u32>,
    base: Option<usize>,
    schedule: Option<(usize, Vec<usize>)>,
    copies: Vec<Copied>,
    next: u32,
}

impl Twin {
    fn new() -> Self {
        let set = CacheSet::with_id(SetId::fresh(), layers());
        Self { set, tokens: vec![], base: None, schedule: None, copies: vec![], next: 1 }
    }

    fn apply(&mut self, call: &Call) {
        match *call {
            Call::Append(n) => self.append(n),
            Call::Begin => self.begin(),
            Call::Commit(n) => self.commit(n),
            Call::Rollback => {
                self.set.rollback().expect("always fine");
                self.tokens.truncate(self.base.take().unwrap_or(usize::MAX));
            }
            Call::Rewind(n) => self.rewind(n % (self.tokens.len() + 2)),
            Call::Snapshot(a, b) => self.snapshot(a, b),
            Call::Restore(a) => self.restore(&[a]),
            Call::RestorePair(a, b) => self.restore(&[a, b]),
            Call::Drop(a) => drop(self.pick(a).map(|at| self.copies.swap_remove(at))),
            Call::Split(a, b) => self.split(a, b),
            Call::Merge(a, b) => self.merge(a, b),
            Call::Schedule(a, b) => self.schedule(a, b),
            Call::Collect => self.collect(),
            Call::Replace => self.replace(),
            Call::Look => self.look(),
        }
    }

    fn pick(&self, number: usize) -> Option<usize> {
        (!self.copies.is_empty()).then(|| number % self.copies.len())
    }

    fn append(&mut self, n: usize) {
        let tokens = run(self.next, n);
        self.next += n as u32;
        append(&mut self.set, &tokens);
        self.tokens.extend(tokens);
    }

    fn begin(&mut self) {
        assert_eq!(self.set.begin().ok(), self.base.is_none().then_some(self.tokens.len()));
        self.base = self.base.or(Some(self.tokens.len()));
    }

    fn commit(&mut self, n: usize) {
        let Some(base) = self.base else {
            self.set.commit(0).expect_err("no transaction");
            return;
        };
        let pending = self.tokens.len() - base;
        let kept = n % (pending + 2);
        assert_eq!(self.set.commit(kept).is_ok(), kept <= pending);
        if kept <= pending {
            self.tokens.truncate(base + kept);
            self.base = None;
        }
    }

    fn rewind(&mut self, to: usize) {
        let legal = to <= self.tokens.len();
        assert_eq!(self.set.rewind(to).is_ok(), legal);
        if legal {
            self.tokens.truncate(to);
            self.base = None;
        }
    }

    fn snapshot(&mut self, a: usize, b: usize) {
        let (a, b) = (a % (self.tokens.len() + 2), b % (self.tokens.len() + 2));
        let slots = a.min(b)..a.max(b);
        let legal = self.base.is_none() && !slots.is_empty() && slots.end <= self.tokens.len();
        let real = self.set.snapshot(slots.clone());
        assert_eq!(real.is_ok(), legal, "{slots:?} of {}", self.tokens.len());
        if let Ok(real) = real {
            self.copies.push(Copied { tokens: self.tokens[slots.clone()].to_vec(), slots, real });
        }
    }

    fn restore(&mut self, numbers: &[usize]) {
        let picked: Vec<usize> = numbers.iter().filter_map(|n| self.pick(*n)).collect();
        let path: Vec<&Copied> = picked.iter().map(|at| &self.copies[*at]).collect();
        let Some(first) = path.first() else { return };
        let gapless = path.windows(2).all(|pair| pair[0].slots.end == pair[1].slots.start);
        let legal = self.base.is_none() && gapless && first.slots.start <= self.tokens.len();
        let real: Vec<&Snapshot> = path.iter().map(|copied| &copied.real).collect();
        assert_eq!(self.set.restore_path(&real).is_ok(), legal);
        if legal {
            self.tokens.truncate(first.slots.start);
            path.iter().for_each(|copied| self.tokens.extend(&copied.tokens));
            self.schedule = None;
        }
    }

    fn split(&mut self, a: usize, b: usize) {
        let Some(at) = self.pick(a) else { return };
        let copied = &self.copies[at];
        let cut = copied.slots.start + b % (copied.slots.len() + 1);
        let halves = copied.real.split(cut);
        assert_eq!(halves.is_ok(), cut > copied.slots.start && cut < copied.slots.end);
        let Ok((front, back)) = halves else { return };
        let copied = self.copies.swap_remove(at);
        let (first, second) = copied.tokens.split_at(cut - copied.slots.start);
        let (before, after) = (copied.slots.start..cut, cut..copied.slots.end);
        self.copies.push(Copied { slots: before, tokens: first.to_vec(), real: front });
        self.copies.push(Copied { slots: after, tokens: second.to_vec(), real: back });
    }

    /// Joins a snapshot with one that follows it if there is one, with any other if not.
    fn merge(&mut self, a: usize, b: usize) {
        let (Some(a), Some(b)) = (self.pick(a), self.pick(b)) else { return };
        let first = &self.copies[a];
        let follows = |copied: &Copied| copied.slots.start == first.slots.end;
        let second = self.copies.iter().find(|copied| follows(copied)).unwrap_or(&self.copies[b]);
        let joined = first.real.merge(&second.real);
        assert_eq!(joined.is_ok(), follows(second));
        let Ok(real) = joined else { return };
        let tokens = [&first.tokens[..], &second.tokens[..]].concat();
        self.copies.push(Copied { slots: first.slots.start..second.slots.end, tokens, real });
    }

    fn schedule(&mut self, a: usize, b: usize) {
        let (ahead, further) = (a % 6, b % 6);
        let first = self.tokens.len() + ahead;
        let offsets = vec![first, first + further];
        let legal = self.base.is_none() && self.schedule.is_none() && ahead > 0 && further > 0;
        assert_eq!(self.set.schedule(&offsets).is_ok(), legal);
        if legal {
            self.schedule = Some((self.tokens.len(), offsets));
        }
    }

    fn collect(&mut self) {
        let collected = self.set.collect();
        assert_eq!(collected.is_ok(), self.base.is_none());
        let Ok(collected) = collected else { return };
        let (mut from, offsets) = self.schedule.take().unwrap_or_default();
        let reached: Vec<usize> = offsets.into_iter().filter(|to| *to <= self.tokens.len()).collect();
        assert_eq!(collected.len(), reached.len());
        for (real, to) in collected.into_iter().zip(reached) {
            self.copies.push(Copied { slots: from..to, tokens: self.tokens[from..to].to_vec(), real });
            from = to;
        }
    }

    fn replace(&mut self) {
        self.set = CacheSet::with_id(self.set.id(), layers());
        (self.tokens, self.base, self.schedule) = (vec![], None, None);
    }

    fn look(&self) {
        assert_eq!(held(&self.set), self.tokens);
        assert_eq!(self.set.offset(), self.base.unwrap_or(self.tokens.len()));
        assert_eq!(self.set.pending(), self.base.map_or(0, |base| self.tokens.len() - base));
        self.set.level().expect("one offset");
        for copied in &self.copies {
            assert_eq!(
                (copied.real.range(), kept(&copied.real)),
                (copied.slots.clone(), copied.tokens.clone())
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: SCRIPTS, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn scripts_never_differ_from_an_oracle_that_copies(script in prop::collection::vec(call(), 1..CALLS)) {
        cpu();
        let mut twin = Twin::new();
        script.iter().for_each(|call| twin.apply(call));
        twin.look();
        twin.copies.clear();
        prop_assert_eq!((twin.set.snapshot_bytes(), twin.set.snapshots()), (0, 0));
    }
}
