//! Where elapsed time comes from, so that tests and replays need no real one.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// A clock that never goes back.
pub trait Clock {
    /// The time since some fixed moment.
    fn now(&self) -> Duration;
}

/// The machine's own clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// A clock that starts now.
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A clock that moves only when told to.
#[derive(Debug, Default)]
pub struct ScriptedClock(Cell<Duration>);

impl ScriptedClock {
    /// A clock at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        self.0.set(self.0.get() + by);
    }
}

impl Clock for ScriptedClock {
    fn now(&self) -> Duration {
        self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_do_not_go_back() {
        let scripted = ScriptedClock::new();
        scripted.advance(Duration::from_millis(3));
        scripted.advance(Duration::from_millis(4));
        assert_eq!(scripted.now(), Duration::from_millis(7));
        let system = SystemClock::new();
        let first = system.now();
        assert!(system.now() >= first);
    }
}
