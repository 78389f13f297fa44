//! A version as it is in the page buffer and in the pages of a segment.
//!
//! Lives here:       the header, its checks, walking the records of a page.
//! Lives elsewhere:  which page a record goes to (`placement`), the commit ring's own records (`kaml-device`).
//! Implements:       paper:Muninn 4.1-4.2; docs/versioned.md "Formats".
//!
//! Records of a page follow each other without gaps, older ones of a key first; zeroes follow the last one.

use crate::Error;
use kaml_index::Key;
use std::ops::Range;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Stands before the key, which precedes the payload.
///
/// | offset | bytes | field          | meaning                                                                  |
/// |-------:|------:|----------------|--------------------------------------------------------------------------|
/// |      0 |     4 | `header_crc`   | CRC32C over the remainder of the header and the key                           |
/// |      4 |     4 | `value_crc`    | CRC32C over the value                                                    |
/// |      8 |     4 | `value_len`    | bytes of the value                                                       |
/// |     12 |     2 | `ordinal`      | how many versions of this key in this segment are older; set when sealed |
/// |     14 |     1 | `key_len`      | 1 to 16                                                                  |
/// |     15 |     1 | `kind`         | 1 value, 2 tombstone, 3 extent, 4 large; 0: no record here               |
/// |     16 |     8 | `sequence`     | commit order in the device                                               |
/// |     24 |     8 | `time_ns`      | when it was put: nanoseconds since 1970                                  |
/// |     32 |     4 | `user_version` | the user version it was put in                                           |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    header_crc: U32,
    value_crc: U32,
    value_len: U32,
    ordinal: U16,
    key_len: u8,
    kind: u8,
    sequence: U64,
    time_ns: U64,
    user_version: U32,
}

/// Bytes of the header, without the key.
pub const HEADER_BYTES: usize = 36;
/// The payload of an extent record: where in the segment its value begins, in bytes.
const EXTENT_BYTES: usize = 4;
/// The payload of the record of a large value: the value's number, then the CRC32C of that.
const LARGE_BYTES: usize = 12;

const _: () = {
    assert!(size_of::<Header>() == HEADER_BYTES);
    assert!(std::mem::offset_of!(Header, ordinal) == 12 && std::mem::offset_of!(Header, sequence) == 16);
};

/// What a version is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A value.
    Value,
    /// The key was deleted.
    Tombstone,
    /// A value too long for a page; it is at this byte of its segment, after the hashed pages.
    Extent(u32),
    /// A value that is stored outside of segments, as the record of this number.
    Large(u64),
}

/// What is known of a version without its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    /// The key.
    pub key: Key,
    /// Value, tombstone, extent or large value.
    pub kind: Kind,
    /// Bytes of the value.
    pub value_len: u32,
    /// CRC32C over the value.
    pub value_crc: u32,
    /// Commit order in the device; no two versions have the same, and a key's later version has a larger one.
    pub sequence: u64,
    /// When it was put: nanoseconds since 1970, as the caller reported.
    pub time_ns: u64,
    /// The user version it was put in.
    pub user_version: u32,
    /// How many older versions of this key are in the same segment.
    pub ordinal: u16,
}

impl Version {
    /// Bytes that are in a page for it.
    pub fn stored_bytes(&self) -> usize {
        HEADER_BYTES + self.key.len() + self.payload_bytes()
    }

    fn payload_bytes(&self) -> usize {
        match self.kind {
            Kind::Value => self.value_len as usize,
            Kind::Tombstone => 0,
            Kind::Extent(_) => EXTENT_BYTES,
            Kind::Large(_) => LARGE_BYTES,
        }
    }

