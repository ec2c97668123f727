//! The generated cargo configuration: it replaces the build script of mlx-sys for this machine's target.

use std::path::Path;

/// `.native/cargo.toml`, which the committed configuration includes.
pub(super) fn generated(native: &Path, triple: &str) -> String {
    let lib = native.join("site/mlx/lib");
    let (lib, bindings) = (lib.display().to_string(), native.join("bindings").display().to_string());
    format!(
        "[target.{triple}.mlx]\n\
         rustc-link-lib = [\"dylib=mlxc\"]\n\
         rustc-link-search = [{}]\n\
         rustc-env = {{ OUT_DIR = {} }}\n\
         lib = {}\n",
        quoted(&format!("native={lib}")),
        quoted(&bindings),
        quoted(&lib),
    )
}

/// The same with what a user of single crates must know.
pub(super) fn for_another_workspace(native: &Path, triple: &str) -> String {
    format!(
        "# Put this into .cargo/config.toml of the workspace that uses foretoken's crates.\n\
         # Each package with binaries or tests also depends on mlx-sys and has a build script that prints\n\
         #     cargo::rustc-link-arg=-Wl,-rpath,{{value of the variable DEP_MLX_LIB}}\n\
         {}",
        generated(native, triple)
    )
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_the_target_and_absolute_paths() {
        let text = generated(Path::new("/p q/.native"), "x86_64-unknown-linux-gnu");
        let expected = r#"[target.x86_64-unknown-linux-gnu.mlx]
rustc-link-lib = ["dylib=mlxc"]
rustc-link-search = ["native=/p q/.native/site/mlx/lib"]
rustc-env = { OUT_DIR = "/p q/.native/bindings" }
lib = "/p q/.native/site/mlx/lib"
"#;
        assert_eq!(text, expected);
        assert!(
            for_another_workspace(Path::new("/p q/.native"), "x86_64-unknown-linux-gnu").ends_with(expected)
        );
    }

    #[test]
    fn odd_paths_stay_one_string() {
        assert_eq!(quoted("a\"b\\c"), r#""a\"b\\c""#);
    }
}
