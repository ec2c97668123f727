//! Errors on their way to the user: one line, and an exit code.

use std::{
    fmt,
    io::{Write, stderr},
    process::ExitCode,
};

/// Exit code of a failure.
pub(crate) const FAILED: u8 = 1;
/// Exit code of a wrong command line.
pub(crate) const USAGE: u8 = 2;
/// Exit code after Ctrl-C, as shells report it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Characters of one cause that are shown.
const LONGEST: usize = 2_000;

/// Marks an error as the command line's own.
#[derive(Debug)]
pub(crate) struct Usage(String);

impl Usage {
    pub(crate) fn new(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Says something on standard error that is no failure.
pub(crate) fn warn(text: &str) {
    // Nobody is left to tell when standard error is closed or full.
    let _ = writeln!(stderr(), "warning: {}", harmless(text));
}

/// Prints an error and returns the process' exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    // Nobody is left to tell when standard error is closed or full.
    let _ = writeln!(stderr(), "error: {}", line(error));
    ExitCode::from(if error.is::<Usage>() { USAGE } else { FAILED })
}

/// An error with its causes on one line.
fn line(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = harmless(&cause.to_string());
        // Transparent wrappers repeat the words of what they wrap.
        if parts.last().is_none_or(|last| !last.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}

/// Words from a file may hold anything: white space is folded, control characters are spelled out, and a
/// very long text is cut.
fn harmless(text: &str) -> String {
    let mut words = String::new();
    for c in text.split_whitespace().flat_map(|word| word.chars().chain([' '])).take(LONGEST) {
        if c.is_control() { words.extend(c.escape_default()) } else { words.push(c) }
    }
    if words.ends_with(' ') {
        words.pop();
    } else {
        words.push('…');
    }
    words
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn an_error_is_one_line_with_its_causes() {
        let error = anyhow!("missing\n  file").context("cannot load").context("cannot load: missing file");
        assert_eq!(line(&error), "cannot load: missing file");
        assert_eq!(line(&anyhow!("b").context("a")), "a: b");
    }

    #[test]
    fn words_of_a_file_reach_the_terminal_as_text() {
        assert_eq!(line(&anyhow!("tensor \u{1b}[2J\u{7}x")), "tensor \\u{1b}[2J\\u{7}x");
        let long = line(&anyhow!("{}", "n".repeat(5_000_000)));
        assert_eq!((long.chars().count(), long.ends_with('…')), (LONGEST + 1, true));
    }
}
