//! The least that reads the metadata of one trusted GGUF file, for tests only.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};

const MODEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/fetched/SmolLM2-135M-Instruct.Q4_1.gguf");

#[derive(Debug, Clone)]
pub(crate) enum Value {
    Integer(i64),
    Skipped,
    Text(String),
    List(Vec<Value>),
}

pub(crate) struct Metadata(HashMap<String, Value>);

impl Metadata {
    /// Reads the model that the tests use.
    pub(crate) fn of_smollm2() -> Self {
        let file = File::open(MODEL)
            .unwrap_or_else(|error| panic!("{MODEL}: {error}; run `cargo xtask model` first"));
        let mut reader = Reader(BufReader::new(file));
        assert_eq!(reader.bytes::<4>(), *b"GGUF");
        let (_version, _tensors, count) = (reader.u32(), reader.u64(), reader.u64());
        let mut entry = || {
            let key = reader.text();
            let kind = reader.u32();
            (key, reader.value(kind))
        };
        Self((0..count).map(|_| entry()).collect())
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match self.0.get(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn integer(&self, key: &str) -> Option<i64> {
        match self.0.get(key) {
            Some(Value::Integer(number)) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn texts(&self, key: &str) -> Vec<String> {
        self.list(key, |value| match value {
            Value::Text(text) => text.clone(),
            other => panic!("{key}: {other:?}"),
        })
    }

    pub(crate) fn integers(&self, key: &str) -> Vec<i32> {
        self.list(key, |value| match value {
            Value::Integer(number) => i32::try_from(*number).unwrap(),
            other => panic!("{key}: {other:?}"),
        })
    }

    fn list<T>(&self, key: &str, read: impl Fn(&Value) -> T) -> Vec<T> {
        match self.0.get(key) {
            Some(Value::List(items)) => items.iter().map(read).collect(),
            other => panic!("{key}: {other:?}"),
        }
    }
}

struct Reader(BufReader<File>);

impl Reader {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    fn text(&mut self) -> String {
        let mut bytes = vec![0; usize::try_from(self.u64()).unwrap()];
        self.0.read_exact(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn value(&mut self, kind: u32) -> Value {
        match kind {
            0 | 7 => Value::Integer(self.bytes::<1>()[0].into()),
            1 => Value::Integer(i8::from_le_bytes(self.bytes()).into()),
            2 => Value::Integer(u16::from_le_bytes(self.bytes()).into()),
            3 => Value::Integer(i16::from_le_bytes(self.bytes()).into()),
            4 => Value::Integer(self.u32().into()),
            5 => Value::Integer(i32::from_le_bytes(self.bytes()).into()),
            6 => {
                let _: [u8; 4] = self.bytes();
                Value::Skipped
            }
            8 => Value::Text(self.text()),
            9 => {
                let (kind, count) = (self.u32(), self.u64());
                Value::List((0..count).map(|_| self.value(kind)).collect())
            }
            10 => Value::Integer(self.u64().try_into().unwrap()),
            11 => Value::Integer(i64::from_le_bytes(self.bytes())),
            12 => {
                let _: [u8; 8] = self.bytes();
                Value::Skipped
            }
            other => panic!("value type {other}"),
        }
    }
}
