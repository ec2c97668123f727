//! From a path to a drafter: finds the head file, picks its style, builds the drafter around it.

use std::{
    path::{Path, PathBuf},
    rc::Rc,
};

use foretoken_model_base::{Model, ModelError, weights::Weights};
use foretoken_speculate::{DraftError, Drafter};

use crate::{
    HeadStyle, SeqDrafter, SeqHead, SingleDrafter, SingleHead,
    head::{NEXT, load_options},
};

/// Loads the head at `path`, a safetensors file or a folder that holds exactly one head, for `model`.
///
/// The drafter keeps no reference to the model; it must be used with the model it was checked against.
pub fn load(path: &Path, model: &dyn Model) -> Result<Rc<dyn Drafter>, DraftError> {
    let file = if path.is_dir() { folder_head(path)? } else { path.to_path_buf() };
    drafter(Weights::open(&file, load_options(model)?)?, model)
}

/// The drafter for a table of tensors. Each of them must fit and be used.
pub fn drafter(weights: Weights, model: &dyn Model) -> Result<Rc<dyn Drafter>, DraftError> {
    let source = weights.report(&[]).source;
    build(weights, model).map_err(|error| in_file(source, error).into())
}

fn build(weights: Weights, model: &dyn Model) -> Result<Rc<dyn Drafter>, ModelError> {
    let drafter: Rc<dyn Drafter> = match HeadStyle::of(&weights)? {
        HeadStyle::Single => Rc::new(SingleDrafter::new(Rc::new(SingleHead::load(&weights, model)?))),
        HeadStyle::Sequential => Rc::new(SeqDrafter::new(Rc::new(SeqHead::load(&weights, model)?))),
    };
    weights.finish(&[])?;
    Ok(drafter)
}

/// An error about a tensor, with the file it is in and a next step that fits a head.
fn in_file(file: String, error: ModelError) -> ModelError {
    match error {
        ModelError::Tensor { what, expected, got, .. } => {
            ModelError::File { file, what: format!("tensor {what}"), expected, got, next: NEXT }
        }
        other => other,
    }
}

/// The head in a model's folder: `mtp.safetensors` or `mtp-….safetensors`. Two of them are an error,
/// because nothing says which one is meant.
pub fn find_head(folder: &Path) -> Result<Option<PathBuf>, DraftError> {
    let entries = std::fs::read_dir(folder).map_err(|source| unreadable(folder, source))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|source| unreadable(folder, source))?.path();
        if is_head_name(&path) {
            found.push(path);
        }
    }
    found.sort();
    match found.as_slice() {
        [] | [_] => Ok(found.pop()),
        several => Err(ModelError::File {
            file: folder.display().to_string(),
            what: "draft heads".into(),
            expected: "one".into(),
            got: names(several),
            next: "name the one to use with --draft FILE",
        }
        .into()),
    }
}

fn folder_head(folder: &Path) -> Result<PathBuf, DraftError> {
    find_head(folder)?.ok_or_else(|| {
        let error = ModelError::File {
            file: folder.display().to_string(),
            what: "draft head".into(),
            expected: "mtp.safetensors or mtp-….safetensors".into(),
            got: "no such file".into(),
            next: "name the head's file with --draft FILE",
        };
        error.into()
    })
}

fn is_head_name(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|s| s.to_str());
    let named = stem.is_some_and(|s| s == "mtp" || s.starts_with("mtp-"));
    named && path.extension().is_some_and(|e| e == "safetensors") && path.is_file()
}

fn names(paths: &[PathBuf]) -> String {
    let names = paths.iter().filter_map(|p| p.file_name()).map(|n| n.to_string_lossy().into_owned());
    names.collect::<Vec<_>>().join(", ")
}

fn unreadable(folder: &Path, source: std::io::Error) -> DraftError {
    ModelError::Io { path: folder.display().to_string(), source }.into()
}
