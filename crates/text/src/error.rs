//! What can go wrong between text and ids.

use std::path::PathBuf;

/// The result of a text operation.
pub type Result<T> = std::result::Result<T, TextError>;

/// A tokenizer, template or request that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file that cannot be read.
    #[error("{}: cannot read {what}: {source}; {next}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the file should hold.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
        /// What to do about it.
        next: &'static str,
    },
    /// A file or metadata entry whose content does not fit.
    #[error("{file}: {what}: expected {expected}, got {got}; {next}")]
    Format {
        /// The file or metadata entry.
        file: String,
        /// The part of it.
        what: String,
        /// What fits.
        expected: String,
        /// What is there.
        got: String,
        /// What to do about it.
        next: &'static str,
    },
    /// A legal file that asks for something this crate does not have.
    #[error("{file}: {what} {got:?} is not supported; known: {known}")]
    Unsupported {
        /// The file or metadata entry.
        file: String,
        /// The kind of thing.
        what: &'static str,
        /// The one asked for.
        got: String,
        /// The ones that work.
        known: String,
    },
    /// Text that the tokenizer cannot encode.
    #[error("cannot encode the text: {reason}")]
    Encode {
        /// Why not.
        reason: String,
    },
    /// A model without a chat template.
    #[error("{file}: no chat template; send a raw prompt (--raw) or add chat_template.jinja")]
    NoTemplate {
        /// Where it was looked for.
        file: String,
    },
    /// A chat template that does not parse.
    #[error("{file}: chat template, line {line}: {reason}; send a raw prompt (--raw) or mend it")]
    UnreadableTemplate {
        /// The file or metadata entry.
        file: String,
        /// The line within the template, counted from 1; 0 when unknown.
        line: usize,
        /// The parser's words.
        reason: String,
    },
    /// The template itself refuses the messages. The text is the template's own.
    #[error("the chat template refuses these messages: {message}")]
    Raised {
        /// The template's message.
        message: String,
    },
    /// A template that fails while it renders.
    #[error("{file}: chat template, line {line}: {reason}")]
    Render {
        /// The file or metadata entry.
        file: String,
        /// The line within the template, counted from 1; 0 when unknown.
        line: usize,
        /// The renderer's words.
        reason: String,
    },
    /// A message of an illegal form.
    #[error("message: {what}: expected {expected}, got {got}")]
    Message {
        /// The field.
        what: String,
        /// The legal forms.
        expected: &'static str,
        /// The form given.
        got: String,
    },
    /// An empty stop string, which would match before the first token.
    #[error("stop string {index}: expected at least one character, got none; leave it out")]
    EmptyStop {
        /// Its place in the list, counted from 1.
        index: usize,
    },
}
