//! The end of the context, with a drafter that has much to say there.

use std::{ops::ControlFlow, rc::Rc};

use foretoken_draft_ngram::{NgramDrafter, NgramOptions};
use foretoken_runner::{Event, FinishReason, Request, Runner};
use foretoken_speculate::{
    DraftPolicy,
    testkit::{ScriptedTarget, on_cpu},
};

#[test]
fn h20_look_ups_do_not_run_past_the_context() {
    on_cpu();
    let prompt: Vec<u32> = (0..28).map(|slot| slot % 3 + 1).collect();
    for depth in 1..=8 {
        let target = Rc::new(ScriptedTarget::new(5, |tokens| tokens.len() as u32 % 3 + 1).context(32));
        let drafter = NgramDrafter::new(NgramOptions::default()).expect("legal options");
        let mut runner = Runner::new(target.clone())
            .with_drafter(Rc::new(drafter), Some(DraftPolicy::Constant(depth)))
            .with_prefix_cache(None);
        let mut ids = Vec::new();
        let mut sink = |event: Event| {
            if let Event::Token { id, .. } = event {
                ids.push(id);
            }
            ControlFlow::Continue(())
        };
        let report = runner.generate(&Request::greedy(prompt.as_slice()), &mut sink).expect("an answer");
        assert_eq!(ids, [2, 3, 1, 2], "depth {depth}");
        assert_eq!(report.finish_reason, FinishReason::Length, "depth {depth}");
        assert!(report.statistics.accepted > 0, "depth {depth}");
        assert!(target.largest_position() < Some(32), "depth {depth}: {:?}", target.largest_position());
    }
}
