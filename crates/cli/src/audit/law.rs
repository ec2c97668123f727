//! Whether speculative draws follow the target's distribution: the first token after a prompt, many times.

use std::{collections::BTreeMap, ops::ControlFlow};

use foretoken_runner::{Event, FinishReason, Request, Runner, RunnerError};
use foretoken_sample::{RuleChoice, SamplingOptions, Seed};
use foretoken_speculate::DraftPolicy;

use super::parity::Plan;

/// Tokens expected less often than this are counted together.
const RARE: f64 = 5.0;
/// One run in a thousand may exceed the bound by chance.
const CHANCE: f64 = 1e-3;
/// A difference is called visible when 95 runs of 100 would show it.
const MISSED: f64 = 0.05;

/// The law of one token, counted and exact.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Law {
    pub(super) draws: usize,
    /// Kinds of tokens that are told apart.
    pub(super) cells: usize,
    /// Total variation between what was drawn and the exact law.
    pub(super) distance: f64,
    /// What chance alone exceeds once in a thousand runs.
    pub(super) bound: f64,
    /// A true difference at least this large would be seen in 95 of 100 runs.
    pub(super) visible: f64,
}

impl Law {
    /// Draws the first token of the first prompt `draws` times with drafts under the ratio rule, and
    /// compares it with the law that the plain model states.
    pub(super) fn test(runner: &mut Runner, plan: &Plan, draws: usize) -> Result<Self, RunnerError> {
        let prompt = plan.prompts.first().map_or(&[][..], Vec::as_slice);
        let depth = plan.depths.iter().copied().max().unwrap_or(1);
        let exact = exact(runner, prompt)?;
        let mut counts = BTreeMap::new();
        for draw in 0..draws as u64 {
            // The second token is there so that the first can be a draft.
            let request = Request {
                max_tokens: Some(2),
                sampling: SamplingOptions {
                    temperature: 1.0,
                    seed: Seed::Fresh(draw),
                    rule: RuleChoice::Ratio,
                    ..SamplingOptions::greedy()
                },
                policy: Some(DraftPolicy::Constant(depth)),
                ..Request::greedy(prompt)
            };
            if let Some(first) = super::parity::answer(runner, &request)?.ids.first() {
                *counts.entry(*first).or_insert(0_usize) += 1;
            }
        }
        Ok(Self::of(&exact, &counts, draws))
    }

    /// Total variation of counts from a law, with the bound for so many draws: its expectation is at most
    /// ½ Σ √(p(1−p)/n), and it exceeds its expectation by √(ln(1/α)/2n) with probability α at most (McDiarmid:
    /// On the method of bounded differences, 1989).
    pub(super) fn of(exact: &[f64], counts: &BTreeMap<u32, usize>, draws: usize) -> Self {
        let n = draws.max(1) as f64;
        let (mut cells, mut distance, mut expected) = (0, 0.0, 0.0);
        let mut rest = (0.0, 0.0);
        let mut cell = |p: f64, share: f64| {
            cells += 1;
            distance += (share - p).abs() / 2.0;
            expected += (p * (1.0 - p).max(0.0) / n).sqrt() / 2.0;
        };
        for (id, &p) in exact.iter().enumerate() {
            let share = counts.get(&(id as u32)).copied().unwrap_or(0) as f64 / n;
            if p * n < RARE {
                rest = (rest.0 + p, rest.1 + share);
            } else {
                cell(p, share);
            }
        }
        cell(rest.0.min(1.0), rest.1);
        let deviation = |alpha: f64| ((1.0 / alpha).ln() / (2.0 * n)).sqrt();
        let bound = expected + deviation(CHANCE);
        Self { draws, cells, distance, bound, visible: bound + expected + deviation(MISSED) }
    }

    pub(super) fn holds(&self) -> bool {
        self.distance <= self.bound
    }
}

/// The plain model's law of the first token, from the log probabilities that it reports.
fn exact(runner: &mut Runner, prompt: &[u32]) -> Result<Vec<f64>, RunnerError> {
    let vocabulary = runner.model().facts().vocabulary;
    let request = Request {
        max_tokens: Some(1),
        sampling: SamplingOptions { logprobs: Some(vocabulary), ..SamplingOptions::greedy() },
        speculate: false,
        ..Request::greedy(prompt)
    };
    let mut law = vec![0.0; vocabulary];
    let mut sink = |event: Event| {
        if let Event::Token { logprobs: Some(of), .. } = event {
            of.top.iter().for_each(|&(id, logprob)| law[id as usize] = f64::from(logprob).exp());
        }
        ControlFlow::<FinishReason>::Continue(())
    };
    runner.generate(&request, &mut sink)?;
    Ok(law)
}

#[cfg(test)]
mod tests {
    use foretoken_sample::SplitMix64;

    use super::*;

    const LAW: [f64; 5] = [0.5, 0.25, 0.15, 0.08, 0.02];

    fn drawn(law: &[f64], draws: usize) -> BTreeMap<u32, usize> {
        let mut numbers = SplitMix64::new(3);
        let mut counts = BTreeMap::new();
        for _ in 0..draws {
            let mut left = (numbers.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            let found = law.iter().position(|p| {
                left -= p;
                left < 0.0
            });
            *counts.entry(found.unwrap_or(0) as u32).or_insert(0) += 1;
        }
        counts
    }

    #[test]
    fn honest_draws_pass_and_others_do_not() {
        let honest = Law::of(&LAW, &drawn(&LAW, 400), 400);
        assert!(honest.holds(), "{honest:?}");
        // Always the likeliest token, and a law that forgot the residual.
        assert!(!Law::of(&LAW, &BTreeMap::from([(0, 400)]), 400).holds());
        let off = [0.2, 0.25, 0.15, 0.2, 0.2];
        assert!(!Law::of(&LAW, &drawn(&off, 400), 400).holds());
    }

    #[test]
    fn more_draws_see_smaller_differences() {
        let few = Law::of(&LAW, &drawn(&LAW, 100), 100);
        let many = Law::of(&LAW, &drawn(&LAW, 10_000), 10_000);
        assert!(many.visible < few.visible / 4.0 && few.visible > few.bound);
        // A difference that is called visible is seen.
        let shift = many.visible;
        let off = [LAW[0] - shift, LAW[1] + shift, LAW[2], LAW[3], LAW[4]];
        assert!(!Law::of(&LAW, &drawn(&off, 10_000), 10_000).holds());
    }
}
