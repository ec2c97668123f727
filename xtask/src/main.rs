//! Project automation, `cargo xtask <command>`. Here are the names of the commands; each lives in a file of its own.

mod arguments;
mod bench;
mod ci;
mod demo;
mod failure;
mod golden;
mod json;
mod metadata;
mod metal;
mod model;
mod native;
mod progress;
mod project;
mod sha256;
mod test;
mod tidy;
mod tools;

use std::process::ExitCode;

use arguments::Arguments;
use failure::{Result, fail};
use project::Project;

/// A command: its name, how it is used (the first word is the name), and what it does.
type Command = (&'static str, fn(&Project, Arguments) -> Result);

const COMMANDS: &[Command] = &[
    (demo::USAGE, demo::command),
    (test::USAGE, test::command),
    (native::USAGE, native::command),
    (model::USAGE, model::command),
    (metal::USAGE, metal::command),
    (bench::USAGE, bench::command),
    (golden::USAGE, golden::command),
    (tidy::USAGE, tidy::command),
    (ci::USAGE, ci::command),
];

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match dispatch(args.next().as_deref().unwrap_or("help"), Arguments::new(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(name: &str, args: Arguments) -> Result {
    if matches!(name, "help" | "--help" | "-h") {
        print!("{}", help());
        return Ok(());
    }
    let Some((_, command)) = COMMANDS.iter().find(|(usage, _)| command_name(usage) == name) else {
        return fail(format!("unknown command {name:?}\n\n{}", help()));
    };
    tools::check_cargo()?;
    command(&Project::here()?, args)
}

fn help() -> String {
    let mut text = String::from("usage: cargo xtask <command>\n\n");
    for (usage, _) in COMMANDS {
        text.push_str(&format!("{usage}\n"));
    }
    text
}

fn command_name(usage: &str) -> &str {
    usage.split([' ', '\n']).next().unwrap_or(usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_the_help() {
        let text = help();
        for (usage, _) in COMMANDS {
            assert!(text.contains(command_name(usage)));
            assert!(usage.contains("\n    "), "{usage:?} has no explanation");
        }
    }

    #[test]
    fn an_unknown_command_shows_the_help() {
        let message = dispatch("nothing", Arguments::new([])).unwrap_err().0;
        assert!(message.contains("\"nothing\"") && message.contains("native"), "{message}");
    }
}
