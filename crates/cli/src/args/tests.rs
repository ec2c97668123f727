//! The command line as users type it.

use clap::CommandFactory;

use foretoken_sample::{SamplingOptions, Seed};

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
    assert_eq!(args.draft.which.draft, [DraftSource::Auto]);
    assert_eq!(args.draft.depth, Depth::Auto);
    assert_eq!(args.draft.which.drafter, [DrafterKind::Auto]);
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
    let args = generate("foretoken generate --model m --prompt-ids 1 --temperature -1 --repeat-last-n -1");
    assert_eq!(args.sampling.repeat_last_n, -1);
    assert!(args.sampling.options(None, 0).validate().is_err());
}

#[test]
fn wrong_lines_are_usage_errors_that_say_why() {
    for (line, word) in [
        ("foretoken generate --model m", "--prompt"),
        ("foretoken generate --model m --prompt a --prompt-ids 1", "cannot be used with"),
        ("foretoken generate --model m --prompt-ids 1,x", "\"x\" is not a token id"),
        ("foretoken generate --model m --prompt-ids 1 --drafter other", "mtp, ngram, model, block"),
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

#[test]
fn every_sampling_option_reaches_the_sampler() {
    let line = "foretoken generate --model m --prompt-ids 1 --rule ratio --logit-bias 3=-1.5 --logit-bias 4=2 \
        --ban-ids 5,6 --ignore-eos --min-tokens 2";
    let options = generate(line).sampling.options(None, 7);
    assert_eq!(options.rule, foretoken_sample::RuleChoice::Ratio);
    assert_eq!(options.logit_bias, [(3, -1.5), (4, 2.0)]);
    assert_eq!(options.banned, [[5, 6]]);
    assert!(options.ignore_eos && options.min_tokens == 2);
    for (line, word) in [
        ("foretoken generate --model m --prompt-ids 1 --logit-bias 3", "ID=VALUE"),
        ("foretoken generate --model m --prompt-ids 1 --rule best", "possible values"),
        ("foretoken generate --model m --prompt-ids 1 --json-schema a --grammar b", "cannot be used with"),
    ] {
        let error = parse(line).expect_err(line);
        assert!(error.to_string().contains(word), "{line}: {error}");
    }
}
