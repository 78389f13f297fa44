//! The bytes of a record: what is written, and whether what was read is that.
//!
//! Lives here:       fields that show whose they are and which write they come from.
//!
//! A field begins with the number of its record and its version (8 bytes each, little-endian, as much as fits); filler
//! follows that does not compress and that both determine. Version 0 is that of the load; others name the thread and
//! its count, so no two writes have the same. Fields follow each other, with their length (4 bytes) before them
//! where lengths differ.

use super::settings::{FieldLengths, Settings};
use crate::keys::{Rng, Zipf};

/// Filler is cut from this many random bytes: few enough for a processor's cache.
const POOL_BYTES: usize = 256 << 10;
/// Record and version.
const HEADER_BYTES: usize = 16;
/// Of a field's length.
const LENGTH_BYTES: usize = 4;
/// Field lengths are zipfian with this.
const THETA: f64 = 0.99;

/// Makes and checks records.
#[derive(Clone)]
pub(super) struct Records {
    field_count: usize,
    length: usize,
    lengths: Option<Varying>,
    pool: std::sync::Arc<Vec<u8>>,
}

#[derive(Clone)]
struct Varying {
    min: usize,
    zipf: Option<Zipf>,
    rng: Rng,
}

impl Records {
    pub(super) fn new(settings: &Settings) -> Records {
        let min = settings.field_length_min;
        let span = (settings.field_length - min.min(settings.field_length)) as u64 + 1;
        let varying = |zipf| Some(Varying { min, zipf, rng: Rng::new(0) });
        let lengths = match settings.lengths {
            FieldLengths::Constant => None,
            FieldLengths::Uniform => varying(None),
            FieldLengths::Zipfian => varying(Some(Zipf::new(span, THETA))),
        };
        let mut rng = Rng::new(POOL_BYTES as u64);
        let pool = (0..POOL_BYTES / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect::<Vec<u8>>();
        Records { field_count: settings.field_count, length: settings.field_length, lengths, pool: pool.into() }
    }

    pub(super) fn reseeded(&self, seed: u64) -> Records {
        let mut records = self.clone();
        if let Some(varying) = &mut records.lengths {
            varying.rng = Rng::new(seed);
        }
        records
    }

    /// Writes a whole record.
    pub(super) fn make(&mut self, number: u64, version: u64, record: &mut Vec<u8>) {
        record.clear();
        for field in 0..self.field_count {
            let length = self.next_length();
            if self.lengths.is_some() {
                record.extend_from_slice(&(length as u32).to_le_bytes());
            }
            self.fill(number, field, version, length, record);
        }
    }

    /// Replaces one field of a whole record; false if the record is none.
    pub(super) fn replace(&mut self, number: u64, field: usize, version: u64, record: &mut Vec<u8>) -> bool {
        let Some(old) = self.fields(record).nth(field) else { return false };
        let start = old.as_ptr() as usize - record.as_ptr() as usize;
        let range = start..start + old.len();
        let length = self.next_length();
        let mut new = Vec::with_capacity(length);
        self.fill(number, field, version, length, &mut new);
        if self.lengths.is_none() {
            record[range].copy_from_slice(&new);
        } else {
            record[start - LENGTH_BYTES..start].copy_from_slice(&(length as u32).to_le_bytes());
            record.splice(range, new);
        }
        true
    }

    /// Whether bytes are a record of this number: its size and first field's header, or every byte.
    pub(super) fn check(&self, number: u64, record: &[u8], every_byte: bool) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("record {number}: {what}"));
        if self.lengths.is_none() && record.len() != self.field_count * self.length {
            return wrong(&format!("{} bytes", record.len()));
        }
        let mut expected = Vec::new();
        let mut count = 0;
        for (field, content) in self.fields(record).enumerate().take(if every_byte { usize::MAX } else { 1 }) {
            let header = content.len().min(8);
            if content[..header] != number.to_le_bytes()[..header] {
                return wrong(&format!("field {field} is another record's"));
            }
            if every_byte {
                expected.clear();
                self.fill(number, field, version_of(content).unwrap_or_default(), content.len(), &mut expected);
                if content.len() >= HEADER_BYTES && content != expected {
                    return wrong(&format!("field {field} is not what any write wrote"));
                }
            }
            count += 1;
        }
        if count < if every_byte { self.field_count } else { 1 } { wrong(&format!("{count} fields")) } else { Ok(()) }
    }

    /// The number that a record names; none if its first field is too short to show it.
    pub(super) fn number(&self, record: &[u8]) -> Option<u64> {
        Some(u64::from_le_bytes(*self.fields(record).next()?.first_chunk()?))
    }

    /// The version of a field; none if it is too short to show it, or missing.
    pub(super) fn version(&self, record: &[u8], field: usize) -> Option<u64> {
        version_of(self.fields(record).nth(field)?)
    }

    /// The fields that are whole.
    fn fields<'a>(&self, record: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let constant = self.lengths.is_none().then_some(self.length);
        let mut rest = record;
        std::iter::from_fn(move || {
            let length = match constant {
                Some(length) => length,
                None => {
                    let (length, after) = rest.split_first_chunk::<LENGTH_BYTES>()?;
                    rest = after;
                    u32::from_le_bytes(*length) as usize
                }
            };
            let (field, after) = rest.split_at_checked(length).filter(|(field, _)| !field.is_empty())?;
            rest = after;
            Some(field)
        })
        .take(self.field_count)
    }

    fn next_length(&mut self) -> usize {
        let Some(varying) = &mut self.lengths else { return self.length };
        let span = (self.length - varying.min) as u64 + 1;
        let above = match &varying.zipf {
            Some(zipf) => zipf.rank(varying.rng.unit()),
            None => varying.rng.below(span),
        };
        varying.min + above as usize
    }

    fn fill(&self, number: u64, field: usize, version: u64, length: usize, out: &mut Vec<u8>) {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&number.to_le_bytes());
        header[8..].copy_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&header[..length.min(HEADER_BYTES)]);
        let mut left = length.saturating_sub(HEADER_BYTES);
        let mut rng = Rng::new(number ^ version.rotate_left(24) ^ (field as u64).rotate_left(48));
        while left > 0 {
            let cut = left.min(POOL_BYTES / 2);
            let at = rng.below((POOL_BYTES - cut) as u64) as usize;
            out.extend_from_slice(&self.pool[at..at + cut]);
            left -= cut;
        }
    }
}

