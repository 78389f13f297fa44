//! The floor's second write: what went through the log is packed into pages and written again.
//!
//! Lives here:       the filling page buffer, the thread that writes full ones.
//! Lives elsewhere:  the log (`floor`).
//! Implements:       a floor "with the same writes" as a store that logs records and then programs pages.

use crate::Error;
use crate::scratch::Scratch;
use kaml_flash::AlignedBuf;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Bytes of one page write, as large as KAML's program units are by default.
const PAGE_WRITE_BYTES: usize = 256 << 10;
/// Buffers filling, waiting and being written; a log that is faster than the disk waits for one.
const BUFFERS: usize = 16;

/// The page being filled.
pub(super) struct Pages {
    filling: AlignedBuf,
    len: usize,
    full: Sender<AlignedBuf>,
    empty: Receiver<AlignedBuf>,
}

/// Writes full pages round and round after the log, without waiting for their durability.
pub(super) struct PageWriter {
    file: File,
    /// Where in the file they go.
    area: Range<u64>,
    full: Receiver<AlignedBuf>,
    empty: Sender<AlignedBuf>,
}

/// Both ends; the pages are written to this part of `scratch`.
pub(super) fn pages(scratch: &Scratch, area: Range<u64>) -> Result<(Pages, PageWriter), Error> {
    let (to_writer, full) = channel();
    let (to_log, empty) = channel();
    for _ in 1..BUFFERS {
        to_log.send(AlignedBuf::zeroed(PAGE_WRITE_BYTES)).expect("the other end is in scope");
    }
    let filling = AlignedBuf::zeroed(PAGE_WRITE_BYTES);
    let writer = PageWriter { file: scratch.open(false)?, area, full, empty: to_log };
    Ok((Pages { filling, len: 0, full: to_writer, empty }, writer))
}

impl Pages {
    /// Packs bytes into pages; waits if the writer has fallen behind.
    pub(super) fn append(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            let len = bytes.len().min(PAGE_WRITE_BYTES - self.len);
            self.filling[self.len..self.len + len].copy_from_slice(&bytes[..len]);
            self.len += len;
            bytes = &bytes[len..];
            if self.len == PAGE_WRITE_BYTES {
                self.turn_over()?;
            }
        }
        Ok(())
    }

    fn turn_over(&mut self) -> std::io::Result<()> {
        let gone = || std::io::Error::other("the page writer failed");
        let empty = self.empty.recv().map_err(|_| gone())?;
        self.full.send(std::mem::replace(&mut self.filling, empty)).map_err(|_| gone())?;
        self.len = 0;
        Ok(())
    }
}

impl PageWriter {
    /// Writes until the log is dropped.
    pub(super) fn run(self) -> Result<(), Error> {
        let mut offset = self.area.start;
        for page in &self.full {
            if offset + PAGE_WRITE_BYTES as u64 > self.area.end {
                offset = self.area.start;
            }
            self.file.write_all_at(&page, offset).map_err(Error::io("writing the floor's pages"))?;
            offset += PAGE_WRITE_BYTES as u64;
            if self.empty.send(page).is_err() {
                break;
            }
        }
        Ok(())
    }
}
