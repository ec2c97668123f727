//! What the machine must offer: an architecture and a C library that the prebuilt MLX runs on, and a C++ compiler.

use std::process::Command;

use crate::failure::{Result, fail};
use crate::tools::{line_of, require, version_pair};

/// The prebuilt MLX is linked against this C library.
const GLIBC: (u32, u32) = (2, 35);
/// MLX's headers are C++20, and its library needs the libstdc++ of this GCC.
const GCC: u32 = 12;

/// Fails in one line on a machine that the prebuilt library cannot run on.
pub(super) fn check() -> Result {
    if !matches!(std::env::consts::ARCH, "x86_64" | "aarch64") {
        return fail(format!(
            "there is no prebuilt MLX for {}: x86_64 and aarch64 only",
            std::env::consts::ARCH
        ));
    }
    check_glibc(line_of(Command::new("getconf").arg("GNU_LIBC_VERSION")).as_deref())
}

fn check_glibc(line: Option<&str>) -> Result {
    let needed = format!("MLX needs glibc {}.{} or newer", GLIBC.0, GLIBC.1);
    let Some(version) = line.and_then(|line| line.strip_prefix("glibc ")) else {
        return fail(format!("{needed}; this system has another C library"));
    };
    match version_pair(version) {
        Some(found) if found >= GLIBC => Ok(()),
        _ => fail(format!("{needed}; this system has {version} (Debian 12, Ubuntu 22.04 or later have it)")),
    }
}

/// The C++ compiler: `CXX`, or the system's.
pub(super) fn compiler() -> Result<String> {
    let named = std::env::var("CXX").ok().filter(|name| !name.is_empty());
    let candidates =
        named.map_or_else(|| vec!["c++".into(), "g++".into(), "clang++".into()], |name| vec![name]);
    let advice = "a C++ compiler is missing: install one (`apt-get install g++`) or name it in CXX";
    for candidate in candidates {
        if let Ok(text) = require(&candidate, &["--version"], advice) {
            let version = line_of(Command::new(&candidate).args(["-dumpfullversion", "-dumpversion"]));
            check_compiler(&candidate, &text, version.as_deref())?;
            return Ok(candidate);
        }
    }
    fail(advice)
}

/// Clang brings no C++ library of its own on Linux, and its number says nothing about the one it uses.
fn check_compiler(name: &str, description: &str, version: Option<&str>) -> Result {
    let found = version.and_then(version_pair);
    match found {
        Some((major, _)) if major < GCC && !description.contains("clang") => fail(format!(
            "{name} is GCC {major}; MLX needs GCC {GCC} or newer (`apt-get install g++-{GCC}`, then CXX=g++-{GCC})"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_or_other_c_library_is_named() {
        assert!(check_glibc(Some("glibc 2.35")).is_ok());
        assert!(check_glibc(Some("glibc 2.41")).is_ok());
        for bad in [Some("glibc 2.31"), Some("musl"), None] {
            let message = check_glibc(bad).unwrap_err().0;
            assert!(message.contains("glibc 2.35") && message.lines().count() == 1, "{message}");
        }
    }

    #[test]
    fn an_old_compiler_is_named() {
        let gcc = "g++ (Debian 10.2.1-6) 10.2.1\nCopyright (C) Free Software Foundation";
        let message = check_compiler("g++", gcc, Some("10.2.1")).unwrap_err().0;
        assert!(message.contains("GCC 10") && message.lines().count() == 1, "{message}");
        assert!(check_compiler("g++", gcc, Some("12.2.0")).is_ok());
        assert!(check_compiler("c++", "Debian clang version 11", Some("11.0.1")).is_ok());
        assert!(check_compiler("c++", "odd", None).is_ok());
    }
}
