//! Rotary position embedding (Su et al., RoFormer) and the scalings that configurations ask for.

use std::f32::consts::TAU;

use mlx_rs::{Array, fast};

use crate::{Config, ModelError, Result};

/// Rotates pairs (i, i + D/2) of each head by position times a frequency per pair.
#[derive(Debug, Clone)]
pub struct Rope {
    size: i32,
    scale: f32,
    turns: Turns,
}

#[derive(Debug, Clone)]
enum Turns {
    /// Wavelengths base^(2i/D).
    Base(f32),
    /// Wavelengths over 2π, one per pair `[D/2]`.
    Wavelengths(Array),
}

impl Rope {
    /// Unscaled, for heads of `size`.
    pub fn new(size: usize, base: f32) -> Self {
        Self { size: size as i32, scale: 1.0, turns: Turns::Base(base) }
    }

    /// As `rope_scaling` (or `rope_parameters`) asks; an unknown kind is an error.
    pub fn from_config(config: &Config, size: usize, base: f32) -> Result<Self> {
        match config.section("rope_scaling")?.or(config.section("rope_parameters")?) {
            Some(scaling) => Self::from_scaling(&scaling, size, base),
            None => Ok(Self::new(size, base)),
        }
    }

    /// As one section of a configuration asks; an unknown kind is an error.
    pub fn from_scaling(scaling: &Config, size: usize, base: f32) -> Result<Self> {
        let plain = Self::new(size, base);
        let kind = match scaling.text("rope_type")? {
            Some(kind) => Some(kind),
            None => scaling.text("type")?,
        };
        match kind.unwrap_or("default") {
            // Sections of text, height and width turn alike as long as there is only text.
            "default" | "mrope" => Ok(plain),
            "linear" => {
                let factor = positive(scaling, "factor", scaling.number("factor")?)?;
                Ok(Self { scale: 1.0 / factor, ..plain })
            }
            "llama3" => {
                let wavelengths = Llama3::read(scaling)?.wavelengths(size, base);
                Ok(Self::with_wavelengths(size, &wavelengths))
            }
            "proportional" => {
                let share = scaling.number("partial_rotary_factor")?.unwrap_or(1.0);
                let rotated = rotated(&scaling.path("partial_rotary_factor"), size, share)?;
                let factor = positive(scaling, "factor", scaling.number("factor")?.or(Some(1.0)))?;
                Ok(Self::proportional(size, rotated, base, factor))
            }
            other => Err(ModelError::Config {
                what: scaling.path("rope_type"),
                expected: "default, linear, llama3 or proportional".into(),
                got: format!("{other:?}"),
            }),
        }
    }

    /// Only the first `share` of a head's entries turns, and pairs up in itself. `section` names the
    /// kind of scaling, and the share in errors.
    pub fn partial(section: &Config, size: usize, share: f32, base: f32) -> Result<Self> {
        let rotated = rotated(&section.path("partial_rotary_factor"), size, share)?;
        Self::from_scaling(section, rotated, base)
    }

    /// Wavelengths of the whole head for its first `rotated` / 2 pairs, none for the others: pairs lie
    /// D/2 apart, and those without a wavelength stay where they are (ml-explore/mlx-lm,
    /// `mlx_lm/models/rope_utils.py`).
    pub fn proportional(size: usize, rotated: usize, base: f32, factor: f32) -> Self {
        let turning = wavelengths(size, base).take(rotated / 2).map(|w| w * factor);
        let still = (rotated / 2..size / 2).map(|_| f32::INFINITY);
        Self::with_wavelengths(size, &turning.chain(still).collect::<Vec<_>>())
    }

    /// Plain wavelengths multiplied by one factor per pair, as GGUF files store a scaling.
    pub fn with_factors(size: usize, base: f32, factors: &[f32]) -> Result<Self> {
        if let Some(bad) = factors.iter().find(|f| !f.is_finite() || **f <= 0.0) {
            return Err(ModelError::Tensor {
                what: "rope_freqs.weight".into(),
                expected: "factors above 0".into(),
                got: bad.to_string(),
                next: "fetch the file again",
            });
        }
        let scaled: Vec<f32> = wavelengths(size, base).zip(factors).map(|(w, f)| w * f).collect();
        Ok(Self::with_wavelengths(size, &scaled))
    }

    fn with_wavelengths(size: usize, wavelengths: &[f32]) -> Self {
        let array = Array::from_slice(wavelengths, &[wavelengths.len() as i32]);
        Self { size: size as i32, scale: 1.0, turns: Turns::Wavelengths(array) }
    }

    /// Rotates rows that start at slot `offset`.
    ///
    /// # Shapes
    /// `[B,H,L,D]` → `[B,H,L,D]`.
    pub fn forward(&self, x: &Array, offset: usize) -> Result<Array> {
        let offset = offset as i32;
        Ok(match &self.turns {
            Turns::Base(base) => fast::rope(x, self.size, false, *base, self.scale, offset, None)?,
            Turns::Wavelengths(w) => fast::rope(x, self.size, false, None, self.scale, offset, w)?,
        })
    }
}

/// base^(2i/D) for each pair i.
fn wavelengths(size: usize, base: f32) -> impl Iterator<Item = f32> {
    (0..size / 2).map(move |i| base.powf(2.0 * i as f32 / size as f32))
}

/// How many entries of a head turn: an even number.
fn rotated(what: &str, size: usize, share: f32) -> Result<usize> {
    let rotated = (size as f32 * share) as usize;
    if (0.0..=1.0).contains(&share) && rotated > 0 && rotated.is_multiple_of(2) {
        return Ok(rotated);
    }
    Err(ModelError::Config {
        what: what.into(),
        expected: format!("a share above 0 and up to 1 that turns an even part of head size {size}"),
        got: share.to_string(),
    })
}

/// The scaling of Llama 3.1: long wavelengths are stretched by `factor`, short ones stay, and those
/// between are interpolated (huggingface/transformers `modeling_rope_utils.py`).
struct Llama3 {
    factor: f32,
    low: f32,
    high: f32,
    original: f32,
}

impl Llama3 {
    fn read(scaling: &Config) -> Result<Self> {
        let get = |key: &str, default: f32| {
            let value = scaling.number(key)?.unwrap_or(default);
            positive(scaling, key, Some(value))
        };
        let read = Self {
            factor: positive(scaling, "factor", scaling.number("factor")?)?,
            low: get("low_freq_factor", 1.0)?,
            high: get("high_freq_factor", 4.0)?,
            original: get("original_max_position_embeddings", 8192.0)?,
        };
        if read.high > read.low {
            return Ok(read);
        }
        Err(ModelError::Config {
            what: "rope_scaling.high_freq_factor".into(),
            expected: format!("more than low_freq_factor {}", read.low),
            got: read.high.to_string(),
        })
    }

    fn wavelengths(&self, size: usize, base: f32) -> Vec<f32> {
        let stretch = |w: f32| {
            let turns = self.original / (TAU * w);
            if turns < self.low {
                w * self.factor
            } else if turns > self.high {
                w
            } else {
                let smooth = (turns - self.low) / (self.high - self.low);
                w / ((1.0 - smooth) / self.factor + smooth)
            }
        };
        wavelengths(size, base).map(stretch).collect()
    }
}

fn positive(scaling: &Config, key: &str, value: Option<f32>) -> Result<f32> {
    match value {
        Some(value) if value.is_finite() && value > 0.0 => Ok(value),
        other => Err(ModelError::Config {
            what: scaling.path(key),
            expected: "a number above 0".into(),
            got: other.map_or("nothing".into(), |v| v.to_string()),
        }),
    }
}
