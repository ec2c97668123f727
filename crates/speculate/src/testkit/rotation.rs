//! A controller that measures nothing and tries everything.

use foretoken_sample::SplitMix64;

use crate::{Choice, Controller, Outcome, Situation, Source};

/// Picks plain decoding and every source at every depth, in an order of chance in which each kind of round
/// comes to follow each other kind.
pub struct Rotation {
    choices: Vec<Choice>,
    order: SplitMix64,
    next: usize,
}

impl Rotation {
    /// Over these sources, at most `deepest` drafts each; `seed` gives the order.
    pub fn new(sources: &[Source], deepest: usize, seed: u64) -> Self {
        let depths = |(index, source): (usize, &Source)| {
            let choice = move |depth| Choice { source: Some(index), depth };
            (1..=deepest.min(source.max_depth)).map(choice).collect::<Vec<_>>()
        };
        let choices =
            [Choice::PLAIN].into_iter().chain(sources.iter().enumerate().flat_map(depths)).collect();
        Self { choices, order: SplitMix64::new(seed), next: 0 }
    }
}

impl Controller for Rotation {
    fn choose(&mut self, _: &Situation) -> Choice {
        self.choices[self.next]
    }

    fn observe(&mut self, outcome: &Outcome) {
        // What was chosen before a token that was under way is still to come.
        if !outcome.beside {
            self.next = (self.order.next_u64() % self.choices.len() as u64) as usize;
        }
    }
}
