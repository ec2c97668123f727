//! `foretoken inspect`: facts about a model, its weights and the machine.

use std::fmt::Write;

use anyhow::Result;
use foretoken_model_base::LoadReport;
use serde::Serialize;

use crate::{
    args::InspectArgs,
    load::{self, Known},
    machine::{self, Machine},
    output,
};

#[derive(Debug, Serialize)]
struct Inspection {
    model: Option<ModelPart>,
    weights: Option<WeightsPart>,
    machine: Machine,
}

#[derive(Debug, Serialize)]
struct ModelPart {
    family: &'static str,
    vocabulary: usize,
    context_length: usize,
    layers: usize,
    width: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    norm_epsilon: f32,
    rope_base: f32,
    /// All that end an answer: the configuration's and the tokenizer's.
    end_tokens: Vec<u32>,
    tokenizer: bool,
    chat_template: bool,
    load_seconds: f64,
}

#[derive(Debug, Serialize)]
struct WeightsPart {
    source: String,
    tensors_found: usize,
    tensors_used: usize,
    missing: Vec<String>,
    unused: Vec<String>,
    ignored: Vec<String>,
    stored_as: Vec<String>,
    quantization: Option<Quantization>,
    computed_as: String,
    draft_head_inside: bool,
    draft_head_files: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Quantization {
    group: usize,
    bits: usize,
}

pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let inspection = match &args.model {
        Some(model) => {
            let loaded = load::load(model, args.place, load::Wanted::default())?;
            let machine = loaded.worker.handle().call(|_| Machine::look())??;
            Inspection {
                model: Some(model_part(&loaded.known)),
                weights: Some(weights_part(&loaded.known.report)),
                machine,
            }
        }
        None => Inspection { model: None, weights: None, machine: bare(args.place.device)? },
    };
    match args.json {
        true => output::print(&serde_json::to_string(&inspection)?),
        false => output::print(text(&inspection).trim_end()),
    }
}

/// The machine without a model, looked at from a thread that has ended before this returns.
fn bare(device: crate::args::DeviceChoice) -> Result<Machine> {
    let look = move || machine::prepare(device).and_then(|_| Machine::look());
    match std::thread::spawn(look).join() {
        Ok(machine) => machine,
        Err(_) => anyhow::bail!("MLX cannot be used on this machine"),
    }
}

fn model_part(known: &Known) -> ModelPart {
    let facts = &known.facts;
    let tokenizer = known.tokenizer.get();
    ModelPart {
        family: facts.family,
        vocabulary: facts.vocabulary,
        context_length: facts.context_length,
        layers: facts.layers,
        width: facts.width,
        heads: facts.heads,
        kv_heads: facts.kv_heads,
        head_size: facts.head_size,
        norm_epsilon: facts.norm_epsilon,
        rope_base: facts.rope_base,
        end_tokens: tokenizer
            .map_or_else(|| facts.end_tokens.clone(), |t| t.end_tokens_with(&facts.end_tokens)),
        tokenizer: tokenizer.is_some(),
        chat_template: tokenizer.is_some_and(|t| t.has_chat_template()),
        load_seconds: known.load_seconds,
    }
}

fn weights_part(report: &LoadReport) -> WeightsPart {
    WeightsPart {
        source: report.source.clone(),
        tensors_found: report.found,
        tensors_used: report.used,
        missing: report.missing.clone(),
        unused: report.unused.clone(),
        ignored: report.ignored.clone(),
        stored_as: report.codings.clone(),
        quantization: report.quantization.map(|(group, bits)| Quantization { group, bits }),
        computed_as: format!("{:?}", report.dtype).to_lowercase(),
        draft_head_inside: report.draft.inside,
        draft_head_files: report.draft.files.iter().map(|path| path.display().to_string()).collect(),
    }
}

fn text(inspection: &Inspection) -> String {
    let mut out = String::new();
    if let Some(model) = &inspection.model {
        model_text(&mut out, model);
    }
    if let Some(weights) = &inspection.weights {
        weights_text(&mut out, weights);
    }
    machine_text(&mut out, &inspection.machine);
    out
}

// Writing to a string cannot fail, so the results are dropped.
fn model_text(out: &mut String, model: &ModelPart) {
    let _ = writeln!(out, "model       {}, {} layers, width {}", model.family, model.layers, model.width);
    let _ = writeln!(
        out,
        "attention   {} heads, {} key/value heads of {}, rotary base {}",
        model.heads, model.kv_heads, model.head_size, model.rope_base
    );
    let _ = writeln!(out, "vocabulary  {} tokens, ends {:?}", model.vocabulary, model.end_tokens);
    let text = match (model.tokenizer, model.chat_template) {
        (true, true) => "tokenizer and chat template",
        (true, false) => "tokenizer, no chat template (use --raw)",
        (false, _) => "no tokenizer (use --prompt-ids)",
    };
    let _ = writeln!(out, "text        {text}");
    let _ = writeln!(out, "context     {} tokens", model.context_length);
    let _ = writeln!(out, "loaded in   {:.2} s", model.load_seconds);
}

fn weights_text(out: &mut String, weights: &WeightsPart) {
    let list = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let _ = writeln!(out, "weights     {}", weights.source);
    let _ = writeln!(out, "tensors     {} found, {} used", weights.tensors_found, weights.tensors_used);
    let _ = writeln!(out, "missing     {}", list(&weights.missing));
    let _ = writeln!(out, "unused      {}", list(&weights.unused));
    let _ = writeln!(out, "left out    {}", list(&weights.ignored));
    let _ = writeln!(out, "stored as   {}", list(&weights.stored_as));
    if let Some(quantization) = &weights.quantization {
        let _ = writeln!(out, "packed      {} bits, groups of {}", quantization.bits, quantization.group);
    }
    let _ = writeln!(out, "computed as {}", weights.computed_as);
    let inside = if weights.draft_head_inside { "inside the checkpoint; " } else { "" };
    let _ = writeln!(out, "draft head  {inside}{}", list(&weights.draft_head_files));
}

fn machine_text(out: &mut String, machine: &Machine) {
    let _ = writeln!(out, "MLX         {}", machine.mlx_version);
    for device in &machine.devices {
        let state = match (device.available, device.in_use) {
            (true, true) => "in use",
            (true, false) => "available",
            (false, _) => "not available",
        };
        let _ = writeln!(out, "device      {} {state}", device.name);
    }
    match &machine.blas {
        Some(blas) => {
            let _ = writeln!(out, "BLAS        through {}", blas.library);
            if let Some(openblas) = &blas.openblas {
                let (core, threads) = (&openblas.core, openblas.threads);
                let _ = writeln!(out, "OpenBLAS    {} ({core}, {threads} threads)", openblas.config);
            }
        }
        None => drop(writeln!(out, "BLAS        chosen by the system")),
    }
    let memory = &machine.memory;
    let mib = |bytes: usize| bytes >> 20;
    let _ = writeln!(
        out,
        "memory      {} MiB in arrays, {} MiB kept for reuse, peak {} MiB, limit {} MiB",
        mib(memory.active_bytes),
        mib(memory.cached_bytes),
        mib(memory.peak_bytes),
        mib(memory.limit_bytes)
    );
}
