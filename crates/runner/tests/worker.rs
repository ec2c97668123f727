//! The worker thread: everything that touches the model happens on it, whoever asks.

use std::{
    cell::Cell,
    ops::ControlFlow,
    rc::Rc,
    sync::mpsc::channel,
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use foretoken_cache::CacheSet;
use foretoken_model_base::{Batch, Hidden, Model, ModelFacts, Result as ModelResult};
use foretoken_runner::{Event, FinishReason, Handle, MemoryUse, Request, Runner, RunnerError, Worker};
use foretoken_speculate::{
    DraftPolicy,
    testkit::{Pattern, ScriptedDrafter, ScriptedTarget, on_cpu},
};
use mlx_rs::Array;

const V: usize = 23;

/// A request that a test abandons must be over well within this time.
const PATIENCE: Duration = Duration::from_secs(20);

fn rule(tokens: &[u32]) -> u32 {
    tokens.iter().rev().take(2).fold(tokens.len() as u32, |sum, id| sum * 7 + id) % V as u32
}

/// A scripted target that insists on the thread that built it, and may be slow or panic.
struct Guarded {
    inner: ScriptedTarget,
    home: ThreadId,
    pause: Duration,
    panic_at: Option<usize>,
    forwards: Rc<Cell<usize>>,
}

impl Model for Guarded {
    fn facts(&self) -> &ModelFacts {
        self.inner.facts()
    }

    fn make_caches(&self) -> CacheSet {
        assert_eq!(thread::current().id(), self.home);
        self.inner.make_caches()
    }

    fn forward(&self, batch: &Batch, caches: &mut [&mut CacheSet]) -> ModelResult<Hidden> {
        assert_eq!(thread::current().id(), self.home);
        let number = self.forwards.replace(self.forwards.get() + 1);
        assert_ne!(Some(number), self.panic_at, "scripted panic");
        thread::sleep(self.pause);
        self.inner.forward(batch, caches)
    }

    fn unembed(&self, last: &Array) -> ModelResult<Array> {
        assert_eq!(thread::current().id(), self.home);
        self.inner.unembed(last)
    }
}

fn worker(pause: Duration, panic_at: Option<usize>) -> Worker {
    let built = Worker::spawn(move || {
        on_cpu();
        let model = Rc::new(Guarded {
            inner: ScriptedTarget::new(V, rule),
            home: thread::current().id(),
            pause,
            panic_at,
            forwards: Rc::default(),
        });
        let drafter = Rc::new(ScriptedDrafter::new(Pattern::Mix, V, rule));
        Ok::<_, RunnerError>(Runner::new(model).with_drafter(drafter, Some(DraftPolicy::Constant(3))))
    });
    built.expect("the worker starts")
}

fn quick() -> Worker {
    worker(Duration::ZERO, None)
}

fn asked(first: u32, max_tokens: usize) -> Request {
    Request { max_tokens: Some(max_tokens), ..Request::greedy([first, 2, 3]) }
}

fn answer(handle: &Handle, request: Request) -> (Vec<u32>, Option<Event>) {
    let (mut ids, mut last) = (Vec::new(), None);
    for event in handle.submit(request).expect("the worker takes requests") {
        if let Event::Token { id, .. } = event {
            ids.push(id);
        }
        last = Some(event);
    }
    (ids, last)
}

#[test]
fn handles_requests_and_events_cross_threads() {
    fn crosses<T: Send + 'static>() {}
    fn shared<T: Sync>() {}
    crosses::<Handle>();
    crosses::<Request>();
    crosses::<Event>();
    crosses::<Worker>();
    shared::<Handle>();
}

#[test]
fn h70_every_touch_of_the_model_happens_on_the_owning_thread() {
    // Built by a thread that is gone before the first request comes.
    let worker = thread::spawn(quick).join().expect("the loading thread ends well");
    let alone: Vec<_> = (0..8).map(|first| answer(&worker.handle(), asked(first, 9)).0).collect();
    let callers: Vec<_> = (0..8)
        .map(|first| {
            let (handle, right) = (worker.handle(), alone[first as usize].clone());
            thread::spawn(move || {
                for round in 0..25 {
                    match (first + round) % 4 {
                        0 => assert!(MemoryUse::now().is_ok()),
                        1 => assert_eq!(handle.call(|r| r.model().facts().vocabulary).ok(), Some(V)),
                        2 => drop(handle.submit(asked(first, 50))),
                        _ => {
                            let (ids, last) = answer(&handle, asked(first, 9));
                            assert_eq!(ids, right);
                            assert!(matches!(last, Some(Event::Done(_))), "{last:?}");
                        }
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        caller.join().expect("no caller panics");
    }
}

#[test]
fn a_request_whose_listener_left_ends_within_a_round() {
    let worker = worker(Duration::from_millis(2), None);
    let mut events = worker.handle().submit(asked(1, 4000)).expect("taken");
    assert!(events.any(|event| matches!(event, Event::Token { .. })));
    drop(events);
    let begun = Instant::now();
    let (ids, _) = answer(&worker.handle(), asked(1, 3));
    assert_eq!(ids.len(), 3);
    assert!(begun.elapsed() < PATIENCE, "4,000 tokens would have taken longer");
}

#[test]
fn a_panic_inside_a_request_fails_that_request_only() {
    let worker = worker(Duration::ZERO, Some(3));
    let (_, last) = answer(&worker.handle(), asked(1, 30));
    match last {
        Some(Event::Failed { message, .. }) => assert!(message.contains("scripted panic"), "{message}"),
        other => panic!("{other:?}"),
    }
    let (ids, last) = answer(&worker.handle(), asked(1, 30));
    assert_eq!(ids, answer(&quick().handle(), asked(1, 30)).0);
    assert!(matches!(last, Some(Event::Done(_))));
}

#[test]
fn a_sink_that_panics_fails_its_request_only() {
    let worker = quick();
    let (tell, told) = channel();
    let sink = move |event: Event| {
        assert!(!matches!(event, Event::Token { .. }), "broken sink");
        let _ = tell.send(event);
        ControlFlow::Continue(())
    };
    worker.handle().submit_to(asked(1, 5), sink).expect("taken");
    let heard: Vec<Event> = told.iter().collect();
    assert!(matches!(heard.last(), Some(Event::Failed { .. })), "{heard:?}");
    assert_eq!(answer(&worker.handle(), asked(1, 5)).0.len(), 5);
    assert!(matches!(
        worker.handle().call(|_| panic!("broken call")),
        Err::<(), _>(RunnerError::Panicked { .. })
    ));
    assert_eq!(answer(&worker.handle(), asked(1, 5)).0.len(), 5);
}

#[test]
fn a_sink_can_end_an_answer_on_the_worker_thread() {
    let worker = quick();
    let (tell, told) = channel();
    let mut count = 0;
    let sink = move |event: Event| {
        count += usize::from(matches!(event, Event::Token { .. }));
        if let Event::Done(report) = event {
            let _ = tell.send((report.finish_reason, report.usage.completion_tokens));
        }
        if count == 2 { ControlFlow::Break(FinishReason::Stop) } else { ControlFlow::Continue(()) }
    };
    worker.handle().submit_to(asked(1, 30), sink).expect("taken");
    assert_eq!(told.recv().ok(), Some((FinishReason::Stop, 2)));
}

#[test]
fn dropping_the_worker_ends_the_running_request_and_joins() {
    let worker = worker(Duration::from_millis(2), None);
    let handle = worker.handle();
    let mut running = handle.submit(asked(1, 4000)).expect("taken");
    let waiting = handle.submit(asked(2, 4000)).expect("taken");
    assert!(running.any(|event| matches!(event, Event::Token { .. })));
    let begun = Instant::now();
    drop(worker);
    assert!(begun.elapsed() < PATIENCE);
    match running.last() {
        Some(Event::Done(report)) => assert_eq!(report.finish_reason, FinishReason::Cancelled),
        other => panic!("{other:?}"),
    }
    assert_eq!(waiting.count(), 0, "a waiting request never begins");
    assert!(matches!(handle.submit(asked(1, 1)), Err(RunnerError::Stopped)));
    assert!(matches!(handle.call(|_| ()), Err(RunnerError::Stopped)));
}

#[test]
fn a_runner_that_cannot_be_built_is_an_error_with_the_builders_words() {
    let failed = Worker::spawn(|| Err::<Runner, _>("no such model"));
    assert_eq!(failed.err().map(|error| error.to_string()).as_deref(), Some("no such model"));
    let panicked = Worker::spawn(|| -> Result<Runner, RunnerError> { panic!("broken builder") });
    assert!(matches!(panicked.err(), Some(RunnerError::Panicked { .. })));
}
