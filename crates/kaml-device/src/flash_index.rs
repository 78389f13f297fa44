//! An index that is not in memory: its checkpoint image finds keys meanwhile, each with a read more than the index.
//!
//! Lives here:       which image that is, what a reader may do with what it found.
//! Lives elsewhere:  looking a key up in an image (`index_image`), loading the index (`loading`).
//! Implements:       docs/ARCHITECTURE.md "Gets before an index is loaded".
//!
//! An index that is not in memory has not changed since its image was begun, and nothing changes it before it is loaded. So the image is the
//! index until then. A reader that found a record by it enters the core once more: if the index is in memory by now, it looks there.

use crate::core::Core;
use crate::error::Error;
use crate::index_image::{FlashIndex, ImageUse};
use crate::layout::Layout;
use crate::reader::Buffered;
use kaml_index::{FullKey, Slot};
use std::sync::{Arc, OnceLock};

impl Core {
    /// The image by which keys of a namespace are found while its index is not in memory. From the first call on [`Core::image_load`]
    /// requests that the index is loaded. None if the index is in memory, a record in it has expired, its image has fewer than
    /// `least_bytes` or no list of parts, or the index could not be loaded: the caller then needs [`Core::load_index`].
    pub fn flash_index(&mut self, id: u32, least_bytes: u64) -> Option<Arc<FlashIndex>> {
        let layout = match self.spaces.get(&id)?.layout {
            layout @ (Layout::Records(_) | Layout::Blocks(_)) => self.index_layout(layout),
            Layout::Versions(_) => return None,
        };
        let space = &self.spaces[&id];
        let stream = space.snapshot.as_ref().filter(|stream| stream.list_bytes > 0 && stream.bytes >= least_bytes)?;
        if space.is_loaded() || space.shared.is_due(&self.clock) {
            return None;
        }
        match &space.image_use {
            ImageUse::Refused => None,
            ImageUse::Used(image) => Some(image.clone()),
            ImageUse::Unused => {
                let pins = self.pin_streams([stream]);
                let (name, stream) = (space.name.clone(), stream.clone());
                let image = FlashIndex { id, name, layout, stream, opened: OnceLock::new(), _pins: pins };
                let image = Arc::new(image);
                self.spaces.get_mut(&id).expect("just seen").image_use = ImageUse::Used(image.clone());
                self.catalog.image_loads.insert(id);
                Some(image)
            }
        }
    }

    /// Reads a record that was found by an image, or reports how. None if the index is in memory by now, or may have been since: the
    /// record can be elsewhere, and the caller looks again.
    pub fn read_found<'a>(
        &self,
        image: &Arc<FlashIndex>,
        key: impl Into<FullKey<'a>>,
        slot: Slot,
    ) -> Result<Option<Buffered>, Error> {
        let Some(space) = self.spaces.get(&image.id) else { return Ok(None) };
        let is_current = matches!(&space.image_use, ImageUse::Used(current) if Arc::ptr_eq(current, image));
        if !is_current || space.shared.is_due(&self.clock) {
            return Ok(None);
        }
        self.read_slot(image.id, &key.into(), slot).map(Some)
    }

    /// A namespace whose index should be loaded, because readers look keys up in its image. It remains so until
    /// [`Core::end_image_load`].
    pub fn image_load(&self) -> Option<u32> {
        self.catalog.image_loads.first().copied()
    }

    /// The index of a namespace is loaded, needs not be loaded any more, or cannot be.
    pub fn end_image_load(&mut self, id: u32, is_refused: bool) {
        self.catalog.image_loads.remove(&id);
        if let Some(space) = self.spaces.get_mut(&id).filter(|space| is_refused && !space.is_loaded()) {
            space.image_use = ImageUse::Refused;
        }
    }
}
