//! Command line arguments of one command: flags and values are taken out, what is left over is an error.

use crate::failure::{Result, fail};

pub(crate) struct Arguments(Vec<String>);

impl Arguments {
    pub(crate) fn new(args: impl IntoIterator<Item = String>) -> Self {
        Self(args.into_iter().collect())
    }

    /// Takes a flag out.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|arg| arg != name);
        self.0.len() != before
    }

    /// Takes `--name value` or `--name=value` out.
    pub(crate) fn value(&mut self, name: &str) -> Result<Option<String>> {
        let joined = format!("{name}=");
        let Some(at) = self.0.iter().position(|arg| arg == name || arg.starts_with(&joined)) else {
            return Ok(None);
        };
        let arg = self.0.remove(at);
        if let Some(value) = arg.strip_prefix(&joined) {
            return Ok(Some(value.to_owned()));
        }
        if at == self.0.len() {
            return fail(format!("{name} needs a value"));
        }
        Ok(Some(self.0.remove(at)))
    }

    /// All that is left, for a command that passes it on.
    pub(crate) fn rest(self) -> Vec<String> {
        self.0
    }

    /// Fails when something is left.
    pub(crate) fn finish(self, usage: &str) -> Result {
        match self.0.first() {
            None => Ok(()),
            Some(arg) => fail(format!("unexpected argument {arg:?}\nusage: cargo xtask {usage}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(text: &str) -> Arguments {
        Arguments::new(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn flags_and_values_are_taken_out() {
        let mut given = args("--print --backend cuda rest --jobs=3");
        assert!(given.flag("--print"));
        assert!(!given.flag("--print"));
        assert_eq!(given.value("--backend").unwrap().as_deref(), Some("cuda"));
        assert_eq!(given.value("--jobs").unwrap().as_deref(), Some("3"));
        assert_eq!(given.value("--other").unwrap(), None);
        assert_eq!(given.rest(), ["rest"]);
    }

    #[test]
    fn mistakes_are_errors() {
        assert!(args("--backend").value("--backend").unwrap_err().0.contains("needs a value"));
        assert!(args("--bakend").finish("native").unwrap_err().0.contains("--bakend"));
        assert!(args("").finish("native").is_ok());
    }
}
