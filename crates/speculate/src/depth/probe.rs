//! When to try what does not look best: a budget, and a pause that grows while trying does not pay.

use std::collections::BTreeMap;

/// Share of all time that probes may cost beyond the best known choice.
const SHARE: f64 = 0.005;
/// The most that may be saved up, in rounds of plain decoding: enough for one dear probe, and a long quiet
/// time cannot turn into a burst of them.
const SAVINGS: f64 = 8.0;
/// What a model is worth whose first rounds were just measured, in rounds of plain decoding.
const NEW: f64 = 4.0;
/// What a change of the text is worth at once: what is known of plain decoding still holds, but every depth
/// may pay now that did not before, or the other way round.
const CHANGED: f64 = 8.0;
/// Rounds between two probes of any kind.
const GAP: u64 = 6;
/// Rounds before the same depth is probed again, at first and at most; the pause doubles with each probe that
/// changed nothing.
const PAUSE: u64 = 8;
const LONGEST_PAUSE: u64 = 256;

/// When one choice may be probed again.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct BackOff {
    /// The round of the last probe.
    pub(crate) last: u64,
    /// Rounds to wait after it; 0 before the first.
    pub(crate) pause: u64,
}

impl BackOff {
    pub(crate) fn due(&self, round: u64) -> bool {
        round >= self.last.saturating_add(self.pause)
    }

    /// A probe begins.
    pub(crate) fn tried(&mut self, round: u64) {
        self.last = round;
        self.pause = self.pause.saturating_mul(2).clamp(PAUSE, LONGEST_PAUSE);
    }
}

/// The account of probing.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Ledger {
    /// What probes may still cost, in milliseconds.
    pub(crate) credit_ms: f64,
    /// The round of the last probe.
    pub(crate) last: u64,
    /// By source and depth; plain decoding is depth 0 of nobody.
    pub(crate) tries: BTreeMap<(String, usize), BackOff>,
}

impl Ledger {
    /// A round has taken so long.
    pub(crate) fn earn(&mut self, ms: f64, plain_ms: f64) {
        self.credit_ms = (self.credit_ms + SHARE * ms).min((SAVINGS * plain_ms).max(self.credit_ms));
    }

    /// A probing round cost so much more than the best choice; less than nothing when it was better.
    pub(crate) fn spend(&mut self, ms: f64) {
        self.credit_ms -= ms;
    }

    /// Whether a probe of this price can be saved for.
    pub(crate) fn ever(&self, price_ms: f64, plain_ms: f64) -> bool {
        price_ms <= (SAVINGS * plain_ms).max(self.credit_ms)
    }

    /// Whether it is time for a probe of any kind.
    pub(crate) fn due(&self, round: u64) -> bool {
        round >= self.last.saturating_add(GAP)
    }

    /// Whether it is time for a probe of this choice.
    pub(crate) fn due_for(&self, source: &str, depth: usize, round: u64) -> bool {
        // Keys are few, and borrowed look-ups of a pair are not worth their trouble.
        self.tries.get(&(source.to_owned(), depth)).is_none_or(|tried| tried.due(round))
    }

    /// A probe begins.
    pub(crate) fn open(&mut self, source: &str, depth: usize, round: u64) {
        self.last = round;
        self.tries.entry((source.to_owned(), depth)).or_default().tried(round);
    }

    /// A choice proved the best: it need not wait the next time.
    pub(crate) fn proved(&mut self, source: &str, depth: usize) {
        self.tries.remove(&(source.to_owned(), depth));
    }

    /// The first rounds of a model were measured: most of what there is to find out is found out now.
    pub(crate) fn known(&mut self, plain_ms: f64) {
        self.tries.clear();
        self.credit_ms = self.credit_ms.max(NEW * plain_ms);
    }

    /// The text has changed.
    pub(crate) fn changed(&mut self, plain_ms: f64) {
        self.credit_ms = self.credit_ms.max(CHANGED * plain_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_until_the_choice_has_proved_itself() {
        let mut ledger = Ledger::default();
        let mut pauses = Vec::new();
        let mut round = GAP;
        for _ in 0..8 {
            ledger.open("head", 3, round);
            let next = (round..).find(|&later| ledger.due_for("head", 3, later)).unwrap_or_default();
            pauses.push(next - round);
            round = next;
        }
        assert_eq!(pauses, [8, 16, 32, 64, 128, 256, 256, 256]);
        assert!(ledger.due_for("head", 4, round - 1), "other depths have pauses of their own");
        ledger.proved("head", 3);
        assert!(ledger.due_for("head", 3, round - 1));
    }

    #[test]
    fn credit_grows_with_time_up_to_a_limit() {
        let mut ledger = Ledger::default();
        (0..200).for_each(|_| ledger.earn(10.0, 10.0));
        assert!((ledger.credit_ms - 10.0).abs() < 1e-9, "one plain round after two hundred: {ledger:?}");
        (0..20_000).for_each(|_| ledger.earn(10.0, 10.0));
        assert!((ledger.credit_ms - SAVINGS * 10.0).abs() < 1e-9, "{ledger:?}");
        assert!(ledger.ever(SAVINGS * 10.0, 10.0) && !ledger.ever(SAVINGS * 10.0 + 1.0, 10.0));
        ledger.spend(SAVINGS * 10.0 + 5.0);
        assert!(ledger.credit_ms < 0.0, "a probe may cost more than it promised");
    }
}