    /// Header and key, at the start of `into`; returns how many bytes.
    pub(crate) fn encode_head(&self, into: &mut [u8]) -> usize {
        let kind = match self.kind {
            Kind::Value => 1,
            Kind::Tombstone => 2,
            Kind::Extent(_) => 3,
            Kind::Large(_) => 4,
        };
        let header = Header {
            header_crc: U32::ZERO,
            value_crc: self.value_crc.into(),
            value_len: self.value_len.into(),
            ordinal: self.ordinal.into(),
            key_len: self.key.len() as u8,
            kind,
            sequence: self.sequence.into(),
            time_ns: self.time_ns.into(),
            user_version: self.user_version.into(),
        };
        let len = HEADER_BYTES + self.key.len();
        into[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        into[HEADER_BYTES..len].copy_from_slice(self.key.as_bytes());
        let crc = kaml_crc::crc32c(&into[4..len]);
        into[..4].copy_from_slice(&crc.to_le_bytes());
        len
    }

    /// Header, key and, for an extent or a large value, where its value is; returns how many bytes.
    pub(crate) fn encode(&self, into: &mut [u8]) -> usize {
        let len = self.encode_head(into);
        match self.kind {
            Kind::Value | Kind::Tombstone => len,
            Kind::Extent(at) => {
                into[len..len + EXTENT_BYTES].copy_from_slice(&at.to_le_bytes());
                len + EXTENT_BYTES
            }
            Kind::Large(number) => {
                into[len..len + LARGE_BYTES].copy_from_slice(&large_payload(number));
                len + LARGE_BYTES
            }
        }
    }

    /// The whole record, of a value, a tombstone or a large value; only the first has a `value` in it.
    pub fn record(&self, value: &[u8]) -> Box<[u8]> {
        let mut record = Vec::with_capacity(HEADER_BYTES + self.key.len() + value.len());
        let place = if matches!(self.kind, Kind::Large(_)) { LARGE_BYTES } else { 0 };
        record.resize(HEADER_BYTES + self.key.len() + place, 0);
        self.encode(&mut record);
        record.extend_from_slice(value);
        record.into()
    }

    /// The record at the start of `bytes` and its bytes; nothing where a page's records end.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Version, &[u8])>, Error> {
        let Ok((header, _)) = Header::read_from_prefix(bytes) else { return Ok(None) };
        if header.kind == 0 && header.header_crc.get() == 0 {
            return Ok(None);
        }
        let key_end = HEADER_BYTES + usize::from(header.key_len);
        let head = bytes.get(4..key_end).ok_or(Error::DamagedRecord("cut short"))?;
        if kaml_crc::crc32c(head) != header.header_crc.get() {
            return Err(Error::DamagedRecord("header checksum"));
        }
        let key = Key::new(&bytes[HEADER_BYTES..key_end]).map_err(|_| Error::DamagedRecord("key length"))?;
        let kind = match header.kind {
            1 => Kind::Value,
            2 => Kind::Tombstone,
            3 => {
                let at = bytes.get(key_end..key_end + EXTENT_BYTES).ok_or(Error::DamagedRecord("cut short"))?;
                Kind::Extent(u32::from_le_bytes(at.try_into().expect("four bytes")))
            }
            4 => {
                let payload = bytes.get(key_end..key_end + LARGE_BYTES).ok_or(Error::DamagedRecord("cut short"))?;
                let number = u64::from_le_bytes(*payload.first_chunk().expect("twelve bytes"));
                if payload != large_payload(number) {
                    return Err(Error::DamagedRecord("the number of a large value"));
                }
                Kind::Large(number)
            }
            _ => return Err(Error::DamagedRecord("unknown kind")),
        };
        let version = Version {
            key,
            kind,
            value_len: header.value_len.get(),
            value_crc: header.value_crc.get(),
            sequence: header.sequence.get(),
            time_ns: header.time_ns.get(),
            user_version: header.user_version.get(),
            ordinal: header.ordinal.get(),
        };
        let record = bytes.get(..version.stored_bytes()).ok_or(Error::DamagedRecord("cut short"))?;
        Ok(Some((version, record)))
    }

    /// The sequence of a record that is known to be whole.
    pub(crate) fn sequence_of(record: &[u8]) -> u64 {
        let at = std::mem::offset_of!(Header, sequence);
        u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes"))
    }

    /// The key of a record that is known to be whole.
    pub fn key_of(record: &[u8]) -> Key {
        let len = usize::from(record[std::mem::offset_of!(Header, key_len)]);
        Key::new(&record[HEADER_BYTES..HEADER_BYTES + len]).expect("a whole record")
    }

