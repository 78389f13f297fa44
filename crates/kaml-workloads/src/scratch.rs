//! Files that the floors and the raw measurements work on.
//!
//! Lives here:       pre-written scratch files, opened past the page cache, removed when dropped.
//! Lives elsewhere:  the device file of a workload (`kaml` makes its own).
//! May be called by: `floor`, `raw`.

use crate::Error;
use kaml_flash::AlignedBuf;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// How much is written at a time when a file is made.
const STRIDE_BYTES: usize = 1 << 20;

/// Distinguishes the files of one process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A file whose every byte has been written once, so that no write has to allocate or convert an extent.
pub struct Scratch {
    path: PathBuf,
    bytes: u64,
}

impl Scratch {
    /// Writes a file of `bytes` (rounded up to 1 MiB) under `dir`.
    pub fn create(dir: &Path, bytes: u64) -> Result<Scratch, Error> {
        let bytes = bytes.div_ceil(STRIDE_BYTES as u64) * STRIDE_BYTES as u64;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!(".kaml-bench-{}-{number}", std::process::id()));
        let scratch = Scratch { path, bytes };
        let file = scratch.open_with(OpenOptions::new().read(true).write(true).create_new(true), 0)?;
        let mut stride = AlignedBuf::zeroed(STRIDE_BYTES);
        for (i, word) in stride.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        }
        for offset in (0..bytes).step_by(STRIDE_BYTES) {
            file.write_all_at(&stride, offset).map_err(Error::io(format!("writing {}", scratch.path.display())))?;
        }
        file.sync_all().map_err(Error::io(format!("syncing {}", scratch.path.display())))?;
        Ok(scratch)
    }

    /// The size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Opens it with `O_DIRECT`; with `durable`, each write is on the medium when it returns.
    pub fn open(&self, durable: bool) -> Result<File, Error> {
        self.open_with(OpenOptions::new().read(true).write(true), if durable { libc::O_DSYNC } else { 0 })
    }

    fn open_with(&self, options: &mut OpenOptions, flags: i32) -> Result<File, Error> {
        options
            .custom_flags(libc::O_DIRECT | flags)
            .open(&self.path)
            .map_err(Error::io(format!("opening {} with O_DIRECT", self.path.display())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
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
        let metadata = std::fs::metadata(&scratch.path).unwrap();
        assert_eq!(metadata.len(), 1 << 20);
        assert!(metadata.blocks() * 512 >= 1 << 20);
        drop(scratch);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
