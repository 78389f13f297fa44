//! The `hash` index: one `HashWriter`, any number of `HashReader`s.
//!
//! Lives here:       its public types and what they promise.
//! Lives elsewhere:  how it is done (`table`, `writer`), the choice among kinds of index (`index`).
//! May be called by: everyone; the writer by a caller that holds the firmware core.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::arena::{Arena, LINE_BYTES, NoAddressSpace};
use crate::bucket::Fields;
use crate::growth::Owner;
use crate::mixed::Mixer;
use crate::outside::Outside;
use crate::snapshot::{HEAD_BYTES, seed_of};
use crate::table::{Entry, Stats, Table};
use crate::writer::Upsert;
use crate::{Cursor, Key, KeyKind, Slot, SnapshotError};

/// What an index must have room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashLayout {
    /// The keys of the namespace.
    pub keys: KeyKind,
    /// Chunk numbers have this many bits, 1 to `HashLayout::ADDR_BITS_MAX`. Fewer make denser buckets.
    pub addr_bits: u32,
}

impl HashLayout {
    /// 2^48 chunks of 128 bytes are 32 PiB.
    pub const ADDR_BITS_MAX: u32 = 48;
}

/// The one who changes an index. Readers on other threads see each change whole and at once.
pub struct HashWriter {
    pub(crate) table: Arc<Table>,
    pub(crate) owner: Owner,
}

/// Reads an index while it is written, without locks. Cheap to clone.
#[derive(Clone)]
pub struct HashReader {
    table: Arc<Table>,
}

macro_rules! reading {
    () => {
        /// Where the key's record lies. A key that the namespace does not take is absent.
        #[inline]
        pub fn get(&self, key: &Key) -> Option<Slot> {
            self.table.get(key)
        }

        /// Appends one answer per key; two to four times as fast as single `get`s, since memory is prefetched many keys
        /// at once.
        pub fn get_batch(&self, keys: &[Key], answers: &mut Vec<Option<Slot>>) {
            self.table.get_batch(keys, answers);
        }

        /// Starts fetching what a `get` of the key will read.
        #[inline]
        pub fn prefetch(&self, key: &Key) {
            self.table.prefetch(key);
        }

        /// Keys present.
        #[allow(clippy::len_without_is_empty, reason = "nobody asks")]
        pub fn len(&self) -> u64 {
            self.table.stats.key_count.load(Relaxed)
        }

        /// Memory taken from the system, everything counted.
        pub fn memory_bytes(&self) -> u64 {
            self.table.stats.memory_bytes.load(Relaxed) + self.table.outside.memory_bytes()
        }

        /// Bytes of a snapshot taken now.
        pub fn image_bytes(&self) -> u64 {
            self.table.stats.image_bytes.load(Relaxed) + self.table.outside.image_bytes()
        }

        /// Keys in slots per slot, 0 to 1.
        pub fn load(&self) -> f64 {
            self.table.load()
        }

        /// The layout it was made with.
        pub fn layout(&self) -> HashLayout {
            self.table.layout
        }

        /// The cursor that a listing is at when `key` is the last one it returned; none if no such key can be here.
        pub fn cursor_at(&self, key: &Key) -> Option<Cursor> {
            self.table.mixer.mixed(key).map(Cursor)
        }

        /// The key that a cursor is at; none if no key can be there.
        pub fn key_at(&self, cursor: &Cursor) -> Option<Key> {
            self.table.mixer.key(&cursor.0)
        }

        /// Up to `limit` keys (at least one) after `after`, and where to continue; no cursor means the end. Every key present throughout a
        /// whole listing is listed exactly once, whatever else is added, removed or grows.
        pub fn list(&self, after: Option<Cursor>, limit: usize) -> (Vec<Key>, Option<Cursor>) {
            list(&self.table, after, limit)
        }
    };
}

impl HashReader {
    reading!();
}

impl HashWriter {
    reading!();

