//! `cargo xtask tidy`: the house rules, as far as a program can check them. Needs no MLX, and runs as a test as well.
//!
//! Each rule has a file and a test with a bad example. A rule adds findings to a `Report`; an exemption is a row in a
//! table of that rule's file, with its reason.

mod edges;
mod size;
mod source;
mod structure;
mod waits;
mod words;

use std::path::Path;

use crate::arguments::Arguments;
use crate::failure::{Context, Result, fail};
use crate::metadata::Metadata;
use crate::project::Project;
use source::Source;

pub(crate) const USAGE: &str = "tidy
    check the house rules: sizes, module docs, dependency edges, waiting calls, forbidden words";

pub(crate) fn command(project: &Project, args: Arguments) -> Result {
    args.finish(USAGE)?;
    check(project)
}

/// Prints warnings and fails with all faults.
pub(crate) fn check(project: &Project) -> Result {
    let report = Report::of(project)?;
    for warning in &report.warnings {
        println!("warning: {warning}");
    }
    if report.faults.is_empty() {
        println!("tidy: {} files, {} warnings", report.files, report.warnings.len());
        return Ok(());
    }
    fail(format!("{} faults against the house rules\n{}", report.faults.len(), report.faults.join("\n")))
}

/// What the rules found.
#[derive(Debug, Default)]
struct Report {
    files: usize,
    warnings: Vec<String>,
    faults: Vec<String>,
}

impl Report {
    fn fault(&mut self, text: String) {
        self.faults.push(text);
    }

    fn warn(&mut self, text: String) {
        self.warnings.push(text);
    }

    fn of(project: &Project) -> Result<Self> {
        let mut report = Self::default();
        let metadata = Metadata::members(project)?;
        let texts = read_texts(project.root())?;
        report.files = texts.len();
        for (path, text) in &texts {
            words::check_text(path, text, &mut report);
        }
        let sources = Source::all(&texts);
        for source in &sources {
            structure::check_source(source, &mut report);
            size::check(source, &mut report);
            words::check_source(source, &mut report);
            waits::check(source, &mut report);
        }
        structure::check_project(project, &metadata, &sources, &mut report);
        edges::check(&metadata, &mut report);
        Ok(report)
    }
}

/// Endings of the files that the text rules read.
const TEXTS: [&str; 6] = ["rs", "toml", "md", "py", "cpp", "h"];
/// Folders that are derived or fetched, and one file that a program wrote.
const SKIPPED: [&str; 6] =
    ["target", ".git", ".native", "models/fetched", "golden", "xtask/native/bindings.rs"];

/// Every text file below the root, with its path relative to it, sorted.
fn read_texts(root: &Path) -> Result<Vec<(String, String)>> {
    let mut texts = Vec::new();
    walk(root, "", &mut texts)?;
    texts.sort();
    Ok(texts)
}

fn walk(folder: &Path, inside: &str, texts: &mut Vec<(String, String)>) -> Result {
    for name in crate::tools::file_names(folder)? {
        let path = if inside.is_empty() { name.clone() } else { format!("{inside}/{name}") };
        let full = folder.join(&name);
        if SKIPPED.contains(&path.as_str()) || name == "target" {
            continue;
        }
        if full.is_dir() {
            walk(&full, &path, texts)?;
        } else if name.rsplit_once('.').is_some_and(|(_, ending)| TEXTS.contains(&ending))
            || path == ".ci/run"
        {
            let text = std::fs::read_to_string(&full).context(|| format!("reading {path}"))?;
            texts.push((path, text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The house rules hold in this tree.
    #[test]
    fn the_tree_is_tidy() {
        let report = Report::of(&Project::here().unwrap()).unwrap();
        assert!(report.files > 20);
        assert!(report.faults.is_empty(), "\n{}\n", report.faults.join("\n"));
    }

    #[test]
    fn only_written_files_are_read() {
        let folder = crate::project::scratch("walk");
        for path in
            ["a/b.rs", "a/target/c.rs", "README.md", ".ci/run", "x.bin", "golden/y.py", "models/fetched/z.md"]
        {
            crate::project::write_if_changed(&folder.join(path), b"text").unwrap();
        }
        let paths: Vec<_> = read_texts(&folder).unwrap().into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, [".ci/run", "README.md", "a/b.rs"]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
