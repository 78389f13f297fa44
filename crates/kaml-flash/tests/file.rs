//! What only files and block devices do: be formatted, reopened, damaged, shared, killed, filled.

use kaml_flash::{
    AlignedBuf, BlockIndex, CAPACITY_BYTES_MIN, Durability, FileChange, FileEvent, FileMedium, FileTrace, FormatError,
    FormatOptions, Io, Medium, MediumError, OpenError, OpenOptions, PageAddr, Wait,
};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;
/// Where the third copy of the superblock is.
const LAST_COPY: u64 = CAPACITY_BYTES_MIN - 4096;

fn options() -> FormatOptions {
    FormatOptions { capacity_bytes: CAPACITY_BYTES_MIN, ..FormatOptions::default() }
}

fn formatted() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    FileMedium::create(&path, &options()).unwrap();
    (dir, path)
}

fn open(path: &Path) -> Result<FileMedium, OpenError> {
    FileMedium::open(path, &OpenOptions::default())
}

/// The error of opening, in words.
fn refusal(path: &Path) -> String {
    open(path).err().expect("opening is refused").to_string().replace(&path.display().to_string(), "P")
}

fn program_io(block: u32, page: u32, byte: u8, urgent: bool) -> Io {
    let data = Arc::new(AlignedBuf::copy_of(&[byte; PAGE_BYTES]));
    Io::Program { at: PageAddr { block: BlockIndex(block), page }, data, oob: vec![byte; 32], urgent }
}

fn program(medium: &dyn Medium, block: u32, page: u32, byte: u8, urgent: bool) -> Result<(), MediumError> {
    medium.execute(&mut program_io(block, page, byte, urgent))
}

fn page(medium: &dyn Medium, block: u32, page: u32) -> (u8, u8) {
    let geometry = medium.geometry();
    let chunk = geometry.chunk_at(BlockIndex(block), page * geometry.chunks_per_page());
    let mut io = Io::Read { at: chunk, into: AlignedBuf::zeroed(PAGE_BYTES) };
    medium.execute(&mut io).unwrap();
    let Io::Read { into: data, .. } = io else { unreachable!() };
    let mut io = Io::ReadOob { at: PageAddr { block: BlockIndex(block), page }, into: AlignedBuf::zeroed(32) };
    medium.execute(&mut io).unwrap();
    let Io::ReadOob { into: oob, .. } = io else { unreachable!() };
    assert!(data.iter().all(|&byte| byte == data[0]) && oob.iter().all(|&byte| byte == oob[0]));
    (data[0], oob[0])
}

fn persist(medium: &dyn Medium, offset: u64, byte: u8) -> Result<(), MediumError> {
    medium.execute(&mut Io::Persist { offset, data: AlignedBuf::copy_of(&[byte; 4096]), len: 4096, barrier: false })
}

fn ring_byte(medium: &dyn Medium, offset: u64) -> u8 {
    let mut ring = AlignedBuf::zeroed(4096);
    medium.read_ring(offset, &mut ring).unwrap();
    assert!(ring.iter().all(|&byte| byte == ring[0]));
    ring[0]
}

/// Goal:   a device opened again is the same device with the same bytes.
/// Method: write everywhere, flush, close; open with each durability and compare; shape and name too.
#[test]
fn reopened_devices_keep_everything() {
    let (_dir, path) = formatted();
    let medium = open(&path).unwrap();
    for at in 0..20 {
        program(&medium, 1, at, at as u8 + 1, false).unwrap();
    }
    persist(&medium, 8192, 77).unwrap();
    medium.execute(&mut Io::WriteRoot { slot: 1, data: AlignedBuf::copy_of(&[9; 512]) }).unwrap();
    medium.execute(&mut Io::Flush).unwrap();
    let (uuid, geometry) = (medium.uuid(), medium.geometry().clone());
    drop(medium);
    for durability in [Durability::Power, Durability::Process, Durability::Power] {
        let how = OpenOptions { durability: Some(durability), ..OpenOptions::default() };
        let medium = FileMedium::open(&path, &how).unwrap();
        assert_eq!((medium.uuid(), medium.geometry(), medium.durability()), (uuid, &geometry, durability));
        for at in 0..20 {
            assert_eq!(page(&medium, 1, at), (at as u8 + 1, at as u8 + 1));
        }
        assert_eq!(page(&medium, 1, 20), (0, 0));
        assert_eq!(ring_byte(&medium, 8192), 77);
        persist(&medium, 4096, durability as u8 + 10).unwrap();
        assert_eq!(ring_byte(&medium, 4096), durability as u8 + 10);
        let mut root = AlignedBuf::zeroed(1024);
        medium.read_root(1, &mut root).unwrap();
        assert!(root[..512].iter().all(|&byte| byte == 9) && root[512..].iter().all(|&byte| byte == 0));
    }
    assert_eq!(ring_byte(&open(&path).unwrap(), 4096), 10);
}

