//! Lets binaries and tests of this package find the MLX libraries that `cargo xtask native` installed.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Set by the configuration file of the native stack; absent where mlx-sys links MLX statically.
    if let Ok(lib) = std::env::var("DEP_MLX_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib/mlx/lib:{lib}");
    }
}
