//! From paths to a worker that serves: families, drafters and devices meet here.

use std::{path::Path, rc::Rc, sync::mpsc::channel, time::Instant};

use anyhow::{Context, Result, anyhow, bail};
use foretoken_model_base::{LoadOptions, LoadReport, Model, ModelFacts, weights::ComputeType};
use foretoken_runner::{Runner, RunnerError, Worker};
use mlx_rs::DeviceType;

use crate::{
    args::{DtypeChoice, PlaceArgs},
    drafter::{self, Asked, Target},
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
    /// The first drafter's name and the deepest proposal it makes.
    pub(crate) drafter: Option<(&'static str, usize)>,
    /// Whether sums round as float32 does.
    pub(crate) computes_in_f32: bool,
    pub(crate) load_seconds: f64,
}

/// What a command wants besides the model itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    pub(crate) draft: Option<Asked>,
    /// Bits of keys and values; absent as the model computes them.
    pub(crate) kv_bits: Option<usize>,
}

/// Loads a model, and a drafter when one is wanted, on a thread of their own.
pub(crate) fn load(model: &Path, place: PlaceArgs, wanted: Wanted) -> Result<Loaded> {
    if !model.exists() {
        bail!(
            "no model at {}: give --model a folder with config.json and safetensors files, or a .gguf file",
            model.display()
        );
    }
    let path = model.to_path_buf();
    let (tell, told) = channel();
    let waiting = spinner(format!("loading {}", model.display()));
    let worker = Worker::spawn(move || {
        build(&path, place, &wanted).map(|(runner, known)| {
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
fn build(path: &Path, place: PlaceArgs, wanted: &Wanted) -> Result<(Runner, Known)> {
    let started = Instant::now();
    let options = load_options(machine::prepare(place.device)?, place.dtype);
    let loaded = foretoken_models::load(path, options)?;
    let model: Rc<dyn Model> = Rc::from(match wanted.kv_bits {
        Some(bits) => packed(loaded.model, bits).context("--kv-bits cannot be used with this model")?,
        None => loaded.model,
    });
    let tokenizer = tokenizer::find(path, loaded.gguf.as_deref());
    let mut runner = Runner::new(model.clone());
    if let Some(asked) = &wanted.draft {
        let target = Target { path, model: model.as_ref(), tokenizer: &tokenizer, options };
        let drafters = drafter::find(&target, asked)?;
        if !drafters.is_empty() {
            runner = runner.with_drafters(drafters, None)?;
        }
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