/// Goal:   a block reused after reopening never shows OOB of its earlier life, though the medium knows nothing of it.
/// Method: fill a block, reopen, program one page without an erase, look before and after a flush, reopen, look again.
#[test]
fn an_earlier_life_does_not_show() {
    let (_dir, path) = formatted();
    let medium = open(&path).unwrap();
    let pages = medium.geometry().pages_per_block;
    for at in 0..pages {
        program(&medium, 0, at, 5, false).unwrap();
    }
    drop(medium);
    let medium = open(&path).unwrap();
    assert_eq!(page(&medium, 0, pages - 1), (5, 5), "a complete block has its OOB in the file without a flush");
    program(&medium, 0, 0, 6, false).unwrap();
    let look = |medium: &FileMedium| {
        assert_eq!(page(medium, 0, 0), (6, 6));
        assert!((1..pages).all(|at| page(medium, 0, at).1 == 0));
    };
    look(&medium);
    medium.execute(&mut Io::Flush).unwrap();
    look(&medium);
    drop(medium);
    look(&open(&path).unwrap());
}

/// Goal:   OOB writes of the same block by several users never undo each other.
/// Method: four threads, two of them with queues, program blocks durably page by page while two more flush all the time; the
///         OOB of every page must be in the file afterwards, which reopening shows.
#[test]
fn oob_writes_of_many_users_never_undo_each_other() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (_dir, path) = formatted();
    let medium = open(&path).unwrap();
    let pages = medium.geometry().pages_per_block - 1;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (medium, over) = (&medium, &over);
        for _ in 0..2 {
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    medium.execute(&mut Io::Flush).unwrap();
                }
            });
        }
        let writers: Vec<_> = (0..4)
            .map(|block| {
                scope.spawn(move || {
                    let mut queue = medium.queue(8);
                    for at in 0..pages {
                        let (byte, urgent) = (at as u8 + 1, at % 3 == 0);
                        if block % 2 == 0 {
                            program(medium, block, at, byte, urgent).unwrap();
                            continue;
                        }
                        queue.submit(0, program_io(block, at, byte, urgent));
                        let mut done = Vec::new();
                        while queue.in_flight() > (at % 5) as usize {
                            queue.reap(Wait::ForNs(1_000_000_000), &mut done);
                        }
                        assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
                    }
                    while queue.in_flight() > 0 {
                        queue.reap(Wait::ForNs(1_000_000_000), &mut Vec::new());
                    }
                })
            })
            .collect();
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        over.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok), "a writer failed");
    });
    medium.execute(&mut Io::Flush).unwrap();
    drop(medium);
    let medium = open(&path).unwrap();
    for block in 0..4 {
        for at in 0..pages {
            assert_eq!(page(&medium, block, at), (at as u8 + 1, at as u8 + 1), "block {block} page {at}");
        }
    }
}

/// Goal:   every operation acknowledged as durable before a SIGKILL exists afterwards, with both durabilities.
/// Method: a child writes a counter by each durable path in turn and prints it when acknowledged; kill it at some line.
#[test]
fn durable_operations_survive_sigkill() {
    for durability in [Durability::Power, Durability::Process] {
        for lines in [1, 7, 40] {
            let (_dir, path) = formatted();
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "child_that_is_killed", "--ignored", "--nocapture"])
                .env("KAML_TEST_DEVICE", &path)
                .env("KAML_TEST_PROCESS_DURABILITY", if durability == Durability::Process { "1" } else { "0" })
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let output = BufReader::new(child.stdout.take().unwrap());
            let acknowledged = output
                .lines()
                .map_while(Result::ok)
                .filter_map(|line| line.strip_prefix("durable ").and_then(|number| number.parse::<u32>().ok()))
                .nth(lines)
                .expect("the child runs until it is killed");
            child.kill().unwrap();
            child.wait().unwrap();
            let medium = open(&path).unwrap();
            let mut root = AlignedBuf::zeroed(512);
            medium.read_root(0, &mut root).unwrap();
            let what = format!("{durability:?}, {acknowledged} acknowledged");
            for number in 0..=acknowledged {
                let byte = number as u8 + 1;
                assert_eq!(ring_byte(&medium, u64::from(number) * 4096), byte, "{what}");
                assert_eq!(page(&medium, 0, number), (byte, byte), "{what}");
                assert_eq!(page(&medium, 1, number), (byte, byte), "{what}");
                assert_eq!(page(&medium, 2, number), (byte, byte), "{what}");
            }
            assert!(u32::from(root[0]) > acknowledged, "{what}: root {}", root[0]);
        }
    }
}

