//! What happens to an answer's events: text, stop strings, streaming and progress.

use std::{
    io::{self, IsTerminal, Write},
    ops::ControlFlow,
    time::Duration,
};

use foretoken_runner::{Event, FinishReason, TokenSink};
use foretoken_speculate::TokenLogprobs;
use foretoken_text::TextStream;
use indicatif::{ProgressBar, ProgressStyle};

use crate::interrupt;

/// Prompts shorter than this are evaluated before a bar could be read.
const BAR_FROM: usize = 512;

/// An answer so far, and at its end the whole of it.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// Without the end token; with a stop string, through the token that completed it.
    pub(crate) ids: Vec<u32>,
    /// Without the stop string; absent for a model without a tokenizer.
    pub(crate) text: Option<String>,
    pub(crate) logprobs: Option<Vec<TokenLogprobs>>,
}

/// Collects an answer and, unless it is to be printed as JSON, streams it to standard output.
pub(crate) struct AnswerSink {
    answer: Answer,
    stream: Option<TextStream>,
    streaming: bool,
    bar: ProgressBar,
    /// The first failure to write. A closed pipe is a reader that has seen enough, not an error.
    broken: Option<io::Error>,
}

impl AnswerSink {
    pub(crate) fn new(stream: Option<TextStream>, streaming: bool, logprobs: bool) -> Self {
        let answer = Answer {
            ids: Vec::new(),
            text: stream.is_some().then(String::new),
            logprobs: logprobs.then(Vec::new),
        };
        Self { answer, stream, streaming, bar: ProgressBar::hidden(), broken: None }
    }

    /// Ends the answer: held back text comes out, and a streamed answer ends its line. A request that
    /// failed before its first token leaves standard output empty.
    pub(crate) fn finish(mut self, complete: bool) -> io::Result<Answer> {
        self.bar.finish_and_clear();
        if let Some(mut stream) = self.stream.take() {
            let rest = stream.finish();
            let _ = self.show(&rest);
        }
        if complete || !self.answer.ids.is_empty() {
            let _ = self.write("\n");
        }
        match self.broken {
            Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(self.answer),
        }
    }

    fn token(&mut self, id: u32, logprobs: Option<TokenLogprobs>) -> ControlFlow<FinishReason> {
        let first = self.answer.ids.is_empty();
        self.answer.ids.push(id);
        if let (Some(all), Some(one)) = (self.answer.logprobs.as_mut(), logprobs) {
            all.push(one);
        }
        let Some(stream) = self.stream.as_mut() else {
            return self.write(&if first { id.to_string() } else { format!(",{id}") });
        };
        let piece = stream.push(id);
        self.show(&piece.text)?;
        if piece.stopped { ControlFlow::Break(FinishReason::Stop) } else { ControlFlow::Continue(()) }
    }

    fn show(&mut self, text: &str) -> ControlFlow<FinishReason> {
        if let Some(all) = self.answer.text.as_mut() {
            all.push_str(text);
        }
        self.write(text)
    }

    fn write(&mut self, text: &str) -> ControlFlow<FinishReason> {
        if !self.streaming || self.broken.is_some() || text.is_empty() {
            return ControlFlow::Continue(());
        }
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.broken = Some(error);
                ControlFlow::Break(FinishReason::Cancelled)
            }
        }
    }

    fn progress(&mut self, done: usize, total: usize) {
        if done == 0 && total >= BAR_FROM {
            self.bar = bar(total);
        }
        self.bar.set_position(done as u64);
        if done == total {
            self.bar.finish_and_clear();
        }
    }
}

impl TokenSink for AnswerSink {
    fn event(&mut self, event: Event) -> ControlFlow<FinishReason> {
        match event {
            Event::Prefill { done, total } => self.progress(done, total),
            Event::Token { id, logprobs, .. } => self.token(id, logprobs)?,
            Event::SpeculationEnded { reason } => {
                eprintln!("warning: the rest of this answer is decoded plainly: {reason}");
            }
            // The caller has the report or the error itself.
            _ => {}
        }
        if interrupt::asked() {
            ControlFlow::Break(FinishReason::Cancelled)
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// A bar for evaluating the prompt; invisible unless standard error is a terminal.
fn bar(total: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("prompt {wide_bar} {pos}/{len} tokens");
    let bar = ProgressBar::new(total as u64);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// A spinner while something loads; invisible unless standard error is a terminal.
pub(crate) fn spinner(what: String) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(what);
    if io::stderr().is_terminal() {
        bar.enable_steady_tick(Duration::from_millis(100));
    }
    bar
}
