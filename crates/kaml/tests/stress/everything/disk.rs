//! Blocks of one thread.
//!
//! Lives here:       writes, reads and trims, one at a time and in flight, compared with a stamp for each block.

use super::{BLOCK_BYTES, Fate, Met, Scale, Trouble, is_misread};
use kaml::{Device, Error, NamespaceId};
use kaml_testkit::Rng;
use std::collections::HashMap;
use std::ops::Range;

/// Blocks of a half of the disk as they must be: the stamp in each, or zeroes.
pub(crate) struct Disk {
    rng: Rng,
    /// Where the half begins.
    first: u64,
    stamps: Vec<u64>,
    scale: Scale,
    /// The writes and trims that a power cut ended.
    open: Vec<(Range<usize>, u64)>,
    pub(crate) met: Met,
}

impl Disk {
    pub(crate) fn new(rng: Rng, scale: &Scale, half: u64) -> Disk {
        let (first, stamps) = (half * scale.blocks, vec![0; scale.blocks as usize]);
        Disk { rng, first, stamps, scale: *scale, open: Vec::new(), met: Met::default() }
    }

    /// Everything is trimmed.
    pub(crate) fn trim_all(&mut self, device: &Device, disk: NamespaceId) {
        device.block_trim(disk, self.first, self.scale.blocks).unwrap();
        self.stamps.fill(0);
    }

    fn read(&self, device: &Device, disk: NamespaceId, blocks: &Range<usize>) -> Result<Vec<u8>, Error> {
        let mut data = vec![1; blocks.len() * BLOCK_BYTES];
        device.block_read(disk, self.first + blocks.start as u64, &mut data)?;
        Ok(data)
    }

    pub(crate) fn step(&mut self, device: &Device, disk: NamespaceId) {
        if !self.open.is_empty() {
            return;
        }
        let (blocks, stamp) = (self.any(), self.any_stamp());
        let (first, count) = (self.first + blocks.start as u64, blocks.len());
        let result = match stamp {
            None => self.read(device, disk, &blocks).map(Some),
            Some(0) => device.block_trim(disk, first, count as u64).map(|()| None),
            Some(stamp) => device.block_write(disk, first, &filled(stamp, count)).map(|()| None),
        };
        self.ended(device, disk, blocks, stamp, result);
    }

    /// The same through a queue: many commands in flight, on blocks of their own.
    pub(crate) fn queue_steps(&mut self, device: &Device, disk: NamespaceId, is_over: impl Fn() -> bool) {
        let depth = self.scale.in_flight;
        let mut queue = device.queue(depth as u32);
        let mut in_flight: HashMap<u64, (Range<usize>, Option<u64>)> = HashMap::new();
        let (mut token, mut answers) = (0, Vec::new());
        while self.open.is_empty() && !is_over() || !in_flight.is_empty() {
            while in_flight.len() < depth && self.open.is_empty() && !is_over() {
                let (blocks, stamp) = (self.any(), self.any_stamp());
                if in_flight.values().any(|(other, _)| other.start < blocks.end && blocks.start < other.end) {
                    break;
                }
                token += 1;
                let (first, count) = (self.first + blocks.start as u64, blocks.len());
                let begun = match stamp {
                    None => queue.submit_block_read(token, disk, first, count * BLOCK_BYTES),
                    Some(0) => queue.submit_block_trim(token, disk, first, count as u64),
                    Some(stamp) => queue.submit_block_write(token, disk, first, &filled(stamp, count)),
                };
                match begun {
                    Ok(()) => _ = in_flight.insert(token, (blocks, stamp)),
                    Err(error) => self.ended(device, disk, blocks, stamp, Err(error)),
                }
            }
            queue.poll(!in_flight.is_empty(), &mut answers);
            for answer in answers.drain(..) {
                let (blocks, stamp) = in_flight.remove(&answer.token).expect("completed one time");
                self.ended(device, disk, blocks, stamp, answer.result.map(|found| found.map(|bytes| bytes.into_vec())));
            }
        }
    }