/// Not a test: the child of `durable_operations_survive_sigkill`.
#[test]
#[ignore = "runs until it is killed"]
fn child_that_is_killed() {
    let path = PathBuf::from(std::env::var_os("KAML_TEST_DEVICE").expect("started by its parent"));
    let process = std::env::var("KAML_TEST_PROCESS_DURABILITY").unwrap() == "1";
    let durability = Some(if process { Durability::Process } else { Durability::Power });
    let medium = FileMedium::open(&path, &OpenOptions { durability, ..OpenOptions::default() }).unwrap();
    let mut queue = medium.queue(4);
    for number in 0..60 {
        let byte = number as u8 + 1;
        medium.execute(&mut Io::WriteRoot { slot: 0, data: AlignedBuf::copy_of(&[byte; 512]) }).unwrap();
        queue.submit(0, program_io(0, number, byte, true));
        program(&medium, 1, number, byte, false).unwrap();
        let mut begun = program_io(2, number, byte, true);
        medium.begin(&mut begun).unwrap()().unwrap();
        let mut done = Vec::new();
        while queue.in_flight() > 0 {
            queue.reap(Wait::ForNs(1_000_000_000), &mut done);
        }
        let (offset, data) = (u64::from(number) * 4096, AlignedBuf::copy_of(&[byte; 4096]));
        medium.execute(&mut Io::Persist { offset, data, len: 4096, barrier: true }).unwrap();
        queue.submit(1, Io::Flush);
        while queue.in_flight() > 0 {
            queue.reap(Wait::ForNs(1_000_000_000), &mut done);
        }
        assert!(done.iter().all(|completion| completion.result.is_ok()));
        println!("durable {number}");
    }
    std::thread::sleep(std::time::Duration::from_secs(60));
}

/// Goal:   whatever happens to one superblock copy, the device opens from another and heals the damaged one.
/// Method: change each byte that bears a field, and some of the others, in each copy in turn; opening succeeds, and the
///         bytes are restored. (The check of all bytes without a disk stands next to the format.)
#[test]
fn one_damaged_copy_is_healed() {
    let (_dir, path) = formatted();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut good = vec![0; 8192];
    file.read_exact_at(&mut good, 0).unwrap();
    for at in (0..8192).filter(|at| at % 4096 < 132 || at % 4096 >= 4092 || at % 61 == 0) {
        file.write_all_at(&[good[at] ^ 0x41], at as u64).unwrap();
        drop(open(&path).unwrap_or_else(|error| panic!("byte {at}: {error}")));
        let mut healed = vec![0; 8192];
        file.read_exact_at(&mut healed, 0).unwrap();
        assert!(healed == good, "byte {at}");
    }
    let mut healed = [0; 4096];
    for at in [0, 50, 4095] {
        file.write_all_at(&[0; 50], LAST_COPY + at).unwrap();
        drop(open(&path).unwrap());
        file.read_exact_at(&mut healed, LAST_COPY).unwrap();
        assert!(healed == good[..4096], "byte {at} of the last one");
        file.set_len(CAPACITY_BYTES_MIN).unwrap();
    }
}