    /// An empty index. Its keys are mixed with fixed constants, so a caller that knows them can choose keys that collide, which are found
    /// more slowly: use `with_seed` where keys may come from an enemy.
    ///
    /// # Panics
    /// When `addr_bits` is 0 or above `HashLayout::ADDR_BITS_MAX`, or the system has no address space left.
    pub fn new(layout: HashLayout) -> HashWriter {
        Self::with_seed(layout, 0)
    }

    /// An empty index whose keys are mixed with a seed.
    ///
    /// # Panics
    /// As `new`.
    pub fn with_seed(layout: HashLayout, seed: u64) -> HashWriter {
        Self::try_with_seed(layout, seed).unwrap_or_else(|refused| panic!("{refused}"))
    }

    /// As [`HashWriter::with_seed`], but fails if the system has no address space left.
    ///
    /// # Panics
    /// When `addr_bits` is 0 or above `HashLayout::ADDR_BITS_MAX`.
    pub fn try_with_seed(layout: HashLayout, seed: u64) -> Result<HashWriter, NoAddressSpace> {
        let valid = 1..=HashLayout::ADDR_BITS_MAX;
        assert!(valid.contains(&layout.addr_bits), "addr_bits {} is not in {valid:?}", layout.addr_bits);
        let table = Arc::new(Table {
            arena: Arc::new(Arena::reserve(reserved_bytes(layout))?),
            fields: Fields::new(layout.keys, layout.addr_bits),
            mixer: Mixer::new(layout.keys, seed),
            layout,
            seed,
            root: AtomicU64::new(0),
            outside: Outside::default(),
            stats: Stats::default(),
        });
        let owner = Owner::start(&table);
        Ok(HashWriter { table, owner })
    }

    /// The index of which a snapshot was taken, with its seed: images, one after the other in the order in which they were taken.
    ///
    /// # Panics
    /// As `new`.
    pub fn of_snapshot(layout: HashLayout, snapshot: &[u8]) -> Result<HashWriter, SnapshotError> {
        let mut index = Self::try_with_seed(layout, seed_of(snapshot)?)?;
        index.restore(snapshot)?;
        Ok(index)
    }

    /// A reader for another thread.
    pub fn reader(&self) -> HashReader {
        HashReader { table: Arc::clone(&self.table) }
    }

    /// Sets where the key's record lies; where it lay before. A key always finds a place: one that was chosen to collide with others, or
    /// that address space is short for, in a tree next to the table.
    ///
    /// # Panics
    /// When the namespace does not take the key (`Key::check`), or `slot.at` has more than `addr_bits` bits.
    pub fn insert(&mut self, key: &Key, slot: Slot) -> Option<Slot> {
        let mixed = self.table.mixer.mixed(key).expect("callers check keys");
        let value = self.value(slot);
        loop {
            let header = self.table.header(mixed.m);
            match self.table.upsert(header, &mixed, value) {
                Upsert::Replaced(old) => return self.table.fields.slot_of(old),
                Upsert::Inserted => return None,
                Upsert::NoRoom => {
                    if !self.owner.grow(&self.table, header) {
                        self.table.outside.add([(mixed, value)]);
                        self.table.count_keys(1);
                        return None;
                    }
                }
            }
        }
    }

    /// Forgets the key; where its record lay.
    pub fn remove(&mut self, key: &Key) -> Option<Slot> {
        let mixed = self.table.mixer.mixed(key)?;
        let old = self.table.fields.slot_of(self.table.remove(&mixed))?;
        self.owner.shrink_if_sparse(&self.table, mixed.m);
        Some(old)
    }

    /// Sets where the key's record lies if it lies where the caller thinks; whether it did.
    ///
    /// # Panics
    /// When `new.at` has more than `addr_bits` bits.
    pub fn replace_if(&mut self, key: &Key, expected: Slot, new: Slot) -> bool {
        let (expected, value) = (self.table.fields.value_of(expected), self.value(new));
        self.table.mixer.mixed(key).is_some_and(|mixed| self.table.replace_if(&mixed, expected, value))
    }

