//! `cargo xtask demo`: from nothing to a streamed answer, and what speculation gained.

use std::process::Command;

use crate::arguments::Arguments;
use crate::failure::{Failure, Result};
use crate::json::Json;
use crate::metadata::Metadata;
use crate::progress::say;
use crate::project::Project;
use crate::tools::{capture, cargo, run};
use crate::{model, native};

pub(crate) const USAGE: &str = "demo
    install MLX, fetch the model, build, and chat once with and without the draft head";

/// Code is where a small head guesses best.
const PROMPT: &str = "Write a Python function that returns the n-th Fibonacci number.";
const HEAD: &str = "models/smollm2-135m-mtp/mtp-seq.safetensors";
const DEPTH: &str = "2";
const TOKENS: &str = "96";
const THREADS: &str = "OPENBLAS_NUM_THREADS";

pub(crate) fn command(project: &Project, args: Arguments) -> Result {
    args.finish(USAGE)?;
    native::ensure(project)?;
    model::ensure(project)?;
    say("building foretoken …");
    let mut build = cargo();
    build.args(["build", "--release", "--locked", "-p", "foretoken-cli"]);
    run(build.current_dir(project.root()), "building foretoken")?;
    let demo = Demo { project, binary: Metadata::members(project)?.target.join("release/foretoken") };
    println!("\n> {PROMPT}\n");
    run(&mut demo.generate(true), "generating with the draft head")?;
    println!();
    say("measuring the same answer with and without the head …");
    let drafted = Sample::parse(&capture(demo.generate(true).arg("--json"), "measuring with the head")?)?;
    let plain = Sample::parse(&capture(demo.generate(false).arg("--json"), "measuring without the head")?)?;
    print!("{}", table(&drafted, &plain));
    Ok(())
}

struct Demo<'a> {
    project: &'a Project,
    binary: std::path::PathBuf,
}

impl Demo<'_> {
    fn generate(&self, head: bool) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("generate").arg("--model").arg(self.project.model());
        if head {
            command.arg("--draft").arg(self.project.path(HEAD)).args(["--depth", DEPTH]);
        } else {
            command.args(["--draft", "none"]);
        }
        command.args(["--max-tokens", TOKENS, "--prompt", PROMPT]).current_dir(self.project.root());
        if std::env::var_os(THREADS).is_none() {
            command.env(THREADS, blas_threads().to_string());
        }
        command
    }
}

/// One core stays free for the thread that builds the graphs: OpenBLAS threads that wait for a busy core make every
/// product several times slower, and the comparison would measure that.
fn blas_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().saturating_sub(1).max(1))
}

/// What one run with `--json` says.
#[derive(Debug, PartialEq)]
struct Sample {
    ids: Json,
    rounds: usize,
    drafted: f64,
    accepted: f64,
    tokens_per_round: f64,
    tokens_per_second: f64,
}

impl Sample {
    fn parse(text: &str) -> Result<Self> {
        let json = Json::parse(text)?;
        let missing = |what: &str| Failure(format!("foretoken generate --json printed no {what}"));
        let number = |keys: &[&str]| json.number(keys).ok_or_else(|| missing(&keys.join(".")));
        let speculation = json.get("speculation").ok_or_else(|| missing("speculation"))?;
        Ok(Self {
            ids: json.get("ids").cloned().ok_or_else(|| missing("ids"))?,
            rounds: speculation.list("rounds").len(),
            drafted: speculation.number(&["drafted"]).unwrap_or(0.0),
            accepted: speculation.number(&["accepted"]).unwrap_or(0.0),
            tokens_per_round: speculation.number(&["tokens_per_round"]).unwrap_or(1.0),
            tokens_per_second: number(&["timing", "decode_tokens_per_second"])?,
        })
    }
}

fn table(drafted: &Sample, plain: &Sample) -> String {
    let share = if drafted.drafted > 0.0 { 100.0 * drafted.accepted / drafted.drafted } else { 0.0 };
    let accepted = format!("{}/{} ({share:.0} %)", drafted.accepted, drafted.drafted);
    let rows = [
        ("", format!("head, depth {DEPTH}"), "plain".to_owned()),
        ("rounds", drafted.rounds.to_string(), "-".to_owned()),
        ("tokens per round", format!("{:.2}", drafted.tokens_per_round), "1.00".to_owned()),
        ("accepted/drafted", accepted, "-".to_owned()),
        ("tokens/s", format!("{:.1}", drafted.tokens_per_second), format!("{:.1}", plain.tokens_per_second)),
    ];
    let mut text = String::from("\n");
    for (name, with, without) in rows {
        text.push_str(&format!("{name:<18}{with:>18}{without:>10}\n"));
    }
    let gain = drafted.tokens_per_second / plain.tokens_per_second;
    text.push_str(&format!("\nspeculation made this answer {gain:.2} times as fast\n"));
    text.push_str(if drafted.ids == plain.ids {
        "the two texts are identical\n"
    } else {
        "the two texts differ\n"
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAFTED: &str = r#"{"ids": [5, 6, 7], "text": "abc", "speculation": {"drafter": "mtp", "rounds": [[2, 1], [1, 0]],
        "drafted": 3, "accepted": 1, "tokens_per_round": 1.5, "estimated_plain_seconds": null},
        "timing": {"decode_seconds": 0.1, "decode_tokens_per_second": 30.0}}"#;
    const PLAIN: &str = r#"{"ids": [5, 6, 7], "speculation": {"drafter": null, "rounds": [], "drafted": 0, "accepted": 0,
        "tokens_per_round": null}, "timing": {"decode_tokens_per_second": 20.0}}"#;

    #[test]
    fn the_table_compares_two_runs() {
        let (drafted, plain) = (Sample::parse(DRAFTED).unwrap(), Sample::parse(PLAIN).unwrap());
        let text = table(&drafted, &plain);
        for expected in ["1.50", "1/3 (33 %)", "30.0", "20.0", "1.50 times", "identical"] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        let other = Sample { ids: Json::List(vec![]), ..plain };
        assert!(table(&drafted, &other).contains("the two texts differ"));
    }

    #[test]
    fn a_missing_field_is_named() {
        let message = Sample::parse(&DRAFTED.replace("\"timing\"", "\"t\"")).unwrap_err().0;
        assert!(message.contains("timing.decode_tokens_per_second"), "{message}");
        assert!(Sample::parse("{}").is_err());
    }
}
