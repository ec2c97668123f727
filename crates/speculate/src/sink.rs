//! Where proposals go: one sink per acceptance rule, so that rows drawn for one rule can never be judged
//! by the other.

use foretoken_model_base::DraftVocabulary;
use foretoken_sample::{Distribution, History, Rows, Sampler, SplitMix64, finite_rows};
use mlx_rs::{
    Array,
    ops::{self, concatenate, indexing::TryIndexOp},
};

use crate::{DraftError, DraftSink};

/// What a round knows before it drafts.
pub(crate) struct Desk<'a> {
    pub(crate) sampler: &'a Sampler,
    pub(crate) history: &'a History,
    pub(crate) stream: &'a mut SplitMix64,
    pub(crate) room: usize,
}

/// The drafts of one round, all lazy.
pub(crate) struct Drafts<'a> {
    sampler: &'a Sampler,
    history: &'a History,
    room: usize,
    /// Draft ids `[c]` uint32.
    ids: Option<Array>,
    /// Whether each draft came from logits that can be sampled `[c]` bool.
    sound: Option<Array>,
    count: usize,
    /// The drafts, while all of them came from the host.
    host: Option<Vec<u32>>,
}

impl<'a> Drafts<'a> {
    fn new(sampler: &'a Sampler, history: &'a History, room: usize) -> Self {
        Self { sampler, history, room, ids: None, sound: None, count: 0, host: Some(Vec::new()) }
    }

    /// The number of drafts c.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Draft ids `[c]` uint32; `None` without drafts.
    pub(crate) fn ids(&self) -> Option<&Array> {
        self.ids.as_ref()
    }

    /// Whether each draft came from logits that can be sampled `[c]` bool.
    pub(crate) fn sound(&self) -> Option<&Array> {
        self.sound.as_ref()
    }

    /// V, the number of target ids.
    pub(crate) fn vocabulary(&self) -> usize {
        self.sampler.vocabulary()
    }

    /// The absolute slot of the first draft.
    pub(crate) fn first_slot(&self) -> usize {
        self.history.ids().len()
    }

    /// The drafts, when none of them has to be waited for.
    pub(crate) fn host(&self) -> Option<&[u32]> {
        self.host.as_deref()
    }

    /// Forgets all but the first `count` drafts.
    pub(crate) fn cut(&mut self, count: usize) -> crate::Result<()> {
        let kept = |array: &mut Option<Array>| -> crate::Result<()> {
            *array = match array.take() {
                Some(array) if count > 0 => Some(array.try_index(..count as i32)?),
                _ => None,
            };
            Ok(())
        };
        if count < self.count {
            kept(&mut self.ids)?;
            kept(&mut self.sound)?;
            self.count = count;
            if let Some(host) = self.host.as_mut() {
                host.truncate(count);
            }
        }
        Ok(())
    }

    /// Other ids than those drawn, as a faulty rule has them.
    #[cfg(test)]
    pub(crate) fn replace(&mut self, ids: Array) {
        self.ids = Some(ids);
    }

    fn next_slot(&self) -> usize {
        self.first_slot() + self.count
    }

    fn check_room(&self, more: usize) -> Result<(), DraftError> {
        let left = self.room - self.count;
        if more == 0 || more > left {
            return Err(DraftError::Mismatch {
                what: "proposal".into(),
                expected: format!("1 to {left} more tokens"),
                got: more.to_string(),
            });
        }
        Ok(())
    }

    /// What rows of draft logits are drawn from, and which of them can be sampled at all.
    ///
    /// Every row of a block sees the drafts of earlier calls and none of its own block.
    fn rows(
        &self,
        logits: &Array,
        vocabulary: Option<&DraftVocabulary>,
    ) -> Result<(Distribution, Array), DraftError> {
        let logits = self.check_rows(logits, vocabulary)?;
        let sound = finite_rows(&logits)?;
        let rows = Rows {
            logits: &logits,
            columns: vocabulary.map(|v| v.array()),
            history: self.history,
            in_flight: self.ids.as_ref(),
            first: self.count,
            allowed: None,
        };
        let drawn_from = void_unsound(self.sampler.distribution(rows)?, &sound)?;
        Ok((drawn_from, sound))
    }

    /// # Shapes
    /// `[1,n,D]` → `[n,D]`.
    fn check_rows(&self, logits: &Array, vocabulary: Option<&DraftVocabulary>) -> Result<Array, DraftError> {
        let target = self.sampler.vocabulary();
        let columns = vocabulary.map_or(target, |v| v.len());
        let known = vocabulary.is_none_or(|v| v.ids().last().is_some_and(|&id| (id as usize) < target));
        let shape = logits.shape();
        if known && shape.len() == 3 && shape[0] == 1 && shape[2] as usize == columns {
            self.check_room(shape[1] as usize)?;
            return Ok(logits.reshape(&[shape[1], shape[2]])?);
        }
        Err(DraftError::Mismatch {
            what: "draft logits".into(),
            expected: format!("shape [1,n,{columns}] over ids below {target}"),
            got: format!("{shape:?}"),
        })
    }

