//! Waiting calls. While serving, only the round, the plain decoder and prefill may wait for an array.

use super::Report;
use super::source::{Source, is_word};

/// Calls that wait, or start an evaluation, or read an array on the host. A star ends a prefix.
const CALLS: [&str; 12] = [
    "eval",
    "async_eval",
    "item",
    "item_*",
    "try_item",
    "try_item_*",
    "as_slice",
    "try_as_slice",
    "to_vec_*",
    "eval_params",
    "synchronize",
    "block_on",
];

/// Who may make such a call outside tests: a file or a folder, the calls ("*" for all), and the reason.
const ALLOWED: [(&str, &[&str], &str); 13] = [
    ("crates/speculate/src/round/", &["*"], "the one wait of a round"),
    ("crates/speculate/src/plain.rs", &["*"], "plain decoding reads each token once"),
    ("crates/runner/src/prefill.rs", &["*"], "prefill waits once for each chunk"),
    ("crates/runner/src/score.rs", &["*"], "scoring is not serving: it reads all logits"),
    ("crates/model-base/src/weights/", &["*"], "loading weights is not serving"),
    ("crates/models/src/", &["eval"], "loading a model evaluates its weights before the first request"),
    ("crates/draft-mtp/src/load.rs", &["*"], "loading a head is not serving"),
    ("crates/cache/src/testkit/", &["*"], "the test kit is part of tests"),
    ("crates/speculate/src/testkit/", &["*"], "the test kit is part of tests"),
    ("crates/cache/src/", &["async_eval"], "a cache may start an evaluation to bound memory"),
    ("crates/draft-", &["async_eval"], "a drafter may start an evaluation to bound memory"),
    ("crates/cli/src/machine.rs", &["*"], "inspecting the machine is not serving"),
    ("benches/", &["*"], "a benchmark that does not wait measures nothing"),
];
/// The rule is about crates that hold arrays.
const OUTSIDE: [&str; 3] = ["xtask/", "crates/text/", "crates/grammar/"];

pub(super) fn check(source: &Source, report: &mut Report) {
    let path = &source.path;
    if OUTSIDE.iter().any(|start| path.starts_with(start)) {
        return;
    }
    for (number, line) in source.live_lines() {
        for call in calls(line).filter(|call| !is_allowed(path, call)) {
            report
                .fault(format!("{path}:{number}: `{call}` waits for an array (see xtask/src/tidy/waits.rs)"));
        }
    }
}

fn is_allowed(path: &str, call: &str) -> bool {
    let rows = ALLOWED.iter().filter(|(start, ..)| path.starts_with(start));
    rows.flat_map(|(_, calls, _)| calls.iter()).any(|allowed| matches(allowed, call))
}

/// The waiting calls in a line of blanked code: a known name, perhaps a turbofish, a parenthesis.
fn calls(line: &str) -> impl Iterator<Item = &str> {
    let starts = line.char_indices().filter(|(at, c)| {
        (c.is_ascii_alphabetic() || *c == '_') && (*at == 0 || !is_word(line.as_bytes()[at - 1]))
    });
    starts.filter_map(|(at, _)| {
        let length = line[at..].bytes().take_while(|byte| is_word(*byte)).count();
        let (name, rest) = line[at..].split_at(length);
        let called = rest.starts_with('(') || rest.starts_with("::<");
        let defined = line[..at].trim_end().ends_with("fn");
        (called && !defined && CALLS.iter().any(|call| matches(call, name))).then_some(name)
    })
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

    fn faults(path: &str, text: &str) -> usize {
        let mut report = Report::default();
        check(&Source::new(path, text), &mut report);
        report.faults.len()
    }

    #[test]
    fn a_wait_in_the_wrong_file() {
        let bad = [
            "a.eval()?;",
            "transforms::eval([&a])?;",
            "eval([&a])?;",
            "a.item_exact::<f32>()",
            "a.try_item::<u32>()?;",
            "let s = a.as_slice::<f32>();",
            "a.contiguous()?.to_vec_exact::<u32>()?;",
            "mlx_rs::transforms::async_eval([&a])?;",
        ];
        for line in bad {
            let text = format!("fn f() {{\n    {line}\n}}\n");
            assert_eq!(faults("crates/sample/src/draw.rs", &text), 1, "{line}");
            assert_eq!(faults("crates/speculate/src/round/judge.rs", &text), 0, "{line}");
        }
    }

    #[test]
    fn what_only_looks_like_a_wait() {
        let good = [
            "// a.eval()",
            "let text = \".eval()\";",
            "fn eval(&self) {}",
            "let item = items.next();",
            "retrieval(x);",
            "v.to_vec();",
            "medieval::<u8>()",
        ];
        for line in good {
            assert_eq!(faults("crates/sample/src/draw.rs", &format!("{line}\n")), 0, "{line}");
        }
        let test = "#[cfg(test)]\nmod tests {\n    fn f() { a.eval(); }\n}\n";
        assert_eq!(faults("crates/sample/src/draw.rs", test), 0);
    }

    #[test]
    fn caches_and_drafters_may_start_but_not_wait() {
        for path in ["crates/cache/src/kv.rs", "crates/draft-mtp/src/seq.rs"] {
            assert_eq!(faults(path, "async_eval([&a])?;\n"), 0);
            assert_eq!(faults(path, "eval([&a])?;\n"), 1);
        }
    }

    #[test]
    fn every_exemption_has_a_reason() {
        for (path, calls, reason) in ALLOWED {
            assert!(!calls.is_empty() && reason.len() > 10, "{path}");
        }
    }
}
