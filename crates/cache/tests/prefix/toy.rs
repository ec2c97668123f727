//! A toy model and drafter, and an engine that serves requests with them as a runner would.
//!
//! Rows of the target are filled with their token's number, rows of the drafter with the numbers of
//! their token and the one after. Every look at a set is compared with what these tokens, fed into a
//! fresh set, would show.

use foretoken_cache::{
    CacheSet, KvCache, Layer, RecurrentCache, RecurrentState, RotatingCache, SetId,
    prefix::{PrefixCache, PrefixOptions, PrefixSession},
};
use mlx_rs::{Array, Device};

/// Installs mlx-rs' error handler and keeps the tests on the CPU.
pub(crate) fn cpu() {
    Device::try_default().expect("MLX answers");
    Device::set_default(&Device::cpu());
}

/// Bytes of all arrays alive, once everything dispatched has run.
pub(crate) fn active_memory() -> usize {
    let last = Array::from_int(1).add(Array::from_int(1)).expect("two numbers");
    last.eval().expect("the stream runs in order");
    drop(last);
    mlx_rs::memory::active_memory().expect("a count")
}

/// `n` tokens from `first` on.
pub(crate) fn run(first: u32, n: usize) -> Vec<u32> {
    (first..first + n as u32).collect()
}

/// A kind of toy layer: one head, key and value of one number each.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Full,
    Window(usize),
    State,
}

/// Bytes of one row of a full-attention toy layer.
pub(crate) const ROW: usize = 8;

/// Two full and two sliding layers, as in the TINY toy.
pub(crate) const TINY: &[Kind] = &[Kind::Full, Kind::Window(8), Kind::Full, Kind::Window(8)];
/// TINY with recurrent layers in the place of two.
pub(crate) const HYB: &[Kind] = &[Kind::Full, Kind::State, Kind::Window(8), Kind::State];
/// Full attention alone.
pub(crate) const FULL: &[Kind] = &[Kind::Full, Kind::Full];

/// Layers of one kind each, with the identity of their model.
#[derive(Debug, Clone)]
pub(crate) struct Toy {
    id: SetId,
    kinds: Vec<Kind>,
    /// How many tokens past a slot its row tells.
    ahead: usize,
}

impl Toy {
    pub(crate) fn new(kinds: &[Kind], ahead: usize) -> Self {
        Self { id: SetId::fresh(), kinds: kinds.to_vec(), ahead }
    }

    pub(crate) fn set(&self) -> CacheSet {
        let layer = |kind: &Kind| match kind {
            Kind::Full => Layer::Kv(KvCache::new()),
            Kind::Window(window) => Layer::Rotating(RotatingCache::new(*window)),
            Kind::State => Layer::Recurrent(RecurrentCache::new()),
        };
        CacheSet::with_id(self.id, self.kinds.iter().map(layer).collect())
    }

    /// The numbers that the first `slots` rows are filled with.
    fn numbers(&self, tokens: &[u32], slots: usize) -> Vec<f32> {
        let number = |window: &[u32]| window.iter().rev().fold(0, |sum, token| sum * 1000 + token) as f32;
        tokens.windows(self.ahead + 1).take(slots).map(number).collect()
    }

    /// Appends the rows up to slot `to`, as one block.
    pub(crate) fn feed(&self, set: &mut CacheSet, tokens: &[u32], to: usize) {
        let numbers = self.numbers(tokens, to);
        assert_eq!(numbers.len(), to, "rows of tokens that are known");
        let block = &numbers[set.offset() + set.pending()..];
        if self.kinds.is_empty() {
            return set.advance(block.len()).expect("no layers");
        }
        for index in (0..self.kinds.len()).filter(|_| !block.is_empty()) {
            match set.layer_mut(index).expect("a layer") {
                Layer::Recurrent(cache) => fold(cache, block),
                other => {
                    let rows = Array::from_slice(block, &[1, 1, block.len() as i32, 1]);
                    other.attention_mut().expect("attention").append(&rows, &rows).expect("rows that fit");
                }
            }
        }
    }

