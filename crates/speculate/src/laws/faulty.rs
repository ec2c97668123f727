//! Rules that other engines really had. The harness must refuse them.

use std::{cell::RefCell, ops::Range};

use foretoken_sample::{Distribution, SplitMix64, noise, uniform};
use mlx_rs::{
    Array,
    ops::{
        concatenate,
        indexing::{TryIndexOp, argmax_axis},
    },
};

use crate::{
    Result, Rule,
    accept::{Engine, Verdict, sealed, verdict},
    lazy::Lazy,
    sink::{Desk, Drafts, RatioSink},
};

/// How many times farther from the law than chance allows a faulty rule's tokens must lie.
pub(super) const OBVIOUS: f64 = 4.0;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Draft and target are both taken by argmax and compared; a mismatch is drawn from the target.
    ArgmaxAgainstArgmax,
    /// The draft is an argmax but scored with its softmax probability.
    ArgmaxScoredAsDrawn,
    /// A rejected draft is replaced by a draw from the target instead of the residual.
    NoResidual,
    /// Acceptance and residual reuse the noise that drew the draft: its winner had a high number already.
    SharedNoise,
}

impl Fault {
    /// Faults that every test of laws must refuse.
    pub(super) const ALL: [Self; 4] =
        [Self::ArgmaxAgainstArgmax, Self::ArgmaxScoredAsDrawn, Self::NoResidual, Self::SharedNoise];
}

/// The ratio rule with a fault.
pub(super) struct Faulty {
    fault: Fault,
    /// The request's stream as it was before the drafts were drawn.
    before: RefCell<SplitMix64>,
}

impl Faulty {
    pub(super) fn new(fault: Fault) -> Self {
        Self { fault, before: RefCell::new(SplitMix64::new(0)) }
    }

    /// What `draw` makes of the drafts of each call, given the key that drew them, joined `[n]`.
    fn again(
        &self,
        drawn_from: &[Distribution],
        draw: impl Fn(u64, Range<usize>) -> Result<Array>,
    ) -> Result<Array> {
        let mut keys = self.before.borrow().clone();
        let (mut at, mut all) = (0, Vec::new());
        for part in drawn_from.iter().map(Distribution::rows) {
            all.push(draw(keys.next_u64(), at..at + part)?);
            at += part;
        }
        Ok(concatenate(&all.iter().collect::<Vec<_>>(), 0)?)
    }
}

impl sealed::Sealed for Faulty {}

impl Rule for Faulty {
    type Sink<'a> = RatioSink<'a>;

    fn accept(&self, target: &Distribution, drawn: RatioSink<'_>) -> Result<Lazy<Verdict>> {
        let RatioSink { mut drafts, stream, drawn_from } = drawn;
        let (n, slot) = (drafts.count(), drafts.first_slot());
        if n == 0 {
            return verdict(&drafts, None, &target.draw(stream.next_u64(), slot)?);
        }
        let q = Distribution::concat(&drawn_from.iter().collect::<Vec<_>>())?;
        let p = target.slice(0..n)?;
        if matches!(self.fault, Fault::ArgmaxAgainstArgmax | Fault::ArgmaxScoredAsDrawn) {
            drafts.replace(argmax(&q)?);
        }
        let ids = drafts.ids().expect("drafts").clone();
        let below = |u: Array| -> Result<Array> { Ok(u.multiply(&q.prob(&ids)?)?.lt(&p.prob(&ids)?)?) };
        let accepted = match self.fault {
            Fault::ArgmaxAgainstArgmax => argmax(&p)?.eq(&ids)?,
            Fault::SharedNoise => below(self.again(&drawn_from, |key, rows| {
                let ids = ids.try_index(rows.start as i32..rows.end as i32)?.expand_dims(-1)?;
                let g = noise(key, slot + rows.start..slot + rows.end, &ids)?.squeeze_axes(&[-1])?;
                // The uniform number behind Gumbel noise.
                Ok(g.negative()?.exp()?.negative()?.exp()?)
            })?)?,
            _ => below(uniform(stream.next_u64(), slot..slot + n)?)?,
        };
        let key = stream.next_u64();
        let rejected_at = match self.fault {
            Fault::ArgmaxAgainstArgmax | Fault::NoResidual => p.draw(key, slot)?,
            Fault::ArgmaxScoredAsDrawn => p.residual(&q)?.draw(key, slot)?,
            Fault::SharedNoise => {
                let left = p.residual(&q)?;
                self.again(&drawn_from, |key, rows| {
                    Ok(left.slice(rows.clone())?.draw(key, slot + rows.start)?)
                })?
            }
        };
        let bonus = target.slice(n..n + 1)?.draw(key, slot + n)?;
        verdict(&drafts, Some(accepted), &concatenate(&[&rejected_at, &bonus], 0)?)
    }
}

impl Engine for Faulty {
    fn sink<'a>(&self, desk: Desk<'a>) -> RatioSink<'a> {
        self.before.replace(desk.stream.clone());
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
