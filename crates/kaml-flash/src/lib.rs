//! Flash as the firmware sees it: geometry, addresses, NAND rules, and the media that keep the bytes.
//!
//! Lives here:       `Geometry` and addresses, the `Medium` contract, the file / block-device and memory media.
//! Lives elsewhere:  everything that gives bytes a meaning (`kaml-device`).
//! Implements:       paper:KAML IV.A (flash array, non-volatile buffer); docs/ARCHITECTURE.md "The medium contract".

#[cfg(not(target_os = "linux"))]
compile_error!("KAML runs on Linux only: its file medium uses O_DIRECT, io_uring and hole punching");

mod blocks;
mod buffer;
mod copies;
mod error;
mod file;
mod format;
mod geometry;
mod growing;
mod hints;
mod inline;
mod layout;
mod lock;
#[allow(unsafe_code, reason = "memory mappings")]
mod map;
mod medium;
mod memory;
mod overlay;
mod plan;
mod resize;
mod rules;
mod signature;
mod superblock;
mod sys;
#[allow(unsafe_code, reason = "the kernel is handed buffers by address")]
mod trace;
#[allow(unsafe_code, reason = "the kernel is handed buffers by address")]
mod uring;
mod waker;

pub use buffer::AlignedBuf;
pub use error::{FormatError, Holder, OpenError};
pub use file::{FileMedium, OpenOptions};
pub use geometry::{BlockIndex, ChunkAddr, Geometry, GeometryError, Packing, PageAddr};
pub use growing::Growing;
pub use hints::{copy_past_caches, prefer_huge_pages, prefetch};
pub use layout::{BLOCK_COUNT_MIN, CAPACITY_BYTES_MIN, FormatOptions};
pub use medium::{Begun, Completion, Io, IoId, Medium, MediumError, Queue, Wait, Wake};
pub use memory::MemoryMedium;
pub use overlay::Overlay;
pub use superblock::Durability;
pub use trace::{FileChange, FileEvent, FileTrace};
