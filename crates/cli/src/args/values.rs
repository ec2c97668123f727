//! Values of single options.

use std::path::PathBuf;

use super::{Depth, DraftSource, DrafterKind};

/// Token ids of one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ids(pub(crate) Vec<u32>);

pub(super) fn draft_source(text: &str) -> Result<DraftSource, String> {
    Ok(match text {
        "auto" => DraftSource::Auto,
        "none" => DraftSource::None,
        path => DraftSource::Path(PathBuf::from(path)),
    })
}

pub(super) fn drafter_kind(text: &str) -> Result<DrafterKind, String> {
    match text {
        "auto" => Ok(DrafterKind::Auto),
        "mtp" => Ok(DrafterKind::Mtp),
        "ngram" => Ok(DrafterKind::Ngram),
        "model" => Ok(DrafterKind::Model),
        "block" => Ok(DrafterKind::Block),
        _ => Err("expected mtp, ngram, model, block or auto".into()),
    }
}

pub(super) fn kv_bits(text: &str) -> Result<usize, String> {
    match text {
        "8" => Ok(8),
        "4" => Ok(4),
        _ => Err("expected 8 or 4".into()),
    }
}

pub(super) fn depth(text: &str) -> Result<Depth, String> {
    match text {
        "auto" => Ok(Depth::Auto),
        number => number
            .parse()
            .map(Depth::Constant)
            .map_err(|_| "expected auto or a number of tokens, 0 or more".to_owned()),
    }
}

/// Depths, separated by commas.
pub(super) fn depths(text: &str) -> Result<Ids, String> {
    ids(text).map_err(|error| error.replace("a token id", "a depth"))
}

pub(super) fn ids(text: &str) -> Result<Ids, String> {
    let parts = text.split(',').map(str::trim);
    let parsed: Result<Vec<u32>, String> = match text.trim() {
        "" => Ok(Vec::new()),
        _ => parts.map(|part| part.parse().map_err(|_| format!("{part:?} is not a token id"))).collect(),
    };
    parsed.map(Ids)
}

pub(super) fn bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text
        .split_once('=')
        .and_then(|(id, value)| Some((id.trim().parse().ok()?, value.trim().parse::<f32>().ok()?)));
    parsed.ok_or_else(|| format!("expected ID=VALUE, for example 42=-1.5, got {text:?}"))
}
