//! Sizes: short files, short functions, few parameters. Tests may be as long as they need to be.

use super::Report;
use super::source::Source;

/// Lines outside tests; aim at 100 to 350.
const FILE: (usize, usize) = (500, 700);
/// Lines of one function; aim at 25.
const FUNCTION: (usize, usize) = (60, 120);
/// Clippy allows as many.
const PARAMETERS: usize = 7;
/// A crate root holds documentation, modules and re-exports.
const ROOT_CODE: usize = 120;

/// Files of flat tables that may be longer, with the reason.
const TABLES: [(&str, &str); 0] = [];

pub(super) fn check(source: &Source, report: &mut Report) {
    let path = &source.path;
    let lines = source.live_lines().count();
    if lines > FILE.1 && !TABLES.iter().any(|(table, _)| table == path) {
        report.fault(format!("{path}: {lines} lines outside tests, at most {}", FILE.1));
    } else if lines > FILE.0 {
        report.warn(format!("{path}: {lines} lines outside tests, better below {}", FILE.0));
    }
    let code = source.live_lines().filter(|(_, line)| !line.trim().is_empty()).count();
    if path.ends_with("/src/lib.rs") && code > ROOT_CODE {
        report.fault(format!("{path}: {code} lines of code in a crate root, at most {ROOT_CODE}"));
    }
    for function in source.functions.iter().filter(|function| !source.is_test[function.line - 1]) {
        let (at, name) = (format!("{path}:{}", function.line), &function.name);
        if function.lines > FUNCTION.1 {
            report.fault(format!("{at}: {name} has {} lines, at most {}", function.lines, FUNCTION.1));
        } else if function.lines > FUNCTION.0 {
            report.warn(format!("{at}: {name} has {} lines, better below {}", function.lines, FUNCTION.0));
        }
        if function.parameters > PARAMETERS {
            report
                .fault(format!("{at}: {name} has {} parameters, at most {PARAMETERS}", function.parameters));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> (usize, usize) {
        let mut report = Report::default();
        check(&Source::new(path, text), &mut report);
        (report.warnings.len(), report.faults.len())
    }

    #[test]
    fn long_files() {
        let lines = |count: usize| "// a\n".repeat(count);
        assert_eq!(found("crates/x/src/a.rs", &lines(500)), (0, 0));
        assert_eq!(found("crates/x/src/a.rs", &lines(501)), (1, 0));
        assert_eq!(found("crates/x/src/a.rs", &lines(701)), (0, 1));
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", lines(800));
        assert_eq!(found("crates/x/src/a.rs", &tests), (0, 0));
        assert_eq!(found("crates/x/tests/a.rs", &lines(800)), (0, 0));
    }

    #[test]
    fn long_functions() {
        let function = |lines: usize| format!("fn f() {{\n{}}}\n", "g();\n".repeat(lines - 2));
        assert_eq!(found("a.rs", &function(60)), (0, 0));
        assert_eq!(found("a.rs", &function(61)), (1, 0));
        assert_eq!(found("a.rs", &function(121)), (0, 1));
        assert_eq!(found("a.rs", &format!("#[cfg(test)]\nmod t {{\n{}}}\n", function(121))), (0, 0));
    }

    #[test]
    fn many_parameters() {
        let function = |count: usize| format!("fn f({}) {{}}\n", "a: (u8, u8), ".repeat(count));
        assert_eq!(found("a.rs", &function(7)), (0, 0));
        assert_eq!(found("a.rs", &function(8)), (0, 1));
    }

    #[test]
    fn code_in_a_crate_root() {
        let text = "mod a;\n".repeat(121);
        assert_eq!(found("crates/x/src/lib.rs", &text), (0, 1));
        assert_eq!(found("crates/x/src/other.rs", &text), (0, 0));
        assert_eq!(found("crates/x/src/lib.rs", &"//! Words.\n".repeat(300)), (0, 0));
    }
}
