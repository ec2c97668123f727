//! The drafter around the index: a whole implementation of the contract, without model and caches.

use foretoken_speculate::{
    CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter, DrafterFacts,
};

use crate::index::Index;

/// Which runs are looked up, and how far a proposal goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NgramOptions {
    /// The shortest run that counts as a match, in tokens; at least 1.
    pub min_n: usize,
    /// The longest run that is looked up; longer ones are tried first.
    pub max_n: usize,
    /// The deepest proposal.
    pub max_depth: usize,
}

impl Default for NgramOptions {
    /// Runs of 2 to 5 tokens: a single token matches almost anywhere, and six equal tokens predict hardly
    /// better than five. Proposals of at most 16: a copied passage goes on, and rows past that cost more than
    /// they bring.
    fn default() -> Self {
        Self { min_n: 2, max_n: 5, max_depth: 16 }
    }
}

/// Offers what followed the last occurrence of the longest run that the text ends with.
pub struct NgramDrafter {
    facts: DrafterFacts,
    options: NgramOptions,
}

impl NgramDrafter {
    /// A drafter for any target. Runs without tokens and a largest n below the smallest are errors.
    pub fn new(options: NgramOptions) -> Result<Self, DraftError> {
        let NgramOptions { min_n, max_n, max_depth } = options;
        if min_n == 0 || max_n < min_n {
            let (expected, got) = ("1 ≤ min_n ≤ max_n".into(), format!("{min_n} to {max_n}"));
            return Err(DraftError::Mismatch { what: "n-gram lengths".into(), expected, got });
        }
        Ok(Self { facts: DrafterFacts::new("ngram", max_depth).with_extending(), options })
    }
}

impl Drafter for NgramDrafter {
    fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        let NgramOptions { min_n, max_n, max_depth } = self.options;
        Ok(Box::new(NgramSession { index: Index::new(min_n..=max_n), next: at, max_depth }))
    }
}

/// One request. The tokens themselves are lent with every call.
struct NgramSession {
    /// Knows committed tokens alone.
    index: Index,
    /// The slot of the next committed run.
    next: usize,
    max_depth: usize,
}

impl DraftSession for NgramSession {
    fn propose(
        &mut self,
        cx: &mut DraftCx<'_>,
        _current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        self.learn(cx.tokens)?;
        self.offer(cx.tokens, out)
    }

    fn ready(&self, tokens: &[u32]) -> Option<usize> {
        let found = self.index.find(tokens).is_some_and(|from| from < tokens.len());
        Some(if found { self.max_depth } else { 0 })
    }

    fn extend(
        &mut self,
        cx: &mut DraftCx<'_>,
        _current: u32,
        drafted: &[u32],
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        self.learn(cx.tokens)?;
        self.offer(&[cx.tokens, drafted].concat(), out)
    }

    fn committed(&mut self, cx: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        self.next = run.after(self.next)?;
        self.learn(cx.tokens)
    }
}

impl NgramSession {
    /// Brings the index up to the last committed slot. A session that was opened further on finds the
    /// tokens before it here as well.
    fn learn(&mut self, tokens: &[u32]) -> Result<(), DraftError> {
        let committed = tokens.get(..self.next).ok_or_else(|| DraftError::Mismatch {
            what: "tokens of the request".into(),
            expected: format!("at least {}", self.next),
            got: tokens.len().to_string(),
        })?;
        self.index.learn(committed);
        Ok(())
    }

    /// Offers what may follow `text`, as certain tokens: the copy of what followed before, which goes on
    /// with itself where the text ends, as periodic text does.
    fn offer(&self, text: &[u32], out: &mut dyn DraftSink) -> Result<(), DraftError> {
        let count = out.room().min(self.max_depth);
        // The current token is not learned, so a match ends before it and always has a token after it.
        let Some(from) = self.index.find(text).filter(|&from| from < text.len() && count > 0) else {
            return Ok(());
        };
        let ids: Vec<u32> = text[from..].iter().copied().cycle().take(count).collect();
        out.known(&ids)
    }
}
