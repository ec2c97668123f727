//! Reuse across requests: what earlier requests computed, found again by the tokens they had.
//!
//! A [`PrefixCache`] remembers sequences in a tree, for the target's caches and the drafter's together.
//! A request runs through three calls, none of which waits for an array:
//!
//! 1. [`begin`](PrefixCache::begin) takes both sets to the longest known beginning of the prompt that
//!    *every* layer can go to, and plans restore points for the rest;
//! 2. [`collect`](PrefixCache::collect), after each prefill chunk, keeps the restore points passed;
//! 3. [`close`](PrefixCache::close) keeps what the request produced and takes the sets.
//!
//! The sets of the last request stay alive: as long as the next one goes on from there, nothing is
//! copied in either direction. Rows move into copies when another sequence is about to overwrite them.
//!
//! Only tokens that a request recorded lead to a state, a poisoned set is forgotten with all that was
//! remembered of it, and a state that cannot be brought back is computed again.
//! Requests that run at once share folded states, so a failed evaluation in one may fail the other, with
//! a typed error.

mod evict;
mod key;
mod pair;
mod session;
mod trie;

use std::fmt;

use crate::{CacheSet, Result};

pub use session::PrefixSession;

use pair::{Kept, Live, Models, Sets};
use session::Start;
use trie::{NodeId, Trie, Walk};

/// How much a [`PrefixCache`] keeps, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixOptions {
    /// Bytes that may be held when no request runs.
    pub budget_bytes: usize,
    /// A restore point at every multiple of this many tokens; 0 for none. Nodes do not grow longer by
    /// joining than this.
    pub interval: usize,
    /// A restore point this many tokens before the prompt's end: a next turn often repeats all but the
    /// last tokens of a prompt.
    pub before_end: usize,
    /// How many tokens past a slot the drafter's own state of that slot depends on; 0 without own caches.
    pub look_ahead: usize,
    /// Whether the sets of the last request stay alive for the next one.
    pub keep_live: bool,
}

impl Default for PrefixOptions {
    fn default() -> Self {
        Self { budget_bytes: 8 << 30, interval: 8192, before_end: 4, look_ahead: 0, keep_live: true }
    }
}

/// What earlier requests of one model, and of its drafter, left behind.
///
/// The first request decides which sets belong here; those of other models are refused.
pub struct PrefixCache {
    options: PrefixOptions,
    trie: Trie,
    /// Counts requests; the only clock.
    clock: u64,
    models: Option<Models>,
    live: Option<Live>,
}

impl PrefixCache {
    /// An empty cache.
    pub fn new(options: PrefixOptions) -> Self {
        let trie = Trie::new(options.look_ahead);
        Self { options, trie, clock: 0, models: None, live: None }
    }

    /// The options.
    pub fn options(&self) -> &PrefixOptions {
        &self.options
    }

