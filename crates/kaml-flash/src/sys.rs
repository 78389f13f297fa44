//! The system calls of the file medium, whole or failed.
//!
//! Lives here:       loops over short transfers, holes, alignment of direct I/O.
//! May be called by: `file`, `plan`, `uring` (what a result means).

use crate::Holder;
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, Stat, StatxFlags};
use rustix::io::{Errno, IoSlice, ReadWriteFlags};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Largest sector that direct I/O needs anywhere, hence always a safe choice.
pub(crate) const SECTOR_BYTES_MAX: u32 = 4096;

/// A transfer that ends early meets the end of the file, which the layout excludes: the file was cut under us.
pub(crate) const CUT_SHORT: Errno = Errno::IO;

/// What is asked again, unchanged, up to [`TRIES`] times. `CANCELED` comes when the thread that submitted to a ring has ended since,
/// and when the kernel cannot start a thread of its own for the operation.
pub(crate) fn is_transient(errno: Errno) -> bool {
    matches!(errno, Errno::INTR | Errno::AGAIN | Errno::CANCELED)
}

/// What a ring may refuse although the system call succeeds: memory or threads are short, an operation is unknown to it or forbidden.
/// A failed transfer or sync of the disk is none of these: the kernel reports a failed sync once.
pub(crate) fn is_of_the_ring(errno: Errno) -> bool {
    is_transient(errno)
        || matches!(errno, Errno::NOMEM | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::ACCESS)
}

/// How often a call that was interrupted, or refused for the moment, is made.
const TRIES: u32 = 64;

/// Makes a call until it succeeds, fails for good, or has failed for the moment [`TRIES`] times.
fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for attempt in 1..TRIES {
        match call() {
            Err(errno) if is_transient(errno) => {
                if attempt % 8 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            }
            result => return result,
        }
    }
    call()
}

pub(crate) fn is_no_space(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT)
}

/// A device or file system that has no such operation; an old one may return "invalid".
pub(crate) fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY | Errno::INVAL)
}

/// Whether a living process has locked a file with `flock`. True where that cannot be determined. A lock from outside this
/// view of processes, as out of another container, is not seen.
pub(crate) fn is_locked_by_the_living(file: &File) -> bool {
    let (Ok(locks), Ok(stat)) = (std::fs::read_to_string("/proc/locks"), rustix::fs::fstat(file)) else { return true };
    holders(&locks, stat.st_ino).map(|(process, _)| process).any(lives)
}

/// The process that has locked a file with `flock`, where the system shows one that lives.
pub(crate) fn holder(file: &File) -> Option<Holder> {
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let stat = rustix::fs::fstat(file).ok()?;
    let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    // Some file systems show another device here than `stat` does (btrfs, overlays), and inodes are unique on one device only.
    let is_it = |&(process, found): &(u32, _)| lives(process) && (found == Some(device) || has_open(process, &stat));
    holders(&locks, stat.st_ino).find(is_it).map(|(process, _)| about(process))
}

/// What the system shows of a process.
fn about(process: u32) -> Holder {
    let read = |what: &str| std::fs::read(format!("/proc/{process}/{what}")).unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let arguments = read("cmdline").split(|byte| *byte == 0).map(text).collect::<Vec<_>>();
    let name = text(&read("comm")).trim_end().to_owned();
    let length = arguments.len().saturating_sub(1); // each argument ends with a zero byte
    Holder { process, name, arguments: arguments.into_iter().take(length).collect() }
}

/// Whether one of the files that a process has open is this one. False if we may not look.
fn has_open(process: u32, file: &Stat) -> bool {
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let mut found = entries.filter_map(|entry| rustix::fs::stat(entry.path()).ok());
    found.any(|found| (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino))
}

/// Processes that hold such locks of a file with this inode, and the device of each: `1: FLOCK ADVISORY WRITE 4711 fd:00:1234 0 EOF`.
fn holders(locks: &str, inode: u64) -> impl Iterator<Item = (u32, Option<(u32, u32)>)> {
    locks.lines().filter_map(move |line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, _, process, place, ..] = fields[..] else { return None };
        let (device, found) = place.rsplit_once(':')?;
        let number = |hex| u32::from_str_radix(hex, 16).ok();
        let device = device.split_once(':').and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
        (found.parse() == Ok(inode)).then_some((process.parse().ok()?, device))
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
        match again(|| rustix::io::pread(file, &mut buf[done..], at + done as u64))? {
            0 => return Err(CUT_SHORT),
            count => done += count,
        }
    }
    Ok(())
}

