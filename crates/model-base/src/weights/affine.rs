//! Matrices, plain or packed in MLX's affine layout, and the configuration that describes the packing.

use std::collections::BTreeMap;

use mlx_rs::{
    Array, Dtype,
    ops::{dequantize, indexing::TryIndexOp},
};
use serde_json::Value;

use super::{Cursor, cursor::misfit, settled};
use crate::{ModelError, Result};

/// A matrix of a checkpoint.
#[derive(Debug, Clone)]
pub enum Matrix {
    /// Floats in the computing type `[rows, columns]`.
    Dense(Array),
    /// Packed words with scales and biases.
    Affine(Affine),
}

/// A packed matrix: value = scale · word + bias, one scale and bias per group of columns.
#[derive(Debug, Clone)]
pub struct Affine {
    /// Packed words `[rows, columns·bits/32]` uint32.
    pub weight: Array,
    /// `[rows, columns/group]`.
    pub scales: Array,
    /// `[rows, columns/group]`.
    pub biases: Array,
    /// Columns that share a scale.
    pub group: i32,
    /// Bits of one value.
    pub bits: i32,
}

impl Affine {
    /// Chosen rows as floats, lazy.
    ///
    /// # Shapes
    /// `ids` `[...]` → `[..., columns]`.
    pub fn rows(&self, ids: &Array) -> Result<Array> {
        let pick = |a: &Array| a.try_index(ids);
        let (weight, scales, biases) = (pick(&self.weight)?, pick(&self.scales)?, pick(&self.biases)?);
        Ok(dequantize(weight, scales, &biases, self.group, self.bits)?)
    }

    fn expand(&self, dtype: Dtype) -> Result<Array> {
        let (scales, biases) = (self.scales.as_dtype(Dtype::Float32)?, self.biases.as_dtype(Dtype::Float32)?);
        let full = dequantize(&self.weight, &scales, &biases, self.group, self.bits)?;
        settled(full.as_dtype(dtype)?)
    }
}

impl Matrix {
    pub(super) fn read(at: &Cursor<'_>, rows: usize, columns: usize) -> Result<Self> {
        let weights = at.weights();
        if !at.at("scales").exists() {
            let weight = at.at("weight");
            let keep = !weights.options.expand && weight.shape() == Some(&[rows, columns]);
            return Ok(match if keep { weight.blocks()? } else { None } {
                Some(packed) => Matrix::Affine(packed),
                None => Matrix::Dense(weight.tensor(&[rows, columns])?),
            });
        }
        let packed = read_affine(at, rows, columns)?;
        if weights.options.expand {
            return Ok(Matrix::Dense(packed.expand(weights.dtype)?));
        }
        Ok(Matrix::Affine(packed))
    }
}

