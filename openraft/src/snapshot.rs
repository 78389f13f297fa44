//! The file of a snapshot.
//!
//! Lives here:       its bytes, written and read record by record.
//! Lives elsewhere:  when there is one (`state`).
//!
//! All numbers are little-endian. `KRS1`, then the length (u32) and the MessagePack of openraft's `SnapshotMeta`, then for each record the lengths of key and value (u32 each)
//! and both, then two zeros in place of lengths, the number of records (u64), and the CRC-32C of all before it (u32).

use kaml::{Error, KeyBuf};
use openraft::{RaftTypeConfig, SnapshotMeta};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

/// What a snapshot has.
pub(crate) type Meta<C> = SnapshotMeta<<C as RaftTypeConfig>::NodeId, <C as RaftTypeConfig>::Node>;

const MAGIC: [u8; 4] = *b"KRS1";
const KEY_BYTES_MAX: u32 = 1024;
/// The longest value that any device takes, and more than any metadata.
const VALUE_BYTES_MAX: u32 = 1 << 30;
const BUFFER_BYTES: usize = 256 << 10;

/// Passes bytes on and computes their checksum.
struct Summed<T> {
    inner: T,
    crc: u32,
}

impl<T> Summed<T> {
    fn new(inner: T) -> Summed<T> {
        Summed { inner, crc: 0 }
    }
}

impl<T: Write> Write for Summed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.crc = kaml_crc::crc32c_append(self.crc, &bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Summed<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(bytes)?;
        self.crc = kaml_crc::crc32c_append(self.crc, &bytes[..count]);
        Ok(count)
    }
}

/// Writes a snapshot; it is durable when this returns.
pub(crate) fn write<C: RaftTypeConfig>(
    path: &Path,
    meta: &Meta<C>,
    records: impl Iterator<Item = Result<(KeyBuf, Vec<u8>), Error>>,
) -> io::Result<()> {
    let mut out = Summed::new(BufWriter::with_capacity(BUFFER_BYTES, File::create(path)?));
    let meta = crate::encode(meta)?;
    out.write_all(&MAGIC)?;
    out.write_all(&(meta.len() as u32).to_le_bytes())?;
    out.write_all(&meta)?;
    let mut count = 0u64;
    for record in records {
        let (key, value) = record.map_err(io::Error::other)?;
        out.write_all(&(key.as_bytes().len() as u32).to_le_bytes())?;
        out.write_all(&(value.len() as u32).to_le_bytes())?;
        out.write_all(key.as_bytes())?;
        out.write_all(&value)?;
        count += 1;
    }
    out.write_all(&[0; 8])?;
    out.write_all(&count.to_le_bytes())?;
    let sum = out.crc;
    out.inner.write_all(&sum.to_le_bytes())?;
    out.inner.into_inner().map_err(|error| error.into_error())?.sync_all()
}

/// Reads a snapshot: what it has, and its records. Whether it is whole is known at the end, so the last item may be an error.
pub(crate) fn read<C: RaftTypeConfig>(file: File) -> io::Result<(Meta<C>, Records)> {
    let mut from = Summed::new(BufReader::with_capacity(BUFFER_BYTES, file));
    if bytes_of(&mut from, 4)? != MAGIC {
        return Err(damaged("it does not begin with KRS1"));
    }
    let length = number(&mut from)?;
    let meta = crate::decode("its metadata", &bytes_of(&mut from, checked(length, VALUE_BYTES_MAX)?)?)?;
    Ok((meta, Records { from, count: 0, is_done: false }))
}

/// The records of a file, in the order of their keys.
pub(crate) struct Records {
    from: Summed<BufReader<File>>,
    count: u64,
    is_done: bool,
}

impl Records {
    fn step(&mut self) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
        let lengths = (number(&mut self.from)?, number(&mut self.from)?);
        if lengths == (0, 0) {
            let count = u64::from_le_bytes(bytes_of(&mut self.from, 8)?.try_into().expect("8 bytes"));
            let sum = self.from.crc;
            let stored = bytes_of(&mut self.from.inner, 4)?;
            if stored != sum.to_le_bytes() || count != self.count {
                return Err(damaged("its checksum or its number of records is wrong"));
            }
            return Ok(None);
        }
        let key = bytes_of(&mut self.from, checked(lengths.0, KEY_BYTES_MAX)?)?;
        let value = bytes_of(&mut self.from, checked(lengths.1, VALUE_BYTES_MAX)?)?;
        self.count += 1;
        Ok(Some((key, value)))
    }
}

impl Iterator for Records {
    type Item = io::Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let step = self.step();
        self.is_done = !matches!(step, Ok(Some(_)));
        step.transpose()
    }
}

fn number(from: &mut impl Read) -> io::Result<u32> {
    Ok(u32::from_le_bytes(bytes_of(from, 4)?.try_into().expect("4 bytes")))
}

fn checked(length: u32, max: u32) -> io::Result<u64> {
    if length <= max { Ok(length.into()) } else { Err(damaged("a length in it is impossible")) }
}

/// So many bytes; memory is taken as they come.
fn bytes_of(from: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length { Ok(bytes) } else { Err(damaged("it ends early")) }
}

fn damaged(how: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the snapshot is damaged: {how}; a new one has to be built"))
}
