//! The small flash of unit tests.
//!
//! Lives here:       its shape, and a new device on it in memory.
//! Lives elsewhere:  the flash of integration tests (`tests/`).

use crate::Core;
use kaml_flash::{Geometry, MemoryMedium, Packing};

/// Two dies with few blocks.
pub(crate) fn geometry() -> Geometry {
    Geometry {
        channel_count: 2,
        dies_per_channel: 1,
        blocks_per_die: 34,
        pages_per_block: 32,
        page_bytes: 4096,
        oob_bytes: 32,
        chunk_bytes: 64,
        pages_per_program: 1,
        packing: Packing::Across,
        ring_bytes: 1 << 20,
        sector_bytes: 512,
        root_bytes: 1 << 16,
    }
}

/// An empty device.
pub(crate) fn formatted() -> MemoryMedium {
    let medium = MemoryMedium::new(geometry());
    Core::format(&medium).expect("memory does not fail");
    medium
}
