//! How the numbers of a tensor are stored, and how they become an array.

use half::{bf16, f16, slice::HalfFloatSliceExt};
use mlx_rs::{Array, Dtype};

use super::{blocks, file::MappedFile};
use crate::{ModelError, Result};

/// The storage of a tensor's numbers: plain types of both formats, and the block types of GGUF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Coding {
    F32,
    F16,
    Bf16,
    I8,
    U8,
    I16,
    I32,
    U32,
    I64,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q6K,
    /// A type that the format defines and this program does not read.
    Other(&'static str),
}

impl Coding {
    /// The name used in messages.
    pub fn name(self) -> &'static str {
        match self {
            Coding::F32 => "F32",
            Coding::F16 => "F16",
            Coding::Bf16 => "BF16",
            Coding::I8 => "I8",
            Coding::U8 => "U8",
            Coding::I16 => "I16",
            Coding::I32 => "I32",
            Coding::U32 => "U32",
            Coding::I64 => "I64",
            Coding::Q4_0 => "Q4_0",
            Coding::Q4_1 => "Q4_1",
            Coding::Q5_0 => "Q5_0",
            Coding::Q5_1 => "Q5_1",
            Coding::Q8_0 => "Q8_0",
            Coding::Q4K => "Q4_K",
            Coding::Q6K => "Q6_K",
            Coding::Other(name) => name,
        }
    }

    /// Elements in a block and bytes of a block; plain types are blocks of one.
    pub(crate) fn block(self) -> Option<(usize, usize)> {
        Some(match self {
            Coding::F32 | Coding::I32 | Coding::U32 => (1, 4),
            Coding::F16 | Coding::Bf16 | Coding::I16 => (1, 2),
            Coding::I8 | Coding::U8 => (1, 1),
            Coding::I64 => (1, 8),
            Coding::Q4_0 => (32, 18),
            Coding::Q4_1 => (32, 20),
            Coding::Q5_0 => (32, 22),
            Coding::Q5_1 => (32, 24),
            Coding::Q8_0 => (32, 34),
            Coding::Q4K => (256, 144),
            Coding::Q6K => (256, 210),
            Coding::Other(_) => return None,
        })
    }

    /// Whether the numbers are weights rather than ids or packed words.
    pub fn is_float(self) -> bool {
        matches!(self, Coding::F32 | Coding::F16 | Coding::Bf16) || self.is_blocks()
    }

    /// Whether the numbers share scales in blocks.
    pub fn is_blocks(self) -> bool {
        self.block().is_some_and(|(elements, _)| elements > 1)
    }

    fn dtype(self) -> Option<Dtype> {
        Some(match self {
            Coding::F32 => Dtype::Float32,
            Coding::F16 => Dtype::Float16,
            Coding::Bf16 => Dtype::Bfloat16,
            Coding::I8 => Dtype::Int8,
            Coding::U8 => Dtype::Uint8,
            Coding::I16 => Dtype::Int16,
            Coding::I32 => Dtype::Int32,
            Coding::U32 => Dtype::Uint32,
            Coding::I64 => Dtype::Int64,
            _ => return None,
        })
    }
}

/// One tensor's checked bytes.
#[derive(Clone, Copy)]
pub(crate) struct Raw<'a> {
    pub(crate) file: &'a MappedFile,
    pub(crate) name: &'a str,
    pub(crate) coding: Coding,
    pub(crate) shape: &'a [usize],
    pub(crate) bytes: &'a [u8],
}

impl Raw<'_> {
    /// The tensor in its own type; block types have none.
    pub(crate) fn plain(&self) -> Result<Array> {
        let dtype = self.coding.dtype().ok_or_else(|| self.unsupported())?;
        let shape = self.dims()?;
        let size = self.shape.iter().product::<usize>();
        if size == 0 || self.coding.block().is_none_or(|(_, bytes)| size * bytes != self.bytes.len()) {
            let got = format!("shape {:?} in {} bytes", self.shape, self.bytes.len());
            return Err(self.file.fault(self.name, "as many bytes as the shape takes, at least one", got));
        }
        // SAFETY: the length was compared with shape and type just above; MLX copies the bytes.
        Ok(unsafe { Array::from_raw_data(self.bytes.as_ptr().cast(), &shape, dtype) })
    }

    /// The tensor in float32.
    pub(crate) fn float32(&self) -> Result<Array> {
        if self.coding == Coding::F32 {
            return self.plain();
        }
        let (values, shape) = (self.expand()?, self.dims()?);
        // SAFETY: `values` holds as many elements as the shape; MLX copies them.
        Ok(unsafe { Array::from_raw_data(values.as_ptr().cast(), &shape, Dtype::Float32) })
    }

    fn expand(&self) -> Result<Vec<f32>> {
        let mut values = vec![0f32; self.shape.iter().product()];
        match self.coding {
            Coding::F16 => words(self.bytes, f16::from_bits).convert_to_f32_slice(&mut values),
            Coding::Bf16 => words(self.bytes, bf16::from_bits).convert_to_f32_slice(&mut values),
            blocks if blocks.is_blocks() => blocks::expand(blocks, self.bytes, &mut values),
            _ => return Err(self.unsupported()),
        }
        Ok(values)
    }

    fn dims(&self) -> Result<Vec<i32>> {
        let fits = |&d: &usize| i32::try_from(d);
        self.shape.iter().map(fits).collect::<std::result::Result<_, _>>().map_err(|_| {
            self.file.fault(self.name, "dimensions below 2^31", format!("shape {:?}", self.shape))
        })
    }

    fn unsupported(&self) -> ModelError {
        ModelError::File {
            file: self.file.name().into(),
            what: format!("tensor {}", self.name),
            expected: "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K or Q6_K weights".into(),
            got: format!("type {}, which is not supported", self.coding.name()),
            next: "use a checkpoint stored in one of these types",
        }
    }
}

/// Little-endian 16-bit words; the mapping may be unaligned.
fn words<T>(bytes: &[u8], make: fn(u16) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&pair| make(u16::from_le_bytes(pair))).collect()
}
