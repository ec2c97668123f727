//! Which leaf is missed least.
//!
//! A leaf is worth the tokens that would have to be computed again without it, per byte that it holds
//! and per tick since a request last went through it: `tokens / (bytes · age)`. With one kind of layer,
//! tokens and bytes go together and the oldest leaf goes first; where a short run pays for large states,
//! it goes before a longer one of the same age. Ticks count requests, so no clock decides.

use std::cmp::Ordering;

use crate::prefix::trie::{Node, NodeId, Trie};

/// The leaf that is missed least at the tick `clock`, among those that `counts` admits; of equals the
/// oldest.
pub(crate) fn least_useful(trie: &Trie, clock: u64, counts: impl Fn(&Node) -> bool) -> Option<NodeId> {
    let leaves = trie.leaves().filter(|(_, node)| counts(node));
    let worths = leaves.map(|(id, node)| (id, Worth::of(node, clock)));
    worths.min_by(|(_, a), (_, b)| a.compare(b)).map(|(id, _)| id)
}

/// A fraction of whole numbers, so that every machine decides alike.
struct Worth {
    tokens: u128,
    /// Bytes times ticks.
    price: u128,
}

impl Worth {
    fn of(node: &Node, clock: u64) -> Self {
        let age = clock.saturating_sub(node.used()) as u128 + 1;
        Self { tokens: node.len() as u128, price: node.kept().bytes().max(1) as u128 * age }
    }

    fn compare(&self, other: &Self) -> Ordering {
        (self.tokens * other.price).cmp(&(other.tokens * self.price))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cheap_tokens_old_leaves_and_heavy_states_go_first() {
        let worth = |tokens: u128, bytes: u128, age: u128| Worth { tokens, price: bytes * age };
        let first = |a: Worth, b: Worth| assert_eq!(a.compare(&b), Ordering::Less);
        first(worth(10, 100, 3), worth(10, 100, 2));
        first(worth(10, 200, 2), worth(10, 100, 2));
        first(worth(9, 100, 2), worth(10, 100, 2));
        first(worth(1000, 100_000, 8), worth(5, 500, 7));
        let huge = worth(1 << 40, 1 << 50, 1 << 20);
        assert_eq!(huge.compare(&worth(1 << 40, 1 << 50, 1 << 20)), Ordering::Equal, "no overflow");
    }
}