    /// Fails unless every layer shows what the first `slots` rows, fed from scratch, would leave.
    pub(crate) fn check(&self, set: &CacheSet, tokens: &[u32], slots: usize) {
        assert_eq!(set.offset(), slots);
        set.level().expect("layers of one offset");
        let numbers = self.numbers(tokens, slots);
        assert_eq!(numbers.len(), slots, "rows of tokens that are known");
        for (kind, layer) in self.kinds.iter().zip(set.layers()) {
            let (shown, expected) = match (kind, layer) {
                (Kind::State, Layer::Recurrent(cache)) => {
                    let state = cache.state().expect("a state");
                    (state_of(&state), folded(&numbers))
                }
                (Kind::Window(window), _) => {
                    (rows_of(layer), numbers[slots.saturating_sub(window - 1)..].to_vec())
                }
                _ => (rows_of(layer), numbers.clone()),
            };
            assert_eq!(shown, expected, "{} at {slots}", layer.kind());
        }
    }
}

fn host(array: &Array) -> Vec<f32> {
    array.contiguous().expect("contiguous").to_vec_exact().expect("float32 numbers")
}

fn rows_of(layer: &Layer) -> Vec<f32> {
    let Some(view) = layer.get().view().expect("a view") else { return Vec::new() };
    let keys = host(&view.keys);
    assert_eq!(keys, host(&view.values), "keys and values of one token");
    keys
}

/// Numbers that a convolution tail holds.
const TAIL: usize = 3;

/// A tail and a sum in which every number, and their order, shows.
fn folded(numbers: &[f32]) -> Vec<f32> {
    let padded = [&[0.0; TAIL][..], numbers].concat();
    let sum = numbers.iter().fold(0, |sum, number| (3 * sum + *number as u64 + 1) % 9973);
    [&padded[padded.len() - TAIL..], &[sum as f32]].concat()
}

fn state_of(state: &RecurrentState) -> Vec<f32> {
    let (tail, sum) = (state.tail.as_ref().map(host), state.state.as_ref().map(host));
    [tail.unwrap_or(vec![0.0; TAIL]), sum.unwrap_or(vec![0.0])].concat()
}

/// Folds a block into a layer from the layer's state alone.
fn fold(cache: &mut RecurrentCache, block: &[f32]) {
    let mut now = state_of(&cache.state().expect("a state"));
    let stops = cache.stops(block.len());
    let mut states = Vec::new();
    for (index, number) in block.iter().enumerate() {
        let sum = (3 * now[TAIL] as u64 + *number as u64 + 1) % 9973;
        now = [&now[1..TAIL], &[*number, sum as f32]].concat();
        if stops.contains(&(index + 1)) {
            states.push(RecurrentState {
                tail: Some(Array::from_slice(&now[..TAIL], &[1, TAIL as i32, 1])),
                state: Some(Array::from_slice(&now[TAIL..], &[1, 1, 1, 1])),
            });
        }
    }
    cache.advance(block.len(), states).expect("the states asked for");
}

/// How a request goes.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) prompt: Vec<u32>,
    pub(crate) boundaries: Vec<usize>,
    pub(crate) chunk: usize,
    /// Prefill chunks after which it is cancelled.
    pub(crate) cancel: Option<usize>,
    /// Tokens produced after the prompt.
    pub(crate) answer: Vec<u32>,
    /// Drafts that are taken back before each answer token.
    pub(crate) rejected: usize,
    /// Rows that the drafter's caches lag behind until the end.
    pub(crate) lag: usize,
    pub(crate) poison: bool,
}

impl Ask {
    pub(crate) fn new(prompt: &[u32]) -> Self {
        Self {
            prompt: prompt.to_vec(),
            boundaries: Vec::new(),
            chunk: 8,
            cancel: None,
            answer: Vec::new(),
            rejected: 0,
            lag: 0,
            poison: false,
        }
    }

    pub(crate) fn chunk(self, chunk: usize) -> Self {
        Self { chunk, ..self }
    }

    pub(crate) fn cancel(self, chunks: usize) -> Self {
        Self { cancel: Some(chunks), ..self }
    }

    pub(crate) fn answer(self, answer: &[u32]) -> Self {
        Self { answer: answer.to_vec(), ..self }
    }

    pub(crate) fn boundaries(self, boundaries: &[usize]) -> Self {
        Self { boundaries: boundaries.to_vec(), ..self }
    }
}

/// A request that has begun.
pub(crate) struct Running {
    ask: Ask,
    session: PrefixSession,
    target: CacheSet,
    own: Option<CacheSet>,
}

/// The toys with their prefix cache.
pub(crate) struct Engine {
    pub(crate) target: Toy,
    pub(crate) own: Option<Toy>,
    pub(crate) cache: PrefixCache,
}