    /// Visits every entry once, in no promised order.
    pub fn for_each(&self, mut visit: impl FnMut(Key, Slot)) {
        let (mut next, mut entries) = (Some(0), vec![]);
        while let Some(m) = next {
            next = collect_all(&self.table, m, &mut entries);
            for (mixed, value) in &entries {
                let key = self.table.mixer.key(mixed).expect("stored keys are keys");
                visit(key, self.table.fields.slot_of(*value).expect("collected slots are not empty"));
            }
        }
    }

    /// Visits where every record lies, in no promised order: for callers that do not need keys, which take longer.
    pub fn for_each_slot(&self, mut visit: impl FnMut(Slot)) {
        let mut next = Some(0);
        while let Some(m) = next {
            next = self.table.for_each_value(m, |value| {
                visit(self.table.fields.slot_of(value).expect("slots that are not empty"));
            });
        }
        self.table.outside.for_each_value(|value| {
            visit(self.table.fields.slot_of(value).expect("values that exist"));
        });
    }

    /// Bytes of the image of a segment, at least.
    pub(crate) fn image_bytes_min(&self) -> u64 {
        (HEAD_BYTES + self.table.page_lines() as usize * LINE_BYTES) as u64
    }

    /// What its keys are mixed with.
    pub(crate) fn seed(&self) -> u64 {
        self.table.seed
    }

    fn value(&self, slot: Slot) -> u64 {
        assert!(
            slot.at <= self.table.fields.addr_mask(),
            "chunk {} has more than {} bits",
            slot.at,
            self.layout().addr_bits
        );
        self.table.fields.value_of(slot)
    }
}

/// Address space for an index: its keys cannot outnumber the device's chunks, nor its memory the machine's.
fn reserved_bytes(layout: HashLayout) -> u64 {
    const PER_KEY_MAX: u64 = 64;
    const LEAST: u64 = 128 << 20;
    let by_keys = PER_KEY_MAX << layout.addr_bits;
    let system = rustix::system::sysinfo();
    let by_memory = (system.totalram * u64::from(system.mem_unit)).next_power_of_two() * 2;
    by_keys.min(by_memory).max(LEAST)
}

/// The entries of the segment that holds `m`, wherever they are, in no order; where the next segment begins.
fn collect_all(table: &Table, m: u64, entries: &mut Vec<Entry>) -> Option<u64> {
    let shape = table.collect(m, entries);
    table.outside.collect(shape, entries);
    shape.end()
}

fn list(table: &Table, after: Option<Cursor>, limit: usize) -> (Vec<Key>, Option<Cursor>) {
    let limit = limit.max(1);
    let (mut keys, mut entries, mut last) = (vec![], vec![], after);
    let mut next = Some(after.map_or(0, |after| after.0.m));
    while let Some(m) = next
        && keys.len() < limit
    {
        let wanted = limit - keys.len();
        let shape = table.collect(m, &mut entries);
        next = shape.end();
        entries.retain(|(mixed, _)| last.is_none_or(|last| *mixed > last.0));
        // One more reports that there are more.
        table.outside.collect_behind(shape, last.map(|last| last.0), wanted.saturating_add(1), &mut entries);
        if entries.len() > wanted {
            entries.select_nth_unstable(wanted);
            entries.truncate(wanted);
            next = Some(m);
        }
        entries.sort_unstable();
        entries.dedup_by_key(|(mixed, _)| *mixed); // one may have left its slot and come back outside meanwhile
        last = entries.last().map(|(mixed, _)| Cursor(*mixed)).or(last);
        keys.extend(entries.iter().map(|(mixed, _)| table.mixer.key(mixed).expect("stored keys are keys")));
    }
    (keys, if next.is_some() { last } else { None })
}
