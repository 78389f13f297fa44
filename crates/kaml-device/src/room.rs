//! Whether a shape of flash leaves any room for records.
//!
//! Lives here:       the question, before a device is made.
//! Lives elsewhere:  how much room there is (`core`), what a shape may be at all (`kaml_flash::Geometry`).

use crate::{Core, Error, NamespaceOptions};
use kaml_flash::{Geometry, MemoryMedium};

/// More blocks of a die than this are room for records, whatever the shape: the firmware keeps some for each die and a part of all.
const ENOUGH_PER_DIE: u32 = 64;

/// Whether a new device of this shape takes records with one namespace. The firmware itself decides, on flash in memory.
pub fn has_room(geometry: &Geometry) -> bool {
    let blocks_per_die = geometry.blocks_per_die.min(ENOUGH_PER_DIE);
    capacity_with_a_namespace(Geometry { blocks_per_die, ..*geometry }).is_ok_and(|chunks| chunks > 0)
}

fn capacity_with_a_namespace(geometry: Geometry) -> Result<u64, Error> {
    let medium = MemoryMedium::new(geometry);
    Core::format(&medium)?;
    let (mut core, _) = Core::open(&medium)?;
    core.create_namespace("room", &NamespaceOptions::default())?;
    core.update_sizes();
    Ok(core.capacity_chunks())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaml_flash::FormatOptions;

    /// Goal:   what has room has more in a larger device: a search for the smallest size ends at the smallest one.
    /// Method: blocks of several sizes and numbers of dies, from the fewest blocks on; shapes with [`ENOUGH_PER_DIE`] blocks have room.
    #[test]
    fn room_grows_with_the_blocks() {
        for (block_bytes, dies) in [(32 << 10, 1), (64 << 10, 9), (1 << 20, 8)] {
            let options =
                FormatOptions { block_bytes: Some(block_bytes), die_count: Some(dies), ..FormatOptions::default() };
            let geometry = Geometry::for_file(1 << 30, 512, &options).unwrap();
            let of = |blocks_per_die| capacity_with_a_namespace(Geometry { blocks_per_die, ..geometry }).unwrap();
            let capacities: Vec<u64> = (8u32.div_ceil(dies)..=ENOUGH_PER_DIE).step_by(4).map(of).collect();
            let first = capacities.iter().position(|chunks| *chunks > 0).expect("enough is enough");
            assert!(capacities[first..].iter().all(|chunks| *chunks > 0), "{block_bytes}, {dies}: {capacities:?}");
        }
    }
}
