//! A table of model families, and the look-up in it.

use crate::{
    Config, Model, ModelError, Result,
    weights::{GgufFile, Renamed, Weights},
};

/// One family: how a configuration names it, and how it is built.
#[derive(Clone, Copy)]
pub struct Family {
    /// The value of `model_type`.
    pub name: &'static str,
    /// Endings of tensor names that carry nothing this family needs, and beginnings, which end in a dot.
    pub ignorable: &'static [&'static str],
    /// Builds the model; every weight is read here.
    pub build: fn(&Config, &Weights) -> Result<Box<dyn Model>>,
    /// How GGUF files hold this family; `None` when they are not read.
    pub gguf: Option<GgufFamily>,
}

/// One family inside GGUF files.
#[derive(Clone, Copy)]
pub struct GgufFamily {
    /// The value of `general.architecture`.
    pub architecture: &'static str,
    /// The configuration that the metadata amounts to.
    pub config: fn(&GgufFile) -> Result<Config>,
    /// The checkpoint's name for a tensor of the file.
    pub rename: fn(&Config, &str) -> Option<Renamed>,
}

/// The family of a `model_type`; the error lists the known ones.
pub fn find_family(families: &'static [Family], name: &str) -> Result<&'static Family> {
    let known = families.iter().map(|f| (f.name, f));
    find(known, "model_type", name)
}

/// The family of a GGUF architecture; the error lists the known ones.
pub fn find_gguf_family(families: &'static [Family], name: &str) -> Result<(&'static Family, GgufFamily)> {
    let known = families.iter().filter_map(|f| Some((f.gguf?.architecture, (f, f.gguf?))));
    find(known, "general.architecture", name)
}

fn find<T>(known: impl Iterator<Item = (&'static str, T)>, what: &str, name: &str) -> Result<T> {
    let mut names = Vec::new();
    for (known, family) in known {
        if known == name {
            return Ok(family);
        }
        names.push(known);
    }
    let expected = format!("one of: {}", names.join(", "));
    Err(ModelError::Config { what: what.into(), expected, got: format!("{name:?}") })
}
