//! The one OS thread that touches MLX, and the handles that other threads talk to it with.

use std::{
    any::Any,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
};

use crate::{Event, FailureKind, FinishReason, Request, Result, Runner, RunnerError, TokenSink, memory};

/// Loading walks deep structures; the main thread's usual size is enough for it.
const STACK_BYTES: usize = 8 << 20;

/// Owns the thread on which a [`Runner`] lives. Dropping it ends the running request within one round,
/// refuses the waiting ones and joins the thread: a process that leaves `main` while a thread is inside
/// MLX can hang or crash.
pub struct Worker {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Talks to a worker from any thread. Clones are cheap.
#[derive(Clone)]
pub struct Handle {
    jobs: Sender<Job>,
    closing: Arc<AtomicBool>,
}

/// The events of one submitted request, in order. Dropping it cancels the request within one round, or
/// before its first evaluation if it has not begun.
pub struct Events {
    events: Receiver<Event>,
}

enum Job {
    Generate(Box<Request>, Box<dyn TokenSink + Send>),
    Call(Box<dyn FnOnce(&mut Runner) + Send>),
    Close,
}

impl Worker {
    /// Starts the thread and builds the runner on it; returns when that is done, or with its error.
    pub fn spawn<F, E>(build: F) -> Result<Self>
    where
        F: FnOnce() -> std::result::Result<Runner, E> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (jobs, queue) = channel();
        let (ready, built) = channel();
        let closing = Arc::new(AtomicBool::new(false));
        let flag = closing.clone();
        let main = move || match catch_unwind(AssertUnwindSafe(|| build().map_err(Into::into))) {
            Ok(Ok(runner)) => {
                let _ = ready.send(Ok(()));
                serve(runner, &queue, &flag);
            }
            Ok(Err(source)) => drop(ready.send(Err(RunnerError::Load { source }))),
            Err(panic) => drop(ready.send(Err(RunnerError::Panicked { message: panic_text(&*panic) }))),
        };
        let thread = std::thread::Builder::new()
            .name("mlx".into())
            .stack_size(STACK_BYTES)
            .spawn(main)
            .map_err(|source| RunnerError::Thread { source })?;
        let worker = Self { handle: Handle { jobs, closing }, thread: Some(thread) };
        // On an error the worker is dropped here, which joins the thread that is ending anyway.
        built.recv().unwrap_or(Err(RunnerError::Stopped)).map(|()| worker)
    }

    /// A handle for other threads.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.handle.closing.store(true, Ordering::Release);
        let _ = self.handle.jobs.send(Job::Close);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Handle {
    /// Queues a request; its events arrive on the returned stream.
    pub fn submit(&self, request: Request) -> Result<Events> {
        let (sender, events) = channel();
        self.submit_to(request, move |event| match sender.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(FinishReason::Cancelled),
        })?;
        Ok(Events { events })
    }

    /// Queues a request whose events go to a sink on the worker thread. A sink that is dropped without
    /// having heard `Done` or `Failed` belongs to a request that was never begun.
    pub fn submit_to(&self, request: Request, sink: impl TokenSink + Send + 'static) -> Result<()> {
        self.send(Job::Generate(Box::new(request), Box::new(sink)))
    }

    /// Runs a function on the worker thread between requests and waits for its answer.
    pub fn call<T: Send + 'static>(&self, f: impl FnOnce(&mut Runner) -> T + Send + 'static) -> Result<T> {
        let (sender, answer) = channel();
        self.send(Job::Call(Box::new(move |runner| {
            let called = catch_unwind(AssertUnwindSafe(|| f(runner)));
            let _ =
                sender.send(called.map_err(|panic| RunnerError::Panicked { message: panic_text(&*panic) }));
        })))?;
        answer.recv().unwrap_or(Err(RunnerError::Stopped))
    }

    fn send(&self, job: Job) -> Result<()> {
        if self.closing.load(Ordering::Acquire) {
            return Err(RunnerError::Stopped);
        }
        self.jobs.send(job).map_err(|_| RunnerError::Stopped)
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.events.recv().ok()
    }
}

/// Serves jobs in order until the worker is dropped. Everything the runner holds is dropped here, on the
/// thread that made it.
fn serve(mut runner: Runner, queue: &Receiver<Job>, closing: &AtomicBool) {
    while let Ok(job) = queue.recv() {
        if closing.load(Ordering::Acquire) {
            return;
        }
        match job {
            Job::Generate(request, sink) => generate(&mut runner, &request, sink, closing),
            Job::Call(call) => call(&mut runner),
            Job::Close => return,
        }
    }
}

/// Serves one request; a panic, also one of the sink, becomes its `Failed` event.
fn generate(
    runner: &mut Runner,
    request: &Request,
    mut sink: Box<dyn TokenSink + Send>,
    closing: &AtomicBool,
) {
    let served = catch_unwind(AssertUnwindSafe(|| {
        let mut watched = |event: Event| {
            sink.event(event)?;
            match closing.load(Ordering::Acquire) {
                true => ControlFlow::Break(FinishReason::Cancelled),
                false => ControlFlow::Continue(()),
            }
        };
        // The sink has heard the error.
        let _ = runner.generate(request, &mut watched);
    }));
    let Err(panic) = served else { return };
    // The request's caches are gone with the unwound stack. What is remembered may be fine, but after a
    // fault in the program nothing is built on it.
    runner.clear_prefix_cache();
    let _ = memory::clear_buffers();
    let message = RunnerError::Panicked { message: panic_text(&*panic) }.to_string();
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let _ = sink.event(Event::Failed { message, kind: FailureKind::Runtime });
    }));
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}
