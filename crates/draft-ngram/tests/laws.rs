//! Look-ups under both rules: certain drafts leave the law of the target's tokens alone.

use std::rc::Rc;

use foretoken_draft_ngram::{NgramDrafter, NgramOptions};
use foretoken_model_base::Model;
use foretoken_sample::{RuleChoice, SamplingOptions};
use foretoken_speculate::{
    Drafter,
    testkit::{Request, TableModel, first_two_tokens, on_cpu},
};

/// Requests per law.
const REQUESTS: u64 = 800;

/// Ends as it began; what followed there, and is offered again, are tokens that the target likes.
fn prompt(model: &TableModel) -> Vec<u32> {
    let best = |before: u32, last: u32| {
        let logits = model.logits(before, last);
        (0..logits.len() as u32)
            .max_by(|&a, &b| logits[a as usize].total_cmp(&logits[b as usize]))
            .expect("ids")
    };
    let first = best(3, 5);
    vec![1, 3, 5, first, best(5, first), 0, 1, 3, 5]
}

#[test]
fn the_first_tokens_follow_the_targets_law() {
    on_cpu();
    let table = TableModel::new(11);
    let prompt = prompt(&table);
    let model: Rc<dyn Model> = Rc::new(table);
    let drafter: Rc<dyn Drafter> =
        Rc::new(NgramDrafter::new(NgramOptions::default()).expect("legal options"));
    for rule in [RuleChoice::Ratio, RuleChoice::Coupled] {
        for (temperature, top_k) in [(1.0, 0), (0.6, 4)] {
            let options = SamplingOptions { temperature, top_k, rule, ..SamplingOptions::greedy() };
            let request = Request { options, ..Request::greedy(&prompt, 3, 2) };
            let (fit, did) = first_two_tokens(&model, &drafter, &request, REQUESTS).expect("requests");
            println!("{rule:?}: {:.2} of the bound, {}/{}", fit.share(), did.accepted, did.drafted);
            assert!(fit.holds(), "{rule:?} at {temperature}: {fit:?}");
            assert!(did.accepted > 0 && did.mismatches > 0, "{rule:?}: some look-ups are right");
        }
    }
}
