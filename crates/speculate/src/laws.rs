//! Statistical tests with fixed seeds: both rules give the target's law, and the same harness refuses
//! rules that do not.

use std::rc::Rc;

use foretoken_sample::{
    Distribution, History, Rows, RuleChoice, Sampler, SamplingOptions, Seed, SplitMix64, uniform,
};
use mlx_rs::{
    Array,
    ops::{concatenate, indexing::argmax_axis},
};

use crate::{
    Coupled, Decoder, DraftSink, Ratio, RequestState, Result, Rule,
    accept::{Engine, Verdict, sealed, verdict},
    depth::control,
    lazy::Lazy,
    round::wait,
    session::Hearing,
    sink::{Desk, Drafts, RatioSink},
    speculative::Speculative,
    testkit::{TABLE_VOCABULARY as V, TableDrafter, TableModel, on_cpu, prefill},
};

/// The prompt's last two tokens.
const BEFORE: (u32, u32) = (3, 5);

/// Tokens whose joint law is tested.
const TOKENS: usize = 3;

/// Standard deviations that a sum of squares may lie above its mean: about one in 2,000 by chance, since
/// the sum is skewed. Seeds are fixed, so a test that passed passes.
const SIGMAS: f64 = 4.0;

/// Cells expected to be rarer than this are counted together.
const RARE: f64 = 8.0;

fn options(change: impl Fn(&mut SamplingOptions)) -> SamplingOptions {
    let mut options = SamplingOptions { temperature: 1.0, ..SamplingOptions::greedy() };
    change(&mut options);
    options
}

fn filters() -> [SamplingOptions; 6] {
    [
        options(|_| {}),
        options(|o| o.temperature = 0.6),
        options(|o| o.top_k = 3),
        options(|o| o.top_p = 0.8),
        options(|o| o.min_p = 0.2),
        options(|o| (o.temperature, o.top_k, o.top_p, o.min_p) = (1.4, 6, 0.9, 0.05)),
    ]
}

/// The law of one token in float64: top-k, temperature and softmax, top-p, min-p, renormalisation.
fn law(logits: &[f32], options: &SamplingOptions) -> Vec<f64> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let kept = if options.top_k == 0 { logits.len() } else { options.top_k as usize };
    let mut p = vec![0.0; logits.len()];
    order
        .iter()
        .take(kept)
        .for_each(|&i| p[i] = (f64::from(logits[i]) / f64::from(options.temperature)).exp());
    normalise(&mut p);
    let mut ahead = 0.0;
    for &i in &order {
        let own = p[i];
        if ahead >= f64::from(options.top_p) {
            p[i] = 0.0;
        }
        ahead += own;
    }
    let best = p[order[0]];
    p.iter_mut().filter(|p| **p < best * f64::from(options.min_p)).for_each(|p| *p = 0.0);
    normalise(&mut p);
    p
}

fn normalise(p: &mut [f64]) {
    let sum: f64 = p.iter().sum();
    p.iter_mut().for_each(|p| *p /= sum);
}

/// The joint law of the first three tokens after [`BEFORE`], cell t1·V² + t2·V + t3.
fn exact(model: &TableModel, options: &SamplingOptions) -> Vec<f64> {
    let next = |a: usize, b: usize| law(model.logits(a as u32, b as u32), options);
    let (a, b) = (BEFORE.0 as usize, BEFORE.1 as usize);
    let mut joint = Vec::with_capacity(V.pow(3));
    for (t1, p1) in next(a, b).into_iter().enumerate() {
        for (t2, p2) in next(b, t1).into_iter().enumerate() {
            joint.extend(next(t1, t2).into_iter().map(|p3| p1 * p2 * p3));
        }
    }
    joint
}

