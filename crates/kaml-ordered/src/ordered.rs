//! The ordered index as others use it: one `OrderedWriter`, any number of `OrderedReader`s.
//!
//! Lives here:       its public types and what they promise.
//! Lives elsewhere:  how it is done (`tree`, `writer`, `range`, `build`, `image`).
//! May be called by: everyone; the writer by a caller that holds the firmware core.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use kaml_index::{LenCode, NoAddressSpace, Slot};

use crate::arena::Arena;
use crate::inner::Wanted;
use crate::key::{KeyError, after_prefix, check_key};
use crate::node::NodeRef;
use crate::range::{KeyBound, Range, owned};
use crate::tree::{Stats, Tree};
use crate::versions::Versions;
use crate::writer::Owner;

/// What an index must have room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderedLayout {
    /// Chunk numbers have this many bits, 1 to `OrderedLayout::ADDR_BITS_MAX`. With a length code they take whole bytes: 33 bits take as many as 26.
    pub addr_bits: u32,
}

impl OrderedLayout {
    /// 2^48 chunks of 128 bytes are 32 PiB.
    pub const ADDR_BITS_MAX: u32 = 48;

    /// The layout of an image: a device that has grown since needs more bits. One that does not state them changes nothing, and is refused
    /// when it is read.
    pub fn as_stored(self, image: &[u8]) -> OrderedLayout {
        match image.get(crate::image::ADDR_BITS_AT).map(|bits| u32::from(*bits)) {
            Some(addr_bits @ 1..=Self::ADDR_BITS_MAX) => OrderedLayout { addr_bits },
            _ => self,
        }
    }
}

/// The one who changes an index. Readers on other threads see each change whole and at once.
pub struct OrderedWriter {
    owner: Owner,
}

/// Reads an index while it is written, without locks. Cheap to clone.
#[derive(Clone)]
pub struct OrderedReader {
    tree: Arc<Tree>,
}

macro_rules! reading {
    () => {
        /// Where the key's record lies. A key that no index takes is absent.
        #[inline]
        pub fn get(&self, key: &[u8]) -> Option<Slot> {
            let tree = self.tree();
            tree.slot_of(tree.get(key))
        }

        /// Appends one answer per key; several times as fast as single `get`s, since memory is prefetched for many keys at once.
        pub fn get_batch<K: AsRef<[u8]>>(&self, keys: &[K], answers: &mut Vec<Option<Slot>>) {
            let tree = self.tree();
            answers.reserve(keys.len());
            tree.get_batch(keys, |value| answers.push(tree.slot_of(value)));
        }

        /// Starts fetching what a `get` of the key reads last.
        pub fn prefetch(&self, key: &[u8]) {
            self.tree().prefetch_key(key);
        }

        /// Keys present.
        pub fn len(&self) -> u64 {
            self.tree().stats.key_count.load(Relaxed)
        }

        /// Whether no key is present.
        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        /// Memory taken from the system, everything counted.
        pub fn memory_bytes(&self) -> u64 {
            self.tree().stats.memory_bytes.load(Relaxed)
        }

        /// Bytes that a checkpoint image taken now has at most.
        pub fn image_bytes_max(&self) -> u64 {
            crate::image::with_heads(self.tree().stats.image_bytes_max.load(Relaxed))
        }

        /// The layout it was made with.
        pub fn layout(&self) -> OrderedLayout {
            OrderedLayout { addr_bits: self.tree().addr_bits }
        }

        /// The entry with the least key.
        pub fn first(&self) -> Option<(Box<[u8]>, Slot)> {
            self.iter().next()
        }

        /// The entry with the greatest key.
        pub fn last(&self) -> Option<(Box<[u8]>, Slot)> {
            self.iter().next_back()
        }

        /// All entries, in the order of their keys.
        pub fn iter(&self) -> Range {
            self.range::<[u8]>(..)
        }

        /// The entries of a range of keys. An inverted range is empty. Bounds can be any byte strings, also such that no key can be.
        pub fn range<K: AsRef<[u8]> + ?Sized>(&self, bounds: impl RangeBounds<K>) -> Range {
            Range::new(self.shared(), owned(&bounds))
        }

        /// The entries whose keys begin with a prefix; an empty one is that of all.
        pub fn prefix(&self, prefix: &[u8]) -> Range {
            Range::new(self.shared(), prefix_bounds(prefix))
        }

        /// How many keys a range has: exact for each leaf at the moment when it is counted.
        pub fn count<K: AsRef<[u8]> + ?Sized>(&self, bounds: impl RangeBounds<K>) -> u64 {
            self.range(bounds).count_left()
        }

        /// About how many keys a range has, from the shape of the tree: it takes the time of two look-ups. Small ranges are counted.
        pub fn estimate<K: AsRef<[u8]> + ?Sized>(&self, bounds: impl RangeBounds<K>) -> u64 {
            let (lower, upper) = owned(&bounds);
            estimate(self.shared(), lower, upper)
        }
    };
}

impl OrderedReader {
    reading!();

    fn tree(&self) -> &Tree {
        &self.tree
    }

    fn shared(&self) -> Arc<Tree> {
        Arc::clone(&self.tree)
    }
}

impl OrderedWriter {
    reading!();

    /// An empty index.
    ///
    /// # Panics
    /// As [`OrderedWriter::try_new`], and when the system has no address space left.
    pub fn new(layout: OrderedLayout) -> OrderedWriter {
        OrderedWriter::try_new(layout).unwrap_or_else(|error| panic!("{error}"))
    }

