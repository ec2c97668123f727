//! Where things are. Every command gets a `Project`, so that a test can point one at a folder of its own.

use std::path::{Path, PathBuf};

use crate::failure::{Context, Result};

/// The name of the GGUF file that `model` fetches.
pub(crate) const MODEL_FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// The root of the source tree and the folders that are derived from it.
#[derive(Clone, Debug)]
pub(crate) struct Project {
    root: PathBuf,
}

impl Project {
    /// A tree that a test made.
    #[cfg(test)]
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The tree that this program was started from. Cargo sets the variable at run time, and so a tree that was
    /// moved together with its build folder is still found.
    pub(crate) fn here() -> Result<Self> {
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest.parent().unwrap_or(&manifest).to_path_buf();
        Ok(Self { root: root.canonicalize().context(|| format!("the project folder {}", root.display()))? })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A path inside the tree.
    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        self.root.join(inside)
    }

    /// The git-ignored folder that holds the native libraries.
    pub(crate) fn native(&self) -> PathBuf {
        self.root.join(".native")
    }

    /// A committed input of the native build.
    pub(crate) fn native_source(&self, name: &str) -> PathBuf {
        self.root.join("xtask/native").join(name)
    }

    /// The model that the demonstration and the tests use.
    pub(crate) fn model(&self) -> PathBuf {
        self.root.join("models/fetched").join(MODEL_FILE)
    }
}

/// Writes a file unless it already has this content, so that nothing downstream is rebuilt for nothing.
pub(crate) fn write_if_changed(path: &Path, content: &[u8]) -> Result<bool> {
    if std::fs::read(path).is_ok_and(|old| old == content) {
        return Ok(false);
    }
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).context(|| format!("making {}", parent.display()))?;
    }
    std::fs::write(path, content).context(|| format!("writing {}", path.display()))?;
    Ok(true)
}

/// Removes a folder and all in it; a missing one is fine.
pub(crate) fn remove_tree(path: &Path) -> Result {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// A folder for one test, empty at its start.
#[cfg(test)]
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("foretoken-xtask-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_is_the_folder_above_xtask() {
        let project = Project::here().unwrap();
        assert!(project.path("xtask/Cargo.toml").is_file());
        assert!(project.native_source("shim.h").is_file());
    }

    #[test]
    fn an_equal_file_is_not_written_again() {
        let folder = scratch("write");
        let file = folder.join("deep/er/file");
        assert!(write_if_changed(&file, b"one").unwrap());
        assert!(!write_if_changed(&file, b"one").unwrap());
        assert!(write_if_changed(&file, b"two").unwrap());
        remove_tree(&folder).unwrap();
        remove_tree(&folder).unwrap();
    }
}
