//! A recurrent state that a layer and its snapshots share, and who pays for it.

use std::{
    cell::{Cell, RefCell},
    fmt,
    ops::Deref,
    rc::Rc,
};

use mlx_rs::{Array, Dtype, transforms::async_eval};

use crate::{CacheError, Result};

/// What a recurrent layer knows of all tokens so far. A model uses the parts that it has.
#[derive(Clone, Default)]
pub struct RecurrentState {
    /// The last inputs of a short convolution, `[1,k−1,C]`.
    pub tail: Option<Array>,
    /// The folded past, for example `[1,Hv,Dv,Dk]`; float32 is advised, since errors add up in it.
    pub state: Option<Array>,
}

/// Shape and type of an array that may be absent.
type Form = Option<(Vec<i32>, Dtype)>;

/// The form of every state of one layer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StateForm {
    tail: Form,
    state: Form,
}

impl RecurrentState {
    pub(crate) fn form(&self) -> StateForm {
        let form = |array: &Array| (array.shape().to_vec(), array.dtype());
        StateForm { tail: self.tail.as_ref().map(form), state: self.state.as_ref().map(form) }
    }

    fn bytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.tail.iter().chain(&self.state)
    }
}

impl StateForm {
    /// Fails unless `other` is of this form.
    pub(crate) fn admit(&self, other: &Self) -> Result<()> {
        admit("convolution tail", &self.tail, &other.tail)?;
        admit("recurrent state", &self.state, &other.state)
    }
}

fn admit(what: &'static str, own: &Form, other: &Form) -> Result<()> {
    match (own, other) {
        (None, None) => Ok(()),
        (Some((own, expected)), Some((other, got))) if own == other => match expected == got {
            true => Ok(()),
            false => Err(CacheError::Dtype { what, expected: *expected, got: *got }),
        },
        _ => {
            let name = |form: &Form| form.as_ref().map_or("none".into(), |(shape, _)| format!("{shape:?}"));
            Err(CacheError::Shape { what, expected: name(own), got: name(other) })
        }
    }
}

/// One state. Its bytes are the layer's while the layer holds it, and its snapshots' afterwards.
pub(crate) struct StateCell {
    state: RefCell<RecurrentState>,
    /// Layers that hold it.
    holders: Cell<usize>,
    lost: Cell<bool>,
    /// Bytes of cells that only snapshots hold; shared with the layer that made this one.
    released: Rc<Cell<usize>>,
}

impl StateCell {
    /// Bytes that snapshots alone are the reason for.
    pub(crate) fn bytes(&self) -> usize {
        match self.holders.get() {
            0 => self.nbytes(),
            _ => 0,
        }
    }

    pub(crate) fn form(&self) -> StateForm {
        self.state.borrow().form()
    }

    /// The state; an error once the evaluation that made it failed.
    pub(crate) fn read(&self) -> Result<RecurrentState> {
        if self.lost.get() {
            let reason = "the evaluation that made it failed".into();
            return Err(CacheError::LostState { reason });
        }
        Ok(self.state.borrow().clone())
    }

    /// Makes the arrays hold nothing else alive, and starts their evaluation.
    pub(crate) fn settle(&self) -> Result<()> {
        let mut own = self.state.borrow_mut();
        // A tail is usually a view of a whole block's inputs.
        let tail = own.tail.as_ref().map(Array::contiguous).transpose()?;
        async_eval(tail.iter().chain(&own.state))?;
        own.tail = tail;
        Ok(())
    }

    pub(crate) fn lose(&self) {
        self.lost.set(true);
    }

    fn nbytes(&self) -> usize {
        self.state.borrow().bytes()
    }
}

impl Drop for StateCell {
    fn drop(&mut self) {
        // No layer holds it any more: the last one had it counted as released.
        self.released.set(self.released.get() - self.nbytes());
    }
}

/// A layer's hold on a state.
pub(crate) struct Held(Rc<StateCell>);

impl Held {
    /// A new state of a layer whose snapshots' bytes are counted in `released`.
    pub(crate) fn fresh(state: RecurrentState, released: &Rc<Cell<usize>>) -> Self {
        released.set(released.get() + state.bytes());
        let (holders, lost) = (Cell::new(0), Cell::new(false));
        let released = Rc::clone(released);
        Self::take(&Rc::new(StateCell { state: RefCell::new(state), holders, lost, released }))
    }

    /// A state that a snapshot kept.
    pub(crate) fn take(cell: &Rc<StateCell>) -> Self {
        if cell.holders.get() == 0 {
            cell.released.set(cell.released.get() - cell.nbytes());
        }
        cell.holders.set(cell.holders.get() + 1);
        Self(Rc::clone(cell))
    }

    pub(crate) fn share(&self) -> Rc<StateCell> {
        Rc::clone(&self.0)
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.0.nbytes()
    }
}

impl Deref for Held {
    type Target = StateCell;

    fn deref(&self) -> &StateCell {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.holders.set(self.0.holders.get() - 1);
        if self.0.holders.get() == 0 {
            self.0.released.set(self.0.released.get() + self.0.nbytes());
        }
    }
}

// Printing an array would wait for it, so shapes stand for the arrays.
impl fmt::Debug for RecurrentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut state = f.debug_struct("RecurrentState");
        state.field("tail", &self.tail.as_ref().map(Array::shape));
        state.field("state", &self.state.as_ref().map(Array::shape)).finish()
    }
}
