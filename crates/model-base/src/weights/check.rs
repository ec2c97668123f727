//! What was found in a checkpoint and what became of it.

use std::path::{Path, PathBuf};

use mlx_rs::Dtype;

use super::Weights;
use crate::{ModelError, Result};

/// The result of loading, for `inspect` and for tests.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadReport {
    /// Where the weights came from.
    pub source: String,
    /// Tensors in the files.
    pub found: usize,
    /// Tensors that the model took.
    pub used: usize,
    /// Names asked for and not found, ascending. Empty when loading succeeded.
    pub missing: Vec<String>,
    /// Names that nothing asked for and that were not expected, ascending.
    pub unused: Vec<String>,
    /// Names left out on purpose, ascending.
    pub ignored: Vec<String>,
    /// The types of the tensors used, ascending.
    pub codings: Vec<String>,
    /// Group size and bits that the configuration declares for packed weights.
    pub quantization: Option<(usize, usize)>,
    /// The type that weights are computed in.
    pub dtype: Dtype,
    /// Draft heads that came along.
    pub draft: DraftHeads,
}

/// Draft heads found with a model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DraftHeads {
    /// Whether the checkpoint itself has `mtp.` tensors.
    pub inside: bool,
    /// Files named `mtp-*.safetensors` in the model's folder, ascending.
    pub files: Vec<PathBuf>,
}

/// Draft heads live under this prefix and are read by their own crate.
const DRAFT_PREFIX: &str = "mtp.";

impl Weights {
    /// What was used so far. A name is expected to stay unused when it ends in one of `ignorable`, or
    /// begins with one that ends in a dot.
    pub fn report(&self, ignorable: &[&str]) -> LoadReport {
        let used = self.used.borrow();
        let left = self.names().filter(|name| !used.contains(*name)).map(str::to_owned);
        let expected = |name: &String| {
            let beginning = |part: &&str| part.ends_with('.') && name.starts_with(*part);
            let known = |part: &&str| name.ends_with(*part) || beginning(part);
            ignorable.iter().any(known) || name.starts_with(DRAFT_PREFIX)
        };
        let (ignored, unused) = left.partition(expected);
        LoadReport {
            source: self.source.clone(),
            found: self.entries.len(),
            used: used.len(),
            missing: self.missing.borrow().iter().cloned().collect(),
            unused,
            ignored,
            codings: self.coded.borrow().iter().cloned().collect(),
            quantization: self.quantization.default_packing(),
            dtype: self.dtype,
            draft: DraftHeads {
                inside: self.names().any(|name| name.starts_with(DRAFT_PREFIX)),
                files: self.draft_files.clone(),
            },
        }
    }

    /// Ends loading: a tensor that nothing used is an error, because a model that leaves weights out
    /// is another model. `ignorable` lists endings of names that are known to carry nothing.
    pub fn finish(self, ignorable: &[&str]) -> Result<LoadReport> {
        let report = self.report(ignorable);
        match report.unused.first() {
            None => Ok(report),
            Some(first) => Err(ModelError::Tensor {
                what: first.clone(),
                expected: "to be part of this architecture".into(),
                got: format!("a tensor that the model does not use ({} such)", report.unused.len()),
                next: "check that config.json names the right architecture and its flags match the weights",
            }),
        }
    }
}

/// Heads beside the weights.
pub(super) fn draft_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(listing) = std::fs::read_dir(folder) else { return Vec::new() };
    let head = |path: &PathBuf| {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        name.starts_with("mtp-") && name.ends_with(".safetensors")
    };
    let mut files: Vec<_> = listing.flatten().map(|entry| entry.path()).filter(head).collect();
    files.sort();
    files
}
