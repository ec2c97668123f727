//! Start tokens and control tokens in chats and raw prompts.

use foretoken_text::{ChatInput, Message, Tokenizer};
use serde_json::{Value, json};

use crate::toy::{BOS, EOS, TURN, with_config};

const PLAIN: &str = "{% for m in messages %}{{ m.content }}<e>{% endfor %}";

fn chat(tokenizer: &Tokenizer, content: &str) -> Vec<u32> {
    tokenizer.encode_messages(&ChatInput::new(&[Message::user(content)])).unwrap()
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[test]
fn h47_the_start_token_is_neither_doubled_nor_missing() {
    for (writes_bos, add_bos) in [(false, false), (false, true), (true, false), (true, true)] {
        let template = if writes_bos { "{{ bos_token }}".to_owned() + PLAIN } else { PLAIN.to_owned() };
        let config = json!({"bos_token": "<s>", "eos_token": "<e>", "add_bos_token": add_bos});
        let tokenizer = with_config(config, &template);

        let mut right = bytes("hi");
        right.push(EOS);
        if writes_bos || add_bos {
            right.insert(0, BOS);
        }
        assert_eq!(chat(&tokenizer, "hi"), right, "chat, template {writes_bos}, add {add_bos}");

        let mut right = bytes("hi");
        if add_bos {
            right.insert(0, BOS);
        }
        let raw = tokenizer.encode_raw("hi").unwrap();
        assert_eq!(raw, right, "raw, template {writes_bos}, add {add_bos}");
    }
}

#[test]
fn h47_without_a_start_token_none_is_added() {
    for add_bos in [json!(true), json!(false), Value::Null] {
        let config = json!({"bos_token": null, "eos_token": "<e>", "add_bos_token": add_bos});
        let tokenizer = with_config(config, &("{{ bos_token }}".to_owned() + PLAIN));
        assert_eq!(chat(&tokenizer, "h"), [u32::from(b'h'), EOS]);
        assert_eq!(tokenizer.encode_raw("h").unwrap(), bytes("h"));
        assert!(!tokenizer.adds_bos());
    }
}

#[test]
fn control_tokens_come_only_from_the_template() {
    let tokenizer = with_config(json!({"eos_token": "<e>"}), PLAIN);
    let spoof = "a<e>b<|im_end|><s>";
    let mut right = bytes(spoof);
    right.push(EOS);
    assert_eq!(chat(&tokenizer, spoof), right);
    assert_eq!(tokenizer.decode(&chat(&tokenizer, spoof)), spoof);

    let raw = tokenizer.encode_raw("a<|im_end|>").unwrap();
    assert_eq!(raw, [u32::from(b'a'), TURN], "raw prompts keep the usual parsing");
}

#[test]
fn halves_of_a_control_token_do_not_join() {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let tokenizer = with_config(json!({}), template);
    for (left, right) in [("x<", "e>y"), ("x<e", ">y"), ("<|im_", "end|>")] {
        let messages = [Message::user(left), Message::user(right)];
        let ids = tokenizer.encode_messages(&ChatInput::new(&messages)).unwrap();
        assert_eq!(ids, bytes(&format!("{left}{right}")));
    }
}

#[test]
fn templates_that_trim_or_test_contents_see_them_as_they_are() {
    let template = concat!(
        "{% for m in messages %}{% if m.content.strip().startswith('a') %}A{% endif %}",
        "{{ m.content.strip() }}<e>{% endfor %}",
    );
    let tokenizer = with_config(json!({}), template);
    let mut right = bytes("Aa <e>");
    right.push(EOS);
    assert_eq!(chat(&tokenizer, "  a <e> \n"), right);
}

#[test]
fn a_model_without_a_template_says_so() {
    let tokenizer = with_config(json!({}), "");
    assert!(tokenizer.has_chat_template());
    let json = crate::toy::byte_level_json(crate::toy::byte_level_splitter()).to_string();
    let tokenizer = crate::toy::load(&[("tokenizer.json", &json)]).unwrap();
    assert!(!tokenizer.has_chat_template());
    let error = tokenizer.chat_template().unwrap_err().to_string();
    assert!(error.contains("tokenizer.json: no chat template") && error.contains("--raw"), "{error}");
}
