//! The command line as clap reads it. Ranges of sampling options are checked by `sample`, not here.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use foretoken_sample::{SamplingOptions, Seed};

/// Runs language models on MLX and decodes faster with lossless speculation.
#[derive(Debug, Parser)]
#[command(name = "foretoken", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one prompt, streamed to standard output.
    Generate(GenerateArgs),
    /// Log probabilities of a given sequence.
    Score(ScoreArgs),
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
    /// Report each token's log probability and the N most likely ones (needs --json; decodes plainly).
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

#[derive(Debug, Args)]
pub(crate) struct DraftArgs {
    /// A head (file or folder), auto (one found in the model's folder), or none.
    #[arg(long, value_name = "FILE|FOLDER|auto|none", default_value = "auto", value_parser = draft_source)]
    pub(crate) draft: DraftSource,
    /// The kind of drafter: mtp, or auto.
    #[arg(long, value_name = "mtp|auto", default_value = "auto", value_parser = drafter_kind)]
    pub(crate) drafter: DrafterKind,
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

#[derive(Debug, Args)]
pub(crate) struct SamplingArgs {
    /// 0 is greedy.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// Keep the K most likely tokens; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) top_k: u32,
    /// Keep the smallest set whose probability reaches P.
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Drop tokens less likely than this share of the best.
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) min_p: f32,
    /// Divide positive and multiply negative logits of seen tokens.
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) repeat_penalty: f32,
    /// Subtract once from the logit of seen tokens.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// Subtract per occurrence from the logit of seen tokens.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// How many of the latest tokens the penalties see; 0 none, -1 all.
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true)]
    pub(crate) repeat_last_n: i32,
    /// Makes the answer reproducible; 0 is a seed like any other.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
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

/// Which drafter runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrafterKind {
    Auto,
    Mtp,
}

/// How deep to draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    Auto,
    Constant(usize),
}

/// Token ids of one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ids(pub(crate) Vec<u32>);

impl SamplingArgs {
    /// The sampler's options; `fresh` is used when no seed was given.
    pub(crate) fn options(&self, logprobs: Option<usize>, fresh: u64) -> SamplingOptions {
        SamplingOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repeat_last_n: self.repeat_last_n,
            seed: self.seed.map_or(Seed::Fresh(fresh), Seed::Fixed),
            logprobs,
            ..SamplingOptions::greedy()
        }
    }
}

fn draft_source(text: &str) -> Result<DraftSource, String> {
    Ok(match text {
        "auto" => DraftSource::Auto,
        "none" => DraftSource::None,
        path => DraftSource::Path(PathBuf::from(path)),
    })
}

fn drafter_kind(text: &str) -> Result<DrafterKind, String> {
    match text {
        "auto" => Ok(DrafterKind::Auto),
        "mtp" => Ok(DrafterKind::Mtp),
        "ngram" | "model" | "block" => {
            Err(format!("the {text} drafter is not available in this version; use mtp or auto"))
        }
        _ => Err("expected mtp or auto".into()),
    }
}

fn kv_bits(text: &str) -> Result<usize, String> {
    match text {
        "8" => Ok(8),
        "4" => Ok(4),
        _ => Err("expected 8 or 4".into()),
    }
}

fn depth(text: &str) -> Result<Depth, String> {
    match text {
        "auto" => Ok(Depth::Auto),
        number => number
            .parse()
            .map(Depth::Constant)
            .map_err(|_| "expected auto or a number of tokens, 0 or more".to_owned()),
    }
}

fn ids(text: &str) -> Result<Ids, String> {
    let parts = text.split(',').map(str::trim);
    let parsed: Result<Vec<u32>, String> = match text.trim() {
        "" => Ok(Vec::new()),
        _ => parts.map(|part| part.parse().map_err(|_| format!("{part:?} is not a token id"))).collect(),
    };
    parsed.map(Ids)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    fn generate(line: &str) -> GenerateArgs {
        match parse(line).unwrap_or_else(|e| panic!("{line}: {e}")).command {
            Command::Generate(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let args = generate("foretoken generate --model m --prompt-ids 1,2");
        assert_eq!(args.draft.draft, DraftSource::Auto);
        assert_eq!(args.draft.depth, Depth::Auto);
        assert_eq!(args.draft.drafter, DrafterKind::Auto);
        assert_eq!((args.max_tokens, args.kv_bits), (0, None));
        assert_eq!(
            args.sampling.options(None, 7),
            SamplingOptions { seed: Seed::Fresh(7), ..SamplingOptions::greedy() }
        );
        assert_eq!(args.prompt.prompt_ids, Some(Ids(vec![1, 2])));
    }

    #[test]
    fn h33_seed_zero_is_a_seed() {
        let args = generate("foretoken generate --model m --prompt-ids 1 --seed 0");
        assert_eq!(args.sampling.options(None, 7).seed, Seed::Fixed(0));
    }

    #[test]
    fn negative_numbers_reach_the_range_check() {
        let args =
            generate("foretoken generate --model m --prompt-ids 1 --temperature -1 --repeat-last-n -1");
        assert_eq!(args.sampling.repeat_last_n, -1);
        assert!(args.sampling.options(None, 0).validate().is_err());
    }

    #[test]
    fn wrong_lines_are_usage_errors_that_say_why() {
        for (line, word) in [
            ("foretoken generate --model m", "--prompt"),
            ("foretoken generate --model m --prompt a --prompt-ids 1", "cannot be used with"),
            ("foretoken generate --model m --prompt-ids 1,x", "\"x\" is not a token id"),
            ("foretoken generate --model m --prompt-ids 1 --drafter ngram", "not available in this version"),
            ("foretoken generate --model m --prompt-ids 1 --depth -1", "--depth"),
            ("foretoken generate --model m --prompt-ids 1 --logprobs 2", "--json"),
            ("foretoken generate --model m --prompt-ids 1 --kv-bits 3", "expected 8 or 4"),
            ("foretoken generate --prompt-ids 1", "--model"),
            ("foretoken chat --model m", "chat"),
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(word), "{line}: {error}");
        }
    }
}
