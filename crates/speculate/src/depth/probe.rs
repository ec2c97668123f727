//! When to try what does not look best: a budget, and a pause that grows while trying does not pay.

/// Share of all time that probes may cost beyond the best known choice.
const SHARE: f64 = 0.005;
/// The most that may be saved up, in rounds of plain decoding: enough for one dear probe, and a long quiet
/// time cannot turn into a burst of them.
const SAVINGS: f64 = 8.0;
/// What a change for the better in the text is worth at once, in rounds of plain decoding.
const BONUS: f64 = 3.0;
/// Rounds between two probes, at least and at most; the pause doubles with each probe that changed nothing.
const PAUSE: u64 = 4;
const LONGEST_PAUSE: u64 = 512;

/// The account of probing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ledger {
    /// What probes may still cost, in milliseconds.
    pub(crate) credit_ms: f64,
    /// Rounds to wait after a probe.
    pub(crate) pause: u64,
    /// The round of the last probe.
    pub(crate) last: u64,
}

impl Default for Ledger {
    fn default() -> Self {
        Self { credit_ms: 0.0, pause: PAUSE, last: 0 }
    }
}

impl Ledger {
    /// A round has taken so long.
    pub(crate) fn earn(&mut self, ms: f64, plain_ms: f64) {
        self.credit_ms = (self.credit_ms + SHARE * ms).min((SAVINGS * plain_ms).max(self.credit_ms));
    }

    /// A probing round cost so much more than the best choice; less than nothing when it was better.
    pub(crate) fn spend(&mut self, ms: f64) {
        self.credit_ms -= ms.max(0.0);
    }

    /// Whether it is time for a probe.
    pub(crate) fn due(&self, round: u64) -> bool {
        round >= self.last + self.pause
    }

    /// A probe has ended.
    pub(crate) fn close(&mut self, round: u64, changed: bool) {
        self.last = round;
        self.pause = if changed { PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
    }

    /// The text or the machine has changed: what was found not to pay may pay now.
    pub(crate) fn alert(&mut self, plain_ms: f64) {
        self.pause = PAUSE;
        self.credit_ms = self.credit_ms.max(BONUS * plain_ms);
    }
}
