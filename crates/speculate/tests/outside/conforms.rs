//! What every drafter's crate tests: the suite, and one text.

use std::rc::Rc;

use foretoken_counting::Counting;
use foretoken_speculate::testkit::{Request, ScriptedTarget, conformance::check, on_cpu, play};

#[test]
fn counting_conforms_and_saves_rounds() {
    on_cpu();
    let target = Rc::new(ScriptedTarget::new(50, |tokens| tokens.len() as u32));
    let drafter = Rc::new(Counting::new(50));
    let seen = check(target.as_ref(), drafter.as_ref(), &[0, 1, 2, 3, 4]).expect("conforms");
    assert!(seen.offered > 0);
    let done = play(target, Some(drafter), &Request::greedy(&[0, 1], 20, 4)).expect("decodes");
    assert_eq!(done.ids, (2..22).collect::<Vec<u32>>());
    assert_eq!(done.statistics.rounds.len(), 4);
}
