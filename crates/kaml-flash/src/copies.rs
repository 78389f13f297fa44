//! The superblock copies of a file or block device: which one counts.
//!
//! Lives here:       reading the copies, restoring those that do not count, finding the one at the end.
//! Lives elsewhere:  what the bytes of one copy mean (`superblock`), where copies lie (`layout`).
//! May be called by: `file`.
//! Format page:      docs/formats/superblock.md

use crate::layout::{SUPERBLOCK_OFFSETS, Tail};
use crate::superblock::{BadCopy, SUPERBLOCK_BYTES, Superblock, VERSION};
use crate::{CAPACITY_BYTES_MIN, OpenError, sys};
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Bytes read at a time while a superblock is looked for.
const LOOK_BYTES: u64 = 1 << 20;

/// What the copies lie in.
pub(crate) trait Disk {
    fn size(&self) -> Result<u64, Errno>;
    fn read(&self, buf: &mut [u8], at: u64) -> Result<(), Errno>;
    /// Durable when done.
    fn write(&self, buf: &[u8], at: u64) -> Result<(), Errno>;
}

impl Disk for File {
    fn size(&self) -> Result<u64, Errno> {
        sys::size_of(self)
    }

    fn read(&self, buf: &mut [u8], at: u64) -> Result<(), Errno> {
        sys::read_exact(self, buf, at)
    }

    fn write(&self, buf: &[u8], at: u64) -> Result<(), Errno> {
        sys::write_all(self, buf, at, true)
    }
}

/// Finds a good superblock copy and, if allowed, restores the others from it. Refuses a device that was cut short.
pub(crate) fn read_superblocks(path: &Path, disk: &dyn Disk, read_only: bool) -> Result<Superblock, OpenError> {
    let actual_bytes = size_of(path, disk)?;
    let good = good_superblock(path, disk, actual_bytes)?;
    if let Some(error) = cut_short(path, &good, actual_bytes) {
        return Err(error);
    }
    for offset in good.places() {
        if copy_at(disk, actual_bytes, offset).as_ref() == Ok(&good) {
            continue;
        }
        tracing::warn!(path = %path.display(), offset, "a superblock copy is damaged, another one is used");
        // One copy is enough.
        if !read_only && let Err(error) = disk.write(&good.encode(), offset) {
            tracing::warn!(path = %path.display(), offset, %error, "a superblock copy cannot be restored");
        }
    }
    Ok(good)
}

/// Writes another identity to all copies. One that cannot be written does not matter as long as it does not count: which one does is
/// seen afterwards. Copy A is the first: whatever is written of it, either it counts and has the new identity, or B counts and has the
/// old one.
pub(crate) fn replace_identity(path: &Path, disk: &dyn Disk, identity: [u8; 16]) -> Result<(), OpenError> {
    let mut renewed = read_superblocks(path, disk, false)?;
    renewed.identity = Some(identity);
    let mut refused = None;
    for offset in renewed.places() {
        if let Err(errno) = disk.write(&renewed.encode(), offset) {
            tracing::warn!(path = %path.display(), offset, %errno, "a superblock copy cannot be written");
            refused = Some(errno);
        }
    }
    match good_superblock(path, disk, size_of(path, disk)?)? == renewed {
        true => Ok(()),
        false => Err(failed(path, "writing the superblock", refused.unwrap_or(Errno::IO))),
    }
}

/// Finds a superblock of a damaged device: also where those at the beginning are damaged and the one at the end is whole, and where the
/// device was cut short after them. Returns also why it cannot be opened, if these are why.
///
/// A superblock anywhere else is named and not taken: a tenant may have stored it as a value, and nothing that remains shows which.
pub(crate) fn read_damaged(path: &Path, disk: &dyn Disk) -> Result<(Superblock, Option<OpenError>), OpenError> {
    let actual_bytes = size_of(path, disk)?;
    match good_superblock(path, disk, actual_bytes) {
        Err(error @ (OpenError::HeadDamaged { .. } | OpenError::Damaged { .. } | OpenError::NotADevice { .. })) => {
            let at_end = Tail::superblock_of(actual_bytes).unwrap_or(0);
            match find_superblock(disk).map_err(|errno| failed(path, "looking for a superblock", errno))? {
                Some((found, offset)) if offset == at_end => Ok((found, Some(error))),
                Some((found, _)) => {
                    let (why, device_bytes) = (error.to_string(), found.capacity_bytes);
                    Err(OpenError::NotAtEnd { path: path.into(), why, device_bytes, actual_bytes })
                }
                None => Err(error),
            }
        }
        found => found.map(|good| {
            let error = cut_short(path, &good, actual_bytes);
            (good, error)
        }),
    }
}

fn cut_short(path: &Path, good: &Superblock, actual_bytes: u64) -> Option<OpenError> {
    let expected_bytes = good.capacity_bytes;
    (actual_bytes < expected_bytes).then(|| OpenError::Truncated { path: path.into(), expected_bytes, actual_bytes })
}

