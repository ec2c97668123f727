//! From a path to a table of tensors: one file, or the shards that an index names.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path},
    rc::Rc,
};

use serde_json::Value;

use super::{Entry, Place, file::DOWNLOAD_AGAIN, file::MappedFile, safetensors};
use crate::{ModelError, Result};

type Entries = BTreeMap<String, Entry>;

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// The tensors of a folder.
pub(super) fn folder(path: &Path) -> Result<Entries> {
    let index = path.join(INDEX);
    if index.is_file() {
        return sharded(path, &index);
    }
    let file = path.join(SINGLE);
    if file.is_file() {
        return single(&file);
    }
    Err(ModelError::File {
        file: path.display().to_string(),
        what: "weights".into(),
        expected: format!("{SINGLE} or {INDEX}"),
        got: "neither".into(),
        next: "name a folder with safetensors weights, or a .gguf file",
    })
}

/// The tensors of one safetensors file.
pub(super) fn single(path: &Path) -> Result<Entries> {
    let mut entries = Entries::new();
    add(&mut entries, path)?;
    Ok(entries)
}

fn add(entries: &mut Entries, path: &Path) -> Result<()> {
    let file = Rc::new(MappedFile::open(path)?);
    for slot in safetensors::read(&file)? {
        let place = Place::File(file.clone(), slot.bytes);
        let entry = Entry { shape: slot.shape, coding: slot.coding, place, interleaved_heads: None };
        if entries.contains_key(&slot.name) {
            return Err(file.fault(format!("tensor {}", slot.name), "one shard with it", "a second one"));
        }
        entries.insert(slot.name, entry);
    }
    Ok(())
}

fn sharded(folder: &Path, index: &Path) -> Result<Entries> {
    let map = weight_map(index)?;
    let shards: BTreeSet<&str> = map.values().map(String::as_str).collect();
    let fault = |what: &str, expected: String, got: String| ModelError::File {
        file: index.display().to_string(),
        what: what.into(),
        expected,
        got,
        next: DOWNLOAD_AGAIN,
    };
    // All shards are looked for before the first is read: a missing one is found at once.
    for shard in &shards {
        let plain = matches!(Path::new(shard).components().collect::<Vec<_>>()[..], [Component::Normal(_)]);
        if !plain {
            return Err(fault("weight_map", "names of files beside the index".into(), format!("{shard:?}")));
        }
        if !folder.join(shard).is_file() {
            return Err(fault(&format!("shard {shard}"), "a file beside the index".into(), "none".into()));
        }
    }
    let mut entries = Entries::new();
    for shard in &shards {
        add(&mut entries, &folder.join(shard))?;
    }
    match map.keys().find(|name| !entries.contains_key(*name)) {
        Some(name) => {
            Err(fault(&format!("tensor {name}"), format!("in shard {}", map[name]), "no such tensor".into()))
        }
        None => Ok(entries),
    }
}

fn weight_map(index: &Path) -> Result<BTreeMap<String, String>> {
    let value = read_json(index)?;
    let bad = |got: String| ModelError::File {
        file: index.display().to_string(),
        what: "weight_map".into(),
        expected: "an object from tensor names to file names".into(),
        got,
        next: DOWNLOAD_AGAIN,
    };
    let map = match value.get("weight_map") {
        Some(Value::Object(map)) if !map.is_empty() => map,
        other => return Err(bad(other.map_or("nothing".into(), short))),
    };
    let pair = |(name, file): (&String, &Value)| match file.as_str() {
        Some(file) => Ok((name.clone(), file.to_owned())),
        None => Err(bad(short(file))),
    };
    map.iter().map(pair).collect()
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}

/// A JSON file of the checkpoint.
pub(crate) fn read_json(path: &Path) -> Result<Value> {
    let bytes =
        std::fs::read(path).map_err(|source| ModelError::Io { path: path.display().to_string(), source })?;
    serde_json::from_slice(&bytes).map_err(|e| ModelError::File {
        file: path.display().to_string(),
        what: "contents".into(),
        expected: "valid JSON".into(),
        got: e.to_string(),
        next: "repair the file, or fetch it again",
    })
}
