//! Walks through grammars as a decoder makes them: masks, forced runs, rollbacks, ends.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use foretoken_grammar::{
    CompiledGrammar, JsonOptions, TokenTable,
    testkit::{LONGEST_ANSWER, json_tokens, schemas},
};
use foretoken_sample::{Constraint, Grammar, SplitMix64, TokenMask};
use proptest::prelude::*;
use serde_json::{Value, json};

fn table() -> (TokenTable, u32) {
    let tokens = json_tokens();
    let end = tokens.len() as u32 - 1;
    (TokenTable::from_bytes(&tokens, &[end]).unwrap(), end)
}

fn compiled(schema: &Value) -> CompiledGrammar {
    CompiledGrammar::json_schema(&table().0, &schema.to_string(), &JsonOptions::default())
        .unwrap_or_else(|error| panic!("{schema}: {error}"))
}

fn allowed(place: &mut dyn Constraint, vocabulary: usize) -> Vec<u32> {
    let mut mask = TokenMask::all(vocabulary);
    place.mask(&mut mask).unwrap();
    (0..vocabulary as u32).filter(|&id| mask.allows(id)).collect()
}

fn text(ids: &[u32]) -> String {
    let tokens = json_tokens();
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokens[id as usize].clone()).collect();
    String::from_utf8(bytes).unwrap()
}

/// Draws allowed tokens until an end token; some steps are taken back and made again. Returns the answer
/// without its end, `None` when it did not end.
fn walk(grammar: &CompiledGrammar, seed: u64) -> Option<Vec<u32>> {
    let (vocabulary, end) = (json_tokens().len(), table().1);
    let mut numbers = SplitMix64::new(seed);
    let mut below = |n: usize| (numbers.next_u64() % n as u64) as usize;
    let mut place = grammar.begin().unwrap();
    let mut ids: Vec<u32> = Vec::new();
    while ids.len() < LONGEST_ANSWER {
        let forced = place.forced().unwrap();
        for (steps, &id) in forced.iter().enumerate() {
            assert!(allowed(place.as_mut(), vocabulary).contains(&id), "{id} forced after {:?}", text(&ids));
            place.advance(id).unwrap();
            if steps + 1 == forced.len() {
                place.rollback(forced.len()).unwrap();
            }
        }
        let choices = allowed(place.as_mut(), vocabulary);
        assert!(!choices.is_empty(), "nothing may follow {:?}", text(&ids));
        let id = choices[below(choices.len())];
        place.advance(id).unwrap();
        if id == end {
            assert!(allowed(place.as_mut(), vocabulary).is_empty());
            assert!(place.advance(end).is_err());
            return Some(ids);
        }
        ids.push(id);
        if below(8) == 0 {
            let back = below(ids.len() + 1);
            place.rollback(back).unwrap();
            ids.truncate(ids.len() - back);
        }
    }
    None
}

fn is_valid(schema: &Value, answer: &str) -> bool {
    let value: Value = serde_json::from_str(answer).unwrap_or_else(|error| panic!("{answer}: {error}"));
    jsonschema::is_valid(schema, &value)
}

#[test]
fn two_hundred_schemas_give_valid_answers() {
    let mut complete = 0;
    for (seed, schema) in schemas(200).iter().enumerate() {
        let grammar = compiled(schema);
        if let Some(ids) = walk(&grammar, seed as u64) {
            complete += 1;
            assert!(is_valid(schema, &text(&ids)), "{} is no answer to {schema}", text(&ids));
        }
    }
    assert!(complete > 150, "{complete} answers came to an end");
}

#[test]
fn the_usual_keywords_work() {
    let cases = [
        json!({ "type": "array", "items": { "type": "array", "items": { "type": "integer" } }, "maxItems": 3 }),
        json!({ "anyOf": [{ "type": "string", "maxLength": 4 }, { "type": "integer", "minimum": 5 }] }),
        json!({ "type": "object", "additionalProperties": { "type": "boolean" }, "properties": {} }),
        json!({ "type": "number", "minimum": 0, "maximum": 9 }),
        json!({ "$defs": { "leaf": { "enum": [1, 2] } }, "type": "array", "items": { "$ref": "#/$defs/leaf" } }),
        json!({ "enum": ["\"quoted\"", "back\\slash", "\u{e9}"] }),
        json!({ "type": "string", "format": "date" }),
    ];
    for schema in cases {
        let grammar = compiled(&schema);
        let answers: Vec<Vec<u32>> = (0..20).filter_map(|seed| walk(&grammar, seed)).collect();
        assert!(!answers.is_empty(), "{schema}");
        for ids in answers {
            assert!(is_valid(&schema, &text(&ids)), "{} is no answer to {schema}", text(&ids));
        }
    }
}