    /// Runs of slots remembered.
    pub fn len(&self) -> usize {
        self.trie.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held: copies, folded states, and the sets kept alive. Sets that a running request borrows
    /// count when they come back.
    pub fn bytes(&self) -> usize {
        self.trie.bytes() + self.live.as_ref().map_or(0, Live::bytes)
    }

    /// Forgets everything, also which models the sets are of.
    pub fn clear(&mut self) {
        self.trie = Trie::new(self.options.look_ahead);
        (self.live, self.models) = (None, None);
    }

    /// Begins a request: takes the sets to the longest known beginning of `prompt` and plans restore
    /// points for what follows, among them `boundaries`, offsets at which messages end. Prefill goes on
    /// from [`PrefixSession::cached_tokens`], where both sets rest.
    ///
    /// What the sets held is given up; the buffers in them may be exchanged for those of an earlier
    /// request. `own` is the drafter's, for every request or for none. Sets of other models, sets that
    /// are in use, an empty prompt and boundaries outside it are errors that change nothing. Should MLX
    /// fail to bring a state back, the error leaves both sets at offset 0 or poisoned.
    pub fn begin(
        &mut self,
        prompt: &[u32],
        boundaries: &[usize],
        target: &mut CacheSet,
        own: Option<&mut CacheSet>,
    ) -> Result<PrefixSession> {
        let mut sets = Sets { target, own };
        session::check(prompt, boundaries)?;
        self.admit("begin", &sets)?;
        sets.at_rest("begin")?;
        self.models.get_or_insert_with(|| Models::of(&sets));
        self.clock += 1;
        self.trie.remove_lost();
        if let Some(live) = self.live.take() {
            live.exchange(&mut sets);
        }
        // The last token is left to evaluate: its row is where the answer comes from.
        let usable = prompt.len().min(prompt.len() - 1 + self.options.look_ahead);
        let start = self.recall(&prompt[..usable], &mut sets)?;
        let points = session::plan(&self.options, prompt.len(), &start, boundaries);
        sets.schedule(&points)?;
        Ok(PrefixSession { prompt: prompt.to_vec(), cached: start.cached, points })
    }

    /// Keeps the restore points that both sets have passed. Call it after each prefill chunk that was
    /// evaluated, with no transaction open. A drafter's caches may lag behind: what they have not
    /// reached is kept by a later call.
    pub fn collect(
        &mut self,
        session: &mut PrefixSession,
        target: &mut CacheSet,
        own: Option<&mut CacheSet>,
    ) -> Result<()> {
        let mut sets = Sets { target, own };
        self.admit("collect", &sets)?;
        sets.at_rest("collect")?;
        let prompt = std::mem::take(&mut session.prompt);
        let kept = self.collect_points(session, &prompt, &mut sets);
        session.prompt = prompt;
        kept
    }

    /// Ends a request, however it ended, and takes its sets. `tokens` are the prompt and every token
    /// recorded after it, also those that were not streamed. What both sets have reached is kept, at
    /// most as far as `tokens` tell; then the least useful leaves go until the budget holds.
    ///
    /// A poisoned set is dropped, and whatever was remembered of it; nothing is kept of a request whose
    /// sets or tokens are not those it began with, which is an error.
    pub fn close(
        &mut self,
        mut session: PrefixSession,
        tokens: &[u32],
        mut target: CacheSet,
        mut own: Option<CacheSet>,
    ) -> Result<()> {
        let mut sets = Sets { target: &mut target, own: own.as_mut() };
        self.clock += 1;
        let kept = self.keep(&mut session, tokens, &mut sets);
        sets.unschedule();
        let live = self.options.keep_live && kept.is_ok() && self.may_live(&sets);
        if live {
            self.live = Some(Live { target, own });
        } else {
            // Rows that are remembered are copied out here.
            drop((target, own));
        }
        self.trie.remove_lost();
        self.shrink();
        kept
    }

    /// Takes both sets to the best restore point; what turns out to be lost on the way is forgotten.
    fn recall(&mut self, tokens: &[u32], sets: &mut Sets<'_>) -> Result<Start> {
        loop {
            let walk = self.trie.walk(tokens);
            let Some((nodes, cached)) = self.trie.restore_point(&walk) else {
                sets.reset()?;
                self.trie.touch(&walk.path, self.clock);
                return Ok(Start { cached: 0, matched: walk.matched });
            };
            let mut path = walk.path[..nodes].to_vec();
            let reached = self.cut(&mut path, cached) && {
                let kept: Vec<&Kept> = path.iter().map(|id| self.trie.node(*id).kept()).collect();
                sets.can_restore(&kept).is_ok()
            };
            if !reached {
                self.forget(path.last());
                continue;
            }
            let kept: Vec<&Kept> = path.iter().map(|id| self.trie.node(*id).kept()).collect();
            // The same failure must not meet the next request.
            sets.restore(&kept).inspect_err(|_| self.forget(path.last()))?;
            self.trie.touch(&path, self.clock);
            self.trie.touch(&walk.path[nodes..], self.clock);
            return Ok(Start { cached, matched: walk.matched });
        }
    }

    /// Makes the last node of `path` end at `at`. False if it cannot be cut.
    fn cut(&mut self, path: &mut [NodeId], at: usize) -> bool {
        let Some(last) = path.last_mut() else { return true };
        if self.trie.node(*last).end() == at {
            return true;
        }
        match self.trie.split(*last, at) {
            Ok(front) => *last = front,
            // The caller forgets it: what cannot be cut cannot be read either.
            Err(_) => return false,
        }
        true
    }

    fn forget(&mut self, id: Option<&NodeId>) {
        if let Some(id) = id {
            self.trie.remove(*id);
        }
    }

    fn collect_points(
        &mut self,
        session: &mut PrefixSession,
        tokens: &[u32],
        sets: &mut Sets<'_>,
    ) -> Result<()> {
        let known = tokens.len().saturating_sub(self.options.look_ahead).min(sets.offset());
        while let Some(&at) = session.points.first().filter(|at| **at <= known) {
            self.attach(tokens, at, sets)?;
            session.points.remove(0);
        }
        Ok(())
    }

    /// Keeps what a request leaves behind.
    fn keep(&mut self, session: &mut PrefixSession, tokens: &[u32], sets: &mut Sets<'_>) -> Result<()> {
        self.admit("close", sets)?;
        session::check_tokens(session, tokens)?;
        if sets.is_poisoned() {
            return Ok(());
        }
        sets.at_rest("close")?;
        self.collect_points(session, tokens, sets)?;
        let end = tokens.len().saturating_sub(self.options.look_ahead).min(sets.offset());
        self.attach(tokens, end, sets)?;
        let walk = self.trie.walk(self.keys(tokens, end));
        self.trie.touch(&walk.path, self.clock);
        self.gather(&walk, sets)
    }

    /// Remembers the first `end` slots of the sets as a path of the tree, as far as it does not yet.
    ///
    /// The new node starts where the tree leaves off, so it always reaches back to its parent; the sets
    /// hold the rows from there on whether this request computed them or not.
    fn attach(&mut self, tokens: &[u32], end: usize, sets: &mut Sets<'_>) -> Result<()> {
        loop {
            let mut walk = self.trie.walk(self.keys(tokens, end));
            let known = walk.matched == end;
            let last = walk.path.last().copied();
            if known && last.is_none_or(|id| self.trie.node(id).kept().reaches(end)) {
                return Ok(());
            }
            let start = match last {
                Some(id) if known => self.trie.node(id).start(),
                _ => walk.matched,
            };
            let Some(kept) = sets.capture(start..end)? else {
                return Ok(());
            };
            if !self.cut(&mut walk.path, walk.matched) {
                self.forget(walk.path.last());
                continue;
            }
            match walk.path.last().copied() {
                Some(id) if known => self.trie.replace(id, kept),
                last => {
                    let run = &self.keys(tokens, end)[walk.matched..];
                    self.trie.insert(last, run, kept, self.clock);
                }
            }
            return Ok(());
        }
    }

    /// Joins the nodes of a walk that are not needed apart, and gives up copies of rows that the sets
    /// hold themselves and live on with. Only where every offset is a restore point, so that none is lost.
    fn gather(&mut self, walk: &Walk, sets: &mut Sets<'_>) -> Result<()> {
        if !sets.cuttable() {
            return Ok(());
        }
        let live = self.options.keep_live && self.may_live(sets);
        let whole = walk.path.iter().copied().filter(|id| self.trie.node(*id).end() <= walk.matched);
        let mut rest: Vec<NodeId> = whole.collect();
        while !rest.is_empty() {
            let run: Vec<NodeId> = rest.drain(..self.joinable(&rest, live)).collect();
            let copied = self.trie.node(run[0]).kept().bytes() > 0;
            let slots = self.trie.node(run[0]).start()..self.trie.node(run[run.len() - 1]).end();
            if (run.len() > 1 || (live && copied))
                && let Some(kept) = sets.capture(slots)?
            {
                self.trie.join(&run, kept);
            }
        }
        Ok(())
    }

    /// How many nodes, at least one, from the front of `path` on can be one.
    fn joinable(&self, path: &[NodeId], live: bool) -> usize {
        let start = self.trie.node(path[0]).start();
        // Joining copies for a set that does not live on would copy them once more.
        let free = |id: NodeId| live || self.trie.node(id).kept().bytes() == 0;
        let follows = |pair: &[NodeId]| {
            let short = self.trie.node(pair[1]).end() - start <= self.options.interval;
            short && self.trie.only_child(pair[0]) == Some(pair[1]) && free(pair[0]) && free(pair[1])
        };
        1 + path.windows(2).take_while(|pair| follows(pair)).count()
    }

    /// Drops what is missed least until the budget holds.
    fn shrink(&mut self) {
        while self.bytes() > self.options.budget_bytes {
            // Leaves whose rows are still in a set's buffers give nothing back.
            let copied = evict::least_useful(&self.trie, self.clock, |node| node.kept().bytes() > 0);
            if let Some(id) = copied {
                self.trie.remove(id);
            } else if self.live.take().is_none() {
                match evict::least_useful(&self.trie, self.clock, |_| true) {
                    Some(id) => self.trie.remove(id),
                    None => return,
                }
            }
        }
    }

    fn may_live(&self, sets: &Sets<'_>) -> bool {
        sets.at_rest("close").is_ok() && sets.bytes() <= self.options.budget_bytes
    }

    /// The tokens that `end` keys are made of.
    fn keys<'t>(&self, tokens: &'t [u32], end: usize) -> &'t [u32] {
        match end {
            0 => &[],
            _ => &tokens[..end + self.options.look_ahead],
        }
    }

    fn admit(&self, what: &'static str, sets: &Sets<'_>) -> Result<()> {
        self.models.as_ref().map_or(Ok(()), |models| models.admit(what, sets))
    }
}

impl fmt::Debug for PrefixCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cache = f.debug_struct("PrefixCache");
        cache.field("options", &self.options).field("len", &self.len()).field("bytes", &self.bytes());
        cache.finish_non_exhaustive()
    }
}
