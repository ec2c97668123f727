//! What the tests of this crate share: the device, and writers of small files, right and wrong.

#![allow(dead_code, reason = "each test program uses a part")]

use std::path::PathBuf;

use foretoken_model_base::{LoadOptions, ModelError, Result, Weights};
use mlx_rs::{Array, Device};
use tempfile::TempDir;

/// Installs MLX's error handler and computes on the CPU.
pub(crate) fn on_cpu() {
    Device::try_default().expect("MLX has a default device");
    Device::set_default(&Device::cpu());
}

/// A folder for the files of one test.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        on_cpu();
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// A safetensors file from a header as it is and data.
pub(crate) fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// Opens bytes as one safetensors file.
pub(crate) fn open(bytes: &[u8]) -> Result<Weights> {
    let folder = Folder::new();
    Weights::open(&folder.write("model.safetensors", bytes), LoadOptions::cpu())
}

/// The message of a refusal; a success fails the test.
pub(crate) fn refusal<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("this must be refused"),
        Err(error) => {
            let text = error.to_string();
            assert!(!text.ends_with('.'), "no final stop: {text}");
            text
        }
    }
}

/// Asserts that a refusal mentions every one of `parts`.
pub(crate) fn refused<T>(result: Result<T>, parts: &[&str]) {
    let text = refusal(result);
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// Asserts that a refusal is about a file and says what to do.
pub(crate) fn refused_file<T>(result: Result<T>, parts: &[&str]) {
    match &result {
        Err(ModelError::File { next, .. }) => assert!(!next.is_empty()),
        Err(other) => panic!("not an error of a file: {other}"),
        Ok(_) => {}
    }
    refused(result, parts);
}

pub(crate) fn host(array: &Array) -> Vec<f32> {
    array.contiguous().unwrap().try_as_slice::<f32>().unwrap().to_vec()
}

/// Bytes of float32 values.
pub(crate) fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Writes GGUF files, correct ones unless a field is set wrong on purpose.
#[derive(Clone)]
pub(crate) struct Gguf {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    pub(crate) alignment: usize,
    pub(crate) pairs: Vec<u8>,
    pub(crate) pair_count: u64,
    pub(crate) tensors: Vec<(String, Vec<u64>, u32, u64)>,
    pub(crate) data: Vec<u8>,
}

impl Gguf {
    pub(crate) fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            alignment: 32,
            pairs: Vec::new(),
            pair_count: 0,
            tensors: Vec::new(),
            data: Vec::new(),
        }
    }

    /// A metadata pair with its value's bytes.
    pub(crate) fn pair(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.pairs.extend(text(key.as_bytes()));
        self.pairs.extend(kind.to_le_bytes());
        self.pairs.extend(value);
        self.pair_count += 1;
        self
    }

    /// A metadata list of values of one kind.
    pub(crate) fn list(self, key: &str, kind: u32, count: u64, values: &[u8]) -> Self {
        let bytes = [&kind.to_le_bytes()[..], &count.to_le_bytes(), values].concat();
        self.pair(key, 9, &bytes)
    }

    /// A tensor whose data follows what is there.
    pub(crate) fn tensor(mut self, name: &str, dims: &[u64], kind: u32, data: &[u8]) -> Self {
        self.data.resize(self.data.len().next_multiple_of(self.alignment), 0);
        let offset = self.data.len() as u64;
        self.data.extend(data);
        self.entry(name, dims, kind, offset)
    }

    /// A tensor entry alone.
    pub(crate) fn entry(mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        self.tensors.push((name.into(), dims.to_vec(), kind, offset));
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.pair_count.to_le_bytes());
        out.extend(&self.pairs);
        for (name, dims, kind, offset) in &self.tensors {
            out.extend(text(name.as_bytes()));
            out.extend((dims.len() as u32).to_le_bytes());
            out.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }
}

/// A text as GGUF stores it.
pub(crate) fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}
