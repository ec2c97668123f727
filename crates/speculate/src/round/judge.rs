//! The host's reading of a round: which tokens it brought, and what is known about each.

use foretoken_sample::{Distribution, finite_rows, logprobs};
use mlx_rs::{
    Array,
    ops::{concatenate, indexing::TryIndexOp, stack},
};

use crate::{
    Provenance, Result, SpeculateError, Token, TokenLogprobs,
    accept::Verdict,
    lazy::{Host, Lazy},
};

/// What is known about rows of the target, one entry per row.
#[derive(Debug, Clone, Default)]
pub(crate) struct RowFacts {
    /// The raw logits can be sampled.
    pub(crate) finite: Vec<bool>,
    /// Something is left after filters and masks.
    pub(crate) support: Vec<bool>,
    /// How far the greedy choice lies above the next best; empty unless asked for.
    margins: Vec<f32>,
    /// Log probabilities; empty unless asked for.
    report: Vec<RowReport>,
}

impl RowFacts {
    /// # Shapes
    /// `logits` `[n,V]`, `margin` `[n]`.
    pub(crate) fn of(
        logits: &Array,
        law: &Distribution,
        margin: Option<&Array>,
        report: Option<Report>,
    ) -> Result<Lazy<Self>> {
        let (finite, support) = (finite_rows(logits)?, law.support()?);
        let arrays: Vec<&Array> = [&finite, &support].into_iter().chain(margin).collect();
        let has_margin = margin.is_some();
        let facts = Lazy::new(&arrays, move |mut hosts| Self {
            finite: hosts.next().map(Host::flags).unwrap_or_default(),
            support: hosts.next().map(Host::flags).unwrap_or_default(),
            margins: hosts.next().filter(|_| has_margin).map(Host::floats).unwrap_or_default(),
            report: Vec::new(),
        })?;
        Ok(match report {
            Some(Report(report)) => facts.with(report).map(|(facts, report)| Self { report, ..facts }),
            None => facts,
        })
    }

    /// The fault of row i, if it has one.
    pub(crate) fn fault(&self, row: usize) -> Option<Fault> {
        match (self.finite.get(row), self.support.get(row)) {
            (Some(true), Some(true)) => None,
            (Some(true), _) => Some(Fault::EmptySupport),
            _ => Some(Fault::NonFinite),
        }
    }

    /// The greedy margin of row i, when asked for.
    pub(crate) fn margin(&self, row: usize) -> Option<f32> {
        self.margins.get(row).copied()
    }

    /// Log probabilities for the draft (0) or the continuation (1) of row i, when asked for.
    pub(crate) fn logprobs(&self, row: usize, which: usize) -> Option<TokenLogprobs> {
        let row = self.report.get(row)?;
        Some(TokenLogprobs { logprob: row.chosen.get(which).copied()?, top: row.top.clone() })
    }
}

/// Log probabilities of one row.
#[derive(Debug, Clone, Default)]
struct RowReport {
    /// Of the row's draft and of its continuation.
    chosen: Vec<f32>,
    top: Vec<(u32, f32)>,
}

/// Log probabilities of every row, not computed yet.
pub(crate) struct Report(Lazy<Vec<RowReport>>);

