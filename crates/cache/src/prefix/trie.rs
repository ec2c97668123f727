//! The tree of remembered sequences: an edge is a run of keys, and its node remembers exactly that run.

use std::collections::BTreeMap;

use crate::{
    Result,
    prefix::{key::Keys, pair::Kept},
};

/// A number that is never used twice, so that order tells age.
pub(crate) type NodeId = u64;

/// A run of slots that follows its parent's.
#[derive(Debug)]
pub(crate) struct Node {
    keys: Keys,
    start: usize,
    parent: Option<NodeId>,
    children: Vec<NodeId>,
    kept: Kept,
    used: u64,
}

impl Node {
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    pub(crate) fn end(&self) -> usize {
        self.start + self.len()
    }

    /// The number of slots.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// When a request last went through it.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.children.is_empty()
    }
}

/// How far tokens are known.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// The nodes met, from the root on; the last may be known in part.
    pub(crate) path: Vec<NodeId>,
    /// The number of keys that match.
    pub(crate) matched: usize,
}

/// Sequences that share their beginnings. Siblings differ in their first key.
#[derive(Debug)]
pub(crate) struct Trie {
    nodes: BTreeMap<NodeId, Node>,
    roots: Vec<NodeId>,
    next: NodeId,
    ahead: usize,
}

impl Trie {
    pub(crate) fn new(ahead: usize) -> Self {
        Self { nodes: BTreeMap::new(), roots: Vec::new(), next: 0, ahead }
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.nodes.values().map(|node| node.kept.bytes()).sum()
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        self.nodes.get(&id).expect("ids of removed nodes are not kept")
    }

    /// Nodes that nothing follows, oldest first.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().filter(|(_, node)| node.is_leaf()).map(|(id, node)| (*id, node))
    }

    /// Follows the keys of `tokens` as far as they are known.
    pub(crate) fn walk(&self, tokens: &[u32]) -> Walk {
        let mut walk = Walk::default();
        let mut siblings = &self.roots;
        loop {
            let rest = &tokens[walk.matched..];
            let mut known = siblings.iter().map(|id| (*id, self.node(*id).keys.common(rest)));
            let Some((id, keys)) = known.find(|(_, keys)| *keys > 0) else {
                return walk;
            };
            let node = self.node(id);
            walk.path.push(id);
            walk.matched += keys;
            if keys < node.len() {
                return walk;
            }
            siblings = &node.children;
        }
    }

    /// The last offset on the walk that everything remembered there can be taken to, and how many nodes
    /// of the path lead to it.
    pub(crate) fn restore_point(&self, walk: &Walk) -> Option<(usize, usize)> {
        let nodes = walk.path.iter().enumerate().rev();
        let mut points = nodes.map(|(index, id)| {
            let point = self.node(*id).kept.restore_point(walk.matched)?;
            Some((index + 1, point))
        });
        points.find_map(|point| point)
    }

    /// A request at `clock` went through these nodes.
    pub(crate) fn touch(&mut self, path: &[NodeId], clock: u64) {
        path.iter().for_each(|id| self.node_mut(*id).used = clock);
    }

    /// Adds a run of slots after `parent`; `tokens` are those of the run and its look-ahead.
    pub(crate) fn insert(&mut self, parent: Option<NodeId>, tokens: &[u32], kept: Kept, clock: u64) {
        let start = parent.map_or(0, |id| self.node(id).end());
        let keys = Keys::new(tokens, self.ahead);
        let id = self.fresh(Node { keys, start, parent, children: Vec::new(), kept, used: clock });
        self.siblings(parent).push(id);
    }

    /// Cuts a node at an offset inside it and returns the front, which the rest follows.
    pub(crate) fn split(&mut self, id: NodeId, at: usize) -> Result<NodeId> {
        let node = self.node(id);
        let (kept, rest) = node.kept.split(at)?;
        let (keys, other_keys) = node.keys.split(at - node.start);
        let (start, parent, used) = (node.start, node.parent, node.used);
        let front = self.fresh(Node { keys, start, parent, children: vec![id], kept, used });
        let siblings = self.siblings(parent);
        siblings.retain(|other| *other != id);
        siblings.push(front);
        let node = self.node_mut(id);
        (node.keys, node.start, node.parent, node.kept) = (other_keys, at, Some(front), rest);
        Ok(front)
    }

    /// Remembers a node's run of slots anew.
    pub(crate) fn replace(&mut self, id: NodeId, kept: Kept) {
        self.node_mut(id).kept = kept;
    }

    /// The node that alone follows this one.
    pub(crate) fn only_child(&self, id: NodeId) -> Option<NodeId> {
        match self.node(id).children[..] {
            [child] => Some(child),
            _ => None,
        }
    }

    /// Makes one node of `path`, in which each is the only child of the one before; `kept` covers all.
    pub(crate) fn join(&mut self, path: &[NodeId], kept: Kept) {
        let Some((&first, others)) = path.split_first() else { return };
        for id in others {
            let Some(next) = self.nodes.remove(id) else { continue };
            next.children.iter().for_each(|child| self.node_mut(*child).parent = Some(first));
            let node = self.node_mut(first);
            node.keys.join(&next.keys);
            node.children = next.children;
            node.used = node.used.max(next.used);
        }
        self.replace(first, kept);
    }

    /// Removes a node and all that follows it, and then every node before it that led only there
    /// without being a place to go back to.
    pub(crate) fn remove(&mut self, id: NodeId) {
        let parent = self.node(id).parent;
        self.siblings(parent).retain(|other| *other != id);
        let mut doomed = vec![id];
        while let Some(node) = doomed.pop().and_then(|id| self.nodes.remove(&id)) {
            doomed.extend(node.children);
        }
        let dead_end = |node: &Node| node.is_leaf() && node.kept.restore_point(node.end()).is_none();
        if let Some(parent) = parent.filter(|id| dead_end(self.node(*id))) {
            self.remove(parent);
        }
    }

    /// Removes what was remembered of poisoned sets, and all that follows it.
    pub(crate) fn remove_lost(&mut self) {
        let lost = |trie: &Self| trie.nodes.iter().find(|(_, node)| !node.kept.usable()).map(|(id, _)| *id);
        while let Some(id) = lost(self) {
            self.remove(id);
        }
    }

    fn fresh(&mut self, node: Node) -> NodeId {
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, node);
        id
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("ids of removed nodes are not kept")
    }

    /// The nodes that follow `parent`, or that begin a sequence.
    fn siblings(&mut self, parent: Option<NodeId>) -> &mut Vec<NodeId> {
        match parent {
            Some(id) => &mut self.node_mut(id).children,
            None => &mut self.roots,
        }
    }
}

