//! The conformance suite accepts every sound drafter and refuses every broken one.

mod common;

use std::rc::Rc;

use common::*;
use foretoken_model_base::Model;
use foretoken_speculate::{
    Drafter,
    testkit::{
        Breakage, Fault, FaultyDrafter, LookUp, Minimal, PairDrafter, RowsDrafter, ScriptedTarget,
        TABLE_VOCABULARY, TableDrafter, TableModel, broken,
        conformance::{Violation, check},
        on_cpu,
    },
};

/// A target whose hidden states say more than one token.
fn soft_target() -> ScriptedTarget {
    on_cpu();
    ScriptedTarget::with_logits(VOCABULARY, |tokens| {
        let mut seen = tokens.to_vec();
        (0..VOCABULARY as u32)
            .map(|id| {
                seen.push(id);
                let value = wanted(&seen) as f32 / 3.0;
                seen.pop();
                value
            })
            .collect()
    })
}

#[test]
fn sound_drafters_pass() {
    let target = soft_target();
    let row: Vec<f32> = (0..VOCABULARY).map(|i| i as f32 / 3.0).collect();
    let mut drafters: Vec<Rc<dyn Drafter>> = vec![
        Rc::new(PairDrafter::new(VOCABULARY)),
        Rc::new(LookUp::new(VOCABULARY)),
        Rc::new(Minimal::new()),
        Rc::new(RowsDrafter::new(&row)),
        Rc::new(RowsDrafter::new(&row).block()),
    ];
    // Mix and Sometimes count what they did before, which a fresh session cannot know.
    drafters.extend(PATTERNS[..2].iter().map(|&pattern| drafter(pattern)));
    for drafter in drafters {
        let name = drafter.facts().name;
        let seen = check(&target, drafter.as_ref(), &PROMPT).unwrap_or_else(|err| panic!("{name}: {err}"));
        println!("{name}: {seen:?}");
        assert!(seen.offered > seen.proposals / 2 && seen.proposals > seen.sessions / 2, "{name}: {seen:?}");
        assert_eq!(seen.extended > 0, drafter.facts().extends, "{name}: {seen:?}");
    }
}

#[test]
fn sound_drafters_pass_on_a_lazy_model() {
    on_cpu();
    let (model, prompt) = (TableModel::new(1), [1, 2, 3, 4, 5]);
    check(&model, &PairDrafter::new(TABLE_VOCABULARY), &prompt).expect("pairs conform");
    check(&model, &TableDrafter::new(2), &prompt).expect("a table conforms");
}

#[test]
fn sound_drafters_pass_on_a_real_network() {
    on_cpu();
    let model = foretoken_models::testkit::tiny(3).expect("a tiny model");
    check(model.as_ref(), &Minimal::new(), &PROMPT).expect("conforms");
}

/// Whether the suite names the fault, not merely some fault.
fn fits(breakage: Breakage, violation: &Violation) -> bool {
    match breakage {
        Breakage::LeaksSnapshots => matches!(violation, Violation::Leak { what: "a snapshot", .. }),
        Breakage::LeaksArrays => matches!(violation, Violation::Leak { what: "memory", .. }),
        Breakage::LeavesTransactionOpen => {
            matches!(violation, Violation::Leak { what: "an open transaction", .. })
        }
        Breakage::WritesTarget => matches!(violation, Violation::TargetWritten { call: "committed" }),
        Breakage::IgnoresGap => matches!(violation, Violation::Gap { .. }),
        Breakage::DrawsItself => matches!(violation, Violation::OwnDraw),
        Breakage::IgnoresDraws => matches!(violation, Violation::IgnoresDraws),
        Breakage::IgnoresRoom => matches!(violation, Violation::Room { .. }),
        Breakage::ProposesEarly => matches!(violation, Violation::Early { .. }),
        Breakage::StaleAfterRejected => names(violation, "all-rejected"),
        Breakage::StaleAfterAccepted => names(violation, "all-accepted"),
        Breakage::StaleAfterMixed => names(violation, "half-accepted"),
        Breakage::RewindsOneTooMany => names(violation, "depth"),
        Breakage::SettlesShort => matches!(violation, Violation::Level { .. }),
        Breakage::Panics => matches!(violation, Violation::Failed { call: "propose", .. }),
        Breakage::IgnoresStart | Breakage::ForgetsStart => names(violation, "restored"),
        Breakage::SharesSessions => matches!(violation, Violation::Shared { .. }),
        Breakage::LearnsDrafts => names(violation, "return of"),
        Breakage::NeverOffers => matches!(violation, Violation::Silent { call: "propose" }),
        Breakage::ExtendLearns => names(violation, "return of"),
        Breakage::ExtendsPastRoom => matches!(violation, Violation::Room { .. }),
    }
}

/// A state that is wrong after the named scenario.
fn names(violation: &Violation, scenario: &str) -> bool {
    match violation {
        Violation::Unlike { after, .. } | Violation::Level { after, .. } => after.contains(scenario),
        _ => false,
    }
}

#[test]
fn every_broken_drafter_is_refused_for_its_own_fault() {
    let target = soft_target();
    for breakage in Breakage::ALL {
        let verdict = check(&target, broken(VOCABULARY, breakage).as_ref(), &PROMPT);
        let violation = verdict.expect_err(&format!("{breakage:?} passed"));
        println!("{breakage:?}: {violation}");
        assert!(fits(breakage, &violation), "{breakage:?} was refused because {violation}");
    }
}

#[test]
fn failing_calls_are_refused() {
    let target = soft_target();
    for fault in [
        Fault::Open,
        Fault::Propose(0),
        Fault::ProposePanic(0),
        Fault::Committed(1),
        Fault::CommittedPanic(1),
        Fault::SettlePanic,
        Fault::FinishPanic,
    ] {
        let faulty = FaultyDrafter::new(Rc::new(PairDrafter::new(VOCABULARY)), VOCABULARY, fault);
        let verdict = check(&target, &faulty, &PROMPT);
        assert!(matches!(verdict, Err(Violation::Failed { .. })), "{fault:?}: {verdict:?}");
    }
}

#[test]
fn a_short_prompt_is_an_error() {
    let model: &dyn Model = &soft_target();
    assert!(matches!(check(model, &Minimal::new(), &[1, 2, 3]), Err(Violation::Setup(_))));
}
