//! A directory tree as records: contents in one namespace, metadata in another.
//!
//! Lives here:       walking a tree, the metadata record, which keys a file's contents have, storing and reading them.
//! Lives elsewhere:  making a tree again (`restore`), flags and progress (`commands::import`, `commands::export`, `commands::quickstart`).
//!
//! The key of a path is the 128-bit XXH3 of its bytes, relative to the root; its metadata record keeps the path. A file
//! that fits one Put has its contents under the same key, and contents and metadata are one atomic Put. A larger file is
//! split into parts whose keys also hash its contents; they are put first, and the metadata record last: until that
//! Put the old version stands, and a crash leaves only parts that nothing refers to, which the next import of the same
//! contents uses again.

use crate::failure::Failure;
use crate::place::Place;
use crate::store::Identity;
use kaml::{Batch, Condition, Key, NamespaceId};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::{File, FileType, Metadata as FileMetadata};
use std::io::{Read, Seek};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Contents up to this go in one Put with their metadata, parts of larger files are this long, if the device takes it.
pub const PART_BYTES: u64 = 4 << 20;

/// What is known about a path; stored as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// The path in hexadecimal digits of its bytes if it is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// The path relative to the root; for a person only if `path_hex` is there.
    pub path: String,
    /// What is there.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Modified, in seconds since 1970.
    pub mtime_s: i64,
    /// Nanoseconds of that.
    pub mtime_ns: u32,
    /// Bytes of contents (of a link: of its target).
    pub bytes: u64,
    /// XXH3 of the contents, 32 hexadecimal digits.
    pub xxh3_128: String,
    /// Bytes of each part but the last; 0 if the contents are one record beside this one.
    pub part_bytes: u64,
    /// Which version of the file this is, for those that count.
    #[serde(default)]
    pub version: u32,
}

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link; its contents are the target.
    Link,
}

/// The two namespaces of a tree.
#[derive(Clone, Copy)]
pub struct Tree<'a> {
    /// The device.
    pub device: &'a dyn Place,
    /// Contents.
    pub contents: NamespaceId,
    /// Metadata.
    pub metadata: NamespaceId,
}

/// The names of the two namespaces of a tree.
pub fn namespace_names(name: &str) -> (String, String) {
    (name.to_owned(), format!("{name}.meta"))
}

/// A path to be stored.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where it is now.
    pub source: PathBuf,
    /// Relative to the root.
    pub path: PathBuf,
    /// Bytes of contents when it was found.
    pub bytes: u64,
}

/// What was found under a root.
#[derive(Debug, Default)]
pub struct Walk {
    /// What can be stored, in a fixed order.
    pub entries: Vec<Entry>,
    /// What cannot, and what it is.
    pub left_out: Vec<(PathBuf, &'static str)>,
}

/// Everything under `root` but the root itself; directories whose name is in `skip` are passed over, the device, sockets,
/// pipes and devices are left out.
pub fn walk(root: &Path, skip: &[&str], device: Option<Identity>) -> Result<Walk, Failure> {
    let skipped = |entry: &walkdir::DirEntry| {
        entry.depth() > 0 && entry.file_type().is_dir() && skip.iter().any(|name| entry.file_name() == OsStr::new(name))
    };
    let walk = walkdir::WalkDir::new(root).min_depth(1).sort_by_file_name();
    let mut found = Walk::default();
    for entry in walk.into_iter().filter_entry(|entry| !skipped(entry)) {
        let entry = entry.map_err(|error| Failure::Failed(error.to_string()))?;
        let kind = entry.file_type();
        let metadata = if kind.is_file() { entry.metadata().ok() } else { None };
        let is_device = device.is_some() && metadata.as_ref().map(|found| (found.dev(), found.ino())) == device;
        if let Some(what) = if is_device { Some("the device itself") } else { without_contents(kind) } {
            found.left_out.push((entry.into_path(), what));
            continue;
        }
        let bytes = metadata.map_or(0, |metadata| metadata.len());
        let path = entry.path().strip_prefix(root).expect("walked from the root").to_owned();
        found.entries.push(Entry { source: entry.into_path(), path, bytes });
    }
    Ok(found)
}

/// What has no contents to keep.
fn without_contents(kind: FileType) -> Option<&'static str> {
    match () {
        () if kind.is_socket() => Some("a socket"),
        () if kind.is_fifo() => Some("a pipe"),
        () if kind.is_block_device() => Some("a block device"),
        () if kind.is_char_device() => Some("a character device"),
        () if kind.is_file() || kind.is_dir() || kind.is_symlink() => None,
        () => Some("of a kind that is not known"),
    }
}

/// The key of a path.
pub fn path_key(path: &Path) -> Key {
    hash_key(xxh3_128(path.as_os_str().as_bytes()))
}

