//! Schemas by the hundred, and a vocabulary that can spell any answer.

use foretoken_sample::{Grammar, Result, SampleError, SplitMix64, TokenMask};
use serde_json::{Map, Value, json};

/// The bytes of a small vocabulary: every ASCII character that JSON may use, pieces of JSON longer than
/// one character, and at the end one token that ends an answer.
pub fn json_tokens() -> Vec<Vec<u8>> {
    let mut tokens: Vec<Vec<u8>> = (0x20..0x7f).map(|byte| vec![byte]).collect();
    let pieces =
        ["\n", "{\"", "\":", "\": ", "\",\"", "\", \"", "\"}", "},{", "true", "false", "null", "[]", "{}"];
    tokens.extend(pieces.map(|piece| piece.as_bytes().to_vec()));
    tokens.push(b"<end>".to_vec());
    tokens
}

/// Answers longer than this many tokens count as unfinished.
pub const LONGEST_ANSWER: usize = 600;

/// Draws allowed tokens of [`json_tokens`] until the answer ends; `None` when it does not end soon. A place
/// where nothing may follow is an error.
pub fn random_answer(grammar: &dyn Grammar, seed: u64) -> Result<Option<String>> {
    let tokens = json_tokens();
    let mut numbers = SplitMix64::new(seed);
    let mut place = grammar.begin()?;
    let mut answer = String::new();
    for _ in 0..LONGEST_ANSWER {
        let mut mask = TokenMask::all(tokens.len());
        place.mask(&mut mask)?;
        let choices: Vec<usize> = (0..tokens.len()).filter(|&id| mask.allows(id as u32)).collect();
        if choices.is_empty() {
            let expected = "a token that may follow".to_owned();
            return Err(SampleError::Constraint { what: "random answer", expected, got: answer });
        }
        let id = choices[(numbers.next_u64() % choices.len() as u64) as usize];
        place.advance(id as u32)?;
        if id + 1 == tokens.len() {
            return Ok(Some(answer));
        }
        answer.push_str(&String::from_utf8_lossy(&tokens[id]));
    }
    Ok(None)
}

/// `count` different schemas, the same ones every time.
pub fn schemas(count: usize) -> Vec<Value> {
    let mut found: Vec<Value> = Vec::with_capacity(count);
    let mut seed = 0;
    while found.len() < count {
        let schema = Maker { numbers: SplitMix64::new(seed) }.object(2);
        if !found.contains(&schema) {
            found.push(schema);
        }
        seed += 1;
    }
    found
}

struct Maker {
    numbers: SplitMix64,
}

/// Property names; their order in a schema is the order in answers.
const NAMES: [&str; 8] = ["id", "name", "tags", "size", "ok", "when", "kind", "notes"];

impl Maker {
    fn below(&mut self, n: usize) -> usize {
        (self.numbers.next_u64() % n as u64) as usize
    }

    fn object(&mut self, depth: usize) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        let first = self.below(NAMES.len());
        for i in 0..1 + self.below(4) {
            let name = NAMES[(first + i) % NAMES.len()];
            properties.insert(name.into(), self.any(depth));
            if self.below(3) > 0 {
                required.push(name);
            }
        }
        json!({ "type": "object", "properties": properties, "required": required })
    }

    fn any(&mut self, depth: usize) -> Value {
        let kinds = if depth == 0 { 8 } else { 12 };
        match self.below(kinds) {
            0 => json!({ "type": "boolean" }),
            1 => json!({ "type": "null" }),
            2 => json!({ "type": "integer", "minimum": self.below(10), "maximum": 10 + self.below(500) }),
            3 => json!({ "type": "string", "minLength": self.below(3), "maxLength": 3 + self.below(6) }),
            4 => json!({ "enum": ["red", "green", 3, null] }),
            5 => json!({ "const": format!("v{}", self.below(20)) }),
            6 => json!({ "type": "string", "pattern": "^[a-c]{1,4}-[0-9]{2}$" }),
            7 => json!({ "type": "integer" }),
            8 => self.object(depth - 1),
            9 => {
                let (least, more) = (self.below(2), 1 + self.below(3));
                json!({ "type": "array", "items": self.any(depth - 1), "minItems": least, "maxItems": least + more })
            }
            10 => json!({ "anyOf": [self.any(depth - 1), { "type": "null" }] }),
            _ => json!({ "type": ["string", "null"], "maxLength": 5 }),
        }
    }
}
