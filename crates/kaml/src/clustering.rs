//! Clustering: which records of ordered namespaces move next to each other, and when.
//!
//! Lives here:       clustering of a range on request, and of what a scan has read from many places.
//! Lives elsewhere:  moving one record (`kaml_device`, `cluster.rs`), reading many (`gather`).
//! Implements:       docs/ARCHITECTURE.md "Ordered namespaces".

use crate::KeyBuf;
use crate::NamespaceId;
use crate::driver::{By, Lookup, Shared};
use crate::error::Error;
use crate::gather::{Extent, Reads};
use kaml_device::{DIRECT_BYTES, FlashRead, FullKey, KeyRef, SpaceReader};
use kaml_flash::Io;
use std::ops::Bound;

/// Records of one extent from which on a range counts as clustered, when that is requested.
const CLUSTERED_PER_EXTENT: usize = 32;
/// A scan may take so many operations before it moves records, and one more for each [`READ_PER_EXTENT`] of them.
const EXTENTS_FEW: usize = 3;
const READ_PER_EXTENT: usize = 128;
/// An extent with fewer records is not worth an operation of its own.
const SHORT_EXTENT: usize = 8;
/// Records that are worth moving.
const MOVED_MIN: usize = 8;
/// Records moved at a time while the core is locked.
const MOVED_PER_VISIT: usize = 128;

/// Keys are those of a scan, of which the cache may have some, if there are at most so many times as many keys between the first and the last one.
const SCAN_KEYS_TIMES: u64 = 4;

/// Records that a scan reads from more places than it should.
pub(crate) struct Scattered {
    /// Of all that are read, which ones.
    moves: Vec<bool>,
    /// Their places among the keys and among the reads, and what is stored of them.
    stored: Vec<(usize, usize, Vec<u8>)>,
}

impl Scattered {
    /// Those that should move so that the next scan takes few operations: those in short extents, and all if they are most of them. Nothing if they lie well.
    pub(crate) fn among(reads: &Reads, extents: &[Extent]) -> Option<Scattered> {
        let few = EXTENTS_FEW + reads.len() / READ_PER_EXTENT;
        if extents.len() <= few {
            return None;
        }
        let mut moves = vec![false; reads.len()];
        for extent in extents.iter().filter(|extent| extent.reads.len() < SHORT_EXTENT) {
            moves[extent.reads.clone()].fill(true);
        }
        let short = moves.iter().filter(|moves| **moves).count();
        if short * 2 > reads.len() || short < MOVED_MIN && extents.len() > 2 * few {
            moves.fill(true);
        }
        moves.iter_mut().zip(reads).for_each(|(moves, (_, read))| *moves &= read.bytes < DIRECT_BYTES);
        let is_worth_it = moves.iter().filter(|moves| **moves).count() >= MOVED_MIN;
        is_worth_it.then(|| Scattered { moves, stored: Vec::new() })
    }

    /// Keeps what was read of those in an extent.
    pub(crate) fn keep<'a>(&mut self, extent: &Extent, reads: &Reads, bytes: impl Fn(&FlashRead) -> &'a [u8]) {
        for at in extent.reads.clone().filter(|at| self.moves[*at]) {
            let (place, read) = &reads[at];
            self.stored.push((*place, at, bytes(read).to_vec()));
        }
    }
}

impl Shared {
    /// Whether keys that are read together are those of a scan of an ordered namespace, and not any that somebody needs.
    pub(crate) fn are_neighbours(&self, keys: &[FullKey<'_>], reads: &Reads) -> bool {
        let Some((_, read)) = reads.first() else { return false };
        if reads.iter().any(|(_, other)| other.namespace() != read.namespace()) {
            return false;
        }
        let Ok(SpaceReader::Records(records)) = self.reader.of(read.namespace()) else { return false };
        let Ok(index) = records.ordered() else { return false };
        let bytes = || keys.iter().map(FullKey::as_bytes);
        let (Some(first), Some(last)) = (bytes().min(), bytes().max()) else { return false };
        index.estimate::<[u8]>((Bound::Included(first), Bound::Included(last))) <= SCAN_KEYS_TIMES * keys.len() as u64
    }

    /// Moves what a scan has read from many places next to each other, in the order of the keys. It costs no reads, waits for nothing, and stops when there is
    /// no room or when as much was moved as hosts have put.
    pub(crate) fn cluster_scattered(&self, reads: &Reads, mut scattered: Scattered) {
        scattered.stored.sort_unstable_by_key(|(place, ..)| *place);
        for some in scattered.stored.chunks(MOVED_PER_VISIT) {
            let mut core = self.lock();
            let mut act = |(_, at, bytes): &(usize, usize, Vec<u8>)| core.cluster_scanned(&reads[*at].1, bytes);
            let is_over = some.iter().any(|one| act(one).is_err());
            drop(core);
            self.wake_background();
            if is_over {
                return;
            }
        }
    }

    /// Moves the records of keys next to each other, in the order of the keys, unless they nearly are; how many moved.
    /// Contents do not change, so a store that is open need not know of it.
    pub(crate) fn cluster(&self, namespace: NamespaceId, keys: &[KeyBuf]) -> Result<u64, Error> {
        let mut reads: Vec<(usize, FlashRead)> = Vec::new();
        for (place, key) in keys.iter().enumerate() {
            let mut value = Vec::new();
            // A record in a write buffer is left where it comes to lie.
            if let Lookup::Read(read) = self.find(namespace, &self.key(KeyRef::from(key))?, &mut value)?
                && read.bytes < DIRECT_BYTES
            {
                reads.push((place, read));
            }
        }
        reads.sort_unstable_by_key(|(_, read)| read.at);
        let extents = self.extents(&reads);
        if extents.len() <= reads.len().div_ceil(CLUSTERED_PER_EXTENT) {
            return Ok(0);
        }
        let mut stored: Vec<Option<Vec<u8>>> = vec![None; keys.len()];
        self.read_extents(&reads, &extents, |extent, completion| {
            completion.result?;
            let Io::Read { at, into } = completion.io else { unreachable!("reads are submitted") };
            for (place, read) in &reads[extent.reads.clone()] {
                stored[*place] = Some(self.within(at, read, &into).to_vec());
            }
            Ok(())
        })?;
        reads.sort_unstable_by_key(|(place, _)| *place);
        let mut moved = 0;
        for (place, read) in &reads {
            let bytes = stored[*place].as_deref().expect("read above");
            if read.value(bytes).is_err() {
                continue; // a get reports it
            }
            let (core, did) = self.visit(By::Store, |core| core.cluster(namespace, read, bytes))?;
            drop(core);
            moved += u64::from(did);
        }
        self.wake_background();
        Ok(moved)
    }
}
