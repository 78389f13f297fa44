//! Records in the order of their keys.
//!
//! Lives here:       [`Entries`] and [`OrderedKeys`], iterators over ranges of an ordered namespace, in both directions; counting and
//!                   deleting ranges.
//! Lives elsewhere:  the index that is in order (`kaml-ordered`), reading many values (`gather`).
//! Implements:       paper:KAML IV.C (other index structures, "a tree"); docs/ARCHITECTURE.md "Ordered namespaces".

use crate::device::Device;
use crate::driver::By;
use crate::error::Error;
use crate::namespace::Namespace;
use crate::snapshot::Snapshot;
use crate::{KeyBuf, KeyRef, NamespaceId};
use kaml_device::{KeyRange, OrderedReader, SpaceReader};
use std::collections::VecDeque;
use std::ops::{Bound, RangeBounds};

/// Keys that an iterator takes from the index at first; twice as many each time after that, as readahead does.
const PAGE_KEYS_MIN: usize = 16;
/// A range between two bounds with fewer keys is read at once.
const SHORT_RANGE_KEYS: u64 = 128;
/// Keys that it takes at a time at most.
const PAGE_KEYS_MAX: usize = 1024;
/// Records that it reads at a time at most.
const PAGE_RECORDS_MAX: usize = 256;

type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Owned bounds.
fn owned<'k, K: Into<KeyRef<'k>> + Clone>(range: impl RangeBounds<K>) -> Bounds {
    let own = |bound: Bound<&K>| bound.map(|key| key.clone().into().as_bytes().to_vec());
    (own(range.start_bound()), own(range.end_bound()))
}

/// The keys that begin with a prefix.
fn of_prefix(prefix: &[u8]) -> Bounds {
    let kept = prefix.len() - prefix.iter().rev().take_while(|byte| **byte == u8::MAX).count();
    let mut after = prefix[..kept].to_vec();
    let end = after.last_mut().map(|last| *last += 1);
    (Bound::Included(prefix.to_vec()), if end.is_some() { Bound::Excluded(after) } else { Bound::Unbounded })
}

/// Where an iterator reads.
enum View {
    /// The present, which changes meanwhile.
    Present(Device),
    /// A snapshot of its own, which it opens with its first page and closes after its last one.
    Own(Device, Option<Snapshot>),
    /// A snapshot of its caller.
    Of(Snapshot),
}

/// The remainder of a range of keys, taken from both ends.
struct Keys {
    view: View,
    namespace: NamespaceId,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    page_keys: usize,
    is_finished: bool,
}

impl Keys {
    fn new(view: View, namespace: NamespaceId, (lower, upper): Bounds) -> Keys {
        Keys { view, namespace, lower, upper, page_keys: PAGE_KEYS_MIN, is_finished: false }
    }

    /// The next keys from one end, in the direction of the iterator; none at the end of the range.
    fn page(&mut self, from_back: bool, keys_max: usize) -> Result<Vec<KeyBuf>, Error> {
        if self.is_finished {
            return Ok(Vec::new());
        }
        let count = self.page_keys.max(self.short_range()).min(keys_max);
        self.page_keys = (self.page_keys * 2).min(PAGE_KEYS_MAX);
        if let View::Own(device, own @ None) = &mut self.view {
            *own = Some(device.open_snapshot_of_iterator(self.namespace)?);
        }
        loop {
            let range = (self.lower.as_ref().map(Vec::as_slice), self.upper.as_ref().map(Vec::as_slice));
            let (keys, last) = match &self.view {
                View::Present(device) => {
                    let keys = device.ordered_keys(self.namespace, range.0, range.1, from_back, count)?;
                    let last = keys.last().filter(|_| keys.len() == count).cloned();
                    (keys, last)
                }
                View::Own(_, None) => return Err(Error::Closed), // it was opened above
                View::Own(_, Some(snapshot)) | View::Of(snapshot) => {
                    snapshot.page(self.namespace, range, from_back, count)?
                }
            };
            self.is_finished = last.is_none();
            let last = last.map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_bytes().to_vec()));
            *(if from_back { &mut self.upper } else { &mut self.lower }) = last;
            if self.is_finished || !keys.is_empty() {
                return Ok(keys);
            }
        }
    }

    /// At the beginning of a range with about so many keys, that number if it is small: such a range is read as one page. Otherwise 0.
    fn short_range(&self) -> usize {
        let (View::Present(device) | View::Own(device, _)) = &self.view else { return 0 };
        let has_bounds = self.lower != Bound::Unbounded && self.upper != Bound::Unbounded;
        if self.page_keys != PAGE_KEYS_MIN || !has_bounds {
            return 0;
        }
        let bounds = (self.lower.as_ref(), self.upper.as_ref());
        let count = device.ordered_index(self.namespace).map_or(0, |index| index.estimate::<Vec<u8>>(bounds));
        if count < SHORT_RANGE_KEYS { count as usize + 1 } else { 0 }
    }

    fn values(&self, keys: &[KeyBuf]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        match &self.view {
            View::Present(device) | View::Own(device, None) => device.shared().gather(self.namespace, keys),
            View::Own(_, Some(snapshot)) | View::Of(snapshot) => snapshot.gather(self.namespace, keys),
        }
    }

    /// Closes a snapshot of its own if nothing will be read through it.
    fn release(&mut self) {
        if let View::Own(_, own) = &mut self.view
            && self.is_finished
        {
            *own = None;
        }
    }
}

