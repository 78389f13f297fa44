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

pub(crate) use kaml_crc::crc32c_append;

#[cfg(test)]
mod tests;
