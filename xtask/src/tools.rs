//! Running other programs: what is missing is said in one line, and output is kept until it is needed.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::process::{Command, Stdio};

use crate::failure::{Context, Failure, Result, fail};

/// Oldest cargo that reads `include` in a configuration file.
pub(crate) const CARGO: (u32, u32) = (1, 94);

/// The cargo that started this program, so that a toolchain override carries over.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Fails in one line when cargo is too old to find the native libraries.
pub(crate) fn check_cargo() -> Result {
    cargo_is_new_enough(&capture(cargo().arg("--version"), "cargo --version")?)
}

fn cargo_is_new_enough(line: &str) -> Result {
    let version = line.split_whitespace().nth(1).unwrap_or(line);
    match version_pair(version) {
        Some(found) if found < CARGO => fail(format!(
            "cargo {version} is too old: its configuration files have no `include`; foretoken needs {}.{} or newer (`rustup update stable`)",
            CARGO.0, CARGO.1
        )),
        _ => Ok(()),
    }
}

/// The first two numbers of a version.
pub(crate) fn version_pair(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next().and_then(|p| p.parse().ok()).unwrap_or(0)))
}

/// The output of a program that must be there; `advice` says how to get it.
pub(crate) fn require(program: impl AsRef<OsStr>, args: &[&str], advice: &str) -> Result<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        _ => fail(advice),
    }
}

/// Fails in one line when Python or its pip is missing.
pub(crate) fn require_pip() -> Result {
    let python = "python3 is missing: install it (`apt-get install python3 python3-pip`)";
    require("python3", &["--version"], python)?;
    let pip = "python3 has no pip: install it (`apt-get install python3-pip`)";
    require("python3", &["-m", "pip", "--version"], pip)?;
    Ok(())
}

/// `python3 -m pip <command>` with the options that every use shares.
pub(crate) fn pip(command: &str) -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", command, "--no-deps", "--only-binary=:all:", "--require-hashes"]);
    pip.args(["--disable-pip-version-check", "--no-input"]);
    pip
}

/// Runs a program that talks to the user itself.
pub(crate) fn run(command: &mut Command, what: &str) -> Result {
    let status = command.status().map_err(|error| not_started(command, &error))?;
    if status.success() { Ok(()) } else { fail(format!("{what} failed ({status})")) }
}

/// Runs a program and returns what it printed; its messages are shown only when it fails.
pub(crate) fn capture(command: &mut Command, what: &str) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| not_started(command, &error))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let said = [text(&output.stdout), text(&output.stderr)].join("\n");
    fail(format!("{}\n{what} failed ({})", said.trim(), output.status))
}

/// A line of text that a program may print; `None` when it is not there or fails.
pub(crate) fn line_of(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    if output.status.success() { text.lines().next().map(str::to_owned) } else { None }
}

/// A pass through pip: with its own progress bars on a terminal, silent elsewhere unless it fails.
pub(crate) fn run_pip(pip: &mut Command, what: &str) -> Result {
    if crate::progress::on_terminal() {
        run(pip, what)
    } else {
        capture(pip.arg("--quiet"), what).map(|_| ())
    }
}

/// A folder's file names, sorted.
pub(crate) fn file_names(folder: &std::path::Path) -> Result<Vec<String>> {
    let what = || format!("reading {}", folder.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).context(what)? {
        names.push(entry.context(what)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn not_started(command: &Command, error: &std::io::Error) -> Failure {
    let program = command.get_program().to_string_lossy();
    Failure(match error.kind() {
        ErrorKind::NotFound => format!("{program} is missing: install it and try again"),
        _ => format!("{program} did not start: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_cargo_is_told_in_one_line() {
        let message = cargo_is_new_enough("cargo 1.85.1 (d73d2caf9 2024-12-31)").unwrap_err().0;
        assert_eq!(message.lines().count(), 1);
        assert!(message.contains("1.85.1") && message.contains("1.94"), "{message}");
        for good in ["cargo 1.94.0 (abc 2026-01-01)", "cargo 1.95.0-nightly", "cargo 2.0.0", "odd"] {
            assert!(cargo_is_new_enough(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn versions() {
        assert_eq!(version_pair("12"), Some((12, 0)));
        assert_eq!(version_pair("2.36\n"), Some((2, 36)));
        assert_eq!(version_pair("1.95.0-nightly"), Some((1, 95)));
        assert_eq!(version_pair("x"), None);
    }

    #[test]
    fn a_missing_program_gives_the_advice_only() {
        let message = require("no-such-program-here", &[], "get it like this").unwrap_err().0;
        assert_eq!(message, "get it like this");
        let message = capture(&mut Command::new("no-such-program-here"), "x").unwrap_err().0;
        assert!(message.contains("no-such-program-here is missing"), "{message}");
    }

    #[test]
    fn output_is_shown_on_failure_only() {
        assert_eq!(
            capture(Command::new("sh").args(["-c", "echo good; echo bad >&2"]), "sh").unwrap(),
            "good"
        );
        let message = capture(Command::new("sh").args(["-c", "echo bad >&2; exit 3"]), "sh").unwrap_err().0;
        assert!(message.starts_with("bad\nsh failed"), "{message}");
        assert_eq!(line_of(Command::new("sh").args(["-c", "echo one; echo two"])).as_deref(), Some("one"));
        assert_eq!(line_of(Command::new("sh").args(["-c", "exit 1"])), None);
    }
}
