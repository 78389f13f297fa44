//! Operands: changes that need the present value of a record, and that a caller requests without reading it.
//!
//! Lives here:       applying operands and expectations to what is committed, staged, or earlier in the same batch; staging the result.
//! Lives elsewhere:  staging itself (`staging`), reading a value that is on flash (the drivers in `kaml`).
//! Implements:       docs/ARCHITECTURE.md "Operands".
//!
//! The ring and pages have the resulting value, so recovery knows nothing of operands. Most values that are changed often are in a write
//! buffer. One that is on flash is read by the driver next to the core, and handed in with its place: it counts if the record is still there.

use crate::command::{Body, Condition, Expires, Op, StageError, refused_by};
use crate::compression::unpacked_bytes;
use crate::core::Core;
use crate::error::Error;
use crate::layout::Door;
use crate::packing::values::PackedValue;
use crate::reader::Buffered;
use kaml_flash::ChunkAddr;
use kaml_index::{FullKey, Key, Slot};
use std::borrow::Cow;
use std::collections::HashMap;

/// A change of a counter: 8 bytes, a signed number of 64 bits, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// Adds a number. A key that does not exist counts as 0. A sum that does not fit is refused.
    Add(i64),
    /// The larger of the counter and this number, which is the result if the key does not exist.
    Max(i64),
    /// The smaller of the counter and this number, which is the result if the key does not exist.
    Min(i64),
}

impl Operand {
    /// The counter afterwards; nothing if that does not fit.
    pub fn apply(self, counter: Option<i64>) -> Option<i64> {
        match (self, counter) {
            (Operand::Add(number), counter) => counter.unwrap_or(0).checked_add(number),
            (Operand::Max(number), Some(counter)) => Some(counter.max(number)),
            (Operand::Min(number), Some(counter)) => Some(counter.min(number)),
            (Operand::Max(number) | Operand::Min(number), None) => Some(number),
        }
    }
}

/// What a batch has besides operations that need no present value.
#[derive(Clone, Copy, Debug)]
pub struct Merge<'a> {
    /// How many operations of the batch come before it.
    pub at: usize,
    /// The namespace, of records without versions.
    pub namespace: u32,
    /// The key.
    pub key: FullKey<'a>,
    /// What happens to it.
    pub step: MergeStep<'a>,
    /// When the record expires afterwards. A record that exists keeps its time with [`Expires::Default`].
    pub expires: Expires,
}

/// A step of a [`Merge`].
#[derive(Clone, Copy, Debug)]
pub enum MergeStep<'a> {
    /// Changes a counter, after the operations that come before it.
    Apply(Operand),
    /// Refuses the batch unless the key had this value before it; nothing: unless it did not exist.
    Expect(Option<&'a [u8]>),
}

/// The value of a record on flash, which a driver has read. It holds the block until the batch is staged.
#[derive(Clone, Copy, Debug)]
pub struct Base<'a> {
    /// For which merge.
    pub merge: usize,
    /// Where it was found.
    pub at: ChunkAddr,
    /// The value.
    pub value: &'a [u8],
}

/// A batch that was staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The frame that carries it, as of [`Core::stage`].
    pub frame: u64,
    /// The counters after each operand, in the order of the operands.
    pub values: Vec<i64>,
}

/// Why a batch was not staged.
#[derive(Debug, PartialEq, Eq)]
pub enum MergeError {
    /// As other batches.
    Stage(StageError),
    /// The value of this merge is on flash: it is to be read, and handed in as a [`Base`].
    NeedValue(usize),
}

impl From<StageError> for MergeError {
    fn from(error: StageError) -> Self {
        MergeError::Stage(error)
    }
}

impl From<Error> for MergeError {
    fn from(error: Error) -> Self {
        MergeError::Stage(error.into())
    }
}

/// Merges of a batch up to which each looks through the uncommitted records by itself.
const MERGES_LOOKED_UP: usize = 8;

/// What a key has.
enum Content<'a> {
    Absent,
    Bytes(Cow<'a, [u8]>),
    Counter(i64),
    /// A value that is in its pages before it is committed, or that the batch has compressed: no counter is so long.
    Large(u64),
    /// A value that is compressed in a write buffer.
    Packed(PackedValue),
}

/// A key as of what is committed or staged.
struct Present<'a> {
    content: Content<'a>,
    /// 0 for never.
    expires: u64,
    /// The frame of the uncommitted record that decides it.
    frame: Option<u64>,
}

/// The newest uncommitted record of a key: its frame, its place, when it expires.
type Newest = (u64, Option<Slot>, u64);

