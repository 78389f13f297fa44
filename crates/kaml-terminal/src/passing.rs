//! Files and directories that must not outlive what works on them, however it ends.
//!
//! Lives here:       what is removed when it is dropped, or when the process is asked to end.
//! Lives elsewhere:  noticing that the process is asked to end (`interrupt`).

use std::collections::BTreeSet;
use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Distinguishes what one process makes.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Everything that exists now and must go. What is made is made under this lock, so nothing comes after [`remove_all`].
static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
/// A thread may still be making something in a directory that is being removed: so often it is tried again.
const REMOVALS: usize = 100;

/// A file, or a directory with all that is in it, which is removed when this is dropped.
#[derive(Debug)]
pub struct Passing {
    path: PathBuf,
}

impl Passing {
    /// Makes a directory of a new name under `dir`, for nobody else to look into.
    pub fn directory(dir: &Path) -> std::io::Result<Passing> {
        let make = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        loop {
            // A name may be left from a process that was killed and had the same number.
            match Passing::make(name_in(dir), make) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => return made.map(|(directory, ())| directory),
            }
        }
    }

    /// Makes an empty file; refused if something exists there.
    pub fn file(path: &Path) -> std::io::Result<Passing> {
        let make = |path: &Path| OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        Passing::make(path.into(), make).map(|(file, _)| file)
    }

    /// Makes something at `path` with `make`, and returns what that returned.
    pub fn make<T>(path: PathBuf, make: impl FnOnce(&Path) -> std::io::Result<T>) -> std::io::Result<(Passing, T)> {
        let mut all = all_made();
        let made = make(&path)?;
        all.insert(path.clone());
        Ok((Passing { path }, made))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves it where it is, for good.
    pub fn keep(self) -> PathBuf {
        all_made().remove(&self.path);
        self.path.clone()
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        let mut all = all_made();
        if all.remove(&self.path) {
            remove(&self.path);
        }
    }
}

/// Removes everything of that kind. Nothing more is made until the answer is dropped, so the process can end.
#[must_use = "what is made after this is dropped stays"]
pub fn remove_all() -> impl Sized {
    let mut all = all_made();
    std::mem::take(&mut *all).iter().for_each(|path| remove(path));
    all
}

fn all_made() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    MADE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn remove(path: &Path) {
    for _ in 0..REMOVALS {
        let is_directory = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
        let removed = if is_directory { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        if !removed.is_err_and(|error| error.kind() == std::io::ErrorKind::DirectoryNotEmpty) {
            return;
        }
    }
}

/// A name under `dir` that nothing else of this process has.
pub fn name_in(dir: &Path) -> PathBuf {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    dir.join(format!(".kaml-scratch-{}-{number}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   a passing file or directory is removed with its contents when it is dropped, unless it is kept.
    /// Method: a directory with a file in it, a file, a file where one is; keep one. (All at once: in `kaml-cli`, which has a
    ///         process for it.)
    #[test]
    fn what_passes_goes() {
        let dir = tempfile::tempdir().unwrap();
        let left = || std::fs::read_dir(dir.path()).unwrap().count();
        let directory = Passing::directory(dir.path()).unwrap();
        std::fs::write(directory.path().join("inside"), "x").unwrap();
        let file = Passing::file(&dir.path().join("file")).unwrap();
        assert!(Passing::file(file.path()).is_err());
        assert_eq!(left(), 2);
        drop(directory);
        let kept = file.keep();
        assert_eq!((left(), kept.exists()), (1, true));
    }
}
