//! How likely a draft is kept, given that all before it were: one estimate per position.

use super::cost::freshness;

/// Before any round, a draft is as good as a coin that leans to it: good heads lie above, poor ones are
/// found out within a few rounds.
const PRIOR: f64 = 0.6;
/// How many rounds the prior, or the position before, counts for.
const WEIGHT: f64 = 2.0;
/// Rounds that the settled estimate looks back on: three percent of spread at worst, which costs less than
/// a percent of speed.
const LONG: f64 = 160.0;
/// Rounds that the watchful estimate looks back on: few enough to notice a change of text within a line.
const SHORT: f64 = 12.0;
/// Rounds that what earlier requests taught counts for: another request is another text, and how well it is
/// guessed may differ by half.
const EARLIER: f64 = 6.0;
/// Texts that the typical one is averaged over.
const TEXTS: f64 = 8.0;
/// So many spreads apart, the two estimates do not describe the same text any more.
const ALARM: f64 = 3.5;
/// Variance that is assumed at least: a run of equal outcomes proves no certainty.
const FLOOR: f64 = 0.02;
/// How many spreads optimism allows.
const OPTIMISM: f64 = 1.5;

/// The estimate of one position.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Position {
    pub(crate) mean: f64,
    pub(crate) count: f64,
    /// The mean over the last few outcomes.
    pub(crate) recent: f64,
    /// The round of the last outcome.
    pub(crate) at: u64,
    /// The mean over whole texts, and how many they were.
    pub(crate) typical: f64,
    pub(crate) texts: f64,
    /// Whether the present text has taught anything.
    pub(crate) judged: bool,
}

/// The chance of a draft, and the highest one that the outcomes leave believable.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Chance {
    pub(crate) mean: f64,
    pub(crate) high: f64,
}

impl Position {
    /// Takes an outcome in. Returns whether the text has changed.
    fn learn(&mut self, kept: bool, now: u64) -> bool {
        let outcome = f64::from(u8::from(kept));
        self.judged = true;
        if self.count == 0.0 {
            *self = Self { mean: outcome, count: 1.0, recent: outcome, at: now, ..*self };
            return false;
        }
        let age = now.saturating_sub(self.at);
        // What was learned long ago counts less than what comes now.
        self.count = (self.count * freshness(age)).max(1.0).min(self.count);
        self.at = now;
        self.count = (self.count + 1.0).min(LONG);
        self.mean += (outcome - self.mean) / self.count;
        self.recent += (outcome - self.recent) / self.count.min(SHORT);
        let variance = (self.mean * (1.0 - self.mean)).max(FLOOR);
        // The variance of an exponential average over n outcomes is 1/(2n − 1) of one outcome's.
        let spread = (variance / (2.0 * SHORT - 1.0)).sqrt();
        let change = self.recent - self.mean;
        if self.count <= SHORT || change.abs() <= ALARM * spread {
            return false;
        }
        (self.mean, self.count) = (self.recent, SHORT / 2.0);
        true
    }
}

impl Position {
    /// Half of what is expected of a new text is what the last one was like, and half what texts are like. A
    /// text that drafted nothing is no text.
    fn another_text(&mut self) {
        if !std::mem::take(&mut self.judged) {
            return;
        }
        if self.count > EARLIER {
            self.texts = (self.texts + 1.0).min(TEXTS);
            self.typical += (self.mean - self.typical) / self.texts;
        }
        if self.texts > 0.0 && self.count > 0.0 {
            self.mean = (self.mean + self.typical) / 2.0;
            self.recent = self.mean;
        }
        self.count = self.count.min(EARLIER);
    }
}

/// One drafter's positions.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Acceptance {
    pub(crate) positions: Vec<Position>,
}

impl Acceptance {
    /// Takes a round in: `accepted` drafts were kept, and the one after them was not when `rejected`.
    /// Returns whether the text has changed.
    pub(crate) fn learn(&mut self, accepted: usize, rejected: bool, now: u64) -> bool {
        let judged = accepted + usize::from(rejected);
        if self.positions.len() < judged {
            self.positions.resize(judged, Position::default());
        }
        let outcomes = self.positions[..judged].iter_mut().enumerate();
        outcomes.fold(false, |changed, (i, position)| position.learn(i < accepted, now) | changed)
    }

