//! The command line as clap reads it. Ranges of sampling options are checked by `sample`, not here.

mod sampling;
mod values;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use sampling::SamplingArgs;
pub(crate) use values::Ids;
use values::{depth, depths, draft_source, drafter_kind, ids, kv_bits};

/// Runs language models on MLX and decodes faster with lossless speculation.
#[derive(Debug, Parser)]
#[command(name = "foretoken", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one value for the whole process")]
pub(crate) enum Command {
    /// Answer one prompt, streamed to standard output.
    Generate(GenerateArgs),
    /// Log probabilities of a given sequence.
    Score(ScoreArgs),
    /// Check that speculation changes nothing: parity of texts, and a test of the distribution. Look-ups draft
    /// where no head is found.
    Audit(AuditArgs),
    /// Facts about a model, its weights, the devices and the libraries in use.
    Inspect(InspectArgs),
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) draft: DraftArgs,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Keep keys and values of full attention in this many bits: less memory, and another text.
    #[arg(long, value_name = "8|4", value_parser = kv_bits)]
    pub(crate) kv_bits: Option<usize>,
    /// Most tokens to produce; 0 fills the context.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) max_tokens: usize,
    /// Ends the answer before this text; may be repeated.
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// The answer is JSON that is valid under the schema in this file.
    #[arg(long, value_name = "FILE", conflicts_with = "grammar")]
    pub(crate) json_schema: Option<PathBuf>,
    /// The answer matches the grammar in this file: Lark, or a regular expression in a .regex file.
    #[arg(long, value_name = "FILE")]
    pub(crate) grammar: Option<PathBuf>,
    /// Plain and speculative answers get equal bits; slower.
    #[arg(long)]
    pub(crate) exact: bool,
    /// Colour tokens by where they came from; with --json, list it.
    #[arg(long)]
    pub(crate) show_drafts: bool,
    /// Report each token's log probability and the N most likely ones (needs --json).
    #[arg(long, value_name = "N", requires = "json")]
    pub(crate) logprobs: Option<usize>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ScoreArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// Also write all logits, T × V in float32, as the tensor `logits` of this safetensors file.
    #[arg(long, value_name = "FILE")]
    pub(crate) logits: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// A user message to answer; may be repeated. Without any, a few of our own.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: Vec<String>,
    /// A prompt as token ids; may be repeated.
    #[arg(long, value_name = "1,2,3", value_parser = ids)]
    pub(crate) prompt_ids: Vec<Ids>,
    /// Tokens of every answer.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
    /// Depths to compare with plain decoding; by default 1, 4 and 8, as far as the drafter goes.
    #[arg(long, value_name = "1,4,8", value_parser = depths)]
    pub(crate) depths: Option<Ids>,
    /// How many seeded answers are compared for each prompt and depth, besides the greedy one.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seeds: u64,
    /// How many answers the test of the distribution draws; 0 leaves it out.
    #[arg(long, value_name = "N", default_value_t = 300)]
    pub(crate) draws: usize,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Folder with config.json and safetensors, or a .gguf file; without it only the machine is described.
    #[arg(long, value_name = "PATH")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Folder with config.json and safetensors, or a .gguf file.
    #[arg(long, value_name = "PATH")]
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct PlaceArgs {
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto)]
    pub(crate) device: DeviceChoice,
    /// Type of the weights; auto is f32 on the CPU and as stored on a GPU.
    #[arg(long, value_enum, default_value_t = DtypeChoice::Auto)]
    pub(crate) dtype: DtypeChoice,
}

/// Which drafters are loaded.
#[derive(Debug, Args)]
pub(crate) struct WhichArgs {
    /// A head or draft model (file or folder), auto (a head in the model's folder), or none; may be repeated.
    #[arg(long, value_name = "FILE|FOLDER|auto|none", default_value = "auto", value_parser = draft_source)]
    pub(crate) draft: Vec<DraftSource>,
    /// The kinds of drafters: mtp, ngram (look-ups, needs no --draft), model, block, or auto. Of several, each
    /// round asks the one that promises most, or none.
    #[arg(long, value_name = "KIND,…", default_value = "auto", value_delimiter = ',', value_parser = drafter_kind)]
    pub(crate) drafter: Vec<DrafterKind>,
}

#[derive(Debug, Args)]
pub(crate) struct DraftArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// How many tokens to draft per round, or auto.
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = depth, allow_negative_numbers = true)]
    pub(crate) depth: Depth,
}

#[derive(Debug, Args)]
pub(crate) struct PromptArgs {
    /// A user message; the model's chat template is applied.
    #[arg(
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "prompt_ids",
        required_unless_present = "prompt_ids"
    )]
    pub(crate) prompt: Option<String>,
    /// Continue the prompt as it is, without the chat template.
    #[arg(long, requires = "prompt")]
    pub(crate) raw: bool,
    /// The prompt as token ids, separated by commas.
    #[arg(long, value_name = "1,2,3", value_parser = ids)]
    pub(crate) prompt_ids: Option<Ids>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceChoice {
    Auto,
    Cpu,
    Gpu,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DtypeChoice {
    Auto,
    F32,
    Bf16,
}

/// Where the drafter's weights come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DraftSource {
    Auto,
    None,
    Path(PathBuf),
}

/// What kind of drafter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrafterKind {
    Auto,
    Mtp,
    Ngram,
    Model,
    Block,
}

impl DrafterKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Mtp => "mtp",
            Self::Ngram => "ngram",
            Self::Model => "model",
            Self::Block => "block",
        }
    }
}

/// How deep to draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    Auto,
    Constant(usize),
}

#[cfg(test)]
mod tests;
