//! What the user sees while something takes long: a bar on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Whether standard error is a terminal; progress goes nowhere else.
pub(crate) fn on_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// Says on standard error what happens next.
pub(crate) fn say(line: &str) {
    eprintln!("{line}");
}

/// One long job made of a known number of steps.
pub(crate) struct Progress {
    label: String,
    steps: usize,
    shared: Arc<Shared>,
    started: Instant,
    painter: Option<JoinHandle<()>>,
}

struct Shared {
    done: AtomicUsize,
    over: AtomicBool,
}

impl Progress {
    pub(crate) fn start(label: impl Into<String>, steps: usize) -> Self {
        let (label, started) = (label.into(), Instant::now());
        let shared = Arc::new(Shared { done: AtomicUsize::new(0), over: AtomicBool::new(false) });
        let painter = if on_terminal() {
            let (label, shared) = (label.clone(), shared.clone());
            Some(std::thread::spawn(move || paint(&label, steps, &shared, started)))
        } else {
            say(&format!("{label} …"));
            None
        };
        Self { label, steps, shared, started, painter }
    }

    /// Counts one finished step.
    pub(crate) fn step(&self) {
        self.shared.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the job well and prints how long it took.
    pub(crate) fn done(mut self) {
        self.stop();
        say(&format!("{}: {:.1} s", self.label, self.started.elapsed().as_secs_f64()));
        debug_assert!(self.shared.done.load(Ordering::Relaxed) <= self.steps);
    }

    fn stop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(painter) = self.painter.take() {
            let _ = painter.join();
        }
    }
}

/// A job that failed leaves no half-drawn line behind.
impl Drop for Progress {
    fn drop(&mut self) {
        self.stop();
    }
}

fn paint(label: &str, steps: usize, shared: &Shared, started: Instant) {
    while !shared.over.load(Ordering::Relaxed) {
        let line = bar(label, shared.done.load(Ordering::Relaxed), steps, started.elapsed());
        eprint!("\r{line}\x1b[K");
        let _ = std::io::stderr().flush();
        std::thread::sleep(Duration::from_millis(100));
    }
    eprint!("\r\x1b[K");
    let _ = std::io::stderr().flush();
}

fn bar(label: &str, done: usize, steps: usize, elapsed: Duration) -> String {
    const WIDTH: usize = 24;
    let filled = (done.min(steps) * WIDTH).checked_div(steps).unwrap_or(0);
    let seconds = elapsed.as_secs();
    format!("{label} [{}{}] {done}/{steps} {seconds} s", "=".repeat(filled), " ".repeat(WIDTH - filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_grows_and_never_overflows() {
        let at = |done| bar("x", done, 4, Duration::from_secs(3));
        assert_eq!(at(0), format!("x [{}] 0/4 3 s", " ".repeat(24)));
        assert_eq!(at(1), format!("x [{}{}] 1/4 3 s", "=".repeat(6), " ".repeat(18)));
        assert_eq!(at(4), format!("x [{}] 4/4 3 s", "=".repeat(24)));
        assert_eq!(at(9).len(), at(4).len());
        assert!(bar("x", 0, 0, Duration::ZERO).contains("0/0"));
    }

    #[test]
    fn a_job_ends_with_and_without_success() {
        let job = Progress::start("good", 1);
        job.step();
        job.done();
        drop(Progress::start("bad", 3));
    }
}
