//! What can be wrong with a grammar or a vocabulary.

/// The result of preparing a grammar.
pub type Result<T> = std::result::Result<T, GrammarError>;

/// A grammar that cannot be used. Nothing was evaluated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The text is not of its kind.
    #[error("the {kind} cannot be read: {reason}; correct it and try again")]
    Unreadable {
        /// JSON schema, regular expression or Lark grammar.
        kind: &'static str,
        /// What the parser says.
        reason: String,
    },
    /// The text is well-formed and asks for something that cannot be matched.
    #[error("the {kind} cannot be compiled: {reason}; leave out or replace that part")]
    Unsupported {
        /// JSON schema, regular expression or Lark grammar.
        kind: &'static str,
        /// What the compiler says.
        reason: String,
    },
    /// The text is too long.
    #[error("the {kind} is too large: expected at most {limit} bytes, got {got}; split the task")]
    TooLarge {
        /// JSON schema, regular expression or Lark grammar.
        kind: &'static str,
        /// The most bytes that are read.
        limit: usize,
        /// The bytes given.
        got: usize,
    },
    /// A vocabulary that cannot spell answers.
    #[error("vocabulary: expected {expected}, got {got}")]
    Vocabulary {
        /// What grammars need.
        expected: &'static str,
        /// What the model has.
        got: String,
    },
}
