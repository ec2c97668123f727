//! Results on their way to standard output, which may be closed or full.

use std::io::{ErrorKind, Write, stdout};

use anyhow::{Context, Result};

/// Prints a result and its line end. A reader that has left is no error; a full disk is.
pub(crate) fn print(text: &str) -> Result<()> {
    print_to(&mut stdout().lock(), text)
}

fn print_to(out: &mut impl Write, text: &str) -> Result<()> {
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Closed(ErrorKind);

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_left_is_no_error_and_a_full_disk_is() {
        assert!(print_to(&mut Closed(ErrorKind::BrokenPipe), "a").is_ok());
        let error = print_to(&mut Closed(ErrorKind::StorageFull), "a").unwrap_err();
        assert!(error.to_string().contains("standard output"));
        let mut kept = Vec::new();
        print_to(&mut kept, "a").unwrap();
        assert_eq!(kept, b"a\n");
    }
}
