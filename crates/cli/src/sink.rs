//! What happens to an answer's events: text, stop strings, streaming and progress.

use std::{
    io::{self, IsTerminal, Write},
    ops::ControlFlow,
    time::Duration,
};

use foretoken_runner::{Event, FinishReason, TokenSink};
use foretoken_speculate::{Provenance, Token, TokenLogprobs};
use foretoken_text::TextStream;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{colour, interrupt};

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
    /// Where each token came from, when asked for.
    pub(crate) provenance: Option<Vec<Provenance>>,
    /// Tokens that rounding could change: place and margin.
    pub(crate) near_ties: Vec<(usize, f32)>,
}

/// Margins below this are near ties: kernels for one row and for several may sum in another order, and the
/// scores of two tokens may then change places.
pub(crate) const NEAR_TIE: f32 = 1e-3;

/// What becomes of tokens besides being collected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Show {
    pub(crate) streaming: bool,
    /// Colour tokens by where they came from.
    pub(crate) colour: bool,
    pub(crate) logprobs: bool,
    pub(crate) provenance: bool,
}

/// Collects an answer and, unless it is to be printed as JSON, streams it to standard output.
pub(crate) struct AnswerSink {
    answer: Answer,
    stream: Option<TextStream>,
    show: Show,
    bar: ProgressBar,
    /// The first failure to write. A closed pipe is a reader that has seen enough, not an error.
    broken: Option<io::Error>,
}

impl AnswerSink {
    pub(crate) fn new(stream: Option<TextStream>, show: Show) -> Self {
        let answer = Answer {
            text: stream.is_some().then(String::new),
            logprobs: show.logprobs.then(Vec::new),
            provenance: show.provenance.then(Vec::new),
            ..Answer::default()
        };
        if show.colour {
            eprintln!("{}", colour::legend());
        }
        Self { answer, stream, show, bar: ProgressBar::hidden(), broken: None }
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

    fn token(&mut self, token: Token) -> ControlFlow<FinishReason> {
        let Token { id, logprobs, margin, provenance } = token;
        let first = self.answer.ids.is_empty();
        if let Some(margin) = margin.filter(|&margin| margin < NEAR_TIE) {
            self.answer.near_ties.push((self.answer.ids.len(), margin));
        }
        self.answer.ids.push(id);
        if let Some(all) = self.answer.provenance.as_mut() {
            all.push(provenance);
        }
        if let (Some(all), Some(one)) = (self.answer.logprobs.as_mut(), logprobs) {
            all.push(one);
        }
        let Some(stream) = self.stream.as_mut() else {
            let text = if first { id.to_string() } else { format!(",{id}") };
            return self.write(&self.coloured(text, provenance));
        };
        let piece = stream.push(id);
        if let Some(all) = self.answer.text.as_mut() {
            all.push_str(&piece.text);
        }
        self.write(&self.coloured(piece.text, provenance))?;
        if piece.stopped { ControlFlow::Break(FinishReason::Stop) } else { ControlFlow::Continue(()) }
    }

    /// A token's text in the colour of where it came from.
    fn coloured(&self, text: String, provenance: Provenance) -> String {
        if self.show.colour && !text.is_empty() { colour::paint(&text, provenance) } else { text }
    }

    fn show(&mut self, text: &str) -> ControlFlow<FinishReason> {
        if let Some(all) = self.answer.text.as_mut() {
            all.push_str(text);
        }
        self.write(text)
    }

    fn write(&mut self, text: &str) -> ControlFlow<FinishReason> {
        if !self.show.streaming || self.broken.is_some() || text.is_empty() {
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
            Event::Token { id, logprobs, margin, provenance } => {
                self.token(Token { id, logprobs, margin, provenance })?;
            }
            Event::SpeculationEnded { reason } => {
                eprintln!("warning: a drafter stopped, the answer goes on without it: {reason}");
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
