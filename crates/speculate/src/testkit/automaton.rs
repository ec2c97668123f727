//! A grammar over token ids, small enough to write down.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use foretoken_sample::{Constraint, Grammar, SampleError, TokenMask};

/// A deterministic automaton over ids: for each state the ids that may come next and where they lead.
///
/// Where exactly one id may come next, it is forced. State 0 is the first.
#[derive(Debug, Clone)]
pub struct Automaton {
    states: Arc<Vec<Vec<(u32, usize)>>>,
    watch: Watch,
}

/// Counts how far all constraints of an automaton have moved: advances less rollbacks.
#[derive(Debug, Clone, Default)]
pub struct Watch(Arc<AtomicUsize>);

impl Watch {
    /// Tokens that the latest constraint stands past.
    pub fn depth(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Automaton {
    /// An automaton of these states; an edge to a state that does not exist leads to a dead end.
    pub fn new(states: Vec<Vec<(u32, usize)>>) -> Self {
        Self { states: Arc::new(states), watch: Watch::default() }
    }

    /// Where the latest constraint stands.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Whether ids follow the edges from the first state on.
    pub fn accepts(&self, ids: &[u32]) -> bool {
        ids.iter().try_fold(0, |state, &id| self.next(state, id)).is_some()
    }

    fn edges(&self, state: usize) -> &[(u32, usize)] {
        self.states.get(state).map_or(&[], Vec::as_slice)
    }

    fn next(&self, state: usize, id: u32) -> Option<usize> {
        self.edges(state).iter().find(|edge| edge.0 == id).map(|edge| edge.1)
    }
}

impl Grammar for Automaton {
    fn begin(&self) -> foretoken_sample::Result<Box<dyn Constraint>> {
        self.watch.0.store(0, Ordering::Relaxed);
        Ok(Box::new(Place { automaton: self.clone(), path: vec![0] }))
    }
}

/// The states passed so far.
struct Place {
    automaton: Automaton,
    path: Vec<usize>,
}

impl Place {
    fn state(&self) -> usize {
        self.path.last().copied().unwrap_or_default()
    }
}

impl Constraint for Place {
    fn mask(&mut self, allowed: &mut TokenMask) -> foretoken_sample::Result<()> {
        let mut words = vec![0_u32; allowed.vocabulary().div_ceil(32)];
        for &(id, _) in self.automaton.edges(self.state()) {
            words[id as usize / 32] |= 1 << (id % 32);
        }
        allowed.intersect(&words)
    }

    fn advance(&mut self, id: u32) -> foretoken_sample::Result<()> {
        let Some(next) = self.automaton.next(self.state(), id) else {
            return Err(SampleError::Constraint {
                what: "next token",
                expected: format!("an edge of state {}", self.state()),
                got: id.to_string(),
            });
        };
        self.path.push(next);
        self.automaton.watch.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn rollback(&mut self, tokens: usize) -> foretoken_sample::Result<()> {
        if tokens >= self.path.len() {
            return Err(SampleError::Constraint {
                what: "rollback",
                expected: format!("at most {} tokens", self.path.len() - 1),
                got: tokens.to_string(),
            });
        }
        self.path.truncate(self.path.len() - tokens);
        self.automaton.watch.0.fetch_sub(tokens, Ordering::Relaxed);
        Ok(())
    }

    fn forced(&mut self) -> foretoken_sample::Result<Vec<u32>> {
        let (mut state, mut forced) = (self.state(), Vec::new());
        // A loop of forced states forces no more tokens than there are states before it repeats.
        while let [(id, next)] = *self.automaton.edges(state)
            && forced.len() <= self.automaton.states.len()
        {
            forced.push(id);
            state = next;
        }
        Ok(forced)
    }
}
