//! Having an open file for oneself.
//!
//! Lives here:       the lock of a file, the claim of a block device, and how long others may hold them.
//! Lives elsewhere:  who holds a file (`sys`); opening a device (`file`), making one (`format`).

use crate::{Holder, sys};
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often opening a device is tried, and the wait in between, before it counts as in use. Others hold it for
/// moments: the kernel, until it has taken down the rings of a process that was killed; a child just forked, which has
/// copies of all descriptors; probes of new block devices.
const TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);
/// The same while it is locked, but by nobody who lives: on a busy machine the kernel takes its time.
const TRIES_OF_THE_DEAD: u32 = 250;

/// Why an open file cannot be had for itself.
pub(crate) enum LockError {
    InUse(Option<Holder>),
    Failed(Errno),
}

/// An open file that is locked against everyone else, or, shared, against writers.
pub(crate) struct LockedFile(File);

impl LockedFile {
    pub(crate) fn new(file: File, shared: bool, wait: Duration) -> Result<Self, LockError> {
        let operation =
            if shared { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
        let begin = Instant::now();
        let mut attempt = 0;
        loop {
            attempt += 1;
            let waits_on = begin.elapsed() < wait;
            match rustix::fs::flock(&file, operation) {
                Ok(()) => return Ok(Self(file)),
                Err(Errno::WOULDBLOCK) if waits_on => std::thread::sleep(BETWEEN_TRIES),
                Err(Errno::WOULDBLOCK) if attempt >= TRIES_OF_THE_DEAD => break,
                Err(Errno::WOULDBLOCK) if attempt >= TRIES && sys::is_locked_by_the_living(&file) => break,
                Err(Errno::WOULDBLOCK) => std::thread::sleep(BETWEEN_TRIES),
                Err(Errno::INTR) if waits_on || attempt < TRIES_OF_THE_DEAD => {}
                Err(errno) => return Err(LockError::Failed(errno)),
            }
        }
        Err(LockError::InUse(sys::holder(&file)))
    }
}

impl Deref for LockedFile {
    type Target = File;
    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for LockedFile {
    /// Closing the file would do, were it not that a child forked elsewhere in the process may hold a copy of the
    /// descriptor until it executes its program.
    fn drop(&mut self) {
        // An unlock that fails leaves what closing does.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Opens a file, and claims a block device: the kernel then refuses to mount it, and refuses us if it is mounted or
/// otherwise claimed.
pub(crate) fn open_claimed(
    path: &Path,
    how: &mut std::fs::OpenOptions,
    claim: bool,
    wait: Duration,
) -> Result<File, LockError> {
    if claim {
        how.custom_flags(OFlags::EXCL.bits() as i32);
    }
    let begin = Instant::now();
    let mut attempt = 0;
    loop {
        attempt += 1;
        match how.open(path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)) {
            Ok(file) => return Ok(file),
            Err(Errno::BUSY) if claim && (attempt < TRIES || begin.elapsed() < wait) => {
                std::thread::sleep(BETWEEN_TRIES);
            }
            // A disk that is mounted has no process as its holder; one that KAML has open is locked as well.
            Err(Errno::BUSY) => {
                return Err(LockError::InUse(File::open(path).ok().and_then(|file| sys::holder(&file))));
            }
            Err(errno) => return Err(LockError::Failed(errno)),
        }
    }
}
