//! Many conversations under a small budget.

use foretoken_runner::PrefixOptions;

use crate::support::*;

const CONVERSATIONS: usize = 50;
const TURNS: usize = 3;
const TOKENS: usize = 4;

/// Bytes of one token in the toys, about, so that budgets can be said in tokens.
const TOKEN_BYTES: usize = 512;

#[test]
fn fifty_alternating_conversations_stay_under_the_budget_and_are_answered_right() {
    for (name, model) in models() {
        // Room for about ten of the fifty conversations; with sets kept alive and without.
        for keep_live in [true, false] {
            let budget_bytes = 1_000 * TOKEN_BYTES;
            let budget = PrefixOptions { budget_bytes, ..options(keep_live) };
            let mut runner = warm(&model, budget);
            let mut chats: Vec<Vec<u32>> =
                (0..CONVERSATIONS).map(|chat| prompt(chat as u32 % 7, 40 + chat % 9)).collect();
            let (mut reused, mut largest) = (0, 0);
            for turn in 0..TURNS {
                for (number, chat) in chats.iter_mut().enumerate() {
                    chat.extend(prompt((number * TURNS + turn) as u32 + 100, 11));
                    let request = greedy(chat, TOKENS);
                    let served = serve(&mut runner, &request);
                    let held = runner.prefix_cache().unwrap().bytes();
                    assert!(held <= budget_bytes, "{name}: {held} bytes held");
                    (reused, largest) = (reused + served.cached(), largest.max(held));
                    if number % 5 == turn {
                        assert_eq!(served.ids, cold(&model, &request), "{name}, chat {number}, turn {turn}");
                    }
                    chat.extend(&served.ids);
                }
            }
            println!("{name}, sets kept alive {keep_live}: at most {largest} bytes, {reused} tokens reused");
            assert!(reused > 0, "{name}: a small budget is not none");
        }
    }
}

#[test]
fn no_budget_at_all_still_answers() {
    for (name, model) in models() {
        let mut runner = warm(&model, PrefixOptions { budget_bytes: 0, ..options(true) });
        let request = greedy(&prompt(1, 30), TOKENS);
        for _ in 0..3 {
            let served = serve(&mut runner, &request);
            assert_eq!(
                (served.ids, runner.prefix_cache().unwrap().bytes()),
                (cold(&model, &request), 0),
                "{name}"
            );
        }
    }
}
