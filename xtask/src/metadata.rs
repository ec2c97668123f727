//! What `cargo metadata` says about the workspace.

use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};
use crate::json::Json;
use crate::project::Project;
use crate::tools::{capture, cargo};

/// The packages of the workspace (all packages when loaded with dependencies) and its build folder.
#[derive(Debug)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) target: PathBuf,
}

#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

#[derive(Debug)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) requirement: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Build,
    Dev,
}

impl Metadata {
    /// The members alone. Needs neither network nor lock file.
    pub(crate) fn members(project: &Project) -> Result<Self> {
        Self::load(project, &["--no-deps"])
    }

    /// Members and dependencies for one target; downloads what is not there yet.
    pub(crate) fn with_dependencies(project: &Project, triple: &str) -> Result<Self> {
        Self::load(project, &["--locked", "--filter-platform", triple])
    }

    pub(crate) fn package(&self, name: &str) -> Option<&Package> {
        self.packages.iter().find(|package| package.name == name)
    }

    fn load(project: &Project, args: &[&str]) -> Result<Self> {
        let mut command = cargo();
        command.args(["metadata", "--format-version", "1"]).args(args).current_dir(project.root());
        Self::parse(&capture(&mut command, "cargo metadata")?)
    }

    fn parse(text: &str) -> Result<Self> {
        let json = Json::parse(text)?;
        let missing = || Failure("cargo metadata has another shape than expected".into());
        Ok(Self {
            packages: json.list("packages").iter().map(package).collect::<Option<_>>().ok_or_else(missing)?,
            target: json.str("target_directory").ok_or_else(missing)?.into(),
        })
    }
}

impl Package {
    /// Whether the package or its tests use MLX.
    pub(crate) fn uses_mlx(&self) -> bool {
        self.dependencies.iter().any(|dependency| dependency.name == "mlx-rs")
    }
}

fn package(json: &Json) -> Option<Package> {
    let folder = Path::new(json.str("manifest_path")?).parent()?.to_path_buf();
    let dependencies = json.list("dependencies").iter().map(dependency).collect::<Option<_>>()?;
    Some(Package { name: json.str("name")?.into(), folder, dependencies })
}

fn dependency(json: &Json) -> Option<Dependency> {
    let kind = match json.str("kind") {
        None => Kind::Normal,
        Some("build") => Kind::Build,
        Some("dev") => Kind::Dev,
        Some(_) => return None,
    };
    Some(Dependency { name: json.str("name")?.into(), requirement: json.str("req")?.into(), kind })
}

/// The triple of the machine that the compiler runs on.
pub(crate) fn host_triple() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let text = capture(std::process::Command::new(rustc).arg("-vV"), "rustc -vV")?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| Failure("rustc -vV names no host".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_packages_and_kinds() {
        let text = r#"{"packages": [{"name": "a", "manifest_path": "/x/a/Cargo.toml", "dependencies": [
            {"name": "mlx-rs", "req": "=0.33.0", "kind": null}, {"name": "b", "req": "^1", "kind": "dev"},
            {"name": "c", "req": "*", "kind": "build"}]}], "target_directory": "/x/target"}"#;
        let metadata = Metadata::parse(text).unwrap();
        let a = metadata.package("a").unwrap();
        assert_eq!(a.folder, Path::new("/x/a"));
        assert!(a.uses_mlx());
        let kinds: Vec<_> = a.dependencies.iter().map(|d| d.kind).collect();
        assert_eq!(kinds, [Kind::Normal, Kind::Dev, Kind::Build]);
        assert_eq!(a.dependencies[0].requirement, "=0.33.0");
        assert!(metadata.package("b").is_none());
        assert!(Metadata::parse(r#"{"packages": [{"name": "a"}]}"#).is_err());
    }

    #[test]
    fn the_workspace_has_its_members() {
        let metadata = Metadata::members(&Project::here().unwrap()).unwrap();
        assert!(metadata.package("foretoken-cache").unwrap().uses_mlx());
        assert!(!metadata.package("foretoken-text").unwrap().uses_mlx());
        assert!(host_triple().unwrap().contains('-'));
    }
}