/// How many standard deviations Pearson's sum of squares lies above what chance gives; infinite when an
/// impossible cell was hit.
fn excess(counts: &[usize], law: &[f64]) -> f64 {
    let total: usize = counts.iter().sum();
    let (mut sum, mut cells) = (0.0, 0.0);
    let (mut rare_count, mut rare_expected) = (0.0, 0.0);
    for (&count, &p) in counts.iter().zip(law) {
        let expected = p * total as f64;
        match expected {
            0.0 if count > 0 => return f64::INFINITY,
            e if e < RARE => (rare_count, rare_expected) = (rare_count + count as f64, rare_expected + e),
            e => (sum, cells) = (sum + (count as f64 - e).powi(2) / e, cells + 1.0),
        }
    }
    if rare_expected >= RARE {
        (sum, cells) = (sum + (rare_count - rare_expected).powi(2) / rare_expected, cells + 1.0);
    }
    let freedom: f64 = cells - 1.0;
    (sum - freedom) / (2.0 * freedom).sqrt()
}

/// What many drafts are drawn from.
enum Drafting {
    /// A random table over the last token.
    Table(Vec<f32>),
    /// The same, over the ids of a draft vocabulary.
    Few(Vec<f32>, foretoken_model_base::DraftVocabulary),
    /// One certain token.
    Point,
}

fn drafting() -> [Drafting; 3] {
    let mut random = SplitMix64::new(77);
    let mut table = |width: usize| -> Vec<f32> {
        (0..V * width).map(|_| (random.next_u64() >> 40) as f32 / (1 << 22) as f32).collect()
    };
    let few = foretoken_model_base::DraftVocabulary::new(vec![0, 2, 3, 6], V).expect("ascending ids");
    [Drafting::Table(table(V)), Drafting::Few(table(4), few), Drafting::Point]
}

impl Drafting {
    /// One draft after each of the last tokens, all in one call.
    fn offer(&self, last: &[u32], out: &mut dyn DraftSink) {
        let rows = |table: &[f32], width: usize| {
            let rows = last.iter().flat_map(|&t| table[t as usize * width..][..width].to_vec());
            Array::from_slice(&rows.collect::<Vec<_>>(), &[1, last.len() as i32, width as i32])
        };
        match self {
            Drafting::Table(table) => out.draw(&rows(table, V), None).map(drop),
            Drafting::Few(table, few) => out.draw(&rows(table, 4), Some(few)).map(drop),
            Drafting::Point => out.known(&last.iter().map(|t| (t * 3 + 1) % V as u32).collect::<Vec<_>>()),
        }
        .expect("an offer");
    }
}

/// Judges one draft in each of many sequences at once: row i stands for sequence i.
fn judged<R: Engine>(
    rule: &R,
    sampler: &Sampler,
    slot: usize,
    logits: Vec<f32>,
    offer: impl FnOnce(&mut dyn DraftSink),
) -> Verdict {
    let width = sampler.vocabulary();
    let rows = logits.len() / width;
    // The bonus row is not looked at.
    let logits = [logits.as_slice(), &logits[..width]].concat();
    let logits = Array::from_slice(&logits, &[rows as i32 + 1, width as i32]);
    // Only its length matters: it gives every row a slot of its own.
    let history = History::new(&vec![0; slot]);
    let mut stream = SplitMix64::new(slot as u64 + 5);
    let mut sink = rule.sink(Desk { sampler, history: &history, stream: &mut stream, room: rows });
    offer(&mut sink);
    let rows =
        Rows { logits: &logits, columns: None, history: &history, in_flight: None, first: 0, allowed: None };
    let target = sampler.distribution(rows).expect("a target");
    wait(rule.accept(&target, sink).expect("a verdict"), None).expect("an evaluation")
}

/// What each row emits: its draft, or the token that continues there.
fn emitted(verdict: &Verdict) -> Vec<u32> {
    let kept = |i: usize| verdict.sound[i] && verdict.accepted[i];
    (0..verdict.ids.len()).map(|i| if kept(i) { verdict.ids[i] } else { verdict.continuations[i] }).collect()
}