/// The records of a range of keys, in their order; from the back in the reverse order ([`Iterator::rev`]). See [`Namespace::range`].
///
/// The records are those of one moment, when the first of them is read. Until it ends or is dropped, an iterator keeps what is overwritten and
/// deleted meanwhile, as a [`Snapshot`] does. One that is open for so long that this room is needed returns [`Error::SnapshotTooOld`].
/// After an error the iterator ends.
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, KeyKind, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.ensure_namespace("users", &NamespaceOptions::records(KeyKind::Ordered))?;
/// for name in ["ada", "grace", "barbara"] {
///     users.put(name, b"...")?;
/// }
/// let names: Result<Vec<_>, _> = users.range("b"..).map(|entry| entry.map(|(key, _)| key.to_string())).collect();
/// assert_eq!(names?, ["barbara", "grace"]);
/// assert_eq!(users.prefix("g").next_back().transpose()?.map(|(_, value)| value), Some(b"...".to_vec()));
/// # Ok::<(), kaml::Error>(())
/// ```
pub struct Entries {
    keys: Keys,
    front: VecDeque<(KeyBuf, Vec<u8>)>,
    /// The last ones of the range, the very last one first.
    back: VecDeque<(KeyBuf, Vec<u8>)>,
}

impl Entries {
    fn new(view: View, namespace: NamespaceId, bounds: Bounds) -> Entries {
        Entries { keys: Keys::new(view, namespace, bounds), front: VecDeque::new(), back: VecDeque::new() }
    }

    fn fill(&mut self, from_back: bool) -> Result<(), Error> {
        while !self.keys.is_finished {
            let keys = self.keys.page(from_back, PAGE_RECORDS_MAX)?;
            let values = self.keys.values(&keys)?;
            self.keys.release();
            let entries = keys.into_iter().zip(values).filter_map(|(key, value)| Some((key, value?)));
            let side = if from_back { &mut self.back } else { &mut self.front };
            side.extend(entries);
            if !side.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn next_from(&mut self, from_back: bool) -> Option<Result<(KeyBuf, Vec<u8>), Error>> {
        let side = if from_back { &self.back } else { &self.front };
        if side.is_empty()
            && let Err(error) = self.fill(from_back)
        {
            (self.keys.is_finished, self.front, self.back) = (true, VecDeque::new(), VecDeque::new());
            self.keys.release();
            return Some(Err(error));
        }
        let (own, other) =
            if from_back { (&mut self.back, &mut self.front) } else { (&mut self.front, &mut self.back) };
        own.pop_front().or_else(|| other.pop_back()).map(Ok)
    }
}

impl Iterator for Entries {
    type Item = Result<(KeyBuf, Vec<u8>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_from(false)
    }
}

impl DoubleEndedIterator for Entries {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_from(true)
    }
}

/// The keys of a range, in their order, without their values: no flash is read. They are those of one moment, as for [`Entries`]. See
/// [`Namespace::range_keys`].
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, KeyKind, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let numbers = device.ensure_namespace("numbers", &NamespaceOptions::records(KeyKind::Ordered))?;
/// (0..10u64).try_for_each(|key| numbers.put(key, b""))?;
/// let last = numbers.range_keys(3u64..7).next_back().transpose()?;
/// assert_eq!(last.and_then(|key| key.as_u64()), Some(6));
/// # Ok::<(), kaml::Error>(())
/// ```
pub struct OrderedKeys {
    keys: Keys,
    front: VecDeque<KeyBuf>,
    back: VecDeque<KeyBuf>,
}

impl OrderedKeys {
    fn new(view: View, namespace: NamespaceId, bounds: Bounds) -> OrderedKeys {
        OrderedKeys { keys: Keys::new(view, namespace, bounds), front: VecDeque::new(), back: VecDeque::new() }
    }

