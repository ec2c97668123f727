//! A table of model families, and the look-up in it.

use crate::{Config, Model, ModelError, Result, weights::Weights};

/// One family: how a configuration names it, and how it is built.
#[derive(Clone, Copy)]
pub struct Family {
    /// The value of `model_type`.
    pub name: &'static str,
    /// Endings of tensor names that carry nothing this family needs.
    pub ignorable: &'static [&'static str],
    /// Builds the model; every weight is read here.
    pub build: fn(&Config, &Weights) -> Result<Box<dyn Model>>,
}

/// The family of a name; the error lists the known ones.
pub fn find_family(families: &'static [Family], name: &str) -> Result<&'static Family> {
    families.iter().find(|f| f.name == name).ok_or_else(|| {
        let known: Vec<_> = families.iter().map(|f| f.name).collect();
        ModelError::Config {
            what: "model_type".into(),
            expected: format!("one of: {}", known.join(", ")),
            got: format!("{name:?}"),
        }
    })
}
