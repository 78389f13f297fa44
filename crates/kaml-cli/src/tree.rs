//! A tree of files as records of an ordered namespace.
//!
//! Lives here:       keys, the metadata record, finding and reading what is stored, deleting it.
//! Lives elsewhere:  finding files (`walk`), storing them (`intake`), making them again (`restore`), trees that earlier versions stored
//!                   (`old_tree`).
//! Implements:       docs/formats/tree.md.
//!
//! | key | record |
//! |---|---|
//! | PATH | the contents of a file of at most 256 KiB |
//! | PATH, 00 | metadata as JSON ([`Metadata`]) |
//! | PATH, 00, upload (8 bytes) | empty; an import is storing pieces |
//! | PATH, 00, upload, number (8 bytes) | a piece of a larger file |
//!
//! A path has no NUL byte, so everything about a path is next to it, and no other path can have one of these keys. A record under the path itself is
//! the contents, whatever the metadata describe: a program that puts it has written the file.

use crate::old_tree;
use crate::place::{self, Place};
use crate::shelf::{Change, Shelf};
use crate::walk;
use kaml::{KeyBuf, NamespaceId, NamespaceInfo};
use kaml_terminal::failure::Failure;
use rustix::fs::{major, minor};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::Metadata as FileMetadata;
use std::ops::{Bound, Range};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// Bytes of each piece but the last, and of the largest file in one record. A power of two, so readers compute with shifts. The smallest
/// device, of 32 MiB, takes values of 272 KiB. Pieces of 32 KiB and more are written once, and one flush for 256 KiB costs little.
pub const PIECE_BYTES: u64 = 256 << 10;
/// Bytes of a path at most: a key has 1024, and that of a piece has 17 more than the path.
pub const PATH_BYTES_MAX: usize = 1024 - 17;
/// Keys fetched from the device at a time.
const PAGE_KEYS: usize = 1024;
/// Contents that are read as one value have at most this many bytes.
const VALUE_BYTES_MAX: u64 = 1 << 30;
/// Of the metadata record.
const FORMAT: u32 = 1;

/// Bytes in JSON: a string, or numbers if they are no text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Bytes {
    /// Text.
    Text(String),
    /// Other bytes.
    Raw(Vec<u8>),
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Bytes {
        std::str::from_utf8(bytes).map_or_else(|_| Bytes::Raw(bytes.into()), |text| Bytes::Text(text.into()))
    }
}

impl Bytes {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Bytes::Text(text) => text.as_bytes(),
            Bytes::Raw(bytes) => bytes,
        }
    }
}

/// Where the contents of a large file are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pieces {
    /// The number in the keys of the pieces. It has 53 bits, which every reader of JSON keeps.
    pub upload: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// First piece and count of pieces, in order. Pieces between them are holes.
    pub runs: Vec<(u64, u64)>,
}

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A file; its contents are the record under the path.
    File,
    /// A large file.
    Pieces(Pieces),
    /// Another name of the file with this path.
    HardLink(Bytes),
    /// A directory.
    Directory,
    /// A symbolic link to this target.
    Link(Bytes),
    /// A named pipe.
    Fifo,
    /// A character device with major and minor number.
    CharacterDevice(u32, u32),
    /// A block device.
    BlockDevice(u32, u32),
}

/// What is known about a path; stored as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// Of the record.
    pub format: u32,
    /// What it is.
    pub kind: Kind,
    /// The twelve permission bits.
    pub mode: u32,
    /// Numbers of user and group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<(u32, u32)>,
    /// Seconds since 1970, and nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<(i64, u32)>,
    /// The file has holes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_sparse: bool,
    /// Extended attributes, access control lists among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<(Bytes, Bytes)>,
}

impl Metadata {
    /// Of a record that a program put without any.
    pub fn unknown(kind: Kind, mode: u32) -> Metadata {
        let (owner, modified, attributes) = (None, None, Vec::new());
        Metadata { format: FORMAT, kind, mode, owner, modified, is_sparse: false, attributes }
    }

    /// Of a file as the system describes it.
    pub fn new(kind: Kind, found: &FileMetadata) -> Metadata {
        Metadata {
            owner: Some((found.uid(), found.gid())),
            modified: Some((found.mtime(), found.mtime_nsec() as u32)),
            is_sparse: found.is_file() && found.blocks() * 512 < found.len(),
            ..Metadata::unknown(kind, found.mode() & 0o7777)
        }
    }

