//! Why a file or block device cannot be formatted or opened.
//!
//! Lives here:       the errors of `FileMedium::create` and `FileMedium::open`, and which process has the device open.
//! Lives elsewhere:  errors of single operations (`medium`).

use crate::GeometryError;
use std::io;
use std::path::PathBuf;

/// A process that has a device open.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// Its number.
    pub process: u32,
    /// The name of its program, as the system shows it.
    pub name: String,
    /// Its command line, the program first. Empty where the system does not show it.
    pub arguments: Vec<String>,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.process == std::process::id() {
            true => write!(f, "this process, which opened it before"),
            false => write!(f, "process {} ({})", self.process, self.name),
        }
    }
}

fn by(holder: &Option<Holder>) -> String {
    holder.as_ref().map_or("another process, or opened twice in this one".into(), Holder::to_string)
}

/// Why formatting was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The capacity leaves no room for a device.
    #[error("{capacity_bytes} bytes are too few, a device takes at least {minimum_bytes}")]
    TooSmall {
        /// What was requested.
        capacity_bytes: u64,
        /// The least that works.
        minimum_bytes: u64,
    },
    /// The capacity has more chunks than can be numbered: larger chunks would help.
    #[error(
        "{capacity_bytes} bytes are too many, a device of {chunk_bytes}-byte chunks takes about {maximum_bytes} (choose larger chunks)"
    )]
    TooLarge {
        /// What was requested.
        capacity_bytes: u64,
        /// The chunks.
        chunk_bytes: u32,
        /// What all chunks that can be numbered hold.
        maximum_bytes: u64,
    },
    /// The block device is smaller than the capacity requested.
    #[error("{path}: {capacity_bytes} bytes requested, the device has {actual_bytes}")]
    DeviceTooSmall {
        /// The device.
        path: PathBuf,
        /// What was requested.
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
    /// The blocks that fit leave no room for records.
    #[error(
        "{capacity_bytes} bytes leave no room for records next to the commit ring and the blocks that the firmware needs; a device with \
         these options takes at least {smallest_bytes} bytes (or choose smaller blocks, a smaller ring or fewer dies)"
    )]
    NoRoom {
        /// The requested capacity.
        capacity_bytes: u64,
        /// The least that the same options work with, to a MiB.
        smallest_bytes: u64,
    },
    /// An option is outside what the firmware can run on.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Something exists already, and `force` was not given.
    #[error("{path}: contains {found}; creating a device would destroy it (--force, or `force`, overwrites it)")]
    NotEmpty {
        /// The file or device.
        path: PathBuf,
        /// What it contains, and where.
        found: String,
    },
    /// Neither a regular file nor a block device.
    #[error("{path}: neither a regular file nor a block device")]
    NotAFile {
        /// What was given.
        path: PathBuf,
    },
    /// Open elsewhere.
    #[error("{path}: in use by {}", by(holder))]
    InUse {
        /// The file or device.
        path: PathBuf,
        /// The process that has it open, where the system shows which one that is.
        holder: Option<Holder>,
    },
    /// The system refused.
    #[error("{path}: {what}: {source}")]
    Io {
        /// The file or device.
        path: PathBuf,
        /// What was being done.
        what: &'static str,
        /// The error of the system.
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
    /// Formatted once, and what states how is lost.
    #[error("{path}: {which} damaged: {why}")]
    Damaged {
        /// The file or device.
        path: PathBuf,
        /// What is damaged.
        which: &'static str,
        /// How one sees it.
        why: String,
    },
    /// Something was written over the beginning. The superblock at the end is whole, so what remains can be salvaged
    /// ([`crate::FileMedium::open_damaged`]).
    #[error("{path}: the beginning is damaged: {why}; the superblock at the end is whole")]
    HeadDamaged {
        /// The file or device.
        path: PathBuf,
        /// How one sees it.
        why: String,
    },
    /// Something was written over the beginning, and the only whole superblock is in front of the end. A value can look like that,
    /// so a person must state how long the device was.
    #[error(
        "{why}; a superblock of a device of {device_bytes} bytes is before the end, at {actual_bytes}, where a stored value \
         can look like one: if the device had {device_bytes} bytes, salvage as many from a copy or from what `losetup --find --show \
         --read-only --sizelimit {device_bytes} {path}` prints"
    )]
    NotAtEnd {
        /// The file or device.
        path: PathBuf,
        /// What is wrong with the beginning.
        why: String,
        /// Bytes of the device that the superblock speaks of.
        device_bytes: u64,
        /// Bytes of the file or device.
        actual_bytes: u64,
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
    #[error("{path}: in use by {}", by(holder))]
    InUse {
        /// The file or device.
        path: PathBuf,
        /// The process that has it open, where the system shows which one that is.
        holder: Option<Holder>,
    },
    /// The system refused.
    #[error("{path}: {what}: {source}")]
    Io {
        /// The file or device.
        path: PathBuf,
        /// What was being done.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}