/// Goal:   copies of the superblock that the system refuses to read are done without.
/// Method: a child's first reads of the device fail with EIO, one, the other, or both; needs `strace`. (All sets of copies stand
///         next to the code.)
#[test]
fn refused_copies_are_done_without() {
    let (_dir, path) = formatted();
    for reads in ["1", "2", "1..2"] {
        let output = Command::new("strace")
            .args(["-f", "-qq", "-e", "trace=pread64", "-e", &format!("inject=pread64:error=EIO:when={reads}"), "-P"])
            .arg(&path)
            .arg(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "child_that_opens", "--nocapture"])
            .env("KAML_TEST_DEVICE", &path)
            .output();
        let Some(output) = output.ok().filter(|output| String::from_utf8_lossy(&output.stderr).contains("INJECTED"))
        else {
            println!("skipped: no strace that makes reads fail");
            return;
        };
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(stderr.matches("INJECTED").count(), if reads == "1..2" { 2 } else { 1 }, "{stderr}");
        assert!(output.status.success(), "reads {reads}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

/// Not a test: the child of `refused_copies_are_done_without`.
#[test]
#[ignore = "the child of `refused_copies_are_done_without`"]
fn child_that_opens() {
    let path = PathBuf::from(std::env::var_os("KAML_TEST_DEVICE").expect("started by its parent"));
    open(&path).unwrap();
    FileMedium::open_damaged(&path).unwrap();
}

/// Goal:   with the copies at the beginning gone opening is refused with a reason, and never panics.
/// Method: change the same byte in both copies, for every byte; the same in the third one for half of them; name a few refusals
///         literally.
#[test]
fn two_damaged_copies_are_refused() {
    let (_dir, path) = formatted();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut good = vec![0; 8192];
    file.read_exact_at(&mut good, 0).unwrap();
    for at in 0..4096u64 {
        let byte = [good[at as usize] ^ 1];
        file.write_all_at(&byte, at).unwrap();
        file.write_all_at(&byte, 4096 + at).unwrap();
        let is_whole_at_end = at % 2 == 1;
        if !is_whole_at_end {
            file.write_all_at(&byte, LAST_COPY + at).unwrap();
        }
        match open(&path) {
            Err(OpenError::HeadDamaged { .. }) => assert!(is_whole_at_end),
            Err(OpenError::NotADevice { .. }) => assert!(at < 8 && !is_whole_at_end),
            Err(OpenError::Damaged { which, .. }) => {
                assert!(at >= 8 && !is_whole_at_end && which == "both superblock copies")
            }
            Err(other) => panic!("byte {at}: {other}"),
            Ok(_) => panic!("byte {at}: opened"),
        }
        assert_eq!(FileMedium::open_damaged(&path).is_ok(), is_whole_at_end, "byte {at}");
        file.write_all_at(&good, 0).unwrap();
        file.write_all_at(&good[..4096], LAST_COPY).unwrap();
    }
    let mut newer = good[..4096].to_vec();
    newer[8] = 9;
    let crc = kaml_crc::crc32c(&newer[..4092]);
    newer[4092..].copy_from_slice(&crc.to_le_bytes());
    file.write_all_at(&newer, 4096).unwrap();
    assert_eq!(refusal(&path), "P: format version 9 is newer than 4, the newest that this software knows");
}

/// Goal:   a device is found by the copy at its end, and nothing is written to it. A superblock elsewhere, which may be a value, is named
///         and not taken.
/// Method: the beginning overwritten, alone, and with bytes after the end or a device of another place there; cut short in front of a
///         copy that a tenant stored as a value, and with that copy and bytes after it.
#[test]
fn devices_are_found_by_their_end() {
    let (_dir, path) = formatted();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let medium = open(&path).unwrap();
    let (uuid, geometry) = (medium.uuid(), medium.geometry().clone());
    medium.execute(&mut Io::WriteRoot { slot: 1, data: AlignedBuf::copy_of(&[7; 4096]) }).unwrap();
    drop(medium);
    let mut copy = [0; 4096];
    file.read_exact_at(&mut copy, 0).unwrap();
    file.write_all_at(&[0x5a; 1 << 20], 0).unwrap();
    assert!(refusal(&path).starts_with("P: the beginning is damaged: A: no superblock; B: no superblock; "));
    for longer_by in [0u64, 1] {
        file.set_len(CAPACITY_BYTES_MIN + longer_by).unwrap();
        let before = std::fs::read(&path).unwrap();
        let (medium, why) = FileMedium::open_damaged(&path).unwrap();
        assert!(matches!(why, Some(OpenError::HeadDamaged { .. })), "{why:?}");
        assert_eq!((medium.uuid(), medium.geometry()), (uuid, &geometry), "longer by {longer_by}");
        let mut mirror = AlignedBuf::zeroed(4096);
        medium.read_mirror(&mut mirror).unwrap();
        assert_eq!(*mirror, [7; 4096]);
        assert!(medium.execute(&mut Io::Flush).is_err());
        drop(medium);
        assert!(std::fs::read(&path).unwrap() == before);
    }
    let named = |expected| {
        let before = std::fs::read(&path).unwrap();
        match FileMedium::open_damaged(&path) {
            Err(OpenError::NotAtEnd { device_bytes, .. }) => assert_eq!(device_bytes, expected),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("a value may have been taken for a superblock"),
        }
        assert!(std::fs::read(&path).unwrap() == before);
    };
    for longer_by in [5000u64, 3 << 20] {
        file.set_len(CAPACITY_BYTES_MIN + longer_by).unwrap();
        if longer_by > 8192 {
            file.write_all_at(&copy, CAPACITY_BYTES_MIN + 4096).unwrap();
        }
        named(CAPACITY_BYTES_MIN);
    }
    file.set_len(CAPACITY_BYTES_MIN - 1).unwrap();
    assert!(matches!(FileMedium::open_damaged(&path), Err(OpenError::NotADevice { .. })));
    // A device of its own in a value: whole, and smaller.
    let (_inner_dir, inner) = formatted();
    let mut forged = std::fs::read(&inner).unwrap();
    forged.drain(..forged.len() - (1 << 20));
    file.set_len(CAPACITY_BYTES_MIN + (8 << 20)).unwrap();
    file.write_all_at(&[0; 8192], LAST_COPY).unwrap();
    file.write_all_at(&forged, CAPACITY_BYTES_MIN - (1 << 20)).unwrap();
    named(CAPACITY_BYTES_MIN);
}

/// Goal:   a device gets another identity, again and again, and keeps it; all that it stores stays readable. Whatever of the copies a
///         power cut leaves, the device has the old identity or the new one, in all copies after it was opened.
/// Method: renew twice; then each combination of old, torn and new copies that the order of the writes allows.
#[test]
fn identities_are_renewed() {
    let (_dir, path) = formatted();
    let medium = open(&path).unwrap();
    let uuid = medium.uuid();
    assert_eq!(medium.identity(), uuid);
    assert!(matches!(FileMedium::renew_identity(&path), Err(OpenError::InUse { .. })));
    medium.execute(&mut Io::WriteRoot { slot: 1, data: AlignedBuf::copy_of(&[7; 4096]) }).unwrap();
    drop(medium);
    let first = FileMedium::renew_identity(&path).unwrap();
    let old = std::fs::read(&path).unwrap();
    let second = FileMedium::renew_identity(&path).unwrap();
    let new = std::fs::read(&path).unwrap();
    assert!(first != uuid && second != first && second != uuid);
    assert_eq!(FileMedium::identity_of(&path).unwrap(), second);
    let medium = open(&path).unwrap();
    assert_eq!((medium.uuid(), medium.identity()), (uuid, second));
    let mut root = AlignedBuf::zeroed(4096);
    medium.read_root(1, &mut root).unwrap();
    assert_eq!(*root, [7; 4096]);
    drop(medium);
    let places = [0, 4096, LAST_COPY as usize];
    for written in 0..=3 {
        for torn in [false, true] {
            let mut cut = old.clone();
            for (i, at) in places.into_iter().enumerate() {
                let bytes = match i {
                    _ if i < written => 4096,
                    _ if i == written && torn => 512,
                    _ => 0,
                };
                cut[at..at + bytes].copy_from_slice(&new[at..at + bytes]);
            }
            std::fs::write(&path, &cut).unwrap();
            let expected = if written > 0 { second } else { first };
            assert_eq!(FileMedium::identity_of(&path).unwrap(), expected, "{written} {torn}");
            drop(open(&path).unwrap());
            let restored = std::fs::read(&path).unwrap();
            let whole = if written > 0 { &new } else { &old };
            assert!(places.iter().all(|at| restored[*at..at + 4096] == whole[*at..at + 4096]), "{written} {torn}");
        }
    }
}

/// Goal:   when a root write has ended, slot and mirror are durable on any disk: a write with FUA brings nothing but itself there.
/// Method: what is asked of the kernel, alone and in a queue: all that is written is durable itself or is followed by a sync.
#[test]
fn roots_are_durable_with_their_mirrors() {
    let (_dir, path) = formatted();
    let trace = Arc::new(FileTrace::default());
    let medium = FileMedium::open_traced(&path, &OpenOptions::default(), Some(trace.clone())).unwrap();
    let root = || Io::WriteRoot { slot: 1, data: AlignedBuf::copy_of(&[7; 4096]) };
    medium.execute(&mut root()).unwrap();
    let alone = trace.events(0);
    let mut queue = medium.queue(1);
    queue.submit(0, root());
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.reap(Wait::ForNs(1_000_000_000), &mut done);
    }
    for events in [&alone[..], &trace.events(alone.len())] {
        let (mut waiting, mut writes) = (0, 0);
        for event in events {
            match event {
                FileEvent::Begin(_, FileChange::Write { dsync, .. }) => {
                    writes += 1;
                    waiting += u32::from(!dsync);
                }
                FileEvent::Begin(_, FileChange::Sync) => waiting = 0,
                FileEvent::Begin(_, FileChange::Punch { .. }) | FileEvent::End(..) => {}
            }
        }
        assert_eq!((writes, waiting), (2, 0), "{} events", events.len());
    }
}

/// Goal:   devices that were formatted before there was a tail work as before, and nothing is written after their blocks.
/// Method: superblocks of version 1; a root and a torn copy.
#[test]
fn devices_without_a_tail_work() {
    let (_dir, path) = formatted();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut copy = vec![0; 4096];
    file.read_exact_at(&mut copy, 0).unwrap();
    copy[8] = 1;
    copy[136..144].fill(0);
    let crc = kaml_crc::crc32c(&copy[..4092]);
    copy[4092..].copy_from_slice(&crc.to_le_bytes());
    file.write_all_at(&[0; 8192], 0).unwrap();
    file.write_all_at(&copy, 4096).unwrap();
    let tail_bytes = (256 << 10) + 4096;
    file.write_all_at(&vec![9; tail_bytes], CAPACITY_BYTES_MIN - tail_bytes as u64).unwrap();
    let medium = open(&path).unwrap();
    medium.execute(&mut Io::WriteRoot { slot: 0, data: AlignedBuf::copy_of(&[7; 4096]) }).unwrap();
    let mut mirror = AlignedBuf::copy_of(&[1; 4096]);
    medium.read_mirror(&mut mirror).unwrap();
    assert_eq!(*mirror, [0; 4096]);
    drop(medium);
    let image = std::fs::read(&path).unwrap();
    assert!(image[..4096] == copy[..], "healed as it was");
    assert!(image[image.len() - tail_bytes..].iter().all(|byte| *byte == 9));
}

/// Goal:   a shortened file is refused by name, at any length.
/// Method: cut at lengths around everything the layout knows.
#[test]
fn truncated_files_are_refused() {
    let (_dir, path) = formatted();
    let file = File::options().write(true).open(&path).unwrap();
    for length in [CAPACITY_BYTES_MIN - 1, 1 << 20, 65_536, 8192, 8191, 4096] {
        file.set_len(length).unwrap();
        assert_eq!(refusal(&path), format!("P: cut short: {length} bytes are left of {CAPACITY_BYTES_MIN}"));
    }
    // A checksum without its last byte is still right once in 256 times, one without any of its bytes is not.
    for length in [4092, 100, 8] {
        file.set_len(length).unwrap();
        assert_eq!(refusal(&path), format!("P: cut short: {length} bytes are left of 8192"));
    }
    file.set_len(7).unwrap();
    assert_eq!(refusal(&path), "P: not a KAML device");
    file.set_len(0).unwrap();
    assert_eq!(refusal(&path), "P: 0 bytes are too few, a device has at least 33554432");
}

/// Goal:   files that are something else are left alone.
/// Method: open and format a text file, a directory, a pipe, nothing.
#[test]
fn foreign_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (text, fifo) = (dir.path().join("text"), dir.path().join("fifo"));
    std::fs::write(&text, "not flash".repeat(2000)).unwrap();
    assert_eq!(refusal(&text), "P: not a KAML device");
    assert!(matches!(FileMedium::create(&text, &options()), Err(FormatError::NotEmpty { .. })));
    assert_eq!(std::fs::read(&text).unwrap().len(), 18_000);
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for path in [dir.path(), &fifo] {
        assert_eq!(refusal(path), "P: not a KAML device");
        assert!(matches!(FileMedium::create(path, &options()), Err(FormatError::NotAFile { .. })));
    }
    let nothing = dir.path().join("nothing");
    assert!(matches!(open(&nothing), Err(OpenError::Io { .. })));
    assert!(!nothing.exists());
    let nowhere = dir.path().join("no/where");
    assert!(matches!(FileMedium::create(nowhere, &options()), Err(FormatError::Io { .. })));
}

