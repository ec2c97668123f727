//! From `--draft`, `--drafter` and `--depth` to drafters and a policy.

use std::{
    path::{Path, PathBuf},
    rc::Rc,
};

use anyhow::{Context, Result, bail};
use foretoken_draft_block as block;
use foretoken_draft_model::{ModelDrafter, TokenTable, check_vocabulary};
use foretoken_draft_mtp as mtp;
use foretoken_draft_ngram::{NgramDrafter, NgramOptions};
use foretoken_model_base::{LoadOptions, Model, ModelFacts};
use foretoken_speculate::{DraftPolicy, Drafter};
use foretoken_text::Tokenizer;

use crate::{
    args::{Depth, DraftSource, DrafterKind, WhichArgs},
    failure::Usage,
    tokenizer::{self, Found},
};

/// The model to draft for.
pub(crate) struct Target<'a> {
    pub(crate) path: &'a Path,
    pub(crate) model: &'a dyn Model,
    pub(crate) tokenizer: &'a Found,
    pub(crate) options: LoadOptions,
}

/// What the command line asks for.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    places: Places,
    /// The kinds named; none means whatever is found.
    kinds: Vec<DrafterKind>,
    /// Look-ups draft where nothing else does.
    look_up: bool,
}

/// Where drafters come from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Places {
    Nowhere,
    /// The model's folder.
    Beside,
    At(Vec<PathBuf>),
}

impl Asked {
    /// Reads `--draft` and `--drafter`, which must not contradict each other.
    pub(crate) fn new(args: &WhichArgs) -> Result<Self> {
        let named: Vec<DrafterKind> =
            args.drafter.iter().copied().filter(|kind| *kind != DrafterKind::Auto).collect();
        if named.len() != args.drafter.len() && args.drafter.len() > 1 {
            return Err(Usage::new("--drafter: auto stands alone; name the others, or leave it out").into());
        }
        if let Some(twice) = (1..named.len()).find(|&i| named[..i].contains(&named[i])) {
            return Err(Usage::new(format!("--drafter: {} is named twice", named[twice].name())).into());
        }
        let places = Places::new(&args.draft)?;
        if let (Places::Nowhere, [kind, ..]) = (&places, &named[..]) {
            let text = format!("--draft none leaves nothing for --drafter {}; leave one out", kind.name());
            return Err(Usage::new(text).into());
        }
        Ok(Self { places, kinds: named, look_up: false })
    }

    /// The same, with look-ups where nothing else drafts.
    pub(crate) fn or_look_up(self) -> Self {
        Self { look_up: true, ..self }
    }

    /// Whether nothing may draft.
    pub(crate) fn is_nothing(&self) -> bool {
        self.places == Places::Nowhere
    }

    /// The kinds named that need files.
    fn in_files(&self) -> impl Iterator<Item = DrafterKind> {
        self.kinds.iter().copied().filter(|kind| *kind != DrafterKind::Ngram)
    }
}

impl Places {
    fn new(sources: &[DraftSource]) -> Result<Self> {
        let paths = sources.iter().filter_map(|source| match source {
            DraftSource::Path(path) => Some(path.clone()),
            _ => None,
        });
        let paths: Vec<PathBuf> = paths.collect();
        match sources {
            [] | [DraftSource::Auto] => Ok(Self::Beside),
            [DraftSource::None] => Ok(Self::Nowhere),
            _ if paths.len() == sources.len() => Ok(Self::At(paths)),
            _ => Err(Usage::new("--draft: auto and none stand alone; name files or folders").into()),
        }
    }
}

/// The drafters that the command line asks for, in the order in which they are asked; none when there is
/// nothing to be found.
pub(crate) fn find(target: &Target<'_>, asked: &Asked) -> Result<Vec<Rc<dyn Drafter>>> {
    if asked.is_nothing() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for (path, kind) in files(target, asked)? {
        found.push(match kind {
            DrafterKind::Model => second_model(target, &path)?,
            DrafterKind::Block => {
                block::load(&path, target.model).context("the block head cannot be used")?
            }
            _ => mtp::load(&path, target.model).context("the draft head cannot be used")?,
        });
    }
    if asked.kinds.contains(&DrafterKind::Ngram) || asked.look_up && found.is_empty() {
        found.push(Rc::new(NgramDrafter::new(NgramOptions::default())?));
    }
    Ok(found)
}

/// The files to load, with what is in them.
fn files(target: &Target<'_>, asked: &Asked) -> Result<Vec<(PathBuf, DrafterKind)>> {
    // Look-ups alone need no file, so none is looked for.
    if !asked.kinds.is_empty() && asked.in_files().next().is_none() && asked.places == Places::Beside {
        return Ok(Vec::new());
    }
    let paths = match &asked.places {
        Places::At(paths) => paths.clone(),
        // Only a folder belongs to one model; beside a .gguf file there may be anything.
        _ if target.path.is_dir() => mtp::find_head(target.path)?.into_iter().collect(),
        _ => Vec::new(),
    };
    let named: Vec<DrafterKind> = asked.in_files().collect();
    if let Some(path) = paths.iter().find(|path| !path.exists()) {
        bail!("nothing at {}: give --draft a head's file or folder, a draft model, or none", path.display());
    }
    if let ([path], [kind]) = (&paths[..], &named[..]) {
        // The loader knows best what is missing in a file that is not what it should be.
        return Ok(vec![(path.clone(), *kind)]);
    }
    let files: Vec<_> = paths.into_iter().map(|path| (path.clone(), kind_of(&path))).collect();
    if let Some(kind) = named.iter().find(|&kind| files.iter().all(|(_, held)| held != kind)) {
        let (name, folder) = (kind.name(), target.path.display());
        bail!("--drafter {name}: none to load in {folder}; name a head or a draft model with --draft FILE");
    }
    if let Some((path, kind)) =
        files.iter().find(|(_, kind)| !asked.kinds.is_empty() && !named.contains(kind))
    {
        let (file, name) = (path.display(), kind.name());
        bail!("--draft {file}: holds {name}, which --drafter does not name; add {name} to it");
    }
    Ok(files)
}

/// What a path holds: a whole model is a GGUF file, or a folder whose configuration names a family.
fn kind_of(path: &Path) -> DrafterKind {
    if path.extension().is_some_and(|kind| kind == "gguf") {
        return DrafterKind::Model;
    }
    if path.is_dir() && block::is_block_head(path) {
        return DrafterKind::Block;
    }
    let config = std::fs::read(path.join("config.json")).ok();
    let config: Option<serde_json::Value> = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let family = config.as_ref().and_then(|config| config["model_type"].as_str());
    match family.is_some_and(|family| foretoken_models::FAMILIES.iter().any(|known| known.name == family)) {
        true => DrafterKind::Model,
        false => DrafterKind::Mtp,
    }
}

/// The policy that `--depth` asks for; `None` leaves it to the runner. `first` is the first drafter's name
/// and the deepest proposal it makes.
pub(crate) fn policy(depth: Depth, first: Option<(&'static str, usize)>) -> Result<Option<DraftPolicy>> {
    match (depth, first) {
        (Depth::Auto, _) => Ok(None),
        (Depth::Constant(depth), Some((name, most))) if depth > most => {
            Err(Usage::new(format!("--depth: expected at most {most} for {name}, got {depth}")).into())
        }
        (Depth::Constant(depth), _) => Ok(Some(DraftPolicy::Constant(depth))),
    }
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
