//! Every option has a range, and its name is in the error.

use foretoken_sample::{Sampler, SamplingOptions};

fn with(change: impl FnOnce(&mut SamplingOptions)) -> Result<(), String> {
    let mut options = SamplingOptions::greedy();
    change(&mut options);
    options.validate().map_err(|error| error.to_string())
}

#[test]
fn the_neutral_options_are_legal() {
    assert_eq!(with(|_| {}), Ok(()));
}

#[test]
fn edges_of_every_range_are_legal() {
    for t in [0.0, 1e-30, 0.8, 100.0] {
        assert_eq!(with(|o| o.temperature = t), Ok(()));
    }
    for p in [1e-6, 1.0] {
        assert_eq!(with(|o| o.top_p = p), Ok(()));
    }
    for p in [0.0, 1.0] {
        assert_eq!(with(|o| o.min_p = p), Ok(()));
    }
    for r in [0.01, 1.0, 100.0] {
        assert_eq!(with(|o| o.repeat_penalty = r), Ok(()));
    }
    for p in [-100.0, 0.0, 100.0] {
        assert_eq!(with(|o| o.presence_penalty = p), Ok(()));
        assert_eq!(with(|o| o.frequency_penalty = p), Ok(()));
    }
    for n in [-1, 0, i32::MAX] {
        assert_eq!(with(|o| o.repeat_last_n = n), Ok(()));
    }
    assert_eq!(with(|o| o.top_k = u32::MAX), Ok(()));
}

#[test]
fn values_outside_name_their_option() {
    type Change = fn(&mut SamplingOptions, f32);
    let cases: [(&str, Change, &[f32]); 6] = [
        ("temperature", |o, x| o.temperature = x, &[-0.1, f32::INFINITY]),
        ("top_p", |o, x| o.top_p = x, &[0.0, -0.5, 1.5]),
        ("min_p", |o, x| o.min_p = x, &[-0.1, 1.1]),
        ("repeat_penalty", |o, x| o.repeat_penalty = x, &[0.0, -1.0, 1e30]),
        ("presence_penalty", |o, x| o.presence_penalty = x, &[-101.0, f32::INFINITY]),
        ("frequency_penalty", |o, x| o.frequency_penalty = x, &[101.0, f32::NEG_INFINITY]),
    ];
    for (name, change, values) in cases {
        for &value in values.iter().chain(&[f32::NAN]) {
            let message = with(|o| change(o, value)).unwrap_err();
            assert!(message.starts_with(&format!("option {name}: expected ")), "{message}");
            assert!(message.ends_with(&format!("got {value}")), "{message}");
        }
    }
    let message = with(|o| o.repeat_last_n = -2).unwrap_err();
    assert_eq!(message, "option repeat_last_n: expected -1 (all), 0 (off) or a number of tokens, got -2");
}

#[test]
fn the_vocabulary_bounds_the_sampler() {
    let error = |options: SamplingOptions, v| Sampler::new(options, v).unwrap_err().to_string();
    assert!(error(SamplingOptions::greedy(), 0).starts_with("option vocabulary: "));
    let asked = SamplingOptions { logprobs: Some(9), ..SamplingOptions::greedy() };
    assert!(error(asked.clone(), 8).starts_with("option logprobs: "));
    assert!(Sampler::new(asked, 9).is_ok());
    let hot = SamplingOptions { temperature: f32::NAN, ..SamplingOptions::greedy() };
    assert!(error(hot, 8).starts_with("option temperature: "));
}
