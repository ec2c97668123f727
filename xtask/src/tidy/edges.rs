//! The dependency edges between our crates. Only downward edges are legal.

use super::Report;
use crate::metadata::{Dependency, Kind, Metadata, Package};

/// What a crate may use in normal and build dependencies. `draft-*` stands for every drafter.
const EDGES: [(&str, &[&str]); 11] = [
    ("cache", &[]),
    ("sample", &[]),
    ("model-base", &["cache"]),
    ("models", &["model-base", "cache"]),
    ("speculate", &["model-base", "sample", "cache"]),
    ("draft-*", &["speculate", "model-base", "sample", "cache"]),
    ("runner", &["speculate", "model-base", "sample", "cache"]),
    ("text", &[]),
    ("grammar", &["sample", "text"]),
    ("server", &["runner", "text"]),
    ("cli", &["*"]),
];
/// Packages outside `crates/` that may use everything.
const ABOVE: [&str; 1] = ["benches"];
/// What every crate's tests and examples may use as well.
const IN_TESTS: [&str; 3] = ["models", "text", "draft-*"];
/// Crates that must build without MLX.
const WITHOUT_MLX: [&str; 1] = ["text"];

const PREFIX: &str = "foretoken-";

pub(super) fn check(metadata: &Metadata, report: &mut Report) {
    for package in &metadata.packages {
        let Some(name) = package.name.strip_prefix(PREFIX) else {
            report.fault(format!("{}: package names start with {PREFIX}", package.name));
            continue;
        };
        if ABOVE.contains(&name) {
            continue;
        }
        match EDGES.iter().find(|(pattern, _)| matches(pattern, name)) {
            Some((_, allowed)) => check_package(name, allowed, package, report),
            None => report.fault(format!("{name} is not in the table of edges (xtask/src/tidy/edges.rs)")),
        }
    }
}

fn check_package(name: &str, allowed: &[&str], package: &Package, report: &mut Report) {
    for dependency in &package.dependencies {
        if WITHOUT_MLX.contains(&name) && dependency.name.starts_with("mlx") {
            report.fault(format!("{name} must build without MLX but uses {}", dependency.name));
        }
        let Some(used) = dependency.name.strip_prefix(PREFIX) else { continue };
        if !is_legal(name, allowed, used, dependency) {
            report.fault(format!("{name} may not use {used} ({:?} dependency)", dependency.kind));
        }
    }
}

fn is_legal(name: &str, allowed: &[&str], used: &str, dependency: &Dependency) -> bool {
    let named = |patterns: &[&str]| patterns.iter().any(|pattern| matches(pattern, used));
    // A crate switches its own test kit on for its tests.
    let in_tests = || named(&IN_TESTS) || name == used;
    named(allowed) || (dependency.kind == Kind::Dev && in_tests())
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(name: &str, used: &[(&str, Kind)]) -> Vec<String> {
        let dependency = |(name, kind): &(&str, Kind)| Dependency {
            name: (*name).into(),
            requirement: "*".into(),
            kind: *kind,
        };
        let package = Package {
            name: name.into(),
            folder: "p".into(),
            dependencies: used.iter().map(dependency).collect(),
        };
        let mut report = Report::default();
        check(&Metadata { packages: vec![package], target: "t".into() }, &mut report);
        report.faults
    }

    #[test]
    fn an_upward_edge() {
        let normal = |used| (used, Kind::Normal);
        assert!(faults("foretoken-model-base", &[normal("foretoken-cache"), normal("mlx-rs")]).is_empty());
        assert_eq!(faults("foretoken-cache", &[normal("foretoken-model-base")]).len(), 1);
        assert_eq!(faults("foretoken-speculate", &[normal("foretoken-draft-mtp")]).len(), 1);
        assert_eq!(
            faults("foretoken-runner", &[normal("foretoken-models"), normal("foretoken-text")]).len(),
            2
        );
        assert_eq!(faults("foretoken-draft-x", &[normal("foretoken-draft-mtp")]).len(), 1);
        assert_eq!(faults("foretoken-cache", &[("foretoken-sample", Kind::Build)]).len(), 1);
        assert!(faults("foretoken-cli", &[normal("foretoken-draft-x"), normal("foretoken-text")]).is_empty());
        assert!(faults("foretoken-benches", &[normal("foretoken-cli")]).is_empty());
    }

    #[test]
    fn tests_may_use_more() {
        let dev = |used| (used, Kind::Dev);
        assert!(
            faults("foretoken-speculate", &[dev("foretoken-models"), dev("foretoken-speculate")]).is_empty()
        );
        assert!(faults("foretoken-runner", &[dev("foretoken-draft-mtp"), dev("foretoken-text")]).is_empty());
        assert!(faults("foretoken-cache", &[dev("foretoken-cache")]).is_empty());
        assert_eq!(faults("foretoken-cache", &[("foretoken-cache", Kind::Normal)]).len(), 1);
        assert_eq!(faults("foretoken-cache", &[dev("foretoken-runner")]).len(), 1);
    }

    #[test]
    fn an_unknown_crate_and_mlx_in_text() {
        assert!(faults("foretoken-new", &[])[0].contains("not in the table"));
        assert!(faults("other", &[])[0].contains("start with foretoken-"));
        assert!(faults("foretoken-text", &[("mlx-sys", Kind::Normal)])[0].contains("without MLX"));
    }
}