#[test]
fn white_space_and_open_ends_are_bounded() {
    let grammar = compiled(
        &json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] }),
    );
    let (vocabulary, _) = (json_tokens().len(), ());
    let id = |piece: &str| json_tokens().iter().position(|token| token == piece.as_bytes()).unwrap() as u32;
    let mut place = grammar.begin().unwrap();
    place.advance(id("{")).unwrap();
    place.advance(id(" ")).unwrap();
    assert!(place.advance(id(" ")).is_err(), "one space is enough");
    ["\"", "a", "\"", ":", "\""].iter().for_each(|piece| place.advance(id(piece)).unwrap());
    for _ in 0..256 {
        place.advance(id("x")).unwrap();
    }
    let left = allowed(place.as_mut(), vocabulary);
    assert!(left.iter().all(|&id| json_tokens()[id as usize][0] == b'"'), "{left:?}");
}

#[test]
fn expressions_and_lark_grammars_work() {
    let (table, _) = table();
    let regex = CompiledGrammar::regex(&table, "(yes|no)[!?]{1,2}").unwrap();
    let lark = CompiledGrammar::lark(&table, "start: \"a\" (\"+\" NUMBER)+\nNUMBER: /[0-9]/").unwrap();
    for seed in 0..20 {
        let answer = text(&walk(&regex, seed).expect("a short answer"));
        assert!(answer.starts_with("yes") || answer.starts_with("no"), "{answer}");
        assert!(answer.ends_with(['!', '?']), "{answer}");
        if let Some(ids) = walk(&lark, seed) {
            assert!(text(&ids).starts_with("a+"), "{}", text(&ids));
        }
    }
}

#[test]
fn what_must_follow_is_forced() {
    let (table, end) = table();
    let grammar = CompiledGrammar::regex(&table, "abc(x|y)z").unwrap();
    let mut place = grammar.begin().unwrap();
    let forced = place.forced().unwrap();
    assert_eq!(text(&forced), "abc");
    forced.iter().for_each(|&id| place.advance(id).unwrap());
    assert!(place.forced().unwrap().is_empty(), "two ways to go on");
    let x = json_tokens().iter().position(|token| token == b"x").unwrap() as u32;
    place.advance(x).unwrap();
    let forced = place.forced().unwrap();
    assert_eq!(text(&forced), "z");
    place.advance(forced[0]).unwrap();
    assert_eq!(place.forced().unwrap(), [end]);
}

#[test]
fn a_grammar_that_cannot_be_used_is_one_clear_error() {
    let (table, _) = table();
    let schema = |text: &str| CompiledGrammar::json_schema(&table, text, &JsonOptions::default());
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let long = format!("{{\"enum\":[\"{}\"]}}", "x".repeat(1 << 18));
    for (text, word) in [
        ("{", "cannot be read"),
        ("[1]", "object or a boolean"),
        (&deep, "cannot be read"),
        (&long, "too large"),
        ("{\"type\":\"nothing\"}", "cannot be compiled"),
        ("{\"type\":\"string\",\"minLength\":5,\"maxLength\":2}", "cannot be compiled"),
        ("{\"$ref\":\"#/$defs/none\"}", "cannot be compiled"),
        ("{\"type\":\"string\",\"pattern\":\"(\"}", "cannot be compiled"),
        ("false", "cannot be compiled"),
    ] {
        let error = schema(text).expect_err(text).to_string();
        assert!(error.contains(word) && error.len() < 700, "{error}");
    }
    assert!(CompiledGrammar::regex(&table, "a{").is_err() || CompiledGrammar::regex(&table, "(").is_err());
    assert!(CompiledGrammar::lark(&table, "start: missing").is_err());
    // This vocabulary has no byte of é.
    assert!(CompiledGrammar::regex(&table, "\u{e9}").is_err());
    assert!(TokenTable::from_bytes(&json_tokens(), &[]).is_err());
    assert!(TokenTable::from_bytes(&json_tokens(), &[10_000]).is_err());
}

