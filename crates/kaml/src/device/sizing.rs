//! The size of a device.
//!
//! Lives here:       changing it by command.
//! Lives elsewhere:  growing when space runs low, what a change of size does (`kaml_device::Core`), making it durable (`kaml_flash`).

use super::Device;
use crate::driver::takes_no_changes;
use crate::error::Error;
use std::sync::atomic::Ordering;

impl Device {
    /// Makes the device larger or smaller: from now on it takes as many whole erase blocks of each log as fit `capacity_bytes` of its file or
    /// block device. Returns the bytes that it takes. Others read and write meanwhile. A crash or power cut leaves the old size or the new one.
    ///
    /// A smaller device is emptied from its end on first, as fast as collection moves records. Until that is done puts are refused that
    /// would not fit the smaller size.
    ///
    /// A file stays sparse: it takes space when blocks are first used. A block device must have as many bytes. The commit ring, erase
    /// blocks and the largest value keep their sizes. An index in memory whose chunk numbers become too large for it is copied, which
    /// takes about a microsecond for each of its keys, and during which the device does nothing else.
    ///
    /// A device in memory, which has no file, counts bytes of its pages.
    ///
    /// # Errors
    /// - [`Error::NotResized`] if the device cannot have this size; it keeps the one that it has.
    /// - [`Error::TooFullToShrink`] if what is in it does not fit; it states how many bytes must be deleted first.
    /// - [`Error::NoSpace`] if the file system has no room for the superblock at the new end.
    /// - [`Error::ReadOnly`], [`Error::Stopped`], [`Error::Closed`] if the device takes no changes.
    ///
    /// # Examples
    /// ```
    /// use kaml::{CreateOptions, Device, NamespaceOptions};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("data.kaml");
    /// let device = Device::create(&path, &CreateOptions::new(64 << 20))?;
    /// let before = device.info().usable_bytes;
    /// let bytes = device.resize(256 << 20)?;
    /// assert!(bytes <= 256 << 20 && device.info().usable_bytes > 3 * before);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resize(&self, capacity_bytes: u64) -> Result<u64, Error> {
        let shared = self.shared();
        shared.lock().writable()?;
        let Some(blocks_per_die) = shared.medium.blocks_in(capacity_bytes) else {
            return Err(Error::NotResized { why: "what the device is on has a fixed size".to_owned() });
        };
        let mut core = shared.lock();
        let request = core.request_resize(blocks_per_die, capacity_bytes);
        shared.wake_background();
        loop {
            if let Some(outcome) = core.resize_outcome(request) {
                outcome?;
                break;
            }
            if shared.closing.load(Ordering::Acquire) {
                return Err(Error::Closed);
            }
            if let Some(error) = takes_no_changes(&core) {
                return Err(error);
            }
            core = shared.wait_progress(core);
        }
        let pages_bytes = core.geometry().block_bytes() * u64::from(core.block_count());
        Ok(shared.medium.capacity_bytes().unwrap_or(pages_bytes))
    }
}
