//! A drafter in a crate of one's own: offers what followed the last token the time before.
//!
//! `cargo run -p foretoken-speculate --features testkit --example custom_drafter`

use std::rc::Rc;

use foretoken_speculate::{
    CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter, DrafterFacts,
    testkit::{Request, ScriptedTarget, conformance, on_cpu, play},
};

/// The persistent half: facts, and a session for each request.
struct Echo(DrafterFacts);

impl Drafter for Echo {
    fn facts(&self) -> &DrafterFacts {
        &self.0
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        Ok(Box::new(Session { at, tokens: Vec::new() }))
    }
}

/// One request: the tokens committed from slot `at` on.
struct Session {
    at: usize,
    tokens: Vec<u32>,
}

impl DraftSession for Session {
    fn propose(
        &mut self,
        _: &mut DraftCx<'_>,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        // The continuation of the last place where `current` stood, as certain tokens.
        let Some(last) = self.tokens.iter().rposition(|&t| t == current) else { return Ok(()) };
        let found = &self.tokens[last + 1..];
        match &found[..found.len().min(out.room())] {
            [] => Ok(()),
            ids => out.known(ids),
        }
    }

    fn committed(&mut self, _: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        let expected = self.at + self.tokens.len();
        if run.slot != expected {
            return Err(DraftError::Gap { expected, got: run.slot });
        }
        self.tokens.extend(run.ids);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    on_cpu();
    let facts = DrafterFacts::new("echo", 8);
    let (target, drafter) = (Rc::new(ScriptedTarget::new(10, |t| t.len() as u32 % 5)), Rc::new(Echo(facts)));
    conformance::check(target.as_ref(), drafter.as_ref(), &[0, 1, 2, 3, 4])?;
    let done = play(target, Some(drafter), &Request::greedy(&[0, 1, 2], 30, 4))?;
    println!("{:?}\n[drafted, accepted] by round: {:?}", done.ids, done.statistics.rounds);
    Ok(())
}