#[test]
fn deep_grammars_are_grammars_or_errors_but_no_overflow() {
    let (table, _) = table();
    let rules = 15_000;
    let chain = |name: char| {
        let links = (0..rules).map(|i| format!("{name}{i}: {name}{}\n", i + 1));
        format!("start: {name}0\n{}{name}{rules}: \"a\"\n", links.collect::<String>())
    };
    for name in ['r', 'T'] {
        let grammar = CompiledGrammar::lark(&table, &chain(name)).unwrap();
        assert_eq!(text(&walk(&grammar, 0).unwrap()), "a");
    }
    let nested = format!("start: {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(CompiledGrammar::lark(&table, &nested).is_err());
    let links = (0..5_000).map(|i| format!("\"{i}\":{{\"$ref\":\"#/$defs/{}\"}},", i + 1));
    let links = links.collect::<String>() + "\"5000\":{\"type\":\"null\"}";
    let schema = format!("{{\"$ref\":\"#/$defs/0\",\"$defs\":{{{links}}}}}");
    let grammar = CompiledGrammar::json_schema(&table, &schema, &JsonOptions::default()).unwrap();
    assert_eq!(text(&walk(&grammar, 0).unwrap()), "null");
}

#[test]
fn grammars_that_count_tokens_can_be_taken_back() {
    let (table, end) = table();
    let lark = "start: \"ab\" x\nx[max_tokens=4]: /[a-z]+/";
    let grammar = CompiledGrammar::lark(&table, lark).unwrap();
    for seed in 0..20 {
        let answer = text(&walk(&grammar, seed).expect("a short answer"));
        assert!(answer.starts_with("ab") && answer.len() < 40, "{answer}");
    }
    let mut place = grammar.begin().unwrap();
    let steps: Vec<u32> = "abcd".bytes().map(|byte| u32::from(byte - b' ')).collect();
    steps.iter().for_each(|&id| place.advance(id).unwrap());
    let before = allowed(place.as_mut(), json_tokens().len());
    assert!(before.contains(&end), "{before:?}");
    place.rollback(3).unwrap();
    steps[1..].iter().for_each(|&id| place.advance(id).unwrap());
    assert_eq!(allowed(place.as_mut(), json_tokens().len()), before);
}

#[test]
fn several_end_tokens_end_an_answer() {
    let mut tokens = json_tokens();
    tokens.push(b"<stop>".to_vec());
    let ends = [tokens.len() as u32 - 2, tokens.len() as u32 - 1];
    let table = TokenTable::from_bytes(&tokens, &ends).unwrap();
    let grammar = CompiledGrammar::regex(&table, "a").unwrap();
    let mut place = grammar.begin().unwrap();
    let a = u32::from(b'a' - b' ');
    assert_eq!(allowed(place.as_mut(), tokens.len()), [a]);
    place.advance(a).unwrap();
    assert_eq!(allowed(place.as_mut(), tokens.len()), ends);
    assert!(place.forced().unwrap().is_empty(), "either may come");
    for end in ends {
        place.advance(end).unwrap();
        place.rollback(1).unwrap();
    }
    place.advance(ends[0]).unwrap();
    place.rollback(2).unwrap();
    assert_eq!(allowed(place.as_mut(), tokens.len()), [a]);
    assert!(place.rollback(1).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// A place that went back and forth allows what a fresh one allows after the same tokens.
    #[test]
    fn rollback_leaves_no_trace(schema in 0_usize..40, seed in any::<u64>(), steps in 1_usize..60) {
        let grammar = compiled(&schemas(40)[schema]);
        let vocabulary = json_tokens().len();
        let mut numbers = SplitMix64::new(seed);
        let mut below = |n: usize| (numbers.next_u64() % n as u64) as usize;
        let mut place = grammar.begin().unwrap();
        let mut ids = Vec::new();
        for _ in 0..steps {
            let choices = allowed(place.as_mut(), vocabulary);
            if choices.is_empty() || below(3) == 0 {
                let back = below(ids.len() + 1);
                place.rollback(back).unwrap();
                ids.truncate(ids.len() - back);
            } else {
                let id = choices[below(choices.len())];
                place.advance(id).unwrap();
                ids.push(id);
            }
            // What is refused moves nothing.
            let choices = allowed(place.as_mut(), vocabulary);
            if let Some(other) = (0..vocabulary as u32).find(|id| !choices.contains(id)) {
                prop_assert!(place.advance(other).is_err());
            }
        }
        let mut fresh = grammar.begin().unwrap();
        ids.iter().for_each(|&id| fresh.advance(id).unwrap());
        prop_assert_eq!(allowed(place.as_mut(), vocabulary), allowed(fresh.as_mut(), vocabulary));
        prop_assert_eq!(place.forced().unwrap(), fresh.forced().unwrap());
    }

    /// Any text is a schema or an error.
    #[test]
    fn no_text_is_a_panic(text in ".{0,200}") {
        let (table, _) = table();
        let _ = CompiledGrammar::json_schema(&table, &text, &JsonOptions::default());
        let _ = CompiledGrammar::regex(&table, &text);
        let _ = CompiledGrammar::lark(&table, &text);
    }
}
