//! Wraps a drafter and makes one of its calls fail.

use std::rc::Rc;

use foretoken_cache::CacheSet;
use mlx_rs::Array;

use crate::{CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter, DrafterFacts};

/// The call that fails. Numbers count calls of one session from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `open` is refused.
    Open,
    /// This proposal fails after it was made.
    Propose(usize),
    /// This proposal panics after it was made.
    ProposePanic(usize),
    /// This committed run is refused.
    Committed(usize),
    /// This committed run panics.
    CommittedPanic(usize),
    /// Every answer to whether there is anything to offer panics.
    ReadyPanic,
    /// This proposal begins with a row that is not a number.
    NanRow(usize),
    /// `settle` panics.
    SettlePanic,
    /// `finish` panics.
    FinishPanic,
}

/// A drafter that works but for one call.
pub struct FaultyDrafter {
    inner: Rc<dyn Drafter>,
    fault: Fault,
    vocabulary: usize,
}

impl FaultyDrafter {
    /// Breaks `inner`, a drafter for a target with this vocabulary.
    pub fn new(inner: Rc<dyn Drafter>, vocabulary: usize, fault: Fault) -> Self {
        Self { inner, fault, vocabulary }
    }
}

impl Drafter for FaultyDrafter {
    fn facts(&self) -> &DrafterFacts {
        self.inner.facts()
    }

    fn make_caches(&self) -> Option<CacheSet> {
        self.inner.make_caches()
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        if self.fault == Fault::Open {
            return Err(broken());
        }
        let inner = self.inner.open(at)?;
        Ok(Box::new(Faulty { inner, fault: self.fault, vocabulary: self.vocabulary, asked: 0, told: 0 }))
    }
}

fn broken() -> DraftError {
    DraftError::Other("scripted fault".into())
}

struct Faulty {
    inner: Box<dyn DraftSession>,
    fault: Fault,
    vocabulary: usize,
    asked: usize,
    told: usize,
}

impl DraftSession for Faulty {
    fn propose(
        &mut self,
        cx: &mut DraftCx<'_>,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        let asked = self.asked;
        self.asked += 1;
        if self.fault == Fault::NanRow(asked) {
            let row = vec![f32::NAN; self.vocabulary];
            out.draw(&Array::from_slice(&row, &[1, 1, self.vocabulary as i32]), None)?;
        }
        self.inner.propose(cx, current, out)?;
        match self.fault {
            Fault::Propose(at) if at == asked => Err(broken()),
            Fault::ProposePanic(at) if at == asked => panic!("scripted panic"),
            _ => Ok(()),
        }
    }

    fn ready(&self, tokens: &[u32]) -> Option<usize> {
        match self.fault {
            Fault::ReadyPanic => panic!("scripted panic"),
            _ => self.inner.ready(tokens),
        }
    }

    fn committed(&mut self, cx: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        let told = self.told;
        self.told += 1;
        match self.fault {
            Fault::Committed(at) if at == told => Err(broken()),
            Fault::CommittedPanic(at) if at == told => panic!("scripted panic"),
            _ => self.inner.committed(cx, run),
        }
    }

    fn settle(&mut self, cx: &mut DraftCx<'_>, next: Option<u32>) -> Result<(), DraftError> {
        match self.fault {
            Fault::SettlePanic => panic!("scripted panic"),
            _ => self.inner.settle(cx, next),
        }
    }

    fn finish(self: Box<Self>) -> Result<(), DraftError> {
        match self.fault {
            Fault::FinishPanic => panic!("scripted panic"),
            _ => self.inner.finish(),
        }
    }
}