impl Engine {
    pub(crate) fn new(kinds: &[Kind], options: PrefixOptions) -> Self {
        Self { target: Toy::new(kinds, 0), own: None, cache: PrefixCache::new(options) }
    }

    /// With a drafter whose rows tell `ahead` tokens more than their own.
    pub(crate) fn with_drafter(kinds: &[Kind], own: &[Kind], ahead: usize, options: PrefixOptions) -> Self {
        let cache = PrefixCache::new(PrefixOptions { look_ahead: ahead, ..options });
        Self { target: Toy::new(kinds, 0), own: Some(Toy::new(own, ahead)), cache }
    }

    /// Serves a request and returns how many of its tokens were reused. Everything reused, and the state
    /// at the end, is compared with a cold run.
    pub(crate) fn serve(&mut self, ask: &Ask) -> usize {
        let running = self.open(ask);
        let cached = running.session.cached_tokens();
        self.finish(running);
        cached
    }

    /// Begins a request and compares what it found with a cold run.
    pub(crate) fn open(&mut self, ask: &Ask) -> Running {
        let (mut target, mut own) = (self.target.set(), self.own.as_ref().map(Toy::set));
        let begun = self.cache.begin(&ask.prompt, &ask.boundaries, &mut target, own.as_mut());
        let session = begun.expect("a request");
        let cached = session.cached_tokens();
        assert!(cached < ask.prompt.len(), "a token is left to evaluate");
        self.target.check(&target, &ask.prompt, cached);
        if let (Some(toy), Some(own)) = (&self.own, &own) {
            toy.check(own, &ask.prompt, cached);
        }
        Running { ask: ask.clone(), session, target, own }
    }

    /// Prefills, decodes and closes a request.
    pub(crate) fn finish(&mut self, running: Running) {
        self.answer(running);
        assert!(self.cache.bytes() <= self.cache.options().budget_bytes, "within the budget");
    }

    fn answer(&mut self, running: Running) {
        let Running { ask, mut session, mut target, mut own } = running;
        let full = ask.prompt.len() - 1;
        let mut tokens = ask.prompt.clone();
        let mut chunks = 0;
        while target.offset() < full && ask.cancel.is_none_or(|most| chunks < most) {
            let to = full.min(target.offset() + ask.chunk);
            target.begin_whole().expect("at rest");
            self.target.feed(&mut target, &tokens, to);
            target.commit(to - target.offset()).expect("all rows");
            self.hear(&mut own, &tokens[..to], to.saturating_sub(ask.lag));
            self.cache.collect(&mut session, &mut target, own.as_mut()).expect("restore points");
            chunks += 1;
        }
        if target.offset() == full && ask.cancel.is_none() {
            self.decode(&ask, &mut tokens, &mut target);
        }
        let rest = target.offset();
        self.hear(&mut own, &tokens, rest);
        self.target.check(&target, &tokens, rest);
        if ask.poison {
            target.poison("a kernel failed");
        }
        self.cache.close(session, &tokens, target, own).expect("closed");
    }

    /// Produces the answer one token at a time; the last one is not forwarded.
    fn decode(&mut self, ask: &Ask, tokens: &mut Vec<u32>, target: &mut CacheSet) {
        for token in &ask.answer {
            let base = target.begin().expect("at rest");
            let block: Vec<u32> =
                tokens.iter().copied().chain((0..ask.rejected).map(|n| 900 + n as u32)).collect();
            self.target.feed(target, &block, block.len());
            target.commit(1).expect("the current token");
            assert_eq!(target.offset(), base + 1);
            tokens.push(*token);
        }
    }

    /// Brings the drafter's caches to slot `to`, or as far as the tokens tell.
    fn hear(&self, own: &mut Option<CacheSet>, tokens: &[u32], to: usize) {
        if let (Some(toy), Some(own)) = (&self.own, own) {
            let to = to.min(tokens.len().saturating_sub(toy.ahead));
            if to > own.offset() {
                toy.feed(own, tokens, to);
            }
        }
    }
}

/// Restore points every 8 tokens, and a budget that nothing reaches.
pub(crate) fn options() -> PrefixOptions {
    PrefixOptions { interval: 8, ..PrefixOptions::default() }
}

/// The same with the last sets dropped after each request, so that all bytes are copies.
pub(crate) fn copying() -> PrefixOptions {
    PrefixOptions { keep_live: false, ..options() }
}
