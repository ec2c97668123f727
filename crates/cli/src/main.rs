//! The foretoken command line: the one place that names families, drafters and devices together.
//!
//! Standard output holds answers and nothing else; progress, notes and errors go to standard error. Exit
//! codes: 0 fine, 1 something failed, 2 wrong usage, 130 interrupted.

mod args;
mod audit;
mod colour;
mod drafter;
mod failure;
mod generate;
mod inspect;
mod interrupt;
mod json;
mod load;
mod machine;
mod output;
mod prompt;
mod score;
mod sink;
mod structured;
mod tokenizer;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

// Leaving `main` while another thread is inside MLX can hang or crash, so every command owns its worker
// and has joined it by the time it returns; nothing here ends the process directly.
fn main() -> ExitCode {
    // SAFETY: this is the first statement of the program; nothing has started a thread.
    unsafe { machine::settle_environment() };
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are "errors" with exit code 0 that print to standard output.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(failure::USAGE));
        }
    };
    let done = match cli.command {
        Command::Generate(args) => generate::run(&args),
        Command::Score(args) => score::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Audit(args) => audit::run(&args),
        Command::Inspect(args) => inspect::run(&args).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| failure::report(&error))
}
