//! Twenty JSON schemas on SmolLM2: valid answers, equal texts with and without speculation, and the speed.

use std::{rc::Rc, sync::Arc, time::Instant};

use anyhow::Result;
use foretoken_benches::{head, report, serve, smollm2, tokenizer};
use foretoken_grammar::{CompiledGrammar, JsonOptions, TokenTable, testkit::schemas};
use foretoken_runner::{FinishReason, Report, Request, Runner};
use foretoken_sample::{SamplingOptions, Seed};
use foretoken_speculate::DraftPolicy;
use foretoken_text::{ChatInput, Message, Tokenizer};
use serde_json::{Value, json};

const SCHEMAS: usize = 20;
const TOKENS: usize = 200;

fn main() -> Result<()> {
    let model = smollm2()?;
    let tokenizer = Arc::new(tokenizer()?);
    let ends = tokenizer.end_tokens_with(&model.facts().end_tokens);
    let table = TokenTable::new(&tokenizer, model.facts().vocabulary, &ends)?;
    let mut runner = Runner::new(Rc::clone(&model))
        .with_drafter(head("seq", model.as_ref())?, Some(DraftPolicy::Constant(4)));
    let mut sum = Sum::default();
    for (seed, schema) in schemas(SCHEMAS).iter().enumerate() {
        let started = Instant::now();
        let text = schema.to_string();
        let grammar = CompiledGrammar::json_schema(&table, &text, &JsonOptions::default())?;
        sum.compile += started.elapsed().as_secs_f64();
        let question = format!("Answer with one JSON object for this schema: {text}");
        let messages = [Message::user(question.as_str())];
        let request = Request {
            max_tokens: Some(TOKENS),
            ends: ends.clone(),
            sampling: SamplingOptions {
                temperature: 0.7,
                seed: Seed::Fixed(seed as u64),
                ..SamplingOptions::greedy()
            },
            grammar: Some(Arc::new(grammar)),
            ..Request::greedy(tokenizer.encode_messages(&ChatInput::new(&messages))?)
        };
        let plain = answer(&mut runner, &Request { speculate: false, ..request.clone() }, &tokenizer)?;
        let fast = answer(&mut runner, &request, &tokenizer)?;
        sum.add(schema, plain, fast);
    }
    report("schemas", sum.facts());
    Ok(())
}

#[derive(Default)]
struct Sum {
    compile: f64,
    equal: usize,
    stopped: usize,
    valid: usize,
    plain_seconds: f64,
    fast_seconds: f64,
    tokens: usize,
    rounds: usize,
    extra_waits: usize,
}

impl Sum {
    fn add(&mut self, schema: &Value, plain: (String, Report), fast: (String, Report)) {
        self.equal += usize::from(plain.0 == fast.0);
        if fast.1.finish_reason == FinishReason::Stop {
            self.stopped += 1;
            let value = serde_json::from_str::<Value>(&fast.0);
            self.valid += usize::from(value.is_ok_and(|value| jsonschema::is_valid(schema, &value)));
        }
        self.plain_seconds += plain.1.timing.decode_seconds;
        self.fast_seconds += fast.1.timing.decode_seconds;
        self.tokens += fast.1.produced_tokens;
        self.rounds += fast.1.statistics.rounds.len();
        self.extra_waits += fast.1.statistics.extra_waits;
    }

    fn facts(&self) -> Value {
        json!({
            "schemas": SCHEMAS, "ended": self.stopped, "valid_of_ended": self.valid,
            "equal_texts": self.equal, "tokens": self.tokens,
            "tokens_per_round": self.tokens as f64 / self.rounds as f64,
            "extra_waits_per_round": self.extra_waits as f64 / self.rounds as f64,
            "speed_over_plain": self.plain_seconds / self.fast_seconds,
            "compile_milliseconds": self.compile * 1e3 / SCHEMAS as f64,
        })
    }
}

fn answer(runner: &mut Runner, request: &Request, tokenizer: &Tokenizer) -> Result<(String, Report)> {
    let (ids, report) = serve(runner, request)?;
    Ok((tokenizer.decode(&ids), report))
}
