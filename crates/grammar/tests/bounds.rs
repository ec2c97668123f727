//! Default bounds only narrow: what ends under a bounded schema is valid under the schema as written.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use foretoken_grammar::{
    CompiledGrammar, GrammarError, JsonOptions, TokenTable,
    testkit::{json_tokens, random_answer},
};
use foretoken_sample::SplitMix64;
use serde_json::{Map, Value, json};

fn table() -> TokenTable {
    let tokens = json_tokens();
    let end = tokens.len() as u32 - 1;
    TokenTable::from_bytes(&tokens, &[end]).unwrap()
}

fn compiled(table: &TokenTable, schema: &Value) -> Result<CompiledGrammar, GrammarError> {
    CompiledGrammar::json_schema(table, &schema.to_string(), &JsonOptions::default())
}

/// Draws answers and checks each one that ends; returns how many did. Where a schema says nothing about a
/// value, an exponent has no bound, and a number beyond a double's range cannot be compared.
fn check(table: &TokenTable, schema: &Value, answers: u64) -> usize {
    let grammar = compiled(table, schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
    let texts = (0..answers).filter_map(|seed| random_answer(&grammar, seed).unwrap());
    let check = |text: String| {
        let value: Result<Value, _> = serde_json::from_str(&text);
        match value {
            Ok(value) => assert!(jsonschema::is_valid(schema, &value), "{text} is no answer to {schema}"),
            Err(error) => assert!(error.to_string().contains("number out of range"), "{text}: {error}"),
        }
    };
    texts.map(check).count()
}

#[test]
fn branches_that_only_bounds_make_exclusive_are_refused() {
    let table = table();
    let a = json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] });
    let b = json!({ "type": "object", "properties": { "b": { "type": "integer" } } });
    // {"a": 1} is an object that may lack b, so both branches hold and the answer is not valid.
    let error = compiled(&table, &json!({ "oneOf": [a, b] })).expect_err("both branches hold").to_string();
    assert!(error.contains("oneOf"), "{error}");
    let long = json!({ "allOf": [{ "type": "string" }, { "const": "x".repeat(300) }] });
    assert!(compiled(&table, &json!({ "oneOf": [long, { "type": "string" }] })).is_err());
}

#[test]
fn branches_that_exclude_each_other_stay_closed() {
    let table = table();
    let kind = |name: &str| {
        json!({ "type": "object", "required": ["kind"],
            "properties": { "kind": { "const": name }, "n": { "type": "integer" } } })
    };
    let schema = json!({ "oneOf": [kind("a"), kind("b")] });
    assert!(check(&table, &schema, 20) > 10);
    let grammar = compiled(&table, &schema).unwrap();
    for text in (0..20).filter_map(|seed| random_answer(&grammar, seed).unwrap()) {
        let object: Map<String, Value> = serde_json::from_str(&text).unwrap();
        assert!(object.keys().all(|key| key == "kind" || key == "n"), "{text}");
    }
}

#[test]
fn what_a_schema_asks_for_elsewhere_is_not_closed_off() {
    let table = table();
    let small = json!({ "type": "integer", "minimum": 0, "maximum": 3 });
    for schema in [
        // A name that properties do not list.
        json!({ "type": "object", "properties": { "a": small }, "required": ["a", "b"], "maxProperties": 2 }),
        json!({ "type": "object", "properties": { "a": small }, "required": ["a"], "minProperties": 2, "maxProperties": 2 }),
        // A reference beside properties.
        json!({ "$defs": { "A": { "type": "object", "properties": { "a": small }, "required": ["a"] } },
            "$ref": "#/$defs/A", "properties": { "b": small }, "required": ["b"] }),
        json!({ "$defs": { "A": { "type": "object", "properties": { "a": small } } },
            "type": "object", "properties": { "b": small }, "required": ["b"], "anyOf": [{ "$ref": "#/$defs/A" }] }),
        // Bounds of ours that another schema contradicts.
        json!({ "allOf": [{ "type": "integer" }, { "minimum": 9_100_000_000_000_000_u64 }] }),
        json!({ "allOf": [{ "type": "string" }, { "const": "x".repeat(300) }] }),
        json!({ "allOf": [{ "type": "array", "items": small }, { "minItems": 40, "maxItems": 40 }] }),
    ] {
        assert!(check(&table, &schema, 40) > 0, "no answer to {schema} came to an end");
    }
}

/// Schemas that describe the same value more than once.
struct Maker(SplitMix64);

impl Maker {
    fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n as u64) as usize
    }

    fn leaf(&mut self) -> Value {
        match self.below(5) {
            0 => json!({ "type": "integer", "minimum": 0, "maximum": self.below(20) }),
            1 => json!({ "type": "string", "maxLength": 3 }),
            2 => json!({ "type": "boolean" }),
            3 => json!({ "const": (if self.below(2) == 0 { "x" } else { "y" }) }),
            _ => json!({ "type": ["integer", "null"] }),
        }
    }

    fn object(&mut self, depth: usize) -> Value {
        let names = ["a", "b", "c"];
        let mut properties = Map::new();
        for _ in 0..1 + self.below(2) {
            let value = self.any(depth);
            properties.insert(names[self.below(3)].into(), value);
        }
        let mut schema = json!({ "type": "object", "properties": properties });
        if self.below(2) == 0 {
            schema["required"] = json!([names[self.below(3)]]);
        }
        schema
    }

    fn any(&mut self, depth: usize) -> Value {
        if depth == 0 {
            return self.leaf();
        }
        match self.below(8) {
            0..=2 => self.object(depth - 1),
            3 => json!({ "anyOf": [self.any(depth - 1), self.any(depth - 1)] }),
            4 => json!({ "oneOf": [self.any(depth - 1), self.any(depth - 1)] }),
            5 => json!({ "allOf": [self.object(depth - 1), self.object(depth - 1)] }),
            6 => {
                let mut schema = self.object(depth - 1);
                let branch = self.object(depth - 1);
                schema[["anyOf", "oneOf"][self.below(2)]] = json!([branch, { "$ref": "#/$defs/shared" }]);
                schema
            }
            _ => json!({ "$ref": "#/$defs/shared" }),
        }
    }
}

#[test]
fn combined_schemas_give_valid_answers() {
    let table = table();
    let (mut usable, mut ended) = (0, 0);
    for seed in 0..700 {
        let mut maker = Maker(SplitMix64::new(seed));
        let mut schema = maker.any(3);
        schema["$defs"] = json!({ "shared": maker.object(1) });
        if compiled(&table, &schema).is_ok() {
            usable += 1;
            ended += check(&table, &schema, 4);
        }
    }
    assert!(usable > 150 && ended > 300, "{usable} schemas could be used, {ended} answers ended");
}