    fn next_from(&mut self, from_back: bool) -> Option<Result<KeyBuf, Error>> {
        let side = if from_back { &mut self.back } else { &mut self.front };
        if side.is_empty() {
            match self.keys.page(from_back, PAGE_KEYS_MAX) {
                Ok(page) => {
                    side.extend(page);
                    self.keys.release();
                }
                Err(error) => {
                    (self.keys.is_finished, self.front, self.back) = (true, VecDeque::new(), VecDeque::new());
                    self.keys.release();
                    return Some(Err(error));
                }
            }
        }
        let (own, other) =
            if from_back { (&mut self.back, &mut self.front) } else { (&mut self.front, &mut self.back) };
        own.pop_front().or_else(|| other.pop_back()).map(Ok)
    }
}

impl Iterator for OrderedKeys {
    type Item = Result<KeyBuf, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_from(false)
    }
}

impl DoubleEndedIterator for OrderedKeys {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_from(true)
    }
}

impl Device {
    /// Whether the keys of a namespace have an order.
    pub(crate) fn is_ordered(&self, namespace: NamespaceId) -> Result<bool, Error> {
        let shared = self.shared();
        match shared.reader.of(namespace).map_err(|error| shared.refused(error))? {
            SpaceReader::Records(records) => Ok(records.is_ordered()),
            SpaceReader::Versions(_) | SpaceReader::Blocks => Ok(false),
        }
    }

    /// Keys within bounds, in their order or in the reverse one, at most so many.
    pub(crate) fn ordered_keys(
        &self,
        namespace: NamespaceId,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        reverse: bool,
        count: usize,
    ) -> Result<Vec<KeyBuf>, Error> {
        let mut range = self.ordered_index(namespace)?.range::<[u8]>((lower, upper)).in_pages_of(count);
        let mut keys = Vec::with_capacity(count.min(PAGE_KEYS_MAX));
        while keys.len() < count {
            let entry = if reverse { range.next_entry_back() } else { range.next_entry() };
            let Some((key, _)) = entry else { break };
            keys.push(KeyBuf::new(key)?);
        }
        Ok(keys)
    }

    /// The index of an ordered namespace.
    fn ordered_index(&self, namespace: NamespaceId) -> Result<OrderedReader, Error> {
        let shared = self.shared();
        match shared.reader.of(namespace).map_err(|error| shared.refused(error))? {
            SpaceReader::Records(records) => shared.look(namespace, || records.ordered()),
            SpaceReader::Versions(_) => Err(Error::KeepsVersions(namespace)),
            SpaceReader::Blocks => Err(Error::HoldsBlocks(namespace)),
        }
    }
}

/// Ranges of keys, of namespaces with [`crate::KeyKind::Ordered`]. Others refuse them with [`Error::NotOrdered`].
impl Namespace {
    /// The records whose keys are in a range. A range that ends before it begins is empty.
    pub fn range<'k, K: Into<KeyRef<'k>> + Clone>(&self, range: impl RangeBounds<K>) -> Entries {
        self.entries(owned(range))
    }

