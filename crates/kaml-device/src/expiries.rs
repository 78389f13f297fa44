//! When the records of a namespace expire.
//!
//! Lives here:       the times of keys, and the keys in the order of their times; the part of a checkpoint image that has them.
//! Lives elsewhere:  what happens when a record expires (`expiry`), the format of that part (`format::expiries`).
//! Implements:       docs/ARCHITECTURE.md "Expiry".

use crate::format::expiries::{self, Bad};
use crate::layout::Layout;
use crate::secret::KeyDigester;
use kaml_index::{FullKey, KeptKey, Key, KeyRef};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

/// Memory of an entry without the bytes of a long key: both tables, at their usual load.
const ENTRY_BYTES: u64 = 136;

/// The times of a namespace.
#[derive(Default)]
pub(crate) struct Expiries {
    /// Never iterated, so its order does not matter.
    times: HashMap<Key, u64>,
    /// The bytes of long keys, if the index needs them.
    queue: BTreeMap<(u64, Key), Option<Box<[u8]>>>,
    long_bytes: u64,
}

/// Where the image of the times continues.
#[derive(Debug)]
pub(crate) enum ExpiryCursor {
    /// Where every image begins.
    Start,
    After(u64, Key),
    /// Everything is written.
    End,
}

/// Records that have expired.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// With their times, in the order of these.
    pub(crate) keys: Vec<(u64, KeptKey)>,
    /// All records up to this time are among them.
    pub(crate) until: u64,
}

impl Expiries {
    /// Whether no record expires.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Records that expire.
    pub(crate) fn len(&self) -> u64 {
        self.queue.len() as u64
    }

    /// Memory of the tables.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.len() * ENTRY_BYTES + self.long_bytes
    }

    /// When the next record expires.
    pub(crate) fn next(&self) -> Option<u64> {
        self.queue.first_key_value().map(|((time, _), _)| *time)
    }

    /// When the record of a key expires; 0 for never.
    pub(crate) fn of(&self, key: &Key) -> u64 {
        if self.is_empty() { 0 } else { self.times.get(key).copied().unwrap_or(0) }
    }

    /// The record of a key expires then, or never if that is 0. Returns whether that is new.
    pub(crate) fn set(&mut self, key: &FullKey<'_>, time: u64) -> bool {
        let old = match time {
            0 => self.times.remove(key.key()).unwrap_or(0),
            _ => self.times.insert(*key.key(), time).unwrap_or(0),
        };
        if old == time {
            return false;
        }
        if let Some(Some(long)) = self.queue.remove(&(old, *key.key())) {
            self.long_bytes -= long.len() as u64;
        }
        if time != 0 {
            let long = (!key.long_bytes().is_empty()).then(|| Box::from(key.long_bytes()));
            self.long_bytes += key.long_bytes().len() as u64;
            self.queue.insert((time, *key.key()), long);
        }
        true
    }

    /// A key of a range that is deleted, which has its bytes.
    pub(crate) fn forget(&mut self, digester: &KeyDigester, key: &[u8]) {
        if !self.is_empty()
            && let Ok(key) = digester.key(KeyRef::Bytes(key))
        {
            self.set(&key, 0);
        }
    }

    /// Takes up to `limit` records that have expired at a time.
    pub(crate) fn take_due(&mut self, now: u64, limit: usize) -> Due {
        let mut due = Due::default();
        while due.keys.len() < limit
            && let Some(first) = self.queue.first_entry().filter(|first| first.key().0 <= now)
        {
            let ((time, key), long) = first.remove_entry();
            self.times.remove(&key);
            self.long_bytes -= long.as_ref().map_or(0, |long| long.len() as u64);
            due.keys.push((time, (&full(key, long.as_deref())).into()));
        }
        let last = due.keys.last().map_or(0, |(time, _)| *time);
        // Others may expire in the millisecond of the last one.
        due.until = if self.next() == Some(last) { last - 1 } else { last };
        due
    }

    /// Takes all records that expire up to a time.
    pub(crate) fn take_until(&mut self, until: u64) -> Due {
        self.take_due(until, usize::MAX)
    }

    /// Appends the next entries to an image, and its end after the last one.
    pub(crate) fn image_next(&self, from: ExpiryCursor, limit: usize, out: &mut Vec<u8>) -> ExpiryCursor {
        let after = match from {
            ExpiryCursor::Start if self.is_empty() => return ExpiryCursor::End,
            ExpiryCursor::Start => {
                expiries::begin(out);
                Bound::Unbounded
            }
            ExpiryCursor::After(time, key) => Bound::Excluded((time, key)),
            ExpiryCursor::End => return ExpiryCursor::End,
        };
        let mut rest = self.queue.range((after, Bound::Unbounded));
        let mut last = None;
        for ((time, key), long) in rest.by_ref().take(limit) {
            expiries::append(out, *time, &full(*key, long.as_deref()));
            last = Some((*time, *key));
        }
        match (rest.next(), last) {
            (Some(_), Some((time, key))) => ExpiryCursor::After(time, key),
            _ => {
                expiries::end(out);
                ExpiryCursor::End
            }
        }
    }

    /// The times at the beginning of an image, and the image of the index after them. Keys that the namespace cannot have are damage.
    pub(crate) fn of_image(layout: Layout, image: &[u8]) -> Result<(Expiries, &[u8]), Bad> {
        let mut times = Expiries::default();
        let mut take = |time, key: FullKey<'_>| {
            if layout.check_key(key.key()).is_err() || layout.lacks_bytes_of(&key) {
                return false;
            }
            times.set(&layout.indexed(key), time);
            true
        };
        let index = expiries::decode(image, &mut take)?;
        Ok((times, index))
    }

    /// Bytes of an image taken now, at most.
    pub(crate) fn image_bytes(&self) -> u64 {
        if self.is_empty() { 0 } else { expiries::image_bytes(self.len(), self.long_bytes) }
    }
}