    /// An empty index.
    ///
    /// # Errors
    /// If the system has no address space left.
    ///
    /// # Panics
    /// When `addr_bits` is 0 or above `OrderedLayout::ADDR_BITS_MAX`.
    pub fn try_new(layout: OrderedLayout) -> Result<OrderedWriter, NoAddressSpace> {
        let valid = 1..=OrderedLayout::ADDR_BITS_MAX;
        assert!(valid.contains(&layout.addr_bits), "addr_bits {} is not in {valid:?}", layout.addr_bits);
        let tree = Tree {
            arena: Arena::reserve(reserved_bytes(layout))?,
            versions: Versions::new(),
            root: AtomicU32::new(NodeRef::NONE.0),
            addr_bits: layout.addr_bits,
            value_bytes: (layout.addr_bits + LenCode::BITS).div_ceil(8) as usize,
            stats: Stats::default(),
        };
        Ok(OrderedWriter { owner: Owner::new(Arc::new(tree)) })
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.owner.tree
    }

    fn shared(&self) -> Arc<Tree> {
        Arc::clone(&self.owner.tree)
    }

    pub(crate) fn owner_mut(&mut self) -> &mut Owner {
        &mut self.owner
    }

    /// A copy with chunk numbers of as many bits as this layout has, which must be enough for those that it has. Takes some ten nanoseconds
    /// a key.
    ///
    /// # Errors
    /// If the system has no address space left.
    ///
    /// # Panics
    /// When a chunk number has more bits.
    pub fn with_layout(&self, layout: OrderedLayout) -> Result<OrderedWriter, NoAddressSpace> {
        let mut builder = crate::OrderedBuilder::of_empty(OrderedWriter::try_new(layout)?);
        self.for_each(|key, slot| {
            builder.push(key, slot).expect("the keys of an index ascend, and have room in another one")
        });
        Ok(builder.finish())
    }

    /// A reader for another thread.
    pub fn reader(&self) -> OrderedReader {
        OrderedReader { tree: self.shared() }
    }

    /// Sets where the key's record lies; where it lay before.
    ///
    /// # Panics
    /// When `slot.at` has more than `addr_bits` bits, or the reserved address space is used up: 4 KiB for each possible chunk number, or twice
    /// the memory of the machine.
    pub fn insert(&mut self, key: &[u8], slot: Slot) -> Result<Option<Slot>, KeyError> {
        check_key(key)?;
        let value = self.tree().value_of(slot);
        let old = self.owner.insert(key, value);
        Ok(self.tree().slot_of(old))
    }

    /// Forgets the key; where its record lay.
    pub fn remove(&mut self, key: &[u8]) -> Option<Slot> {
        let old = self.owner.remove(key);
        self.tree().slot_of(old)
    }

    /// Sets where the key's record lies if it lies where the caller thinks; whether it did.
    ///
    /// # Panics
    /// When a slot's `at` has more than `addr_bits` bits.
    pub fn replace_if(&mut self, key: &[u8], expected: Slot, new: Slot) -> bool {
        let (expected, value) = (self.tree().value_of(expected), self.tree().value_of(new));
        self.owner.replace_if(key, expected, value)
    }

    /// Forgets all keys of a range and visits them in their order; how many there were. Readers see leaves go one after the other, and the
    /// keys of each are visited before.
    pub fn remove_range<K: AsRef<[u8]> + ?Sized>(
        &mut self,
        bounds: impl RangeBounds<K>,
        mut visit: impl FnMut(&[u8], Slot),
    ) -> u64 {
        let tree = self.shared();
        self.owner.remove_range(owned(&bounds), |key, value| {
            visit(key, tree.slot_of(value).expect("entries have values"));
        })
    }

    /// Forgets all keys that begin with a prefix, as `remove_range`.
    pub fn remove_prefix(&mut self, prefix: &[u8], visit: impl FnMut(&[u8], Slot)) -> u64 {
        let (lower, upper) = prefix_bounds(prefix);
        self.remove_range::<Vec<u8>>((lower.as_ref(), upper.as_ref()), visit)
    }

    /// Visits every entry, in the order of their keys.
    pub fn for_each(&self, mut visit: impl FnMut(&[u8], Slot)) {
        let mut entries = self.iter();
        while let Some((key, slot)) = entries.next_entry() {
            visit(key, slot);
        }
    }
}

fn prefix_bounds(prefix: &[u8]) -> (KeyBound, KeyBound) {
    let end = after_prefix(prefix).map_or(Bound::Unbounded, Bound::Excluded);
    (Bound::Included(prefix.to_vec()), end)
}

fn estimate(tree: Arc<Tree>, lower: KeyBound, upper: KeyBound) -> u64 {
    /// Leaves that are counted rather than estimated.
    const COUNTED_LEAVES: f64 = 4.0;
    let share = |wanted| tree.share_below(wanted);
    let start = match &lower {
        Bound::Unbounded => 0.0,
        Bound::Included(key) | Bound::Excluded(key) => share(Wanted::Key(key)),
    };
    let end = match &upper {
        Bound::Unbounded => 1.0,
        Bound::Included(key) | Bound::Excluded(key) => share(Wanted::Key(key)),
    };
    let leaves = tree.stats.leaf_count.load(Relaxed) as f64;
    if (end - start) * leaves > COUNTED_LEAVES {
        return ((end - start) * tree.stats.key_count.load(Relaxed) as f64) as u64;
    }
    Range::new(tree, (lower, upper)).count_left()
}

/// Address space for an index: its keys cannot outnumber the device's chunks, nor its memory the machine's.
fn reserved_bytes(layout: OrderedLayout) -> u64 {
    const PER_KEY_MAX: u64 = 4096;
    const LEAST: u64 = 128 << 20;
    let by_keys = PER_KEY_MAX << layout.addr_bits;
    let system = rustix::system::sysinfo();
    let by_memory = (system.totalram * u64::from(system.mem_unit)).next_power_of_two() * 2;
    by_keys.min(by_memory).max(LEAST)
}
