//! Errors on their way to the user: one line, and an exit code.

use std::{fmt, process::ExitCode};

/// Exit code of a failure.
pub(crate) const FAILED: u8 = 1;
/// Exit code of a wrong command line.
pub(crate) const USAGE: u8 = 2;
/// Exit code after Ctrl-C, as shells report it.
pub(crate) const INTERRUPTED: u8 = 130;

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

/// Prints an error and returns the process' exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {}", line(error));
    ExitCode::from(if error.is::<Usage>() { USAGE } else { FAILED })
}

/// An error with its causes on one line.
fn line(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        // Transparent wrappers repeat the words of what they wrap.
        if parts.last().is_none_or(|last| !last.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
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
}
