//! Changes of the device's size, by command and by itself.
//!
//! Lives here:       which sizes are requested, and when.
//! Lives elsewhere:  what a change does to flash (`array`), what must be stored afterwards (`model`).

use super::World;

/// Blocks of each die that a request adds at most.
const MORE_MAX: u64 = 6;
/// Blocks of each die up to which requests go.
const BLOCKS_MAX: u32 = 80;
/// Blocks of each die up to which the device grows by itself.
const GROWS_UP_TO: u32 = 40;

impl World {
    /// Requests another size occasionally. Each turn without a request costs nothing but a draw.
    pub(super) fn change_size(&mut self) {
        if self.workload.resize_one_in == 0 {
            return;
        }
        self.counts.resized += self.core.resize_count() - self.resized;
        self.resized = self.core.resize_count();
        self.core.grow_up_to(GROWS_UP_TO);
        let present = self.core.geometry().blocks_per_die;
        if self.sizes.one_in(self.workload.resize_one_in) {
            let more = self.sizes.within(0, MORE_MAX) as u32;
            let less = self.sizes.one_in(2) || present + more > BLOCKS_MAX;
            self.core.request_resize(if less { present - more } else { present + more }, 0);
        }
    }
}