    /// What is no file, directory or link and has metadata alone.
    pub fn of_special(found: &FileMetadata) -> Option<Metadata> {
        let (major, minor) = (major(found.rdev()), minor(found.rdev()));
        let kind = match found.file_type() {
            kind if kind.is_fifo() => Kind::Fifo,
            kind if kind.is_char_device() => Kind::CharacterDevice(major, minor),
            kind if kind.is_block_device() => Kind::BlockDevice(major, minor),
            _ => return None,
        };
        Some(Metadata::new(kind, found))
    }

    /// The record.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("metadata is plain data")
    }

    /// Reads the record. A wrong one is an error, never something else than what was stored.
    pub fn from_bytes(bytes: &[u8]) -> Result<Metadata, Failure> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let wrong = |what: String| Failure::Failed(format!("not a metadata record: {what}"));
        let head: Head = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        if head.format != FORMAT {
            return Err(wrong(format!("format {}, of a newer version of kaml", head.format)));
        }
        let metadata: Metadata = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        metadata.check().map_or_else(|what| Err(wrong(what.into())), |()| Ok(metadata))
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.mode > 0o7777 || self.modified.is_some_and(|(_, nanoseconds)| nanoseconds >= 1_000_000_000) {
            return Err("a mode or a time that no file has");
        }
        match &self.kind {
            Kind::Pieces(pieces) => {
                let (mut end, count) = (0, pieces.bytes.div_ceil(PIECE_BYTES));
                for &(first, run) in &pieces.runs {
                    if first < end || run == 0 || first.checked_add(run).is_none_or(|end| end > count) {
                        return Err("pieces outside the file, or not in order");
                    }
                    end = first + run;
                }
                // Offsets in files are signed.
                if pieces.bytes > i64::MAX as u64 { Err("a file that is too long") } else { Ok(()) }
            }
            Kind::HardLink(path) if !is_path(path.as_bytes()) => Err("a hard link that leads out of the tree"),
            _ => Ok(()),
        }
    }
}

/// Whether something is a path below a root and stays there.
pub fn is_path(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').all(|name| !matches!(name, b"" | b"." | b"..")) && !path.contains(&0)
}

/// A key of the tree: that of the path with something after it.
pub fn key(parts: &[&[u8]]) -> Result<KeyBuf, Failure> {
    Ok(KeyBuf::new(&parts.concat()).map_err(kaml::Error::from)?)
}

/// The key of the metadata of a path.
pub fn metadata_key(path: &[u8]) -> Result<KeyBuf, Failure> {
    key(&[path, b"\0"])
}

/// The path that a key is about, and what follows the NUL byte if it has one.
pub fn split(key: &[u8]) -> (&[u8], Option<&[u8]>) {
    match key.iter().position(|byte| *byte == 0) {
        Some(at) => (&key[..at], Some(&key[at + 1..])),
        None => (key, None),
    }
}

/// A path that has records.
#[derive(Debug)]
pub struct Found {
    /// The path.
    pub path: Vec<u8>,
    has_record: bool,
    has_metadata: bool,
    /// It has a record that no import made.
    is_foreign: bool,
}

impl Found {
    /// Whether there is a metadata record.
    pub fn has_metadata(&self) -> bool {
        self.has_metadata
    }
}

/// A path with what is known about it.
#[derive(Clone, Debug)]
pub struct Node {
    /// The path.
    pub path: Vec<u8>,
    /// Its metadata.
    pub metadata: Metadata,
    /// Where a tree of an earlier version has its contents.
    pub old: Option<old_tree::Contents>,
}

/// A tree, or the part of one below a directory.
pub struct Tree<'a> {
    records: Shelf<'a>,
    /// Of all its paths: nothing, or a path and a slash.
    prefix: Vec<u8>,
}

/// Takes a piece of a file: where it begins and its bytes.
pub type Take<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Failure> + 'a;

impl<'a> Tree<'a> {
    /// The tree in a namespace, below a directory if one is given.
    pub fn open(device: &'a dyn Place, info: &NamespaceInfo, directory: &[u8]) -> Result<Tree<'a>, Failure> {
        Tree::open_as_of(device, info, directory, None)
    }

    /// The same as it was in a snapshot of a versioned namespace.
    pub fn open_as_of(
        device: &'a dyn Place,
        info: &NamespaceInfo,
        directory: &[u8],
        as_of: Option<u32>,
    ) -> Result<Tree<'a>, Failure> {
        let records = Shelf::open(device, info, as_of)?;
        let end = directory.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let mut prefix = directory[..end].to_vec();
        if !prefix.is_empty() {
            if !is_path(&prefix) {
                let shown = walk::shown(walk::as_path(&prefix));
                return Err(Failure::Usage(format!(
                    "`{shown}` is no path of a tree, which has neither `..` nor a root"
                )));
            }
            prefix.push(b'/');
        }
        Ok(Tree { records, prefix })
    }

