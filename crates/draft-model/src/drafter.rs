//! The persistent half: the draft model, and how its logits stand for the target's ids.

use std::rc::Rc;

use foretoken_cache::CacheSet;
use foretoken_model_base::{DraftVocabulary, Model, ModelFacts};
use foretoken_speculate::{DraftError, DraftSession, Drafter, DrafterFacts};
use mlx_rs::{Array, ops::indexing::TryIndexOp};

use crate::{SharedVocabulary, VocabularyError, session::ModelSession};

/// Committed tokens that may wait before the draft model reads them: enough for efficient products, few
/// enough that a proposal after a long pause starts soon.
pub const CATCH_UP_TOKENS: usize = 256;

/// The deepest proposal. Each token of it is a forward of the draft model, so deeper ones never pay.
pub(crate) const MAX_DEPTH: usize = 16;

/// Drafts with any model that reads the target's tokens.
pub struct ModelDrafter {
    model: Rc<dyn Model>,
    columns: Rc<Columns>,
    facts: DrafterFacts,
    catch_up: usize,
}

impl ModelDrafter {
    /// A drafter for this target.
    ///
    /// The two models may pad their logits differently: what the draft model has past the target's columns
    /// is cut off, and target ids past the draft model's are never drafted. Fewer columns than tokens in
    /// either model are an error.
    pub fn new(
        vocabulary: SharedVocabulary,
        target: &ModelFacts,
        model: Rc<dyn Model>,
    ) -> Result<Self, VocabularyError> {
        Self::with_catch_up(vocabulary, target, model, CATCH_UP_TOKENS)
    }

    /// Like [`new`](Self::new), reading whenever `catch_up` committed tokens wait (at least 1).
    pub fn with_catch_up(
        vocabulary: SharedVocabulary,
        target: &ModelFacts,
        model: Rc<dyn Model>,
        catch_up: usize,
    ) -> Result<Self, VocabularyError> {
        let (wanted, own) = (target.vocabulary, model.facts().vocabulary);
        for (which, got) in [("target", wanted), ("draft", own)] {
            let expected = vocabulary.tokens().max(1);
            if got < expected {
                return Err(VocabularyError::Columns { model: which, expected, got });
            }
        }
        // The own caches are all that a session remembers: it reads on from wherever they rest.
        let facts = DrafterFacts::new("model", MAX_DEPTH).with_catching_up();
        Ok(Self { model, columns: Rc::new(Columns::new(wanted, own)), facts, catch_up: catch_up.max(1) })
    }
}

impl Drafter for ModelDrafter {
    fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    fn make_caches(&self) -> Option<CacheSet> {
        Some(self.model.make_caches())
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        let (model, columns) = (Rc::clone(&self.model), Rc::clone(&self.columns));
        Ok(Box::new(ModelSession::new(model, columns, self.catch_up, at)))
    }
}

/// How the draft model's logit columns map to target ids.
pub(crate) enum Columns {
    /// One to one.
    Same,
    /// The first of them; the rest is padding.
    First(i32),
    /// One to one, for the first target ids.
    Fewer(DraftVocabulary),
}

impl Columns {
    fn new(target: usize, own: usize) -> Self {
        match DraftVocabulary::new((0..own as u32).collect(), target) {
            Ok(fewer) if own < target => Columns::Fewer(fewer),
            _ if own > target => Columns::First(target as i32),
            _ => Columns::Same,
        }
    }

    /// # Shapes
    /// `[1,1,D]` → `[1,1,min(D,V)]`.
    pub(crate) fn cut(&self, logits: Array) -> Result<Array, DraftError> {
        match self {
            Columns::First(count) => Ok(logits.try_index((.., .., ..*count))?),
            _ => Ok(logits),
        }
    }

    /// The target ids of the columns, unless they are all.
    pub(crate) fn vocabulary(&self) -> Option<&DraftVocabulary> {
        match self {
            Columns::Fewer(vocabulary) => Some(vocabulary),
            _ => None,
        }
    }
}