/// Counts of the first three tokens over many sequences decoded side by side.
fn sample<R: Engine>(
    rule: &R,
    model: &TableModel,
    options: &SamplingOptions,
    drafting: &Drafting,
    sequences: usize,
) -> Vec<usize> {
    let sampler = Sampler::new(options.clone(), V).expect("options");
    let (mut before, mut last) = (vec![BEFORE.0; sequences], vec![BEFORE.1; sequences]);
    let mut cells = vec![0; sequences];
    for token in 0..TOKENS {
        let logits = before.iter().zip(&last).flat_map(|(&a, &b)| model.logits(a, b).to_vec()).collect();
        let slot = 1 + token * (sequences + 1);
        let verdict = judged(rule, &sampler, slot, logits, |out| drafting.offer(&last, out));
        let next = emitted(&verdict);
        cells.iter_mut().zip(&next).for_each(|(cell, &t)| *cell = *cell * V + t as usize);
        before = std::mem::replace(&mut last, next);
    }
    let mut counts = vec![0; V.pow(3)];
    cells.into_iter().for_each(|cell: usize| counts[cell] += 1);
    counts
}

const SEQUENCES: usize = 40_000;

#[test]
fn both_rules_give_the_joint_law_of_three_tokens() {
    on_cpu();
    let model = TableModel::new(11);
    for options in filters() {
        let law = exact(&model, &options);
        for (i, drafting) in drafting().iter().enumerate() {
            let ratio = excess(&sample(&Ratio::new(), &model, &options, drafting, SEQUENCES), &law);
            let coupled = excess(&sample(&Coupled::new(9), &model, &options, drafting, SEQUENCES), &law);
            println!("drafter {i}: ratio {ratio:+.2}, coupled {coupled:+.2} sigma under {options:?}");
            assert!(ratio < SIGMAS && coupled < SIGMAS, "drafter {i} under {options:?}");
        }
    }
}

/// Rules that other engines really had.
#[derive(Clone, Copy)]
enum Faulty {
    /// Draft and target are both taken by argmax and compared; a mismatch is drawn from the target.
    ArgmaxAgainstArgmax,
    /// The draft is an argmax but scored with its softmax probability.
    ArgmaxScoredAsDrawn,
    /// A rejected draft is replaced by a draw from the target instead of the residual.
    NoResidual,
}

impl sealed::Sealed for Faulty {}

impl Rule for Faulty {
    type Sink<'a> = RatioSink<'a>;

    fn accept(&self, target: &Distribution, drawn: RatioSink<'_>) -> Result<Lazy<Verdict>> {
        let RatioSink { mut drafts, stream, drawn_from } = drawn;
        let (n, slot) = (drafts.count(), drafts.first_slot());
        let q = Distribution::concat(&drawn_from.iter().collect::<Vec<_>>())?;
        let p = target.slice(0..n)?;
        if !matches!(self, Faulty::NoResidual) {
            drafts.replace(argmax(&q)?);
        }
        let ids = drafts.ids().expect("drafts").clone();
        let accepted = match self {
            Faulty::ArgmaxAgainstArgmax => argmax(&p)?.eq(&ids)?,
            _ => uniform(stream.next_u64(), slot..slot + n)?.multiply(&q.prob(&ids)?)?.lt(&p.prob(&ids)?)?,
        };
        let key = stream.next_u64();
        let rejected_at = match self {
            Faulty::ArgmaxScoredAsDrawn => p.residual(&q)?.draw(key, slot)?,
            _ => p.draw(key, slot)?,
        };
        let bonus = target.slice(n..n + 1)?.draw(key, slot + n)?;
        verdict(&drafts, Some(accepted), &concatenate(&[&rejected_at, &bonus], 0)?)
    }
}

impl Engine for Faulty {
    fn sink<'a>(&self, desk: Desk<'a>) -> RatioSink<'a> {
        RatioSink::new(desk)
    }

    fn drafts<'s>(sink: &'s RatioSink<'_>) -> &'s Drafts<'s> {
        &sink.drafts
    }

    fn cut(sink: &mut RatioSink<'_>, count: usize) -> Result<()> {
        sink.cut(count)
    }
}

