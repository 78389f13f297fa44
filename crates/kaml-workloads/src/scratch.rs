//! Pre-written scratch files, opened past the page cache, for the floors and the raw measurements.
//!
//! Lives elsewhere:  removing them however the process ends (`kaml_terminal::passing`).

use crate::Error;
use kaml_flash::AlignedBuf;
use kaml_terminal::passing::{Passing, name_in};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// How much is written at a time when a file is made.
const STRIDE_BYTES: usize = 1 << 20;

/// A file whose every byte has been written once, so no write has to allocate or convert an extent.
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
                .map_err(Error::io(format!("writing {}", scratch.file.path().display())))?;
        }
        file.sync_all().map_err(Error::io(format!("syncing {}", scratch.file.path().display())))?;
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
}