/// Goal:   formatting needs `force` over anything, then leaves nothing of what existed; a refusal leaves no file.
/// Method: format twice; a capacity that is too small.
#[test]
fn formatting_again_needs_force() {
    let (dir, path) = formatted();
    let first = open(&path).unwrap();
    program(&first, 0, 0, 1, true).unwrap();
    persist(&first, 0, 1).unwrap();
    let uuid = first.uuid();
    let force = FormatOptions { force: true, ..options() };
    assert!(matches!(FileMedium::create(&path, &force), Err(FormatError::InUse { .. })));
    drop(first);
    assert!(matches!(FileMedium::create(&path, &options()), Err(FormatError::NotEmpty { .. })));
    assert_eq!(open(&path).unwrap().uuid(), uuid);
    let second = FileMedium::create(&path, &force).unwrap();
    assert_ne!(second.uuid(), uuid);
    assert_eq!((page(&second, 0, 0), ring_byte(&second, 0)), ((0, 0), 0));
    let tiny = dir.path().join("tiny");
    for capacity_bytes in [1, CAPACITY_BYTES_MIN - 1] {
        let error = FileMedium::create(&tiny, &FormatOptions { capacity_bytes, ..options() }).err().unwrap();
        assert!(error.to_string().ends_with("a device takes at least 33554432"), "{error}");
        assert!(!tiny.exists());
    }
}

