//! Gets of an event loop.
//!
//! Lives here:       starting and completing them, Gets that wait for an index or for a place among the reads.
//! Lives elsewhere:  the loop (`queue`), memory that is used again (`spare`), reads of blocking callers (`driver`).

use super::ring_writes::READ_BIT;
use super::spare::HeldGet;
use super::{Answer, AsyncQueue};
use crate::driver::Lookup;
use crate::error::Error;
use crate::sync::Instant;
use crate::{Bytes, NamespaceId};
use kaml_device::{FlashRead, FoundValue, KeptKey, KeyRef};
use kaml_flash::{Completion, Io};

pub(super) struct WaitingGet {
    pub(super) token: u64,
    pub(super) read: FlashRead,
    pub(super) start: Instant,
    pub(super) spare_bytes: usize,
}

impl AsyncQueue {
    pub(super) fn gets_in_flight(&self) -> usize {
        self.gets.len() - self.free_places.len()
    }

    pub(super) fn reads_in_flight(&self) -> usize {
        self.gets_in_flight() + self.blocks.reads_in_flight()
    }

    /// Starts a Get, or holds it while as many are being read as the queue's depth. An error is the command's answer.
    ///
    /// # Errors
    /// As [`crate::Device::get`].
    pub fn get<'k>(&mut self, token: u64, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<(), Error> {
        self.get_with_room(token, namespace, key, usize::MAX)
    }

    /// Starts a Get whose caller has memory for `room` bytes. The answer has the whole value nevertheless: what it takes beyond
    /// that is limited by [`AsyncQueue::set_spare_bytes_max`], and the Get waits for it.
    ///
    /// # Errors
    /// As [`crate::Device::get`].
    pub fn get_with_room<'k>(
        &mut self,
        token: u64,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        room: usize,
    ) -> Result<(), Error> {
        let key = key.into();
        let key = KeptKey::from(&self.shared.key(key)?);
        let get = HeldGet { token, namespace, key, room, start: Instant::now() };
        if !self.has_place() {
            self.behind.push_back(get);
        } else if !self.start_get(&get)? {
            self.spare.held.push_back(get);
        }
        Ok(())
    }

    /// Returns false if there is no memory for it now.
    #[inline]
    fn start_get(&mut self, get: &HeldGet) -> Result<bool, Error> {
        let mut value = Vec::new();
        let found = self.shared.find(get.namespace, &get.key.full(), &mut value)?;
        let bytes = match &found {
            Lookup::Absent => 0,
            Lookup::Value => value.len(),
            Lookup::Packed(packed) => packed.value_bytes().unwrap_or(0) as usize,
            Lookup::Read(read) => read.bytes,
        };
        let Some(spare_bytes) = self.spare.take(bytes, get.room) else { return Ok(false) };
        let &HeldGet { token, start, .. } = get;
        let result = match found {
            Lookup::Absent => Ok(None),
            Lookup::Value => {
                self.spare.answered(spare_bytes);
                Ok(Some(value.into()))
            }
            Lookup::Packed(packed) => {
                self.spare.answered(spare_bytes);
                packed.unpack().map(|value| Some(value.into())).map_err(Error::from)
            }
            Lookup::Read(read) => {
                self.start_read(WaitingGet { token, read, start, spare_bytes });
                return Ok(true);
            }
        };
        self.tally.get_ns.push(start.elapsed().as_nanos() as u64);
        self.ready.push(Answer { token, result });
        Ok(true)
    }

    #[inline]
    pub(super) fn start_read(&mut self, get: WaitingGet) {
        let (at, bytes) = (get.read.at, get.read.bytes);
        let buf = self.buffers.take(bytes);
        let place = self.free_places.pop().unwrap_or_else(|| {
            self.gets.push(None);
            self.gets.len() - 1
        });
        self.tally.read_count += 1;
        self.tally.read_bytes += bytes as u64;
        self.operations().io.submit(place as u64 | READ_BIT, Io::Read { at, into: buf });
        self.gets[place] = Some(get);
    }

    /// Limits the memory that Gets take beyond what their callers have room for, until the poll after the one that returned
    /// them. One value may always be read, however large; without a call there is no limit.
    pub fn set_spare_bytes_max(&mut self, bytes: usize) {
        self.spare.bytes_max = bytes;
    }

    /// Memory that Gets take beyond what their callers have room for, until they complete.
    pub fn spare_bytes(&self) -> usize {
        self.spare.taken
    }

    /// Starts Gets that waited for memory: the caller has handled what the last poll returned.
    pub(super) fn start_held(&mut self) {
        self.spare.release();
        let mut held = std::mem::take(&mut self.spare.held);
        while self.has_place()
            && let Some(get) = held.pop_front()
        {
            match self.start_get(&get) {
                Ok(true) => {}
                Ok(false) => {
                    held.push_front(get);
                    break;
                }
                Err(error) => self.ready.push(Answer { token: get.token, result: Err(error) }),
            }
        }
        self.spare.held = held;
    }

    /// Starts Gets that waited for others to be read.
    pub(super) fn start_behind(&mut self) {
        while self.has_place()
            && let Some(get) = self.behind.pop_front()
        {
            match self.start_get(&get) {
                Ok(true) => {}
                Ok(false) => self.spare.held.push_back(get),
                Err(error) => self.ready.push(Answer { token: get.token, result: Err(error) }),
            }
        }
    }

    /// Releases the memory of a large value that completed, for the next ones.
    pub fn recycle(&mut self, value: Bytes) {
        if let Some(buf) = value.into_read() {
            self.buffers.give(buf);
        }
    }

    pub(super) fn answer_get(&mut self, completion: Completion, now: Instant) {
        let Completion { id, mut io, result } = completion;
        let place = (id & !READ_BIT) as usize;
        let WaitingGet { token, read, start, spare_bytes } =
            self.gets[place].take().expect("a read completes one time");
        self.free_places.push(place);
        self.spare.answered(spare_bytes);
        let found =
            result.map_err(Error::from).and_then(|()| self.shared.take_read(&mut io, |bytes| read.value(bytes)));
        let Io::Read { into, .. } = io else { unreachable!("a bit marks ids of reads") };
        let value = match found {
            Ok(FoundValue::In(range)) => Ok(self.buffers.value(into, range)),
            Ok(FoundValue::Unpacked(value)) => {
                self.spare.unpacked(value.len(), into.len());
                self.buffers.give(into);
                Ok(value.into())
            }
            Err(error) => {
                self.buffers.give(into);
                Err(error)
            }
        };
        self.tally.get_ns.push((now - start).as_nanos() as u64);
        self.ready.push(Answer { token, result: value.map(Some) });
    }
}
