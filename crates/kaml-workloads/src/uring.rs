//! An io_uring over one file with its own buffers.
//!
//! Lives here:       submission, reaping, and the ownership of buffers that the kernel works on.
//! May be called by: `floor` and `raw`, which keep many operations in flight from one thread.
//!
//! Invariant: a slot's buffer is neither moved, freed nor lent out between its submission and its completion.
#![allow(unsafe_code, reason = "pushing to a submission queue hands raw buffers to the kernel")]

use crate::Error;
use io_uring::{IoUring, opcode, types};
use kaml_flash::AlignedBuf;
use std::fs::File;
use std::os::fd::AsRawFd;

/// Operations in flight on one file; one buffer (slot) for each.
pub(crate) struct Loop {
    ring: IoUring,
    file: File,
    slots: Vec<AlignedBuf>,
    busy: Vec<bool>,
    in_flight: usize,
}

impl Loop {
    /// `slot_count` buffers of `slot_bytes` over `file`.
    pub(crate) fn new(file: File, slot_count: usize, slot_bytes: usize) -> Result<Loop, Error> {
        let entries = u32::try_from(slot_count.next_power_of_two()).unwrap_or(u32::MAX);
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries)
            .or_else(|_| IoUring::new(entries))
            .map_err(Error::io("setting up io_uring"))?;
        let slots = (0..slot_count).map(|_| AlignedBuf::zeroed(slot_bytes)).collect();
        Ok(Loop { ring, file, slots, busy: vec![false; slot_count], in_flight: 0 })
    }

    /// The bytes of an idle slot.
    pub(crate) fn slot_mut(&mut self, slot: usize) -> &mut [u8] {
        assert!(!self.busy[slot], "slot {slot} is with the kernel");
        &mut self.slots[slot]
    }

    /// Starts (at the next [`Loop::wait`]) a read of `len` bytes into an idle slot.
    pub(crate) fn read(&mut self, slot: usize, offset: u64, len: usize) {
        let into = self.slot_mut(slot)[..len].as_mut_ptr();
        let entry = opcode::Read::new(types::Fd(self.file.as_raw_fd()), into, len as u32);
        self.push(slot, entry.offset(offset).build());
    }

    /// Starts a write of the first `len` bytes of an idle slot.
    pub(crate) fn write(&mut self, slot: usize, offset: u64, len: usize) {
        let from = self.slot_mut(slot)[..len].as_ptr();
        let entry = opcode::Write::new(types::Fd(self.file.as_raw_fd()), from, len as u32);
        self.push(slot, entry.offset(offset).build());
    }

    fn push(&mut self, slot: usize, entry: io_uring::squeue::Entry) {
        self.busy[slot] = true;
        self.in_flight += 1;
        let entry = entry.user_data(slot as u64);
        // SAFETY: the entry points into the slot's own buffer with a length checked by slicing, and at a file that
        // lives as long as the ring. The slot is busy until its completion is reaped, so the buffer is not lent out,
        // and `drop` waits for all completions before buffers and file are freed.
        unsafe { self.ring.submission().push(&entry) }.expect("the queue has an entry for each slot");
    }

    /// Starts what was accepted, waits for at least one completion, and appends the slots that are done to `done`.
    pub(crate) fn wait(&mut self, expected_len: impl Fn(usize) -> usize, done: &mut Vec<usize>) -> Result<(), Error> {
        assert!(self.in_flight > 0, "nothing to wait for");
        while let Err(error) = self.ring.submit_and_wait(1) {
            if error.kind() != std::io::ErrorKind::Interrupted {
                return Err(Error::io("waiting for io_uring")(error));
            }
        }
        let mut outcome = Ok(());
        for completion in self.ring.completion() {
            let slot = completion.user_data() as usize;
            self.busy[slot] = false;
            self.in_flight -= 1;
            match completion.result() {
                n if n < 0 => outcome = Err(std::io::Error::from_raw_os_error(-n)),
                n if n as usize != expected_len(slot) => {
                    outcome = Err(std::io::Error::other(format!("short transfer of {n} bytes")));
                }
                _ => done.push(slot),
            }
        }
        outcome.map_err(Error::io("direct I/O"))
    }

    /// Operations submitted and not yet reaped.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            match self.ring.submit_and_wait(1) {
                Ok(_) => self.in_flight -= self.ring.completion().count(),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // The kernel may still write into the buffers: let them live forever.
                    std::mem::forget(std::mem::take(&mut self.slots));
                    return;
                }
            }
        }
    }
}
