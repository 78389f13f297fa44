//! A few writes at once from one thread, which waits for all of them.
//!
//! Lives here:       a ring of their own, for whoever finds it idle.
//! Lives elsewhere:  what is written (`plan`), many operations in flight (`uring`).
//! May be called by: `file`.

use crate::sys;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Mutex;

/// How many at most.
pub(crate) const WRITES_MAX: usize = 3;

/// Made when it is first used; not there if the system refused it.
#[derive(Default)]
pub(crate) struct Together(Mutex<Option<Option<IoUring>>>);

/// One of them on its way.
pub(crate) struct Write<'a> {
    bytes: &'a [u8],
    at: u64,
    /// What it came to.
    pub(crate) outcome: Option<Result<(), Errno>>,
}

impl Together {
    /// Writes all of them. Answers false if nothing is written, because the ring is in use or cannot be had.
    pub(crate) fn write(&self, file: &File, writes: &mut [Write<'_>]) -> bool {
        let Ok(mut ring) = self.0.try_lock() else { return false };
        let Some(ring) = ring.get_or_insert_with(|| IoUring::new(WRITES_MAX as u32).ok()) else { return false };
        writes.iter().enumerate().for_each(|(i, write)| push(ring, file, i, write));
        loop {
            let waits_for = writes.iter().filter(|write| write.outcome.is_none()).count();
            if waits_for == 0 {
                break;
            }
            match ring.submit_and_wait(waits_for).map_err(|error| error.raw_os_error()) {
                Ok(_) | Err(Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
                Err(error) => panic!("io_uring_enter failed, which only a misused ring does: {error:?}"),
            }
            loop {
                let Some(entry) = ring.completion().next() else { break };
                let i = entry.user_data() as usize;
                writes[i].take(entry.result());
                if writes[i].outcome.is_none() {
                    push(ring, file, i, &writes[i]);
                }
            }
        }
        true
    }
}

/// Puts what is left of a write into the ring.
fn push(ring: &mut IoUring, file: &File, i: usize, write: &Write<'_>) {
    // What is longer comes back short, and is pushed again.
    let len = u32::try_from(write.bytes.len()).unwrap_or(1 << 30);
    let entry = opcode::Write::new(Fd(file.as_raw_fd()), write.bytes.as_ptr(), len).offset(write.at).build();
    // SAFETY: the bytes are borrowed from the caller of `Together::write`, which does not return before the completion is seen.
    let pushed = unsafe { ring.submission().push(&entry.user_data(i as u64)) };
    assert!(pushed.is_ok(), "the ring has an entry for each write");
}

impl<'a> Write<'a> {
    /// Of these bytes, to this place.
    pub(crate) fn new(bytes: &'a [u8], at: u64) -> Write<'a> {
        Write { bytes, at, outcome: None }
    }

    /// Takes a completion: the end of the write, or a part of it.
    fn take(&mut self, result: i32) {
        match usize::try_from(result) {
            Ok(0) => self.outcome = Some(Err(sys::CUT_SHORT)),
            Ok(count) => {
                self.bytes = &self.bytes[count..];
                self.at += count as u64;
                self.outcome = self.bytes.is_empty().then_some(Ok(()));
            }
            Err(_) => {
                let errno = Errno::from_raw_os_error(-result);
                self.outcome = (!sys::is_transient(errno)).then_some(Err(errno));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// Goal:   all writes are whole when they are said to be, and each has its own outcome.
    /// Method: three of several lengths into a file, read back; some into a file that is open for reading only.
    #[test]
    fn all_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("together");
        std::fs::write(&path, []).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let together = Together::default();
        for (turn, len) in [(1u8, 1usize), (2, 512), (3, 1 << 20), (4, (3 << 20) + 5)] {
            let bytes = [vec![turn; len], vec![turn + 100; 512], vec![turn + 200; 3]];
            let places = [1000, 8 << 20, 5];
            let mut writes: Vec<_> = bytes.iter().zip(places).map(|(bytes, at)| Write::new(bytes, at)).collect();
            if !together.write(&file, &mut writes) {
                return; // no io_uring here
            }
            assert!(writes.iter().all(|write| write.outcome == Some(Ok(()))));
            for (bytes, at) in bytes.iter().zip(places) {
                let mut found = vec![0; bytes.len()];
                file.read_exact_at(&mut found, at).unwrap();
                assert!(found == *bytes);
            }
        }
        let closed = File::open(&path).unwrap();
        let mut writes = [Write::new(&[1], 0), Write::new(&[2], 1)];
        assert!(together.write(&closed, &mut writes));
        assert!(writes.iter().all(|write| write.outcome == Some(Err(Errno::BADF))));
    }
}
