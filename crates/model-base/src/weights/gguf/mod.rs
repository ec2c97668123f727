//! GGUF files: metadata and tensor places, read by hand because other readers trust the file
//! (format: ggml-org/ggml, `docs/gguf.md`).

mod metadata;
mod reader;

use std::{path::Path, rc::Rc};

pub use metadata::GgufMetadata;
use reader::Reader;

use super::{
    Entry, Place, Weights, coding::Coding, file::MappedFile, options::LoadOptions, safetensors::Slot,
};
use crate::Result;

/// What every GGUF file starts with.
const MAGIC: [u8; 4] = *b"GGUF";
/// Tensors begin at a multiple of this unless `general.alignment` says otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;
/// ggml's own limit.
const MAX_DIMENSIONS: u32 = 4;

/// A checked GGUF file. Tensors stay in the file until a model asks for them.
pub struct GgufFile {
    file: Rc<MappedFile>,
    metadata: Rc<GgufMetadata>,
    slots: Vec<Slot>,
}

/// What a tensor of a GGUF file becomes in a table of checkpoint names.
pub struct Renamed {
    /// The name in the checkpoint.
    pub name: String,
    /// Heads whose rows are stored for interleaved rotation (2i, 2i+1) and are brought into the
    /// half-split order (i, i + D/2).
    pub interleaved_heads: Option<usize>,
}

impl GgufFile {
    /// Opens a file and checks its header and every tensor entry.
    pub fn open(path: &Path) -> Result<Self> {
        Self::read(Rc::new(MappedFile::open(path)?))
    }

    /// Whether a file begins like a GGUF file or is named like one.
    pub fn recognises(path: &Path) -> bool {
        let begins = || MappedFile::open(path).is_ok_and(|file| file.starts_with(&MAGIC));
        path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) || begins()
    }

    fn read(file: Rc<MappedFile>) -> Result<Self> {
        let mut reader = Reader::new(&file);
        let (tensors, pairs) = header(&file, &mut reader)?;
        let metadata = GgufMetadata::read(&file, &mut reader, pairs)?;
        let alignment = alignment(&file, &metadata)?;
        let mut entries = Vec::new();
        for index in 0..tensors {
            entries.push(TensorEntry::read(&file, &mut reader, index)?);
        }
        let data = (reader.at() as u64).div_ceil(alignment) * alignment;
        let slots =
            entries.into_iter().map(|e| e.check(&file, data, alignment)).collect::<Result<Vec<_>>>()?;
        check_apart(&file, &slots)?;
        Ok(Self { metadata: Rc::new(metadata), slots, file })
    }

    /// The metadata; it outlives the file.
    pub fn metadata(&self) -> &Rc<GgufMetadata> {
        &self.metadata
    }

    /// The stated shape of a tensor in row-major order.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.slots.iter().find(|s| s.name == name).map(|s| s.shape.as_slice())
    }

    /// The tensors as a table of checkpoint names. A tensor that `rename` does not know keeps its name.
    pub fn weights(&self, options: LoadOptions, rename: impl Fn(&str) -> Option<Renamed>) -> Result<Weights> {
        let mut entries = std::collections::BTreeMap::new();
        for slot in &self.slots {
            let renamed = rename(&slot.name)
                .unwrap_or_else(|| Renamed { name: slot.name.clone(), interleaved_heads: None });
            let entry = Entry {
                shape: slot.shape.clone(),
                coding: slot.coding,
                place: Place::File(self.file.clone(), slot.bytes.clone()),
                interleaved_heads: renamed.interleaved_heads,
            };
            if entries.insert(renamed.name.clone(), entry).is_some() {
                let got = format!("a second tensor that becomes {}", renamed.name);
                return Err(self.file.fault(format!("tensor {}", slot.name), "one of its kind", got));
            }
        }
        Ok(Weights::from_entries(Path::new(self.file.name()), entries, options))
    }
}

/// The numbers of tensors and of metadata pairs, each bounded by what the file could hold.
fn header(file: &MappedFile, reader: &mut Reader<'_>) -> Result<(u64, u64)> {
    let magic = reader.array::<4>("magic")?;
    if magic != MAGIC {
        return Err(file.fault("magic", "\"GGUF\"", format!("{:?}", magic.escape_ascii().to_string())));
    }
    let version = reader.u32("version")?;
    if !(2..=3).contains(&version) {
        return Err(file.fault("version", "2 or 3, little-endian", version.to_string()));
    }
    let tensors = reader.count("tensor count", 8 + 4 + 8 + 4 + 8)?;
    let pairs = reader.count("metadata count", 8 + 4 + 1)?;
    Ok((tensors, pairs))
}

fn alignment(file: &MappedFile, metadata: &GgufMetadata) -> Result<u64> {
    match metadata.get_u32("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(n) if n.is_power_of_two() && n <= 1 << 20 => Ok(n.into()),
        Some(n) => Err(file.fault("general.alignment", "a power of two up to 2^20", n.to_string())),
    }
}