fn failed(path: &Path, what: &'static str, errno: Errno) -> OpenError {
    OpenError::Io { path: path.into(), what, source: errno.into() }
}

fn size_of(path: &Path, disk: &dyn Disk) -> Result<u64, OpenError> {
    disk.size().map_err(|errno| failed(path, "reading the size", errno))
}

/// The copy at an offset. What lies beyond the end of a truncated file counts as zeroes, which are no superblock.
fn copy_at(disk: &dyn Disk, actual_bytes: u64, offset: u64) -> Result<Superblock, BadCopy> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    let present = actual_bytes.saturating_sub(offset).min(SUPERBLOCK_BYTES as u64) as usize;
    match disk.read(&mut bytes[..present], offset) {
        Ok(()) => Superblock::check(&bytes),
        Err(errno) => Err(BadCopy::Unreadable { errno }),
    }
}

/// The copy that counts.
fn good_superblock(path: &Path, disk: &dyn Disk, actual_bytes: u64) -> Result<Superblock, OpenError> {
    if actual_bytes == 0 {
        return Err(OpenError::TooSmall { path: path.into(), actual_bytes, minimum_bytes: CAPACITY_BYTES_MIN });
    }
    let copy_at = |offset| copy_at(disk, actual_bytes, offset);
    let [a, b] = SUPERBLOCK_OFFSETS.map(copy_at);
    match (a, b) {
        (Err(BadCopy::Newer { found }), _) | (_, Err(BadCopy::Newer { found })) => {
            Err(OpenError::NewerVersion { path: path.into(), found, supported: VERSION })
        }
        (Ok(good), _) | (Err(_), Ok(good)) => Ok(good),
        (Err(a), Err(b)) => {
            let end = Tail::superblock_of(actual_bytes).unwrap_or(0);
            match (copy_at(end).ok().filter(|c| c.is_at_end(end)), &a, &b) {
                // Nothing shows whether something was written over them.
                (Some(c), BadCopy::Unreadable { .. }, BadCopy::Unreadable { .. }) => Ok(c),
                (Some(_), ..) => Err(OpenError::HeadDamaged { path: path.into(), why: both_damaged(&a, &b) }),
                (None, ..) => Err(no_superblock(path, &a, &b, actual_bytes)),
            }
        }
    }
}

/// Looks for a superblock that is at the end of the device it speaks of: from the end on, for what the device lies in may
/// be longer.
fn find_superblock(disk: &dyn Disk) -> Result<Option<(Superblock, u64)>, Errno> {
    let mut end = disk.size()? / SUPERBLOCK_BYTES as u64 * SUPERBLOCK_BYTES as u64;
    while end > 0 {
        let start = end.saturating_sub(LOOK_BYTES);
        let mut bytes = vec![0; (end - start) as usize];
        if disk.read(&mut bytes, start).is_err() {
            read_what_can_be(disk, &mut bytes, start);
        }
        for copy in bytes.as_chunks().0.iter().rev() {
            end -= SUPERBLOCK_BYTES as u64;
            if let Ok(found) = Superblock::check(copy)
                && found.is_at_end(end)
            {
                return Ok(Some((found, end)));
            }
        }
    }
    Ok(None)
}

/// Reads copy by copy; those that cannot be read are zeroes, which are no superblock.
fn read_what_can_be(disk: &dyn Disk, bytes: &mut [u8], start: u64) {
    for (at, copy) in (start..).step_by(SUPERBLOCK_BYTES).zip(bytes.chunks_mut(SUPERBLOCK_BYTES)) {
        if disk.read(copy, at).is_err() {
            copy.fill(0);
        }
    }
}

fn both_damaged(a: &BadCopy, b: &BadCopy) -> String {
    let why = |copy: &BadCopy| match copy {
        BadCopy::Foreign => "no superblock".to_owned(),
        BadCopy::Newer { found } => format!("version {found}"),
        BadCopy::Damaged { why } => why.clone(),
        BadCopy::Unreadable { errno } => format!("cannot be read ({errno})"),
    };
    format!("A: {}; B: {}", why(a), why(b))
}

