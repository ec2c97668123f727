//! One install at a time: tests, benchmarks and editors may all ask for the libraries at once.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::{Context, Result, fail};
use crate::progress::say;

/// A file with the owner's process id; dropping it gives the lock back.
#[derive(Debug)]
pub(super) struct Lock(PathBuf);

impl Lock {
    /// Waits for another owner; one that no longer runs is ignored.
    pub(super) fn take(path: &Path) -> Result<Self> {
        let mut told = false;
        loop {
            match OpenOptions::new().write(true).create_new(true).open(path) {
                Ok(mut file) => {
                    write!(file, "{}", std::process::id())
                        .context(|| format!("writing {}", path.display()))?;
                    return Ok(Self(path.to_path_buf()));
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return fail(format!("making {}: {error}", path.display())),
            }
            if !owner_runs(path) {
                let _ = std::fs::remove_file(path);
                continue;
            }
            if !told {
                say("waiting for another run that installs MLX …");
                told = true;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A file that is still empty belongs to an owner that is about to write its id, unless it stays so.
fn owner_runs(path: &Path) -> bool {
    let read = || std::fs::read_to_string(path).unwrap_or_default();
    let mut owner = read();
    if owner.is_empty() {
        std::thread::sleep(Duration::from_millis(200));
        owner = read();
    }
    owner.parse::<u32>().is_ok_and(|id| Path::new("/proc").join(id.to_string()).exists())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::project::scratch;

    #[test]
    fn a_lock_is_given_back_and_a_dead_owner_is_ignored() {
        let folder = scratch("lock");
        let path = folder.join("lock");
        drop(Lock::take(&path).unwrap());
        assert!(!path.exists());
        for stale in ["", "4294967294", "words"] {
            std::fs::write(&path, stale).unwrap();
            drop(Lock::take(&path).unwrap());
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_second_run_waits() {
        let folder = scratch("lock-wait");
        let path = folder.join("lock");
        let first = Lock::take(&path).unwrap();
        let second = std::thread::spawn({
            let path = path.clone();
            move || Lock::take(&path).map(drop)
        });
        std::thread::sleep(Duration::from_millis(300));
        assert!(!second.is_finished());
        drop(first);
        second.join().unwrap().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }
}