/// The likeliest id of each row `[n]`.
fn argmax(rows: &Distribution) -> Result<Array> {
    Ok(match rows {
        Distribution::Point { ids } => ids.clone(),
        Distribution::Dense { logprobs } => argmax_axis(logprobs, -1, false)?,
        Distribution::Sparse { ids, logprobs } => {
            let best = argmax_axis(logprobs, -1, true)?;
            ids.take_along_axis(best, -1)?.squeeze_axes(&[-1])?
        }
    })
}

/// A fault must stand out far more than chance allows.
const OBVIOUS: f64 = 20.0;

#[test]
fn the_harness_refuses_faulty_rules() {
    on_cpu();
    let (model, table) = (TableModel::new(11), &drafting()[0]);
    for options in filters() {
        let law = exact(&model, &options);
        for faulty in [Faulty::ArgmaxAgainstArgmax, Faulty::ArgmaxScoredAsDrawn, Faulty::NoResidual] {
            let found = excess(&sample(&faulty, &model, &options, table, SEQUENCES), &law);
            assert!(found > OBVIOUS, "a faulty rule passed with {found:+.2} sigma under {options:?}");
        }
    }
}

/// Counts of the first three tokens of whole requests at depth 2.
fn requests<R: Engine>(
    rule: impl Fn(u64) -> R,
    model: &Rc<TableModel>,
    options: &SamplingOptions,
    count: u64,
) -> Vec<usize> {
    let mut counts = vec![0; V.pow(3)];
    for seed in 0..count {
        let options = SamplingOptions { seed: Seed::Fresh(seed * 7919), ..options.clone() };
        let sampler = Sampler::new(options, V).expect("options");
        let drafter = TableDrafter::new(5);
        let prompt = [1, BEFORE.0, BEFORE.1];
        let mut request =
            RequestState::new(model.as_ref(), Some(&drafter), sampler, &prompt, &[]).expect("a request");
        let hearing = Hearing::open(&drafter, 0);
        let depth = control(crate::DraftPolicy::Constant(2));
        let mut decoder = Box::new(Speculative::new(model.clone(), hearing, rule(seed), depth));
        prefill(model.as_ref(), decoder.as_mut(), &mut request).expect("a prefill");
        while request.history.ids().len() < prompt.len() + TOKENS {
            decoder.next(&mut request, 8).expect("a run");
        }
        let cell = request.history.ids()[prompt.len()..][..TOKENS].iter();
        counts[cell.fold(0, |cell, &t| cell * V + t as usize)] += 1;
    }
    counts
}

/// Requests per law: enough for the faulty rules to stand out, few enough for a test.
const REQUESTS: u64 = 1_200;

#[test]
fn whole_requests_follow_the_joint_law_and_faulty_ones_do_not() {
    on_cpu();
    let model = Rc::new(TableModel::new(11));
    let options = options(|o| o.rule = RuleChoice::Ratio);
    let law = exact(&model, &options);
    let ratio = excess(&requests(|_| Ratio::new(), &model, &options, REQUESTS), &law);
    let coupled = excess(&requests(|seed| Coupled::new(seed * 31 + 7), &model, &options, REQUESTS), &law);
    println!("ratio {ratio:+.2}, coupled {coupled:+.2} sigma");
    assert!(ratio < SIGMAS && coupled < SIGMAS);
    for faulty in [Faulty::ArgmaxAgainstArgmax, Faulty::NoResidual] {
        let found = excess(&requests(|_| faulty, &model, &options, REQUESTS), &law);
        println!("a faulty rule: {found:+.2} sigma");
        assert!(found > SIGMAS, "a faulty rule passed with {found:+.2} sigma");
    }
}

/// Natural logarithms, which are logits of these probabilities.
fn logits(p: &[f64]) -> Vec<f32> {
    p.iter().map(|p| p.ln() as f32).collect()
}

fn shares(ids: &[u32], width: usize) -> Vec<f64> {
    let mut shares = vec![0.0; width];
    ids.iter().for_each(|&id| shares[id as usize] += 1.0 / ids.len() as f64);
    shares
}

