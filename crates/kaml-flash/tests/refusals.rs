//! The file medium where the kernel refuses what it usually does: io_uring in the middle of a life, blocks for the commit ring.
#![allow(unsafe_code, reason = "a filter on system calls is set by address")]

use kaml_flash::{
    AlignedBuf, BlockIndex, Completion, Durability, FileMedium, FormatOptions, Io, Medium, MediumError, OpenOptions,
    PageAddr, Wait,
};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// From now on a system call fails for this thread with this error.
fn forbid(call: i64, errno: i32) {
    let filter = [
        libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 }, // the number of the call
        libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: call as u32 },
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ERRNO | errno as u32 },
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program and its instructions exist during the call, which copies them.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

fn medium(dir: &Path, durability: Durability) -> FileMedium {
    let options = FormatOptions { durability, ..FormatOptions::new(64 << 20) };
    FileMedium::create(dir.join("device"), &options).unwrap()
}

fn program(medium: &FileMedium, block: u32, fill: u8) -> Io {
    let geometry = medium.geometry();
    let unit = (geometry.pages_per_program * geometry.page_bytes) as usize;
    let mut data = AlignedBuf::zeroed(unit);
    data.fill(fill);
    let pages = unit / geometry.page_bytes as usize;
    let oob = vec![fill; pages * geometry.oob_bytes as usize];
    Io::Program { at: PageAddr { block: BlockIndex(block), page: 0 }, data: Arc::new(data), oob, urgent: false }
}

fn read(medium: &FileMedium, block: u32) -> Io {
    let first = medium.geometry().chunk_at(BlockIndex(block), 0);
    Io::Read { at: first, into: AlignedBuf::zeroed(4096) }
}

/// Reaps until this many operations are done; fails if that takes long.
fn all(queue: &mut dyn kaml_flash::Queue, count: usize) -> Vec<Completion> {
    let (mut done, begin) = (Vec::new(), Instant::now());
    while done.len() < count {
        assert!(begin.elapsed() < Duration::from_secs(20), "{} of {count} are done", done.len());
        queue.reap(Wait::ForNs(50_000_000), &mut done);
    }
    done
}

/// Goal:   a queue whose ring the kernel stops serving executes its operations with system calls: what had not begun succeeds, what
///         may have begun succeeds if it is a read and otherwise fails as one operation, and nothing waits forever.
/// Method: programs and reads before; then `io_uring_enter` is forbidden, with EPERM, ENOMEM or EBADF, while programs and reads are
///         accepted but not submitted; then more. Everything is read back through another queue.
#[test]
fn rings_that_are_refused_in_the_middle_of_a_life() {
    for errno in [libc::EPERM, libc::ENOMEM, libc::EBADF] {
        let dir = tempfile::tempdir().unwrap();
        let medium = medium(dir.path(), Durability::Power);
        let inner = medium.clone();
        let thread = std::thread::spawn(move || {
            let mut queue = inner.queue(16);
            (0..4u8).for_each(|n| queue.submit(n.into(), program(&inner, n.into(), n + 1)));
            assert!(all(&mut *queue, 4).iter().all(|done| done.result.is_ok()));
            // These two remain in the submission queue: the kernel is notified of a few at a time.
            queue.submit(10, program(&inner, 10, 11));
            queue.submit(11, read(&inner, 2));
            forbid(libc::SYS_io_uring_enter, errno);
            for done in all(&mut *queue, 2) {
                assert_eq!(done.result, Ok(()), "operation {}", done.id);
                let Io::Read { into, .. } = &done.io else { continue };
                assert!(into.iter().all(|&byte| byte == 3));
            }
            (12..40u8).for_each(|n| queue.submit(n.into(), program(&inner, n.into(), n + 1)));
            queue.submit(99, Io::Flush);
            assert!(all(&mut *queue, 29).iter().all(|done| done.result.is_ok()));
            queue.waker().wake();
            let begin = Instant::now();
            queue.reap(Wait::ForNs(10_000_000_000), &mut Vec::new());
            assert!(begin.elapsed() < Duration::from_secs(5), "a wake ends the wait");
            // A new queue does not depend on the ring either.
            let mut other = inner.queue(4);
            other.submit(1, read(&inner, 3));
            assert!(all(&mut *other, 1)[0].result.is_ok());
        });
        thread.join().unwrap();
        let mut queue = medium.queue(64);
        let blocks: Vec<u8> = (0..4).chain([10]).chain(12..40).collect();
        blocks.iter().for_each(|&n| queue.submit(n.into(), read(&medium, n.into())));
        for done in all(&mut *queue, blocks.len()) {
            let Io::Read { into, .. } = &done.io else { panic!("only reads") };
            assert!(
                done.result.is_ok() && into.iter().all(|&byte| u64::from(byte) == done.id + 1),
                "block {}",
                done.id
            );
        }
    }
}

/// Goal:   where rings can be made but not entered, the device works without them, and its description names that.
/// Method: forbid `io_uring_enter`, then open; program, flush, read.
#[test]
fn rings_that_cannot_be_entered() {
    let dir = tempfile::tempdir().unwrap();
    drop(medium(dir.path(), Durability::Power));
    let path = dir.path().join("device");
    let thread = std::thread::spawn(move || {
        forbid(libc::SYS_io_uring_enter, libc::EPERM);
        let medium = FileMedium::open(path, &OpenOptions::default()).unwrap();
        assert!(medium.describe().contains("no io_uring"), "{}", medium.describe());
        let mut queue = medium.queue(8);
        queue.submit(1, program(&medium, 1, 7));
        queue.submit(2, Io::Flush);
        assert!(all(&mut *queue, 2).iter().all(|done| done.result.is_ok()));
    });
    thread.join().unwrap();
}

/// Goal:   a commit ring in a file with holes, on a file system that is full, gives an error and not a signal, and works again when
///         there is space.
/// Method: a device of `process` durability, copied with holes to a small file system in memory which is then filled; ring writes
///         until one is refused; then space again. Left out where mounting is not permitted.
#[test]
fn full_file_systems_under_a_ring_with_holes() {
    let dir = tempfile::tempdir().unwrap();
    drop(medium(dir.path(), Durability::Process));
    let small = dir.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
        std::process::Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
    };
    let mounted = ["-t", "tmpfs", "-o", "size=24M", "tmpfs"].map(std::ffi::OsStr::new);
    if !run("mount", &[&mounted[..], &[small.as_os_str()]].concat()) {
        eprintln!("left out: no file system can be mounted here");
        return;
    }
    let copy = small.join("device");
    let copied = run("cp", &["--sparse=always".as_ref(), dir.path().join("device").as_os_str(), copy.as_os_str()]);
    let check = || {
        let medium = FileMedium::open(&copy, &OpenOptions::default()).map_err(|error| error.to_string())?;
        let filler = small.join("filler");
        std::fs::write(&filler, vec![1; 24 << 20]).expect_err("the file system is full");
        let write = |offset: u64| {
            let data = AlignedBuf::zeroed(64 << 10);
            medium.execute(&mut Io::Persist { offset, data, len: 64 << 10, barrier: false })
        };
        let ring = medium.geometry().ring_bytes;
        let refused = (0..ring / (64 << 10)).find_map(|turn| write(turn * (64 << 10)).err());
        let Some(MediumError::NoSpace { .. }) = refused else { return Err(format!("{refused:?}")) };
        std::fs::remove_file(&filler).map_err(|error| error.to_string())?;
        write(0).map_err(|error| error.to_string())
    };
    let outcome = check();
    assert!(run("umount", &[small.as_os_str()]));
    assert!(copied);
    outcome.unwrap();
}
