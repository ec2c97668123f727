//! One request's options applied to logits.

use mlx_rs::Array;
use mlx_rs::ops::broadcast_to;
use mlx_rs::ops::indexing::argmax_axis;

use crate::arrays::float32;
use crate::masks::{self, Bans};
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
    bans: Bans,
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
        masks::check_bias(&options.logit_bias, vocabulary)?;
        let bans = Bans::new(&options, vocabulary)?;
        Ok(Self { options, vocabulary, bans })
    }

    /// Tells which tokens end the request's answer, for `ignore_eos` and `min_tokens`. Call it once.
    pub fn with_ends(self, ends: &[u32]) -> Result<Self> {
        let bans = self.bans.with_ends(ends, &self.options, self.vocabulary)?;
        Ok(Self { bans, ..self })
    }

    /// The options.
    pub fn options(&self) -> &SamplingOptions {
        &self.options
    }

    /// The target's vocabulary size V.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// What each row's next token is drawn from. Greedy requests get points (one column when masked),
    /// top-k requests sparse rows, rows over a draft vocabulary sparse rows with the columns' target ids,
    /// everything else dense rows.
    ///
    /// Of equally likely tokens the lowest id wins, in greedy rows as in top-k.
    pub fn distribution(&self, rows: Rows<'_>) -> Result<Distribution> {
        Ok(self.laws(&rows, filter::normalised)?.0)
    }

    /// What a round draws from, and for greedy requests that report margins how far each row's best logit
    /// lies above the second, after penalties and masks. Sampled requests get their margin with the draw,
    /// see [`Distribution::draw_with_margin`].
    ///
    /// Rows of a coupled request are drawn from and never divided by each other: their log probabilities
    /// may be off by one number for the whole row, which saves a sum over the vocabulary.
    ///
    /// # Shapes
    /// → `[n]` float32.
    pub fn distribution_with_margin(&self, rows: Rows<'_>) -> Result<(Distribution, Option<Array>)> {
        let filter = if self.options.coupled() { filter::relative } else { filter::normalised };
        self.laws(&rows, filter)
    }

    fn laws(&self, rows: &Rows<'_>, filtered: Filter) -> Result<(Distribution, Option<Array>)> {
        self.check(rows)?;
        let masked = self.bans.active() || rows.allowed.is_some();
        let adjusted = self.adjusted(rows, masked)?;
        if self.options.temperature == 0.0 {
            return self.greedy(&adjusted, rows, masked);
        }
        Ok((self.sampled(&adjusted, rows, filtered)?, None))
    }

    /// Logits after bias, penalties and masks: `[n,D]` → `[n,D]`, untouched when nothing is asked for.
    fn adjusted(&self, rows: &Rows<'_>, masked: bool) -> Result<Array> {
        let (options, biased) = (&self.options, !self.options.logit_bias.is_empty());
        let penalised = penalties::active(options);
        if !(biased || penalised || masked) {
            return Ok(rows.logits.clone());
        }
        let mut logits = float32(rows.logits)?;
        if biased {
            logits = masks::bias(&logits, &options.logit_bias, rows, self.vocabulary)?;
        }
        if penalised {
            logits = penalties::apply(&logits, rows, options, self.vocabulary)?;
        }
        match masked {
            true => masks::apply(logits, &self.bans, rows, self.vocabulary),
            false => Ok(logits),
        }
    }

    fn greedy(&self, logits: &Array, rows: &Rows<'_>, masked: bool) -> Result<(Distribution, Option<Array>)> {
        let margin = self.options.margins.then(|| masks::gap(&float32(logits)?)).transpose()?;
        if masked {
            let (best, logprobs) = masks::best_or_nothing(logits)?;
            return Ok((Distribution::Sparse { ids: target(rows, best)?, logprobs }, margin));
        }
        let ids = target(rows, argmax_axis(logits, -1, false)?)?;
        Ok((Distribution::Point { ids }, margin))
    }

    fn sampled(&self, logits: &Array, rows: &Rows<'_>, filtered: Filter) -> Result<Distribution> {
        let logits = float32(logits)?;
        if let Some(kept) = filter::top_k(&logits, self.options.top_k)? {
            let logprobs = filtered(&logits.take_along_axis(&kept, -1)?, &self.options)?;
            return Ok(Distribution::Sparse { ids: target(rows, kept)?, logprobs });
        }
        let logprobs = filtered(&logits, &self.options)?;
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
        if let (Some(allowed), Some(&n)) = (rows.allowed, rows.logits.shape().first()) {
            let expected = [n, self.vocabulary as i32];
            if allowed.shape() != expected {
                return shape("allowed ids", format!("{expected:?}"), allowed);
            }
        }
        match *rows.logits.shape() {
            [n, columns] if n > 0 && columns == width => Ok(()),
            _ => shape("logits", format!("[n,{width}] with n ≥ 1"), rows.logits),
        }
    }
}

/// Log probabilities of `[n,k]` logits after the filters.
type Filter = fn(&Array, &SamplingOptions) -> Result<Array>;

/// The target ids of columns, any shape.
fn target(rows: &Rows<'_>, columns: Array) -> Result<Array> {
    Ok(match rows.columns {
        Some(ids) => ids.take_axis(columns, 0)?,
        None => columns,
    })
}