fn close(got: &[f64], want: &[f64], rows: usize, what: &str) {
    for (got, want) in got.iter().zip(want) {
        let sigma = (want * (1.0 - want) / rows as f64).sqrt();
        assert!((got - want).abs() <= 4.0 * sigma, "{what}: {got:.4} instead of {want:.4}");
    }
}

#[test]
fn h13_an_argmax_draft_is_a_point_mass() {
    on_cpu();
    const ROWS: usize = 100_000;
    let sampler = Sampler::new(options(|_| {}), 3).expect("options");
    let p = [0.5, 0.3, 0.2];
    let target = || logits(&p).repeat(ROWS);
    let drawn = |q: &[f64]| Array::from_slice(&logits(q).repeat(ROWS), &[1, ROWS as i32, 3]);
    let point = judged(&Ratio::new(), &sampler, 1, target(), |out| out.known(&[0; ROWS]).expect("an offer"));
    close(&shares(&emitted(&point), 3), &p, ROWS, "point mass");
    let point =
        judged(&Coupled::new(4), &sampler, 1, target(), |out| out.known(&[0; ROWS]).expect("an offer"));
    close(&shares(&emitted(&point), 3), &p, ROWS, "point mass, coupled");
    let q = [0.6, 0.4, 0.0];
    let faulty = judged(&Faulty::ArgmaxScoredAsDrawn, &sampler, 1, target(), |out| {
        out.draw(&drawn(&q), None).map(drop).expect("an offer")
    });
    close(&shares(&emitted(&faulty), 3), &[5.0 / 6.0, 0.0, 1.0 / 6.0], ROWS, "the faulty rule");
    let q = [0.2, 0.7, 0.1];
    let honest = judged(&Ratio::new(), &sampler, 1, target(), |out| {
        out.draw(&drawn(&q), None).map(drop).expect("an offer")
    });
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
    let offers: [(&str, Option<[f32; 3]>); 4] = [
        ("not a number", Some([f32::NAN; 3])),
        ("one not a number", Some([5.0, f32::NAN, 0.0])),
        ("nothing finite", Some([f32::NEG_INFINITY; 3])),
        ("token 0 for certain", None),
    ];
    for options in [options(|_| {}), options(|o| o.top_k = 2), options(|o| o.top_p = 0.99)] {
        let sampler = Sampler::new(options, 3).expect("options");
        for (what, row) in offers {
            let offer = |out: &mut dyn DraftSink| match row {
                Some(row) => {
                    let rows = Array::from_slice(&row.repeat(ROWS), &[1, ROWS as i32, 3]);
                    out.draw(&rows, None).map(drop).expect("an offer");
                }
                None => out.known(&[0; ROWS]).expect("an offer"),
            };
            let ratio = judged(&Ratio::new(), &sampler, 1, logits(&p).repeat(ROWS), offer);
            let coupled = judged(&Coupled::new(3), &sampler, 1, logits(&p).repeat(ROWS), offer);
            for verdict in [ratio, coupled] {
                assert_eq!(verdict.sound, vec![row.is_none(); ROWS], "{what}");
                let ids = emitted(&verdict);
                assert!(!ids.contains(&0), "{what}: the rejected token came back");
                if sampler.options().top_p == 1.0 {
                    close(&shares(&ids, 3), &p, ROWS, what);
                }
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
    let offer = |out: &mut dyn DraftSink| {
        let rows = Array::from_slice(&row.repeat(ROWS), &[1, ROWS as i32, 3]);
        out.draw(&rows, None).map(drop).expect("an offer");
    };
    for verdict in [
        judged(&Ratio::new(), &sampler, 1, row.repeat(ROWS), offer),
        judged(&Coupled::new(3), &sampler, 1, row.repeat(ROWS), offer),
    ] {
        assert!(verdict.accepted.iter().all(|a| *a));
        assert!(!verdict.continuations.contains(&0), "an empty residual falls back to the target");
        assert!(!emitted(&verdict).contains(&0));
    }
}
