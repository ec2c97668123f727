//! Biases, bans, early end tokens and grammar masks, against the same rules written out on the host.

use foretoken_sample::{Distribution, History, Rows, Sampler, SamplingOptions, TokenMask};
use mlx_rs::Array;
use proptest::prelude::*;

use crate::common::*;

const V: usize = 12;

fn warm() -> SamplingOptions {
    SamplingOptions { temperature: 1.0, ..SamplingOptions::greedy() }
}

fn sampler(options: SamplingOptions, ends: &[u32]) -> Sampler {
    Sampler::new(options, V).unwrap().with_ends(ends).unwrap()
}

fn history(prompt: &[u32], produced: &[u32]) -> History {
    let mut history = History::new(prompt);
    history.extend(produced);
    history
}

/// The ids that may be drawn in each of n rows whose logits are all alike.
fn left(sampler: &Sampler, n: usize, history: &History, flying: &[u32], first: usize) -> Vec<Vec<usize>> {
    let logits = mlx_rs::ops::zeros::<f32>(&[n as i32, V as i32]).unwrap();
    let flying = (!flying.is_empty()).then(|| vector(flying));
    let rows =
        Rows { logits: &logits, columns: None, history, in_flight: flying.as_ref(), first, allowed: None };
    table(&sampler.distribution(rows).unwrap(), V).iter().map(|row| support(row)).collect()
}

/// Ids but those.
fn but(gone: &[usize]) -> Vec<usize> {
    (0..V).filter(|id| !gone.contains(id)).collect()
}

#[test]
fn end_tokens_wait_for_the_least_length_row_by_row() {
    cpu();
    let sampler = sampler(SamplingOptions { min_tokens: 3, ..warm() }, &[5, 7, 99]);
    let history = history(&[1, 2], &[3]);
    // One token is there; row i draws token 1 + i.
    let rows = left(&sampler, 4, &history, &[4, 4, 4], 0);
    assert_eq!(rows, [but(&[5, 7]), but(&[5, 7]), but(&[]), but(&[])]);
    assert_eq!(left(&sampler, 1, &history, &[4, 4], 2), [but(&[])]);
}

#[test]
fn ignored_end_tokens_never_come() {
    cpu();
    let sampler = sampler(SamplingOptions { ignore_eos: true, ..warm() }, &[5]);
    let rows = left(&sampler, 2, &history(&[1], &[2; 50]), &[3], 0);
    assert_eq!(rows, [but(&[5]), but(&[5])]);
}

#[test]
fn a_banned_sequence_loses_its_last_token_where_the_rest_stands() {
    cpu();
    let banned = vec![vec![9], vec![1, 2], vec![3, 4, 5]];
    let sampler = sampler(SamplingOptions { banned, ..warm() }, &[]);
    // Known on the host.
    assert_eq!(left(&sampler, 1, &history(&[8], &[1]), &[], 0), [but(&[2, 9])]);
    assert_eq!(left(&sampler, 1, &history(&[], &[3, 4]), &[], 0), [but(&[5, 9])]);
    assert_eq!(left(&sampler, 1, &history(&[], &[4]), &[], 0), [but(&[9])]);
    // Through tokens in flight: row i sees the first i of them.
    let rows = left(&sampler, 4, &history(&[], &[3]), &[4, 1, 7], 0);
    assert_eq!(rows, [but(&[9]), but(&[5, 9]), but(&[2, 9]), but(&[9])]);
    // Nothing at all came before.
    assert_eq!(left(&sampler, 1, &history(&[], &[]), &[], 0), [but(&[9])]);
}

