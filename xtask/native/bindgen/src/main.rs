//! The bindings that mlx-sys expects, generated off Apple platforms: bindgen MLX_C SHIM OUT [clang arguments].

use std::error::Error;
use std::path::PathBuf;

/// mlx-rs wants these two as Rust types, whatever the C compiler calls them.
const HALF_TYPES: &str = "#[repr(transparent)]\n#[derive(Debug, Default, Copy, Clone)]\npub struct float16_t(pub u16);\npub type bfloat16_t = u16;";

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().ok_or("usage: bindgen MLX_C SHIM OUT [clang arguments]");
    let (mlx_c, shim, out) = (PathBuf::from(next()?), next()?, next()?);
    let mut headers = Vec::new();
    for entry in std::fs::read_dir(mlx_c.join("mlx/c"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "h") {
            headers.push(path.display().to_string());
        }
    }
    headers.sort();
    bindgen::Builder::default()
        .rust_target("1.73.0".parse()?)
        .clang_arg(format!("-I{}", mlx_c.display()))
        .clang_args(["-include", &shim])
        .clang_args(args)
        .allowlist_item("_?mlx_.*|_?MLX_.*")
        .blocklist_function("malloc")
        .blocklist_function("realloc")
        .blocklist_type("b?float16_t")
        .layout_tests(false)
        .generate_comments(false)
        .raw_line(HALF_TYPES)
        .headers(headers)
        .generate()?
        .write_to_file(out)?;
    Ok(())
}