    fn any(&mut self) -> Range<usize> {
        let count = 1 + self.rng.below(self.scale.blocks_at_once) as usize;
        let first = self.rng.below((self.stamps.len() - count) as u64) as usize;
        first..first + count
    }

    /// What to write, 0 to trim; or to read.
    fn any_stamp(&mut self) -> Option<u64> {
        match self.rng.below(10) {
            0..=3 => Some(self.rng.draw() | 1),
            4 => Some(0),
            _ => None,
        }
    }

    fn ended(
        &mut self,
        device: &Device,
        disk: NamespaceId,
        blocks: Range<usize>,
        stamp: Option<u64>,
        result: Result<Option<Vec<u8>>, Error>,
    ) {
        let Some(stamp) = stamp else {
            match result {
                Ok(data) => self.compare(blocks.start, &data.expect("a read has data")),
                Err(error) if self.scale.trouble == Trouble::Misread => assert!(is_misread(&error), "{error}"),
                Err(error) => assert!(self.scale.trouble == Trouble::Cut, "{error}"),
            }
            return;
        };
        match self.scale.trouble.fate(result.map(drop)) {
            Fate::Done => self.stamps[blocks].fill(stamp),
            Fate::Refused => {
                self.met.refused += 1;
                if stamp == 0 || matches!(self.scale.trouble, Trouble::Misread | Trouble::NoSpace) {
                    self.find_out(device, disk, blocks, stamp);
                }
            }
            Fate::Unknown => {
                self.met.unknown += 1;
                self.open.push((blocks, stamp));
            }
        }
    }

    /// Looks what became of a write, all or nothing, or of a trim (0), of which each block may have been trimmed.
    fn find_out(&mut self, device: &Device, disk: NamespaceId, blocks: Range<usize>, stamp: u64) {
        let stamp_of = |block: &[u8]| u64::from_le_bytes(block[..8].try_into().unwrap());
        let mut tries = (0..100).map(|_| self.read(device, disk, &blocks));
        let read = tries.find(|read| read.is_ok() || self.scale.trouble != Trouble::Misread).expect("tried").unwrap();
        let found: Vec<u64> = read.chunks(BLOCK_BYTES).map(stamp_of).collect();
        let (stamps, is_trim) = (&mut self.stamps[blocks.clone()], stamp == 0);
        let changed = found.iter().filter(|found| **found == stamp).count();
        assert!(is_trim || changed == 0 || changed == stamps.len(), "a part of a write of blocks {blocks:?} exists");
        for (old, found) in stamps.iter_mut().zip(found) {
            assert!(found == *old || found == stamp, "{found} in blocks {blocks:?}");
            *old = found;
        }
        self.met.survived += u64::from(!is_trim && changed > 0);
    }

    pub(crate) fn resolve(&mut self, device: &Device, disk: NamespaceId) {
        for (blocks, stamp) in std::mem::take(&mut self.open) {
            self.find_out(device, disk, blocks, stamp);
        }
    }

    pub(crate) fn compare_all(&self, device: &Device, disk: NamespaceId) {
        for first in (0..self.stamps.len()).step_by(64) {
            let blocks = first..self.stamps.len().min(first + 64);
            let data = self.read(device, disk, &blocks).unwrap();
            self.compare(first, &data);
        }
    }

    fn compare(&self, first: usize, data: &[u8]) {
        for (number, (block, stamp)) in (first..).zip(data.chunks(BLOCK_BYTES).zip(&self.stamps[first..])) {
            let found = u64::from_le_bytes(block[..8].try_into().unwrap());
            assert!(
                block.chunks(8).all(|word| word == stamp.to_le_bytes()),
                "block {number}: {found:x}, not {stamp:x}"
            );
        }
    }
}

fn filled(stamp: u64, count: usize) -> Vec<u8> {
    stamp.to_le_bytes().into_iter().cycle().take(count * BLOCK_BYTES).collect()
}
