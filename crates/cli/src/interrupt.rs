//! Ctrl-C: the first asks for an end after the current round, the second ends the process.

use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

/// Whether the user asked for an end.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Starts listening. Without a way to listen, Ctrl-C ends the process at once as usual.
pub(crate) fn listen() {
    #[cfg(unix)]
    unix::install();
}

#[cfg(unix)]
mod unix {
    use std::{ffi::c_int, sync::atomic::Ordering};

    const SIGINT: c_int = 2;
    const DEFAULT: usize = 0;

    unsafe extern "C" {
        fn signal(number: c_int, handler: usize) -> usize;
    }

    extern "C" fn on_interrupt(_: c_int) {
        super::ASKED.store(true, Ordering::Relaxed);
        // SAFETY: `signal` may be called inside a handler.
        unsafe { signal(SIGINT, DEFAULT) };
    }

    pub(super) fn install() {
        let handler: extern "C" fn(c_int) = on_interrupt;
        // SAFETY: the handler only stores to an atomic and resets itself.
        unsafe { signal(SIGINT, handler as usize) };
    }
}
