//! One request as the prefix cache sees it, and the offsets it is to be remembered at.

use crate::{CacheError, Result, prefix::PrefixOptions};

/// A request between [`begin`](super::PrefixCache::begin) and [`close`](super::PrefixCache::close).
///
/// It holds no arrays. Dropping it instead of closing it loses what was not yet collected, nothing else.
#[derive(Debug)]
pub struct PrefixSession {
    pub(crate) prompt: Vec<u32>,
    pub(crate) cached: usize,
    /// Restore points still ahead, ascending.
    pub(crate) points: Vec<usize>,
}

impl PrefixSession {
    /// Prompt tokens that need not be computed again; at least one is always left.
    pub fn cached_tokens(&self) -> usize {
        self.cached
    }

    /// The offsets that will be remembered when they are passed, ascending.
    pub fn restore_points(&self) -> &[usize] {
        &self.points
    }
}

/// Where a prompt goes on from.
pub(crate) struct Start {
    /// The offset restored.
    pub(crate) cached: usize,
    /// The number of keys that match, which the restore point may lie before.
    pub(crate) matched: usize,
}

/// The offsets to remember while `tokens` prompt tokens are evaluated from `start` on, ascending.
pub(crate) fn plan(
    options: &PrefixOptions,
    tokens: usize,
    start: &Start,
    boundaries: &[usize],
) -> Vec<usize> {
    let regular = (1..).map_while(|n| options.interval.checked_mul(n).filter(|at| *at > 0 && *at < tokens));
    let mut points: Vec<usize> = regular.collect();
    points.extend([tokens.saturating_sub(options.before_end), start.matched]);
    points.extend(boundaries);
    points.retain(|at| *at > start.cached);
    points.sort_unstable();
    points.dedup();
    points
}

/// Fails unless there is a token to evaluate and every boundary lies inside the prompt.
pub(crate) fn check(prompt: &[u32], boundaries: &[usize]) -> Result<()> {
    if prompt.is_empty() {
        let expected = "at least one token, because the last one is always evaluated".into();
        return Err(CacheError::State { what: "prompt", expected, got: "none".into() });
    }
    match boundaries.iter().find(|at| **at > prompt.len()) {
        Some(&got) => {
            let expected = format!("of at most {}, the prompt's length", prompt.len());
            Err(CacheError::Offset { what: "message boundary", expected, got })
        }
        None => Ok(()),
    }
}

/// Fails unless `tokens` begin with the session's prompt.
pub(crate) fn check_tokens(session: &PrefixSession, tokens: &[u32]) -> Result<()> {
    let expected = "the prompt that the session began with, then what was produced".into();
    let same = session.prompt.iter().zip(tokens).take_while(|(a, b)| a == b).count();
    match same == session.prompt.len() {
        true => Ok(()),
        false => Err(CacheError::State {
            what: "close",
            expected,
            got: format!("other tokens from slot {same} on"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(tokens: usize, cached: usize, matched: usize, boundaries: &[usize]) -> Vec<usize> {
        let options = PrefixOptions { interval: 8, ..PrefixOptions::default() };
        plan(&options, tokens, &Start { cached, matched }, boundaries)
    }

    #[test]
    fn restore_points_are_regular_before_the_end_at_the_branch_and_at_boundaries() {
        assert_eq!(planned(30, 0, 0, &[]), [8, 16, 24, 26]);
        assert_eq!(planned(30, 8, 19, &[5, 24, 29, 30]), [16, 19, 24, 26, 29, 30]);
        assert_eq!(planned(30, 26, 26, &[]), [0; 0]);
        assert_eq!(planned(3, 0, 0, &[]), [0; 0], "a short prompt has no offset 4 before its end");
        assert_eq!(planned(16, 0, 0, &[]), [8, 12], "at most the tokens before the last");
        let never = PrefixOptions { interval: 0, before_end: 0, ..PrefixOptions::default() };
        assert_eq!(plan(&never, 30, &Start { cached: 0, matched: 0 }, &[]), [30]);
    }

    #[test]
    fn bad_prompts_and_boundaries_are_told_apart() {
        assert!(matches!(check(&[], &[]), Err(CacheError::State { what: "prompt", .. })));
        assert!(matches!(check(&[1, 2], &[0, 2, 3]), Err(CacheError::Offset { got: 3, .. })));
        check(&[1, 2], &[0, 2]).expect("inside");
    }
}