/// With `dsync` the bytes, and whatever is needed to find them, are durable when done.
pub(crate) fn write_all(file: &File, buf: &[u8], at: u64, dsync: bool) -> Result<(), Errno> {
    let mut done = 0;
    while done < buf.len() {
        let (rest, at) = (&buf[done..], at + done as u64);
        let written = again(|| match dsync {
            true => rustix::io::pwritev2(file, &[IoSlice::new(rest)], at, ReadWriteFlags::DSYNC),
            false => rustix::io::pwrite(file, rest, at),
        })?;
        match written {
            0 => return Err(CUT_SHORT),
            count => done += count,
        }
    }
    Ok(())
}

pub(crate) fn sync_data(file: &File) -> Result<(), Errno> {
    again(|| rustix::fs::fdatasync(file))
}

pub(crate) const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// Releases a range; it reads as zeroes afterwards. The same call discards a block device's range, and unlike a plain
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

/// Bytes of a file that have space in its file system; all of a block device.
pub(crate) fn allocated_bytes(file: &File) -> u64 {
    match rustix::fs::fstat(file) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile => found.st_blocks as u64 * 512,
        _ => u64::MAX,
    }
}

/// Whether a file system has so many bytes for us. One that does not say counts as having them.
pub(crate) fn has_space(file: &File, bytes: u64) -> bool {
    let free = |found: rustix::fs::StatVfs| found.f_bavail.saturating_mul(found.f_frsize);
    rustix::fs::fstatvfs(file).map_or(true, |found| free(found) >= bytes)
}

/// Whether power loss empties what holds a file's bytes: a file system in memory, a RAM disk, or a loop device over such a file. The
/// file system of a block device's name does not matter.
pub(crate) fn is_in_memory(file: &File) -> bool {
    match is_block_device(file) {
        Ok(true) => rustix::fs::fstat(file).is_ok_and(|found| is_disk_in_memory(found.st_rdev)),
        _ => is_on_memory_file_system(file),
    }
}

fn is_on_memory_file_system(file: &File) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    rustix::fs::fstatfs(file).is_ok_and(|found| [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(found.f_type as u64)))
}

/// A flag that `/sys` has for a disk, or for the disk of a partition. False if it is missing.
fn is_disk_in_memory(device: u64) -> bool {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let Ok(disk) = std::fs::canonicalize(format!("/sys/dev/block/{number}")) else { return false };
    let disk = if disk.join("partition").exists() { disk.parent().map_or(disk.clone(), Path::to_owned) } else { disk };
    if let Ok(backing) = std::fs::read_to_string(disk.join("loop/backing_file")) {
        return File::open(backing.trim_end()).is_ok_and(|below| is_in_memory(&below));
    }
    let name = disk.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_numbered = |kind: &str| name.strip_prefix(kind).is_some_and(|rest| rest.parse::<u32>().is_ok());
    is_numbered("ram") || is_numbered("zram")
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

/// The same file through the page cache: direct I/O belongs to an open file, not to a descriptor.
pub(crate) fn reopen_cached(file: &File, path: &Path) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    // Without /proc the path has to do; it must still lead to the same file.
    let reopened =
        rustix::fs::open(same, flags, Mode::empty()).or_else(|_| rustix::fs::open(path, flags, Mode::empty()))?;
    let (found, wanted) = (rustix::fs::fstat(&reopened)?, rustix::fs::fstat(file)?);
    if (found.st_dev, found.st_ino, found.st_rdev) != (wanted.st_dev, wanted.st_ino, wanted.st_rdev) {
        return Err(Errno::STALE);
    }
    Ok(File::from(reopened))
}

/// Turns direct I/O on for an open file.
pub(crate) fn set_direct(file: &File) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   who holds a lock of a file is found among all that the system reports, whatever lines there are.
    /// Method: holders, other files, other kinds of locks, waiters, and lines that are cut short or make no sense.
    #[test]
    fn holders_are_told_from_others() {
        let locks = "1: FLOCK  ADVISORY  WRITE 41 fe:00:77 0 EOF\n2: FLOCK  ADVISORY  READ 42 fe:00:77 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 43 fe:00:77 0 EOF\n3: POSIX  ADVISORY  WRITE 44 fe:00:77 0 EOF\n\
            4: FLOCK  ADVISORY  WRITE 45 fe:00:177 0 EOF\n5: FLOCK  ADVISORY  WRITE -1 fe:00:77 0 EOF\n\
            6: FLOCK  ADVISORY  WRITE 46\n7: FLOCK  ADVISORY  WRITE x fe:00:77 0\n8: FLOCK a b 47 77 0 EOF\n\n\u{fffd} FLOCK";
        let device = Some((0xfe, 0));
        assert_eq!(holders(locks, 77).collect::<Vec<_>>(), [(41, device), (42, device)]);
        assert!(lives(std::process::id()) && !lives(u32::MAX));
    }
}
