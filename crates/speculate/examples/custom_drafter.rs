//! A drafter in a crate of one's own: offers what followed the last token the time before.
//!
//! `cargo run -p foretoken-speculate --features testkit --example custom_drafter`
use foretoken_speculate::testkit::{Request, ScriptedTarget, conformance, on_cpu, play};
use foretoken_speculate::*;
use std::rc::Rc;

/// The persistent half: facts, and a session for each request.
struct Echo(DrafterFacts);

impl Drafter for Echo {
    fn facts(&self) -> &DrafterFacts {
        &self.0
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        Ok(Box::new(Session { next: at }))
    }
}

/// One request: the slot of the next committed run. The tokens are lent with every call.
struct Session {
    next: usize,
}

impl DraftSession for Session {
    fn propose(
        &mut self,
        cx: &mut DraftCx<'_>,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        // The continuation of the last place where `current` stood, as certain tokens.
        let committed = &cx.tokens[..self.next];
        let Some(last) = committed.iter().rposition(|&t| t == current) else { return Ok(()) };
        let found = &cx.tokens[last + 1..];
        match found.len().min(out.room()) {
            0 => Ok(()),
            count => out.known(&found[..count]),
        }
    }

    fn committed(&mut self, _: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        self.next = run.after(self.next)?;
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    on_cpu();
    let target = Rc::new(ScriptedTarget::new(10, |tokens| tokens.len() as u32 % 5));
    let drafter = Rc::new(Echo(DrafterFacts::new("echo", 8)));
    println!("{:?}", conformance::check(target.as_ref(), drafter.as_ref(), &[0, 1, 2, 3, 4, 0, 1])?);
    let done = play(target, Some(drafter), &Request::greedy(&[0, 1, 2], 30, 4))?;
    println!("{:?}\n(drafted, accepted) by round: {:?}", done.ids, done.statistics.rounds);
    Ok(())
}
