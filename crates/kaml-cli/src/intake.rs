//! Storing files, directories and whatever else a tree has.
//!
//! Lives here:       reading a path of the file system, and the order of the Puts that store it.
//! Lives elsewhere:  finding paths (`walk`), keys and records (`tree`), flags and progress (`commands::import`).
//!
//! Everything about a path becomes visible by one atomic Put. A file of at most [`PIECE_BYTES`] is that Put. Pieces of a larger one are put before it,
//! under a random number. A record without a value (the marker) is put before the first piece; the atomic Put deletes it and names
//! the number. So pieces that belong to no file can be recognised after a crash, and the next import deletes them.

use crate::tree::{Kind, Metadata, PATH_BYTES_MAX, PIECE_BYTES, Pieces, Tree, piece_key};
use crate::walk::Entry;
use kaml::{ErrorClass, KeyBuf};
use kaml_terminal::failure::Failure;
use rustix::fs::{OFlags, SeekFrom, lgetxattr, llistxattr, seek};
use rustix::io::Errno;
use std::fs::{File, Metadata as FileMetadata};
use std::hash::BuildHasher;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A file that changes while it is read is read again so often.
const READS_MAX: u32 = 3;
/// So often an upload begins again that another import has removed.
const UPLOADS_MAX: u32 = 3;
/// Runs of pieces that a metadata record has room for; holes after so many are stored as zeros.
const RUNS_MAX: usize = 4096;
/// Extended attributes of a file have at most this many bytes: names together, and each value.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;
/// A label that the system's policy gives to what is made there.
const POLICY_LABEL: &[u8] = b"security.selinux";

/// Why a path is not stored.
#[derive(Debug, thiserror::Error)]
pub enum NotStored {
    /// Something is wrong with this path alone.
    #[error("{0}")]
    Source(String),
    /// The device failed, or is full.
    #[error("{0}")]
    Device(Failure),
    /// The person asked to stop.
    #[error("interrupted")]
    Stopped,
}

impl From<kaml::Error> for NotStored {
    fn from(error: kaml::Error) -> NotStored {
        match error.class() {
            ErrorClass::BadKey | ErrorClass::ValueTooLarge | ErrorClass::BatchTooLarge => {
                NotStored::Source(error.to_string())
            }
            _ => NotStored::Device(error.into()),
        }
    }
}

impl From<Failure> for NotStored {
    fn from(failure: Failure) -> NotStored {
        NotStored::Device(failure)
    }
}

impl From<std::io::Error> for NotStored {
    fn from(error: std::io::Error) -> NotStored {
        NotStored::Source(error.to_string())
    }
}

impl From<Errno> for NotStored {
    fn from(error: Errno) -> NotStored {
        std::io::Error::from(error).into()
    }
}

/// Stores paths in a tree.
pub struct Intake<'a> {
    /// Where.
    pub tree: &'a Tree<'a>,
    /// The directory that is imported.
    pub root: &'a Path,
    /// Counts bytes that are stored; returns false after the person asked to stop.
    pub proceed: &'a (dyn Fn(u64) -> bool + Sync),
}

/// 53 bits that nobody can predict.
fn random() -> u64 {
    // The keys of this hash are the system's random numbers.
    std::hash::RandomState::new().hash_one(std::time::Instant::now()) >> 11
}

