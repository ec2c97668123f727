//! Drafts that are not what they seem: argmax picks, rows that cannot be sampled, copies of the target.

use foretoken_sample::{History, Rows, Sampler};
use mlx_rs::Array;

use super::{
    faulty::{Fault, Faulty},
    judge::{Bench, emitted},
    options,
};
use crate::{
    Coupled, DraftSink, Ratio,
    accept::{Engine, Verdict},
    testkit::on_cpu,
};

/// Standard deviations that a share may lie from its probability.
const SIGMAS: f64 = 4.0;

/// Natural logarithms, which are logits of these probabilities.
fn logits(p: &[f64]) -> Vec<f32> {
    p.iter().map(|p| p.ln() as f32).collect()
}

/// Judges one draft in each of `rows` positions with the same logits.
fn judged<R: Engine>(
    rule: &R,
    sampler: &Sampler,
    (row, rows): (&[f32], usize),
    offer: impl FnOnce(&mut dyn DraftSink),
) -> Verdict {
    let logits = Array::from_slice(&row.repeat(rows + 1), &[rows as i32 + 1, row.len() as i32]);
    let history = History::new(&[0]);
    let all =
        Rows { logits: &logits, columns: None, history: &history, in_flight: None, first: 0, allowed: None };
    let target = sampler.distribution(all).expect("a target");
    Bench { sampler, history: &history, seed: 6 }.judge(rule, &target, offer)
}

/// Offers one draft drawn from the same logits in every position.
fn drawn(row: &[f32], rows: usize) -> impl FnOnce(&mut dyn DraftSink) {
    let logits = Array::from_slice(&row.repeat(rows), &[1, rows as i32, row.len() as i32]);
    move |out| out.draw(&logits, None).map(drop).expect("an offer")
}

fn shares(ids: &[u32], width: usize) -> Vec<f64> {
    let mut shares = vec![0.0; width];
    ids.iter().for_each(|&id| shares[id as usize] += 1.0 / ids.len() as f64);
    shares
}

fn close(got: &[f64], want: &[f64], rows: usize, what: &str) {
    for (got, want) in got.iter().zip(want) {
        let sigma = (want * (1.0 - want) / rows as f64).sqrt();
        assert!((got - want).abs() <= SIGMAS * sigma, "{what}: {got:.4} instead of {want:.4}");
    }
}

#[test]
fn h13_an_argmax_draft_is_a_point_mass() {
    on_cpu();
    const ROWS: usize = 100_000;
    let sampler = Sampler::new(options(|_| {}), 3).expect("options");
    let p = [0.5, 0.3, 0.2];
    let row = logits(&p);
    let target = (row.as_slice(), ROWS);
    let known = |out: &mut dyn DraftSink| out.known(&[0; ROWS]).expect("an offer");
    let point = judged(&Ratio::new(), &sampler, target, known);
    close(&shares(&emitted(&point), 3), &p, ROWS, "point mass");
    let point = judged(&Coupled::new(4), &sampler, target, known);
    close(&shares(&emitted(&point), 3), &p, ROWS, "point mass, coupled");
    let (q, rule) = (logits(&[0.6, 0.4, 0.0]), Faulty::new(Fault::ArgmaxScoredAsDrawn));
    let faulty = judged(&rule, &sampler, target, drawn(&q, ROWS));
    close(&shares(&emitted(&faulty), 3), &[5.0 / 6.0, 0.0, 1.0 / 6.0], ROWS, "the faulty rule");
    let q = logits(&[0.2, 0.7, 0.1]);
    let honest = judged(&Ratio::new(), &sampler, target, drawn(&q, ROWS));
    close(&shares(&emitted(&honest), 3), &p, ROWS, "a drawn draft");
    let accepted = honest.accepted.iter().filter(|a| **a).count() as f64 / ROWS as f64;
    close(&[accepted], &[0.6], ROWS, "acceptance");
    let rejected: Vec<u32> =
        (0..ROWS).filter(|&i| !honest.accepted[i]).map(|i| honest.continuations[i]).collect();
    close(&shares(&rejected, 3), &[0.75, 0.0, 0.25], rejected.len(), "residual");
}

#[test]
fn h14_a_broken_draft_row_never_brings_back_its_token() {
    on_cpu();
    const ROWS: usize = 10_000;
    let p = [0.0, 0.97, 0.03];
    let row = logits(&p);
    let target = (row.as_slice(), ROWS);
    let offers: [(&str, Option<[f32; 3]>); 4] = [
        ("not a number", Some([f32::NAN; 3])),
        ("one not a number", Some([5.0, f32::NAN, 0.0])),
        ("nothing finite", Some([f32::NEG_INFINITY; 3])),
        ("token 0 for certain", None),
    ];
    for options in [options(|_| {}), options(|o| o.top_k = 2), options(|o| o.top_p = 0.99)] {
        let sampler = Sampler::new(options, 3).expect("options");
        for (what, draft) in offers {
            let offer = |out: &mut dyn DraftSink| match draft {
                Some(draft) => drawn(&draft, ROWS)(out),
                None => out.known(&[0; ROWS]).expect("an offer"),
            };
            let ratio = judged(&Ratio::new(), &sampler, target, offer);
            let coupled = judged(&Coupled::new(3), &sampler, target, offer);
            for verdict in [ratio, coupled] {
                assert_eq!(verdict.sound, vec![draft.is_none(); ROWS], "{what}");
                let ids = emitted(&verdict);
                assert!(!ids.contains(&0), "{what}: the rejected token came back");
                // Top-p 0.99 keeps both tokens of the law, and top-k 2 too.
                close(&shares(&ids, 3), &p, ROWS, what);
            }
        }
    }
}

#[test]
fn h14_a_draft_law_equal_to_the_targets_is_always_accepted() {
    on_cpu();
    const ROWS: usize = 10_000;
    let row = logits(&[0.0, 0.97, 0.03]);
    let sampler = Sampler::new(options(|_| {}), 3).expect("options");
    let target = (row.as_slice(), ROWS);
    for verdict in [
        judged(&Ratio::new(), &sampler, target, drawn(&row, ROWS)),
        judged(&Coupled::new(3), &sampler, target, drawn(&row, ROWS)),
    ] {
        assert!(verdict.accepted.iter().all(|a| *a));
        assert!(!verdict.continuations.contains(&0), "an empty residual falls back to the target");
        assert!(!emitted(&verdict).contains(&0));
    }
}