    /// The records whose keys begin with a prefix; an empty one is that of all.
    pub fn prefix<'k>(&self, prefix: impl Into<KeyRef<'k>>) -> Entries {
        self.entries(of_prefix(prefix.into().as_bytes()))
    }

    /// All records, in the order of their keys.
    pub fn iter(&self) -> Entries {
        self.entries((Bound::Unbounded, Bound::Unbounded))
    }

    fn entries(&self, bounds: Bounds) -> Entries {
        Entries::new(View::Own(self.device().clone(), None), self.id(), bounds)
    }

    /// The keys of a range, without their values.
    pub fn range_keys<'k, K: Into<KeyRef<'k>> + Clone>(&self, range: impl RangeBounds<K>) -> OrderedKeys {
        OrderedKeys::new(View::Own(self.device().clone(), None), self.id(), owned(range))
    }

    /// The keys that begin with a prefix, without their values.
    pub fn prefix_keys<'k>(&self, prefix: impl Into<KeyRef<'k>>) -> OrderedKeys {
        OrderedKeys::new(View::Own(self.device().clone(), None), self.id(), of_prefix(prefix.into().as_bytes()))
    }

    /// Deletes the records of a range in one atomic step; how many there were. It is durable when it returns: after a crash either all of them are
    /// gone or none. It writes one record, whose length depends only on the bounds. Forgetting the keys takes about a second for 10 million of them, and the
    /// device does nothing else meanwhile; flash comes back by collection.
    ///
    /// # Errors
    /// As [`Namespace::delete`]; [`Error::NotOrdered`].
    ///
    /// # Examples
    /// ```
    /// use kaml::{CreateOptions, Device, KeyKind, NamespaceOptions};
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let numbers = device.ensure_namespace("numbers", &NamespaceOptions::records(KeyKind::Ordered))?;
    /// (0..10u64).try_for_each(|key| numbers.put(key, b""))?;
    /// assert_eq!(numbers.delete_range(3u64..7)?, 4);
    /// assert_eq!(numbers.count(0u64..)?, 6);
    /// # Ok::<(), kaml::Error>(())
    /// ```
    pub fn delete_range<'k, K: Into<KeyRef<'k>> + Clone>(&self, range: impl RangeBounds<K>) -> Result<u64, Error> {
        self.delete_within(&owned(range))
    }

    /// Deletes the records whose keys begin with a prefix, as [`Namespace::delete_range`].
    ///
    /// # Errors
    /// As [`Namespace::delete_range`].
    pub fn delete_prefix<'k>(&self, prefix: impl Into<KeyRef<'k>>) -> Result<u64, Error> {
        self.delete_within(&of_prefix(prefix.into().as_bytes()))
    }

    /// Moves the records of a range next to each other on flash, in the order of their keys; how many moved. Afterwards a scan of 100 records of 1 KiB reads
    /// one or two extents instead of up to 100. Records that lie so already stay, as do values of 32 KiB and more. Others can use the device
    /// meanwhile, also a store; each record that moves is written once more. Puts that follow scatter records again.
    ///
    /// # Errors
    /// - [`Error::NotOrdered`]; [`Error::Full`] if there is no room for the copies. What has moved until then stays.
    /// - Otherwise as [`Namespace::put`].
    ///
    /// # Examples
    /// ```
    /// use kaml::{CreateOptions, Device, KeyKind, NamespaceOptions};
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let users = device.ensure_namespace("users", &NamespaceOptions::records(KeyKind::Ordered))?;
    /// (0..100u64).rev().try_for_each(|key| users.put(key, &[7; 1000]))?;
    /// users.cluster(0u64..)?;
    /// # Ok::<(), kaml::Error>(())
    /// ```
    pub fn cluster<'k, K: Into<KeyRef<'k>> + Clone>(&self, range: impl RangeBounds<K>) -> Result<u64, Error> {
        self.device().settle()?;
        let (mut moved, mut keys) = (0, self.ordered_keys(owned(range)));
        loop {
            let page: Vec<KeyBuf> = keys.by_ref().take(PAGE_KEYS_MAX).collect::<Result<_, _>>()?;
            if page.is_empty() {
                break;
            }
            moved += self.device().shared().cluster(self.id(), &page)?;
        }
        if moved > 0 {
            self.device().settle()?;
        }
        Ok(moved)
    }

    fn delete_within(&self, (lower, upper): &Bounds) -> Result<u64, Error> {
        let range = KeyRange::new::<Vec<u8>>((lower.as_ref(), upper.as_ref()));
        self.device().shared().delete_range(By::Caller, self.id(), &range)
    }

    pub(crate) fn all_keys(&self) -> OrderedKeys {
        self.ordered_keys((Bound::Unbounded, Bound::Unbounded))
    }

    /// Keys as of the moments when they are taken from the index; a key that exists all the time is returned exactly once.
    fn ordered_keys(&self, bounds: Bounds) -> OrderedKeys {
        OrderedKeys::new(View::Present(self.device().clone()), self.id(), bounds)
    }

    /// The record with the least key.
    ///
    /// # Errors
    /// As [`Namespace::get`]; [`Error::NotOrdered`].
    pub fn first(&self) -> Result<Option<(KeyBuf, Vec<u8>)>, Error> {
        self.iter().next().transpose()
    }

    /// The record with the greatest key.
    ///
    /// # Errors
    /// As [`Namespace::first`].
    pub fn last(&self) -> Result<Option<(KeyBuf, Vec<u8>)>, Error> {
        self.iter().next_back().transpose()
    }

    /// How many keys a range has. Reads no flash; takes a second for some 50 million keys.
    ///
    /// # Errors
    /// As [`Namespace::first`].
    pub fn count<'k, K: Into<KeyRef<'k>> + Clone>(&self, range: impl RangeBounds<K>) -> Result<u64, Error> {
        Ok(self.device().ordered_index(self.id())?.count::<Vec<u8>>(owned(range)))
    }

    /// About how many keys a range has, in the time of two look-ups.
    ///
    /// # Errors
    /// As [`Namespace::first`].
    pub fn estimate<'k, K: Into<KeyRef<'k>> + Clone>(&self, range: impl RangeBounds<K>) -> Result<u64, Error> {
        Ok(self.device().ordered_index(self.id())?.estimate::<Vec<u8>>(owned(range)))
    }
}

