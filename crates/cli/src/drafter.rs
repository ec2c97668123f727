//! From `--draft` and `--drafter` to a drafter.

use std::{
    path::{Path, PathBuf},
    rc::Rc,
};

use anyhow::{Context, Result, bail};
use foretoken_draft_model::{ModelDrafter, TokenTable, check_vocabulary};
use foretoken_draft_mtp as mtp;
use foretoken_draft_ngram::{NgramDrafter, NgramOptions};
use foretoken_model_base::{LoadOptions, Model, ModelFacts};
use foretoken_speculate::Drafter;
use foretoken_text::Tokenizer;

use crate::{
    args::{DraftSource, DrafterKind},
    tokenizer::{self, Found},
};

/// The model to draft for.
pub(crate) struct Target<'a> {
    pub(crate) path: &'a Path,
    pub(crate) model: &'a dyn Model,
    pub(crate) tokenizer: &'a Found,
    pub(crate) options: LoadOptions,
}

/// The drafter that the command line asks for; `None` when there is none to be found.
pub(crate) fn find(
    target: &Target<'_>,
    source: DraftSource,
    kind: DrafterKind,
) -> Result<Option<Rc<dyn Drafter>>> {
    if source == DraftSource::None {
        return Ok(None);
    }
    if kind == DrafterKind::Ngram {
        return look_up().map(Some);
    }
    let Some(path) = place(target, source)? else {
        return match kind {
            DrafterKind::Auto => Ok(None),
            _ => bail!(
                "--drafter: nothing to load in {}; name a head or a draft model with --draft FILE",
                target.path.display()
            ),
        };
    };
    match kind {
        DrafterKind::Model => second_model(target, &path).map(Some),
        DrafterKind::Auto if is_model(&path) => second_model(target, &path).map(Some),
        _ => Ok(Some(mtp::load(&path, target.model).context("the draft head cannot be used")?)),
    }
}

/// Prompt look-up, which needs no file.
pub(crate) fn look_up() -> Result<Rc<dyn Drafter>> {
    Ok(Rc::new(NgramDrafter::new(NgramOptions::default())?))
}

/// Where the drafter's files are.
fn place(target: &Target<'_>, source: DraftSource) -> Result<Option<PathBuf>> {
    match source {
        DraftSource::Path(path) if !path.exists() => {
            bail!(
                "nothing at {}: give --draft a head's file or folder, a draft model, or none",
                path.display()
            )
        }
        DraftSource::Path(path) => Ok(Some(path)),
        // Only a folder belongs to one model; beside a .gguf file there may be anything.
        DraftSource::Auto if target.path.is_dir() => Ok(mtp::find_head(target.path)?),
        _ => Ok(None),
    }
}

/// Whether a path holds a whole model: a GGUF file, or a folder whose configuration names a family.
fn is_model(path: &Path) -> bool {
    if path.extension().is_some_and(|kind| kind == "gguf") {
        return true;
    }
    let config = std::fs::read(path.join("config.json")).ok();
    let config: Option<serde_json::Value> = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let family = config.as_ref().and_then(|config| config["model_type"].as_str());
    family.is_some_and(|family| foretoken_models::FAMILIES.iter().any(|known| known.name == family))
}

fn second_model(target: &Target<'_>, path: &Path) -> Result<Rc<dyn Drafter>> {
    let loaded = foretoken_models::load(path, target.options).context("the draft model cannot be loaded")?;
    let model: Rc<dyn Model> = Rc::from(loaded.model);
    let tokenizer = tokenizer::find(path, loaded.gguf.as_deref());
    let own = tokenizer.needed("the draft model", path)?;
    let theirs = target.tokenizer.needed("a draft model", target.path)?;
    let (facts, draft) = (target.model.facts(), model.facts());
    let shared = check_vocabulary(
        &TokenTable { tokens: &tokens(theirs), ends: &ends(theirs, facts) },
        &TokenTable { tokens: &tokens(own), ends: &ends(own, draft) },
    )?;
    Ok(Rc::new(ModelDrafter::new(shared, facts, model)?))
}

fn tokens(tokenizer: &Tokenizer) -> Vec<Option<Vec<u8>>> {
    let ids = 0..tokenizer.vocabulary_size() as u32;
    ids.map(|id| tokenizer.token_bytes(id).map(<[u8]>::to_vec)).collect()
}

fn ends(tokenizer: &Tokenizer, facts: &ModelFacts) -> Vec<u32> {
    tokenizer.end_tokens_with(&facts.end_tokens)
}
