//! What an install was made from. No path is part of it, so a project that moved is not installed again.

use std::path::Path;

use crate::failure::{Context, Result, fail};
use crate::project::Project;
use crate::sha256::{self, Sha256};
use crate::tools::file_names;

/// Which MLX library is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    Cpu,
    Cuda,
}

impl Backend {
    pub(super) fn parse(name: &str) -> Result<Self> {
        match name {
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda),
            other => fail(format!("--backend {other}: expected cpu or cuda")),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }

    pub(super) fn requirements(self) -> &'static str {
        match self {
            Self::Cpu => "requirements-cpu.txt",
            Self::Cuda => "requirements-cuda.txt",
        }
    }

    pub(super) fn contents(self) -> &'static str {
        match self {
            Self::Cpu => "MLX for CPU and OpenBLAS (about 30 MB)",
            Self::Cuda => "MLX for CUDA 13, OpenBLAS and the NVIDIA libraries (more than 1 GB)",
        }
    }
}

/// The inputs of an install: the backend and one hash for each group of files.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) backend: Backend,
    text: String,
}

impl Stamp {
    /// The stamp of what would be installed now.
    pub(super) fn of_inputs(project: &Project, backend: Backend, mlx_c: &Path) -> Result<Self> {
        let mut text = format!("backend {}\n", backend.name());
        for file in [backend.requirements(), "shim.h", "gaps.cpp", "bindings.rs"] {
            let hash = sha256::of_file(&project.native_source(file))?;
            text.push_str(&format!("{file} {hash}\n"));
        }
        text.push_str(&format!("mlx-c {}\n", hash_folder(&mlx_c.join("mlx/c"), &["h", "cpp"])?));
        Ok(Self { backend, text })
    }

    /// The stamp of a finished install; `None` when there is none or it is not one of ours.
    pub(super) fn read(native: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(native.join("stamp")).ok()?;
        let backend = Backend::parse(text.lines().next()?.strip_prefix("backend ")?).ok()?;
        Some(Self { backend, text })
    }

    pub(super) fn write(&self, native: &Path) -> Result {
        std::fs::write(native.join("stamp"), &self.text).context(|| "writing the stamp".into())
    }
}

/// One hash over the files of a folder that have one of these endings.
pub(super) fn hash_folder(folder: &Path, endings: &[&str]) -> Result<String> {
    let mut hash = Sha256::new();
    for name in file_names(folder)? {
        if name.rsplit_once('.').is_some_and(|(_, ending)| endings.contains(&ending)) {
            let path = folder.join(&name);
            hash.part(&name, &std::fs::read(&path).context(|| format!("reading {}", path.display()))?);
        }
    }
    Ok(hash.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::project::{scratch, write_if_changed};

    fn inputs(folder: &Path) -> (Project, std::path::PathBuf) {
        let project = Project::new(folder);
        for file in ["requirements-cpu.txt", "requirements-cuda.txt", "shim.h", "gaps.cpp", "bindings.rs"] {
            write_if_changed(&project.native_source(file), file.as_bytes()).unwrap();
        }
        let mlx_c = folder.join("registry/mlx-c");
        write_if_changed(&mlx_c.join("mlx/c/ops.cpp"), b"code").unwrap();
        write_if_changed(&mlx_c.join("mlx/c/ops.h"), b"header").unwrap();
        (project, mlx_c)
    }

    #[test]
    fn a_stamp_survives_the_disk_and_a_move() {
        let (here, there) = (scratch("stamp-a"), scratch("stamp-b"));
        let (project, mlx_c) = inputs(&here);
        let stamp = Stamp::of_inputs(&project, Backend::Cpu, &mlx_c).unwrap();
        assert!(Stamp::read(&here).is_none());
        stamp.write(&here).unwrap();
        assert_eq!(Stamp::read(&here).as_ref(), Some(&stamp));
        let (moved, mlx_c) = inputs(&there);
        assert_eq!(Stamp::of_inputs(&moved, Backend::Cpu, &mlx_c).unwrap(), stamp);
        for folder in [here, there] {
            std::fs::remove_dir_all(folder).unwrap();
        }
    }

    #[test]
    fn any_input_changes_the_stamp() {
        let folder = scratch("stamp-c");
        let (project, mlx_c) = inputs(&folder);
        let of = |backend| Stamp::of_inputs(&project, backend, &mlx_c).unwrap();
        let first = of(Backend::Cpu);
        assert_ne!(first, of(Backend::Cuda));
        for file in [project.native_source("shim.h"), mlx_c.join("mlx/c/ops.h"), mlx_c.join("mlx/c/new.cpp")]
        {
            let before = of(Backend::Cpu);
            std::fs::write(&file, b"other").unwrap();
            assert_ne!(before, of(Backend::Cpu), "{}", file.display());
        }
        let before = of(Backend::Cpu);
        std::fs::write(mlx_c.join("mlx/c/notes.md"), b"unused").unwrap();
        assert_eq!(before, of(Backend::Cpu));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn backends_are_named() {
        assert_eq!(Backend::parse("cuda").unwrap(), Backend::Cuda);
        assert!(Backend::parse("metal").unwrap_err().0.contains("expected cpu or cuda"));
    }
}