    /// That of an earlier version, of which nodes with their contents are known.
    pub fn of_old(device: &'a dyn Place, namespace: NamespaceId) -> Tree<'a> {
        Tree { records: Shelf::of_records(device, namespace), prefix: Vec::new() }
    }

    /// Stores the marker of an upload, or a piece.
    pub fn put_part(&self, key: &KeyBuf, value: &[u8]) -> Result<(), kaml::Error> {
        self.records.put(key, value)
    }

    /// The path in the tree of a path below the directory.
    pub fn path(&self, below: &[u8]) -> Vec<u8> {
        [&self.prefix, below].concat()
    }

    /// The directory, without a slash at its end.
    pub fn directory(&self) -> &[u8] {
        self.prefix.strip_suffix(b"/").unwrap_or(&self.prefix)
    }

    /// The path below the directory of a path in the tree, if it is there.
    pub fn below<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        path.strip_prefix(&self.prefix[..])
    }

    /// All paths, in their order.
    pub fn paths(&self) -> Paths<'_> {
        let mut end = self.prefix.clone();
        let upper = end.last_mut().map(|last| *last += 1).map_or(Bound::Unbounded, |()| Bound::Excluded(end));
        Paths(self.keys((Bound::Included(self.prefix.clone()), upper)))
    }

    fn keys(&self, (lower, upper): (Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Keys<'_> {
        Keys { tree: self, lower, upper, page: VecDeque::new() }
    }

    /// What is known about a path, if it exists.
    pub fn find(&self, path: &[u8]) -> Result<Option<Node>, Failure> {
        let has_record = self.records.exists(&key(&[path])?)?;
        self.look(Found { path: path.into(), has_record, has_metadata: true, is_foreign: false })
    }

    /// What is known about a path that has records; nothing if these are pieces without a file, or a file whose record was deleted.
    pub fn look(&self, found: Found) -> Result<Option<Node>, Failure> {
        if found.is_foreign {
            return Err(Failure::Failed("has records that belong to no tree; --format jsonl writes them".into()));
        }
        let bytes = match found.has_metadata {
            true => self.records.get(&metadata_key(&found.path)?)?,
            false => None,
        };
        let metadata = match (bytes.map(|bytes| Metadata::from_bytes(&bytes)).transpose()?, found.has_record) {
            (None, false) | (Some(Metadata { kind: Kind::File, .. }), false) => return Ok(None),
            (None, true) => Metadata::unknown(Kind::File, 0o644),
            (Some(metadata), false) => metadata,
            (Some(metadata), true) => Metadata { kind: Kind::File, ..metadata },
        };
        Ok(Some(Node { path: found.path, metadata, old: None }))
    }

    /// The file that a hard link is another name of; the same node for anything else.
    pub fn resolve(&self, node: &Node) -> Result<Node, Failure> {
        let Kind::HardLink(path) = &node.metadata.kind else { return Ok(node.clone()) };
        match self.find(path.as_bytes())? {
            Some(file) if !matches!(file.metadata.kind, Kind::HardLink(_)) => Ok(file),
            _ => {
                let shown = walk::shown(walk::as_path(path.as_bytes()));
                Err(Failure::Failed(format!("is a hard link to `{shown}`, which is missing")))
            }
        }
    }

    /// Hands over the contents of a file within a range, in order and without holes: the offset and the bytes of each piece.
    /// Returns the length of the whole file.
    pub fn read(&self, node: &Node, range: Range<u64>, take: &mut Take<'_>) -> Result<u64, Failure> {
        let missing = || Failure::Failed("contents are missing".into());
        let get = |key: &KeyBuf| self.records.get(key)?.ok_or_else(missing);
        let mut hand_over = |at: u64, bytes: &[u8]| {
            let from = range.start.saturating_sub(at).min(bytes.len() as u64) as usize;
            let to = range.end.saturating_sub(at).min(bytes.len() as u64) as usize;
            if from < to { take(at + from as u64, &bytes[from..to]) } else { Ok(()) }
        };
        match (&node.metadata.kind, &node.old) {
            (_, Some(old)) => old.read(self.records.device(), self.records.namespace(), take),
            (Kind::File, None) => {
                let bytes = get(&key(&[&node.path])?)?;
                hand_over(0, &bytes)?;
                Ok(bytes.len() as u64)
            }
            (Kind::Pieces(pieces), None) => {
                let wanted = range.start / PIECE_BYTES..range.end.min(pieces.bytes).div_ceil(PIECE_BYTES);
                for &(first, count) in &pieces.runs {
                    for number in first.max(wanted.start)..(first + count).min(wanted.end) {
                        let bytes = get(&piece_key(&node.path, pieces.upload, number)?)?;
                        let at = number * PIECE_BYTES;
                        if bytes.len() as u64 != PIECE_BYTES.min(pieces.bytes - at) {
                            return Err(Failure::Failed("contents do not match the metadata".into()));
                        }
                        hand_over(at, &bytes)?;
                    }
                }
                Ok(pieces.bytes)
            }
            _ => Err(Failure::Failed("is no file".into())),
        }
    }

    /// The whole contents of a file that has no record under its path: a large one, or another name of a file.
    pub fn contents(&self, path: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let Some(node) = self.find(path)? else { return Ok(None) };
        if !matches!(node.metadata.kind, Kind::Pieces(_) | Kind::HardLink(_)) {
            return Ok(None);
        }
        let file = self.resolve(&node)?;
        if matches!(&file.metadata.kind, Kind::Pieces(pieces) if pieces.bytes > VALUE_BYTES_MAX) {
            return Err(Failure::Failed("a file that is longer than any value; `kaml cat` reads it".into()));
        }
        let mut contents = Vec::new();
        let bytes = self.read(&file, 0..u64::MAX, &mut |at, bytes| {
            contents.resize(at as usize, 0);
            contents.extend_from_slice(bytes);
            Ok(())
        })?;
        contents.resize(bytes as usize, 0);
        Ok(Some(contents))
    }

    /// One atomic Put that makes something what a path leads to; pieces that it had before are deleted after it.
    pub fn put(&self, path: &[u8], metadata: &Metadata, contents: Option<&[u8]>) -> Result<(), kaml::Error> {
        let bytes = metadata.to_bytes();
        let mut changes = vec![Change::put([path, b"\0"].concat(), &bytes)];
        match (contents, &metadata.kind) {
            (Some(contents), _) => changes.push(Change::put(path.into(), contents)),
            (None, Kind::Pieces(pieces)) => {
                // Another import that found the upload unfinished has removed this record, and then the pieces.
                let marker = [path, b"\0", &pieces.upload.to_be_bytes()].concat();
                changes.extend([Change::delete(path.into()), Change::delete_existing(marker)]);
            }
            (None, _) => changes.push(Change::delete(path.into())),
        };
        self.records.write(&changes)?;
        let rest = [path, b"\0\0"].concat();
        let end = [path, b"\x01"].concat();
        match &metadata.kind {
            Kind::Pieces(pieces) => {
                self.delete_range(rest, [path, b"\0", &pieces.upload.to_be_bytes()].concat())?;
                self.delete_range(after_upload(path, pieces.upload), end)
            }
            _ => self.delete_range(rest, end),
        }
    }

    /// Deletes a path, whatever it leads to, and leaves what is below it.
    pub fn delete(&self, path: &[u8]) -> Result<(), kaml::Error> {
        self.records.write(&[Change::delete(path.into()), Change::delete([path, b"\0"].concat())])?;
        self.delete_range([path, b"\0"].concat(), [path, b"\x01"].concat())
    }

    /// Deletes all that is below a path.
    pub fn delete_below(&self, path: &[u8]) -> Result<(), kaml::Error> {
        self.delete_range([path, b"/"].concat(), [path, b"0"].concat())
    }

    /// Deletes the records whose keys are in a range, in several atomic batches.
    pub fn delete_range(&self, from: Vec<u8>, to: Vec<u8>) -> Result<(), kaml::Error> {
        let limit = place::batch_limit(self.records.device()) / (2 * PATH_BYTES_MAX as u64);
        let (mut changes, mut keys) = (Vec::new(), self.keys((Bound::Included(from), Bound::Excluded(to))));
        while let Some(key) = keys.next_key()? {
            if changes.len() as u64 > limit {
                self.records.write(&changes)?;
                changes.clear();
            }
            changes.push(Change::delete(key.as_bytes().to_vec()));
        }
        self.records.write(&changes)
    }

    /// Deletes the pieces of interrupted imports, which no file has. Returns of how many files.
    pub fn delete_unfinished(&self) -> Result<u64, Failure> {
        let (mut count, mut keys) = (0, self.paths().0);
        while let Some(key) = keys.next_key()? {
            let (path, Some(suffix)) = split(key.as_bytes()) else { continue };
            let Some((upload, number)) = suffix.split_first_chunk() else { continue };
            if !matches!(number.len(), 0 | 8) {
                continue; // no import made it
            }
            let upload = u64::from_be_bytes(*upload);
            if self.delete_upload(path, upload, number.is_empty())? {
                count += 1;
            }
            keys.skip_to(after_upload(path, upload));
        }
        Ok(count)
    }

    /// Deletes an upload, unless it has become a file or another import still stores it.
    pub fn delete_upload(&self, path: &[u8], upload: u64, has_marker: bool) -> Result<bool, Failure> {
        let marker = key(&[path, b"\0", &upload.to_be_bytes()])?;
        if has_marker {
            match self.records.write(&[Change::delete_existing(marker.as_bytes().to_vec())]) {
                Err(error) if error.is_conflict() => return Ok(false),
                written => written?,
            }
        } else {
            // In this order: the Put that makes pieces a file deletes the marker.
            let is_unfinished = self.records.exists(&marker)?;
            let file = self.records.get(&metadata_key(path)?)?;
            let file = file.map(|bytes| Metadata::from_bytes(&bytes)).transpose();
            let is_used = match file {
                Ok(file) => {
                    matches!(file, Some(Metadata { kind: Kind::Pieces(pieces), .. }) if pieces.upload == upload)
                }
                Err(_) => true, // what cannot be read may name them
            };
            if is_unfinished || is_used {
                return Ok(false);
            }
        }
        self.delete_range(marker.as_bytes().to_vec(), after_upload(path, upload))?;
        Ok(true)
    }
}

