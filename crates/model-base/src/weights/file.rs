//! A file mapped into memory, and the errors that name it.

use std::{fs::File, ops::Deref, path::Path};

use memmap2::Mmap;

use crate::{ModelError, Result};

/// What to do about a file that ends early or contradicts itself.
pub(crate) const DOWNLOAD_AGAIN: &str = "the download may be incomplete: fetch the file again";

/// A read-only file. Its bytes are hostile until a reader has checked them.
///
/// Nothing keeps another process from shortening the file while it is mapped; loading copies what it
/// needs and drops the mapping.
pub(crate) struct MappedFile {
    name: String,
    map: Option<Mmap>,
}

impl MappedFile {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let io = |source| ModelError::Io { path: name.clone(), source };
        let file = File::open(path).map_err(io)?;
        let about = file.metadata().map_err(io)?;
        if about.is_dir() {
            let source = std::io::Error::new(std::io::ErrorKind::IsADirectory, "it is a folder");
            return Err(io(source));
        }
        let map = match about.len() {
            0 => None, // An empty file cannot be mapped; the reader says what is wrong with it.
            // SAFETY: the mapping is private to this reader and read-only; the risk of a file that is
            // shortened meanwhile is stated above.
            _ => Some(unsafe { Mmap::map(&file) }.map_err(io)?),
        };
        Ok(Self { name, map })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// An error about this file.
    pub(crate) fn fault(
        &self,
        what: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> ModelError {
        ModelError::File {
            file: self.name.clone(),
            what: what.into(),
            expected: expected.into(),
            got: got.into(),
            next: DOWNLOAD_AGAIN,
        }
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}
