//! A checkpoint as a table from names to tensors, whatever file format it came in.
//!
//! Files are hostile: readers check every length, offset and type before a tensor is touched, and
//! nothing of a checkpoint is kept when one part of it is wrong. This module alone reads files, and
//! it alone waits for arrays: weights are materialised while loading, so that a model holds data and
//! not the graph that made it.

mod affine;
mod blocks;
mod check;
mod coding;
mod cursor;
mod file;
mod gguf;
mod index;
mod options;
mod safetensors;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::Path,
    rc::Rc,
};

use mlx_rs::{Array, Dtype, transforms::eval};

pub use affine::{Affine, Matrix, Quantization};
pub use check::{DraftHeads, LoadReport};
pub use coding::Coding;
pub use cursor::Cursor;
pub use gguf::{GgufFile, GgufMetadata, Renamed};
pub(crate) use index::read_json;
pub use options::{ComputeType, LoadOptions, Placement};

use crate::{ModelError, Result};
use coding::Raw;
use file::MappedFile;

/// The tensors of one checkpoint, and a record of which of them were used.
pub struct Weights {
    entries: BTreeMap<String, Entry>,
    source: String,
    options: LoadOptions,
    dtype: Dtype,
    quantization: Quantization,
    draft_files: Vec<std::path::PathBuf>,
    used: RefCell<BTreeSet<String>>,
    missing: RefCell<BTreeSet<String>>,
    coded: RefCell<BTreeSet<String>>,
}

/// A tensor that has not been read yet.
struct Entry {
    shape: Vec<usize>,
    coding: Coding,
    place: Place,
    /// Heads whose rows must be brought from interleaved into half-split order.
    interleaved_heads: Option<usize>,
}

enum Place {
    /// Bytes of a mapped file, checked to be as many as shape and coding ask for.
    File(Rc<MappedFile>, Range<usize>),
    /// An array made by the program.
    Held(Array),
}

impl Weights {
    /// Opens a folder, a `.safetensors` file or a `.gguf` file under its own names. Reads and checks headers only.
    pub fn open(path: &Path, options: LoadOptions) -> Result<Self> {
        if path.is_dir() {
            let mut weights = Self::from_entries(path, index::folder(path)?, options);
            weights.draft_files = check::draft_files(path);
            return Ok(weights);
        }
        if GgufFile::recognises(path) {
            return GgufFile::open(path)?.weights(options, |_| None);
        }
        Ok(Self::from_entries(path, index::single(path)?, options))
    }

    /// A table of arrays made by the program, for tests and tools.
    ///
    /// # Shapes
    /// As the family that reads the table expects; floats are cast to the computing type.
    pub fn from_arrays(arrays: impl IntoIterator<Item = (String, Array)>, options: LoadOptions) -> Self {
        let held = |(name, array): (String, Array)| {
            let shape = array.shape().iter().map(|&d| d as usize).collect();
            let coding = match array.dtype() {
                Dtype::Float32 => Coding::F32,
                Dtype::Float16 => Coding::F16,
                Dtype::Bfloat16 => Coding::Bf16,
                Dtype::Int32 => Coding::I32,
                Dtype::Uint32 => Coding::U32,
                _ => Coding::Other("an array of another type"),
            };
            (name, Entry { shape, coding, place: Place::Held(array), interleaved_heads: None })
        };
        Self::from_entries(Path::new("memory"), arrays.into_iter().map(held).collect(), options)
    }

    fn from_entries(path: &Path, entries: BTreeMap<String, Entry>, options: LoadOptions) -> Self {
        let all_f32 = entries.values().all(|e| e.coding == Coding::F32 || !e.coding.is_float());
        Self {
            entries,
            source: path.display().to_string(),
            dtype: options.dtype(all_f32),
            options,
            quantization: Quantization::default(),
            draft_files: Vec::new(),
            used: RefCell::default(),
            missing: RefCell::default(),
            coded: RefCell::default(),
        }
    }

    /// The same table, whose packed tensors are described by a configuration.
    pub fn quantized(mut self, quantization: Quantization) -> Self {
        self.quantization = quantization;
        self
    }