/// What is after the keys of an upload.
fn after_upload(path: &[u8], upload: u64) -> Vec<u8> {
    match upload.checked_add(1) {
        Some(next) => [path, b"\0", &next.to_be_bytes()].concat(),
        None => [path, b"\x01"].concat(),
    }
}

/// The key of a piece.
pub fn piece_key(path: &[u8], upload: u64, number: u64) -> Result<KeyBuf, Failure> {
    key(&[path, b"\0", &upload.to_be_bytes(), &number.to_be_bytes()])
}

/// Keys within bounds, in their order.
struct Keys<'t> {
    tree: &'t Tree<'t>,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    page: VecDeque<KeyBuf>,
}

impl Keys<'_> {
    fn peek(&mut self) -> Result<Option<&KeyBuf>, kaml::Error> {
        if self.page.is_empty() {
            let bounds = (self.lower.as_ref().map(Vec::as_slice), self.upper.as_ref().map(Vec::as_slice));
            self.page = self.tree.records.range(bounds, PAGE_KEYS)?.into();
            if let Some(last) = self.page.back() {
                self.lower = Bound::Excluded(last.as_bytes().to_vec());
            }
        }
        Ok(self.page.front())
    }

    fn next_key(&mut self) -> Result<Option<KeyBuf>, kaml::Error> {
        self.peek()?;
        Ok(self.page.pop_front())
    }

    /// Passes over all keys before one.
    fn skip_to(&mut self, key: Vec<u8>) {
        while self.page.front().is_some_and(|next| next.as_bytes() < &key[..]) {
            self.page.pop_front();
        }
        if self.page.is_empty() {
            self.lower = Bound::Included(key);
        }
    }
}

