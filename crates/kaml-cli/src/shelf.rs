//! Records of a tree in a namespace of either kind, found by keys that have an order.
//!
//! Lives here:       where a versioned namespace, which takes keys of at most 16 bytes, has the record of a longer key; its keys in their order.
//! Lives elsewhere:  which keys and records a tree has (`tree`).
//! Implements:       docs/formats/tree.md "In a versioned namespace".
//!
//! An ordered namespace has the keys of a tree as they are. In a versioned one a record is under a digest of its key, and the key is stored after
//! the value. Its keys are listed from the digests, and from the metadata, which name contents and pieces. So listing reads no contents.

use crate::place::Place;
use crate::tree::{Kind, Metadata, split};
use kaml::{At, Batch, Condition, Error, Key, KeyBuf, KeyKind, NamespaceId, NamespaceInfo, NamespaceKind};
use kaml_terminal::failure::Failure;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashSet};
use std::ops::Bound;
use std::sync::Mutex;

/// Digests fetched from the device at a time.
const PAGE_KEYS: usize = 4096;
/// Bytes of the length of a key, after it.
const LEN_BYTES: usize = 2;

/// One change of a batch.
pub struct Change<'c> {
    /// The key.
    pub key: Vec<u8>,
    /// The value that it gets; nothing: it is deleted.
    pub value: Option<&'c [u8]>,
    /// The batch is refused if the key does not exist.
    pub must_exist: bool,
}

impl<'c> Change<'c> {
    /// Stores a value.
    pub fn put(key: Vec<u8>, value: &'c [u8]) -> Change<'c> {
        Change { key, value: Some(value), must_exist: false }
    }

    /// Deletes a key, if it exists.
    pub fn delete(key: Vec<u8>) -> Change<'c> {
        Change { key, value: None, must_exist: false }
    }

    /// Deletes a key that exists.
    pub fn delete_existing(key: Vec<u8>) -> Change<'c> {
        Change { must_exist: true, ..Change::delete(key) }
    }
}

/// The records of a tree.
pub struct Shelf<'a> {
    device: &'a dyn Place,
    namespace: NamespaceId,
    is_versioned: bool,
    /// What is read is as of this snapshot.
    as_of: Option<u32>,
    /// All keys of a versioned namespace, after some were requested in their order.
    keys: Mutex<Option<BTreeSet<Vec<u8>>>>,
}