#[cfg(test)]
mod tests {
    use mlx_rs::{Array, Device};

    use super::*;
    use crate::{CacheSet, KvCache, Layer, LayerCache, RecurrentCache, RecurrentState, prefix::pair::Sets};

    fn filled(slots: usize, recurrent: bool) -> CacheSet {
        Device::try_default().expect("MLX answers");
        Device::set_default(&Device::cpu());
        let mut rows = KvCache::new();
        let array = Array::from_slice(&vec![1f32; slots], &[1, 1, slots as i32, 1]);
        rows.append(&array, &array).expect("rows that fit");
        let mut folded = RecurrentCache::new();
        folded.advance(slots, [RecurrentState::default()]).expect("one state");
        let layers = [Layer::Kv(rows), Layer::Recurrent(folded)];
        CacheSet::new(layers.into_iter().take(1 + recurrent as usize).collect())
    }

    #[test]
    fn a_cut_that_nothing_goes_back_to_leaves_with_what_follows_it() {
        for (recurrent, left) in [(true, 0), (false, 1)] {
            let mut set = filled(8, recurrent);
            let mut sets = Sets { target: &mut set, own: None };
            let kept = sets.capture(0..8).expect("at rest").expect("reached");
            let mut trie = Trie::new(0);
            trie.insert(None, &[1, 2, 3, 4, 5, 6, 7, 8], kept, 0);
            let back = trie.walk(&[1, 2]).path[0];
            let front = trie.split(back, 4).expect("inside");
            assert_eq!(trie.walk(&[1, 2, 3, 4, 5]).path, [front, back]);
            assert_eq!(trie.only_child(front), Some(back));
            trie.remove(back);
            assert_eq!(trie.len(), left);
        }
    }

    #[test]
    fn siblings_differ_in_their_first_key() {
        let mut set = filled(8, false);
        let mut sets = Sets { target: &mut set, own: None };
        let mut kept = |slots| sets.capture(slots).expect("at rest").expect("reached");
        let mut trie = Trie::new(1);
        // The same first token, but another one after it: two keys.
        trie.insert(None, &[1, 2, 3], kept(0..2), 0);
        trie.insert(None, &[1, 9, 3], kept(0..2), 0);
        let (one, two) = (trie.walk(&[1, 2, 3, 4]), trie.walk(&[1, 9, 4]));
        assert_eq!((one.matched, two.matched), (2, 1));
        assert_ne!(one.path, two.path);
        assert_eq!(trie.walk(&[1]).matched, 0);
        trie.insert(one.path.last().copied(), &[3, 4, 5, 6], kept(2..5), 0);
        let walk = trie.walk(&[1, 2, 3, 4, 5, 6]);
        assert_eq!((walk.matched, walk.path.len()), (5, 2));
        trie.join(&walk.path, kept(0..5));
        assert_eq!(trie.walk(&[1, 2, 3, 4, 5, 6, 7]).path, one.path);
        assert_eq!(trie.len(), 2);
    }
}
