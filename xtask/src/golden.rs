//! `cargo xtask golden`: makes the golden data again with the pinned Python reference.
//!
//! Checkpoints, ids and rounds come out equal everywhere. Logits and hidden states differ in their last bits between
//! processors, whose products sum in another order; commit them only with a reason.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arguments::Arguments;
use crate::failure::{Context, Result, fail};
use crate::model;
use crate::progress::say;
use crate::project::{Project, write_if_changed};
use crate::sha256;
use crate::tools::{file_names, require, require_pip, run, run_pip};

pub(crate) const USAGE: &str = "golden [NAME...]
    make golden data again with the pinned Python reference (llama, llama-rope3, llama-q4, smollm2)";

/// Tiny random models that tools/make_golden.py knows.
const MODELS: [&str; 7] = ["llama", "llama-rope3", "llama-q4", "qwen3", "gemma3", "gemma4", "qwen3_5"];
/// The traces and hidden states of the real model with its two heads.
const SMOLLM2: &str = "smollm2";

pub(crate) fn command(project: &Project, args: Arguments) -> Result {
    let (models, heads) = select(args.rest())?;
    let python = Python::ensure(project)?;
    let work = project.native().join("golden");
    std::fs::create_dir_all(&work).context(|| format!("making {}", work.display()))?;
    if !models.is_empty() {
        let mut command = python.script("make_golden.py");
        run(command.arg(&work).args(&models), "making the tiny models")?;
        for name in &models {
            replace(&work.join(name), &project.path("golden").join(name))?;
        }
    }
    if heads { smollm2(project, &python, &work) } else { Ok(()) }
}

/// The chosen tiny models, and whether the real one is chosen. Nothing named means all.
fn select(names: Vec<String>) -> Result<(Vec<String>, bool)> {
    if let Some(name) = names.iter().find(|name| *name != SMOLLM2 && !MODELS.contains(&name.as_str())) {
        return fail(format!("unknown golden data {name:?}\nusage: cargo xtask {USAGE}"));
    }
    if names.is_empty() {
        return Ok((MODELS.map(str::to_owned).to_vec(), true));
    }
    let heads = names.iter().any(|name| name == SMOLLM2);
    Ok((names.into_iter().filter(|name| name != SMOLLM2).collect(), heads))
}

fn smollm2(project: &Project, python: &Python, work: &Path) -> Result {
    model::ensure(project)?;
    let (hf, out) = (work.join("smollm2-f32"), work.join("smollm2"));
    let (heads, golden) = (project.path("models/smollm2-135m-mtp"), project.path("golden/smollm2-135m-mtp"));
    std::fs::create_dir_all(&out).context(|| format!("making {}", out.display()))?;
    let mut convert = python.script("gguf_to_hf.py");
    run(convert.arg(project.model()).arg(&hf), "converting the model")?;
    // The sequence was drawn once, when the heads were trained; it is an input and stays.
    let mut chain = python.script("chain_golden.py");
    chain.arg(&hf).arg(&heads).arg(golden.join("golden-single.safetensors")).arg(&out);
    run(&mut chain, "making the heads' hidden states")?;
    let mut trace = python.script("reference_speculation.py");
    run(trace.arg(&hf).arg(&heads).arg(work.join("trace.json")), "making the traces")?;
    replace(&out, &golden)?;
    replace_file(&work.join("trace.json"), &project.path("golden/smollm2-greedy-trace.json"))
}

fn replace(from: &Path, to: &Path) -> Result {
    for name in file_names(from)? {
        replace_file(&from.join(&name), &to.join(&name))?;
    }
    Ok(())
}

fn replace_file(from: &Path, to: &Path) -> Result {
    let content = std::fs::read(from).context(|| format!("reading {}", from.display()))?;
    let state = if write_if_changed(to, &content)? { "rewritten" } else { "unchanged" };
    println!("{state} {}", to.display());
    Ok(())
}

/// The reference in an environment of its own.
struct Python {
    program: PathBuf,
    scripts: PathBuf,
}

impl Python {
    fn ensure(project: &Project) -> Result<Self> {
        let folder = project.native().join("golden-venv");
        let python = Self { program: folder.join("bin/python"), scripts: project.path("tools") };
        let requirements = project.native_source("requirements-golden.txt");
        let (stamp, hash) = (folder.join("stamp"), sha256::of_file(&requirements)?);
        if std::fs::read_to_string(&stamp).is_ok_and(|old| old == hash) {
            return Ok(python);
        }
        require_pip()?;
        let advice = "python3 has no venv: install it (`apt-get install python3-venv`)";
        require("python3", &["-c", "import venv, ensurepip"], advice)?;
        say("installing the Python reference …");
        let mut venv = Command::new("python3");
        run(venv.args(["-m", "venv", "--clear"]).arg(&folder), "making a Python environment")?;
        let mut pip = Command::new(&python.program);
        pip.args(["-m", "pip", "install", "--no-deps", "--only-binary=:all:", "--require-hashes"]);
        pip.args(["--disable-pip-version-check", "--requirement"]).arg(&requirements);
        run_pip(&mut pip, "installing the Python reference with pip")?;
        std::fs::write(&stamp, hash).context(|| format!("writing {}", stamp.display()))?;
        Ok(python)
    }

    fn script(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        // The reference reads local folders only.
        command.arg(self.scripts.join(name)).env("HF_HUB_OFFLINE", "1").env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn nothing_named_means_all() {
        assert_eq!(select(vec![]).unwrap(), (MODELS.map(str::to_owned).to_vec(), true));
        assert_eq!(select(names("llama-q4")).unwrap(), (names("llama-q4"), false));
        assert_eq!(select(names("smollm2 llama")).unwrap(), (names("llama"), true));
        assert!(select(names("llama4")).unwrap_err().0.contains("llama4"));
    }

    #[test]
    fn the_scripts_and_the_folders_are_there() {
        let project = Project::here().unwrap();
        for script in ["make_golden.py", "chain_golden.py", "reference_speculation.py", "gguf_to_hf.py"] {
            assert!(project.path("tools").join(script).is_file(), "{script}");
        }
        for name in MODELS {
            assert!(project.path("golden").join(name).is_dir(), "{name}");
        }
    }
}