fn hash_key(hash: u128) -> Key {
    Key::new(&hash.to_be_bytes()).expect("16 bytes are a key")
}

fn part_key(path: &Path, contents_hash: &str, part: u64) -> Key {
    let mut hash = Xxh3::new();
    for piece in [path.as_os_str().as_bytes(), b"\0", contents_hash.as_bytes(), &part.to_le_bytes()] {
        hash.update(piece);
    }
    hash_key(hash.digest128())
}

/// XXH3 in hexadecimal digits.
pub fn content_hash(bytes: &[u8]) -> String {
    format!("{:032x}", xxh3_128(bytes))
}

impl Metadata {
    fn new(path: &Path, kind: Kind, metadata: &FileMetadata) -> Metadata {
        let bytes = path.as_os_str().as_bytes();
        Metadata {
            path_hex: std::str::from_utf8(bytes).is_err().then(|| crate::keys::hex(bytes)),
            path: path.to_string_lossy().into_owned(),
            kind,
            mode: metadata.mode() & 0o7777,
            mtime_s: metadata.mtime(),
            mtime_ns: metadata.mtime_nsec() as u32,
            bytes: 0,
            xxh3_128: String::new(),
            part_bytes: 0,
            version: 0,
        }
    }

    /// With contents in one record.
    pub fn with_contents(mut self, contents: &[u8]) -> Metadata {
        self.bytes = contents.len() as u64;
        self.xxh3_128 = content_hash(contents);
        self
    }

    /// What is known about a file, its contents aside.
    pub fn of_file(entry: &Entry) -> Result<Metadata, Failure> {
        let metadata = std::fs::symlink_metadata(&entry.source).map_err(Failure::io(entry.source.display()))?;
        Ok(Metadata::new(&entry.path, Kind::File, &metadata))
    }

    /// The record.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("metadata is plain data")
    }

    /// Reads the record.
    pub fn from_bytes(bytes: &[u8]) -> Result<Metadata, Failure> {
        serde_json::from_slice(bytes).map_err(|error| Failure::Failed(format!("not a metadata record: {error}")))
    }

    /// The path relative to the root; refused if it would lead out of it.
    pub fn relative_path(&self) -> Result<PathBuf, Failure> {
        let path = match &self.path_hex {
            None => PathBuf::from(&self.path),
            Some(digits) => PathBuf::from(std::ffi::OsString::from_vec(crate::keys::parse_hex(digits)?)),
        };
        let inside = path.components().all(|component| matches!(component, Component::Normal(_)));
        if !inside || path.as_os_str().is_empty() {
            return Err(Failure::Failed(format!("`{}` leads out of the tree", path.display())));
        }
        Ok(path)
    }

    /// Records that hold the contents.
    pub fn record_count(&self) -> u64 {
        if self.kind == Kind::Directory { 0 } else { self.part_count().max(1) }
    }

    fn part_count(&self) -> u64 {
        if self.part_bytes == 0 { 0 } else { self.bytes.div_ceil(self.part_bytes) }
    }
}

