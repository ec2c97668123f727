//! Plain answers against speculative ones, token by token.

use std::ops::ControlFlow;

use foretoken_runner::{Event, FinishReason, Request, Runner, RunnerError};
use foretoken_sample::{SamplingOptions, Seed};
use foretoken_speculate::DraftPolicy;

/// Kernels for one row and for several round float32 sums apart by less than this.
pub(super) const F32_TOLERANCE: f32 = 1e-3;
/// Two steps of bfloat16 for logits between 32 and 64.
pub(super) const BF16_TOLERANCE: f32 = 0.5;
/// Scores that are equal but for the rounding of one addition.
const TIE: f32 = 1e-6;
/// The temperature of seeded answers.
const TEMPERATURE: f32 = 0.8;

/// What to compare.
pub(super) struct Plan {
    pub(super) prompts: Vec<Vec<u32>>,
    pub(super) depths: Vec<usize>,
    pub(super) seeds: u64,
    pub(super) max_tokens: usize,
    pub(super) ends: Vec<u32>,
    /// Margins below this may be rounding.
    pub(super) tolerance: f32,
}

/// One answer, plain and speculative.
#[derive(Debug, Clone)]
pub(super) struct Comparison {
    /// The prompt's place in the list, from 1.
    pub(super) prompt: usize,
    /// Absent for the greedy answer.
    pub(super) seed: Option<u64>,
    pub(super) depth: usize,
    /// Tokens of the plain answer.
    pub(super) tokens: usize,
    pub(super) drafted: usize,
    pub(super) accepted: usize,
    pub(super) outcome: Outcome,
}

/// How two answers relate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Outcome {
    Equal,
    /// They part at a token whose two best scores are equal.
    Tie(Parting),
    /// They part where rounding can change the best token.
    SmallMargin(Parting),
    /// They part where rounding cannot explain it.
    Fault(Parting),
}

/// Where two answers part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Parting {
    /// The token's place in the answer, from 0.
    pub(super) at: usize,
    pub(super) plain: Option<u32>,
    pub(super) speculative: Option<u32>,
    /// How far the plain answer's token lay above the next best.
    pub(super) margin: f32,
}

/// An answer with the margin of each token.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) ids: Vec<u32>,
    pub(super) margins: Vec<f32>,
    drafted: usize,
    accepted: usize,
}

impl Plan {
    /// Every prompt, seed and depth.
    pub(super) fn compare(&self, runner: &mut Runner) -> Result<Vec<Comparison>, RunnerError> {
        let mut comparisons = Vec::new();
        for (number, prompt) in self.prompts.iter().enumerate() {
            for seed in std::iter::once(None).chain((0..self.seeds).map(Some)) {
                let plain = answer(runner, &self.request(prompt, seed, 0))?;
                for &depth in &self.depths {
                    let fast = answer(runner, &self.request(prompt, seed, depth))?;
                    comparisons.push(Comparison {
                        prompt: number + 1,
                        seed,
                        depth,
                        tokens: plain.ids.len(),
                        drafted: fast.drafted,
                        accepted: fast.accepted,
                        outcome: classify(&plain, &fast, self.tolerance),
                    });
                }
            }
        }
        Ok(comparisons)
    }

    fn request(&self, prompt: &[u32], seed: Option<u64>, depth: usize) -> Request {
        let sampling = match seed {
            None => SamplingOptions::greedy(),
            Some(seed) => SamplingOptions {
                temperature: TEMPERATURE,
                seed: Seed::Fixed(seed),
                ..SamplingOptions::greedy()
            },
        };
        Request {
            max_tokens: Some(self.max_tokens),
            sampling: SamplingOptions { margins: true, ..sampling },
            ends: self.ends.clone(),
            policy: Some(DraftPolicy::Constant(depth)),
            ..Request::greedy(prompt)
        }
    }
}

/// Serves a request and keeps what an audit looks at.
pub(super) fn answer(runner: &mut Runner, request: &Request) -> Result<Answer, RunnerError> {
    let mut answer = Answer::default();
    let mut sink = |event: Event| {
        if let Event::Token { id, margin, .. } = event {
            answer.ids.push(id);
            answer.margins.push(margin.unwrap_or(f32::INFINITY));
        }
        ControlFlow::<FinishReason>::Continue(())
    };
    let report = runner.generate(request, &mut sink)?;
    (answer.drafted, answer.accepted) = (report.statistics.drafted, report.statistics.accepted);
    Ok(answer)
}

/// Where two answers part, and whether rounding can be the reason. After that place they answer different
/// texts and say nothing more.
pub(super) fn classify(plain: &Answer, fast: &Answer, tolerance: f32) -> Outcome {
    let longest = plain.ids.len().max(fast.ids.len());
    let parts = |&at: &usize| plain.ids.get(at) != fast.ids.get(at);
    let Some(at) = (0..longest).find(parts) else {
        return Outcome::Equal;
    };
    // Where the plain answer has ended, the other one's margin is the only one there is.
    let margin = plain.margins.get(at).or(fast.margins.get(at)).copied().unwrap_or(f32::INFINITY);
    let parting =
        Parting { at, plain: plain.ids.get(at).copied(), speculative: fast.ids.get(at).copied(), margin };
    match margin {
        margin if margin < TIE => Outcome::Tie(parting),
        margin if margin < tolerance => Outcome::SmallMargin(parting),
        _ => Outcome::Fault(parting),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(ids: &[u32], margins: &[f32]) -> Answer {
        Answer { ids: ids.to_vec(), margins: margins.to_vec(), ..Answer::default() }
    }

    #[test]
    fn equal_answers_are_equal() {
        let one = said(&[1, 2, 3], &[1.0, 0.0, 1.0]);
        assert_eq!(classify(&one, &said(&[1, 2, 3], &[1.0; 3]), F32_TOLERANCE), Outcome::Equal);
        assert_eq!(classify(&said(&[], &[]), &said(&[], &[]), F32_TOLERANCE), Outcome::Equal);
    }

    #[test]
    fn a_difference_is_as_bad_as_its_margin_is_large() {
        let parted = |margin: f32| {
            let plain = said(&[1, 2, 3], &[1.0, margin, 1.0]);
            classify(&plain, &said(&[1, 4, 3], &[1.0, 0.5, 1.0]), F32_TOLERANCE)
        };
        let parting = |margin| Parting { at: 1, plain: Some(2), speculative: Some(4), margin };
        assert_eq!(parted(0.0), Outcome::Tie(parting(0.0)));
        assert_eq!(parted(5e-4), Outcome::SmallMargin(parting(5e-4)));
        assert_eq!(parted(2e-3), Outcome::Fault(parting(2e-3)));
    }

    #[test]
    fn an_answer_that_goes_on_or_stops_early_is_a_difference() {
        let (short, long) = (said(&[1], &[1.0]), said(&[1, 2], &[1.0, 3.0]));
        assert!(matches!(classify(&short, &long, F32_TOLERANCE), Outcome::Fault(p) if p.plain.is_none()));
        assert!(
            matches!(classify(&long, &short, F32_TOLERANCE), Outcome::Fault(p) if p.speculative.is_none())
        );
    }
}
