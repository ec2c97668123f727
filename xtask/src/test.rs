//! `cargo xtask test`: everything that the tests need, then all of them, counted.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::arguments::Arguments;
use crate::failure::{Context, Failure, Result, fail};
use crate::json::Json;
use crate::metadata::Metadata;
use crate::project::Project;
use crate::tools::cargo;
use crate::{model, native};

pub(crate) const USAGE: &str = "test [ARGUMENTS OF CARGO TEST]
    install MLX, fetch the model and run all tests; the last line counts them";

pub(crate) fn command(project: &Project, args: Arguments) -> Result {
    let args = args.rest();
    native::ensure(project)?;
    model::ensure(project)?;
    let chosen = Selection::of(&args);
    let programs = build(project, &chosen)?;
    let tally = run(project, &chosen, &programs)?;
    println!("\n{} of these tests are in packages that use MLX", tally.mlx_passed);
    println!("{} passed, {} failed", tally.passed, tally.failed);
    tally.verdict(args.is_empty())
}

/// The user's arguments, sorted by what may be given to a build and to a run.
struct Selection {
    build: Vec<String>,
    run: Vec<String>,
}

impl Selection {
    fn of(args: &[String]) -> Self {
        let separator = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
        let (mut build, run) = (args[..separator].to_vec(), args[separator..].to_vec());
        let is_choice =
            |arg: &String| arg == "-p" || arg.starts_with("--package") || arg == "--manifest-path";
        if !build.iter().any(is_choice) {
            build.insert(0, "--workspace".into());
        }
        Self { build, run }
    }
}

/// Test programs by file name, and whether their package uses MLX.
type Programs = BTreeMap<String, bool>;

/// Building comes first and on its own, because only here cargo says which package a program belongs to.
fn build(project: &Project, chosen: &Selection) -> Result<Programs> {
    let mut command = cargo_test(project, chosen);
    command.args(["--no-run", "--message-format=json-render-diagnostics"]).stdout(Stdio::piped());
    let output = command.spawn().and_then(|child| child.wait_with_output());
    let output = output.context(|| "starting cargo".into())?;
    if !output.status.success() {
        return fail("the tests do not build");
    }
    let metadata = Metadata::members(project)?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter_map(|line| program(line, &metadata).transpose()).collect()
}

/// One line of cargo's messages; most are not about a test program.
fn program(line: &str, metadata: &Metadata) -> Result<Option<(String, bool)>> {
    let message = Json::parse(line)?;
    let (Some(path), Some(manifest)) = (message.str("executable"), message.str("manifest_path")) else {
        return Ok(None);
    };
    let folder = Path::new(manifest).parent();
    let package = metadata.packages.iter().find(|package| Some(package.folder.as_path()) == folder);
    Ok(Some((file_name(path).to_owned(), package.is_some_and(|package| package.uses_mlx()))))
}

fn run<'a>(project: &Project, chosen: &Selection, programs: &'a Programs) -> Result<Tally<'a>> {
    let mut cargo = cargo_test(project, chosen);
    cargo.arg("--no-fail-fast").args(&chosen.run);
    let mut command = joined(&cargo);
    command.current_dir(project.root()).stdout(Stdio::piped());
    // Two test programs with two BLAS threads each run several times slower on two cores than with one each.
    command.env("OPENBLAS_NUM_THREADS", "1");
    let mut child = command.spawn().context(|| "starting cargo".into())?;
    let pipe = child.stdout.take().ok_or_else(|| Failure("cargo has no output".into()))?;
    let mut tally = Tally::new(programs);
    for line in BufReader::new(pipe).split(b'\n') {
        let line = String::from_utf8_lossy(&line.context(|| "reading cargo's output".into())?).into_owned();
        println!("{line}");
        tally.line(&line);
    }
    tally.good_exit = child.wait().context(|| "waiting for cargo".into())?.success();
    Ok(tally)
}

fn cargo_test(project: &Project, chosen: &Selection) -> Command {
    let mut command = cargo();
    command.args(["test", "--locked"]).args(&chosen.build).current_dir(project.root());
    command
}

/// Both streams in one pipe: cargo names a program on one and the program prints its count on the other.
fn joined(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(command.get_program()).args(command.get_args());
    shell
}

/// Counts what cargo prints.
struct Tally<'a> {
    programs: &'a Programs,
    passed: u64,
    failed: u64,
    mlx_passed: u64,
    mlx_now: bool,
    good_exit: bool,
}

impl<'a> Tally<'a> {
    fn new(programs: &'a Programs) -> Self {
        Self { programs, passed: 0, failed: 0, mlx_passed: 0, mlx_now: false, good_exit: false }
    }

