//! Everything that can be wrong with files and options: one clear line, a non-zero exit, never a panic.

mod support;

use std::fs;

use serde_json::json;
use support::*;

const FAILED: Option<i32> = Some(1);
const USAGE: Option<i32> = Some(2);

/// The error of a short request to a folder.
fn error(folder: &std::path::Path, more: &[&str]) -> String {
    failure(folder, more, FAILED)
}

/// The error of a short request that the command line itself is to blame for.
fn usage(folder: &std::path::Path, more: &[&str]) -> String {
    failure(folder, more, USAGE)
}

fn failure(folder: &std::path::Path, more: &[&str], code: Option<i32>) -> String {
    let output = with_model("generate", folder, &[&["--max-tokens", "2"], more].concat());
    assert_eq!(output.status.code(), code, "{more:?}");
    error_of(&output)
}

fn says(error: &str, words: &[&str]) {
    for word in words {
        assert!(error.contains(word), "{word:?} in {error:?}");
    }
}

#[test]
fn paths_that_lead_nowhere() {
    let empty = tempfile::TempDir::new().expect("a temporary folder");
    says(&error(&empty.path().join("gone"), &["--prompt-ids", "1"]), &["gone", "config.json"]);
    says(&error(empty.path(), &["--prompt-ids", "1"]), &["config.json"]);
    let model = golden("llama");
    says(
        &error(&model, &["--prompt-ids", "1", "--draft", "gone.safetensors"]),
        &["gone.safetensors", "--draft"],
    );
    says(&error(&model, &["--prompt-ids", "1", "--drafter", "mtp"]), &["--draft FILE"]);
}

#[test]
fn heads_that_no_group_of_packed_numbers_fits() {
    let model = golden("llama");
    says(&error(&model, &["--prompt-ids", "1", "--kv-bits", "8"]), &["--kv-bits", "multiple of 32", "16"]);
}

#[test]
fn folders_that_hold_something_else() {
    let folder = copy_of("llama");
    configure(&folder, json!({"model_type": "mystery"}));
    says(&error(folder.path(), &["--prompt-ids", "1"]), &["mystery", "llama"]);

    let folder = copy_of("llama");
    write(&folder, "config.json", "{");
    says(&error(folder.path(), &["--prompt-ids", "1"]), &["config.json"]);

    let folder = copy_of("llama");
    configure(&folder, json!({"num_hidden_layers": 5}));
    says(&error(folder.path(), &["--prompt-ids", "1"]), &["layers.4"]);
}

