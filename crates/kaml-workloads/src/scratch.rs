//! Files and directories that must not outlive what works on them, however it ends.
//!
//! Lives here:       what goes when it is dropped, or when the process is asked to end; pre-written scratch files of that kind,
//!                   opened past the page cache, for the floors and the raw measurements.
//! Lives elsewhere:  noticing that the process is asked to end (`kaml-cli`).

use crate::Error;
use kaml_flash::AlignedBuf;
use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

/// How much is written at a time when a file is made.
const STRIDE_BYTES: usize = 1 << 20;

/// Distinguishes what one process makes.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Everything that is there now and must go. What is made is made under this lock, so that nothing comes after [`remove_all`].
static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
/// A thread may still be making something in a directory that is being removed: so often it is tried again.
const REMOVALS: usize = 100;

/// A file, or a directory with all that is in it, which goes when this is dropped.
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

    /// Makes an empty file; refused if something is there.
    pub fn file(path: &Path) -> std::io::Result<Passing> {
        let make = |path: &Path| OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        Passing::make(path.into(), make).map(|(file, _)| file)
    }

    fn make<T>(path: PathBuf, make: impl FnOnce(&Path) -> std::io::Result<T>) -> std::io::Result<(Passing, T)> {
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

/// Removes everything of that kind. Nothing more is made until the answer is dropped, so that the process can end.
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

fn name_in(dir: &Path) -> PathBuf {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    dir.join(format!(".kaml-scratch-{}-{number}", std::process::id()))
}

/// A file whose every byte has been written once, so that no write has to allocate or convert an extent.
pub struct Scratch {
    file: Passing,
    bytes: u64,
}

impl Scratch {
    /// Writes a file of `bytes` (rounded up to 1 MiB) under `dir`.
    pub fn create(dir: &Path, bytes: u64) -> Result<Scratch, Error> {
        let bytes = bytes.div_ceil(STRIDE_BYTES as u64) * STRIDE_BYTES as u64;
        let open = |path: &Path| open_direct(path, OpenOptions::new().read(true).write(true).create_new(true), 0);
        let path = name_in(dir);
        let what = format!("opening {} with O_DIRECT", path.display());
        let (passing, file) = Passing::make(path, open).map_err(Error::io(what))?;
        let scratch = Scratch { file: passing, bytes };
        let mut stride = AlignedBuf::zeroed(STRIDE_BYTES);
        for (i, word) in stride.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        }
        for offset in (0..bytes).step_by(STRIDE_BYTES) {
            file.write_all_at(&stride, offset)
                .map_err(Error::io(format!("writing {}", scratch.file.path.display())))?;
        }
        file.sync_all().map_err(Error::io(format!("syncing {}", scratch.file.path.display())))?;
        Ok(scratch)
    }

    /// The size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Opens it with `O_DIRECT`; with `durable`, each write is on the medium when it returns.
    pub fn open(&self, durable: bool) -> Result<File, Error> {
        let flags = if durable { libc::O_DSYNC } else { 0 };
        let path = self.file.path();
        open_direct(path, OpenOptions::new().read(true).write(true), flags)
            .map_err(Error::io(format!("opening {} with O_DIRECT", path.display())))
    }
}

fn open_direct(path: &Path, options: &mut OpenOptions, flags: i32) -> std::io::Result<File> {
    options.custom_flags(libc::O_DIRECT | flags).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   a scratch file is wholly written, and gone afterwards.
    /// Method: count its allocated blocks, drop it, look for it.
    #[test]
    fn a_scratch_file_is_written_and_removed() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::create(dir.path(), 1).unwrap();
        assert_eq!(scratch.bytes(), 1 << 20);
        let metadata = std::fs::metadata(scratch.file.path()).unwrap();
        assert_eq!(metadata.len(), 1 << 20);
        assert!(metadata.blocks() * 512 >= 1 << 20);
        drop(scratch);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// Goal:   what passes goes when it is dropped, with all in it; what is kept stays.
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
