//! From paths to a worker that serves: families, drafters and devices meet here.

use std::{path::Path, rc::Rc, sync::mpsc::channel, time::Instant};

use anyhow::{Context, Result, anyhow, bail};
use foretoken_model_base::{LoadOptions, LoadReport, Model, ModelFacts, weights::ComputeType};
use foretoken_runner::{Runner, RunnerError, Worker};
use foretoken_speculate::DraftPolicy;
use mlx_rs::DeviceType;

use crate::{
    args::{Depth, DraftSource, DrafterKind, DtypeChoice, PlaceArgs},
    drafter::{self, Target},
    failure::Usage,
    machine,
    sink::spinner,
    tokenizer::{self, Found},
};

/// A loaded model on its thread, and what is known about it here.
pub(crate) struct Loaded {
    pub(crate) worker: Worker,
    pub(crate) known: Known,
}

/// What the worker thread tells about a model that it loaded.
pub(crate) struct Known {
    pub(crate) facts: ModelFacts,
    pub(crate) report: LoadReport,
    pub(crate) tokenizer: Found,
    /// The loaded drafter's name and the deepest proposal it makes.
    pub(crate) drafter: Option<(&'static str, usize)>,
    /// Whether sums round as float32 does.
    pub(crate) computes_in_f32: bool,
    pub(crate) load_seconds: f64,
}

/// What a command wants besides the model itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted<'a> {
    pub(crate) draft: Option<(&'a DraftSource, DrafterKind)>,
    /// Bits of keys and values; absent as the model computes them.
    pub(crate) kv_bits: Option<usize>,
    /// Look-ups draft where nothing else does.
    pub(crate) look_up: bool,
}

/// Loads a model, and a drafter when one is wanted, on a thread of their own.
pub(crate) fn load(model: &Path, place: PlaceArgs, wanted: Wanted<'_>) -> Result<Loaded> {
    if !model.exists() {
        bail!(
            "no model at {}: give --model a folder with config.json and safetensors files, or a .gguf file",
            model.display()
        );
    }
    let draft = wanted.draft.map(|(source, kind)| (source.clone(), kind));
    let (path, kv_bits, look_up) = (model.to_path_buf(), wanted.kv_bits, wanted.look_up);
    let (tell, told) = channel();
    let waiting = spinner(format!("loading {}", model.display()));
    let worker = Worker::spawn(move || {
        build(&path, place, draft, kv_bits, look_up).map(|(runner, known)| {
            let _ = tell.send(known);
            runner
        })
    });
    waiting.finish_and_clear();
    let worker = worker.map_err(unwrap_load)?;
    let known = told.recv().context("the worker thread ended while loading")?;
    Ok(Loaded { worker, known })
}

/// The builder's own error, without the runner's wrapping.
fn unwrap_load(error: RunnerError) -> anyhow::Error {
    match error {
        RunnerError::Load { source } => anyhow!(source),
        other => anyhow!(other),
    }
}

/// Runs on the worker thread.
fn build(
    path: &Path,
    place: PlaceArgs,
    draft: Option<(DraftSource, DrafterKind)>,
    kv_bits: Option<usize>,
    look_up: bool,
) -> Result<(Runner, Known)> {
    let started = Instant::now();
    let options = load_options(machine::prepare(place.device)?, place.dtype);
    let loaded = foretoken_models::load(path, options)?;
    let model: Rc<dyn Model> = Rc::from(match kv_bits {
        Some(bits) => packed(loaded.model, bits).context("--kv-bits cannot be used with this model")?,
        None => loaded.model,
    });
    let tokenizer = tokenizer::find(path, loaded.gguf.as_deref());
    let mut runner = Runner::new(model.clone());
    if let Some((source, kind)) = draft {
        let target = Target { path, model: model.as_ref(), tokenizer: &tokenizer, options };
        let found = drafter::find(&target, source, kind)?;
        let drafter = match found {
            None if look_up => Some(drafter::look_up()?),
            found => found,
        };
        runner = drafter.into_iter().fold(runner, |runner, drafter| runner.with_drafter(drafter, None));
    }
    let load_seconds = started.elapsed().as_secs_f64();
    let facts = model.facts().clone();
    let drafter = runner.drafter().map(|drafter| (drafter.facts().name, drafter.facts().max_depth));
    let computes_in_f32 = options.compute == ComputeType::F32;
    let known = Known { facts, report: loaded.report, tokenizer, drafter, computes_in_f32, load_seconds };
    Ok((runner.with_load_seconds(load_seconds), known))
}

fn packed(model: Box<dyn Model>, bits: usize) -> foretoken_model_base::Result<Box<dyn Model>> {
    let format = foretoken_models::kv_format(model.as_ref(), bits)?;
    foretoken_models::with_packed_kv(model, format)
}

fn load_options(device: DeviceType, dtype: DtypeChoice) -> LoadOptions {
    let base = match device {
        DeviceType::Cpu => LoadOptions::cpu(),
        DeviceType::Gpu => LoadOptions::gpu(),
    };
    let compute = match dtype {
        DtypeChoice::Auto => base.compute,
        DtypeChoice::F32 => ComputeType::F32,
        DtypeChoice::Bf16 => ComputeType::Bf16,
    };
    LoadOptions { compute, ..base }
}

/// The policy that `--depth` asks for; `None` leaves it to the runner.
pub(crate) fn policy(depth: Depth, known: &Known) -> Result<Option<DraftPolicy>> {
    match (depth, known.drafter) {
        (Depth::Auto, _) => Ok(None),
        (Depth::Constant(depth), Some((name, most))) if depth > most => {
            Err(Usage::new(format!("--depth: expected at most {most} for {name}, got {depth}")).into())
        }
        (Depth::Constant(depth), _) => Ok(Some(DraftPolicy::Constant(depth))),
    }
}
