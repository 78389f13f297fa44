//! Commands on reservations, one call each.
//!
//! Lives here:       building commands, reading answers.
//! Lives elsewhere:  their fields and data (`wire::reservations`), sending them (`queue`).
//! Implements:       spec:NVMe-Base "Reservations".

use super::{Error, Execute, Queue};
use crate::wire::reservations::{Report, Wish};

/// Room for a report at first; more is requested when it has more registrants.
const ROOM_AT_FIRST: u32 = 4096;
/// Bytes for the head of a report, and for each registrant.
const ENTRY_BYTES: u32 = 64;

/// The reservations of a namespace of any kind.
pub struct Reservations<'a, E: ?Sized = Queue> {
    queue: &'a E,
    nsid: u32,
}

impl<'a, E: Execute + ?Sized> Reservations<'a, E> {
    /// Names the namespace.
    pub fn new(queue: &'a E, nsid: u32) -> Reservations<'a, E> {
        Reservations { queue, nsid }
    }

    /// Register, Acquire or Release.
    pub fn carry_out(&self, wish: &Wish) -> Result<(), Error> {
        let (command, data) = wish.encode(self.nsid);
        self.queue.execute(command, &data, 0)?.success().map(drop)
    }

    /// How they stand.
    pub fn report(&self) -> Result<Report, Error> {
        let mut room = ROOM_AT_FIRST;
        loop {
            let data = self.queue.execute(Report::command(self.nsid, room), &[], room as usize)?.success()?.data;
            let count = data.get(5..7).map(|count| u32::from(u16::from_le_bytes([count[0], count[1]])));
            let needed = count.map_or(0, |count| (count + 1) * ENTRY_BYTES);
            if needed <= room {
                return Report::decode(&data).ok_or(Error::Unsupported("a whole Reservation Report"));
            }
            room = needed;
        }
    }
}
