//! `cargo xtask ci`: what must be true before a change is taken, cheapest first.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::arguments::Arguments;
use crate::failure::{Failure, Result};
use crate::progress::say;
use crate::project::Project;
use crate::tools::{cargo, run};
use crate::{native, tidy};

pub(crate) const USAGE: &str = "ci
    format, house rules, clippy, documentation and all tests, with the time that each took";

pub(crate) fn command(project: &Project, args: Arguments) -> Result {
    args.finish(USAGE)?;
    let mut times = Vec::new();
    let result = steps().into_iter().try_for_each(|step| {
        say(&format!("\n== {}", step.name));
        let started = Instant::now();
        let result = step.execute(project);
        times.push((step.name, started.elapsed()));
        result.map_err(|failure| Failure(format!("{}: {failure}", step.name)))
    });
    print!("{}", report(&times));
    result
}

struct Step {
    name: &'static str,
    action: Action,
}

enum Action {
    Here(fn(&Project) -> Result),
    Cargo { words: &'static str, environment: &'static [(&'static str, &'static str)] },
}

impl Step {
    fn execute(&self, project: &Project) -> Result {
        match &self.action {
            Action::Here(work) => work(project),
            Action::Cargo { words, environment } => {
                let mut command: Command = cargo();
                command.args(words.split(' ')).envs(environment.iter().copied());
                run(command.current_dir(project.root()), &format!("cargo {words}"))
            }
        }
    }
}

/// The last step is the command of the README; it fails when no test that uses MLX ran.
fn steps() -> Vec<Step> {
    let cargo = |name, words| Step { name, action: Action::Cargo { words, environment: &[] } };
    let doc = Action::Cargo {
        words: "doc --workspace --no-deps --locked",
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
    };
    vec![
        cargo("format", "fmt --all --check"),
        cargo("format of xtask", "fmt --manifest-path xtask/Cargo.toml --check"),
        cargo(
            "clippy of xtask",
            "clippy --manifest-path xtask/Cargo.toml --target-dir xtask/target --all-targets --locked -- -D warnings",
        ),
        cargo("tests of xtask", "test --manifest-path xtask/Cargo.toml --target-dir xtask/target --locked"),
        Step { name: "house rules", action: Action::Here(tidy::check) },
        Step { name: "native libraries", action: Action::Here(native::ensure) },
        cargo("clippy", "clippy --workspace --all-targets --locked -- -D warnings"),
        Step { name: "documentation", action: doc },
        cargo("tests", "xtask test"),
    ]
}

fn report(times: &[(&str, Duration)]) -> String {
    let total: Duration = times.iter().map(|(_, time)| time).sum();
    let mut text = String::from("\n");
    for (name, time) in times.iter().chain([&("all", total)]) {
        text.push_str(&format!("{name:<18}{:>8.1} s\n", time.as_secs_f64()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_is_the_command_of_the_readme() {
        let steps = steps();
        let Action::Cargo { words, .. } = &steps.last().unwrap().action else { panic!("not a command") };
        assert_eq!(*words, "xtask test");
        let readme = std::fs::read_to_string(Project::here().unwrap().path("README.md")).unwrap();
        assert!(readme.contains(&format!("cargo {words}")));
    }

    #[test]
    fn every_cargo_step_keeps_the_lock_file() {
        for step in steps() {
            if let Action::Cargo { words, .. } = step.action {
                let exempt = words.starts_with("fmt") || words.starts_with("xtask");
                assert!(exempt || words.contains("--locked"), "{words}");
            }
        }
    }

    #[test]
    fn times_are_added_up() {
        let text = report(&[("a", Duration::from_millis(1500)), ("b", Duration::from_secs(2))]);
        assert!(text.ends_with("all                    3.5 s\n"), "{text:?}");
    }
}