    /// The value in a record's bytes; nothing for tombstones, extents and large values. Checked against its checksum.
    ///
    /// # Errors
    /// [`Error::DamagedRecord`] if the checksum does not match.
    pub fn value<'a>(&self, record: &'a [u8]) -> Result<Option<&'a [u8]>, Error> {
        if self.kind != Kind::Value {
            return Ok(None);
        }
        let value = &record[HEADER_BYTES + self.key.len()..self.stored_bytes()];
        if kaml_crc::crc32c(value) != self.value_crc {
            return Err(Error::DamagedRecord("value checksum"));
        }
        Ok(Some(value))
    }
}

/// What follows the key of a large value. Nothing else shows whether the number is right before its value is read.
fn large_payload(number: u64) -> [u8; LARGE_BYTES] {
    let mut payload = [0; LARGE_BYTES];
    payload[..8].copy_from_slice(&number.to_le_bytes());
    payload[8..].copy_from_slice(&kaml_crc::crc32c(&number.to_le_bytes()).to_le_bytes());
    payload
}

/// The records of a page, in the order they are in.
pub fn records(page: &[u8]) -> impl Iterator<Item = Result<(Version, &[u8]), Error>> {
    let mut rest = page;
    std::iter::from_fn(move || match Version::decode(rest) {
        Ok(None) => None,
        Ok(Some((version, record))) => {
            rest = &rest[record.len()..];
            Some(Ok((version, record)))
        }
        Err(error) => {
            rest = &[];
            Some(Err(error))
        }
    })
}

/// As [`records`], of a page of a segment whose versions have these sequences. Others show that the page contains something else.
pub(crate) fn records_among<'a>(
    page: &'a [u8],
    sequences: &Range<u64>,
) -> impl Iterator<Item = Result<(Version, &'a [u8]), Error>> {
    records(page).map(|record| match record {
        Ok((version, _)) if !sequences.contains(&version.sequence) => Err(Error::DamagedRecord("of another segment")),
        record => record,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(kind: Kind) -> Version {
        let value_crc = kaml_crc::crc32c(b"nine");
        let key = Key::new(b"owl").expect("short");
        let (sequence, time_ns) = (0x0102_0304_0506, 0x1112_1314_1516_1718);
        Version { key, kind, value_len: 4, value_crc, sequence, time_ns, user_version: 7, ordinal: 2 }
    }

    /// Goal:   segments sealed by one build are read by the next.
    /// Method: freeze the bytes of a record.
    #[test]
    fn golden_record() {
        let hex: String = version(Kind::Value).record(b"nine").iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = "c559f13ebb96a49d04000000020003010605040302010000\
                        1817161514131211070000006f776c6e696e65";
        assert_eq!(hex, expected);
        let large = version(Kind::Large(0x2122_2324_2526_2728)).record(&[]);
        let hex: String = large.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "917c5966bb96a49d040000000200030406050403020100001817161514131211070000006f776c2827262524232221a1c5a9e1"
        );
    }

    /// Goal:   records of every kind come back as they were, and none that is damaged does.
    /// Method: a page of one each; cut it everywhere; flip each bit, but of the extent's place, which the value's
    ///         checksum guards.
    #[test]
    fn whole_records_come_back_and_others_are_refused() {
        let kinds = [Kind::Value, Kind::Tombstone, Kind::Extent(77), Kind::Large(7 << 40)];
        let mut page = Vec::new();
        for kind in kinds {
            let mut head = vec![0; 80];
            let len = version(kind).encode(&mut head);
            page.extend_from_slice(&head[..len]);
            page.extend_from_slice(if kind == Kind::Value { b"nine" } else { b"" });
        }
        let len = page.len();
        page.resize(len + 100, 0);
        let back: Vec<Version> = records(&page).map(|record| record.expect("whole").0).collect();
        assert_eq!(back, kinds.map(version));
        let first = version(Kind::Value).stored_bytes();
        for cut in HEADER_BYTES..first {
            assert!(Version::decode(&page[..cut]).is_err(), "{cut} bytes");
        }
        for bit in 0..first * 8 {
            let mut damaged = page.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let value = Version::decode(&damaged).map(|found| found.map(|(version, record)| version.value(record)));
            assert!(!matches!(value, Ok(Some(Ok(Some(b"nine"))))), "bit {bit}");
        }
    }
}
