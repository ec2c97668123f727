//! A block head beside other drafters: one forward serves those that tap, whatever layers and order they ask
//! for, and those that do not.

use std::{cell::RefCell, rc::Rc};

use foretoken_model_base::{Batch, Hidden, Model};
use foretoken_speculate::{
    CommittedRun, DraftCx, DraftError, DraftPolicy, DraftSession, DraftSink, Drafter, DrafterFacts,
    Speculation,
    testkit::{Request, conformance::check_set, play_set},
};
use mlx_rs::{Array, ops::concatenate};

use super::common::{difference, drafter, golden, host, trained};

const PROMPT: [u32; 12] = [11, 48, 85, 122, 159, 36, 73, 110, 147, 24, 61, 98];

/// States of one forward of a whole text against those of prefill and rounds: other orders of sums.
const SAME: f32 = 1e-4;

/// Guesses that the current token comes again, and notes what it hears.
struct Listener {
    facts: DrafterFacts,
    heard: Rc<RefCell<Vec<(usize, Array)>>>,
}

impl Listener {
    /// Listens to these layers, or to the state that every drafter may have.
    fn new(name: &'static str, layers: &[usize]) -> Rc<Self> {
        let facts = DrafterFacts::new(name, 2);
        let facts = if layers.is_empty() { facts.with_hidden() } else { facts.with_taps(layers) };
        Rc::new(Self { facts, heard: Rc::default() })
    }

    /// Checks that what was heard of a text is what the model thinks of it; returns how many slots were heard.
    fn check(&self, model: &dyn Model, text: &[u32]) -> usize {
        let (batch, mut caches) = (Batch::from_ids(text, 0).unwrap(), model.make_caches());
        let Hidden { aux, .. } = match self.facts.taps.as_slice() {
            [] => model.forward(&batch, &mut [&mut caches]).unwrap(),
            layers => model.taps().unwrap().forward_tapped(&batch, &mut [&mut caches], layers).unwrap(),
        };
        let (want, width) = (host(&aux), aux.dim(2) as usize);
        let heard = self.heard.take();
        let first = heard.first().unwrap().0;
        let states = concatenate(&heard.iter().map(|(_, states)| states).collect::<Vec<_>>(), 1).unwrap();
        let (from, to) = (first * width, (first + states.dim(1) as usize) * width);
        let off = difference(&host(&states), &want[from..to]);
        println!("{}: {} slots, {off:.1e}", self.facts.name, states.dim(1));
        assert!(off < SAME, "{}: {off}", self.facts.name);
        states.dim(1) as usize
    }
}

impl Drafter for Listener {
    fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    fn open(&self, _: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        Ok(Box::new(Session { heard: self.heard.clone(), next: None }))
    }
}

struct Session {
    heard: Rc<RefCell<Vec<(usize, Array)>>>,
    next: Option<usize>,
}

impl DraftSession for Session {
    fn propose(
        &mut self,
        _: &mut DraftCx<'_>,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        if self.next.is_none() || out.room() == 0 {
            return Ok(());
        }
        out.known(&[current])
    }

    fn committed(&mut self, _: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        self.next = Some(run.after(self.next.unwrap_or(run.slot))?);
        let states = run.hidden.ok_or_else(|| DraftError::Other("no states".into()))?;
        self.heard.borrow_mut().push((run.slot, states.clone()));
        Ok(())
    }
}

#[test]
fn every_drafter_of_a_set_hears_the_states_it_asked_for() {
    let model = golden("llama");
    let listeners =
        [Listener::new("plain", &[]), Listener::new("taps 3, 0", &[3, 0]), Listener::new("taps 1", &[1])];
    let mut set = vec![drafter(trained(model.as_ref()))];
    set.extend(listeners.iter().map(|listener| listener.clone() as Rc<dyn Drafter>));
    let asked = Request::greedy(&PROMPT, 40, 0);
    let plain = play_set(model.clone(), &Speculation::none(), &asked).unwrap().ids;
    let done = play_set(model.clone(), &Speculation::new(set, DraftPolicy::Constant(4)), &asked).unwrap();
    assert_eq!(done.ids, plain);
    assert!(done.statistics.accepted > 0, "{:?}", done.statistics);
    let text = done.request.history.ids();
    for listener in listeners {
        let slots = listener.check(model.as_ref(), &text[..text.len() - 1]);
        assert_eq!(slots, text.len() - 1, "{}", listener.facts.name);
    }
}

#[test]
fn sets_with_a_block_head_change_no_token() {
    let model = golden("llama");
    let block = drafter(trained(model.as_ref()));
    let set = [block, Listener::new("plain", &[]), Listener::new("taps", &[3, 0])];
    let seen = check_set(&model, &set, &PROMPT).unwrap_or_else(|err| panic!("{err}"));
    println!("{seen:?}");
    assert!(seen.accepted > 0 && seen.accepted < seen.drafted, "{seen:?}");
}
