//! A draft model under both rules: its guesses leave the law of the target's tokens alone.

use std::rc::Rc;

use foretoken_draft_model::{ModelDrafter, TokenTable, check_vocabulary};
use foretoken_model_base::Model;
use foretoken_sample::{RuleChoice, SamplingOptions};
use foretoken_speculate::{
    Drafter,
    testkit::{Request, TABLE_VOCABULARY, TableModel, first_two_tokens, on_cpu},
};

/// Requests per law.
const REQUESTS: u64 = 800;

/// Another table than the target's.
fn drafter(target: &dyn Model) -> Rc<dyn Drafter> {
    let names: Vec<Option<String>> = (0..TABLE_VOCABULARY).map(|id| Some(id.to_string())).collect();
    let table = TokenTable { tokens: &names, ends: &[] };
    let shared = check_vocabulary(&table, &table).expect("a table is like itself");
    Rc::new(ModelDrafter::new(shared, target.facts(), Rc::new(TableModel::new(12))).expect("the models fit"))
}

#[test]
fn the_first_tokens_follow_the_targets_law() {
    on_cpu();
    let model: Rc<dyn Model> = Rc::new(TableModel::new(11));
    let drafter = drafter(model.as_ref());
    for rule in [RuleChoice::Ratio, RuleChoice::Coupled] {
        for (temperature, top_k) in [(1.0, 0), (0.6, 4)] {
            let options = SamplingOptions { temperature, top_k, rule, ..SamplingOptions::greedy() };
            let request = Request { options, ..Request::greedy(&[1, 3, 5], 3, 2) };
            let (fit, did) = first_two_tokens(&model, &drafter, &request, REQUESTS).expect("requests");
            println!("{rule:?}: {:.2} of the bound, {}/{}", fit.share(), did.accepted, did.drafted);
            assert!(fit.holds(), "{rule:?} at {temperature}: {fit:?}");
            assert!(did.accepted > 0 && did.mismatches > 0, "{rule:?}: some drafts are kept");
        }
    }
}