    /// # Shapes
    /// `ids` and `sound` `[n]`.
    fn push(&mut self, ids: &Array, sound: &Array) -> Result<(), DraftError> {
        self.ids = Some(extended(self.ids.as_ref(), ids)?);
        self.sound = Some(extended(self.sound.as_ref(), sound)?);
        self.count += ids.dim(0) as usize;
        self.host = None;
        Ok(())
    }

    /// Point masses at `ids`, which come from the host.
    fn push_known(&mut self, ids: &[u32]) -> Result<Array, DraftError> {
        self.check_room(ids.len())?;
        let vocabulary = self.sampler.vocabulary();
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(DraftError::Mismatch {
                what: "known token".into(),
                expected: format!("an id below {vocabulary}"),
                got: id.to_string(),
            });
        }
        let count = [ids.len() as i32];
        let known = self.host.take().map(|host| [&host, ids].concat());
        let ids = Array::from_slice(ids, &count);
        self.push(&ids, &Array::from_slice(&vec![true; count[0] as usize], &count))?;
        self.host = known;
        Ok(ids)
    }
}

fn extended(had: Option<&Array>, more: &Array) -> Result<Array, DraftError> {
    Ok(match had {
        Some(had) => concatenate(&[had, more], 0)?,
        None => more.clone(),
    })
}

/// A row that cannot be sampled states nothing: its residual is then the target's own row.
fn void_unsound(rows: Distribution, sound: &Array) -> Result<Distribution, DraftError> {
    let void = |logprobs: &Array| -> Result<Array, DraftError> {
        let keep = sound.try_index((.., ops::indexing::NewAxis))?;
        Ok(ops::select(&keep, logprobs, Array::from_f32(f32::NAN))?)
    };
    Ok(match rows {
        Distribution::Dense { logprobs } => Distribution::Dense { logprobs: void(&logprobs)? },
        Distribution::Sparse { ids, logprobs } => {
            let logprobs = void(&logprobs)?;
            Distribution::Sparse { ids, logprobs }
        }
        point => point,
    })
}

/// Draws from each draft row with fresh keys and remembers the row, for the ratio rule.
pub struct RatioSink<'a> {
    pub(crate) drafts: Drafts<'a>,
    pub(crate) stream: &'a mut SplitMix64,
    /// What each draft was drawn from, in order.
    pub(crate) drawn_from: Vec<Distribution>,
}

impl<'a> RatioSink<'a> {
    pub(crate) fn new(desk: Desk<'a>) -> Self {
        let drafts = Drafts::new(desk.sampler, desk.history, desk.room);
        Self { drafts, stream: desk.stream, drawn_from: Vec::new() }
    }

    /// Forgets all but the first `count` drafts.
    pub(crate) fn cut(&mut self, count: usize) -> crate::Result<()> {
        let mut left = count;
        let mut kept = Vec::new();
        for rows in self.drawn_from.drain(..) {
            let here = rows.rows().min(left);
            if here > 0 {
                kept.push(if here == rows.rows() { rows } else { rows.slice(0..here)? });
            }
            left -= here;
        }
        self.drawn_from = kept;
        self.drafts.cut(count)
    }
}

impl DraftSink for RatioSink<'_> {
    fn room(&self) -> usize {
        self.drafts.room - self.drafts.count
    }

    fn draw(&mut self, logits: &Array, vocabulary: Option<&DraftVocabulary>) -> Result<Array, DraftError> {
        let (drawn_from, sound) = self.drafts.rows(logits, vocabulary)?;
        let ids = drawn_from.draw(self.stream.next_u64(), self.drafts.next_slot())?;
        self.drafts.push(&ids, &sound)?;
        self.drawn_from.push(drawn_from);
        Ok(ids.expand_dims(0)?)
    }

    fn known(&mut self, ids: &[u32]) -> Result<(), DraftError> {
        let ids = self.drafts.push_known(ids)?;
        self.drawn_from.push(Distribution::Point { ids });
        Ok(())
    }
}

/// Draws from each draft row with the noise that the target will use at the same slot, for the coupled
/// rule. Nothing but the ids need be remembered.
pub struct CoupledSink<'a> {
    pub(crate) drafts: Drafts<'a>,
    seed: u64,
}

impl<'a> CoupledSink<'a> {
    pub(crate) fn new(desk: Desk<'a>, seed: u64) -> Self {
        Self { drafts: Drafts::new(desk.sampler, desk.history, desk.room), seed }
    }
}

impl DraftSink for CoupledSink<'_> {
    fn room(&self) -> usize {
        self.drafts.room - self.drafts.count
    }

    fn draw(&mut self, logits: &Array, vocabulary: Option<&DraftVocabulary>) -> Result<Array, DraftError> {
        let (drawn_from, sound) = self.drafts.rows(logits, vocabulary)?;
        let ids = drawn_from.draw(self.seed, self.drafts.next_slot())?;
        self.drafts.push(&ids, &sound)?;
        Ok(ids.expand_dims(0)?)
    }

    fn known(&mut self, ids: &[u32]) -> Result<(), DraftError> {
        self.drafts.push_known(ids).map(drop)
    }
}
