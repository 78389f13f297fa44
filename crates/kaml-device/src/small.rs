//! The small flash of unit tests.
//!
//! Lives here:       its shape, a new device on it in memory, one that is short of blocks.
//! Lives elsewhere:  the flash of integration tests (`tests/`).

use crate::Core;
use crate::lifetime::Class;
use kaml_flash::{BlockIndex, Geometry, Io, Medium, MemoryMedium, Packing};

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

/// Takes free blocks away until this many are left, as if others wrote to them; returns them. Nothing else continues meanwhile.
pub(crate) fn take_blocks(core: &mut Core, medium: &MemoryMedium, left: u32) -> Vec<u32> {
    for block in core.log.blocks.start_erases(usize::MAX) {
        medium.execute(&mut Io::Erase { block: BlockIndex(block), release: false }).expect("memory does not fail");
        core.log.blocks.erased(block);
    }
    let mut taken = Vec::new();
    while core.log.blocks.free_count() > left {
        let die = core.log.blocks.roomiest_die().expect("all free blocks are erased");
        taken.extend(core.log.blocks.open(die, Class::Cold));
    }
    taken
}
