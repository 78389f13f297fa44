//! Reads on the caller's thread.
//!
//! Lives here:       finding a record, reading it from flash, reading again what does not match.
//! Lives elsewhere:  where a record is (`kaml_device::Reader`), reads of many records at once (`gather`), event loops (`queue`).
//! Implements:       docs/ARCHITECTURE.md "The life of a Get".

use super::Shared;
use crate::NamespaceId;
use crate::bytes::{Bytes, COPIED_BYTES_MAX};
use crate::error::Error;
use crate::sync::Instant;
use kaml_device::{
    Buffered, Error as CommandError, FindError, FlashRead, Found, FoundValue, FullKey, PackedValue, SpaceReader,
    read_whole,
};
use kaml_flash::{AlignedBuf, ChunkAddr, Io};
use std::cell::RefCell;
use std::sync::atomic::Ordering;

/// What a key was found to be.
pub(crate) enum Lookup {
    /// Not there.
    Absent,
    /// Copied out of a write buffer.
    Value,
    /// Copied out of a write buffer, and to be decompressed.
    Packed(PackedValue),
    /// One read away.
    Read(FlashRead),
}

impl Shared {
    /// Reads a value into `out`; false if the key does not exist.
    pub(crate) fn get(&self, namespace: NamespaceId, key: &FullKey<'_>, out: &mut Vec<u8>) -> Result<bool, Error> {
        let start = Instant::now();
        let answer = self.find(namespace, key, out).and_then(|found| match found {
            Lookup::Absent => Ok(false),
            Lookup::Value => Ok(true),
            Lookup::Packed(packed) => {
                *out = packed.unpack()?;
                Ok(true)
            }
            Lookup::Read(read) => self.read(&read, out).map(|()| true),
        });
        self.get_latency.record_since(start);
        answer
    }

    /// Reads a value, a large one without a copy.
    pub(crate) fn get_bytes(
        &self,
        namespace: NamespaceId,
        key: &FullKey<'_>,
        spent: Bytes,
    ) -> Result<Option<Bytes>, Error> {
        let start = Instant::now();
        let (mut out, buf) = spent.into_memory();
        let answer = self.find(namespace, key, &mut out).and_then(|found| match found {
            Lookup::Absent => Ok(None),
            Lookup::Value => Ok(Some(out.into())),
            Lookup::Packed(packed) => Ok(Some(packed.unpack()?.into())),
            Lookup::Read(read) if read.bytes > COPIED_BYTES_MAX => self.read_in_place(&read, buf).map(Some),
            Lookup::Read(read) => self.read(&read, &mut out).map(|()| Some(out.into())),
        });
        self.get_latency.record_since(start);
        answer
    }

    /// Reads flash on the caller's thread into memory that the value keeps.
    fn read_in_place(&self, read: &FlashRead, buf: Option<AlignedBuf>) -> Result<Bytes, Error> {
        let fits = buf.filter(|buf| buf.capacity() >= read.bytes);
        // Room for what the medium reads around it.
        let mut buf = fits.unwrap_or_else(|| AlignedBuf::for_transfers(read.bytes + 2 * AlignedBuf::ALIGN));
        buf.set_len(read.bytes);
        let mut io = Io::Read { at: read.at, into: buf };
        let found = self.read_into(&mut io, |bytes| read.value(bytes))?;
        let Io::Read { into, .. } = io else { unreachable!("still a read") };
        Ok(match found {
            FoundValue::In(range) => Bytes::of_read(into, range),
            FoundValue::Unpacked(value) => value.into(),
        })
    }

    /// Looks a key up, and returns it at once if its record is in a write buffer.
    pub(crate) fn find(&self, namespace: NamespaceId, key: &FullKey<'_>, out: &mut Vec<u8>) -> Result<Lookup, Error> {
        let records = match self.reader.of(namespace).map_err(|error| self.refused(error))? {
            SpaceReader::Records(records) => records,
            SpaceReader::Blocks => return Err(Error::HoldsBlocks(namespace)),
            SpaceReader::Versions(versions) => {
                return Ok(match self.find_version(namespace, versions, key.key())? {
                    Some(value) => {
                        *out = value;
                        Lookup::Value
                    }
                    None => Lookup::Absent,
                });
            }
        };
        self.look(namespace, || {
            let found = match records.find(key) {
                Ok(Found::Absent) => return Ok(Lookup::Absent),
                Ok(Found::Flash(read)) => return Ok(Lookup::Read(read)),
                Ok(Found::Buffered) => self.lock().read_buffered(namespace, key)?,
                Err(FindError::NeedIndex) => self.find_by_image(namespace, key).ok_or(FindError::NeedIndex)?,
                Err(refused) => return Err(refused),
            };
            Ok(match found {
                Buffered::Absent => Lookup::Absent,
                Buffered::Value(value) => {
                    *out = value;
                    Lookup::Value
                }
                Buffered::Packed(packed) => Lookup::Packed(packed),
                Buffered::Programmed(read) => Lookup::Read(read),
            })
        })
    }

    pub(crate) fn read(&self, read: &FlashRead, out: &mut Vec<u8>) -> Result<(), Error> {
        self.read_with(read.at, read.bytes, |bytes| read.copy_value(bytes, out))
    }

    /// Reads flash on the caller's thread and hands the bytes on.
    pub(crate) fn read_with(
        &self,
        at: ChunkAddr,
        bytes: usize,
        take: impl FnMut(&[u8]) -> Result<(), CommandError>,
    ) -> Result<(), Error> {
        thread_local! {
            static SCRATCH: RefCell<AlignedBuf> = RefCell::new(AlignedBuf::zeroed(16 << 10));
        }
        // A thread that ends has no scratch any more.
        let kept = SCRATCH.try_with(|scratch| scratch.replace(AlignedBuf::zeroed(0)));
        let mut buf =
            kept.ok().filter(|buf| buf.capacity() >= bytes).unwrap_or_else(|| AlignedBuf::for_transfers(bytes));
        buf.set_len(bytes);
        let mut io = Io::Read { at, into: buf };
        let taken = self.read_into(&mut io, take);
        let Io::Read { into, .. } = io else { unreachable!("still a read") };
        let _ = SCRATCH.try_with(|scratch| scratch.replace(into));
        taken
    }

    /// Executes a read, again if `take` finds that something else came than was stored.
    fn read_into<T>(&self, io: &mut Io, mut take: impl FnMut(&[u8]) -> Result<T, CommandError>) -> Result<T, Error> {
        read_whole(|| {
            let result = self.medium.execute(io);
            let Io::Read { into, .. } = &*io else { unreachable!("still a read") };
            self.count_reads(1, into.len() as u64);
            result.map(|()| take(into)).map_err(Error::from)
        })
    }

    /// What `take` makes of a read that was executed; if something else came than was stored, it is executed again on the
    /// caller's thread.
    pub(crate) fn take_read<T>(
        &self,
        io: &mut Io,
        mut take: impl FnMut(&[u8]) -> Result<T, CommandError>,
    ) -> Result<T, Error> {
        let Io::Read { into, .. } = &*io else { unreachable!("a bit marks ids of reads") };
        take(into).or_else(|_| self.read_into(io, take))
    }

    pub(crate) fn count_reads(&self, count: u64, bytes: u64) {
        self.read_count.fetch_add(count, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