impl Core {
    /// As [`Core::stage`], of a batch with operands and expectations. `bases` are values that were requested before.
    ///
    /// # Errors
    /// [`MergeError::NeedValue`], or those of [`Core::stage`]; [`Error::NotACounter`], [`Error::CounterOverflow`], [`Error::ValueDiffers`].
    pub fn stage_merging(
        &mut self,
        ops: &[Op<'_>],
        merges: &[Merge<'_>],
        bases: &[Base<'_>],
    ) -> Result<Merged, MergeError> {
        self.writable()?;
        let counters = self.judge_merges(ops, merges, bases)?;
        let results: Vec<([u8; 8], u32, Expires)> = counters
            .iter()
            .map(|(counter, expires)| {
                let bytes = counter.to_le_bytes();
                (bytes, kaml_crc::crc32c(&bytes), *expires)
            })
            .collect();
        let applied = merges.iter().filter(|merge| matches!(merge.step, MergeStep::Apply(_)));
        let mut applied = applied.zip(&results).peekable();
        let mut all = Vec::with_capacity(ops.len() + results.len());
        for at in 0..=ops.len() {
            while let Some((merge, (bytes, crc32c, expires))) =
                applied.next_if(|(merge, _)| merge.at <= at || at == ops.len())
            {
                all.push(Op {
                    namespace: merge.namespace,
                    key: merge.key,
                    body: Body::Value { value: bytes, crc32c: *crc32c },
                    condition: Condition::Always,
                    expires: *expires,
                });
            }
            all.extend(ops.get(at));
        }
        let frame = self.stage(&all)?;
        Ok(Merged { frame, values: counters.into_iter().map(|(counter, _)| counter).collect() })
    }

    /// Judges expectations, and returns the counter after each operand, with its time.
    fn judge_merges(
        &self,
        ops: &[Op<'_>],
        merges: &[Merge<'_>],
        bases: &[Base<'_>],
    ) -> Result<Vec<(i64, Expires)>, MergeError> {
        let newest = if merges.len() > MERGES_LOOKED_UP { self.newest_uncommitted() } else { None };
        // What the batch has done to keys so far, and when their records expire.
        let mut changed: HashMap<(u32, Key), (Content<'_>, Expires)> = HashMap::new();
        let mut passed = 0;
        let mut counters = Vec::new();
        for (number, merge) in merges.iter().enumerate() {
            for op in &ops[passed..merge.at.min(ops.len()).max(passed)] {
                changed.insert((op.namespace, *op.key.key()), (self.content_after(op), op.expires));
                passed += 1;
            }
            let (namespace, id) = (merge.namespace, (merge.namespace, *merge.key.key()));
            let key = || merge.key.to_buf();
            let present = || self.present(merge, number, newest.as_ref(), bases);
            match merge.step {
                MergeStep::Expect(expected) => {
                    let Present { content, frame, .. } = present()?;
                    let is_same = match (&content, expected) {
                        (Content::Absent, None) => true,
                        (Content::Bytes(bytes), Some(expected)) => **bytes == *expected,
                        // Most that differ have another length. What has the same one is decompressed under the lock.
                        (Content::Packed(packed), Some(expected)) => {
                            packed.value_bytes() == Some(expected.len() as u64) && packed.unpack()? == *expected
                        }
                        _ => false,
                    };
                    if !is_same {
                        let present = !matches!(content, Content::Absent);
                        let differs = Error::ValueDiffers { namespace, key: key(), present };
                        return Err(refused_by(frame, differs).into());
                    }
                }
                MergeStep::Apply(operand) => {
                    self.known_space(namespace)?.check_expiry(namespace, merge.expires)?;
                    let (content, expires, frame) = match changed.remove(&id) {
                        Some((content, expires)) => (content, expires, None),
                        None => {
                            let Present { content, expires, frame } = present()?;
                            let expires = match (&content, expires) {
                                (Content::Absent, _) => Expires::Default,
                                (_, 0) => Expires::Never,
                                (_, time) => Expires::At(time),
                            };
                            (content, expires, frame)
                        }
                    };
                    let counter = match content {
                        Content::Absent => None,
                        Content::Counter(counter) => Some(counter),
                        Content::Bytes(bytes) => {
                            let number = bytes.first_chunk().filter(|_| bytes.len() == size_of::<i64>());
                            let bytes = bytes.len() as u64;
                            let wrong = || refused_by(frame, Error::NotACounter { namespace, key: key(), bytes });
                            Some(i64::from_le_bytes(*number.ok_or_else(wrong)?))
                        }
                        Content::Packed(packed) => {
                            let bytes = packed.value_bytes().unwrap_or(0);
                            return Err(refused_by(frame, Error::NotACounter { namespace, key: key(), bytes }).into());
                        }
                        Content::Large(bytes) => {
                            return Err(refused_by(frame, Error::NotACounter { namespace, key: key(), bytes }).into());
                        }
                    };
                    let after = operand.apply(counter);
                    let overflow = || refused_by(frame, Error::CounterOverflow { namespace, key: key() });
                    let after = after.ok_or_else(overflow)?;
                    let expires = if merge.expires == Expires::Default { expires } else { merge.expires };
                    changed.insert(id, (Content::Counter(after), expires));
                    counters.push((after, expires));
                }
            }
        }
        Ok(counters)
    }

    fn content_after<'a>(&self, op: &Op<'a>) -> Content<'a> {
        match op.body {
            Body::Value { value, .. } => Content::Bytes(Cow::Borrowed(value)),
            Body::Packed { value, .. } => Content::Large(unpacked_bytes(value).unwrap_or(0)),
            Body::Placed { ticket } => {
                Content::Large(self.tickets.placed.get(&ticket).map_or(0, |placed| placed.value_bytes))
            }
            Body::Delete => Content::Absent,
        }
    }

    /// The newest uncommitted record of each key. Nothing if some are about ranges.
    fn newest_uncommitted(&self) -> Option<HashMap<(u32, Key), Newest>> {
        let records = self.log.ring.uncommitted_in_frames().map(|(frame, staged)| {
            let to = staged.to.filter(|_| self.exists_after(staged));
            staged.range.is_none().then_some(((staged.namespace, *staged.key.key()), (frame, to, staged.expires)))
        });
        records.collect()
    }

    /// What a key has before the batch.
    fn present<'a>(
        &self,
        merge: &Merge<'_>,
        number: usize,
        newest: Option<&HashMap<(u32, Key), Newest>>,
        bases: &'a [Base<'_>],
    ) -> Result<Present<'a>, MergeError> {
        let (namespace, key) = (merge.namespace, &merge.key);
        let space = self.known_space(namespace)?;
        space.layout.admit(namespace, Door::Records)?;
        space.layout.check_full_key(key).map_err(Error::Key)?;
        space.shared.note_use();
        let Some(index) = &space.index else { return Err(StageError::NeedIndex(namespace).into()) };
        let staged = match newest {
            Some(newest) => newest.get(&(namespace, *key.key())).copied(),
            None => {
                let mut records = self.log.ring.uncommitted_in_frames().rev();
                let found = records.find(|(_, staged)| staged.is_about(namespace, key));
                found.map(|(frame, s)| (frame, s.to.filter(|_| self.exists_after(s)), s.expires))
            }
        };
        let (slot, expires, frame) = match staged {
            Some((frame, slot, expires)) => (slot, expires, Some(frame)),
            None if space.is_due(key.key(), || self.clock.now_ms()) => (None, 0, None),
            None => (index.get(&space.layout.indexed(*key)), space.expiries.of(key.key()), None),
        };
        let Some(slot) = slot else { return Ok(Present { content: Content::Absent, expires: 0, frame }) };
        let content = match self.read_slot(namespace, key, slot)? {
            Buffered::Value(bytes) => Content::Bytes(Cow::Owned(bytes)),
            Buffered::Packed(packed) => Content::Packed(packed),
            Buffered::Absent => Content::Absent,
            Buffered::Programmed(_) => {
                let base = bases.iter().find(|base| base.merge == number && base.at.0 == slot.at);
                match (base, frame) {
                    (Some(base), _) => Content::Bytes(Cow::Borrowed(base.value)),
                    // Nobody finds it before it is committed, which is soon.
                    (None, Some(_)) => return Err(StageError::Busy.into()),
                    (None, None) => return Err(MergeError::NeedValue(number)),
                }
            }
        };
        Ok(Present { content, expires, frame })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   operands give what their names promise, at both ends of the range, with and without a counter.
    /// Method: each operand with small and extreme numbers.
    #[test]
    fn operands_are_applied() {
        use Operand::{Add, Max, Min};
        for (operand, counter, after) in [
            (Add(5), None, Some(5)),
            (Add(-5), Some(3), Some(-2)),
            (Add(1), Some(i64::MAX), None),
            (Add(-1), Some(i64::MIN), None),
            (Add(i64::MIN), Some(i64::MAX), Some(-1)),
            (Max(5), None, Some(5)),
            (Max(5), Some(7), Some(7)),
            (Max(5), Some(-7), Some(5)),
            (Min(5), None, Some(5)),
            (Min(5), Some(7), Some(5)),
            (Min(i64::MIN), Some(7), Some(i64::MIN)),
        ] {
            assert_eq!(operand.apply(counter), after, "{operand:?} of {counter:?}");
        }
    }
}
