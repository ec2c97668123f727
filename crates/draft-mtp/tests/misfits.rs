//! Heads that do not fit their target: one clear error each, never a panic, nothing half loaded.

mod common;

use std::{fs, path::Path};

use common::{STYLES, random_head, repository, shipped, smollm2, tiny};
use foretoken_draft_mtp::{drafter, find_head, load};
use foretoken_model_base::{LoadOptions, Model, Weights};
use mlx_rs::Array;

type Tensors = Vec<(String, Array)>;

/// The error of a head on the tiny target (width 32, 4/2 heads of size 8, 4 layers, vocabulary 64).
fn refusal(model: &dyn Model, tensors: Tensors) -> String {
    let weights = Weights::from_arrays(tensors, LoadOptions::cpu());
    let error = drafter(weights, model).err().expect("the head must not fit").to_string();
    println!("{error}");
    assert!(error.contains("--draft none"), "the error names a next step: {error}");
    error
}

fn replace(tensors: &mut Tensors, name: &str, array: Array) {
    let slot = tensors.iter_mut().find(|(n, _)| n == name).expect("the head has it");
    slot.1 = array;
}

fn zeros(shape: &[i32]) -> Array {
    Array::from_slice(&vec![0f32; shape.iter().product::<i32>() as usize], shape)
}

#[test]
fn both_styles_at_once_or_neither_are_refused() {
    let model = tiny();
    let mut both = random_head("single", model.facts(), 1);
    both.push(("fc.weight".into(), zeros(&[32, 64])));
    let error = refusal(model.as_ref(), both);
    assert!(error.contains("fc.weight") && error.contains("got both"), "{error}");

    let mut neither = random_head("seq", model.facts(), 1);
    neither.retain(|(name, _)| name != "fc.weight");
    assert!(refusal(model.as_ref(), neither).contains("got neither"));
}

#[test]
fn every_missing_tensor_is_named() {
    let model = tiny();
    for style in STYLES {
        let whole = random_head(style, model.facts(), 1);
        for (name, _) in &whole {
            let mark = name == "fc.weight" || name == "pre_projection.weight";
            let rest = whole.iter().filter(|(n, _)| n != name).cloned().collect();
            let error = refusal(model.as_ref(), rest);
            assert!(mark || error.contains(name), "{name}: {error}");
        }
    }
}

#[test]
fn every_misshapen_tensor_is_named_with_both_shapes() {
    let model = tiny();
    for style in STYLES {
        let whole = random_head(style, model.facts(), 1);
        for (name, array) in whole.iter().filter(|(name, _)| name != "draft_token_ids") {
            let mut shape = array.shape().to_vec();
            *shape.last_mut().expect("ranked") += 1;
            let mut wrong = whole.clone();
            replace(&mut wrong, name, zeros(&shape));
            let error = refusal(model.as_ref(), wrong);
            assert!(error.contains(name), "{name}: {error}");
            assert!(error.contains(&format!("{shape:?}")), "{name}: {error}");
        }
    }
}

#[test]
fn draft_ids_must_ascend_below_the_vocabulary() {
    let model = tiny();
    let cases: [(&str, Array, &str); 7] = [
        ("unsorted", Array::from_slice(&[1, 3, 2], &[3]), "3 before 2"),
        ("twice the same", Array::from_slice(&[1, 3, 3], &[3]), "3 before 3"),
        ("too large", Array::from_slice(&[1, 3, 64], &[3]), "64"),
        ("negative", Array::from_slice(&[-1, 3], &[2]), "-1"),
        ("empty", Array::from_slice::<i32>(&[], &[0]), "at least one"),
        ("not a list", Array::from_slice(&[1, 2], &[1, 2]), "[1, 2]"),
        ("floats", Array::from_slice(&[1f32, 2.0], &[2]), "F32"),
    ];
    for style in STYLES {
        for (case, ids, says) in &cases {
            let mut head = random_head(style, model.facts(), 1);
            replace(&mut head, "draft_token_ids", ids.clone());
            let error = refusal(model.as_ref(), head);
            assert!(error.contains("draft_token_ids") && error.contains(says), "{style}, {case}: {error}");
        }
    }
}

#[test]
fn a_head_with_more_layers_than_the_target_is_refused() {
    let model = tiny();
    for layer in ["4", "18446744073709551615"] {
        let mut head = random_head("single", model.facts(), 1);
        head.push((format!("layers.{layer}.input_layernorm.weight"), zeros(&[32])));
        assert!(refusal(model.as_ref(), head).contains("1 to 4 layers"));
    }
    let mut none = random_head("seq", model.facts(), 1);
    none.retain(|(name, _)| !name.starts_with("layers."));
    assert!(refusal(model.as_ref(), none).contains("got 0"));
}

