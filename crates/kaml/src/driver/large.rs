//! Large values: programmed ahead of the Put that names them.
//!
//! Lives here:       what the caller of such a Put does, buffers for images.
//! Lives elsewhere:  where a large value is placed and when it counts (`kaml_device::Core::place`), the Put itself (`driver`).
//! Implements:       docs/ARCHITECTURE.md "Large values".

use super::{By, Shared, programs_wait_for_ever};
use crate::NamespaceId;
use crate::error::Error;
use crate::sync::{Mutex, MutexGuard};
use kaml_device::{Body, Condition, Core, Op, encode_expiring_image, expiring_image_bytes};
use kaml_flash::{AlignedBuf, Completion};
use kaml_versions::{Kind, Version};
use std::sync::Arc;

/// The large values of a Put, on their way to their pages.
#[derive(Default)]
pub(super) struct Placed {
    tickets: Vec<u64>,
    images: Vec<Arc<AlignedBuf>>,
}

/// Buffers for large values, kept because fresh memory costs as much as copying into it.
#[derive(Default)]
pub(super) struct ImagePool(Mutex<Vec<AlignedBuf>>);

/// Bytes kept.
const IMAGE_POOL_BYTES: usize = 8 << 20;

impl ImagePool {
    pub(super) fn take(&self, bytes: usize) -> AlignedBuf {
        let mut kept = self.0.lock().expect("no panics under this lock");
        let fits = kept.iter().rposition(|buf| buf.capacity() >= bytes && buf.capacity() / 2 <= bytes);
        let found = fits.map(|at| kept.swap_remove(at));
        drop(kept);
        found.unwrap_or_else(|| AlignedBuf::for_transfers(bytes))
    }

    /// Takes a buffer back, if nobody else reads it any more.
    pub(super) fn give(&self, image: Arc<AlignedBuf>) {
        let Ok(buf) = Arc::try_unwrap(image) else { return };
        let mut kept = self.0.lock().expect("no panics under this lock");
        if kept.iter().map(AlignedBuf::capacity).sum::<usize>() + buf.capacity() <= IMAGE_POOL_BYTES {
            kept.push(buf);
        }
    }
}

impl Shared {
    /// Programs the large values of a Put ahead of it and replaces them by their places.
    pub(super) fn place_large(&self, by: By, ops: &mut [Op<'_>]) -> Result<Placed, Error> {
        let mut large = Placed::default();
        let is_large =
            |op: &Op<'_>| op.stored_bytes().is_some_and(|bytes| self.reader.places_first(op.namespace, bytes));
        let is_alone = match ops.iter().filter(|op| is_large(op)).count() {
            0 => return Ok(large),
            count => count == 1,
        };
        for op in ops.iter_mut().filter(|op| is_large(op)) {
            let body = op.body;
            let (Body::Value { value, .. } | Body::Packed { value, .. }) = body else {
                unreachable!("has been checked")
            };
            let (max, after) = {
                let core = self.lock();
                (core.value_bytes_max(), core.last_sequence())
            };
            if value.len() as u64 > max {
                self.finish(large, false);
                return Err(
                    kaml_device::Error::ValueTooLarge { bytes: value.len() as u64, max, namespace: None }.into()
                );
            }
            let expires = match self.reader.expires_at(op.namespace, op.expires) {
                Ok(expires) => expires,
                Err(error) => {
                    self.finish(large, false);
                    return Err(self.refused(error));
                }
            };
            let (namespace, key) = match self.visit(by, |core| core.place_of(op.namespace, op.key)) {
                Ok((_, place)) => place,
                Err(error) => {
                    self.finish(large, false);
                    return Err(error);
                }
            };
            let bytes = expiring_image_bytes(&self.geometry, key, value.len(), expires);
            let buf = self.images.take(bytes);
            let image = encode_expiring_image(&self.geometry, namespace, key, body, after, expires, buf);
            let placed = self.place(by, op, image.clone(), is_alone);
            large.images.push(image);
            match placed {
                Ok(ticket) => large.tickets.push(ticket),
                Err(error) => {
                    self.finish(large, false);
                    return Err(error);
                }
            }
        }
        let mut core = self.lock();
        let no_space_count = core.no_space_count();
        while !large.tickets.iter().all(|ticket| core.is_placed(*ticket)) {
            if let Some(error) = programs_wait_for_ever(&core, no_space_count) {
                drop(core);
                self.finish(large, false);
                return Err(error);
            }
            core = self.wait_progress(core);
        }
        Ok(large)
    }

    /// Has a large value programmed: by the housekeeping thread if there are others, by the caller itself if it would be the only one.
    /// Returns its ticket.
    fn place(&self, by: By, op: &mut Op<'_>, image: Arc<AlignedBuf>, is_alone: bool) -> Result<u64, Error> {
        let (mut core, ticket) = self.visit(by, |core| core.place(op.namespace, op.key, image.clone()))?;
        let own = if is_alone && !self.medium.is_immediate() { core.take_program(ticket) } else { None };
        op.body = Body::Placed { ticket };
        let Some((id, mut io)) = own else {
            drop(core);
            self.wake_background();
            return Ok(ticket);
        };
        let begun = self.medium.begin(&mut io); // the core is still locked: nobody programs the next pages before
        drop(core);
        self.wake_background();
        let result = begun.and_then(|carry_out| carry_out());
        let failed = result.is_err();
        let mut core = self.lock();
        core.complete(Completion { id, io, result });
        let progress = self.progress(&core);
        let wake = core.has_background() || failed; // its value needs another place
        drop(core);
        self.notify(progress, 0);
        if wake {
            self.wake_background();
        }
        Ok(ticket)
    }

    /// Whether the value of a version of a backup is placed before the version is inserted.
    pub(crate) fn restores_placed(&self, namespace: NamespaceId, version: &Version, value: &[u8]) -> bool {
        version.kind == Kind::Value && self.reader.places_first(namespace, value.len())
    }

    /// Inserts a version of a backup whose value is placed first.
    pub(crate) fn restore_large(
        &self,
        namespace: NamespaceId,
        version: &Version,
        value: &[u8],
    ) -> Result<(MutexGuard<'_, Core>, ()), Error> {
        let body = Body::Value { value, crc32c: version.value_crc };
        let (key, condition) = (version.key.into(), Condition::Always);
        let mut ops = [Op { namespace, key, body, condition, expires: Default::default() }];
        let placed = self.place_large(By::Store, &mut ops)?;
        let Body::Placed { ticket } = ops[0].body else { unreachable!("it is large") };
        let inserted = self.visit(By::Store, |core| core.restore_large_version(namespace, version, ticket));
        match inserted {
            Ok((core, ())) => {
                drop(core);
                self.finish(placed, true);
                Ok((self.lock(), ()))
            }
            Err(error) => {
                self.finish(placed, false);
                Err(error)
            }
        }
    }

    /// Gives up what a Put that was not staged had placed, and takes the buffers back.
    pub(super) fn finish(&self, placed: Placed, staged: bool) {
        if placed.images.is_empty() {
            return;
        }
        if !staged {
            let mut core = self.lock();
            placed.tickets.iter().for_each(|ticket| core.forget(*ticket));
        }
        placed.images.into_iter().for_each(|image| self.images.give(image));
    }
}
