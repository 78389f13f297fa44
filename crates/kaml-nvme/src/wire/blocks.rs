//! Commands on logical blocks.
//!
//! Lives here:       ranges of blocks in the dwords of a command; the data of Dataset Management.
//! Lives elsewhere:  executing them (`target::blocks`).
//! Implements:       spec:NVMe-NVM "NVM Command Set".
//!
//! | field | where |
//! |-------|-------|
//! | first block | dwords 10 and 11 |
//! | number of blocks, less one | dword 12, bits 15:0 |
//! | deallocate (Write Zeroes) | dword 12, bit 25 |
//! | number of ranges, less one (Dataset Management) | dword 10, bits 7:0 |
//! | deallocate (Dataset Management) | dword 11, bit 2 |

use super::command::Command;
use super::status::Status;
use std::mem::{offset_of, size_of};
use std::ops::Range;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Dword 12 of Write Zeroes: the blocks may be deallocated.
pub const ZEROES_DEALLOCATE: u32 = 1 << 25;
/// Dword 11 of Dataset Management: deallocate; other bits are hints.
pub const DATASET_DEALLOCATE: u32 = 1 << 2;
/// Ranges of one Dataset Management at most.
pub const RANGES_MAX: usize = 256;
/// Blocks of one command at most.
pub const BLOCKS_MAX: u32 = 1 << 16;

/// One range of Dataset Management.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 4 | hints |
/// | 4 | 4 | blocks |
/// | 8 | 8 | first block |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DatasetRange {
    hints: U32,
    block_count: U32,
    first_block: U64,
}

const _: () = assert!(size_of::<DatasetRange>() == 16 && offset_of!(DatasetRange, first_block) == 8);

/// Puts a range of blocks into a command; none if it cannot be expressed: no blocks, or more than [`BLOCKS_MAX`].
pub fn put_range(command: &mut Command, first_block: u64, count: u32) -> Option<()> {
    let less = count.checked_sub(1).filter(|less| *less < BLOCKS_MAX)?;
    (command.cdw10, command.cdw11) = ((first_block as u32).into(), ((first_block >> 32) as u32).into());
    command.cdw12 = (command.cdw12.get() & !0xffff | less).into();
    Some(())
}

/// The first block of a command, and how many.
pub fn get_range(command: &Command) -> (u64, u64) {
    let first = u64::from(command.cdw11.get()) << 32 | u64::from(command.cdw10.get());
    (first, u64::from(command.cdw12.get() & 0xffff) + 1)
}

/// The data of Dataset Management; none if there are no ranges, more than [`RANGES_MAX`], or one that is too long.
pub fn encode_ranges(ranges: &[Range<u64>]) -> Option<Vec<u8>> {
    let mut data = Vec::new();
    for range in ranges {
        let block_count = U32::new(u32::try_from(range.end.checked_sub(range.start)?).ok()?);
        data.extend(DatasetRange { hints: U32::ZERO, block_count, first_block: range.start.into() }.as_bytes());
    }
    (1..=RANGES_MAX).contains(&ranges.len()).then_some(data)
}

/// Reads the ranges of a Dataset Management; data may continue after them.
pub fn decode_ranges(command: &Command, data: &[u8]) -> Result<Vec<Range<u64>>, Status> {
    let count = usize::from(command.cdw10.get() as u8) + 1;
    let (ranges, _) = <[DatasetRange]>::ref_from_prefix_with_elems(data, count).map_err(|_| Status::SGL_LENGTH)?;
    let range = |range: &DatasetRange| {
        let first = range.first_block.get();
        let end = first.checked_add(range.block_count.get().into()).ok_or(Status::LBA_OUT_OF_RANGE)?;
        Ok(first..end)
    };
    ranges.iter().map(range).collect()
}
