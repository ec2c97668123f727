//! The committed Rust bindings of mlx-c, and the hash that ties them to its headers.

use std::path::Path;
use std::process::Command;

use super::host;
use super::stamp::hash_folder;
use crate::failure::{Context, Result, fail};
use crate::progress::say;
use crate::project::{Project, remove_tree, write_if_changed};
use crate::tools::{capture, cargo, pip, require_pip, run, run_pip};

const FILE: &str = "bindings.rs";
const HASH: &str = "headers.sha256";

/// The committed bindings.
pub(super) fn committed(project: &Project) -> Result<Vec<u8>> {
    let path = project.native_source(FILE);
    std::fs::read(&path).context(|| format!("reading {}", path.display()))
}

/// Fails when mlx-sys brings other headers than the bindings were made from.
pub(super) fn check(project: &Project, mlx_c: &Path) -> Result {
    let found = hash_headers(mlx_c)?;
    let path = project.native_source(HASH);
    let expected = std::fs::read_to_string(&path).context(|| format!("reading {}", path.display()))?;
    if found == expected.trim() {
        return Ok(());
    }
    fail(
        "the headers of mlx-c changed since xtask/native/bindings.rs was made: run `cargo xtask native --bindgen`",
    )
}

/// Runs bindgen over the headers and replaces the committed files. Only this needs libclang.
pub(super) fn regenerate(project: &Project, mlx_c: &Path) -> Result {
    require_pip()?;
    let compiler = host::compiler()?;
    let work = project.native().join("bindgen");
    let libclang = work.join("libclang");
    remove_tree(&libclang)?;
    say("installing libclang …");
    let mut pip = pip("install");
    pip.arg("--no-compile").arg("--target").arg(&libclang);
    pip.arg("--requirement").arg(project.native_source("requirements-libclang.txt"));
    run_pip(&mut pip, "installing libclang with pip")?;
    // The wheel has no builtin headers (stddef.h and its like); the compiler's own serve.
    let headers =
        capture(Command::new(&compiler).arg("-print-file-name=include"), "asking for builtin headers")?;
    let mut bindgen = cargo();
    bindgen.args(["run", "--quiet", "--locked", "--manifest-path"]);
    bindgen.arg(project.native_source("bindgen/Cargo.toml"));
    bindgen.arg("--target-dir").arg(work.join("target")).arg("--");
    bindgen.arg(mlx_c).arg(project.native_source("shim.h")).arg(project.native_source(FILE));
    bindgen.args(["-isystem", &headers]).env("LIBCLANG_PATH", libclang.join("clang/native"));
    // From outside the tree, so that its rustfmt.toml has no say in the generated file.
    run(bindgen.current_dir(std::env::temp_dir()), "generating the bindings")?;
    remove_tree(&work)?;
    write_if_changed(&project.native_source(HASH), format!("{}\n", hash_headers(mlx_c)?).as_bytes())?;
    say("xtask/native/bindings.rs and headers.sha256 are up to date");
    Ok(())
}

fn hash_headers(mlx_c: &Path) -> Result<String> {
    hash_folder(&mlx_c.join("mlx/c"), &["h"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::project::scratch;

    #[test]
    fn changed_headers_are_told_in_one_line() {
        let folder = scratch("headers");
        let (project, mlx_c) = (Project::new(&folder), folder.join("mlx-c"));
        write_if_changed(&mlx_c.join("mlx/c/ops.h"), b"int f(void);").unwrap();
        let hash = hash_headers(&mlx_c).unwrap();
        write_if_changed(&project.native_source(HASH), format!("{hash}\n").as_bytes()).unwrap();
        check(&project, &mlx_c).unwrap();
        write_if_changed(&mlx_c.join("mlx/c/ops.cpp"), b"not a header").unwrap();
        check(&project, &mlx_c).unwrap();
        write_if_changed(&mlx_c.join("mlx/c/ops.h"), b"int f(int);").unwrap();
        let message = check(&project, &mlx_c).unwrap_err().0;
        assert!(message.contains("--bindgen") && message.lines().count() == 1, "{message}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