fn full(key: Key, long: Option<&[u8]>) -> FullKey<'_> {
    long.map_or_else(|| key.into(), |long| FullKey::long(key, long))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaml_index::KeyKind;

    fn keys(due: &Due) -> Vec<(u64, u64)> {
        due.keys.iter().map(|(time, key)| (*time, key.key().as_u64().unwrap())).collect()
    }

    /// Goal:   records come in the order of their times, each at its last one; a limit that ends within a millisecond does not claim it.
    /// Method: times set, changed and cleared; taken in parts.
    #[test]
    fn records_come_in_the_order_of_their_times() {
        let mut times = Expiries::default();
        let key = |number: u64| FullKey::from(Key::from(number));
        for (number, time) in [(1, 50), (2, 10), (3, 50), (4, 20), (5, 50)] {
            assert!(times.set(&key(number), time));
            assert!(!times.set(&key(number), time));
        }
        assert!(times.set(&key(4), 60) && times.set(&key(2), 0) && !times.set(&key(9), 0));
        assert_eq!((times.len(), times.next(), times.of(key(4).key()), times.of(key(2).key())), (4, Some(50), 60, 0));
        assert_eq!(times.take_due(49, 9), Due::default());
        let due = times.take_due(70, 2);
        assert_eq!((keys(&due), due.until), (vec![(50, 1), (50, 3)], 49));
        let due = times.take_due(70, 1);
        assert_eq!((keys(&due), due.until), (vec![(50, 5)], 50));
        let due = times.take_until(70);
        assert_eq!((keys(&due), due.until), (vec![(60, 4)], 60));
        assert!(times.is_empty() && times.memory_bytes() == 0);
    }

    /// Goal:   an image in pieces, with changes between them, has every time that did not change; bytes of long keys come along.
    /// Method: an image in steps of two entries; records expire and appear meanwhile.
    #[test]
    fn images_are_taken_in_pieces() {
        let long = b"a key of more than sixteen bytes";
        let key = |number: u64| FullKey::from(Key::from(number));
        let mut times = Expiries::default();
        times.set(&FullKey::long(Key::of_digest([7; 16]), long), 35);
        (1..8).for_each(|number| assert!(times.set(&key(number), number * 10)));
        let bytes_max = times.image_bytes() as usize;
        let mut image = Vec::new();
        let mut cursor = times.image_next(ExpiryCursor::Start, 2, &mut image);
        times.take_due(15, 9);
        times.set(&key(6), 5);
        while !matches!(cursor, ExpiryCursor::End) {
            cursor = times.image_next(cursor, 2, &mut image);
        }
        assert!(image.len() <= bytes_max);
        image.extend_from_slice(b"index");
        let (read, index) = Expiries::of_image(Layout::Records(KeyKind::Ordered), &image).unwrap();
        assert_eq!((index, read.len()), (&b"index"[..], 7));
        assert_eq!([2, 3, 4, 5, 7].map(|number: u64| read.of(&Key::from(number))), [20, 30, 40, 50, 70]);
        assert_eq!(read.long_bytes, long.len() as u64);
        assert!(Expiries::of_image(Layout::Records(KeyKind::U64), &image).is_err());
        let (none, index) = Expiries::of_image(Layout::Records(KeyKind::U64), b"KIX1 and so on").unwrap();
        assert!(none.is_empty() && index == b"KIX1 and so on");
    }
}