#[test]
fn an_unused_tensor_is_refused() {
    let model = tiny();
    for (style, extra) in STYLES.into_iter().flat_map(|s| [(s, "lm_head.weight"), (s, "fc.bias")]) {
        let mut head = random_head(style, model.facts(), 1);
        head.push((extra.into(), zeros(&[32])));
        assert!(refusal(model.as_ref(), head).contains(extra));
    }
}

#[test]
fn integer_weights_are_refused() {
    let model = tiny();
    let mut head = random_head("seq", model.facts(), 1);
    replace(&mut head, "norm.weight", Array::from_slice(&[1i32; 32], &[32]));
    assert!(refusal(model.as_ref(), head).contains("norm.weight"));
}

#[test]
fn a_head_for_another_target_is_refused_by_its_file() {
    let (model, file) = (tiny(), repository("models/smollm2-135m-mtp/mtp-seq.safetensors"));
    let error = load(&file, model.as_ref()).err().expect("widths differ").to_string();
    assert!(error.contains("mtp-seq.safetensors") && error.contains("576"), "{error}");
}

#[test]
fn broken_files_are_refused() {
    let (model, folder) = (tiny(), tempfile::tempdir().expect("a folder"));
    let whole = fs::read(repository("models/smollm2-135m-mtp/mtp-single.safetensors")).expect("readable");
    let mut long_header = whole[..1000].to_vec();
    long_header[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let cases: [(&str, &[u8]); 6] = [
        ("empty", b""),
        ("short", &whole[..5]),
        ("header", &whole[..200]),
        ("data", &whole[..whole.len() - 1]),
        ("long", &long_header),
        ("text", b"not a head at all, only text"),
    ];
    for (case, bytes) in cases {
        let path = folder.path().join(format!("{case}.safetensors"));
        fs::write(&path, bytes).expect("writable");
        let error = load(&path, model.as_ref()).err().expect("a broken file").to_string();
        println!("{error}");
        assert!(error.contains(&format!("{case}.safetensors")), "{case}: {error}");
    }
    let error = load(Path::new("nowhere.safetensors"), model.as_ref()).err().expect("no file").to_string();
    assert!(error.contains("nowhere.safetensors"), "{error}");
}

#[test]
fn a_folder_gives_its_one_head() {
    let (model, folder) = (tiny(), tempfile::tempdir().expect("a folder"));
    assert_eq!(find_head(folder.path()).expect("readable"), None);
    let error = load(folder.path(), model.as_ref()).err().expect("no head").to_string();
    assert!(error.contains("no such file"), "{error}");

    let save = |name: &str, style: &str| {
        let tensors = random_head(style, model.facts(), 1);
        let path = folder.path().join(name);
        Array::save_safetensors(tensors.iter().map(|(n, a)| (n.as_str(), a)), None, &path).expect("saved");
        path
    };
    save("model.safetensors", "seq");
    let head = save("mtp-tiny.safetensors", "seq");
    assert_eq!(find_head(folder.path()).expect("readable"), Some(head));
    assert_eq!(load(folder.path(), model.as_ref()).expect("fits").facts().name, "mtp-seq");

    save("mtp.safetensors", "single");
    let error = load(folder.path(), model.as_ref()).err().expect("which one?").to_string();
    assert!(error.contains("mtp-tiny.safetensors, mtp.safetensors"), "{error}");
}

#[test]
fn the_shipped_heads_state_their_facts() {
    let model = smollm2();
    for (style, look_ahead) in STYLES.into_iter().zip([0, 1]) {
        let facts = shipped(style, model.as_ref()).facts().clone();
        assert_eq!(facts.name, format!("mtp-{style}"));
        assert_eq!((facts.look_ahead, facts.max_depth, facts.needs_hidden), (look_ahead, 16, true));
    }
}

#[test]
fn a_single_position_head_refuses_layers_that_do_not_show_every_row_as_it_came() {
    use foretoken_models::testkit::{hyb, tiny_window};
    tiny();
    // Layers take turns: the last one is full, the one before it is not.
    for (model, kind) in [(tiny_window(1), "sliding window"), (hyb(1), "recurrent")] {
        let model = model.expect("a test model builds");
        let single = random_head("single", model.facts(), 1);
        let error = refusal(model.as_ref(), single);
        for word in ["mtp-single", "full attention", kind] {
            assert!(error.contains(word), "{word:?} in {error:?}");
        }
        let seq = Weights::from_arrays(random_head("seq", model.facts(), 1), LoadOptions::cpu());
        assert!(drafter(seq, model.as_ref()).is_ok(), "a head with a cache of its own serves any kind");
    }
}
