//! One request's options applied to logits.

use mlx_rs::Array;
use mlx_rs::ops::broadcast_to;
use mlx_rs::ops::indexing::argmax_axis;

use crate::arrays::float32;
use crate::{Distribution, History, Result, SampleError, SamplingOptions, filter, penalties};

/// Logit rows and what each of them has seen.
///
/// Row i's penalties look at the history followed by the first min(`first` + i, m) tokens in flight.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Raw logits `[n,D]`, any float dtype.
    pub logits: &'a Array,
    /// The target id of each column `[D]` uint32, ascending; `None` when D is V.
    pub columns: Option<&'a Array>,
    /// Tokens known on the host.
    pub history: &'a History,
    /// Tokens after the history that may not be known yet `[m]` uint32.
    pub in_flight: Option<&'a Array>,
    /// How many tokens in flight row 0 has already seen.
    pub first: usize,
    /// Ids that a grammar allows in each row `[n,V]` bool; `None` allows all.
    pub allowed: Option<&'a Array>,
}

/// One request's sampler: options checked once, no state.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SamplingOptions,
    vocabulary: usize,
}

impl Sampler {
    /// Checks the options against their ranges and the vocabulary.
    pub fn new(options: SamplingOptions, vocabulary: usize) -> Result<Self> {
        options.validate()?;
        if vocabulary == 0 || i32::try_from(vocabulary).is_err() {
            return Err(SampleError::Option {
                what: "vocabulary",
                expected: "at least one and at most 2^31 − 1 ids",
                got: vocabulary.to_string(),
            });
        }
        if let Some(top) = options.logprobs.filter(|&top| top > vocabulary) {
            return Err(SampleError::Option {
                what: "logprobs",
                expected: "at most the size of the vocabulary",
                got: top.to_string(),
            });
        }
        Ok(Self { options, vocabulary })
    }

    /// The options.
    pub fn options(&self) -> &SamplingOptions {
        &self.options
    }

    /// The target's vocabulary size V.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// What each row's next token is drawn from. Greedy requests get points, top-k requests sparse rows,
    /// rows over a draft vocabulary sparse rows with the columns' target ids, everything else dense rows.
    ///
    /// Of equally likely tokens the lowest id wins, in greedy rows as in top-k.
    pub fn distribution(&self, rows: Rows<'_>) -> Result<Distribution> {
        self.check(&rows)?;
        let penalised = match penalties::active(&self.options) {
            true => penalties::apply(&float32(rows.logits)?, &rows, &self.options, self.vocabulary)?,
            false => rows.logits.clone(),
        };
        let target = |columns: Array| match rows.columns {
            Some(ids) => ids.take_axis(columns, 0),
            None => Ok(columns),
        };
        if self.options.temperature == 0.0 {
            return Ok(Distribution::Point { ids: target(argmax_axis(&penalised, -1, false)?)? });
        }
        let logits = float32(&penalised)?;
        if let Some(kept) = filter::top_k(&logits, self.options.top_k)? {
            let logprobs = filter::normalised(&logits.take_along_axis(&kept, -1)?, &self.options)?;
            return Ok(Distribution::Sparse { ids: target(kept)?, logprobs });
        }
        let logprobs = filter::normalised(&logits, &self.options)?;
        Ok(match rows.columns {
            Some(ids) => Distribution::Sparse { ids: broadcast_to(ids, logits.shape())?, logprobs },
            None => Distribution::Dense { logprobs },
        })
    }

    fn check(&self, rows: &Rows<'_>) -> Result<()> {
        let shape = |what, expected: String, got: &Array| {
            Err(SampleError::Shape { what, expected, got: format!("{:?}", got.shape()) })
        };
        let width = rows.columns.map_or(self.vocabulary as i32, |ids| ids.size() as i32);
        match (rows.columns, rows.in_flight) {
            (Some(ids), _) if ids.ndim() != 1 => return shape("columns", "[D]".into(), ids),
            (_, Some(ids)) if ids.ndim() != 1 => return shape("tokens in flight", "[m]".into(), ids),
            _ => {}
        }
        match *rows.logits.shape() {
            [n, columns] if n > 0 && columns == width => Ok(()),
            _ => shape("logits", format!("[n,{width}] with n ≥ 1"), rows.logits),
        }
    }
}
