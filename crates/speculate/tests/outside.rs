//! A drafter in a crate of its own, outside this workspace, against the published API: what CONTRIBUTING
//! promises to people who write one.

use std::{fs, path::Path, process::Command};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// What the crate consists of; its tests run the conformance suite.
const FILES: [(&str, &str); 3] = [
    ("src/lib.rs", include_str!("outside/lib.rs")),
    ("tests/conforms.rs", include_str!("outside/conforms.rs")),
    // The build script that such a crate copies.
    ("build.rs", include_str!("../build.rs")),
];

#[test]
fn a_crate_outside_the_workspace_builds_and_conforms() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
        fs::write(path, text).expect("writable");
    };
    FILES.iter().for_each(|(name, text)| write(name, text));
    write("Cargo.toml", &manifest());
    // The versions that are built and downloaded already.
    write("Cargo.lock", &read("Cargo.lock"));
    // On Linux, what `cargo xtask native --print` prints; elsewhere there is none, and none is needed.
    if let Ok(native) = fs::read_to_string(Path::new(ROOT).join(".native/cargo.toml")) {
        write(".cargo/config.toml", &native);
    }
    let output = Command::new(env!("CARGO"))
        .current_dir(folder.path())
        .args(["test", "--offline", "--target-dir"])
        .arg(target())
        .output()
        .expect("cargo starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains("counting_conforms_and_saves_rounds ... ok"), "{out}");
}

/// The folder that this test was built into, whose dependencies need not be built again.
fn target() -> &'static Path {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tmp.parent().expect("the target folder")
}

/// The profiles are those of this workspace, so that dependencies are not built another way.
fn manifest() -> String {
    let root = read("Cargo.toml");
    let profiles = root.find("[profile.").map_or("", |at| &root[at..]);
    let speculate = env!("CARGO_MANIFEST_DIR");
    format!(
        "[package]\nname = \"foretoken-counting\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
         [workspace]\n\n\
         [dependencies]\nforetoken-speculate = {{ path = {speculate:?} }}\nmlx-sys = \"=0.7.0\"\n\n\
         [dev-dependencies]\n\
         foretoken-speculate = {{ path = {speculate:?}, features = [\"testkit\"] }}\n\n{profiles}"
    )
}

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(name)).expect("a file of the repository")
}