#[test]
fn a_bias_is_added_before_everything_else() {
    cpu();
    let options = SamplingOptions { logit_bias: vec![(0, -2.0), (3, 5.0)], top_k: 1, ..warm() };
    let row = [4.0, 1.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let drawn = sample(&options, &matrix(&[&row]));
    assert_eq!(support(&table(&drawn, V)[0]), [3]);
    // A penalty sees the biased logit: −2 is multiplied, not divided.
    let options =
        SamplingOptions { logit_bias: vec![(1, -3.0)], repeat_penalty: 2.0, ..SamplingOptions::greedy() };
    let sampler = sampler(options, &[]);
    let logits = matrix(&[&[-3.9, 1.0, -9.0, -9.0, -9.0, -9.0, -9.0, -9.0, -9.0, -9.0, -9.0, -9.0]]);
    let history = history(&[1], &[]);
    let rows =
        Rows { logits: &logits, columns: None, history: &history, in_flight: None, first: 0, allowed: None };
    assert_eq!(support(&table(&sampler.distribution(rows).unwrap(), V)[0]), [0]);
}

#[test]
fn columns_of_a_draft_vocabulary_keep_their_target_ids() {
    cpu();
    let columns = vector(&[2, 5, 9]);
    let options = SamplingOptions { banned: vec![vec![9]], logit_bias: vec![(5, 100.0)], top_k: 1, ..warm() };
    let sampler = sampler(options, &[]);
    let (logits, history) = (matrix(&[&[0.0, 0.0, 50.0]]), History::new(&[1]));
    let mask = Array::from_slice(&(0..V).map(|id| id != 2).collect::<Vec<_>>(), &[1, V as i32]);
    let mut rows = Rows {
        logits: &logits,
        columns: Some(&columns),
        history: &history,
        in_flight: None,
        first: 0,
        allowed: Some(&mask),
    };
    assert_eq!(support(&table(&sampler.distribution(rows).unwrap(), V)[0]), [5]);
    rows.allowed = None;
    assert_eq!(support(&table(&sampler.distribution(rows).unwrap(), V)[0]), [5]);
}

#[test]
fn a_row_with_nothing_left_says_so() {
    cpu();
    let none = TokenMask::none(V);
    let some = TokenMask::all(V);
    let flags: Vec<bool> = none.flags().chain(some.flags()).collect();
    let mask = Array::from_slice(&flags, &[2, V as i32]);
    let (logits, history) = (mlx_rs::ops::ones::<f32>(&[2, V as i32]).unwrap(), History::new(&[1]));
    for options in [SamplingOptions::greedy(), warm(), SamplingOptions { top_k: 3, top_p: 0.5, ..warm() }] {
        let rows = Rows {
            logits: &logits,
            columns: None,
            history: &history,
            in_flight: None,
            first: 0,
            allowed: Some(&mask),
        };
        let law = sampler(options.clone(), &[]).distribution(rows).unwrap();
        assert_eq!(flags_of(&law), [false, true], "{options:?}");
    }
}

fn flags_of(law: &Distribution) -> Vec<bool> {
    flags(&law.support().unwrap())
}

#[test]
fn options_that_leave_nothing_or_name_nothing_are_errors() {
    cpu();
    let wrong = [
        SamplingOptions { banned: vec![vec![]], ..warm() },
        SamplingOptions { banned: vec![vec![1, V as u32]], ..warm() },
        SamplingOptions { banned: (0..V as u32).map(|id| vec![id]).collect(), ..warm() },
        SamplingOptions { logit_bias: vec![(V as u32, 1.0)], ..warm() },
        SamplingOptions { logit_bias: vec![(1, f32::NAN)], ..warm() },
        SamplingOptions { logit_bias: vec![(1, f32::NEG_INFINITY)], ..warm() },
        SamplingOptions { logit_bias: vec![(1, 1.0), (1, 2.0)], ..warm() },
    ];
    for options in wrong {
        let error = Sampler::new(options.clone(), V).expect_err("an error").to_string();
        assert!(error.contains("expected"), "{error}");
    }
    let all = SamplingOptions { ignore_eos: true, ..warm() };
    let ends: Vec<u32> = (0..V as u32).collect();
    assert!(Sampler::new(all, V).unwrap().with_ends(&ends).is_err());
}

#[test]
fn margins_are_gaps_between_the_two_best_scores() {
    cpu();
    let options = SamplingOptions { margins: true, banned: vec![vec![2]], ..SamplingOptions::greedy() };
    let sampler = sampler(options, &[]);
    let logits = matrix(&[
        &[1.0, 3.5, 9.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        &[2.0, 2.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    ]);
    let history = History::new(&[1]);
    let rows =
        Rows { logits: &logits, columns: None, history: &history, in_flight: None, first: 0, allowed: None };
    let (law, margin) = sampler.distribution_with_margin(rows).unwrap();
    assert_eq!(floats(&margin.unwrap()), [0.5, 0.0]);
    assert_eq!(words(&law.draw(0, 0).unwrap()), [1, 0]);
    // With noise: the same ids as without the margin, and the gap of the perturbed scores.
    let law = sample(&warm(), &logits);
    let (ids, margins) = law.draw_with_margin(5, 3).unwrap();
    assert_eq!(words(&ids), words(&law.draw(5, 3).unwrap()));
    let Distribution::Dense { logprobs } = &law else { panic!("dense") };
    let noise = foretoken_sample::noise(5, 3..5, &vector(&(0..V as u32).collect::<Vec<_>>())).unwrap();
    let scores = floats(&logprobs.add(&noise).unwrap());
    for (row, margin) in scores.chunks(V).zip(floats(&margins)) {
        let mut sorted = row.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        assert_eq!(sorted[0] - sorted[1], margin);
    }
    let point = Distribution::Point { ids: vector(&[4]) };
    assert_eq!(floats(&point.draw_with_margin(0, 0).unwrap().1), [f32::INFINITY]);
}

/// Which ids a row may draw, by the rules on the host.
fn allowed(options: &SamplingOptions, ends: &[u32], prompt: usize, seen: &[u32]) -> Vec<usize> {
    let produced = seen.len() - prompt;
    (0..V)
        .filter(|&id| {
            let is_end = ends.contains(&(id as u32));
            let banned = options.banned.iter().any(|sequence| {
                let (last, before) = sequence.split_last().unwrap();
                *last == id as u32 && seen.ends_with(before)
            });
            !banned && !(is_end && (options.ignore_eos || produced < options.min_tokens))
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every row of a block loses just what its own tokens forbid.
    #[test]
    fn rows_follow_the_rules(
        banned in prop::collection::vec(prop::collection::vec(0_u32..4, 1..4), 0..4),
        (prompt, produced) in (prop::collection::vec(0_u32..4, 0..4), prop::collection::vec(0_u32..4, 0..4)),
        flying in prop::collection::vec(0_u32..4, 0..5),
        (rows, first) in (1_usize..5, 0_usize..3),
        (min_tokens, ignore_eos) in (0_usize..6, any::<bool>()),
    ) {
        cpu();
        let ends = [7, 8];
        let options = SamplingOptions { banned, min_tokens, ignore_eos, ..warm() };
        let sampler = sampler(options.clone(), &ends);
        let history = history(&prompt, &produced);
        let got = left(&sampler, rows, &history, &flying, first);
        for (row, got) in got.iter().enumerate() {
            let known = (first + row).min(flying.len());
            let seen = [&prompt[..], &produced, &flying[..known]].concat();
            // Past the tokens in flight a row's position goes on although nothing more is known.
            let position = produced.len() + first + row;
            let mut want = allowed(&options, &[], prompt.len(), &seen);
            let early = ignore_eos || position < min_tokens;
            want.retain(|&id| !(early && ends.contains(&(id as u32))));
            prop_assert_eq!(got, &want, "row {}", row);
        }
    }

    /// The threshold that is halved in keeps what sorting keeps, also in flat rows and with ties.
    #[test]
    fn top_p_keeps_what_sorting_keeps(
        kinds in prop::collection::vec(0_usize..6, 8..200),
        spread in prop::sample::select(vec![0.0_f32, 0.5, 3.0, 30.0]),
        top_p in prop::sample::select(vec![1e-4_f32, 0.1, 0.5, 0.8, 0.95, 0.999]),
        temperature in prop::sample::select(vec![0.1_f32, 1.0, 2.0]),
    ) {
        cpu();
        let logits: Vec<f32> = kinds.iter().map(|&k| if k == 5 { f32::NEG_INFINITY } else { k as f32 * spread }).collect();
        prop_assume!(logits.iter().any(|x| x.is_finite()));
        let options = SamplingOptions { top_p, temperature, ..warm() };
        let got = table(&sample(&options, &matrix(&[&logits])), logits.len()).remove(0);
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mass: Vec<f64> = logits.iter().map(|x| (f64::from((x - best) / temperature)).exp()).collect();
        let sum: f64 = mass.iter().sum();
        let mut order: Vec<usize> = (0..mass.len()).collect();
        order.sort_by(|&a, &b| mass[b].total_cmp(&mass[a]).then(a.cmp(&b)));
        let mut before = 0.0;
        let mut kept = Vec::new();
        for &id in &order {
            let share = before / sum;
            // At the very edge the rounding of sums decides.
            prop_assume!((share - f64::from(top_p)).abs() > 1e-5 || mass[id] == 0.0);
            if share < f64::from(top_p) && mass[id] > 0.0 {
                kept.push(id);
            }
            before += mass[id];
        }
        kept.sort_unstable();
        prop_assert_eq!(support(&got), kept);
    }
}
