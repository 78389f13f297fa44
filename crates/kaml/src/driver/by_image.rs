//! Gets before the index of their namespace is loaded.
//!
//! Lives here:       looking a key up in the image of the index, and the thread that loads the index meanwhile.
//! Lives elsewhere:  the image (`kaml_device::FlashIndex`), commands that wait for the index (`Shared::load_index`).
//! Implements:       docs/ARCHITECTURE.md "Gets before an index is loaded".

use super::Shared;
use crate::NamespaceId;
use crate::error::Error;
use crate::sync::{JoinHandle, spawn};
use kaml_device::{Buffered, FlashIndex, FullKey};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A shorter image is loaded as fast as a key is found in it.
const IMAGE_BYTES_MIN: u64 = 1 << 20;

impl Shared {
    /// Looks a key up by the image of an index that is not in memory. None if the caller has to load the index, or to look again.
    #[cold]
    pub(crate) fn find_by_image(&self, namespace: NamespaceId, key: &FullKey<'_>) -> Option<Buffered> {
        let image = self.flash_index(namespace)?;
        // What is wrong with an image, loading it reports.
        match image.find(&*self.medium, key).ok()? {
            Some(slot) => self.lock().read_found(&image, *key, slot).ok()?,
            None => Some(Buffered::Absent),
        }
    }

    /// Whether a key exists, by the image of an index that is not in memory. None as [`Shared::find_by_image`].
    #[cold]
    pub(crate) fn exists_by_image(&self, namespace: NamespaceId, key: &FullKey<'_>) -> Option<bool> {
        let image = self.flash_index(namespace)?;
        Some(image.find(&*self.medium, key).ok()?.is_some())
    }

    fn flash_index(&self, namespace: NamespaceId) -> Option<Arc<FlashIndex>> {
        let mut core = self.lock();
        let image = core.flash_index(namespace, IMAGE_BYTES_MIN)?;
        let is_requested = core.image_load().is_some();
        drop(core);
        if is_requested {
            self.wake_background();
        }
        Some(image)
    }

    /// Loads an index, unless the device is about to be closed.
    fn load_unless_closing(&self, id: NamespaceId) -> Result<(), Error> {
        let is_closing = || self.ends_merges.load(Ordering::Acquire);
        let _alone = self.loading.lock().expect("no panics under this lock");
        loop {
            let begun = self.lock().begin_load(id)?;
            let Some(load) = begun else { return Ok(()) };
            match load.read_unless(&*self.medium, &is_closing)? {
                Some(loaded) => self.lock().finish_load(loaded),
                None => return Ok(()),
            }
        }
    }
}

/// Starts a thread that loads the indexes whose images are read. None if there is no such thread to be had now.
pub(crate) fn load_read_images(shared: &Arc<Shared>) -> Option<JoinHandle<()>> {
    let shared = shared.clone();
    let load = move || {
        loop {
            let Some(id) = shared.lock().image_load() else { return };
            let loaded = shared.load_unless_closing(id);
            if let Err(error) = &loaded {
                tracing::warn!(%error, "an index whose image is read cannot be loaded");
            }
            shared.lock().end_image_load(id, loaded.is_err());
        }
    };
    spawn("kaml-load", load).ok()
}
