//! Values that arrive with the round's one wait.

use std::vec;

use mlx_rs::Array;

use crate::Result;

/// An array's contents on the host.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Host {
    Ids(Vec<u32>),
    Flags(Vec<bool>),
    Floats(Vec<f32>),
}

impl Host {
    /// Token ids; empty for any other kind.
    pub(crate) fn ids(self) -> Vec<u32> {
        match self {
            Host::Ids(ids) => ids,
            _ => Vec::new(),
        }
    }

    /// Flags; empty for any other kind.
    pub(crate) fn flags(self) -> Vec<bool> {
        match self {
            Host::Flags(flags) => flags,
            _ => Vec::new(),
        }
    }

    /// Numbers; empty for any other kind.
    pub(crate) fn floats(self) -> Vec<f32> {
        match self {
            Host::Floats(floats) => floats,
            _ => Vec::new(),
        }
    }
}

type Read<T> = Box<dyn FnOnce(vec::IntoIter<Host>) -> T>;

/// A value whose arrays are not computed yet. Only the engine can wait for it.
pub struct Lazy<T> {
    arrays: Vec<Array>,
    read: Read<T>,
}

impl<T> Lazy<T> {
    /// A value that `read` assembles from the contents of `arrays`, in order.
    ///
    /// The arrays are made row-major here, so that reading them on the host costs no second wait.
    pub(crate) fn new(
        arrays: &[&Array],
        read: impl FnOnce(vec::IntoIter<Host>) -> T + 'static,
    ) -> Result<Self> {
        let arrays = arrays.iter().map(|a| Ok(a.contiguous()?)).collect::<Result<_>>()?;
        Ok(Self { arrays, read: Box::new(read) })
    }

    /// Both values in one wait.
    pub(crate) fn with<U>(self, other: Lazy<U>) -> Lazy<(T, U)>
    where
        T: 'static,
        U: 'static,
    {
        let here = self.arrays.len();
        let mut arrays = self.arrays;
        let (read, read_other) = (self.read, other.read);
        arrays.extend(other.arrays);
        let read = move |hosts: vec::IntoIter<Host>| {
            let mut first: Vec<Host> = hosts.collect();
            let rest = first.split_off(here);
            (read(first.into_iter()), read_other(rest.into_iter()))
        };
        Lazy { arrays, read: Box::new(read) }
    }

    /// The value that `change` makes of this one.
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U + 'static) -> Lazy<U>
    where
        T: 'static,
    {
        let read = self.read;
        Lazy { arrays: self.arrays, read: Box::new(move |hosts| change(read(hosts))) }
    }

    /// The arrays to wait for.
    pub(crate) fn arrays(&self) -> &[Array] {
        &self.arrays
    }

    /// Assembles the value from the contents of [`arrays`](Self::arrays).
    pub(crate) fn assemble(self, hosts: Vec<Host>) -> T {
        (self.read)(hosts.into_iter())
    }
}
