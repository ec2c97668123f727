//! `cargo xtask metal`: the build for Apple silicon, as a list of commands that can be read before it is run.
//!
//! There the build script of mlx-sys builds MLX from source, so nothing is installed; what can go wrong is a missing
//! tool and a library of kernels in an unexpected place, and this plan takes care of both.

use std::fmt;
use std::process::Command;

use crate::arguments::Arguments;
use crate::failure::{Result, fail};
use crate::metadata::Metadata;
use crate::progress::say;
use crate::project::Project;
use crate::tools::{capture, require, run};

pub(crate) const USAGE: &str = "metal [--jit] [--dry-run]
    macOS: check the tools, build with Metal and show that the GPU answers; --jit compiles kernels at first use";

/// Three ids of the tiny golden model: enough for one forward on the GPU.
const PROBE: &str = "11,48,85";

pub(crate) fn command(project: &Project, mut args: Arguments) -> Result {
    let (jit, dry_run) = (args.flag("--jit"), args.flag("--dry-run"));
    args.finish(USAGE)?;
    let target = Metadata::members(project)?.target;
    let plan = plan(&project.root().display().to_string(), &target.display().to_string(), jit);
    if dry_run {
        plan.iter().for_each(|step| println!("{step}"));
        return Ok(());
    }
    if !cfg!(target_os = "macos") {
        return fail(
            "Metal exists on macOS only; `--dry-run` shows the plan, `cargo xtask native` is for Linux",
        );
    }
    for step in &plan {
        say(step.what);
        step.execute(project)?;
    }
    println!("Metal is ready: {}/release/foretoken", target.display());
    Ok(())
}

/// One command of the plan.
#[derive(Debug, PartialEq)]
struct Step {
    what: &'static str,
    environment: Vec<(&'static str, String)>,
    command: Vec<String>,
    goal: Goal,
}

/// When a step has succeeded.
#[derive(Debug, PartialEq)]
enum Goal {
    /// The program is there; otherwise this says how to get it.
    Present(&'static str),
    /// The program ends well and may talk meanwhile.
    Done,
    /// The program prints this.
    Prints(&'static str),
}

impl Step {
    fn new(what: &'static str, command: &[&str], goal: Goal) -> Self {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        Self { what, environment: Vec::new(), command, goal }
    }

    fn execute(&self, project: &Project) -> Result {
        let words: Vec<&str> = self.command[1..].iter().map(String::as_str).collect();
        let mut command = Command::new(&self.command[0]);
        command.args(&words).envs(self.environment.iter().cloned()).current_dir(project.root());
        match self.goal {
            Goal::Present(advice) => require(&self.command[0], &words, advice).map(|_| ()),
            Goal::Done => run(&mut command, self.what),
            Goal::Prints(expected) => {
                let printed = capture(&mut command, self.what)?;
                if printed.contains(expected) {
                    return Ok(());
                }
                fail(format!("{printed}\nexpected to read {expected:?} here"))
            }
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# {}", self.what)?;
        for (name, value) in &self.environment {
            write!(f, "{name}={value} ")?;
        }
        f.write_str(&self.command.join(" "))
    }
}

/// The whole build. `root` is the project, `target` its build folder.
fn plan(root: &str, target: &str, jit: bool) -> Vec<Step> {
    let (features, kernels) =
        if jit { ("metal,accelerate,metal-jit", "metal-jit") } else { ("metal,accelerate", "metal") };
    let binary = format!("{target}/release/foretoken");
    let mut build = Step::new(
        "build with Metal",
        &[
            "cargo",
            "build",
            "--release",
            "--locked",
            "-p",
            "foretoken-cli",
            "--no-default-features",
            "--features",
        ],
        Goal::Done,
    );
    build.command.push(features.to_owned());
    // A library of kernels compiled at first use holds too few of them for a build of the other kind.
    build.environment.push(("MLX_RS_METAL_PATH", format!("{root}/.native/{kernels}")));
    let model = format!("{root}/golden/llama");
    vec![
        Step::new(
            "look for Xcode's tools",
            &["xcode-select", "-p"],
            Goal::Present("Xcode's command line tools are missing: `xcode-select --install`"),
        ),
        Step::new(
            "look for the Metal compiler",
            &["xcrun", "-sdk", "macosx", "metal", "--version"],
            Goal::Present(
                "the Metal compiler is missing: install Xcode, then `xcodebuild -downloadComponent MetalToolchain`",
            ),
        ),
        Step::new(
            "look for cmake",
            &["cmake", "--version"],
            Goal::Present("cmake is missing: install it (`brew install cmake`)"),
        ),
        build,
        Step::new(
            "ask which device is used",
            &[&binary, "inspect", "--device", "gpu"],
            Goal::Prints("gpu in use"),
        ),
        Step::new(
            "compute on the GPU",
            &[&binary, "score", "--model", &model, "--prompt-ids", PROBE, "--device", "gpu", "--json"],
            Goal::Prints("logprobs"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(jit: bool) -> Vec<String> {
        plan("/p", "/t", jit).iter().map(|step| step.to_string().lines().last().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_plan_with_all_kernels() {
        assert_eq!(
            text(false),
            [
                "xcode-select -p",
                "xcrun -sdk macosx metal --version",
                "cmake --version",
                "MLX_RS_METAL_PATH=/p/.native/metal cargo build --release --locked -p foretoken-cli \
             --no-default-features --features metal,accelerate",
                "/t/release/foretoken inspect --device gpu",
                "/t/release/foretoken score --model /p/golden/llama --prompt-ids 11,48,85 --device gpu --json",
            ]
        );
    }

    #[test]
    fn kernels_at_first_use_have_a_folder_of_their_own() {
        let (all, jit) = (text(false), text(true));
        assert!(jit[3].contains("MLX_RS_METAL_PATH=/p/.native/metal-jit "), "{}", jit[3]);
        assert!(jit[3].ends_with("--features metal,accelerate,metal-jit"), "{}", jit[3]);
        assert_eq!([&all[..3], &all[4..]].concat(), [&jit[..3], &jit[4..]].concat());
    }

    #[test]
    fn every_tool_is_checked_before_anything_is_built() {
        let plan = plan("/p", "/t", false);
        let first_build = plan.iter().position(|step| step.goal == Goal::Done).unwrap();
        assert!(plan[..first_build].iter().all(|step| matches!(step.goal, Goal::Present(_))));
        assert!(plan[first_build + 1..].iter().all(|step| matches!(step.goal, Goal::Prints(_))));
    }

    #[test]
    fn steps_report_what_failed() {
        let project = Project::here().unwrap();
        let step = |goal, command: &[&str]| Step::new("try", command, goal).execute(&project);
        assert!(step(Goal::Done, &["sh", "-c", "true"]).is_ok());
        assert!(step(Goal::Prints("b"), &["sh", "-c", "echo abc"]).is_ok());
        assert!(step(Goal::Prints("x"), &["sh", "-c", "echo abc"]).unwrap_err().0.contains("\"x\""));
        assert_eq!(step(Goal::Present("do this"), &["no-such-tool"]).unwrap_err().0, "do this");
    }
}
