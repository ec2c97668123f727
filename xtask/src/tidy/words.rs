//! Words that must not appear: unfinished code, switched-off tests, environment reads, this machine's paths, registries.

use super::Report;
use super::source::Source;

/// In code, with the reason. Comments and literals do not count.
const CODE: [(&str, &str); 5] = [
    ("todo!", "finish it or leave it out"),
    ("unimplemented!", "finish it or leave it out"),
    ("#[ignore", "a test that does not run proves nothing"),
    ("#[should_panic", "assert the error instead"),
    ("too_many_arguments", "pass a struct instead of allowing more parameters"),
];
/// Crates that may read the environment; below them options arrive in structs.
const READS_ENVIRONMENT: [&str; 4] = ["crates/cli/", "crates/server/", "benches/", "xtask/"];
/// First parts of absolute paths that exist on one machine only.
const MACHINE_FOLDERS: [&str; 4] = ["work", "root", "home", "Users"];
/// Hosts of package registries; the name of a registry in a sentence is fine. In pieces, as this file is checked too.
const REGISTRIES: [(&str, &str); 7] = [
    ("crates", "io"),
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("npmjs", "org"),
    ("npmjs", "com"),
    ("debian", "org"),
    ("anaconda", "org"),
];

/// Rules for all texts.
pub(super) fn check_text(path: &str, text: &str, report: &mut Report) {
    let (folders, hosts) = (machine_folders(), hosts());
    for (i, line) in text.lines().enumerate() {
        let at = || format!("{path}:{}", i + 1);
        if line.ends_with([' ', '\t']) {
            report.fault(format!("{}: trailing space", at()));
        }
        if line.contains('\t') {
            report.fault(format!("{}: a tab", at()));
        }
        if let Some(folder) = folders.iter().find(|folder| names_folder(line, folder)) {
            report.fault(format!("{}: a path of one machine ({folder})", at()));
        }
        if let Some(host) = hosts.iter().find(|host| line.contains(host.as_str())) {
            report.fault(format!("{}: the host name of a registry ({host})", at()));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        report.fault(format!("{path}: no line break at the end"));
    }
}

/// Rules for Rust.
pub(super) fn check_source(source: &Source, report: &mut Report) {
    for (i, line) in source.code.lines().enumerate() {
        for (word, reason) in CODE.iter().filter(|(word, _)| line.contains(word)) {
            report.fault(format!("{}:{}: {word} ({reason})", source.path, i + 1));
        }
    }
    let may_read = READS_ENVIRONMENT.iter().any(|start| source.path.starts_with(start));
    if may_read || source.path.ends_with("/build.rs") {
        return;
    }
    for (number, line) in source.live_lines().filter(|(_, line)| reads_environment(line)) {
        let line = line.trim();
        report.fault(format!("{}:{number}: reads the environment ({line}); only the edge may", source.path));
    }
}

fn reads_environment(line: &str) -> bool {
    ["std::env", "env::var", "env::args", "env::temp_dir", "env::current_dir"]
        .iter()
        .any(|word| line.contains(word))
}

fn machine_folders() -> Vec<String> {
    MACHINE_FOLDERS.iter().map(|name| format!("/{name}/")).collect()
}

fn hosts() -> Vec<String> {
    REGISTRIES.iter().map(|(name, end)| format!("{name}.{end}")).collect()
}

/// Whether a line holds the folder at the start of a path, not inside a longer one or an address.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "./_-}~$".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_faults(text: &str) -> usize {
        let mut report = Report::default();
        check_text("a.md", text, &mut report);
        report.faults.len()
    }

    fn code_faults(path: &str, text: &str) -> usize {
        let mut report = Report::default();
        check_source(&Source::new(path, text), &mut report);
        report.faults.len()
    }

    #[test]
    fn space_tabs_and_the_last_line() {
        assert_eq!(text_faults("good\nlines\n"), 0);
        assert_eq!(text_faults("bad \n"), 1);
        assert_eq!(text_faults("a\tb\n"), 1);
        assert_eq!(text_faults("no end"), 1);
        assert_eq!(text_faults(""), 0);
    }

    #[test]
    fn a_path_of_one_machine() {
        for folder in machine_folders() {
            assert_eq!(text_faults(&format!("see {folder}me/file\n")), 1, "{folder}");
            assert_eq!(text_faults(&format!("\"{folder}me\"\n")), 1, "{folder}");
            assert_eq!(text_faults(&format!("crates{folder}src and ../..{folder}x\n")), 0, "{folder}");
        }
    }

    #[test]
    fn a_host_of_a_registry() {
        for host in hosts() {
            assert_eq!(text_faults(&format!("from {host} today\n")), 1, "{host}");
        }
        assert_eq!(text_faults("from PyPI, or Debian's packages\n"), 0);
    }

    #[test]
    fn unfinished_code_and_switched_off_tests() {
        for (word, _) in CODE {
            let line =
                if word.starts_with('#') { format!("{word}]\n") } else { format!("fn f() {{ {word}() }}\n") };
            assert_eq!(code_faults("crates/x/src/a.rs", &line), 1, "{line}");
            assert_eq!(code_faults("crates/x/tests/a.rs", &line), 1, "{line}");
            assert_eq!(code_faults("crates/x/src/a.rs", &format!("// {line}")), 0, "{line}");
        }
    }

    #[test]
    fn an_environment_read_below_the_edge() {
        let text = "fn f() { std::env::var(\"X\"); }\n";
        assert_eq!(code_faults("crates/cache/src/a.rs", text), 1);
        assert_eq!(code_faults("crates/cache/src/a.rs", "use std::env;\n"), 1);
        for path in
            ["crates/cli/src/a.rs", "xtask/src/a.rs", "crates/cache/build.rs", "crates/cache/tests/a.rs"]
        {
            assert_eq!(code_faults(path, text), 0, "{path}");
        }
        assert_eq!(
            code_faults("crates/cache/src/a.rs", "const D: &str = env!(\"CARGO_MANIFEST_DIR\");\n"),
            0
        );
    }
}
