//! A bounds-checked walk over the bytes of a GGUF header.

use crate::{Result, weights::file::MappedFile};

/// A position in the file that never leaves it.
pub(super) struct Reader<'a> {
    file: &'a MappedFile,
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a MappedFile) -> Self {
        Self { file, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The next `length` bytes, which belong to `what`.
    pub(super) fn bytes(&mut self, what: &str, length: u64) -> Result<&'a [u8]> {
        let left = &self.file[self.at..];
        match usize::try_from(length).ok().and_then(|n| left.get(..n)) {
            Some(bytes) => {
                self.at += bytes.len();
                Ok(bytes)
            }
            None => Err(self.file.fault(what, format!("{length} bytes"), format!("{} left", left.len()))),
        }
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(what, N as u64)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A number of things that take at least `least` bytes each: more than fit cannot be meant.
    pub(super) fn count(&mut self, what: &str, least: u64) -> Result<u64> {
        let count = self.u64(what)?;
        let most = (self.file.len() - self.at) as u64 / least;
        if count > most {
            let expected = format!("at most {most}, which the file could hold");
            return Err(self.file.fault(what, expected, count.to_string()));
        }
        Ok(count)
    }

    /// A text; bytes that are not UTF-8 become replacement characters.
    pub(super) fn text(&mut self, what: &str) -> Result<String> {
        let length = self.u64(what)?;
        Ok(String::from_utf8_lossy(self.bytes(what, length)?).into_owned())
    }
}
