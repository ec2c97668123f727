//! What an audit found, for a person and for a program.

use serde_json::{Value, json};

use super::{
    law::Law,
    parity::{Comparison, Outcome, Parting},
};

/// Everything that was found.
pub(super) struct Findings {
    pub(super) drafter: &'static str,
    pub(super) comparisons: Vec<Comparison>,
    pub(super) law: Option<Law>,
}

impl Findings {
    /// Whether nothing beyond rounding was found.
    pub(super) fn is_clean(&self) -> bool {
        let faults = self.count(|outcome| matches!(outcome, Outcome::Fault(_)));
        faults == 0 && self.law.as_ref().is_none_or(Law::holds)
    }

    fn count(&self, is: impl Fn(&Outcome) -> bool) -> usize {
        self.comparisons.iter().filter(|comparison| is(&comparison.outcome)).count()
    }

    /// One line for each comparison, one for the distribution, one for the sum; `text` spells a token.
    pub(super) fn table(&self, text: impl Fn(u32) -> Option<String>) -> String {
        let mut lines = vec![format!(
            "{:>6}  {:<8} {:>5}  {:>6}  {:>9}  result ({})",
            "prompt", "answer", "depth", "tokens", "accepted", self.drafter
        )];
        for one in &self.comparisons {
            let answer = one.seed.map_or_else(|| "greedy".to_owned(), |seed| format!("seed {seed}"));
            let accepted = format!("{}/{}", one.accepted, one.drafted);
            let result = described(&one.outcome, &text);
            lines.push(format!(
                "{:>6}  {answer:<8} {:>5}  {:>6}  {accepted:>9}  {result}",
                one.prompt, one.depth, one.tokens
            ));
        }
        lines.extend(self.law.as_ref().map(law_line));
        lines.push(self.sum());
        lines.join("\n")
    }

    fn sum(&self) -> String {
        let equal = self.count(|outcome| *outcome == Outcome::Equal);
        let ties = self.count(|outcome| matches!(outcome, Outcome::Tie(_)));
        let small = self.count(|outcome| matches!(outcome, Outcome::SmallMargin(_)));
        let faults = self.count(|outcome| matches!(outcome, Outcome::Fault(_)));
        let verdict = if self.is_clean() { "nothing beyond rounding" } else { "something is wrong" };
        format!(
            "{verdict}: {equal} of {} answers equal, {ties} part at ties, {small} at small margins, {faults} faults",
            self.comparisons.len()
        )
    }

    /// The same as one object.
    pub(super) fn json(&self) -> String {
        let comparisons: Vec<Value> = self.comparisons.iter().map(comparison).collect();
        let law = self.law.as_ref().map(|law| {
            json!({
                "draws": law.draws, "cells": law.cells, "total_variation": law.distance, "bound": law.bound,
                "visible_difference": law.visible, "holds": law.holds(),
            })
        });
        json!({
            "drafter": self.drafter, "clean": self.is_clean(), "comparisons": comparisons, "distribution": law,
        })
        .to_string()
    }
}

fn comparison(one: &Comparison) -> Value {
    let (result, parting) = parts(&one.outcome);
    let parting = parting.map(|p| {
        json!({ "index": p.at, "plain": p.plain, "speculative": p.speculative, "margin": finite(p.margin) })
    });
    json!({
        "prompt": one.prompt, "seed": one.seed, "depth": one.depth, "tokens": one.tokens,
        "drafted": one.drafted, "accepted": one.accepted, "result": result, "parting": parting,
    })
}

fn finite(margin: f32) -> Option<f32> {
    margin.is_finite().then_some(margin)
}

fn parts(outcome: &Outcome) -> (&'static str, Option<&Parting>) {
    match outcome {
        Outcome::Equal => ("equal", None),
        Outcome::Tie(parting) => ("tie", Some(parting)),
        Outcome::SmallMargin(parting) => ("small margin", Some(parting)),
        Outcome::Fault(parting) => ("FAULT", Some(parting)),
    }
}

fn described(outcome: &Outcome, text: &impl Fn(u32) -> Option<String>) -> String {
    let (result, Some(parting)) = parts(outcome) else {
        return "equal".to_owned();
    };
    let spell = |id: Option<u32>| match id {
        None => "the end".to_owned(),
        Some(id) => text(id).map_or_else(|| id.to_string(), |text| format!("{id} {text:?}")),
    };
    format!(
        "{result} at token {}: {} plain, {} speculative, margin {:.1e}",
        parting.at,
        spell(parting.plain),
        spell(parting.speculative),
        parting.margin
    )
}

fn law_line(law: &Law) -> String {
    let verdict = if law.holds() { "holds" } else { "FAULT" };
    format!(
        "distribution of the first token: {verdict}, total variation {:.3} of at most {:.3} by chance; {} draws \
         over {} kinds of tokens would show a difference of {:.2} in 95 of 100 runs",
        law.distance, law.bound, law.draws, law.cells, law.visible
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(outcome: Outcome, distance: f64) -> Findings {
        let one = Comparison { prompt: 1, seed: None, depth: 4, tokens: 9, drafted: 8, accepted: 5, outcome };
        let law = Law { draws: 100, cells: 3, distance, bound: 0.2, visible: 0.4 };
        Findings { drafter: "d", comparisons: vec![one], law: Some(law) }
    }

    #[test]
    fn only_faults_and_a_broken_law_are_unclean() {
        let parting = Parting { at: 3, plain: Some(1), speculative: None, margin: 0.5 };
        assert!(findings(Outcome::Equal, 0.1).is_clean());
        assert!(findings(Outcome::Tie(parting), 0.1).is_clean());
        assert!(findings(Outcome::SmallMargin(parting), 0.1).is_clean());
        assert!(!findings(Outcome::Fault(parting), 0.1).is_clean());
        assert!(!findings(Outcome::Equal, 0.3).is_clean());
    }

    #[test]
    fn a_person_and_a_program_read_the_same() {
        let parting = Parting { at: 3, plain: Some(1), speculative: None, margin: 0.5 };
        let findings = findings(Outcome::Fault(parting), 0.1);
        let table = findings.table(|id| Some(format!("<{id}>")));
        for word in
            ["FAULT at token 3", "1 \"<1>\" plain", "the end speculative", "5/8", "something is wrong"]
        {
            assert!(table.contains(word), "{word} in {table}");
        }
        let object: Value = serde_json::from_str(&findings.json()).unwrap();
        assert_eq!(object["comparisons"][0]["result"], "FAULT");
        assert_eq!(object["comparisons"][0]["parting"]["index"], 3);
        assert_eq!(
            (object["clean"].as_bool(), object["distribution"]["holds"].as_bool()),
            (Some(false), Some(true))
        );
    }
}
