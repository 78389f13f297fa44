//! What an incremental backup needs of its base, as a stream to a device that is somewhere else.
//!
//! Lives here:       making such a stream of a base, reading a base from one.
//! Lives elsewhere:  the pieces (`read`), what a backup does with a base (`write`, `list`), the way to the device (`kaml-nvme`).
//! Implements:       docs/formats/backup.md "The outline of a base".

use super::format::{TRAILER_BYTES, decode_trailer};
use super::read::{BackupBase, Pieces};
use crate::error::Error;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes of all pieces before the lists of keys, and of one list, at most: a device has them in memory. A list is written when it has 1 MiB, and
/// 100 000 namespaces, or snapshots, take less than this.
const PART_BYTES_MAX: usize = 16 << 20;

/// Where a file has what belongs to an outline.
pub(super) struct Places {
    pub(super) file: Arc<File>,
    /// The head, and what its namespaces were.
    pub(super) front: Range<u64>,
    /// The lists of keys, up to the trailer.
    pub(super) tail: Range<u64>,
}

impl BackupBase {
    /// What a device somewhere else needs of this backup to take an incremental one after it: its head, what its namespaces were, and its
    /// lists of keys. [`BackupBase::from_outline`] reads it there.
    ///
    /// # Errors
    /// It was not opened as a file.
    #[doc(hidden)]
    pub fn into_outline(self) -> Result<impl Read + Send, Error> {
        let no_file = || Error::WrongBase { name: self.name.clone(), why: "is not a file".to_owned() };
        let Places { file, front, tail } = self.places.ok_or_else(no_file)?;
        let part = |range: Range<u64>| Part { file: Arc::clone(&file), range };
        let trailer = part(tail.end..tail.end + TRAILER_BYTES as u64);
        Ok(trailer.chain(part(front)).chain(part(tail)))
    }

    /// Reads the outline of a backup. `name` is what errors call it. Its lists of keys are read while the incremental backup is taken.
    ///
    /// # Errors
    /// As [`verify_backup`](crate::verify_backup); also if a part of it is larger than in any backup.
    #[doc(hidden)]
    pub fn from_outline(input: impl Read + Send + 'static, name: &str) -> Result<BackupBase, Error> {
        let mut pieces = Pieces::new(Box::new(input) as Box<dyn Read + Send>, name);
        pieces.part_bytes_max = PART_BYTES_MAX;
        let mut trailer = [0; TRAILER_BYTES];
        pieces.fill(&mut trailer)?;
        pieces.offset = 0;
        let head = pieces.head()?;
        let found = decode_trailer(&head.backup, &trailer);
        let (_, number) = found.ok_or_else(|| pieces.damaged("the checksum of its trailer does not match"))?;
        let namespaces = pieces.namespaces(&head)?;
        pieces.begin_tail(number);
        Ok(BackupBase { name: name.to_owned(), head, namespaces, tail: pieces, keys: None, places: None })
    }

    /// Reads all keys of the namespaces that it has; how many there are.
    ///
    /// # Errors
    /// As [`verify_backup`](crate::verify_backup).
    #[doc(hidden)]
    pub fn count_keys(&mut self) -> Result<u64, Error> {
        let ids: Vec<u32> = self.namespaces.iter().map(|namespace| namespace.id).collect();
        let mut count = 0;
        for id in ids {
            while self.next_key(id)?.is_some() {
                count += 1;
            }
        }
        Ok(count)
    }

    /// What errors call it.
    #[doc(hidden)]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A part of a file.
struct Part {
    file: Arc<File>,
    range: Range<u64>,
}

impl Read for Part {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let room = into.len().min(usize::try_from(self.range.end - self.range.start).unwrap_or(usize::MAX));
        if room == 0 {
            return Ok(0);
        }
        match self.file.read_at(&mut into[..room], self.range.start)? {
            0 => Err(ErrorKind::UnexpectedEof.into()), // it became shorter
            count => {
                self.range.start += count as u64;
                Ok(count)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateOptions, Device, KeyKind, NamespaceOptions};
    use std::ops::ControlFlow;

    fn outline_of(device: &Device, path: &std::path::Path) -> (Vec<u8>, u64) {
        device.backup_to_file(path, None, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let count = BackupBase::open(path).unwrap().count_keys().unwrap();
        let mut outline = Vec::new();
        BackupBase::open(path).unwrap().into_outline().unwrap().read_to_end(&mut outline).unwrap();
        (outline, count)
    }

    fn keys_of(outline: &[u8]) -> Result<u64, Error> {
        BackupBase::from_outline(std::io::Cursor::new(outline.to_vec()), "base").and_then(|mut base| base.count_keys())
    }

    /// Goal:   an outline has all keys of the backup and little else; one that is cut off or has a wrong byte is an error, never fewer keys.
    /// Method: a backup of two namespaces with large values; every place of the outline cut and changed.
    #[test]
    fn outlines_have_all_keys_or_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
        for kind in [KeyKind::Any, KeyKind::Ordered] {
            let space = device.create_namespace(&format!("{kind:?}"), &NamespaceOptions::records(kind)).unwrap();
            (0..20u64).for_each(|key| device.put(space, key, &[7; 4000]).unwrap());
        }
        let (outline, count) = outline_of(&device, &dir.path().join("full"));
        assert_eq!((count, keys_of(&outline).unwrap()), (40, 40));
        assert!(outline.len() < 2000, "{} bytes", outline.len());
        // The last piece is the end mark, which only shows that no key is missing.
        let end = outline.len() - 96;
        for at in 0..outline.len() {
            assert!(keys_of(&outline[..at]).is_err(), "cut at {at}");
            let mut wrong = outline.clone();
            wrong[at] ^= 4;
            // Where the tail was in the file is not used; its checksum covers it.
            assert!(keys_of(&wrong).is_err(), "changed at {at}, {end}");
        }
    }
}
