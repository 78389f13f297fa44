//! What a floor does besides putting: random reads before puts, as a store reads what its cache has not.
//!
//! Lives here:       shares of operations, reads of one record.
//! Lives elsewhere:  the log (`floor`); reads many at a time (`raw`).
//! Implements:       a floor under workloads that read and write, for a disk that does both at once.

use crate::keys::Rng;
use crate::scratch::Scratch;
use crate::{Error, raw};
use kaml_flash::AlignedBuf;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// What one operation of a blocking caller does, each with a probability. What does neither costs nothing, as if a cache of no
/// cost had returned it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Operations that put.
    pub puts: f64,
    /// Operations that begin with a random read of a record.
    pub reads: f64,
}

impl Mix {
    /// Every operation puts and none reads: the floor under durable puts.
    pub const PUTS: Mix = Mix { puts: 1.0, reads: 0.0 };

    pub(super) fn check(&self) -> Result<(), Error> {
        let is_share = |share: f64| (0.0..=1.0).contains(&share);
        if is_share(self.puts) && is_share(self.reads) && self.puts + self.reads > 0.0 {
            return Ok(());
        }
        Err(Error::Parameters(format!(
            "shares must be from 0 to 1, and not both 0: {} put, {} read",
            self.puts, self.reads
        )))
    }
}

/// One caller's reads, of whole sectors.
pub(super) struct Reads {
    file: File,
    area: Range<u64>,
    into: AlignedBuf,
}

impl Reads {
    pub(super) fn new(scratch: &Scratch, area: Range<u64>, record_bytes: usize) -> Result<Reads, Error> {
        let bytes = record_bytes.next_multiple_of(raw::SECTOR_BYTES as usize);
        Ok(Reads { file: scratch.open(false)?, area, into: AlignedBuf::zeroed(bytes) })
    }

    pub(super) fn read(&mut self, rng: &mut Rng) -> std::io::Result<()> {
        let offset = raw::random_offset(rng, self.area.end - self.area.start, self.into.len());
        self.file.read_exact_at(&mut self.into, self.area.start + offset)
    }
}