impl Report {
    /// # Shapes
    /// `logits` `[1+n,V]`, `drafts` `[n]`, `continuations` `[1+n]`.
    pub(crate) fn of(
        logits: &Array,
        drafts: Option<&Array>,
        continuations: &Array,
        top: usize,
    ) -> Result<Self> {
        // The last row has no draft; its own token stands in.
        let last = logits.dim(0) - 1;
        let drafted = match drafts {
            Some(drafts) => concatenate(&[drafts, &continuations.try_index(last..)?], 0)?,
            None => continuations.clone(),
        };
        let of = logprobs(logits, &stack(&[&drafted, continuations], 1)?, top)?;
        let (rows, width) = (logits.dim(0) as usize, of.top.dim(-1) as usize);
        let read = Lazy::new(&[&of.chosen, &of.top_ids, &of.top], move |mut hosts| {
            let chosen = hosts.next().map(Host::floats).unwrap_or_default();
            let ids = hosts.next().map(Host::ids).unwrap_or_default();
            let top = hosts.next().map(Host::floats).unwrap_or_default();
            let pairs: Vec<(u32, f32)> = ids.into_iter().zip(top).collect();
            let row = |row: usize| RowReport {
                chosen: chosen.iter().skip(2 * row).take(2).copied().collect(),
                top: pairs.iter().skip(width * row).take(width).copied().collect(),
            };
            (0..rows).map(row).collect()
        })?;
        Ok(Self(read))
    }
}

/// Why no token can be drawn from a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    NonFinite,
    EmptySupport,
}

impl Fault {
    pub(crate) fn error(self, step: usize) -> SpeculateError {
        match self {
            Fault::NonFinite => SpeculateError::NonFinite { step },
            Fault::EmptySupport => SpeculateError::EmptySupport { step },
        }
    }
}

/// The host's reading of a judged proposal.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) tokens: Vec<Token>,
    /// Drafts accepted, an end token included.
    pub(super) accepted: usize,
    /// Drafts whose rows the caches keep.
    pub(super) kept: usize,
    pub(super) rejected: bool,
    /// The draft at the end of the run came from logits that cannot be sampled.
    pub(super) unsound: bool,
    /// The row after the run cannot be sampled.
    pub(super) fault: Option<Fault>,
}

impl Outcome {
    /// The tokens' ids.
    pub(super) fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }
}

/// The longest accepted prefix and what follows it. Rows past the first rejection do not matter.
/// `origin` says where the draft at a position came from.
pub(super) fn judge(
    verdict: &Verdict,
    rows: &RowFacts,
    origin: impl Fn(usize) -> Provenance,
    is_end: impl Fn(u32) -> bool,
) -> Outcome {
    let mut run = Outcome::default();
    let drafts = verdict.ids.len();
    let token = |id, row: usize, which, provenance| Token {
        id,
        logprobs: rows.logprobs(row, which),
        margin: rows.margin(row).or(verdict.margins.get(row).copied()),
        provenance,
    };
    for (row, &next) in verdict.continuations.iter().enumerate() {
        run.kept = row;
        if let Some(fault) = rows.fault(row) {
            // The last accepted draft becomes the token to forward again.
            run.kept = row.saturating_sub(1);
            run.fault = Some(fault);
            return run;
        }
        if row == drafts {
            let provenance = if drafts == 0 { Provenance::Plain } else { Provenance::Bonus };
            run.tokens.push(token(next, row, NEXT, provenance));
            return run;
        }
        run.unsound = !verdict.sound[row];
        if run.unsound || !verdict.accepted[row] {
            run.rejected = true;
            run.tokens.push(token(next, row, NEXT, Provenance::Residual));
            return run;
        }
        run.accepted += 1;
        run.tokens.push(token(verdict.ids[row], row, DRAFT, origin(row)));
        if is_end(verdict.ids[row]) {
            return run;
        }
    }
    run
}

/// Columns of the reported log probabilities.
const DRAFT: usize = 0;
const NEXT: usize = 1;

#[cfg(test)]
mod tests {
    use super::*;

    const END: u32 = 9;

    fn drafted(position: usize) -> Provenance {
        Provenance::Drafted { drafter: "d", position }
    }

    fn verdict(ids: &[u32], accepted: &[bool], continuations: &[u32]) -> Verdict {
        Verdict {
            ids: ids.to_vec(),
            accepted: accepted.to_vec(),
            sound: vec![true; ids.len()],
            continuations: continuations.to_vec(),
            margins: Vec::new(),
        }
    }

    fn rows(finite: &[bool]) -> RowFacts {
        RowFacts { finite: finite.to_vec(), support: vec![true; finite.len()], ..RowFacts::default() }
    }

