//! From a folder to a drafter: the configuration, the tensors, and whether both fit the target.

use std::{path::Path, rc::Rc};

use foretoken_model_base::{
    Config, Model, ModelError,
    weights::{ComputeType, LoadOptions, Weights},
};
use foretoken_speculate::{DraftError, Drafter};
use mlx_rs::{Array, Dtype};

use crate::{BlockDrafter, BlockHead};

/// The `model_type` of a block head's `config.json`.
pub const MODEL_TYPE: &str = "foretoken_block";

/// What to do about a head that cannot be used.
const NEXT: &str = "use a head that was trained for this target, or --draft none";

/// Whether a folder holds a block head: its configuration says so. A folder without a readable configuration
/// does not.
pub fn is_block_head(folder: &Path) -> bool {
    let config = Config::open(folder).ok();
    config.is_some_and(|config| matches!(config.text("model_type"), Ok(Some(MODEL_TYPE))))
}

/// Loads the head in a folder, `config.json` and safetensors files, for `model`.
///
/// The drafter keeps no reference to the model; it must be used with the model it was checked against.
pub fn load(folder: &Path, model: &dyn Model) -> Result<Rc<dyn Drafter>, DraftError> {
    let config = Config::open(folder)?;
    let weights = Weights::open(folder, load_options(model)?)?;
    drafter(&config, weights, model).map_err(|error| match error {
        DraftError::Model(error) => in_file(&folder.join("config.json"), error).into(),
        other => other,
    })
}

/// The drafter for a configuration and a table of tensors. Each of them must fit and be used.
pub fn drafter(config: &Config, weights: Weights, model: &dyn Model) -> Result<Rc<dyn Drafter>, DraftError> {
    let source = weights.report(&[]).source;
    match head(config, weights, model) {
        Ok(head) => Ok(Rc::new(BlockDrafter::new(Rc::new(head)))),
        Err(error) => Err(in_weights(source, error).into()),
    }
}

fn head(config: &Config, weights: Weights, model: &dyn Model) -> Result<BlockHead, ModelError> {
    let head = BlockHead::load(config, &weights, model)?;
    weights.finish(&[])?;
    Ok(head)
}

/// How to load a head for this model: in the type of the target's embeddings.
pub fn load_options(model: &dyn Model) -> Result<LoadOptions, ModelError> {
    let Some(target) = model.mtp() else {
        return Err(ModelError::Input {
            what: "target of a block head",
            expected: "a model that shares its embeddings".into(),
            got: model.facts().family.into(),
        });
    };
    let probe = target.token_embeddings(&Array::from_slice(&[0u32], &[1, 1]))?;
    let compute = if probe.dtype() == Dtype::Bfloat16 { ComputeType::Bf16 } else { ComputeType::F32 };
    Ok(LoadOptions { compute, ..LoadOptions::detect()? })
}

/// An error about a tensor, with the file it is in and a next step that fits a head.
fn in_weights(file: String, error: ModelError) -> ModelError {
    match error {
        ModelError::Tensor { what, expected, got, .. } => {
            ModelError::File { file, what: format!("tensor {what}"), expected, got, next: NEXT }
        }
        // The ids of the draft vocabulary.
        ModelError::Input { what, expected, got } => {
            ModelError::File { file, what: format!("tensor {what}"), expected, got, next: NEXT }
        }
        other => other,
    }
}

/// The same for a key of the configuration.
fn in_file(file: &Path, error: ModelError) -> ModelError {
    match error {
        ModelError::Config { what, expected, got } => {
            ModelError::File { file: file.display().to_string(), what, expected, got, next: NEXT }
        }
        other => other,
    }
}