fn read_affine(at: &Cursor<'_>, rows: usize, columns: usize) -> Result<Affine> {
    let (weight, scales) = (at.at("weight"), at.at("scales"));
    if !at.at("biases").exists() {
        let got = "scales without biases: another packing than affine".into();
        return Err(misfit(weight.name(), "affine packing".into(), got));
    }
    let words = match weight.shape() {
        Some(&[r, words]) if r == rows && words > 0 => words,
        Some(other) => {
            let expected = format!("packed rows of shape [{rows}, columns·bits/32]");
            return Err(misfit(weight.name(), expected, format!("{other:?}")));
        }
        None => return Err(weight.weights().absent(weight.name())),
    };
    let groups = match scales.shape() {
        Some(&[r, groups]) if r == rows && groups > 0 => groups,
        other => {
            let expected = format!("shape [{rows}, columns/group]");
            return Err(misfit(scales.name(), expected, format!("{other:?}")));
        }
    };
    let found = Packing::from_shapes(columns, words, groups).ok_or_else(|| {
        let got = format!("{words} words and {groups} groups per row");
        misfit(weight.name(), format!("{columns} columns of 2, 3, 4, 5, 6 or 8 bits"), got)
    })?;
    at.weights().quantization.check(at.name(), found)?;
    let shape = [rows, groups];
    Ok(Affine {
        weight: weight.words()?,
        scales: scales.tensor(&shape)?,
        biases: at.at("biases").tensor(&shape)?,
        group: found.group as i32,
        bits: found.bits as i32,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Packing {
    group: usize,
    bits: usize,
}

impl Packing {
    fn from_shapes(columns: usize, words: usize, groups: usize) -> Option<Self> {
        let total = words.checked_mul(32)?;
        let fits = columns > 0 && total.is_multiple_of(columns) && columns.is_multiple_of(groups);
        let found = fits.then(|| Packing { group: columns / groups, bits: total / columns })?;
        let known = matches!(found.bits, 2 | 3 | 4 | 5 | 6 | 8) && matches!(found.group, 32 | 64 | 128);
        known.then_some(found)
    }
}

/// What the configuration says about packed tensors. Nothing said means nothing is contradicted.
#[derive(Debug, Clone, Default)]
pub struct Quantization {
    default: Option<Packing>,
    /// By module name without wrapper prefixes; `None` says the module is not packed.
    modules: BTreeMap<String, Option<Packing>>,
}

impl Quantization {
    /// Reads the value of `quantization`; null and `{}` mean that nothing is packed.
    pub(crate) fn from_json(value: &Value) -> Result<Self> {
        let Value::Object(map) = value else {
            return match value {
                Value::Null => Ok(Self::default()),
                other => Err(config("quantization", "an object", other)),
            };
        };
        if let Some(mode) = map.get("mode").filter(|m| m.as_str() != Some("affine")) {
            return Err(config("quantization.mode", "\"affine\"", mode));
        }
        let mut modules = BTreeMap::new();
        for (name, entry) in map {
            match entry {
                Value::Object(_) => modules.insert(bare(name).into(), packing(name, entry)?),
                Value::Bool(false) => modules.insert(bare(name).into(), None),
                _ => None,
            };
        }
        let default = packing("quantization", value)?;
        Ok(Self { default, modules })
    }

    /// Group size and bits of tensors that have no entry of their own.
    pub fn default_packing(&self) -> Option<(usize, usize)> {
        self.default.map(|p| (p.group, p.bits))
    }

    fn check(&self, module: &str, found: Packing) -> Result<()> {
        let declared = match self.modules.get(bare(module)) {
            Some(own) => own.as_ref(),
            None if self.default.is_none() => return Ok(()),
            None => self.default.as_ref(),
        };
        if declared == Some(&found) {
            return Ok(());
        }
        let say = |p: &Packing| format!("{} bits in groups of {}", p.bits, p.group);
        let declared = declared.map_or("no packing".into(), say);
        Err(ModelError::Tensor {
            what: format!("{module}.weight"),
            expected: format!("{declared} as the config's quantization declares"),
            got: format!("{} by its packed width", say(&found)),
            next: "correct the quantization entry, or fetch config and weights again",
        })
    }
}

/// A module's name without the wrappers that some converters put around a language model.
fn bare(mut name: &str) -> &str {
    while let Some(inner) =
        ["language_model.", "text_model.", "model."].iter().find_map(|p| name.strip_prefix(p))
    {
        name = inner;
    }
    name
}

fn packing(name: &str, entry: &Value) -> Result<Option<Packing>> {
    let number = |key: &str| match entry.get(key) {
        None => Ok(None),
        Some(v) => match v.as_u64() {
            Some(n @ 1..=1024) => Ok(Some(n as usize)),
            _ => Err(config(&format!("{name}.{key}"), "a small whole number", v)),
        },
    };
    Ok(match (number("group_size")?, number("bits")?) {
        (None, None) => None,
        (group, bits) => Some(Packing { group: group.unwrap_or(64), bits: bits.unwrap_or(4) }),
    })
}

fn config(what: &str, expected: &str, got: &Value) -> ModelError {
    ModelError::Config { what: what.into(), expected: expected.into(), got: got.to_string() }
}
