//! From a path to a model.

use std::path::Path;

use foretoken_model_base::{
    Config, LoadOptions, LoadReport, Model, ModelError, Result, Weights, find_family,
};

use crate::FAMILIES;

/// A loaded model and what is known about its files.
pub struct Loaded {
    /// The model.
    pub model: Box<dyn Model>,
    /// What was found and used.
    pub report: LoadReport,
    /// The configuration.
    pub config: Config,
}

/// Loads a folder with `config.json` and safetensors weights, a `.safetensors` file with a
/// `config.json` beside it, or a `.gguf` file.
pub fn load(path: &Path, options: LoadOptions) -> Result<Loaded> {
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
    let config = Config::open(folder)?;
    let name = config.text("model_type")?.ok_or_else(|| ModelError::Config {
        what: "model_type".into(),
        expected: "the name of a model family".into(),
        got: "nothing".into(),
    })?;
    let family = find_family(FAMILIES, name)?;
    let weights = Weights::open(path, options)?.quantized(config.quantization()?);
    let model = (family.build)(&config, &weights)?;
    let report = weights.finish(family.ignorable)?;
    Ok(Loaded { model, report, config })
}