/// Ranges of keys of ordered namespaces, as of the moment of the snapshot. Other namespaces refuse them with [`Error::NotOrdered`].
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, KeyKind, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let numbers = device.ensure_namespace("numbers", &NamespaceOptions::records(KeyKind::Ordered))?;
/// (0..10u64).try_for_each(|key| numbers.put(key, b""))?;
/// let snapshot = device.open_snapshot()?;
/// numbers.delete_range(3u64..7)?;
/// assert_eq!(snapshot.count(numbers.id(), 0u64..)?, 10);
/// let last = snapshot.range(numbers.id(), ..7u64).next_back().transpose()?;
/// assert_eq!(last.and_then(|(key, _)| key.as_u64()), Some(6));
/// # Ok::<(), kaml::Error>(())
/// ```
impl Snapshot {
    /// The records whose keys are in a range, as [`Namespace::range`].
    pub fn range<'k, K: Into<KeyRef<'k>> + Clone>(
        &self,
        namespace: NamespaceId,
        range: impl RangeBounds<K>,
    ) -> Entries {
        Entries::new(View::Of(self.clone()), namespace, owned(range))
    }

    /// The records whose keys begin with a prefix, as [`Namespace::prefix`].
    pub fn prefix<'k>(&self, namespace: NamespaceId, prefix: impl Into<KeyRef<'k>>) -> Entries {
        Entries::new(View::Of(self.clone()), namespace, of_prefix(prefix.into().as_bytes()))
    }

    /// All records, in the order of their keys.
    pub fn iter(&self, namespace: NamespaceId) -> Entries {
        Entries::new(View::Of(self.clone()), namespace, (Bound::Unbounded, Bound::Unbounded))
    }

    /// The keys of a range, without their values.
    pub fn range_keys<'k, K: Into<KeyRef<'k>> + Clone>(
        &self,
        namespace: NamespaceId,
        range: impl RangeBounds<K>,
    ) -> OrderedKeys {
        OrderedKeys::new(View::Of(self.clone()), namespace, owned(range))
    }

    /// The keys that begin with a prefix, without their values.
    pub fn prefix_keys<'k>(&self, namespace: NamespaceId, prefix: impl Into<KeyRef<'k>>) -> OrderedKeys {
        OrderedKeys::new(View::Of(self.clone()), namespace, of_prefix(prefix.into().as_bytes()))
    }

    /// The record with the least key.
    ///
    /// # Errors
    /// As [`Snapshot::get`]; [`Error::NotOrdered`].
    pub fn first(&self, namespace: NamespaceId) -> Result<Option<(KeyBuf, Vec<u8>)>, Error> {
        self.iter(namespace).next().transpose()
    }

    /// The record with the greatest key.
    ///
    /// # Errors
    /// As [`Snapshot::first`].
    pub fn last(&self, namespace: NamespaceId) -> Result<Option<(KeyBuf, Vec<u8>)>, Error> {
        self.iter(namespace).next_back().transpose()
    }

    /// How many keys a range had. Reads no flash.
    ///
    /// # Errors
    /// As [`Snapshot::first`].
    pub fn count<'k, K: Into<KeyRef<'k>> + Clone>(
        &self,
        namespace: NamespaceId,
        range: impl RangeBounds<K>,
    ) -> Result<u64, Error> {
        let mut keys = Keys::new(View::Of(self.clone()), namespace, owned(range));
        let mut count = 0;
        while !keys.is_finished {
            count += keys.page(false, PAGE_KEYS_MAX)?.len() as u64;
        }
        Ok(count)
    }
}
