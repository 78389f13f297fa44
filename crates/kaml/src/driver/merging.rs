//! Batches with operands and expected values, which the firmware applies to what there is.
//!
//! Lives here:       reading the values that are on flash, and staging again.
//! Lives elsewhere:  applying them (`kaml_device::Core::stage_merging`), Puts without them (`driver`).
//! Implements:       docs/ARCHITECTURE.md "Operands".
//!
//! It ends: a value is read again only if another Put or a move has changed its place since, as in other optimistic Puts.

use super::{By, Shared};
use crate::error::Error;
use crate::sync::{Instant, MutexGuard};
use kaml_device::{Base, Buffered, Core, FlashRead, Found, Merge, MergeError, Merged, Op, SpaceReader};

/// A value that was read, whose block is kept until the batch is staged.
struct Held {
    merge: usize,
    read: FlashRead,
    value: Vec<u8>,
}

impl Shared {
    /// As [`Shared::write`], of a batch with operands; the counters after each.
    pub(crate) fn write_merging(&self, by: By, ops: &mut [Op<'_>], merges: &[Merge<'_>]) -> Result<Vec<i64>, Error> {
        let start = Instant::now();
        match self.pack(ops) {
            Some(packed) => self.write_merging_stored(by, &mut packed.ops(ops), merges, start),
            None => self.write_merging_stored(by, ops, merges, start),
        }
    }

    fn write_merging_stored(
        &self,
        by: By,
        ops: &mut [Op<'_>],
        merges: &[Merge<'_>],
        start: Instant,
    ) -> Result<Vec<i64>, Error> {
        let placed = self.place_large(by, ops)?;
        let staged = self.stage_merging(by, ops, merges);
        let written = staged.and_then(|(core, merged)| {
            self.wait_committed(core, merged.frame)?;
            Ok(merged.values)
        });
        self.finish(placed, written.is_ok());
        self.put_latency.record_since(start);
        written
    }

    /// As [`Shared::submit`], of a batch with operands.
    pub(crate) fn submit_merging(&self, by: By, ops: &mut [Op<'_>], merges: &[Merge<'_>]) -> Result<u64, Error> {
        match self.pack(ops) {
            Some(packed) => self.submit_merging_stored(by, &mut packed.ops(ops), merges),
            None => self.submit_merging_stored(by, ops, merges),
        }
    }

    fn submit_merging_stored(&self, by: By, ops: &mut [Op<'_>], merges: &[Merge<'_>]) -> Result<u64, Error> {
        let placed = self.place_large(by, ops)?;
        let staged = self.stage_merging(by, ops, merges).map(|(_, merged)| merged.frame);
        self.finish(placed, staged.is_ok());
        staged
    }

    fn stage_merging(
        &self,
        by: By,
        ops: &[Op<'_>],
        merges: &[Merge<'_>],
    ) -> Result<(MutexGuard<'_, Core>, Merged), Error> {
        self.prefetch(ops);
        self.reader.prefetch(merges.iter().map(|merge| (merge.namespace, &merge.key)));
        let mut held: Vec<Held> = Vec::new();
        loop {
            let bases: Vec<Base<'_>> =
                held.iter().map(|held| Base { merge: held.merge, at: held.read.at, value: &held.value }).collect();
            let (core, needed) = self.visit(by, |core| match core.stage_merging(ops, merges, &bases) {
                Ok(merged) => Ok(Ok(merged)),
                Err(MergeError::NeedValue(merge)) => Ok(Err(merge)),
                Err(MergeError::Stage(why)) => Err(why),
            })?;
            let merge = match needed {
                Ok(merged) => return Ok((core, merged)),
                Err(merge) => merge,
            };
            drop(core);
            held.retain(|held| held.merge != merge);
            if let Some(read) = self.find_on_flash(&merges[merge])? {
                let mut value = Vec::new();
                self.read(&read, &mut value)?;
                held.push(Held { merge, read, value });
            }
        }
    }

    /// Where a record lies on flash; nothing if it is not there any more.
    fn find_on_flash(&self, merge: &Merge<'_>) -> Result<Option<FlashRead>, Error> {
        let namespace = merge.namespace;
        match self.reader.of(namespace).map_err(|error| self.refused(error))? {
            SpaceReader::Records(records) => {
                self.look(namespace, || {
                    Ok(match records.find(merge.key)? {
                        Found::Absent => None,
                        Found::Flash(read) => Some(read),
                        // All of the record can be on flash when not all of what its length code covers is.
                        Found::Buffered => match self.lock().read_buffered(namespace, merge.key)? {
                            Buffered::Programmed(read) => Some(read),
                            Buffered::Absent | Buffered::Value(_) | Buffered::Packed(_) => None,
                        },
                    })
                })
            }
            SpaceReader::Blocks => Err(Error::HoldsBlocks(namespace)),
            SpaceReader::Versions(_) => Err(Error::KeepsVersions(namespace)),
        }
    }
}
