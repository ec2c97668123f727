//! Statistical tests with fixed seeds: both rules give the target's law, and the same harness refuses
//! rules that do not.

mod acceptance;
mod broken_drafts;
mod faulty;
mod joint;
mod judge;
mod misleading;
mod requests;

use foretoken_sample::SamplingOptions;

/// Sampling at temperature 1 with a change.
fn options(change: impl Fn(&mut SamplingOptions)) -> SamplingOptions {
    let mut options = SamplingOptions { temperature: 1.0, ..SamplingOptions::greedy() };
    change(&mut options);
    options
}
