//! The header of a safetensors file, checked before any tensor is read.
//!
//! The checks here name the tensor and both sizes; the `safetensors` crate then has the last word on
//! whether the file is well formed.

use std::{fmt, ops::Range};

use safetensors::SafeTensors;
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, Visitor},
};

use super::{coding::Coding, file::MappedFile};
use crate::Result;

/// The longest header that the format allows.
const MAX_HEADER: u64 = 100_000_000;

/// A tensor's place in a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Slot {
    pub(crate) name: String,
    pub(crate) coding: Coding,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Range<usize>,
}

/// Every tensor of the file, in offset order; the ranges count from the start of the file.
pub(crate) fn read(file: &MappedFile) -> Result<Vec<Slot>> {
    let (header, data) = split(file)?;
    let mut entries = parse(file, header)?.0;
    entries.sort_by_key(|(_, e)| (e.data_offsets[0], e.data_offsets[1]));
    check_names(file, &entries)?;
    let size = file.len() - data;
    let mut slots = Vec::with_capacity(entries.len());
    let mut end = 0;
    for (name, entry) in entries {
        let slot = entry.check(file, name, end, size, slots.last())?;
        end = slot.bytes.end;
        slots.push(slot);
    }
    if end != size {
        let last = slots.last().map_or("the header", |s| &s.name);
        let got = format!("{} unclaimed bytes after {last}", size - end);
        return Err(file.fault("tensor data", "no bytes that belong to no tensor", got));
    }
    SafeTensors::read_metadata(file)
        .map_err(|e| file.fault("header", "a valid safetensors header", e.to_string()))?;
    slots.iter_mut().for_each(|s| s.bytes = s.bytes.start + data..s.bytes.end + data);
    Ok(slots)
}

/// The header's text, and where the data begins.
fn split(file: &MappedFile) -> Result<(&str, usize)> {
    let Some((prefix, rest)) = file.split_first_chunk::<8>() else {
        let got = format!("{} bytes", file.len());
        return Err(file.fault("file", "at least the 8 bytes of the header's length", got));
    };
    let length = u64::from_le_bytes(*prefix);
    if length > MAX_HEADER {
        let expected = format!("a header of at most {MAX_HEADER} bytes");
        return Err(file.fault("header", expected, format!("length {length}")));
    }
    let header = rest.get(..length as usize).ok_or_else(|| {
        file.fault("header", format!("{length} bytes"), format!("{} bytes left", rest.len()))
    })?;
    let text = std::str::from_utf8(header)
        .map_err(|e| file.fault("header", "UTF-8 text", format!("a bad byte at {}", e.valid_up_to())))?;
    Ok((text, 8 + length as usize))
}

fn parse(file: &MappedFile, header: &str) -> Result<Header> {
    serde_json::from_str(header)
        .map_err(|e| file.fault("header", "a JSON object of tensor entries", e.to_string()))
}

fn check_names(file: &MappedFile, entries: &[(String, Entry)]) -> Result<()> {
    let mut names: Vec<_> = entries.iter().map(|(name, _)| name).collect();
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(file.fault(format!("tensor {}", pair[0]), "one entry", "two")),
        None => Ok(()),
    }
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl Entry {
    /// Compares the entry with the file; `end` is where the tensor before it, `last`, ends.
    fn check(
        self,
        file: &MappedFile,
        name: String,
        end: usize,
        size: usize,
        last: Option<&Slot>,
    ) -> Result<Slot> {
        let fault = |expected: String, got: String| file.fault(format!("tensor {name}"), expected, got);
        let [from, to] = self.data_offsets;
        if from > to || to > size as u64 {
            let got = format!("{from}..{to}");
            return Err(fault(format!("ascending offsets within {size} bytes of data"), got));
        }
        let (from, to) = (from as usize, to as usize);
        if from != end {
            let before = last.map_or("the header", |s| &s.name);
            let kind = if from < end { "an overlap with" } else { "a hole after" };
            return Err(fault(format!("data that begins at {end}"), format!("{from}: {kind} {before}")));
        }
        let (coding, bits) = dtype(&self.dtype)
            .ok_or_else(|| fault("a type that the format defines".into(), format!("{:?}", self.dtype)))?;
        let bytes = byte_count(&self.shape, bits).ok_or_else(|| {
            fault("a size that fits a file".into(), format!("{} of shape {:?}", self.dtype, self.shape))
        })?;
        if bytes != to - from {
            let expected = format!("{bytes} bytes for {} of shape {:?}", self.dtype, self.shape);
            return Err(fault(expected, format!("{} bytes", to - from)));
        }
        let shape = self.shape.iter().map(|&d| d as usize).collect();
        Ok(Slot { name, coding, shape, bytes: from..to })
    }
}

fn byte_count(shape: &[u64], bits: u64) -> Option<usize> {
    let elements = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d))?;
    let bits = elements.checked_mul(bits)?;
    usize::try_from(bits.is_multiple_of(8).then_some(bits / 8)?).ok()
}

/// The type and its width in bits.
fn dtype(name: &str) -> Option<(Coding, u64)> {
    Some(match name {
        "F32" => (Coding::F32, 32),
        "F16" => (Coding::F16, 16),
        "BF16" => (Coding::Bf16, 16),
        "I8" => (Coding::I8, 8),
        "U8" => (Coding::U8, 8),
        "I16" => (Coding::I16, 16),
        "I32" => (Coding::I32, 32),
        "U32" => (Coding::U32, 32),
        "I64" => (Coding::I64, 64),
        "U16" => (Coding::Other("U16"), 16),
        "U64" => (Coding::Other("U64"), 64),
        "F64" => (Coding::Other("F64"), 64),
        "BOOL" => (Coding::Other("BOOL"), 8),
        "C64" => (Coding::Other("C64"), 64),
        "F8_E4M3" => (Coding::Other("F8_E4M3"), 8),
        "F8_E5M2" => (Coding::Other("F8_E5M2"), 8),
        "F8_E8M0" => (Coding::Other("F8_E8M0"), 8),
        "F8_E4M3FNUZ" => (Coding::Other("F8_E4M3FNUZ"), 8),
        "F8_E5M2FNUZ" => (Coding::Other("F8_E5M2FNUZ"), 8),
        "F6_E2M3" => (Coding::Other("F6_E2M3"), 6),
        "F6_E3M2" => (Coding::Other("F6_E3M2"), 6),
        "F4" => (Coding::Other("F4"), 4),
        _ => return None,
    })
}

/// All entries as written: a map would hide a name that comes twice.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object of tensor entries")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> std::result::Result<Header, M::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        let value: serde_json::Value = map.next_value()?;
                        let entry = Entry::deserialize(value)
                            .map_err(|e| M::Error::custom(format!("tensor {name}: {e}")))?;
                        entries.push((name, entry));
                    }
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