/// Goal:   a new device takes disk space for its ring and roots, not for its blocks; released blocks release theirs.
/// Method: count the file's disk blocks.
#[test]
fn space_is_taken_and_given_back() {
    let (_dir, path) = formatted();
    let used = || std::fs::metadata(&path).unwrap().blocks() * 512;
    let medium = open(&path).unwrap();
    let geometry = medium.geometry().clone();
    let fixed = geometry.ring_bytes + 2 * u64::from(geometry.root_bytes);
    let new = used();
    assert!((fixed..fixed + (1 << 20)).contains(&new), "{new} bytes used, {fixed} expected");
    for block in 0..4 {
        program(&medium, block, 0, 1, false).unwrap();
    }
    assert!(used() >= new + 4 * geometry.block_bytes(), "blocks in use are allocated whole");
    for block in 0..4 {
        medium.execute(&mut Io::Erase { block: BlockIndex(block), release: true }).unwrap();
    }
    assert!(used() <= new + (64 << 10), "{} bytes used after everything was released", used());
}

/// Goal:   one writer, or any number of readers; the lock is gone with the last handle or queue.
/// Method: open in every combination.
#[test]
fn second_openers_are_refused() {
    let (_dir, path) = formatted();
    let reader = OpenOptions { read_only: true, ..OpenOptions::default() };
    let in_use = |result: Result<FileMedium, OpenError>| matches!(result, Err(OpenError::InUse { .. }));
    let writer = open(&path).unwrap();
    assert!(in_use(open(&path)) && in_use(FileMedium::open(&path, &reader)));
    let queue = writer.queue(1);
    drop(writer);
    assert!(in_use(open(&path)), "a queue is a user");
    drop(queue);
    let readers = [FileMedium::open(&path, &reader).unwrap(), FileMedium::open(&path, &reader).unwrap()];
    assert!(in_use(open(&path)));
    drop(readers);
    open(&path).unwrap();
}