    fn line(&mut self, line: &str) {
        let line = line.trim_start();
        if line.starts_with("Running ") {
            let path = line.trim_end().trim_end_matches(')').rsplit('(').next().unwrap_or("");
            self.mlx_now = self.programs.get(file_name(path)).copied().unwrap_or(false);
        } else if line.starts_with("Doc-tests ") {
            // An example in the documentation need not touch MLX, so it proves nothing.
            self.mlx_now = false;
        } else if let Some((passed, failed)) = counts(line) {
            self.passed += passed;
            self.failed += failed;
            self.mlx_passed += if self.mlx_now { passed } else { 0 };
        }
    }

    /// A run of everything in which no test of an MLX package ran proves nothing and fails.
    fn verdict(&self, complete: bool) -> Result {
        if self.failed > 0 {
            return fail(format!("{} tests failed", self.failed));
        }
        if !self.good_exit {
            return fail("cargo test failed");
        }
        if complete && self.mlx_passed == 0 {
            return fail("no test that uses MLX ran");
        }
        Ok(())
    }
}

/// `test result: ok. 3 passed; 1 failed; …`
fn counts(line: &str) -> Option<(u64, u64)> {
    let rest = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let mut parts = rest.split("; ");
    let mut count = |word: &str| parts.next()?.strip_suffix(word)?.trim().parse().ok();
    Some((count("passed")?, count("failed")?))
}

fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs() -> Programs {
        [("cache-1a2b".to_owned(), true), ("text-3c4d".to_owned(), false)].into()
    }

    const OUTPUT: &str = "     Running unittests src/lib.rs (target/debug/deps/cache-1a2b)
running 2 tests
test a ... ok
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.70s
     Running unittests src/lib.rs (/elsewhere/debug/deps/text-3c4d)
test result: FAILED. 5 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s
   Doc-tests foretoken_cache
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";

    fn tally<'a>(programs: &'a Programs, output: &str) -> Tally<'a> {
        let mut tally = Tally::new(programs);
        output.lines().for_each(|line| tally.line(line));
        tally.good_exit = true;
        tally
    }

    #[test]
    fn counts_all_and_those_with_mlx() {
        let programs = programs();
        let tally = tally(&programs, OUTPUT);
        assert_eq!((tally.passed, tally.failed, tally.mlx_passed), (10, 1, 2));
        assert!(tally.verdict(true).unwrap_err().0.contains("1 tests failed"));
    }

    #[test]
    fn a_full_run_without_mlx_fails() {
        let programs = programs();
        let without = OUTPUT.replace("cache-1a2b", "other-9").replace("1 failed", "0 failed");
        let tally = tally(&programs, &without);
        assert!(tally.verdict(true).unwrap_err().0.contains("no test that uses MLX"));
        assert!(tally.verdict(false).is_ok());
    }

    #[test]
    fn a_crash_without_a_result_line_fails() {
        let programs = programs();
        let mut tally = tally(&programs, &OUTPUT.replace("1 failed", "0 failed"));
        tally.good_exit = false;
        assert!(tally.verdict(true).is_err());
    }

    #[test]
    fn other_lines_count_nothing() {
        for line in
            ["test result:", "test result: ok.", "test a ... ok", "test result: ok. x passed; 0 failed;"]
        {
            assert_eq!(counts(line), None, "{line}");
        }
    }

    #[test]
    fn a_package_choice_replaces_the_workspace() {
        let of = |text: &str| {
            let chosen = Selection::of(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
            (chosen.build.join(" "), chosen.run.join(" "))
        };
        assert_eq!(of(""), ("--workspace".into(), String::new()));
        assert_eq!(of("-p x -- y"), ("-p x".into(), "-- y".into()));
        assert_eq!(of("name -- --nocapture"), ("--workspace name".into(), "-- --nocapture".into()));
    }

    #[test]
    fn both_streams_arrive_in_one() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo a; echo b >&2; echo \"$1\"", "sh", "c d"]);
        let output = joined(&command).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a\nb\nc d\n");
    }

    #[test]
    fn messages_name_the_package_of_a_program() {
        let metadata = Metadata::members(&Project::here().unwrap()).unwrap();
        let manifest = metadata.package("foretoken-cache").unwrap().folder.join("Cargo.toml");
        let line = format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"{}","executable":"/t/deps/foretoken_cache-12"}}"#,
            manifest.display()
        );
        assert_eq!(program(&line, &metadata).unwrap(), Some(("foretoken_cache-12".into(), true)));
        let line = line.replace("\"/t/deps/foretoken_cache-12\"", "null");
        assert_eq!(program(&line, &metadata).unwrap(), None);
    }
}
