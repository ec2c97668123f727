//! The tokens that penalties look back on.

/// Every token of a request so far, prompt and output, in order.
#[derive(Debug, Clone, Default)]
pub struct History {
    ids: Vec<u32>,
    prompt: usize,
}

impl History {
    /// A history that starts with a prompt.
    pub fn new(prompt: &[u32]) -> Self {
        Self { ids: prompt.into(), prompt: prompt.len() }
    }

    /// How many tokens came after the prompt.
    pub fn produced(&self) -> usize {
        self.ids.len() - self.prompt
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
