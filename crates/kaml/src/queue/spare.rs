//! Memory of values that are longer than what their callers have room for.
//!
//! Lives here:       how much Gets take beyond their room, those that wait for it.
//! Lives elsewhere:  looking up and reading (`queue`), buffers that are kept (`buffers`).
//! May be called by: the queue.
//!
//! ```text
//!  held ──there is room──▶ taken ──returned──▶ with the caller ──its next poll──▶ free
//! ```
//!
//! A Get is held before it is looked up for good, so it pins nothing while it waits, and those after it wait too: a long value
//! would never find room otherwise.

use crate::NamespaceId;
use crate::sync::Instant;
use kaml_device::KeptKey;
use std::collections::VecDeque;

/// A record in its pages is so much longer than its value at most, besides a quarter (`LenCode`): that is not counted.
const ROUNDED_BYTES_MAX: usize = 8 << 10;

/// A Get that waits for memory.
pub(super) struct HeldGet {
    pub(super) token: u64,
    pub(super) namespace: NamespaceId,
    pub(super) key: KeptKey,
    pub(super) room: usize,
    pub(super) start: Instant,
}

/// See the module.
pub(super) struct Spare {
    pub(super) bytes_max: usize,
    /// Of reads in flight.
    pub(super) taken: usize,
    /// Of answers that the caller may still have.
    answered: usize,
    /// In the order they came.
    pub(super) held: VecDeque<HeldGet>,
}

impl Default for Spare {
    fn default() -> Spare {
        Spare { bytes_max: usize::MAX, taken: 0, answered: 0, held: VecDeque::new() }
    }
}

impl Spare {
    fn bytes(&self) -> usize {
        self.taken + self.answered
    }

    /// Takes what reading so many bytes needs beyond the caller's room; nothing if that is too much now.
    pub(super) fn take(&mut self, bytes: usize, room: usize) -> Option<usize> {
        let spare = bytes.saturating_sub(room.saturating_add(room / 4).saturating_add(ROUNDED_BYTES_MAX));
        if spare > 0 {
            let fits = self.bytes() == 0 || self.bytes().saturating_add(spare) <= self.bytes_max;
            if !fits || !self.held.is_empty() {
                return None;
            }
            self.taken += spare;
        }
        Some(spare)
    }

    /// A Get with this much memory has completed.
    pub(super) fn answered(&mut self, spare: usize) {
        self.taken -= spare;
        self.answered += spare;
    }

    /// A value of so many bytes was compressed in the record that was read, of so many.
    pub(super) fn unpacked(&mut self, value: usize, read: usize) {
        self.answered += value.saturating_sub(read.saturating_add(ROUNDED_BYTES_MAX));
    }

    /// Whether the caller is to handle what there is before more comes.
    pub(super) fn is_overfull(&self) -> bool {
        self.answered > self.bytes_max
    }

    /// The caller has handled all completions.
    pub(super) fn release(&mut self) {
        self.answered = 0;
    }

    /// Whether the next poll may start something that is held.
    pub(super) fn can_go_on(&self) -> bool {
        !self.held.is_empty() && (self.answered > 0 || self.taken == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;
    use kaml_device::FullKey;

    fn held() -> HeldGet {
        HeldGet { token: 0, namespace: 1, key: (&FullKey::from(Key::from(1))).into(), room: 0, start: Instant::now() }
    }

    /// Goal:   values that became longer than what was read of them count, until the caller has handled them.
    /// Method: short and long ones, under a limit of 1 MiB.
    #[test]
    fn decompressed_values_count() {
        let mut spare = Spare { bytes_max: 1 << 20, ..Spare::default() };
        (0..1000).for_each(|_| spare.unpacked(8 << 10, 100));
        assert!(!spare.is_overfull() && spare.take(1 << 20, 0).is_some(), "small ones are not counted");
        spare.unpacked(1 << 21, 4096);
        assert!(spare.is_overfull() && spare.take(1 << 20, 0).is_none());
        spare.release();
        assert!(!spare.is_overfull());
    }

    /// Goal:   no more than the limit is taken, but one value always, and a Get with enough room never waits.
    /// Method: Gets of 1 MiB under a limit of 2 MiB; results count until the next poll; one that is larger than the limit.
    #[test]
    fn spare_memory_is_limited() {
        let (mut spare, long, none) = (Spare { bytes_max: 2 << 20, ..Spare::default() }, 1 << 20, 8 << 10);
        let one = spare.take(long, 0).unwrap();
        assert_eq!(one, long - none);
        assert_eq!(spare.take(long, 0), Some(one));
        assert_eq!(spare.take(long, 0), None);
        assert_eq!(spare.take(long, long), Some(0), "it has room enough");
        assert_eq!(spare.take(long + long / 4, long), Some(0), "so much is lost by rounding");
        spare.answered(one);
        assert_eq!(spare.take(long, 0), None, "the caller may still have it");
        spare.held.push_back(held());
        assert!(spare.can_go_on());
        spare.release();
        assert!(!spare.can_go_on(), "the poll that released it has started what it could");
        assert_eq!(spare.take(long, 0), None, "another one waits already");
        spare.held.clear();
        assert_eq!(spare.take(4 * long, 0), None);
        spare.answered(one);
        spare.release();
        assert_eq!(spare.take(4 * long, 0), Some(4 * long - none), "alone it is always read");
    }
}