    /// A cursor at the first part of a tensor's name.
    pub fn at(&self, part: impl std::fmt::Display) -> Cursor<'_> {
        Cursor::new(self, part.to_string())
    }

    /// Every tensor's name, ascending.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Whether a tensor of this name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The shape that the file states for a tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entries.get(name).map(|e| e.shape.as_slice())
    }

    /// The type that weights are computed in.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// How weights are placed and expanded.
    pub fn options(&self) -> &LoadOptions {
        &self.options
    }

    fn entry(&self, name: &str) -> Result<(&str, &Entry)> {
        let Some((name, entry)) = self.entries.get_key_value(name) else {
            self.missing.borrow_mut().insert(name.into());
            return Err(self.absent(name));
        };
        self.used.borrow_mut().insert(name.clone());
        self.coded.borrow_mut().insert(entry.coding.name().into());
        Ok((name, entry))
    }

    fn absent(&self, name: &str) -> ModelError {
        ModelError::Tensor {
            what: name.into(),
            expected: format!("to be present in {}", self.source),
            got: "no tensor of that name".into(),
            next: "check that the files are complete and of this architecture",
        }
    }

    /// A float tensor in the computing type.
    fn float(&self, name: &str, entry: &Entry) -> Result<Array> {
        self.float_as(name, entry, self.dtype)
    }

    fn float_as(&self, name: &str, entry: &Entry, dtype: Dtype) -> Result<Array> {
        let array = match &entry.place {
            Place::Held(array) => array.clone(),
            Place::File(file, range) => {
                let raw = raw(file, name, entry, range);
                let as_stored = matches!(
                    (entry.coding, dtype),
                    (Coding::F16, Dtype::Float16) | (Coding::Bf16, Dtype::Bfloat16)
                );
                if as_stored { raw.plain()? } else { raw.float32()? }
            }
        };
        let array = array.as_dtype(dtype)?;
        settled(match entry.interleaved_heads {
            Some(heads) => half_split(name, &array, heads)?,
            None => array,
        })
    }

    /// A matrix of GGUF blocks in the affine layout, when that holds them without loss.
    fn packed(&self, name: &str, entry: &Entry) -> Result<Option<Affine>> {
        let (Place::File(file, range), &[rows, columns]) = (&entry.place, &entry.shape[..]) else {
            return Ok(None);
        };
        let Some(packed) = blocks::pack(entry.coding, &file[range.clone()]) else { return Ok(None) };
        let words = (columns * packed.bits / 32) as i32;
        let ordered = |array: Array| match entry.interleaved_heads {
            Some(heads) => settled(half_split(name, &array, heads)?),
            None => Ok(array),
        };
        let groups = [rows as i32, (columns / blocks::GROUP) as i32];
        let floats =
            |values: &[f32]| ordered(settled(Array::from_slice(values, &groups).as_dtype(self.dtype)?)?);
        Ok(Some(Affine {
            weight: ordered(Array::from_slice(&packed.words, &[rows as i32, words]))?,
            scales: floats(&packed.scales)?,
            biases: floats(&packed.biases)?,
            group: blocks::GROUP as i32,
            bits: packed.bits as i32,
        }))
    }

    /// A tensor of ids or packed words in its own type.
    fn plain(&self, name: &str, entry: &Entry) -> Result<Array> {
        match &entry.place {
            Place::Held(array) => Ok(array.clone()),
            Place::File(file, range) => raw(file, name, entry, range).plain(),
        }
    }
}

fn raw<'a>(file: &'a MappedFile, name: &'a str, entry: &'a Entry, range: &Range<usize>) -> Raw<'a> {
    Raw { file, name, coding: entry.coding, shape: &entry.shape, bytes: &file[range.clone()] }
}

/// Rows of each head from the order of interleaved rotation, pairs (2i, 2i+1), to (i, i + D/2).
///
/// `[H·D, ...]` → `[H·D, ...]`.
fn half_split(name: &str, rows: &Array, heads: usize) -> Result<Array> {
    let (heads, shape) = (heads as i32, rows.shape().to_vec());
    if heads == 0 || shape[0] % (heads * 2) != 0 {
        let expected = format!("rows that {heads} heads of even size share");
        return Err(cursor::misfit(name, expected, format!("shape {shape:?}")));
    }
    let pairs = rows.reshape(&[heads, shape[0] / heads / 2, 2, -1])?;
    Ok(pairs.swap_axes(1, 2)?.reshape(&shape)?.contiguous()?)
}

/// Waits for a weight, so that the model holds data and the sources can go.
pub(crate) fn settled(array: Array) -> Result<Array> {
    eval([&array])?;
    Ok(array)
}
