//! Flash as the firmware sees it: geometry, addresses, NAND rules, and the media that keep the bytes.
//!
//! Lives here:       `Geometry` and addresses, the `Medium` contract, the file / block-device and memory media.
//! Lives elsewhere:  everything that gives bytes a meaning (`kaml-device`).
//! Implements:       paper:KAML IV.A (flash array, non-volatile buffer); design section 3.

mod buffer;
mod geometry;
mod medium;

pub use buffer::AlignedBuf;
pub use geometry::{BlockIndex, ChunkAddr, Geometry, GeometryError, Packing, PageAddr};
pub use medium::{Completion, Io, IoId, Medium, MediumError, Queue, Wait, Wake};