/// Goal:   what is locked, but by a process that has ended, is waited for longer than for one that lives.
/// Method: a program locks the device and ends; its child has the descriptor, and so the lock, for another second.
#[test]
fn locks_of_the_dead_are_waited_for() {
    let (_dir, path) = formatted();
    let script = "exec 9<\"$0\"; flock 9; sleep 1 >/dev/null 2>&1 &";
    assert!(Command::new("sh").args(["-c", script]).arg(&path).status().unwrap().success());
    let raw = File::open(&path).unwrap();
    assert!(matches!(raw.try_lock(), Err(std::fs::TryLockError::WouldBlock)), "the child has it");
    open(&path).unwrap();
}

/// Goal:   a device opened for reading changes nothing and reports why.
/// Method: every mutating operation; also that a damaged superblock copy is left as it is.
#[test]
fn read_only_devices_refuse_changes() {
    let (_dir, path) = formatted();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&[0xff], 0).unwrap();
    for durability in [Durability::Power, Durability::Process] {
        let how = OpenOptions { read_only: true, durability: Some(durability), ..OpenOptions::default() };
        let medium = FileMedium::open(&path, &how).unwrap();
        for mut io in [
            program_io(0, 0, 1, false),
            Io::Erase { block: BlockIndex(0), release: true },
            Io::Persist { offset: 0, data: AlignedBuf::zeroed(4096), len: 4096, barrier: false },
            Io::WriteRoot { slot: 0, data: AlignedBuf::zeroed(4096) },
            Io::Flush,
        ] {
            let error = medium.execute(&mut io).unwrap_err().to_string();
            assert!(error.ends_with("failed: the device is opened read-only"), "{error}");
        }
        assert_eq!((page(&medium, 0, 0), ring_byte(&medium, 0)), ((0, 0), 0));
        assert!(medium.describe().ends_with(", read-only"), "{}", medium.describe());
    }
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(byte, [0xff]);
}

/// Goal:   an I/O error below becomes the error of that operation, in `execute` and in a queue, and nothing else.
/// Method: cut the file under the open device, so reads of its last block meet the end.
#[test]
fn failed_reads_are_named() {
    let (_dir, path) = formatted();
    let medium = open(&path).unwrap();
    let geometry = medium.geometry();
    File::options().write(true).open(&path).unwrap().set_len(CAPACITY_BYTES_MIN / 2).unwrap();
    let at = geometry.chunk_at(BlockIndex(geometry.block_count() - 1), 64);
    let error = medium.execute(&mut Io::Read { at, into: AlignedBuf::zeroed(100) }).unwrap_err();
    assert!(matches!(&error, MediumError::ReadFailed { what, .. } if *what == at.to_string()), "{error}");
    let mut queue = medium.queue(2);
    queue.submit(1, Io::Read { at, into: AlignedBuf::zeroed(100) });
    queue.submit(2, Io::Read { at: geometry.chunk_at(BlockIndex(0), 0), into: AlignedBuf::zeroed(100) });
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.reap(Wait::ForNs(1_000_000_000), &mut done);
    }
    done.sort_by_key(|completion| completion.id);
    assert_eq!(done[0].result, Err(error));
    assert_eq!(done[1].result, Ok(()));
    let Io::Read { into, .. } = &done[0].io else { panic!("the operation came back as another") };
    assert_eq!(into.len(), 100, "a buffer comes back as long as it went");
}

/// Goal:   without a ring a queue still works, and reports it.
/// Method: a child whose file descriptors have run out requests one.
#[test]
fn queues_do_without_io_uring() {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_without_descriptors", "--ignored"])
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

/// Not a test by itself: it takes the descriptors of its whole process.
#[test]
#[ignore = "the child of `queues_do_without_io_uring`"]
fn child_without_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let (_dir, path) = formatted();
    let medium = open(&path).unwrap();
    assert!(!medium.describe().contains("io_uring"), "{}", medium.describe());
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    let mut queue = medium.queue(4);
    assert!(medium.describe().contains("a queue without io_uring"), "{}", medium.describe());
    queue.submit(1, program_io(0, 0, 1, true));
    let mut done = Vec::new();
    queue.reap(Wait::No, &mut done);
    assert_eq!(done[0].result, Ok(()));
    // The temporary directory takes a descriptor to remove.
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Runs a command and shows whether it succeeded.
fn run(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        // A child that another test is about to start may hold a copy of a descriptor for a moment.
        let unmounted = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            run(Command::new("umount").arg(&self.0))
        });
        assert!(unmounted, "unmounting {}", self.0.display());
    }
}