fn version_of(field: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*field.get(8..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn records(text: &str) -> Records {
        Records::new(&Settings::parse(&format!("recordcount=1\n{text}")).unwrap())
    }

    /// Goal:   what is made passes, of the right size; what differs by a byte does not; replacing a field keeps the others.
    /// Method: constant and varying lengths; flip each byte in turn; replace each field.
    #[test]
    fn records_tell_what_happened_to_them() {
        for text in [
            "fieldcount=3\nfieldlength=40",
            "fieldcount=4\nfieldlength=60\nminfieldlength=24\nfieldlengthdistribution=uniform",
            "fieldcount=2\nfieldlength=90\nminfieldlength=20\nfieldlengthdistribution=zipfian",
        ] {
            let mut records = records(text);
            let mut record = Vec::new();
            records.make(77, 0, &mut record);
            records.check(77, &record, true).unwrap();
            assert!(records.check(78, &record, false).is_err());
            for at in 0..record.len() {
                let mut damaged = record.clone();
                damaged[at] ^= 0x40;
                assert!(records.check(77, &damaged, true).is_err(), "{text}: byte {at}");
            }
            for field in 0..records.field_count {
                assert!(records.replace(77, field, 1000 + field as u64, &mut record));
                records.check(77, &record, true).unwrap();
                assert_eq!(records.version(&record, field), Some(1000 + field as u64));
            }
            assert!(!records.replace(77, records.field_count, 1, &mut record));
            assert!(records.check(77, &record[..record.len() - 1], true).is_err());
        }
        assert_eq!(records("").field_count, 10);
        let mut large = Vec::new();
        records("fieldcount=1\nfieldlength=1000000").make(1, 2, &mut large);
        assert_eq!(large.len(), 1_000_000);
    }

    proptest! {
        /// Goal:   bytes that are no record are refused, never a panic.
        /// Method: random bytes.
        #[test]
        fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), constant in any::<bool>()) {
            let distribution = if constant { "constant" } else { "uniform" };
            let mut records = records(&format!("fieldcount=3\nfieldlength=50\nfieldlengthdistribution={distribution}"));
            prop_assert!(records.check(u64::MAX - 1, &bytes, true).is_err());
            let _ = records.version(&bytes, 2);
            let _ = records.replace(1, 2, 3, &mut bytes.clone());
        }
    }
}