#[test]
fn truncated_and_hostile_weights() {
    let whole = fs::read(golden("llama").join("model.safetensors")).expect("golden weights");
    for length in [0, 4, 8, 100, whole.len() / 2, whole.len() - 1] {
        let folder = copy_of("llama");
        write(&folder, "model.safetensors", &whole[..length]);
        says(&error(folder.path(), &["--prompt-ids", "1"]), &["model.safetensors"]);
    }
    let folder = copy_of("llama");
    write(&folder, "model.safetensors", [&u64::MAX.to_le_bytes()[..], b"{}"].concat());
    says(&error(folder.path(), &["--prompt-ids", "1"]), &["model.safetensors"]);

    write(&folder, "model.gguf", b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff");
    says(&error(&folder.path().join("model.gguf"), &["--prompt-ids", "1"]), &["model.gguf"]);
}

#[test]
fn heads_that_do_not_fit() {
    for head in ["mtp-seq", "mtp-single"] {
        let head = repository(&format!("models/smollm2-135m-mtp/{head}.safetensors"));
        let head = head.to_str().expect("text");
        says(&error(&golden("llama"), &["--prompt-ids", "1", "--draft", head]), &["mtp-", "64", "576"]);
    }
    let weights = golden("llama").join("model.safetensors");
    let weights = weights.to_str().expect("text");
    says(&error(&golden("llama"), &["--prompt-ids", "1", "--draft", weights]), &["model.safetensors"]);
    let folder = repository("models/smollm2-135m-mtp");
    let folder = folder.to_str().expect("text");
    says(&error(&golden("llama"), &["--prompt-ids", "1", "--draft", folder]), &["mtp-seq", "mtp-single"]);
}

#[test]
fn a_head_in_the_models_folder_is_found_unless_it_is_not_wanted() {
    let folder = copy_of("llama");
    let head = fs::read(repository("models/smollm2-135m-mtp/mtp-seq.safetensors")).expect("the head");
    write(&folder, "mtp.safetensors", head);
    says(&error(folder.path(), &["--prompt-ids", "1"]), &["mtp.safetensors", "64", "576"]);
    let without = ["--prompt-ids", "1", "--max-tokens", "2", "--draft", "none"];
    assert!(with_model("generate", folder.path(), &without).status.success());
}

#[test]
fn prompts_that_cannot_be_served() {
    let model = golden("llama");
    says(&usage(&model, &["--prompt-ids", ""]), &["empty"]);
    says(&usage(&model, &["--prompt-ids", "1,160"]), &["160", "vocabulary"]);
    let long = comma(&[1; 600]);
    says(&usage(&model, &["--prompt-ids", &long]), &["600", "512"]);
    let folder = with_tokenizer();
    says(&error(folder.path(), &["--raw", "--prompt", "not in this vocabulary"]), &["encode"]);
    let empty = with_model("generate", folder.path(), &["--prompt", ""]);
    assert_eq!(empty.status.code(), USAGE);
    says(&error_of(&empty), &["empty"]);
    let score = with_model("score", &model, &["--prompt-ids", ""]);
    says(&error_of(&score), &["empty"]);
}

#[test]
fn h68_the_context_is_a_limit_that_is_named() {
    let folder = copy_of("llama");
    configure(&folder, json!({"max_position_embeddings": 32}));
    let ask = |length: usize| {
        let prompt = comma(&vec![1; length]);
        with_model("generate", folder.path(), &["--prompt-ids", &prompt, "--max-tokens", "100", "--json"])
    };
    for (length, room) in [(30, 2), (31, 1)] {
        let printed = json_of(ask(length));
        assert_eq!((ids(&printed["ids"]).len(), printed["finish_reason"].as_str()), (room, Some("length")));
    }
    for length in [32, 33, 5000] {
        says(&error_of(&ask(length)), &[&length.to_string(), "32"]);
    }
}

#[test]
fn options_out_of_range_are_usage_errors() {
    let table: [(&[&str], &str); 14] = [
        (&["--temperature", "-1"], "temperature"),
        (&["--temperature", "nan"], "temperature"),
        (&["--temperature", "hot"], "temperature"),
        (&["--top-p", "1.5"], "top"),
        (&["--top-p", "-0.1"], "top"),
        (&["--min-p", "2"], "min"),
        (&["--top-k", "-3"], "top-k"),
        (&["--repeat-penalty", "0"], "repeat"),
        (&["--repeat-last-n", "-2"], "repeat"),
        (&["--seed", "abc"], "seed"),
        (&["--depth", "deep"], "depth"),
        (&["--stop", ""], "stop"),
        (&["--max-tokens", "-1"], "max-tokens"),
        (&["--drafter", "other"], "mtp, ngram, model, block"),
    ];
    for (args, word) in table {
        let output = with_model("generate", &golden("llama"), &[&["--prompt-ids", "1"], args].concat());
        assert_eq!(output.status.code(), USAGE, "{args:?}");
        says(&error_of(&output), &[word]);
    }
}

#[test]
fn a_gpu_that_is_not_there_is_named() {
    let machine = json_of(run(&["inspect", "--json"]));
    let gpu = &machine["machine"]["devices"][1];
    assert_eq!(gpu["name"], "gpu");
    if gpu["available"] == false {
        says(&error(&golden("llama"), &["--prompt-ids", "1", "--device", "gpu"]), &["--device cpu"]);
    }
    let cpu = with_model(
        "generate",
        &golden("llama"),
        &["--prompt-ids", "1", "--device", "cpu", "--max-tokens", "1"],
    );
    assert!(cpu.status.success());
}

#[test]
fn logits_that_cannot_be_written_are_an_error() {
    let output = with_model(
        "score",
        &golden("llama"),
        &["--prompt-ids", "1,2", "--logits", "/nowhere/at/all.safetensors"],
    );
    says(&error_of(&output), &["/nowhere/at", "--logits", "make it"]);
}

#[test]
fn a_configuration_that_is_no_object_names_its_file_and_the_next_step() {
    let folder = copy_of("llama");
    write(&folder, "config.json", "[]");
    says(&error(folder.path(), &["--prompt-ids", "1"]), &["config.json", "an object", "fetch"]);
    let empty = tempfile::TempDir::new().expect("a temporary folder");
    says(&error(empty.path(), &["--prompt-ids", "1"]), &["config.json", "check the path"]);
}

#[test]
fn a_broken_tokenizer_is_no_reason_to_refuse_ids() {
    let folder = with_tokenizer();
    write(&folder, "tokenizer.json", "{");
    let ask = |more: &[&str]| with_model("generate", folder.path(), &[&["--max-tokens", "3"], more].concat());
    let output = ask(&["--prompt-ids", "1,2", "--json"]);
    let warning = String::from_utf8_lossy(&output.stderr).into_owned();
    says(&warning, &["warning", "tokenizer.json"]);
    let printed = json_of(output);
    assert!(printed["text"].is_null() && ids(&printed["ids"]).len() == 3);
    for more in [&["--prompt", "aa"][..], &["--prompt-ids", "1", "--stop", "x"]] {
        says(&error_of(&ask(more)), &["tokenizer.json"]);
    }
}

#[test]
fn a_template_that_says_nothing_is_named() {
    let folder = with_tokenizer();
    write(
        &folder,
        "tokenizer_config.json",
        json!({"chat_template": "{% if false %}x{% endif %}"}).to_string(),
    );
    says(&error(folder.path(), &["--prompt", "aa"]), &["template", "nothing", "--raw"]);
}

#[test]
fn the_command_lines_own_faults_have_one_exit_code() {
    let model = golden("llama");
    let cases: [(&[&str], &str); 8] = [
        (&["--logprobs", "9999", "--json"], "logprobs"),
        (&["--logit-bias", "500=1"], "logit_bias"),
        (&["--logit-bias", "3=nan"], "logit_bias"),
        (&["--logit-bias", "3=1", "--logit-bias", "3=2"], "logit_bias"),
        (&["--ban-ids", "400"], "banned"),
        (&["--ban-ids", ""], "banned"),
        (&["--min-tokens", "3"], "--min-tokens"),
        (&["--rule", "other"], "--rule"),
    ];
    for (more, word) in cases {
        says(&usage(&model, &[&["--prompt-ids", "1"], more].concat()), &[word]);
    }
}

#[test]
fn grammars_that_cannot_be_used_are_clear_errors() {
    let folder = with_tokenizer();
    configure(&folder, json!({"eos_token_id": 159}));
    let file = |name: &str, text: &str| {
        write(&folder, name, text);
        folder.path().join(name).to_str().expect("text").to_owned()
    };
    let ask = |option: &str, file: &str| error(folder.path(), &["--prompt-ids", "1", option, file]);
    says(&ask("--json-schema", "gone.json"), &["--json-schema", "gone.json"]);
    says(&ask("--json-schema", &file("s.json", "{")), &["JSON schema", "cannot be read"]);
    says(&ask("--json-schema", &file("t.json", "{\"type\":\"x\"}")), &["JSON schema", "cannot be compiled"]);
    says(&ask("--grammar", &file("g.lark", "start: nothing")), &["Lark grammar"]);
    says(&ask("--grammar", &file("g.regex", "(")), &["regular expression"]);
    // A model without a tokenizer has no texts to match.
    let schema = file("ok.json", "{}");
    says(&error(&golden("llama"), &["--prompt-ids", "1", "--json-schema", &schema]), &["tokenizer"]);
}