    fn ids(outcome: &Outcome) -> Vec<u32> {
        outcome.tokens.iter().map(|t| t.id).collect()
    }

    #[test]
    fn the_run_ends_at_the_first_rejection() {
        let run = judge(
            &verdict(&[1, 2, 3], &[true, false, true], &[5, 6, 7, 8]),
            &rows(&[true; 4]),
            drafted,
            |_| false,
        );
        assert_eq!((ids(&run), run.accepted, run.kept, run.rejected), (vec![1, 6], 1, 1, true));
        assert_eq!(run.tokens[0].provenance, Provenance::Drafted { drafter: "d", position: 0 });
        assert_eq!(run.tokens[1].provenance, Provenance::Residual);
    }

    #[test]
    fn a_full_run_brings_a_bonus_token() {
        let run = judge(&verdict(&[1, 2], &[true, true], &[5, 6, 7]), &rows(&[true; 3]), drafted, |_| false);
        assert_eq!((ids(&run), run.accepted, run.kept, run.rejected), (vec![1, 2, 7], 2, 2, false));
        assert_eq!(run.tokens[2].provenance, Provenance::Bonus);
    }

    #[test]
    fn without_drafts_the_token_is_plain() {
        let run = judge(&verdict(&[], &[], &[5]), &rows(&[true]), drafted, |_| false);
        assert_eq!((ids(&run), run.accepted, run.kept, run.rejected), (vec![5], 0, 0, false));
        assert_eq!(run.tokens[0].provenance, Provenance::Plain);
    }

    #[test]
    fn an_accepted_end_token_keeps_only_what_precedes_it() {
        let run =
            judge(&verdict(&[1, END, 3], &[true; 3], &[5, 6, 7, 8]), &rows(&[true; 4]), drafted, |id| {
                id == END
            });
        assert_eq!((ids(&run), run.accepted, run.kept, run.rejected), (vec![1, END], 2, 1, false));
    }

    #[test]
    fn a_fault_lets_earlier_tokens_out_first() {
        let judged = verdict(&[1, 2, 3], &[true; 3], &[5, 6, 7, 8]);
        let run = judge(&judged, &rows(&[true, true, false, true]), drafted, |_| false);
        assert_eq!((ids(&run), run.accepted, run.kept), (vec![1, 2], 2, 1));
        assert_eq!(run.fault, Some(Fault::NonFinite));
        let run = judge(&judged, &rows(&[false, true, true, true]), drafted, |_| false);
        assert_eq!((ids(&run), run.kept, run.fault), (vec![], 0, Some(Fault::NonFinite)));
    }

    #[test]
    fn a_fault_past_the_rejection_does_not_matter() {
        let judged = verdict(&[1, 2, 3], &[true, false, true], &[5, 6, 7, 8]);
        let run = judge(&judged, &rows(&[true, true, false, false]), drafted, |_| false);
        assert_eq!((ids(&run), run.fault), (vec![1, 6], None));
    }

    #[test]
    fn an_unsound_draft_is_rejected_whatever_the_rule_said() {
        let mut judged = verdict(&[1, 2], &[true, true], &[5, 6, 7]);
        judged.sound[1] = false;
        let run = judge(&judged, &rows(&[true; 3]), drafted, |_| false);
        assert_eq!((ids(&run), run.unsound, run.rejected), (vec![1, 6], true, true));
    }

    #[test]
    fn an_empty_support_is_a_fault_of_its_own() {
        let facts = RowFacts { finite: vec![true, true], support: vec![true, false], ..RowFacts::default() };
        let run = judge(&verdict(&[1], &[true], &[5, 6]), &facts, drafted, |_| false);
        assert_eq!((ids(&run), run.fault), (vec![1], Some(Fault::EmptySupport)));
        assert!(Fault::EmptySupport.error(3).to_string().contains("step 3"));
    }
}
