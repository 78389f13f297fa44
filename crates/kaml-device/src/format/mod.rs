//! Every byte format of the medium that the firmware owns, declared once. One page each in `docs/formats/`.
//!
//! Lives here:       layouts, encoders, checked decoders.
//! Lives elsewhere:  the superblock (`kaml-flash`), index images (`kaml-index`).

pub(crate) mod expiries;
pub(crate) mod frame;
pub(crate) mod journal;
pub(crate) mod oob;
pub(crate) mod part_list;
pub(crate) mod range;
pub(crate) mod record;
pub(crate) mod root;
pub(crate) mod version;

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC32C of what `crc` is of, and `more` after it.
pub(crate) fn crc32c_append(crc: u32, more: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(more);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests;
