//! From a path to a model.

use std::{path::Path, rc::Rc};

use foretoken_model_base::{
    Config, Family, LoadOptions, LoadReport, Model, ModelError, Result, Weights, find_family,
    find_gguf_family,
    weights::{GgufFile, GgufMetadata},
};

use crate::FAMILIES;

/// A loaded model and what is known about its files.
pub struct Loaded {
    /// The model.
    pub model: Box<dyn Model>,
    /// What was found and used.
    pub report: LoadReport,
    /// The configuration, with the end tokens of all configuration files.
    pub config: Config,
    /// The metadata of a GGUF file, where its tokenizer and chat template are.
    pub gguf: Option<Rc<GgufMetadata>>,
}

/// Loads a folder with `config.json` and safetensors weights, a `.safetensors` file with a
/// `config.json` beside it, or a `.gguf` file. Either everything fits or nothing is loaded.
pub fn load(path: &Path, options: LoadOptions) -> Result<Loaded> {
    if !path.is_dir() && GgufFile::recognises(path) {
        return load_gguf(path, options);
    }
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
    let config = Config::open(folder)?;
    let name = config.text("model_type")?.ok_or_else(|| absent("model_type"))?;
    let family = find_family(FAMILIES, name)?;
    let weights = Weights::open(path, options)?.quantized(config.quantization()?);
    build(family, config, weights, None)
}

fn load_gguf(path: &Path, options: LoadOptions) -> Result<Loaded> {
    let file = GgufFile::open(path)?;
    let key = "general.architecture";
    let name = file.metadata().get_str(key).ok_or_else(|| absent(key))?;
    let (family, gguf) = find_gguf_family(FAMILIES, name)?;
    let config = (gguf.config)(&file)?;
    let weights = file.weights(options, |name| (gguf.rename)(&config, name))?;
    build(family, config, weights, Some(file.metadata().clone()))
}

fn build(
    family: &Family,
    config: Config,
    weights: Weights,
    gguf: Option<Rc<GgufMetadata>>,
) -> Result<Loaded> {
    let model = (family.build)(&config, &weights)?;
    let report = weights.finish(family.ignorable)?;
    Ok(Loaded { model, report, config, gguf })
}

fn absent(what: &str) -> ModelError {
    ModelError::Config {
        what: what.into(),
        expected: "the name of a model family".into(),
        got: "nothing".into(),
    }
}
