//! The NVM command set: logical blocks.
//!
//! Lives here:       Read, Write, Flush, Write Zeroes, Dataset Management, Compare, Verify.
//! Lives elsewhere:  their fields (`wire::blocks`), what reads and writes (`engine`).
//! Implements:       spec:NVMe-NVM "NVM Command Set".
//!
//! A write is durable when it completes, so there is nothing that Force Unit Access or Flush could add. Protection
//! information does not exist here: its fields are not looked at.

use super::core::{Origin, Outcome, Target};
use super::engine::status_of;
use super::spaces::Space;
use super::workers::{Step, Worker};
use crate::wire::blocks::{DATASET_DEALLOCATE, decode_ranges, get_range};
use crate::wire::command::{Command, nvm};
use crate::wire::status::Status;
use kaml::{BlockInfo, Device, NamespaceId};
use std::borrow::Cow;
use std::ops::Range;

/// Bytes that Compare and Verify read at once.
const CHECKED_BYTES: usize = 1 << 20;

impl Target {
    pub(crate) fn blocks(
        &mut self,
        origin: Origin,
        space: &Space,
        info: &BlockInfo,
        command: &Command,
        data: Cow<'_, [u8]>,
    ) -> Outcome {
        match command.opcode {
            nvm::FLUSH => Status::SUCCESS.into(), // whatever completed is durable
            nvm::DATASET_MANAGEMENT => self.manage_dataset(origin, space.id, info, command, &data),
            nvm::READ | nvm::WRITE | nvm::COMPARE | nvm::WRITE_ZEROES | nvm::VERIFY => {
                self.on_range(origin, space.id, info, command, data).into()
            }
            _ => Status::INVALID_OPCODE.into(),
        }
    }

    /// Commands on one range of blocks.
    fn on_range(
        &mut self,
        origin: Origin,
        nsid: NamespaceId,
        info: &BlockInfo,
        command: &Command,
        data: Cow<'_, [u8]>,
    ) -> Result<(), Status> {
        let (first, count) = get_range(command);
        let end = first.checked_add(count).filter(|end| *end <= info.block_count).ok_or(Status::LBA_OUT_OF_RANGE)?;
        let bytes = count * u64::from(info.block_bytes);
        let moves = matches!(command.opcode, nvm::READ | nvm::WRITE | nvm::COMPARE);
        if moves && bytes != u64::from(command.sgl.length.get()) {
            return Err(Status::SGL_LENGTH);
        }
        match command.opcode {
            nvm::READ => self.engine.block_read(origin, nsid, first, bytes as usize),
            nvm::WRITE => self.engine.block_write(origin, nsid, first, data),
            nvm::WRITE_ZEROES => self.engine.block_trim(origin, nsid, std::slice::from_ref(&(first..end))),
            _ => {
                let range = first * u64::from(info.block_bytes)..end * u64::from(info.block_bytes);
                let expected = (command.opcode == nvm::COMPARE).then(|| data.into_owned());
                let check = Check { nsid, block_bytes: info.block_bytes, at: range.start, range, expected };
                self.engine.read_in_pieces(origin, move |worker| check.go_on(worker));
                Ok(())
            }
        }
    }

    /// Deallocates ranges, all of which must exist. Other attributes are hints, for which there is no use.
    fn manage_dataset(
        &mut self,
        origin: Origin,
        nsid: NamespaceId,
        info: &BlockInfo,
        command: &Command,
        data: &[u8],
    ) -> Outcome {
        let mut ranges = match decode_ranges(command, data) {
            Ok(ranges) => ranges,
            Err(status) => return status.into(),
        };
        if ranges.iter().any(|range| range.end > info.block_count) {
            return Status::LBA_OUT_OF_RANGE.into();
        }
        merge_ranges(&mut ranges);
        if command.cdw11.get() & DATASET_DEALLOCATE == 0 || ranges.is_empty() {
            return Status::SUCCESS.into();
        }
        self.engine.block_trim(origin, nsid, &ranges).into()
    }
}

/// Makes ranges that overlap or touch one, and leaves out empty ones.
fn merge_ranges(ranges: &mut Vec<Range<u64>>) {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let merges = next.start <= range.end;
        if merges {
            range.end = range.end.max(next.end);
        }
        merges
    });
}

/// Reads a range of bytes, piece by piece, and compares it with what is expected, if anything is.
struct Check {
    nsid: NamespaceId,
    block_bytes: u32,
    range: Range<u64>,
    /// Where the next piece begins.
    at: u64,
    expected: Option<Vec<u8>>,
}

impl Check {
    fn go_on(mut self, worker: &mut Worker) -> Step {
        match self.check_piece(&worker.device) {
            Ok(()) if self.at < self.range.end => Step::More(Box::new(move |worker| self.go_on(worker))),
            result => Step::Done(result.map(|()| 0).into()),
        }
    }

    fn check_piece(&mut self, device: &Device) -> Result<(), Status> {
        let mut piece = vec![0; CHECKED_BYTES.min((self.range.end - self.at) as usize)];
        let first_block = self.at / u64::from(self.block_bytes);
        device.block_read(self.nsid, first_block, &mut piece).map_err(|error| status_of(&error))?;
        let expected = self.expected.as_deref().map(|all| &all[(self.at - self.range.start) as usize..][..piece.len()]);
        if expected.is_some_and(|expected| expected != piece) {
            return Err(Status::COMPARE_FAILURE);
        }
        self.at += piece.len() as u64;
        Ok(())
    }
}