impl Metadata {
    /// When it was modified.
    pub fn modified(&self) -> SystemTime {
        let nanoseconds = Duration::from_nanos(u64::from(self.mtime_ns));
        let seconds = Duration::from_secs(self.mtime_s.unsigned_abs());
        let whole = if self.mtime_s < 0 {
            SystemTime::UNIX_EPOCH.checked_sub(seconds)
        } else {
            SystemTime::UNIX_EPOCH.checked_add(seconds)
        };
        whole.and_then(|time| time.checked_add(nanoseconds)).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

impl Tree<'_> {
    /// Stores a path: all of it, or, if this fails or the process dies, nothing of it. Answers the bytes of contents.
    pub fn store(&self, entry: &Entry) -> Result<u64, Failure> {
        let source = &entry.source;
        let found = std::fs::symlink_metadata(source).map_err(Failure::io(source.display()))?;
        if found.is_dir() {
            return self.put(&entry.path, Metadata::new(&entry.path, Kind::Directory, &found), None);
        }
        if found.is_symlink() {
            let target = std::fs::read_link(source).map_err(Failure::io(source.display()))?;
            let metadata = Metadata::new(&entry.path, Kind::Link, &found);
            return self.put(&entry.path, metadata, Some(target.as_os_str().as_bytes()));
        }
        if let Some(what) = without_contents(found.file_type()) {
            return Err(Failure::Failed(format!("{}: has become {what}", source.display()))); // reading may never end
        }
        let metadata = Metadata::new(&entry.path, Kind::File, &found);
        if found.len() > self.part_bytes() {
            return self.store_parts(entry, metadata);
        }
        let contents = std::fs::read(source).map_err(Failure::io(source.display()))?;
        if contents.len() as u64 > self.part_bytes() {
            return self.store_parts(entry, metadata); // it has grown since
        }
        self.put(&entry.path, metadata, Some(&contents))
    }

    /// One atomic Put of metadata and, if there are any, contents.
    pub fn put(&self, path: &Path, metadata: Metadata, contents: Option<&[u8]>) -> Result<u64, Failure> {
        let key = path_key(path);
        let old = self.metadata(key)?;
        let metadata = metadata.with_contents(contents.unwrap_or_default());
        let mut batch = Batch::new();
        batch.put(self.metadata, key, &metadata.to_bytes());
        match contents {
            Some(contents) => batch.put(self.contents, key, contents),
            None => batch.delete(self.contents, key),
        };
        self.device.write(&batch)?;
        self.delete_parts(path, old.as_ref())?;
        Ok(metadata.bytes)
    }

    /// One atomic Put of contents and metadata where no parts have ever been.
    pub fn put_version(&self, path: &Path, metadata: Metadata, contents: &[u8]) -> Result<u64, Failure> {
        let key = path_key(path);
        let metadata = metadata.with_contents(contents);
        let mut batch = Batch::new();
        batch.put(self.contents, key, contents).put(self.metadata, key, &metadata.to_bytes());
        self.device.write(&batch)?;
        Ok(metadata.bytes)
    }

    /// Parts first, the metadata record that makes them the file's contents last.
    fn store_parts(&self, entry: &Entry, mut metadata: Metadata) -> Result<u64, Failure> {
        let mut file = File::open(&entry.source).map_err(Failure::io(entry.source.display()))?;
        let hashes = self.hash_file(&mut file, &entry.source, &mut metadata)?;
        if hashes.is_empty() {
            return self.put(&entry.path, Metadata { part_bytes: 0, ..metadata }, Some(&[])); // it has been emptied since
        }
        file.rewind().map_err(Failure::io(entry.source.display()))?;
        let key = path_key(&entry.path);
        let old = self.metadata(key)?;
        let is_standing = old.as_ref().is_some_and(|old| old.xxh3_128 == metadata.xxh3_128);
        let stored = self.put_parts(&mut file, entry, &metadata, &hashes);
        if stored.is_err() && !is_standing {
            let _ = self.delete_parts(&entry.path, Some(&metadata)); // nothing refers to them
        }
        stored?;
        let mut batch = Batch::new();
        batch.put(self.metadata, key, &metadata.to_bytes()).delete(self.contents, key);
        self.device.write(&batch)?;
        self.delete_parts(&entry.path, old.as_ref().filter(|_| !is_standing))?;
        Ok(metadata.bytes)
    }

    /// Every part, if it is still what was hashed: under the key of other contents it would damage a version that stands.
    fn put_parts(&self, file: &mut File, entry: &Entry, metadata: &Metadata, hashes: &[u128]) -> Result<(), Failure> {
        for (number, hash) in (0..).zip(hashes) {
            let part = read_part(file, metadata.part_bytes).map_err(Failure::io(entry.source.display()))?;
            if xxh3_128(&part) != *hash {
                return Err(Failure::Failed(format!("{}: changed while it was read", entry.source.display())));
            }
            let key = part_key(&entry.path, &metadata.xxh3_128, number);
            self.device.put_if(self.contents, key, &part, Condition::Always)?;
        }
        Ok(())
    }

    /// Reads all of a file once: what its metadata say of its contents, and the hash of each part.
    fn hash_file(&self, file: &mut File, path: &Path, metadata: &mut Metadata) -> Result<Vec<u128>, Failure> {
        let (mut hash, mut hashes) = (Xxh3::new(), Vec::new());
        metadata.part_bytes = self.part_bytes();
        loop {
            let part = read_part(file, metadata.part_bytes).map_err(Failure::io(path.display()))?;
            if part.is_empty() {
                metadata.xxh3_128 = format!("{:032x}", hash.digest128());
                return Ok(hashes);
            }
            hash.update(&part);
            metadata.bytes += part.len() as u64;
            hashes.push(xxh3_128(&part));
        }
    }

    fn delete_parts(&self, path: &Path, old: Option<&Metadata>) -> Result<(), Failure> {
        let Some(old) = old else { return Ok(()) };
        for number in 0..old.part_count() {
            let mut batch = Batch::new();
            batch.delete(self.contents, part_key(path, &old.xxh3_128, number));
            self.device.write(&batch)?;
        }
        Ok(())
    }

    /// Whether something above a path was imported as no directory since: what was below it has gone.
    pub fn is_gone(&self, metadata: &Metadata) -> Result<bool, Failure> {
        let path = metadata.relative_path()?;
        for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            if self.metadata(path_key(above))?.is_some_and(|found| found.kind != Kind::Directory) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn part_bytes(&self) -> u64 {
        PART_BYTES.min(self.device.value_bytes_max())
    }

    /// The metadata record of a key.
    pub fn metadata(&self, key: Key) -> Result<Option<Metadata>, Failure> {
        self.device.get(self.metadata, key)?.map(|bytes| Metadata::from_bytes(&bytes)).transpose()
    }

    /// The contents that a metadata record promises, piece by piece; fails if any byte differs from what was stored.
    pub fn read(&self, metadata: &Metadata, mut take: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
        let path = metadata.relative_path()?;
        let missing = || Failure::Failed(format!("{}: contents are missing", path.display()));
        let mut hash = Xxh3::new();
        let mut bytes = 0;
        let mut piece = |key| {
            let contents = self.device.get(self.contents, key)?.ok_or_else(missing)?;
            hash.update(&contents);
            bytes += contents.len() as u64;
            take(&contents)
        };
        match metadata.part_count() {
            0 => piece(path_key(&path))?,
            count => (0..count).try_for_each(|part| piece(part_key(&path, &metadata.xxh3_128, part)))?,
        }
        if bytes != metadata.bytes || format!("{:032x}", hash.digest128()) != metadata.xxh3_128 {
            return Err(Failure::Failed(format!("{}: contents do not match the metadata", path.display())));
        }
        Ok(())
    }
}

/// The next bytes of a file, fewer only at its end.
fn read_part(file: &mut File, bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut part = Vec::new();
    Read::take(file, bytes).read_to_end(&mut part)?;
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(path: &str) -> Metadata {
        let found = std::fs::symlink_metadata(".").unwrap();
        Metadata::new(Path::new(path), Kind::File, &found)
    }

    /// Goal:   a metadata record gives back what was put in, paths that are no text included.
    /// Method: encode and decode; compare.
    #[test]
    fn metadata_survives_its_record() {
        let odd = Path::new(OsStr::from_bytes(b"dir/\xff.bin"));
        let found = std::fs::symlink_metadata(".").unwrap();
        let record = Metadata::new(odd, Kind::File, &found).with_contents(b"abc");
        let back = Metadata::from_bytes(&record.to_bytes()).unwrap();
        assert_eq!(back, record);
        assert_eq!(back.relative_path().unwrap(), odd);
        assert!(Metadata::from_bytes(b"{}").is_err());
    }

    /// Goal:   a record from a foreign hand cannot make an export write outside its root.
    /// Method: absolute paths, `..`, the empty path.
    #[test]
    fn paths_stay_inside_the_root() {
        for path in ["/etc/passwd", "../x", "a/../../x", "", "."] {
            assert!(metadata(path).relative_path().is_err(), "{path}");
        }
        assert!(metadata("a/b.txt").relative_path().is_ok());
    }

    /// Goal:   a file that changes while it is stored again leaves the version that stands; one that was emptied is empty.
    /// Method: store a file of several parts; hash it, change it, put its parts; read what was stored. Then empty it.
    #[test]
    fn changing_files_leave_what_stands() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("file");
        std::fs::write(&source, vec![1; 3 * PART_BYTES as usize]).unwrap();
        let device = kaml::Device::in_memory(&kaml::CreateOptions::new(1 << 30)).unwrap();
        let space = |name: &str| device.create_namespace(name, &kaml::NamespaceOptions::default()).unwrap();
        let tree = Tree { device: &device, contents: space("t"), metadata: space("t.meta") };
        let entry = Entry { source: source.clone(), path: "file".into(), bytes: 0 };
        tree.store(&entry).unwrap();
        let key = path_key(&entry.path);
        let stored = tree.metadata(key).unwrap().unwrap();
        let mut again = Metadata { bytes: 0, ..stored.clone() };
        let mut file = File::open(&source).unwrap();
        let hashes = tree.hash_file(&mut file, &source, &mut again).unwrap();
        assert_eq!((&again, hashes.len()), (&stored, 3));
        file.rewind().unwrap();
        let changed = [vec![1; 2 * PART_BYTES as usize], vec![2; PART_BYTES as usize]].concat();
        std::fs::write(&source, changed).unwrap();
        assert!(tree.put_parts(&mut file, &entry, &again, &hashes).is_err());
        tree.read(&stored, |_| Ok(())).unwrap();
        std::fs::write(&source, b"").unwrap();
        tree.store_parts(&entry, metadata("file")).unwrap();
        tree.read(&tree.metadata(key).unwrap().unwrap(), |_| Ok(())).unwrap();
    }

    /// Goal:   parts of different versions, numbers and paths never share a key.
    /// Method: vary one at a time.
    #[test]
    fn part_keys_differ() {
        let key = part_key(Path::new("a"), "00", 0);
        for other in
            [part_key(Path::new("b"), "00", 0), part_key(Path::new("a"), "01", 0), part_key(Path::new("a"), "00", 1)]
        {
            assert_ne!(key, other);
        }
        assert_ne!(key, path_key(Path::new("a")));
    }
}
