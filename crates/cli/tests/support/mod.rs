//! Runs the binary, and makes model folders for it.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A path in the repository; a missing one says what fetches it.
pub(crate) fn repository(path: &str) -> PathBuf {
    let whole = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    assert!(
        whole.exists(),
        "{path} is missing: `cargo xtask model` fetches models, golden data is committed"
    );
    whole
}

pub(crate) fn golden(name: &str) -> PathBuf {
    repository(&format!("golden/{name}"))
}

/// Runs `foretoken` with arguments; its streams are pipes, never a terminal.
pub(crate) fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_foretoken"))
        .args(args)
        .env("OPENBLAS_NUM_THREADS", "1")
        .output()
        .expect("the binary starts")
}

/// `command --model MODEL` with more arguments.
pub(crate) fn with_model(command: &str, model: &Path, more: &[&str]) -> Output {
    let model = model.to_str().expect("test paths are text");
    run(&[&[command, "--model", model], more].concat())
}

/// The JSON of a run that must succeed.
pub(crate) fn json_of(output: Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {:?}", output.stdout))
}

/// The one error line of a run that must fail, which leaves standard output empty.
pub(crate) fn error_of(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "expected a failure");
    assert!(output.stdout.is_empty(), "{:?}", String::from_utf8_lossy(&output.stdout));
    assert!(!errors.contains("panicked"), "{errors}");
    let line = errors.lines().find(|line| line.starts_with("error: "));
    line.unwrap_or_else(|| panic!("no error line in {errors:?}")).to_owned()
}

pub(crate) fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

pub(crate) fn comma(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// The spelling of a token in [`with_tokenizer`]: two letters.
pub(crate) fn spelled(id: u32) -> String {
    [id / 16, id % 16].map(|digit| char::from(b'a' + digit as u8)).iter().collect()
}

pub(crate) fn text_of(ids: &[u32]) -> String {
    ids.iter().map(|&id| spelled(id)).collect()
}

/// A copy of a golden model that tests may change.
pub(crate) fn copy_of(name: &str) -> TempDir {
    let folder = TempDir::new().expect("a temporary folder");
    for file in ["config.json", "model.safetensors"] {
        fs::copy(golden(name).join(file), folder.path().join(file)).expect("golden files can be copied");
    }
    folder
}

pub(crate) fn write(folder: &TempDir, file: &str, content: impl AsRef<[u8]>) {
    fs::write(folder.path().join(file), content).expect("a temporary file can be written");
}

/// Sets keys of the folder's config.json.
pub(crate) fn configure(folder: &TempDir, changes: Value) {
    let text = fs::read(folder.path().join("config.json")).expect("there is a config.json");
    let mut config: Value = serde_json::from_slice(&text).expect("it is JSON");
    for (key, value) in changes.as_object().expect("changes are an object") {
        config[key] = value.clone();
    }
    write(folder, "config.json", config.to_string());
}

/// The golden model `llama` with a tokenizer of 160 two-letter tokens and a chat template.
pub(crate) fn with_tokenizer() -> TempDir {
    let folder = copy_of("llama");
    let added: Vec<Value> = (0..160)
        .map(|id| {
            json!({"id": id, "content": spelled(id), "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": false})
        })
        .collect();
    let vocab: serde_json::Map<String, Value> = (0..160).map(|id| (spelled(id), json!(id))).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true});
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
            "merges": []}});
    write(&folder, "tokenizer.json", tokenizer.to_string());
    let template =
        "{% for m in messages %}aa{{ m.content }}{% endfor %}{% if add_generation_prompt %}ab{% endif %}";
    write(&folder, "tokenizer_config.json", json!({"chat_template": template}).to_string());
    folder
}

/// A tensor of a safetensors file as numbers.
pub(crate) fn tensor(file: &Path, name: &str) -> (Vec<usize>, Vec<f32>) {
    let bytes = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("a valid file");
    let view = tensors.tensor(name).expect("the tensor is there");
    let words = view.data().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
    let numbers = match view.dtype() {
        safetensors::Dtype::F32 => words.map(f32::from_le_bytes).collect(),
        safetensors::Dtype::I32 => words.map(|b| i32::from_le_bytes(b) as f32).collect(),
        other => panic!("{name} has type {other:?}"),
    };
    (view.shape().to_vec(), numbers)
}

/// Token ids of a golden model.
pub(crate) fn golden_ids(model: &str, name: &str) -> Vec<u32> {
    let (_, numbers) = tensor(&golden(model).join("expected.safetensors"), name);
    numbers.into_iter().map(|number| number as u32).collect()
}
