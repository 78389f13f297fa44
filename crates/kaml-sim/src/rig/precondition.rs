//! Filling a device before it is measured.
//!
//! Lives here:       random data over all of the flash, several times, and their removal.
//! Implements:       paper:KAML V.A ("filling the SSD with random data multiple times").

use super::{Rig, RigError};
use crate::load::{Ask, Load, Order};
use kaml_device::StageError;
use std::collections::BTreeSet;

/// Percent of what the firmware takes.
const FILLED_PERCENT: u64 = 90;
const HOSTS: usize = 32;

impl Rig {
    /// Fills the device this many times with random data, and removes them: all blocks have been erased before, and what is
    /// measured then waits for erases.
    ///
    /// # Errors
    /// The firmware refused something.
    pub fn precondition(&mut self, fills: u32) -> Result<(), RigError> {
        if fills == 0 {
            return Ok(());
        }
        let space = self.create_records("precondition", Vec::new())?;
        self.rest()?;
        let geometry = self.core.geometry();
        // A record fills a page, whether records may cross pages or not.
        let bytes = geometry.page_bytes.min(16 << 10) - geometry.chunk_bytes;
        let record = u64::from(bytes + geometry.chunk_bytes);
        let count = (self.stats().capacity_bytes * FILLED_PERCENT / 100 / record).max(1);
        for fill in 0..fills {
            let order = if fill == 0 { Order::Turn } else { Order::Even };
            let load = Load {
                space,
                ask: Ask::Put,
                bytes,
                batch: 1,
                records: 0..count,
                order,
                hosts: HOSTS,
                warm_up: 0,
                commands: Some(count),
            };
            self.run(std::slice::from_ref(&load))?;
        }
        self.settle()?;
        self.remove(space)
    }

    /// Deletes a namespace, and waits for the root without it.
    fn remove(&mut self, space: u32) -> Result<(), RigError> {
        let deletion = match self.core.delete_namespace(space, &BTreeSet::new()) {
            Ok(deletion) => deletion,
            Err(StageError::Refused(error) | StageError::RefusedAfter(_, error)) => return Err(error.into()),
            Err(other) => return Err(RigError::Stuck(format!("a namespace cannot be deleted: {other:?}"))),
        };
        let counted = deletion.count(self.core.geometry());
        self.core.finish_deletion(counted);
        self.settle()
    }
}
