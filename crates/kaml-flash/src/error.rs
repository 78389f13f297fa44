//! Why a file or block device cannot be formatted or opened.
//!
//! Lives here:       the errors of `FileMedium::create` and `FileMedium::open`.
//! Lives elsewhere:  errors of single operations (`medium`).

use crate::GeometryError;
use std::io;
use std::path::PathBuf;

/// Why formatting was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The capacity leaves no room for a device.
    #[error("{capacity_bytes} bytes are too few, a device takes at least {minimum_bytes}")]
    TooSmall {
        /// What was asked for.
        capacity_bytes: u64,
        /// The least that works.
        minimum_bytes: u64,
    },
    /// The capacity has more chunks than can be numbered: larger chunks would help.
    #[error(
        "{capacity_bytes} bytes are too many, a device of {chunk_bytes}-byte chunks takes about {maximum_bytes} (choose larger chunks)"
    )]
    TooLarge {
        /// What was asked for.
        capacity_bytes: u64,
        /// The chunks.
        chunk_bytes: u32,
        /// What all chunks that can be numbered hold.
        maximum_bytes: u64,
    },
    /// The block device is smaller than the capacity asked for.
    #[error("{path}: {capacity_bytes} bytes asked for, the device has {actual_bytes}")]
    DeviceTooSmall {
        /// The device.
        path: PathBuf,
        /// What was asked for.
        capacity_bytes: u64,
        /// What there is.
        actual_bytes: u64,
    },
    /// Too few erase blocks fit: smaller blocks, fewer dies or a smaller ring would help.
    #[error("only {block_count} erase blocks fit, at least {minimum} are needed (choose smaller blocks or fewer dies)")]
    TooFewBlocks {
        /// How many fit.
        block_count: u32,
        /// How many it takes.
        minimum: u32,
    },
    /// An option is outside what the firmware can run on.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Something is there already, and `force` was not given.
    #[error("{path}: not empty, and formatting would destroy what is there (force was not given)")]
    NotEmpty {
        /// The file or device.
        path: PathBuf,
    },
    /// Neither a regular file nor a block device.
    #[error("{path}: neither a regular file nor a block device")]
    NotAFile {
        /// What was given.
        path: PathBuf,
    },
    /// Open elsewhere.
    #[error("{path}: in use by another process, or opened twice in this one")]
    InUse {
        /// The file or device.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{path}: {what}: {source}")]
    Io {
        /// The file or device.
        path: PathBuf,
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Why opening was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No superblock was ever here.
    #[error("{path}: not a KAML device")]
    NotADevice {
        /// The file or device.
        path: PathBuf,
    },
    /// Formatted once, and what says how is lost.
    #[error("{path}: {which} damaged: {why}")]
    Damaged {
        /// The file or device.
        path: PathBuf,
        /// What is damaged.
        which: &'static str,
        /// How one sees it.
        why: String,
    },
    /// Something was written over the beginning. The superblock at the end is whole, so what is left can be salvaged
    /// ([`crate::FileMedium::open_damaged`]).
    #[error("{path}: the beginning is damaged: {why}; the superblock at the end is whole")]
    HeadDamaged {
        /// The file or device.
        path: PathBuf,
        /// How one sees it.
        why: String,
    },
    /// Formatted by a later version of this software.
    #[error("{path}: format version {found} is newer than {supported}, the newest that this software knows")]
    NewerVersion {
        /// The file or device.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest that can be opened.
        supported: u32,
    },
    /// The file is shorter than it was when formatted. What is left can be salvaged ([`crate::FileMedium::open_damaged`]).
    #[error("{path}: cut short: {actual_bytes} bytes are left of {expected_bytes}")]
    Truncated {
        /// The file or device.
        path: PathBuf,
        /// Bytes when formatted.
        expected_bytes: u64,
        /// Bytes now.
        actual_bytes: u64,
    },
    /// Empty, so nothing was ever formatted here.
    #[error("{path}: {actual_bytes} bytes are too few, a device has at least {minimum_bytes}")]
    TooSmall {
        /// The file or device.
        path: PathBuf,
        /// Bytes now.
        actual_bytes: u64,
        /// The least a device has.
        minimum_bytes: u64,
    },
    /// Open elsewhere.
    #[error("{path}: in use by another process, or opened twice in this one")]
    InUse {
        /// The file or device.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{path}: {what}: {source}")]
    Io {
        /// The file or device.
        path: PathBuf,
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}