/// Paths in their order.
pub struct Paths<'t>(Keys<'t>);

impl Paths<'_> {
    /// Passes over all that is below a path.
    pub fn skip_below(&mut self, path: &[u8]) {
        self.0.skip_to([path, b"0"].concat());
    }

    fn found(&mut self) -> Result<Option<Found>, kaml::Error> {
        let Some(first) = self.0.next_key()? else { return Ok(None) };
        let (path, suffix) = split(first.as_bytes());
        let mut found =
            Found { path: path.into(), has_record: suffix.is_none(), has_metadata: false, is_foreign: false };
        let is_of_tree = |suffix: &[u8]| matches!(suffix.len(), 8 | 16);
        match suffix {
            Some([]) => found.has_metadata = true,
            Some(suffix) => found.is_foreign = !is_of_tree(suffix),
            None => match self.0.peek()?.map(|next| split(next.as_bytes())) {
                Some((next, Some([]))) if next == path => found.has_metadata = true,
                Some((next, Some(suffix))) if next == path => found.is_foreign = !is_of_tree(suffix),
                _ => return Ok(Some(found)),
            },
        }
        self.0.skip_to([path, b"\x01"].concat());
        Ok(Some(found))
    }
}

impl Iterator for Paths<'_> {
    type Item = Result<Found, Failure>;

    fn next(&mut self) -> Option<Result<Found, Failure>> {
        self.found().map_err(Failure::from).transpose()
    }
}

#[cfg(test)]
mod tests;
