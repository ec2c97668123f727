//! Several drafters side by side: whatever proposes, the text is the one of plain decoding.

use std::{rc::Rc, time::Duration};

use foretoken_model_base::Model;
use foretoken_sample::{RuleChoice, SamplingOptions, Seed};

use super::Violation;
use crate::{
    Clock, DraftPolicy, Drafter, Speculation,
    testkit::{Played, Request, Rotation, play_set},
};

/// Tokens of every answer.
const TOKENS: usize = 40;
/// The deepest proposals that are forced.
const DEEPEST: usize = 5;

/// What was drafted while a set was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetSummary {
    /// Answers compared.
    pub answers: usize,
    /// Tokens drafted by all of the set.
    pub drafted: usize,
    /// Drafts accepted.
    pub accepted: usize,
    /// Waits for draft ids that a tail followed.
    pub extra_waits: usize,
}

/// Checks a set of drafters against a model: greedy under both rules and seeded, each under every policy and
/// with every source forced in turn, alone and with the tails of others. Every drafter should pass
/// [`check`](super::check) first.
pub fn check_set(
    model: &Rc<dyn Model>,
    drafters: &[Rc<dyn Drafter>],
    prompt: &[u32],
) -> Result<SetSummary, Violation> {
    let set = |policy| Speculation::new(drafters.to_vec(), policy);
    let setup = |err: crate::SpeculateError| Violation::Setup(err.to_string());
    set(DraftPolicy::Constant(1)).check().map_err(setup)?;
    let mut seen = SetSummary::default();
    for (rule, options) in rules() {
        let asked = Request { options, ..Request::greedy(prompt, TOKENS, 0) };
        let want = play_set(model.clone(), &Speculation::none(), &asked).map_err(setup)?;
        for (policy, speculation) in policies(&set) {
            let got = play_set(model.clone(), &speculation, &asked).map_err(setup)?;
            same(&got, &want, &format!("{policy}, {rule}"))?;
            seen.answers += 1;
            seen.drafted += got.statistics.drafted;
            seen.accepted += got.statistics.accepted;
            seen.extra_waits += got.statistics.extra_waits;
        }
    }
    Ok(seen)
}

/// Sampling whose text does not depend on drafts.
fn rules() -> [(&'static str, SamplingOptions); 3] {
    let greedy = SamplingOptions::greedy();
    let seeded = SamplingOptions { temperature: 1.0, seed: Seed::Fixed(11), ..greedy.clone() };
    [
        ("greedy by ratio", SamplingOptions { rule: RuleChoice::Ratio, ..greedy.clone() }),
        ("greedy by coupling", SamplingOptions { rule: RuleChoice::Coupled, ..greedy }),
        ("seeded", seeded),
    ]
}

fn policies(set: &impl Fn(DraftPolicy) -> Speculation) -> Vec<(String, Speculation)> {
    let throughput = |frozen| DraftPolicy::Throughput { initial: 3, max: DEEPEST, frozen };
    let mut all = vec![
        ("constant 1".into(), set(DraftPolicy::Constant(1))),
        ("constant 4".into(), set(DraftPolicy::Constant(4))),
        ("heuristic".into(), set(DraftPolicy::Heuristic { initial: 2, max: DEEPEST })),
        ("throughput".into(), set(throughput(false)).with_clock(Rc::new(Ticking::default()))),
        ("throughput, frozen".into(), set(throughput(true))),
    ];
    for start in 0..4 {
        let rotation = move |sources: Vec<_>| Box::new(Rotation::new(&sources, DEEPEST, start)) as Box<_>;
        // Tails are offered only to those who were right before: everybody was.
        let set = set(throughput(false)).with_controller(rotation);
        set.estimates.borrow_mut().trust(set.drafters.iter().map(|drafter| drafter.facts().name));
        all.push((format!("rotation from {start}"), set));
    }
    all
}

/// A clock that says something else at each look.
#[derive(Default)]
struct Ticking(std::cell::Cell<u64>);

impl Clock for Ticking {
    fn now(&self) -> Duration {
        let looks = self.0.get() + 1;
        self.0.set(looks);
        Duration::from_micros(looks * 1_000 + looks * looks % 97 * 10)
    }
}

fn same(got: &Played, want: &Played, how: &str) -> Result<(), Violation> {
    if let Some(error) = &got.error {
        return Err(Violation::Setup(format!("{how}: {error}")));
    }
    if let Some(reason) = got.runs.iter().find_map(|run| run.speculation_ended.clone()) {
        return Err(Violation::Failed { call: "a session of the set", reason });
    }
    match got.ids.iter().zip(&want.ids).position(|(got, want)| got != want) {
        None => Ok(()),
        Some(at) => Err(Violation::Text { how: how.into(), at, expected: want.ids[at], got: got.ids[at] }),
    }
}
