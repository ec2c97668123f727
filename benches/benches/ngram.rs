//! Prompt look-up on SmolLM2: a chat that asks for the same code with one name changed, where nearly every
//! token was there before, and one that asks for prose, where hardly any was.
//!
//! Each report compares the drafter with plain decoding in A B B A order within one run.

use std::rc::Rc;

use anyhow::{Result, ensure};
use foretoken_benches::{answer, chat, median, report, smollm2, token_hash};
use foretoken_draft_ngram::{NgramDrafter, NgramOptions};
use foretoken_model_base::Model;
use foretoken_runner::{Report, Runner};
use foretoken_speculate::DraftPolicy;
use serde_json::json;

/// Tokens per round that editing code must reach at some depth.
const EDIT_TOKENS_PER_ROUND: f64 = 2.5;

const DEPTHS: [usize; 3] = [2, 4, 16];
const ADAPTIVE: DraftPolicy = DraftPolicy::Throughput { initial: 4, max: 16, frozen: false };

const PROSE: &str = "Write a short story about a lighthouse keeper who finds a letter in a bottle.";
const EDIT: &str =
    "Repeat this code exactly, but rename the class Counter to Tally. Answer with the code only.\n\n";
const CODE: &str = include_str!("ngram_code.txt");

fn main() -> Result<()> {
    let model = smollm2()?;
    let mut best = 0.0_f64;
    for (kind, message, tokens) in [("edit", format!("{EDIT}{CODE}"), 300), ("prose", PROSE.into(), 160)] {
        let prompt = chat(&message)?;
        for (name, policy) in policies() {
            let measured = compare(&model, policy, &prompt, tokens)?;
            let name = format!("ngram/{kind}/{name}");
            measured.tell(&name);
            if kind == "edit" {
                best = best.max(measured.drafted.tokens_per_round());
            }
        }
    }
    ensure!(best >= EDIT_TOKENS_PER_ROUND, "editing code: {best:.2} tokens per round at the best depth");
    Ok(())
}

fn policies() -> Vec<(String, DraftPolicy)> {
    let fixed = DEPTHS.map(|depth| (format!("depth-{depth}"), DraftPolicy::Constant(depth)));
    fixed.into_iter().chain([("throughput".into(), ADAPTIVE)]).collect()
}

/// What a pair of runners came to.
struct Compared {
    drafted: Report,
    hashes: [String; 2],
    /// Tokens per second, drafted and plain.
    speeds: [f64; 2],
}

impl Compared {
    fn tell(&self, name: &str) {
        let ([drafted_hash, plain_hash], [drafted, plain]) = (&self.hashes, self.speeds);
        let statistics = &self.drafted.statistics;
        report(
            name,
            json!({
                "token_hash": drafted_hash,
                "plain_hash": plain_hash,
                "tokens": self.drafted.usage.completion_tokens,
                "tokens_per_round": self.drafted.tokens_per_round(),
                "accepted": statistics.accepted,
                "drafted": statistics.drafted,
                "tokens_per_second": drafted,
                "plain_tokens_per_second": plain,
                "ratio": drafted / plain,
            }),
        );
    }
}

/// Plain, drafted, drafted, plain.
fn compare(model: &Rc<dyn Model>, policy: DraftPolicy, prompt: &[u32], tokens: usize) -> Result<Compared> {
    let mut plain = Runner::new(model.clone()).with_prefix_cache(None);
    let drafter = Rc::new(NgramDrafter::new(NgramOptions::default())?);
    let mut drafting = Runner::new(model.clone()).with_prefix_cache(None).with_drafter(drafter, Some(policy));
    let (first, before) = answer(&mut plain, prompt, tokens)?;
    let (ids, one) = answer(&mut drafting, prompt, tokens)?;
    let (_, two) = answer(&mut drafting, prompt, tokens)?;
    let (_, after) = answer(&mut plain, prompt, tokens)?;
    let speed =
        |reports: [&Report; 2]| median(reports.iter().map(|r| r.timing.decode_tokens_per_second()).collect());
    let speeds = [speed([&one, &two]), speed([&before, &after])];
    Ok(Compared { drafted: one, hashes: [token_hash(&ids), token_hash(&first)], speeds })
}