    /// Another text begins.
    pub(crate) fn another_text(&mut self) {
        self.positions.iter_mut().for_each(Position::another_text);
    }

    /// Chances of the first `depth` positions. A position that was seldom judged leans on the one before.
    pub(crate) fn chances(&self, depth: usize, now: u64) -> Vec<Chance> {
        let mut before = Position { mean: PRIOR, at: now, ..Position::default() };
        let chance = |index: usize| {
            let own = self.positions.get(index).copied().unwrap_or_default();
            let behind = if index == 0 { 0 } else { before.at.saturating_sub(own.at) };
            let count = own.count * freshness(behind);
            let weight = if index == 0 && own.count > 0.0 { WEIGHT / (1.0 + own.count) } else { WEIGHT };
            let mean = (own.mean * count + before.mean * weight) / (count + weight);
            let at = if own.count > 0.0 { own.at } else { before.at };
            before = Position { mean, at, ..own };
            let certain = own.count * freshness(now.saturating_sub(own.at)) + 1.0;
            let variance = (mean * (1.0 - mean)).max(FLOOR);
            Chance { mean, high: (mean + OPTIMISM * (variance / certain).sqrt()).min(1.0) }
        };
        (0..depth).map(chance).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn means(acceptance: &Acceptance, depth: usize) -> Vec<f64> {
        acceptance.chances(depth, 1).iter().map(|chance| chance.mean).collect()
    }

    #[test]
    fn before_any_round_every_position_is_the_prior() {
        assert_eq!(means(&Acceptance::default(), 3), [PRIOR; 3]);
    }

    #[test]
    fn each_position_is_judged_given_those_before_it() {
        let mut acceptance = Acceptance::default();
        // Three of four rounds keep the first draft, two of these three the second, none the third.
        for round in 0..40 {
            acceptance.learn([0, 1, 2, 2][round % 4], true, 1);
        }
        let means = means(&acceptance, 4);
        for (mean, expected) in means.iter().zip([0.75, 0.67, 0.04]) {
            assert!((mean - expected).abs() < 0.1, "{means:?}");
        }
        assert!(means[3] < PRIOR, "a position without outcomes leans on the one before: {means:?}");
    }

    #[test]
    fn a_new_text_is_expected_to_lie_between_the_last_one_and_the_typical_one() {
        let mut acceptance = Acceptance::default();
        let learn = |acceptance: &mut Acceptance, accepted: usize, rounds: std::ops::Range<u64>| {
            for round in rounds {
                acceptance.learn(accepted, accepted == 0, round);
            }
        };
        for text in 0..4 {
            learn(&mut acceptance, 1, 40 * text..40 * (text + 1));
            acceptance.another_text();
        }
        learn(&mut acceptance, 0, 160..200);
        acceptance.another_text();
        let mean = acceptance.positions[0].mean;
        assert!((0.3..0.6).contains(&mean), "four good texts and a bad one: {mean}");
        learn(&mut acceptance, 1, 200..206);
        assert!(acceptance.positions[0].mean > 0.6, "and six rounds are enough to think again");
    }

    #[test]
    fn texts_without_drafts_leave_everything_as_it_was() {
        let mut acceptance = Acceptance::default();
        for round in 0..40 {
            acceptance.learn(1, false, round);
        }
        acceptance.another_text();
        for round in 40..80 {
            acceptance.learn(0, true, round);
        }
        acceptance.another_text();
        let before = acceptance.clone();
        (0..5).for_each(|_| acceptance.another_text());
        assert_eq!(acceptance, before);
    }

    #[test]
    fn a_change_of_text_is_noticed_within_a_few_rounds() {
        let mut acceptance = Acceptance::default();
        let calm =
            (0..100).filter(|round| acceptance.learn(usize::from(round % 5 > 0), round % 5 == 0, *round));
        assert_eq!(calm.count(), 0);
        let noticed = (100..120).position(|round| acceptance.learn(0, true, round));
        assert!(noticed.is_some_and(|rounds| rounds < 10), "{noticed:?}");
        assert!(acceptance.positions[0].mean < 0.5);
    }
}
