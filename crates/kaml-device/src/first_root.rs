//! The root that opening begins with: found, checked, written again.
//!
//! Lives here:       which roots are refused, what a root restores at once.
//! Lives elsewhere:  reading roots (`metadata`), the steps of opening (`recovery`).

use crate::blocks::BlockTable;
use crate::error::Error;
use crate::format::root::Root;
use crate::metadata::find_root;
use crate::ring_scan::{Gaps, RingScan};
use crate::secret::Secret;
use kaml_flash::{AlignedBuf, Geometry, Io, Medium};

/// Pages that one opening may program: at 4 KiB more than any flash endures.
pub(crate) const SEQUENCES_PER_EPOCH_LOG2: u32 = 40;
/// The last epoch whose pages can be determined from earlier ones: a device that is opened every second reaches it in half a year.
pub(crate) const EPOCH_MAX: u64 = u64::MAX >> SEQUENCES_PER_EPOCH_LOG2;
/// The last sequence that a life may begin with: records have 48 bits for it, and a quarter of them lasts for years.
pub(crate) const FIRST_SEQUENCE_MAX: u64 = (1 << 48) - (1 << 46);

/// Where the sequences of pages begin that are programmed in the life of a ring's epoch.
pub(crate) fn first_sequence(epoch: u64) -> u64 {
    epoch.min(EPOCH_MAX) << SEQUENCES_PER_EPOCH_LOG2
}

/// Refuses the root of a clean close if the device was opened and used since: the root that records the use is damaged.
pub(crate) fn check_unused(medium: &dyn Medium, root: &Root) -> Result<(), Error> {
    let scan = RingScan::new(medium, root.secret.as_ref(), root.epoch, root.ring_tail, Gaps::Refused);
    match scan.has_later_life()? {
        true => Err(Error::MetadataDamaged("the newest root; Puts followed the one before".to_owned())),
        false => Ok(()),
    }
}

/// Refuses a root after which no pages or records can be numbered: then the device can still be opened to be read.
pub(crate) fn check_may_be_written(root: &Root) -> Result<(), Error> {
    let what = match root {
        Root { epoch, .. } if *epoch >= EPOCH_MAX => {
            format!("the root counts {epoch} openings, and {EPOCH_MAX} are all")
        }
        Root { next_sequence, .. } if *next_sequence > FIRST_SEQUENCE_MAX => {
            format!("the root counts {next_sequence} records, and {FIRST_SEQUENCE_MAX} are all")
        }
        Root { .. } => return Ok(()),
    };
    Err(Error::MetadataDamaged(format!("{what}; it can be opened to be read")))
}

/// The root with a secret. One that is drawn now counts for what is written from the next epoch on, which is the one that begins with this
/// opening: what older builds wrote bears no tags.
pub(crate) fn with_secret(medium: &dyn Medium, mut root: Root, draw: &mut dyn FnMut() -> u64) -> Root {
    root.secret.get_or_insert_with(|| Secret::draw(medium.uuid(), root.epoch.saturating_add(1), draw));
    root
}

/// The present root of a device that can be written. It is in the slot that the next one is not written to.
pub(crate) fn root_to_go_on_from(medium: &dyn Medium) -> Result<Root, Error> {
    let found = find_root(medium)?.certain()?;
    check_may_be_written(&found.root)?;
    if let Some(slot) = found.restore {
        tracing::warn!(slot, "a root slot is damaged, cannot be read, or was being written: it is written again");
        // All of it: a sector that cannot be read mostly can be after it was written.
        write_root_to(medium, &found.root, slot, medium.geometry().root_bytes as usize)?;
        write_root(medium, &found.root)?;
    }
    Ok(found.root)
}

pub(crate) fn write_root(medium: &dyn Medium, root: &Root) -> Result<(), Error> {
    write_root_to(medium, root, (root.generation % 2) as u8, 0)
}

/// Writes a root, and zeroes after it up to `bytes_min`.
pub(crate) fn write_root_to(medium: &dyn Medium, root: &Root, slot: u8, bytes_min: usize) -> Result<(), Error> {
    let bytes = root.encode(medium.uuid());
    let sector = medium.geometry().sector_bytes as usize;
    let mut data = AlignedBuf::zeroed(bytes.len().next_multiple_of(sector).max(bytes_min));
    data[..bytes.len()].copy_from_slice(&bytes);
    medium.execute(&mut Io::WriteRoot { slot, data })?;
    Ok(())
}

/// Refuses a root that points outside the device.
pub(crate) fn check_runs(root: &Root, geometry: &Geometry) -> Result<(), Error> {
    let streams = root.namespaces.iter().flat_map(|n| n.streams()).chain(&root.blocks);
    for run in streams.flat_map(|s| &s.runs).chain(&root.journal) {
        let end = u64::from(run.page) + u64::from(run.page_count);
        if run.block >= geometry.block_count() || end > u64::from(geometry.pages_per_block) {
            return Err(Error::MetadataDamaged(format!("the root points at page {end} of block {}", run.block)));
        }
    }
    Ok(())
}

/// As [`Core::encode_blocks`] wrote it. A device that has grown since has more blocks, which were never used; one that has shrunk has
/// fewer, and nothing was in the others.
pub(crate) fn restore_blocks(blocks: &mut BlockTable, bytes: &[u8], exact: bool) -> Result<(), Error> {
    let count = blocks.count() as usize;
    let is_gone = |entry: &[u8]| entry[4..8] == [0; 4];
    if !bytes.len().is_multiple_of(9) || !bytes.chunks(9).skip(count).all(is_gone) {
        return Err(Error::MetadataDamaged(format!("a block table of {} bytes for {count} blocks", bytes.len())));
    }
    for (block, entry) in (0..).zip(bytes.chunks(9)).take(count) {
        let erase_count = u32::from_le_bytes(entry[..4].try_into().expect("four bytes"));
        let valid = u32::from_le_bytes(entry[4..8].try_into().expect("four bytes"));
        blocks.restore(block, erase_count, entry[8] == 1);
        if exact {
            blocks.restore_valid(block, valid);
        }
    }
    Ok(())
}
