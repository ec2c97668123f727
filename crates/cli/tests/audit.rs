//! `foretoken audit` on small models: what it prints and how it ends.

mod support;

use support::*;

const QUICK: [&str; 6] = ["--max-tokens", "24", "--depths", "1,5", "--draws", "60"];

fn audit(more: &[&str]) -> std::process::Output {
    with_model("audit", &golden("llama"), &[&QUICK[..], more].concat())
}

#[test]
fn a_lossless_drafter_passes_with_a_table_for_people() {
    let output = audit(&["--drafter", "ngram"]);
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{table}{}", String::from_utf8_lossy(&output.stderr));
    for word in
        ["prompt", "greedy", "seed 0", "equal", "distribution", "holds", "nothing beyond rounding", "ngram"]
    {
        assert!(table.contains(word), "{word} in {table}");
    }
    // Two prompts, a greedy and a seeded answer, two depths.
    assert!(table.contains("8 of 8 answers equal"), "{table}");
}

#[test]
fn a_program_reads_the_same_as_json() {
    let printed = json_of(audit(&["--json", "--prompt-ids", "3,1,4,1,5", "--seeds", "2"]));
    assert_eq!(printed["clean"], true);
    let all = printed["comparisons"].as_array().expect("a list");
    assert_eq!(all.len(), 6);
    assert!(all.iter().all(|one| one["result"] == "equal" && one["parting"].is_null()));
    let law = &printed["distribution"];
    assert_eq!(law["draws"], 60);
    assert!(law["total_variation"].as_f64() <= law["bound"].as_f64());
    assert!(law["visible_difference"].as_f64() > law["bound"].as_f64());
}

#[test]
fn wrong_lines_are_usage_errors() {
    for (more, word) in [
        (&["--draft", "none"][..], "--draft none"),
        (&["--depths", "99"], "--depths"),
        (&["--prompt-ids", "999"], "vocabulary"),
        (&["--prompt", "a text"], "tokenizer"),
    ] {
        let output = with_model("audit", &golden("llama"), &[&["--draws", "0"], more].concat());
        assert_ne!(output.status.code(), Some(0), "{more:?}");
        let error = error_of(&output);
        assert!(error.contains(word), "{word} in {error}");
    }
}
