//! Two hundred schemas on a small model: what ends is valid, and speculation changes no text.

mod support;

use std::{ops::ControlFlow, rc::Rc, sync::Arc};

use foretoken_draft_ngram::{NgramDrafter, NgramOptions};
use foretoken_grammar::{
    CompiledGrammar, JsonOptions, TokenTable,
    testkit::{json_tokens, schemas},
};
use foretoken_model_base::{LoadOptions, Model};
use foretoken_runner::{Event, FinishReason, Request, Runner};
use foretoken_sample::{SamplingOptions, Seed};
use foretoken_speculate::DraftPolicy;
use mlx_rs::Device;
use serde_json::Value;
use support::golden;

/// Long enough for most answers of a model that draws at random.
const TOKENS: usize = 90;

/// Answers that must come to an end by themselves; the others run out of budget.
const COMPLETE: usize = 120;

struct Bench {
    runner: Runner,
    table: TokenTable,
    tokens: Vec<Vec<u8>>,
}

impl Bench {
    fn new() -> Self {
        Device::try_default().expect("MLX answers");
        Device::set_default(&Device::cpu());
        let loaded = foretoken_models::load(&golden("llama"), LoadOptions::cpu()).expect("the golden model");
        let model: Rc<dyn Model> = Rc::from(loaded.model);
        let mut tokens = json_tokens();
        let end = tokens.len() as u32 - 1;
        tokens.resize(model.facts().vocabulary, Vec::new());
        let table = TokenTable::from_bytes(&tokens, &[end]).expect("a table");
        let drafter = NgramDrafter::new(NgramOptions::default()).expect("a drafter");
        let runner = Runner::new(model).with_drafter(Rc::new(drafter), Some(DraftPolicy::Constant(4)));
        Self { runner, table, tokens }
    }

    /// The answer's ids, whether it ended by itself, and how many drafts were accepted.
    fn ask(&mut self, schema: &Value, seed: u64, speculate: bool) -> (Vec<u32>, bool, usize) {
        let options = JsonOptions::default();
        let grammar = CompiledGrammar::json_schema(&self.table, &schema.to_string(), &options)
            .unwrap_or_else(|error| panic!("{schema}: {error}"));
        let request = Request {
            max_tokens: Some(TOKENS),
            ends: self.table.ends().to_vec(),
            sampling: SamplingOptions {
                temperature: 0.9,
                repeat_penalty: 1.1,
                logprobs: Some(1),
                seed: Seed::Fixed(seed),
                ..SamplingOptions::greedy()
            },
            grammar: Some(Arc::new(grammar)),
            speculate,
            ..Request::greedy([7, 21, 3, 90])
        };
        let mut ids = Vec::new();
        let mut sink = |event: Event| {
            if let Event::Token { id, logprobs, .. } = event {
                assert!(logprobs.is_some());
                ids.push(id);
            }
            ControlFlow::<FinishReason>::Continue(())
        };
        let report =
            self.runner.generate(&request, &mut sink).unwrap_or_else(|error| panic!("{schema}: {error}"));
        (ids, report.finish_reason == FinishReason::Stop, report.statistics.accepted)
    }

    fn text(&self, ids: &[u32]) -> String {
        let bytes = ids.iter().flat_map(|&id| self.tokens[id as usize].clone()).collect();
        String::from_utf8(bytes).expect("tokens are text")
    }
}

#[test]
fn two_hundred_schemas_with_and_without_speculation() {
    let mut bench = Bench::new();
    let (mut complete, mut accepted) = (0, 0);
    for (seed, schema) in schemas(200).iter().enumerate() {
        let (plain, stopped, _) = bench.ask(schema, seed as u64, false);
        let (ids, _, drafts) = bench.ask(schema, seed as u64, true);
        assert_eq!(bench.text(&ids), bench.text(&plain), "{schema}");
        accepted += drafts;
        if stopped {
            complete += 1;
            let answer = bench.text(&ids);
            let value: Value =
                serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{answer}: {error}"));
            assert!(jsonschema::is_valid(schema, &value), "{answer} is no answer to {schema}");
        }
    }
    println!("{complete} of 200 answers came to an end; {accepted} drafts were accepted");
    assert!(complete >= COMPLETE, "{complete} of 200 came to an end");
    assert!(accepted > 0);
}
