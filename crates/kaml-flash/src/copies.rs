//! The superblock copies of a file or block device: which one counts.
//!
//! Lives here:       reading the copies, restoring damaged ones, finding the one at the end.
//! Lives elsewhere:  what the bytes of one copy say (`superblock`), where copies lie (`layout`).
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

/// Finds a good superblock copy and, if allowed, restores the others from it.
pub(crate) fn read_superblocks(path: &Path, file: &File, read_only: bool) -> Result<Superblock, OpenError> {
    let failed = |what, errno: Errno| OpenError::Io { path: path.into(), what, source: errno.into() };
    let actual_bytes = sys::size_of(file).map_err(|errno| failed("asking for the size", errno))?;
    if actual_bytes == 0 {
        return Err(OpenError::TooSmall { path: path.into(), actual_bytes, minimum_bytes: CAPACITY_BYTES_MIN });
    }
    // What lies beyond the end of a truncated file counts as zeroes, which are no superblock.
    let copy_at = |offset: u64| -> Result<_, OpenError> {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        let present = actual_bytes.saturating_sub(offset).min(SUPERBLOCK_BYTES as u64) as usize;
        sys::read_exact(file, &mut bytes[..present], offset)
            .map_err(|errno| failed("reading the superblocks", errno))?;
        Ok(Superblock::check(&bytes))
    };
    let [a, b] = SUPERBLOCK_OFFSETS.map(copy_at);
    let good = match (a?, b?) {
        (Err(BadCopy::Newer { found }), _) | (_, Err(BadCopy::Newer { found })) => {
            return Err(OpenError::NewerVersion { path: path.into(), found, supported: VERSION });
        }
        (Ok(good), _) | (Err(_), Ok(good)) => good,
        (Err(a), Err(b)) => {
            let end = Tail::superblock_of(actual_bytes).unwrap_or(0);
            return Err(match copy_at(end)? {
                Ok(c) if c.is_at_end(end) => OpenError::HeadDamaged { path: path.into(), why: both_damaged(&a, &b) },
                _ => no_superblock(path, &a, &b, actual_bytes),
            });
        }
    };
    if actual_bytes < good.capacity_bytes {
        let expected_bytes = good.capacity_bytes;
        return Err(OpenError::Truncated { path: path.into(), expected_bytes, actual_bytes });
    }
    for offset in good.places() {
        if copy_at(offset)?.as_ref() == Ok(&good) {
            continue;
        }
        tracing::warn!(path = %path.display(), offset, "a superblock copy is damaged, another one is used");
        if !read_only {
            sys::write_all(file, &good.encode(), offset, true)
                .map_err(|errno| failed("restoring a superblock copy", errno))?;
        }
    }
    Ok(good)
}

/// Looks for a superblock that stands at the end of the device it speaks of: from the end on, for what the device lies in may
/// be longer.
pub(crate) fn find_superblock(file: &File) -> Result<Option<Superblock>, Errno> {
    let mut end = sys::size_of(file)? / SUPERBLOCK_BYTES as u64 * SUPERBLOCK_BYTES as u64;
    while end > 0 {
        let start = end.saturating_sub(LOOK_BYTES);
        let mut bytes = vec![0; (end - start) as usize];
        sys::read_exact(file, &mut bytes, start)?;
        for copy in bytes.as_chunks().0.iter().rev() {
            end -= SUPERBLOCK_BYTES as u64;
            if let Ok(found) = Superblock::check(copy)
                && found.is_at_end(end)
            {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

fn both_damaged(a: &BadCopy, b: &BadCopy) -> String {
    let why = |copy: &BadCopy| match copy {
        BadCopy::Foreign => "no superblock".to_owned(),
        BadCopy::Newer { found } => format!("version {found}"),
        BadCopy::Damaged { why } => why.clone(),
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
