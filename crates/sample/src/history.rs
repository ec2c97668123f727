//! The tokens that penalties look back on.

/// Every token of a request so far, prompt and output, in order.
#[derive(Debug, Clone, Default)]
pub struct History {
    ids: Vec<u32>,
}

impl History {
    /// A history that starts with `ids`.
    pub fn new(ids: &[u32]) -> Self {
        Self { ids: ids.into() }
    }

    /// Appends tokens.
    pub fn extend(&mut self, ids: &[u32]) {
        self.ids.extend_from_slice(ids);
    }

    /// All tokens.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }
}