impl<'a> Shelf<'a> {
    /// The records of a namespace that can hold a tree, as they are now or in a snapshot.
    pub fn open(device: &'a dyn Place, info: &NamespaceInfo, as_of: Option<u32>) -> Result<Shelf<'a>, Failure> {
        let is_versioned = matches!(info.kind, NamespaceKind::Versions(..));
        let name = &info.name;
        match (is_versioned, info.keys()) {
            (true, KeyKind::Bytes) | (false, KeyKind::Ordered) => {}
            (true, _) => {
                let what = "its keys are numbers; a tree of files needs keys of 1 to 16 bytes there";
                return Err(Failure::Usage(format!("namespace `{name}`: {what}")));
            }
            (false, _) => {
                let what =
                    "its keys have no order; a tree of files needs a namespace made with --keys ordered or --versioned";
                return Err(Failure::Usage(format!("namespace `{name}`: {what}")));
            }
        }
        if as_of.is_some() && !is_versioned {
            return Err(Failure::Usage(format!("namespace `{name}` keeps no versions, which --as-of reads")));
        }
        Ok(Shelf { device, namespace: info.id, is_versioned, as_of, keys: Mutex::new(None) })
    }

    /// The records of a namespace that are read by their own keys.
    pub fn of_records(device: &'a dyn Place, namespace: NamespaceId) -> Shelf<'a> {
        Shelf { device, namespace, is_versioned: false, as_of: None, keys: Mutex::new(None) }
    }

    /// The device.
    pub fn device(&self) -> &'a dyn Place {
        self.device
    }

    /// The namespace.
    pub fn namespace(&self) -> NamespaceId {
        self.namespace
    }

    /// Whether a versioned namespace holds a tree.
    pub fn holds_tree(&self) -> Result<bool, Error> {
        let mut found = false;
        self.for_each_digest(&mut |digest| {
            found |= digest.as_bytes()[0] == METADATA && self.stored(&digest)?.is_some();
            Ok(!found)
        })?;
        Ok(found)
    }

    /// The value of a key.
    pub fn get(&self, key: &KeyBuf) -> Result<Option<Vec<u8>>, Error> {
        if !self.is_versioned {
            return self.device.get(self.namespace, key.into());
        }
        let Some((mut stored, of)) = self.stored(&digest(key.as_bytes()))? else { return Ok(None) };
        if stored[of..stored.len() - LEN_BYTES] != *key.as_bytes() {
            return Err(Error::Internal("another path has the same digest".to_owned()));
        }
        stored.truncate(of);
        Ok(Some(stored))
    }

    /// Whether a key exists.
    pub fn exists(&self, key: &KeyBuf) -> Result<bool, Error> {
        match (self.is_versioned, self.as_of) {
            (false, _) => self.device.exists(self.namespace, key.into()),
            (true, None) => self.device.exists(self.namespace, (&digest(key.as_bytes())).into()),
            (true, Some(_)) => Ok(self.read(&digest(key.as_bytes()))?.is_some()),
        }
    }

    /// Stores a value under a key.
    pub fn put(&self, key: &KeyBuf, value: &[u8]) -> Result<(), Error> {
        if !self.is_versioned {
            return self.device.put_if(self.namespace, key.into(), value, Condition::Always);
        }
        let stored = with_key(value, key.as_bytes());
        self.device.put_if(self.namespace, (&digest(key.as_bytes())).into(), &stored, Condition::Always)?;
        self.note(key.as_bytes(), true);
        Ok(())
    }

    /// All changes, or none.
    pub fn write(&self, changes: &[Change<'_>]) -> Result<(), Error> {
        let mut batch = Batch::new();
        for Change { key, value, must_exist } in changes {
            let at = if self.is_versioned { digest(key) } else { KeyBuf::new(key)? };
            match (value, must_exist) {
                (Some(value), _) if self.is_versioned => batch.put(self.namespace, &at, &with_key(value, key)),
                (Some(value), _) => batch.put(self.namespace, &at, value),
                (None, true) => batch.delete_if_present(self.namespace, &at),
                // A delete is a version, too.
                (None, false) if self.is_versioned && !self.device.exists(self.namespace, (&at).into())? => &mut batch,
                (None, false) => batch.delete(self.namespace, &at),
            };
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.device.write(&batch)?;
        changes.iter().for_each(|change| self.note(&change.key, change.value.is_some()));
        Ok(())
    }

    /// Keys within bounds, in their order, at most `limit`.
    pub fn range(&self, (lower, upper): (Bound<&[u8]>, Bound<&[u8]>), limit: usize) -> Result<Vec<KeyBuf>, Error> {
        if !self.is_versioned {
            return self.device.range(self.namespace, (lower, upper), false, limit);
        }
        let mut keys = self.keys.lock().expect("nothing panics under this lock");
        if keys.is_none() {
            *keys = Some(self.list()?);
        }
        let is_empty = match (lower, upper) {
            (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => a >= b,
            _ => false,
        };
        let Some(keys) = keys.as_ref().filter(|_| !is_empty) else { return Ok(Vec::new()) };
        let within = keys.range::<[u8], _>((lower, upper)).take(limit);
        within.map(|key| Ok(KeyBuf::new(key)?)).collect()
    }

    // --- versioned namespaces ---------------------------------------------------------------------------------------

    /// A key exists from now on, or does not.
    fn note(&self, key: &[u8], exists: bool) {
        if let Some(keys) = self.keys.lock().expect("nothing panics under this lock").as_mut() {
            if exists {
                keys.insert(key.to_vec())
            } else {
                keys.remove(key)
            };
        }
    }

    fn read(&self, digest: &KeyBuf) -> Result<Option<Vec<u8>>, Error> {
        Ok(match self.as_of {
            None => self.device.get(self.namespace, digest.into())?,
            Some(version) => {
                let key = Key::new(digest.as_bytes())?;
                self.device.get_version(self.namespace, key, At::Snapshot(version))?
            }
        })
    }

    /// What is stored under a digest, and where the key begins in it; nothing if it is no record of a tree.
    fn stored(&self, at: &KeyBuf) -> Result<Option<(Vec<u8>, usize)>, Error> {
        let Some(stored) = self.read(at)? else { return Ok(None) };
        let Some(begin) = key_begin(&stored) else { return Ok(None) };
        let is_own = digest(&stored[begin..stored.len() - LEN_BYTES]) == *at;
        Ok(is_own.then_some((stored, begin)))
    }

    /// All keys that a record of the tree has.
    fn list(&self) -> Result<BTreeSet<Vec<u8>>, Error> {
        let (mut keys, mut others, mut metadata) = (BTreeSet::new(), HashSet::new(), Vec::new());
        self.for_each_digest(&mut |digest| {
            match digest.as_bytes()[0] {
                METADATA => metadata.push(digest),
                _ => drop(others.insert(digest.as_bytes().to_vec())),
            }
            Ok(true)
        })?;
        let mut claim = |keys: &mut BTreeSet<Vec<u8>>, key: &[u8]| {
            if others.remove(digest(key).as_bytes()) {
                keys.insert(key.to_vec());
            }
        };
        for at in metadata {
            let Some((stored, begin)) = self.stored(&at)? else { continue };
            let key = &stored[begin..stored.len() - LEN_BYTES];
            let (path, _) = split(key);
            claim(&mut keys, path);
            // Pieces of what cannot be read are found one by one.
            if let Ok(Metadata { kind: Kind::Pieces(pieces), .. }) = Metadata::from_bytes(&stored[..begin]) {
                for number in pieces.runs.iter().flat_map(|(first, count)| *first..first + count) {
                    claim(&mut keys, &piece(path, pieces.upload, number));
                }
            }
            keys.insert(key.to_vec());
        }
        // What no metadata name: what a killed import left.
        for at in others {
            let at = KeyBuf::new(&at)?;
            if let Some((stored, begin)) = self.stored(&at)? {
                keys.insert(stored[begin..stored.len() - LEN_BYTES].to_vec());
            }
        }
        Ok(keys)
    }

    /// Every key of the namespace that can be a digest, until `each` returns false.
    fn for_each_digest(&self, each: &mut dyn FnMut(KeyBuf) -> Result<bool, Error>) -> Result<(), Error> {
        let mut gone = HashSet::new();
        if let Some(version) = self.as_of {
            let mut then = Vec::new();
            self.device.diff(self.namespace, Some(version), None, &mut |key, difference| {
                match difference {
                    kaml::Difference::Added => drop(gone.insert(key.as_bytes().to_vec())),
                    kaml::Difference::Removed => then.push(KeyBuf::from(key)),
                    kaml::Difference::Changed => {}
                }
                true
            })?;
            for key in then.into_iter().filter(is_digest) {
                if !each(key)? {
                    return Ok(());
                }
            }
        }
        let mut after: Option<KeyBuf> = None;
        loop {
            let page = self.device.list(self.namespace, after.as_ref(), PAGE_KEYS)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.clone());
            for key in page {
                if is_digest(&key) && !gone.contains(key.as_bytes()) && !each(key)? {
                    return Ok(());
                }
            }
        }
    }
}

const CONTENTS: u8 = b'c';
const METADATA: u8 = b'm';
const OF_UPLOAD: u8 = b'p';

fn is_digest(key: &KeyBuf) -> bool {
    key.as_bytes().len() == Key::BYTES_MAX && matches!(key.as_bytes()[0], CONTENTS | METADATA | OF_UPLOAD)
}

/// Under which key of 16 bytes the record of a key of a tree is: what it has, then 120 bits of SHA-256.
fn digest(key: &[u8]) -> KeyBuf {
    let class = match split(key) {
        (_, None) => CONTENTS,
        (_, Some([])) => METADATA,
        (_, Some(_)) => OF_UPLOAD,
    };
    let mut bytes = [0; Key::BYTES_MAX];
    bytes[0] = class;
    bytes[1..].copy_from_slice(&Sha256::digest(key)[..Key::BYTES_MAX - 1]);
    KeyBuf::new(&bytes).expect("16 bytes")
}

/// The key of a piece.
fn piece(path: &[u8], upload: u64, number: u64) -> Vec<u8> {
    [path, b"\0", &upload.to_be_bytes(), &number.to_be_bytes()].concat()
}

/// A value as it is stored: then the key, then the length of that.
fn with_key(value: &[u8], key: &[u8]) -> Vec<u8> {
    [value, key, &(key.len() as u16).to_le_bytes()].concat()
}

/// Where the key begins in what is stored.
fn key_begin(stored: &[u8]) -> Option<usize> {
    let (rest, len) = stored.split_last_chunk::<LEN_BYTES>()?;
    rest.len().checked_sub(usize::from(u16::from_le_bytes(*len)))
}