/// A tensor entry as written; the offset counts from the start of the data.
struct TensorEntry {
    name: String,
    dims: Vec<u64>,
    kind: u32,
    offset: u64,
}

impl TensorEntry {
    fn read(file: &MappedFile, reader: &mut Reader<'_>, index: u64) -> Result<Self> {
        let name = reader.text(&format!("name of tensor {index}"))?;
        let rank = reader.u32(&name)?;
        if !(1..=MAX_DIMENSIONS).contains(&rank) {
            let expected = format!("1 to {MAX_DIMENSIONS} dimensions");
            return Err(file.fault(format!("tensor {name}"), expected, rank.to_string()));
        }
        let dims = (0..rank).map(|_| reader.u64(&name)).collect::<Result<_>>()?;
        Ok(Self { dims, kind: reader.u32(&name)?, offset: reader.u64(&name)?, name })
    }

    /// Finds the tensor's bytes; every product and sum of the file's numbers is checked.
    fn check(self, file: &MappedFile, data: u64, alignment: u64) -> Result<Slot> {
        let what = format!("tensor {}", self.name);
        let coding = kind(self.kind).ok_or_else(|| {
            file.fault(&what, "a type that the format defines", format!("type {}", self.kind))
        })?;
        let too_big =
            || file.fault(&what, "a size that fits the file", format!("dimensions {:?}", self.dims));
        let elements = self.dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).ok_or_else(too_big)?;
        if elements == 0 {
            return Err(file.fault(&what, "dimensions above 0", format!("{:?}", self.dims)));
        }
        if !self.offset.is_multiple_of(alignment) {
            let expected = format!("an offset that is a multiple of {alignment}");
            return Err(file.fault(&what, expected, self.offset.to_string()));
        }
        let begin = data.checked_add(self.offset).ok_or_else(too_big)?;
        // A type that this program cannot read may sit in the file as long as nothing asks for it; its
        // size is not known here, so it takes no bytes.
        let (per_block, bytes) = coding.block().unwrap_or((1, 0));
        if !self.dims[0].is_multiple_of(per_block as u64) {
            let expected = format!("rows of whole blocks of {per_block} {} values", coding.name());
            return Err(file.fault(&what, expected, format!("rows of {}", self.dims[0])));
        }
        let size = (elements / per_block as u64).checked_mul(bytes as u64).ok_or_else(too_big)?;
        let end = begin.checked_add(size).ok_or_else(too_big)?;
        if end > file.len() as u64 {
            let expected = format!("data that ends within {} bytes", file.len());
            let got = format!("offset {} and {size} bytes, an end at {end}", self.offset);
            return Err(file.fault(&what, expected, got));
        }
        let shape = self.dims.iter().rev().map(|&d| usize::try_from(d).map_err(|_| too_big()));
        let shape = shape.collect::<Result<_>>()?;
        Ok(Slot { name: self.name, coding, shape, bytes: begin as usize..end as usize })
    }
}

/// No two tensors of one name, and none that share bytes. Gaps are legal: they are padding.
fn check_apart(file: &MappedFile, slots: &[Slot]) -> Result<()> {
    let mut order: Vec<_> = slots.iter().collect();
    order.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = order.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(file.fault(format!("tensor {}", pair[0].name), "one entry", "two"));
    }
    order.sort_by_key(|s| (s.bytes.start, s.bytes.end));
    match order.windows(2).find(|pair| pair[1].bytes.start < pair[0].bytes.end) {
        Some(pair) => {
            let expected = format!("data after {} ends at {}", pair[0].name, pair[0].bytes.end);
            let got = format!("an overlap: it begins at {}", pair[1].bytes.start);
            Err(file.fault(format!("tensor {}", pair[1].name), expected, got))
        }
        None => Ok(()),
    }
}

/// ggml's type numbers.
fn kind(number: u32) -> Option<Coding> {
    const OTHER: &[(u32, &str)] = &[
        (9, "Q8_1"),
        (10, "Q2_K"),
        (11, "Q3_K"),
        (13, "Q5_K"),
        (15, "Q8_K"),
        (16, "IQ2_XXS"),
        (17, "IQ2_XS"),
        (18, "IQ3_XXS"),
        (19, "IQ1_S"),
        (20, "IQ4_NL"),
        (21, "IQ3_S"),
        (22, "IQ2_S"),
        (23, "IQ4_XS"),
        (28, "F64"),
        (29, "IQ1_M"),
        (34, "TQ1_0"),
        (35, "TQ2_0"),
        (39, "MXFP4"),
    ];
    Some(match number {
        0 => Coding::F32,
        1 => Coding::F16,
        2 => Coding::Q4_0,
        3 => Coding::Q4_1,
        6 => Coding::Q5_0,
        7 => Coding::Q5_1,
        8 => Coding::Q8_0,
        12 => Coding::Q4K,
        14 => Coding::Q6K,
        24 => Coding::I8,
        25 => Coding::I16,
        26 => Coding::I32,
        27 => Coding::I64,
        30 => Coding::Bf16,
        other => Coding::Other(OTHER.iter().find(|(n, _)| *n == other)?.1),
    })
}