impl Intake<'_> {
    /// Stores a path: all of it, or, if this fails or the process dies, nothing of it. Returns the bytes of contents.
    pub fn store(&self, entry: &Entry) -> Result<u64, NotStored> {
        let path = self.tree.path(entry.path.as_os_str().as_bytes());
        if path.len() > PATH_BYTES_MAX {
            let bytes = path.len();
            return Err(NotStored::Source(format!("a path of {bytes} bytes; a tree takes at most {PATH_BYTES_MAX}")));
        }
        let found = std::fs::symlink_metadata(&entry.source)?;
        if !found.is_dir() {
            // A directory of that name has gone, and so has all that was in it.
            self.tree.delete_below(&path)?;
        }
        if let Some(first) = self.first_name(entry, &found) {
            let first = self.tree.path(first.as_os_str().as_bytes());
            return self.put(&path, Metadata::new(Kind::HardLink(first[..].into()), &found), None);
        }
        if found.is_file() {
            for _ in 0..READS_MAX {
                if let Some(bytes) = self.store_file(&path, entry)? {
                    return Ok(bytes);
                }
            }
            return Err(NotStored::Source("changed while it was read".into()));
        }
        let mut metadata = match Metadata::of_special(&found) {
            Some(special) => special,
            None if found.is_dir() => Metadata::new(Kind::Directory, &found),
            None if found.is_symlink() => {
                let target = std::fs::read_link(&entry.source)?;
                Metadata::new(Kind::Link(target.as_os_str().as_bytes().into()), &found)
            }
            None => return Err(NotStored::Source("has become something that is not stored".into())),
        };
        metadata.attributes = attributes(&entry.source)?;
        self.put(&path, metadata, None)
    }

    /// The name under which the same file is stored already, if it still is the same.
    fn first_name<'e>(&self, entry: &'e Entry, found: &FileMetadata) -> Option<&'e Path> {
        let first = entry.first_name.as_deref()?;
        let other = std::fs::symlink_metadata(self.root.join(first)).ok()?;
        ((other.dev(), other.ino()) == (found.dev(), found.ino())).then_some(first)
    }

    fn put(&self, path: &[u8], metadata: Metadata, contents: Option<&[u8]>) -> Result<u64, NotStored> {
        self.tree.put(path, &metadata, contents)?;
        let bytes = contents.unwrap_or_default().len() as u64;
        (self.proceed)(bytes);
        Ok(bytes)
    }

    /// Stores a file unless it changes meanwhile.
    fn store_file(&self, path: &[u8], entry: &Entry) -> Result<Option<u64>, NotStored> {
        // A file may have become a link out of the tree, or a pipe that nobody writes to.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let mut file = File::options().read(true).custom_flags(flags).open(&entry.source)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(NotStored::Source("is no file any more".into()));
        }
        let mut metadata = Metadata::new(Kind::File, &found);
        metadata.attributes = attributes(&entry.source)?;
        let mut contents = Vec::new();
        Read::take(&mut file, PIECE_BYTES + 1).read_to_end(&mut contents)?;
        if contents.len() as u64 > PIECE_BYTES {
            return self.store_pieces(path, &file, &found, metadata);
        }
        if has_changed(&file, &found, contents.len() as u64)? {
            return Ok(None);
        }
        self.put(path, metadata, Some(&contents)).map(Some)
    }

    /// Pieces first, the metadata that make them a file last. Nothing if the file changed meanwhile.
    fn store_pieces(
        &self,
        path: &[u8],
        file: &File,
        found: &FileMetadata,
        metadata: Metadata,
    ) -> Result<Option<u64>, NotStored> {
        for _ in 0..UPLOADS_MAX {
            let upload = random();
            let marker = KeyBuf::new(&[path, b"\0", &upload.to_be_bytes()].concat()).map_err(kaml::Error::from)?;
            self.tree.put_part(&marker, b"")?;
            let stored = self.put_pieces(path, file, found, upload).and_then(|pieces| {
                let Some(pieces) = pieces else { return Ok(None) };
                let bytes = pieces.bytes;
                match self.tree.put(path, &Metadata { kind: Kind::Pieces(pieces), ..metadata.clone() }, None) {
                    Err(error) if error.is_conflict() => Ok(Some(None)),
                    put => put.map(|()| Some(Some(bytes))).map_err(NotStored::from),
                }
            });
            if let Ok(Some(Some(bytes))) = stored {
                return Ok(Some(bytes));
            }
            // After a conflict the marker is missing. What cannot be deleted now is found by the next import.
            let has_marker = !matches!(stored, Ok(Some(None)));
            let _ = self.tree.delete_upload(path, upload, has_marker);
            if stored?.is_none() {
                return Ok(None);
            }
        }
        Err(NotStored::Source("another import into this tree removed its pieces; import again".into()))
    }

    /// Puts every piece that is no hole; nothing if the file is not as it was found.
    fn put_pieces(
        &self,
        path: &[u8],
        file: &File,
        found: &FileMetadata,
        upload: u64,
    ) -> Result<Option<Pieces>, NotStored> {
        let mut pieces = Pieces { upload, bytes: 0, runs: Vec::new() };
        let (is_sparse, mut buffer) = (found.blocks() * 512 < found.len(), vec![0; PIECE_BYTES as usize]);
        loop {
            if is_sparse && pieces.runs.len() < RUNS_MAX {
                let Some(at) = next_data(file, pieces.bytes)? else {
                    pieces.bytes = found.len();
                    break;
                };
                pieces.bytes = pieces.bytes.max(at / PIECE_BYTES * PIECE_BYTES);
            }
            let (number, count) = (pieces.bytes / PIECE_BYTES, read_full(file, &mut buffer, pieces.bytes)?);
            if count > 0 {
                let key = piece_key(path, upload, number)?;
                self.tree.put_part(&key, &buffer[..count])?;
                match pieces.runs.last_mut() {
                    Some((first, run)) if *first + *run == number => *run += 1,
                    _ => pieces.runs.push((number, 1)),
                }
                pieces.bytes += count as u64;
                if !(self.proceed)(count as u64) {
                    return Err(NotStored::Stopped);
                }
            }
            if count < buffer.len() {
                break;
            }
        }
        Ok((!has_changed(file, found, pieces.bytes)?).then_some(pieces))
    }
}

/// Where a file has data at or after an offset; nothing if there is a hole up to its end.
fn next_data(file: &File, at: u64) -> std::io::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(at)), // the file system knows no holes
        Err(error) => Err(error.into()),
    }
}

/// Fills a buffer unless the file ends before.
fn read_full(file: &File, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match file.read_at(&mut buffer[count..], at + count as u64) {
            Ok(0) => break,
            Ok(read) => count += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// Whether a file is not as it was found, of which so many bytes have been read.
fn has_changed(file: &File, found: &FileMetadata, bytes: u64) -> std::io::Result<bool> {
    let now = file.metadata()?;
    let state = |of: &FileMetadata| (of.len(), of.mtime(), of.mtime_nsec());
    // Files of /proc and the like claim to be empty.
    Ok(state(&now) != state(found) || (found.len() != bytes && found.len() != 0))
}

/// The extended attributes of a path itself, not of what it leads to; none where the file system has none.
fn attributes(path: &Path) -> Result<Vec<(crate::tree::Bytes, crate::tree::Bytes)>, NotStored> {
    let mut names = Vec::with_capacity(ATTRIBUTE_BYTES_MAX);
    match llistxattr(path, rustix::buffer::spare_capacity(&mut names)) {
        Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => return Ok(Vec::new()),
        listed => drop(listed?),
    };
    let mut all = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && *name != POLICY_LABEL) {
        let mut value = Vec::with_capacity(ATTRIBUTE_BYTES_MAX);
        match lgetxattr(path, name, rustix::buffer::spare_capacity(&mut value)) {
            // Removed meanwhile, or for others to read.
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => continue,
            got => drop(got?),
        };
        all.push((name.into(), value[..].into()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
