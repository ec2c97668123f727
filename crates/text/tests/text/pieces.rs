//! SentencePiece-style vocabularies and other toys from GGUF metadata.

use foretoken_text::{GgufVocabulary, Tokenizer};
use serde_json::json;

/// Token types of the format.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

struct Toy {
    tokens: Vec<String>,
    types: Vec<i32>,
    scores: Vec<f32>,
}

/// `<unk> <s> </s>`, all bytes from id 3 on, then the given pieces, best first.
fn pieces(pieces: &[&str]) -> Toy {
    let mut toy = Toy { tokens: Vec::new(), types: Vec::new(), scores: Vec::new() };
    let mut push = |text: String, kind: i32, score: f32| {
        toy.tokens.push(text);
        toy.types.push(kind);
        toy.scores.push(score);
    };
    push("<unk>".to_owned(), UNKNOWN, 0.0);
    push("<s>".to_owned(), CONTROL, 0.0);
    push("</s>".to_owned(), CONTROL, 0.0);
    (0..=u8::MAX).for_each(|byte| push(format!("<0x{byte:02X}>"), BYTE, 0.0));
    for (rank, piece) in pieces.iter().enumerate() {
        push((*piece).to_owned(), NORMAL, -(rank as f32));
    }
    toy
}

fn metadata(toy: &Toy) -> GgufVocabulary<'_> {
    GgufVocabulary {
        model: "llama",
        tokens: &toy.tokens,
        token_types: &toy.types,
        scores: &toy.scores,
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        add_bos: Some(false),
        add_space_prefix: Some(false),
        ..GgufVocabulary::default()
    }
}

fn byte(byte: u8) -> u32 {
    3 + u32::from(byte)
}

#[test]
fn h45_characters_outside_the_vocabulary_become_bytes() {
    let toy = pieces(&["▁", "h", "e", "l", "o"]);
    let tokenizer = Tokenizer::from_gguf(&metadata(&toy)).unwrap();
    assert_eq!(tokenizer.encode_raw("ą").unwrap(), [byte(0xc4), byte(0x85)]);
    for text in ["ą", "helloé", "naïve 你好 😀", "\n\t", "", " ", "  hello  "] {
        let ids = tokenizer.encode_raw(text).unwrap();
        assert_eq!(tokenizer.decode(&ids), text);
        assert!(!ids.contains(&0), "{text:?} has an unknown token");
    }
}

#[test]
fn h45_the_same_from_a_tokenizer_json() {
    let toy = pieces(&["▁", "h", "e", "l", "o"]);
    let vocab: serde_json::Map<String, serde_json::Value> =
        toy.tokens.iter().zip(0u32..).map(|(text, id)| (text.clone(), id.into())).collect();
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "byte_fallback": true, "fuse_unk": true, "unk_token": "<unk>",
                  "vocab": vocab, "merges": []},
    });
    let tokenizer = crate::toy::load(&[("tokenizer.json", &json.to_string())]).unwrap();
    assert_eq!(tokenizer.encode_raw("ą").unwrap(), [byte(0xc4), byte(0x85)]);
    for text in ["helloé", "naïve 你好 😀", "\n\t"] {
        assert_eq!(tokenizer.decode(&tokenizer.encode_raw(text).unwrap()), text);
    }
}

#[test]
fn h45_a_character_without_any_token_is_an_error_and_not_lost() {
    let tokens: Vec<String> = ["a", "b", "ab"].map(str::to_owned).to_vec();
    let merges = ["a b".to_owned()];
    let gguf = GgufVocabulary {
        model: "gpt2",
        pre: Some("gpt-2"),
        tokens: &tokens,
        merges: &merges,
        ..GgufVocabulary::default()
    };
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    assert_eq!(tokenizer.encode_raw("abba").unwrap(), [2, 1, 0]);
    let error = tokenizer.encode_raw("abc").unwrap_err().to_string();
    assert_eq!(error, "cannot encode the text: the vocabulary has no token for 'c'");
}

#[test]
fn scores_decide_the_order_of_merging() {
    // "lo" beats "el", so "hello" is h-e-l-lo and not h-el-lo; "▁h" joins across the space.
    let toy = pieces(&["lo", "el", "▁h", "▁", "h", "e", "l", "o"]);
    let tokenizer = Tokenizer::from_gguf(&metadata(&toy)).unwrap();
    let spelled = |text: &str| -> Vec<String> {
        let ids = tokenizer.encode_raw(text).unwrap();
        ids.iter().map(|id| toy.tokens[*id as usize].clone()).collect()
    };
    assert_eq!(spelled("hello hel"), ["h", "el", "lo", "▁h", "el"]);
    assert_eq!(spelled("helo"), ["h", "e", "lo"]);
}

#[test]
fn the_space_prefix_is_added_and_taken_away_again() {
    let toy = pieces(&["▁h", "▁", "h", "e", "l", "o"]);
    let gguf = GgufVocabulary { add_space_prefix: None, add_bos: None, ..metadata(&toy) };
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let ids = tokenizer.encode_raw("ho").unwrap();
    let spelled: Vec<&str> = ids.iter().map(|id| toy.tokens[*id as usize].as_str()).collect();
    assert_eq!(spelled, ["<s>", "▁h", "o"]);
    for text in ["ho", " ho", "é", ""] {
        assert_eq!(tokenizer.decode(&tokenizer.encode_raw(text).unwrap()), text);
    }
    assert_eq!(tokenizer.end_tokens(), [2]);
}

#[test]
fn impossible_metadata_is_named() {
    let toy = pieces(&["a"]);
    let good = metadata(&toy);
    let short = [NORMAL];
    let cases = [
        (GgufVocabulary { model: "bert", ..good }, "tokenizer.ggml.model: tokenizer \"bert\""),
        (GgufVocabulary { tokens: &[], ..good }, "tokenizer.ggml.tokens: expected at least one"),
        (GgufVocabulary { token_types: &short, ..good }, "token_type: expected 260, one per token, got 1"),
        (GgufVocabulary { scores: &[], ..good }, "tokenizer.ggml.scores: expected one per token"),
        (GgufVocabulary { bos: Some(999), ..good }, "bos_token_id: expected an id below 260, got 999"),
        (
            GgufVocabulary { model: "gpt2", pre: Some("mystery"), ..good },
            "tokenizer.ggml.pre: pre-tokenizer \"mystery\" is not supported; known: codeshell,",
        ),
    ];
    for (gguf, right) in cases {
        let error = Tokenizer::from_gguf(&gguf).unwrap_err().to_string();
        assert!(error.contains(right), "{error}");
    }
    for merge in ["nope", "", " ", "a a"] {
        let merges = [merge.to_owned()];
        let gguf = GgufVocabulary { model: "gpt2", pre: None, merges: &merges, ..good };
        let error = Tokenizer::from_gguf(&gguf).unwrap_err().to_string();
        assert!(error.contains("merges"), "{merge:?}: {error}");
    }
}

#[test]
fn doubled_spellings_keep_their_bytes_and_the_first_id() {
    let tokens: Vec<String> = ["a", "a"].map(str::to_owned).to_vec();
    let gguf = GgufVocabulary { model: "gpt2", tokens: &tokens, ..GgufVocabulary::default() };
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    assert_eq!(tokenizer.encode_raw("a").unwrap(), [0]);
    assert_eq!(tokenizer.decode(&[0, 1]), "aa");
}
