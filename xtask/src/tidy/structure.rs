//! Structure: module docs, documents at the root, manifests that share lints and pin MLX, and enough tests.

use std::collections::BTreeMap;

use super::Report;
use super::source::Source;
use crate::metadata::Metadata;
use crate::project::Project;

const DOCUMENTS: [&str; 6] =
    ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE-MIT", "LICENSE-APACHE"];
/// A third to a half of the lines is the aim.
const TEST_SHARE: usize = 30;
/// The versions that fit together; another pair would link another MLX.
const PINS: [(&str, &str); 2] = [("mlx-rs", "=0.33.0"), ("mlx-sys", "=0.7.0")];

pub(super) fn check_source(source: &Source, report: &mut Report) {
    if !source.text.starts_with("//! ") {
        report.fault(format!("{}: the first line must be `//! ` and say what belongs here", source.path));
    }
}

pub(super) fn check_project(project: &Project, metadata: &Metadata, sources: &[Source], report: &mut Report) {
    for name in DOCUMENTS.iter().filter(|name| !project.path(name).is_file()) {
        report.fault(format!("{name} is missing"));
    }
    check_pins(metadata, report);
    for package in &metadata.packages {
        let text = std::fs::read_to_string(package.folder.join("Cargo.toml")).unwrap_or_default();
        check_lints(&package.name, &text, report);
    }
    check_test_share(sources, report);
}

fn check_pins(metadata: &Metadata, report: &mut Report) {
    for package in &metadata.packages {
        for dependency in &package.dependencies {
            let pin = PINS.iter().find(|(name, _)| *name == dependency.name);
            let found = &dependency.requirement;
            if let Some((name, expected)) = pin.filter(|(_, expected)| expected != found) {
                report.fault(format!("{}: {name} is {found}, must be {expected}", package.name));
            }
        }
    }
}

fn check_lints(package: &str, manifest: &str, report: &mut Report) {
    let lines: Vec<&str> = manifest.lines().map(str::trim).collect();
    if !lines.windows(2).any(|pair| pair[0] == "[lints]" && pair[1] == "workspace = true") {
        report.fault(format!("{package}: Cargo.toml lacks `[lints]` `workspace = true`"));
    }
}

fn check_test_share(sources: &[Source], report: &mut Report) {
    let mut crates: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for source in sources {
        if let Some(name) = source.krate() {
            let (tests, all) = crates.entry(name).or_default();
            *tests += source.is_test.iter().filter(|test| **test).count();
            *all += source.is_test.len();
        }
    }
    for (name, (tests, all)) in crates {
        let share = 100 * tests / all.max(1);
        if share < TEST_SHARE {
            report.warn(format!(
                "crates/{name}: {share} % of the lines are tests, better {TEST_SHARE} % or more"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Dependency, Kind, Package};

    #[test]
    fn a_file_without_module_docs() {
        let faults = |text: &str| {
            let mut report = Report::default();
            check_source(&Source::new("a.rs", text), &mut report);
            report.faults.len()
        };
        assert_eq!(faults("//! What belongs here.\n"), 0);
        for bad in ["", "use a;\n//! Late.\n", "/// Not a module's.\nfn f() {}\n", "//!\n"] {
            assert_eq!(faults(bad), 1, "{bad:?}");
        }
    }

    #[test]
    fn a_loose_pin() {
        let dependency = |name: &str, requirement: &str| Dependency {
            name: name.into(),
            requirement: requirement.into(),
            kind: Kind::Normal,
        };
        let package = Package {
            name: "p".into(),
            folder: "p".into(),
            dependencies: vec![
                dependency("mlx-rs", "^0.33.0"),
                dependency("mlx-sys", "=0.7.0"),
                dependency("x", "*"),
            ],
        };
        let mut report = Report::default();
        check_pins(&Metadata { packages: vec![package], target: "t".into() }, &mut report);
        assert_eq!(report.faults, ["p: mlx-rs is ^0.33.0, must be =0.33.0"]);
    }

    #[test]
    fn a_manifest_with_lints_of_its_own() {
        let faults = |text: &str| {
            let mut report = Report::default();
            check_lints("p", text, &mut report);
            report.faults.len()
        };
        assert_eq!(faults("[package]\n\n[lints]\nworkspace = true\n"), 0);
        assert_eq!(faults("[package]\nversion.workspace = true\n"), 1);
        assert_eq!(faults("[lints.rust]\nunused = \"allow\"\n"), 1);
    }

    #[test]
    fn a_crate_with_few_tests() {
        let share = |tests: usize| {
            let sources = [
                Source::new("crates/x/src/a.rs", &"//! a\n".repeat(100 - tests)),
                Source::new("crates/x/tests/a.rs", &"//! a\n".repeat(tests)),
            ];
            let mut report = Report::default();
            check_test_share(&sources, &mut report);
            report.warnings.len()
        };
        assert_eq!((share(29), share(30)), (1, 0));
    }

    #[test]
    fn a_missing_document() {
        let folder = crate::project::scratch("documents");
        std::fs::write(folder.join("README.md"), "x").unwrap();
        let mut report = Report::default();
        let metadata = Metadata { packages: vec![], target: "t".into() };
        check_project(&Project::new(&folder), &metadata, &[], &mut report);
        assert_eq!(report.faults.len(), DOCUMENTS.len() - 1);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
