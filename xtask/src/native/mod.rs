//! `cargo xtask native`: the MLX libraries for Linux, without cmake, a fork or a patch.
//!
//! The build script of mlx-sys builds MLX for Apple platforms only. Its manifest says `links = "mlx"`, so a
//! configuration file may replace the script: this command installs the prebuilt library, compiles the C interface
//! (mlx-c) from the sources inside mlx-sys, and writes that file. A finished run leaves in `.native`:
//!
//! ```text
//! site/        what pip installed, and site/mlx/lib/libmlxc.so
//! bindings/    bindings.rs, read by mlx-sys in place of what its script would generate
//! cargo.toml   the configuration, the only file with absolute paths
//! stamp        the inputs of all this; when they are unchanged nothing is done
//! ```

mod bindings;
mod config;
mod host;
mod lock;
mod mlxc;
mod stamp;

use std::path::{Path, PathBuf};

use crate::arguments::Arguments;
use crate::failure::{Context, Failure, Result, fail};
use crate::metadata::{Metadata, host_triple};
use crate::progress::say;
use crate::project::{Project, remove_tree, write_if_changed};
use crate::tools::{pip, require_pip, run_pip};
use stamp::{Backend, Stamp};

pub(crate) const USAGE: &str = "native [--backend cpu|cuda] [--print] [--bindgen]
    install MLX for Linux into .native; --print shows the configuration that another workspace needs,
    --bindgen regenerates the committed bindings";

pub(crate) fn command(project: &Project, mut args: Arguments) -> Result {
    let backend = args.value("--backend")?.map(|name| Backend::parse(&name)).transpose()?;
    let (print, bindgen) = (args.flag("--print"), args.flag("--bindgen"));
    args.finish(USAGE)?;
    if !cfg!(target_os = "linux") {
        say("nothing to install: on macOS mlx-sys builds MLX itself; `cargo xtask metal` drives that build");
        return Ok(());
    }
    if bindgen {
        bindings::regenerate(project, &mlx_c(project)?)?;
    }
    let done = install(project, backend)?;
    if print {
        print!("{}", config::for_another_workspace(&project.native(), &host_triple()?));
    }
    say(&done);
    Ok(())
}

/// Makes sure that the workspace can be built; a backend that was chosen before stays.
pub(crate) fn ensure(project: &Project) -> Result {
    if cfg!(target_os = "linux") {
        install(project, None)?;
    }
    Ok(())
}

/// The version of MLX that the requirements pin.
pub(crate) fn mlx_version(project: &Project) -> Result<String> {
    let path = project.native_source("requirements-cpu.txt");
    let text = std::fs::read_to_string(&path).context(|| format!("reading {}", path.display()))?;
    let version = text.lines().find_map(|line| line.strip_prefix("mlx-cpu==")?.split_whitespace().next());
    version.map(str::to_owned).ok_or_else(|| Failure(format!("{} pins no mlx-cpu", path.display())))
}

/// Does what is missing and says what that was.
fn install(project: &Project, backend: Option<Backend>) -> Result<String> {
    let native = project.native();
    std::fs::create_dir_all(&native).context(|| format!("making {}", native.display()))?;
    let _lock = lock::Lock::take(&native.join("lock"))?;
    let old = Stamp::read(&native);
    let backend = backend.or(old.as_ref().map(|stamp| stamp.backend)).unwrap_or(Backend::Cpu);
    let mlx_c = mlx_c(project)?;
    bindings::check(project, &mlx_c)?;
    let new = Stamp::of_inputs(project, backend, &mlx_c)?;
    let ready = old.as_ref() == Some(&new) && complete(&native);
    if !ready {
        host::check()?;
        build(project, backend, &mlx_c)?;
        write_if_changed(&native.join("bindings/bindings.rs"), &bindings::committed(project)?)?;
        new.write(&native)?;
    }
    let moved =
        write_if_changed(&native.join("cargo.toml"), config::generated(&native, &host_triple()?).as_bytes())?;
    Ok(match (ready, moved) {
        (true, false) => format!("MLX ({}) is ready in {}", backend.name(), native.display()),
        (true, true) => format!("MLX ({}) was ready; its configuration was rewritten", backend.name()),
        _ => format!("MLX ({}) is installed in {}", backend.name(), native.display()),
    })
}

/// Everything is made in a folder beside the final one, so that an interrupted run leaves no half of an install.
fn build(project: &Project, backend: Backend, mlx_c: &Path) -> Result {
    let native = project.native();
    let (site, staged, work) = (native.join("site"), native.join("site.new"), native.join("build"));
    remove_tree(&staged)?;
    remove_tree(&work)?;
    require_pip()?;
    let compiler = host::compiler()?;
    say(&format!("installing {} …", backend.contents()));
    let requirements = project.native_source(backend.requirements());
    let mut pip = pip("install");
    pip.arg("--no-compile").arg("--target").arg(&staged).arg("--requirement").arg(requirements);
    run_pip(&mut pip, "installing the native libraries with pip")?;
    let sources = project.path("xtask/native");
    mlxc::Build { compiler, mlx_c, sources: &sources, site: &staged, work: &work }.run()?;
    remove_tree(&site)?;
    std::fs::rename(&staged, &site).context(|| format!("moving the install to {}", site.display()))?;
    remove_tree(&work)
}

fn complete(native: &Path) -> bool {
    ["site/mlx/lib/libmlx.so", "site/mlx/lib/libmlxc.so", "bindings/bindings.rs"]
        .iter()
        .all(|file| native.join(file).is_file())
}

/// The sources of mlx-c, which travel inside the mlx-sys package.
fn mlx_c(project: &Project) -> Result<PathBuf> {
    let metadata = Metadata::with_dependencies(project, &host_triple()?)?;
    let Some(package) = metadata.package("mlx-sys") else {
        return fail("the workspace does not depend on mlx-sys");
    };
    let folder = package.folder.join("src/mlx-c");
    if folder.join("mlx/c").is_dir() {
        Ok(folder)
    } else {
        fail(format!("{} has no mlx/c", folder.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pinned_version_is_found() {
        assert_eq!(mlx_version(&Project::here().unwrap()).unwrap(), "0.32.2");
    }

    #[test]
    fn every_requirement_has_a_version_and_a_hash() {
        let project = Project::here().unwrap();
        for name in ["cpu", "cuda", "libclang", "model", "golden"] {
            let path = project.native_source(&format!("requirements-{name}.txt"));
            let text = std::fs::read_to_string(path).unwrap().replace("\\\n", " ");
            for line in text.lines().filter(|line| !line.starts_with('#')) {
                assert!(line.contains("==") && line.contains("--hash=sha256:"), "{name}: {line}");
            }
        }
    }

    #[test]
    fn an_install_with_a_missing_library_is_not_complete() {
        let native = crate::project::scratch("complete");
        for file in ["site/mlx/lib/libmlx.so", "site/mlx/lib/libmlxc.so", "bindings/bindings.rs"] {
            assert!(!complete(&native));
            write_if_changed(&native.join(file), b"x").unwrap();
        }
        assert!(complete(&native));
        std::fs::remove_dir_all(native).unwrap();
    }
}
