//! The rules that a drafter can break, in words.

use super::Difference;

/// A rule that a drafter broke.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The suite itself could not run.
    #[error("the suite cannot run: {0}")]
    Setup(String),
    /// A set of drafters changed the text.
    #[error("{how}: token {at} is {got}, and {expected} in plain decoding")]
    Text {
        /// Policy and rule.
        how: String,
        /// The place in the answer.
        at: usize,
        /// The token of plain decoding.
        expected: u32,
        /// The token with the set.
        got: u32,
    },
    /// A legal call failed or panicked.
    #[error("{call} failed: {reason}")]
    Failed {
        /// The call.
        call: &'static str,
        /// What it said.
        reason: String,
    },
    /// Tokens were offered before any row was committed.
    #[error("{offered} tokens were offered before any committed row")]
    Early {
        /// How many.
        offered: usize,
    },
    /// A run out of order was accepted.
    #[error("a committed run at slot {got} was accepted where slot {expected} follows")]
    Gap {
        /// The next slot in order.
        expected: usize,
        /// The slot reported.
        got: usize,
    },
    /// More was offered than there was room for.
    #[error("{offered} tokens were offered into room for {room}")]
    Room {
        /// Tokens offered, refused ones included.
        offered: usize,
        /// The room.
        room: usize,
    },
    /// The target's caches changed.
    #[error("{call} changed the target's caches")]
    TargetWritten {
        /// The call.
        call: &'static str,
    },
    /// Two equal rounds offered different tokens: the drafter drew them itself.
    #[error("two equal rounds made different offers; only the sink may draw")]
    OwnDraw,
    /// Later rows do not depend on the tokens drawn before them.
    #[error("the row after a draft ignores which token was drawn")]
    IgnoresDraws,
    /// Something outlives its session.
    #[error("{what} left behind after {after}")]
    Leak {
        /// What is left.
        what: &'static str,
        /// The call or scenario.
        after: String,
    },
    /// The own caches do not rest where they must.
    #[error("own caches after {after}: expected offset {expected}, got {got}")]
    Level {
        /// The call or scenario.
        after: String,
        /// Where they should rest.
        expected: String,
        /// Where they do.
        got: usize,
    },
    /// The session's state differs from that of a fresh one with the same tokens.
    #[error("after {after} the {what} differ from a fresh prefill by {difference}")]
    Unlike {
        /// The scenario.
        after: String,
        /// What differs.
        what: &'static str,
        /// By how much.
        difference: Difference,
    },
    /// An equal session offered something else after other sessions were served.
    #[error("after {after} an equal session made other offers; a drafter keeps nothing of a request")]
    Shared {
        /// What was served in between.
        after: &'static str,
    },
    /// Nothing was ever offered, so nothing was checked.
    #[error("{call} never offered a token; choose a prompt that this drafter can go on from")]
    Silent {
        /// The call.
        call: &'static str,
    },
}
