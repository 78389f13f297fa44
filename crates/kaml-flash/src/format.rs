//! Formatting: from any file or block device to an empty KAML device.
//!
//! Lives here:       the order in which regions are written, so a cut leaves either no device or a whole one.
//! May be called by: `file`.
//!
//! 1. the superblock copies are overwritten with zeroes and synced: nothing is a device any more;
//! 2. the file gets its length and the blocks become holes (or their OOB areas zeroes);
//! 3. root slots, ring and the root's mirror are *written* with zeroes: a ring merely allocated costs three times as much per
//!    write; with `prewrite` the blocks too, so no block's space is merely reserved;
//! 4. everything is synced, then copy C is written, then B, then A, each durably; the directory is synced.

use crate::layout::{Layout, Tail};
use crate::lock::{LockError, LockedFile, open_claimed};
use crate::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::{AlignedBuf, BlockIndex, FormatError, FormatOptions, Geometry, signature, sys};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is written at a time when a region is filled with zeroes.
const ZEROES_BYTES: usize = 1 << 20;
/// What is written at a time when the blocks are.
const PREWRITE_BYTES: usize = 8 << 20;

/// Formats; the file comes back open and locked.
pub(crate) fn create(
    path: &Path,
    options: &FormatOptions,
    has_room: &dyn Fn(&Geometry) -> bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(LockedFile, Superblock), FormatError> {
    let existing = std::fs::metadata(path).ok().map(|found| found.file_type());
    let is_device = existing.is_some_and(|kind| kind.is_block_device());
    if existing.is_some_and(|kind| !kind.is_file()) && !is_device {
        return Err(FormatError::NotAFile { path: path.into() });
    }
    let options = &if is_device { options.clone() } else { options.for_a_file() };
    if !is_device {
        // Before the file exists: a refusal leaves no file.
        Geometry::with_room(options.capacity_bytes, sys::SECTOR_BYTES_MAX, options, has_room)?;
    }
    let file = open(path, is_device)?;
    let made = format(path, &file, is_device, options, has_room, progress);
    if made.is_err() && existing.is_none() {
        let _ = std::fs::remove_file(path);
    }
    Ok((file, made?))
}

fn failed<'a>(path: &'a Path, what: &'static str) -> impl Fn(Errno) -> FormatError + 'a {
    move |errno| FormatError::Io { path: path.into(), what, source: errno.into() }
}

fn open(path: &Path, is_device: bool) -> Result<LockedFile, FormatError> {
    let mut how = File::options();
    how.read(true).write(true).mode(0o600);
    if !is_device {
        how.create(true).truncate(false);
    }
    let in_use = |holder| FormatError::InUse { path: path.into(), holder };
    let file = open_claimed(path, &mut how, is_device, Duration::ZERO).map_err(|error| match error {
        LockError::InUse(holder) => in_use(holder),
        LockError::Failed(errno) => failed(path, "opening")(errno),
    })?;
    match LockedFile::new(file, false, Duration::ZERO) {
        Ok(file) => Ok(file),
        Err(LockError::InUse(holder)) => Err(in_use(holder)),
        Err(LockError::Failed(errno)) => Err(failed(path, "locking")(errno)),
    }
}

fn format(
    path: &Path,
    file: &File,
    is_device: bool,
    options: &FormatOptions,
    has_room: &dyn Fn(&Geometry) -> bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Superblock, FormatError> {
    let actual_bytes = sys::size_of(file).map_err(failed(path, "reading the size"))?;
    let capacity_bytes = if is_device && options.capacity_bytes == 0 { actual_bytes } else { options.capacity_bytes };
    if is_device && capacity_bytes > actual_bytes {
        return Err(FormatError::DeviceTooSmall { path: path.into(), capacity_bytes, actual_bytes });
    }
    let geometry = Geometry::with_room(capacity_bytes, sys::sector_bytes(file), options, has_room)?;
    if !options.force
        && let Some(found) = occupant(file, is_device, actual_bytes).map_err(failed(path, "reading"))?
    {
        return Err(FormatError::NotEmpty { path: path.into(), found });
    }
    let layout = Layout::of(&geometry);
    clear(path, file, is_device, actual_bytes, capacity_bytes)?;
    empty_blocks(file, is_device, &geometry, &layout).map_err(failed(path, "emptying the blocks"))?;
    zero(file, 0, layout.blocks_offset).map_err(failed(path, "writing the commit ring"))?;
    let tail = Tail::of(capacity_bytes, geometry.root_bytes).expect("the geometry leaves room for it");
    zero(file, tail.mirror_offset, geometry.root_bytes.into()).map_err(failed(path, "writing the root's mirror"))?;
    if options.prewrite {
        prewrite(file, &layout, progress).map_err(failed(path, "writing the blocks once"))?;
    }
    rustix::fs::fsync(file).map_err(failed(path, "syncing"))?;
    let superblock = Superblock {
        uuid: random_uuid().map_err(failed_to_draw(path))?,
        identity: None,
        created_s: now_s(),
        capacity_bytes,
        geometry,
        durability: options.durability,
        prewritten: options.prewrite,
        tail: Some(tail),
        grows_up_to: options.grow_up_to.map(|limit| limit.max(capacity_bytes)),
    };
    for offset in superblock.places().rev() {
        sys::write_all(file, &superblock.encode(), offset, true).map_err(failed(path, "writing the superblock"))?;
    }
    rustix::fs::fsync(file).map_err(failed(path, "syncing"))?;
    if !is_device {
        sync_directory(path)?;
    }
    Ok(superblock)
}

/// What formatting would destroy: in a file any bytes at all, on a block device what has a signature or is not zero.
fn occupant(file: &File, is_device: bool, actual_bytes: u64) -> Result<Option<String>, Errno> {
    if actual_bytes == 0 {
        return Ok(None);
    }
    let found = signature::find(file, actual_bytes)?;
    Ok(found.or_else(|| (!is_device).then(|| format!("{actual_bytes} bytes of zeroes"))))
}

/// Takes away the old superblocks, durably, before anything else changes; then a file's old content and length. The one at
/// the end is removed last: without those at the beginning it is good for salvaging only.
fn clear(path: &Path, file: &File, is_device: bool, actual: u64, capacity: u64) -> Result<(), FormatError> {
    if actual > 0 {
        zero(file, 0, 2 * SUPERBLOCK_BYTES as u64).map_err(failed(path, "clearing the superblocks"))?;
        rustix::fs::fsync(file).map_err(failed(path, "syncing"))?;
        if is_device && let Some(offset) = Tail::superblock_of(actual) {
            zero(file, offset, SUPERBLOCK_BYTES as u64).map_err(failed(path, "clearing the superblocks"))?;
        }
    }
    if !is_device {
        rustix::fs::ftruncate(file, 0).map_err(failed(path, "truncating"))?;
        rustix::fs::ftruncate(file, capacity).map_err(failed(path, "setting the length"))?;
    }
    Ok(())
}

/// A file's blocks are holes already. A device that cannot discard gets empty OOB areas, so no page of another
/// life looks programmed.
fn empty_blocks(file: &File, is_device: bool, geometry: &Geometry, layout: &Layout) -> Result<(), Errno> {
    if !is_device {
        return Ok(());
    }
    match sys::punch_hole(file, layout.blocks_offset, layout.end - layout.blocks_offset) {
        Err(errno) if sys::is_unsupported(errno) => (0..geometry.block_count())
            .try_for_each(|block| zero(file, layout.oob(BlockIndex(block)), layout.oob_area_bytes)),
        result => result,
    }
}

/// Writes zeroes over all blocks, past the page cache where that can be had: they are far more than it holds.
fn prewrite(file: &File, layout: &Layout, progress: &mut dyn FnMut(u64, u64)) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    // A file system without direct I/O gets the same bytes more slowly.
    let _ = sys::set_direct(file);
    let total = layout.end - layout.blocks_offset;
    let zeroes = AlignedBuf::zeroed(PREWRITE_BYTES);
    let mut done = 0;
    while done < total {
        let count = (total - done).min(PREWRITE_BYTES as u64);
        sys::write_all(file, &zeroes[..count as usize], layout.blocks_offset + done, false)?;
        done += count;
        progress(done, total);
    }
    rustix::fs::fcntl_setfl(file, flags)
}

fn zero(file: &File, at: u64, len: u64) -> Result<(), Errno> {
    let zeroes = vec![0; ZEROES_BYTES];
    let mut done = 0;
    while done < len {
        let count = (len - done).min(ZEROES_BYTES as u64);
        sys::write_all(file, &zeroes[..count as usize], at + done, false)?;
        done += count;
    }
    Ok(())
}

fn failed_to_draw(path: &Path) -> impl Fn(std::io::Error) -> FormatError + '_ {
    move |source| FormatError::Io { path: path.into(), what: "drawing a uuid", source }
}

/// A UUID of random numbers (RFC 9562, version 4).
pub(crate) fn random_uuid() -> std::io::Result<[u8; 16]> {
    let mut uuid = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut uuid)?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

fn now_s() -> u64 {
    // A clock before 1970 is wrong anyway; the time of creation is only for people.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn sync_directory(path: &Path) -> Result<(), FormatError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|directory| directory.sync_all()).map_err(|source| FormatError::Io {
        path: path.into(),
        what: "syncing the directory",
        source,
    })
}
