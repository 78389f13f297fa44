//! The system calls of the file medium, whole or failed.
//!
//! Lives here:       loops over short transfers, holes, alignment of direct I/O.
//! May be called by: `file`, `plan`, `uring` (what a result means).

use rustix::fs::{AtFlags, FallocateFlags, FileType, OFlags, StatxFlags};
use rustix::io::{Errno, IoSlice, ReadWriteFlags};
use std::fs::File;

/// Largest sector that direct I/O asks for anywhere, hence always a safe choice.
pub(crate) const SECTOR_BYTES_MAX: u32 = 4096;

/// A transfer that ends early meets the end of the file, which the layout excludes: the file was cut under us.
pub(crate) const CUT_SHORT: Errno = Errno::IO;

/// What is asked again, unchanged. `CANCELED` comes when the thread that submitted to a ring has ended since.
pub(crate) fn is_transient(errno: Errno) -> bool {
    matches!(errno, Errno::INTR | Errno::AGAIN | Errno::CANCELED)
}

pub(crate) fn is_no_space(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT)
}

/// A device or file system that has no such operation; an old one may say "invalid".
pub(crate) fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY | Errno::INVAL)
}

/// Whether somebody who lives has locked a file with `flock`. True where that cannot be told. Who locked it from beyond this
/// view of processes, as out of another container, is not seen.
pub(crate) fn is_locked_by_the_living(file: &File) -> bool {
    let (Ok(locks), Ok(stat)) = (std::fs::read_to_string("/proc/locks"), rustix::fs::fstat(file)) else { return true };
    holders(&locks, stat.st_ino).any(lives)
}

/// Processes that hold such locks of a file with this inode: `1: FLOCK ADVISORY WRITE 4711 fd:00:1234 0 EOF`.
fn holders(locks: &str, inode: u64) -> impl Iterator<Item = u32> {
    locks.lines().filter_map(move |line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, _, process, place, ..] = fields[..] else { return None };
        let (_, found) = place.rsplit_once(':')?;
        (found.parse() == Ok(inode)).then_some(process.parse().ok()).flatten()
    })
}

/// Whether there is such a process, and it has not ended: `4711 (a name) S …`.
fn lives(process: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X'])))
}

pub(crate) fn read_exact(file: &File, buf: &mut [u8], at: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pread(file, &mut buf[done..], at + done as u64) {
            Ok(0) => return Err(CUT_SHORT),
            Ok(count) => done += count,
            Err(errno) if is_transient(errno) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// With `dsync` the bytes, and whatever is needed to find them, are durable when done.
pub(crate) fn write_all(file: &File, buf: &[u8], at: u64, dsync: bool) -> Result<(), Errno> {
    let mut done = 0;
    while done < buf.len() {
        let (rest, at) = (&buf[done..], at + done as u64);
        let written = if dsync {
            rustix::io::pwritev2(file, &[IoSlice::new(rest)], at, ReadWriteFlags::DSYNC)
        } else {
            rustix::io::pwrite(file, rest, at)
        };
        match written {
            Ok(0) => return Err(CUT_SHORT),
            Ok(count) => done += count,
            Err(errno) if is_transient(errno) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

pub(crate) fn sync_data(file: &File) -> Result<(), Errno> {
    again(|| rustix::fs::fdatasync(file))
}

pub(crate) const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// Gives a range back; it reads as zeroes afterwards. The same call discards a block device's range, and unlike a plain
/// discard it promises the zeroes.
pub(crate) fn punch_hole(file: &File, at: u64, len: u64) -> Result<(), Errno> {
    again(|| rustix::fs::fallocate(file, PUNCH, at, len))
}

/// Makes a file's range contiguous and its space certain. A file system that cannot is no error.
pub(crate) fn allocate(file: &File, at: u64, len: u64) -> Result<(), Errno> {
    match again(|| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, at, len)) {
        Err(errno) if is_unsupported(errno) => Ok(()),
        result => result,
    }
}

/// Whether a file is on a file system that power loss empties.
pub(crate) fn is_in_memory(file: &File) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    rustix::fs::fstatfs(file).is_ok_and(|found| [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(found.f_type as u64)))
}

pub(crate) fn is_block_device(file: &File) -> Result<bool, Errno> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode) == FileType::BlockDevice)
}

/// Bytes of a file or block device.
pub(crate) fn size_of(file: &File) -> Result<u64, Errno> {
    rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))
}

/// The sector that direct I/O on this file works in: 512 to 4096 bytes.
pub(crate) fn sector_bytes(file: &File) -> u32 {
    let found = if is_block_device(file).unwrap_or(false) {
        rustix::fs::ioctl_blksszget(file).ok()
    } else {
        direct_io_align(file)
    };
    found.filter(|bytes| bytes.is_power_of_two()).map_or(SECTOR_BYTES_MAX, |bytes| bytes.max(512))
}

/// `STATX_DIOALIGN`, known to kernels from 6.1 on and not to every file system.
fn direct_io_align(file: &File) -> Option<u32> {
    const STATX_DIOALIGN: u32 = 0x2000;
    let wanted = StatxFlags::from_bits_retain(STATX_DIOALIGN);
    let found = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted).ok()?;
    let known = found.stx_mask & STATX_DIOALIGN != 0 && found.stx_dio_offset_align != 0;
    (known && found.stx_dio_mem_align as usize <= crate::AlignedBuf::ALIGN).then_some(found.stx_dio_offset_align)
}

/// Turns direct I/O on for an open file.
pub(crate) fn set_direct(file: &File) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   who holds a lock of a file is found among all that the system tells of, whatever lines there are.
    /// Method: holders, other files, other kinds of locks, who waits, and lines that are cut short or make no sense.
    #[test]
    fn holders_are_told_from_others() {
        let locks = "1: FLOCK  ADVISORY  WRITE 41 fe:00:77 0 EOF\n2: FLOCK  ADVISORY  READ 42 fe:00:77 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 43 fe:00:77 0 EOF\n3: POSIX  ADVISORY  WRITE 44 fe:00:77 0 EOF\n\
            4: FLOCK  ADVISORY  WRITE 45 fe:00:177 0 EOF\n5: FLOCK  ADVISORY  WRITE -1 fe:00:77 0 EOF\n\
            6: FLOCK  ADVISORY  WRITE 46\n7: FLOCK  ADVISORY  WRITE x fe:00:77 0\n8: FLOCK a b 47 77 0 EOF\n\n\u{fffd} FLOCK";
        assert_eq!(holders(locks, 77).collect::<Vec<_>>(), [41, 42]);
        assert!(lives(std::process::id()) && !lives(u32::MAX));
    }
}