/// Goal:   a full file system shows as `NoSpace` before anything has changed, everything else continues, and released
///         blocks make room again.
/// Method: a device larger than its tmpfs, with every medium option; needs the right to mount.
#[test]
fn a_full_file_system_is_no_space() {
    let dir = tempfile::tempdir().unwrap();
    if !run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(dir.path())) {
        println!("skipped: no right to mount a tmpfs");
        return;
    }
    let _unmount = Unmount(dir.path().into());
    let path = dir.path().join("device");
    let capacity_bytes = 64 << 20;
    drop(FileMedium::create(&path, &FormatOptions { capacity_bytes, ..options() }).unwrap());
    for io_uring in [true, false] {
        let medium = FileMedium::open(&path, &OpenOptions { io_uring, ..OpenOptions::default() }).unwrap();
        let mut queue = medium.queue(2);
        let mut try_program = |block| {
            let mut done = Vec::new();
            queue.submit(0, program_io(block, 0, 3, true));
            while done.is_empty() {
                queue.reap(Wait::ForNs(1_000_000_000), &mut done);
            }
            done.pop().unwrap().result
        };
        let full = (0..medium.geometry().block_count()).find(|&block| try_program(block).is_err()).unwrap();
        let no_space = MediumError::NoSpace { what: format!("program of block {full}") };
        assert_eq!(try_program(full), Err(no_space.clone()));
        assert_eq!(program(&medium, full, 0, 3, false), Err(no_space));
        assert!(full > 10 && (0..full).all(|block| page(&medium, block, 0) == (3, 3)));
        program(&medium, full - 1, 1, 4, false).unwrap();
        persist(&medium, 0, 1).unwrap();
        medium.execute(&mut Io::Flush).unwrap();
        for block in 0..full {
            medium.execute(&mut Io::Erase { block: BlockIndex(block), release: true }).unwrap();
        }
        assert_eq!(try_program(full), Ok(()));
        medium.execute(&mut Io::Erase { block: BlockIndex(full), release: true }).unwrap();
    }
}

/// Goal:   a file system too full for the ring fails to format and keeps no file.
/// Method: a tmpfs smaller than the ring; needs the right to mount.
#[test]
fn formatting_on_a_full_file_system_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    if !run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(dir.path())) {
        println!("skipped: no right to mount a tmpfs");
        return;
    }
    let _unmount = Unmount(dir.path().into());
    let path = dir.path().join("device");
    let error = FileMedium::create(&path, &options()).err().unwrap();
    assert!(matches!(error, FormatError::Io { what: "writing the commit ring", .. }), "{error}");
    assert!(!path.exists());
}

struct Detach(PathBuf);

impl Drop for Detach {
    fn drop(&mut self) {
        assert!(run(Command::new("losetup").arg("-d").arg(&self.0)), "detaching {}", self.0.display());
    }
}

/// Goal:   a block device serves as a file does: whole by default, guarded by `force`, locked, discarding what is erased.
/// Method: a loop device; needs the right to make one.
#[test]
fn block_devices_work() {
    let dir = tempfile::tempdir().unwrap();
    let backing = dir.path().join("backing");
    File::create(&backing).unwrap().set_len(CAPACITY_BYTES_MIN + (1 << 20)).unwrap();
    let output = Command::new("losetup").args(["--find", "--show"]).arg(&backing).output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        println!("skipped: no right to make a loop device");
        return;
    };
    let path = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    let _detach = Detach(path.clone());
    let whole = FormatOptions { capacity_bytes: 0, ..options() };
    let too_large = FormatOptions { capacity_bytes: 1 << 30, ..options() };
    assert!(matches!(FileMedium::create(&path, &too_large), Err(FormatError::DeviceTooSmall { .. })));
    let medium = FileMedium::create(&path, &whole).unwrap();
    assert_eq!(medium.capacity_bytes(), CAPACITY_BYTES_MIN + (1 << 20));
    assert!(medium.describe().starts_with("block device "), "{}", medium.describe());
    assert!(matches!(open(&path), Err(OpenError::InUse { .. })));
    program(&medium, 0, 0, 8, true).unwrap();
    program(&medium, 1, 0, 9, true).unwrap();
    medium.execute(&mut Io::Erase { block: BlockIndex(1), release: true }).unwrap();
    assert_eq!((page(&medium, 0, 0), page(&medium, 1, 0)), ((8, 8), (0, 0)));
    persist(&medium, 0, 1).unwrap();
    drop(medium);
    assert!(matches!(FileMedium::create(&path, &whole), Err(FormatError::NotEmpty { .. })));
    assert_eq!(page(&open(&path).unwrap(), 0, 0), (8, 8));
    let again = FileMedium::create(&path, &FormatOptions { force: true, ..whole }).unwrap();
    assert_eq!((page(&again, 0, 0), ring_byte(&again, 0)), ((0, 0), 0));
}

/// Goal:   a device on a file system in memory does not claim to survive power loss; one on a disk does.
/// Method: a device in each, where there is one; `stat` states which is which.
#[test]
fn devices_in_memory_claim_no_more() {
    for directory in ["/dev/shm", env!("CARGO_TARGET_TMPDIR")] {
        let Ok(dir) = tempfile::tempdir_in(directory) else { continue };
        let described = FileMedium::create(dir.path().join("device"), &options()).unwrap().describe();
        let stat = Command::new("stat").args(["-f", "-c", "%T"]).arg(dir.path()).output().unwrap();
        let is_in_memory = stat.stdout.starts_with(b"tmpfs");
        assert_eq!(described.contains("survives power loss"), !is_in_memory, "{described}");
    }
}
