//! The metadata of a GGUF file: typed values by key.

use std::collections::BTreeMap;

use super::reader::Reader;
use crate::{Result, weights::file::MappedFile};

/// Everything a GGUF file says about its model and tokenizer.
#[derive(Debug, Clone, Default)]
pub struct GgufMetadata {
    values: BTreeMap<String, Value>,
}

#[derive(Debug, Clone)]
enum Value {
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    /// A list of numbers in the file's own bytes, so that a long list costs no more than its size.
    Numbers(Kind, Vec<u8>),
}

/// The format's value types, apart from lists.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    U64,
    I64,
    F64,
}

/// The type number of a list.
const LIST: u32 = 9;

impl Kind {
    fn from_number(number: u32) -> Option<Self> {
        use Kind::*;
        let kinds = [U8, I8, U16, I16, U32, I32, F32, Bool, Text];
        match number {
            10..=12 => Some([U64, I64, F64][number as usize - 10]),
            n => kinds.get(n as usize).copied(),
        }
    }

    /// Bytes of one value; texts carry their length with them.
    fn size(self) -> u64 {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::Text | Kind::U64 | Kind::I64 | Kind::F64 => 8,
        }
    }

    /// One number from exactly [`size`](Self::size) bytes.
    fn number(self, bytes: &[u8]) -> Value {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(word);
        match self {
            Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 | Kind::Text => Value::Integer(bits.into()),
            Kind::I8 => Value::Integer((bits as i8).into()),
            Kind::I16 => Value::Integer((bits as i16).into()),
            Kind::I32 => Value::Integer((bits as i32).into()),
            Kind::I64 => Value::Integer((bits as i64).into()),
            Kind::F32 => Value::Float(f32::from_bits(bits as u32).into()),
            Kind::F64 => Value::Float(f64::from_bits(bits)),
            Kind::Bool => Value::Bool(bits != 0),
        }
    }
}

impl GgufMetadata {
    pub(super) fn read(file: &MappedFile, reader: &mut Reader<'_>, pairs: u64) -> Result<Self> {
        let mut values = BTreeMap::new();
        for index in 0..pairs {
            let key = reader.text(&format!("metadata key {index}"))?;
            let value = read_value(file, reader, &key)?;
            if values.insert(key.clone(), value).is_some() {
                return Err(file.fault(format!("metadata {key}"), "one value", "two"));
            }
        }
        Ok(Self { values })
    }

    /// Every key, ascending.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// A text.
    pub fn get_str(&self, key: &str) -> Option<&str> {
        match self.values.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A whole number of any width that fits.
    pub fn get_u32(&self, key: &str) -> Option<u32> {
        self.integer(key)
    }

    /// A whole number of any width that fits.
    pub fn get_u64(&self, key: &str) -> Option<u64> {
        self.integer(key)
    }

    /// A number of any kind.
    pub fn get_f32(&self, key: &str) -> Option<f32> {
        match self.values.get(key)? {
            Value::Float(number) => Some(*number as f32),
            Value::Integer(number) => Some(*number as f32),
            _ => None,
        }
    }

    /// A flag.
    pub fn get_bool(&self, key: &str) -> Option<bool> {
        match self.values.get(key)? {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    /// A list of texts.
    pub fn get_strings(&self, key: &str) -> Option<&[String]> {
        match self.values.get(key)? {
            Value::Texts(texts) => Some(texts),
            _ => None,
        }
    }

    /// A list of whole numbers that all fit.
    pub fn get_i32s(&self, key: &str) -> Option<Vec<i32>> {
        self.numbers(key, |value| match value {
            Value::Integer(number) => number.try_into().ok(),
            _ => None,
        })
    }

    /// A list of numbers of any kind.
    pub fn get_f32s(&self, key: &str) -> Option<Vec<f32>> {
        self.numbers(key, |value| match value {
            Value::Integer(number) => Some(number as f32),
            Value::Float(number) => Some(number as f32),
            _ => None,
        })
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str) -> Option<T> {
        match self.values.get(key)? {
            Value::Integer(number) => (*number).try_into().ok(),
            _ => None,
        }
    }

    fn numbers<T>(&self, key: &str, each: impl Fn(Value) -> Option<T>) -> Option<Vec<T>> {
        match self.values.get(key)? {
            Value::Numbers(kind, bytes) => {
                bytes.chunks_exact(kind.size() as usize).map(|b| each(kind.number(b))).collect()
            }
            _ => None,
        }
    }
}

fn read_value(file: &MappedFile, reader: &mut Reader<'_>, key: &str) -> Result<Value> {
    let number = reader.u32(key)?;
    if number == LIST {
        return read_list(file, reader, key);
    }
    match kind(file, key, number)? {
        Kind::Text => Ok(Value::Text(reader.text(key)?)),
        kind => Ok(kind.number(reader.bytes(key, kind.size())?)),
    }
}

fn read_list(file: &MappedFile, reader: &mut Reader<'_>, key: &str) -> Result<Value> {
    let kind = kind(file, key, reader.u32(key)?)?;
    let count = reader.count(key, kind.size())?;
    if kind == Kind::Text {
        return (0..count).map(|_| reader.text(key)).collect::<Result<_>>().map(Value::Texts);
    }
    // `count` was bounded by the file's length over the size, so the product cannot wrap.
    Ok(Value::Numbers(kind, reader.bytes(key, count * kind.size())?.to_vec()))
}

fn kind(file: &MappedFile, key: &str, number: u32) -> Result<Kind> {
    Kind::from_number(number).ok_or_else(|| {
        let expected = "a value type from 0 to 12, lists not nested";
        file.fault(format!("metadata {key}"), expected, format!("type {number}"))
    })
}