fn no_superblock(path: &Path, a: &BadCopy, b: &BadCopy, actual_bytes: u64) -> OpenError {
    let path = PathBuf::from(path);
    let expected_bytes = SUPERBLOCK_OFFSETS[1] + SUPERBLOCK_BYTES as u64;
    match (a, b) {
        (BadCopy::Foreign, BadCopy::Foreign) => OpenError::NotADevice { path },
        _ if actual_bytes < expected_bytes => OpenError::Truncated { path, expected_bytes, actual_bytes },
        _ => OpenError::Damaged { path, which: "both superblock copies", why: both_damaged(a, b) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileMedium, FormatOptions};
    use std::cell::RefCell;
    use std::os::unix::fs::FileExt;

    /// A file of which some sectors cannot be read until they are written.
    struct Refusing {
        file: File,
        refused: RefCell<Vec<u64>>,
        /// Nor can they be written.
        for_good: bool,
    }

    impl Refusing {
        /// Whether a transfer meets a refused sector.
        fn meets(&self, at: u64, bytes: &[u8]) -> bool {
            self.refused.borrow().iter().any(|sector| (at..at + bytes.len() as u64).contains(sector))
        }
    }

    impl Disk for Refusing {
        fn size(&self) -> Result<u64, Errno> {
            self.file.size()
        }

        fn read(&self, buf: &mut [u8], at: u64) -> Result<(), Errno> {
            if self.meets(at, buf) { Err(Errno::IO) } else { self.file.read(buf, at) }
        }

        fn write(&self, buf: &[u8], at: u64) -> Result<(), Errno> {
            if self.for_good && self.meets(at, buf) {
                return Err(Errno::IO);
            }
            self.refused.borrow_mut().retain(|sector| !(at..at + buf.len() as u64).contains(sector));
            self.file.write(buf, at)
        }
    }

    const SIZE: u64 = crate::CAPACITY_BYTES_MIN;
    const COPIES: [u64; 3] = [0, 4096, SIZE - 4096];

    fn formatted(refused: &[u64], for_good: bool) -> (tempfile::TempDir, Refusing) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        drop(FileMedium::create(&path, &FormatOptions::new(SIZE)).unwrap());
        let file = File::options().read(true).write(true).open(path).unwrap();
        (dir, Refusing { file, refused: RefCell::new(refused.to_vec()), for_good })
    }

    /// Goal:   copies that the disk refuses to read are done without as long as another one is whole, and written again; a disk that
    ///         does not take that either is used nevertheless.
    /// Method: each set of copies but all three, one sector of each refused, in the middle of the copy or at its end; read-only, and
    ///         to be written.
    #[test]
    fn refused_copies_are_done_without() {
        for set in 1..7u32 {
            for (sector, for_good) in [(512, false), (3584, false), (3584, true)] {
                let refused: Vec<u64> =
                    (0..3).filter(|i| set & 1 << i != 0).map(|i| COPIES[i as usize] + sector).collect();
                let (_dir, disk) = formatted(&refused, for_good);
                for read_only in [true, false] {
                    assert_eq!(*disk.refused.borrow(), refused);
                    let found = read_superblocks(Path::new("P"), &disk, read_only);
                    assert_eq!(found.unwrap().capacity_bytes, SIZE, "{refused:?}");
                }
                assert_eq!(disk.refused.borrow().is_empty(), !for_good, "{refused:?}");
                let mut copies = [[0; SUPERBLOCK_BYTES]; 3];
                copies.iter_mut().zip(COPIES).for_each(|(copy, at)| disk.file.read_exact_at(copy, at).unwrap());
                assert!(copies[0] == copies[1] && copies[0] == copies[2], "{refused:?}");
            }
        }
    }

    /// Goal:   where no copy that counts is left, or something was written over the beginning, opening states what is wrong with A and B.
    /// Method: sectors of all three refused; of one of the first two, with other bytes in the other one; nothing but a refused sector.
    #[test]
    fn refused_copies_are_named() {
        let refusal = |disk: &Refusing| read_superblocks(Path::new("P"), disk, false).unwrap_err().to_string();
        let errno = Errno::IO;
        let (_dir, disk) = formatted(&COPIES, false);
        let both = format!("A: cannot be read ({errno}); B: cannot be read ({errno})");
        assert_eq!(refusal(&disk), format!("P: both superblock copies damaged: {both}"));
        for overwritten in [0, 1] {
            let (_dir, disk) = formatted(&[COPIES[1 - overwritten]], false);
            disk.file.write_all_at(&[7; 4096], COPIES[overwritten]).unwrap();
            let found = read_superblocks(Path::new("P"), &disk, false);
            assert!(matches!(found, Err(OpenError::HeadDamaged { .. })), "{found:?}");
        }
    }

    /// Goal:   the copy at the end is found past sectors that cannot be read.
    /// Method: some after it, in front of it and next to it, in a file that is longer than the device.
    #[test]
    fn copies_at_the_end_are_found_past_refused_sectors() {
        let refused = [SIZE - 4608, SIZE, SIZE + 8192, SIZE + (2 << 20)];
        let (_dir, disk) = formatted(&refused, false);
        disk.file.set_len(SIZE + (3 << 20)).unwrap();
        assert_eq!(find_superblock(&disk).unwrap().unwrap().0.capacity_bytes, SIZE);
        disk.refused.borrow_mut().push(SIZE - 512);
        assert_eq!(find_superblock(&disk).unwrap(), None);
    }
}
