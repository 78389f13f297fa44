//! What an index does when the system refuses memory or threads. The limits are those of a process of its own.

use kaml_index::{
    HashLayout, HashWriter, IndexLayout, IndexWriter, Key, KeyKind, LenCode, Slot, SnapshotCursor, SnapshotError,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::process::Command;

const LAYOUT: HashLayout = HashLayout { keys: KeyKind::U64, addr_bits: 32 };
const LIMITED: &str = "KAML_TEST_LIMITED";

/// Runs a test once more, in a process that may set limits for itself. True in that process.
fn is_limited(test: &str) -> bool {
    if std::env::var_os(LIMITED).is_some() {
        return true;
    }
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let ended = alone.args(["--exact", test, "--nocapture"]).env(LIMITED, "1").output().unwrap();
    let (shown, said) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success() && shown.contains("1 passed"), "{shown}{said}");
    false
}

/// From now on the process gets at most so much more address space.
fn allow(more_bytes: u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let used = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let used_kib: u64 = used.trim().trim_end_matches(" kB").parse().unwrap();
    let bytes = (used_kib << 10) + more_bytes;
    setrlimit(Resource::As, Rlimit { current: Some(bytes), maximum: None }).unwrap();
}

fn filled(count: u64) -> HashWriter {
    let mut index = HashWriter::with_seed(LAYOUT, 5);
    let len = LenCode::of(1).unwrap();
    for n in 0..count {
        index.insert(&Key::from(n), Slot { at: n, len });
    }
    index
}

fn snapshot(index: &HashWriter) -> Vec<u8> {
    let (mut image, mut next) = (Vec::new(), Some(SnapshotCursor::START));
    while let Some(from) = next {
        next = index.snapshot_next(from, &mut image);
    }
    image
}

/// Goal:   an index that gets no address space is an error, and no panic; when there is some again, the same call succeeds.
/// Method: an empty index and one of a snapshot, in a process that may have one more MiB, and then without the limit.
#[test]
fn an_index_without_address_space_is_an_error() {
    if !is_limited("an_index_without_address_space_is_an_error") {
        return;
    }
    let image = snapshot(&filled(1000));
    allow(1 << 20);
    assert!(IndexWriter::new(IndexLayout::Hash(LAYOUT), 5).is_err());
    let refused = IndexWriter::of_snapshot(IndexLayout::Hash(LAYOUT), &image).err().unwrap();
    assert!(matches!(refused, SnapshotError::NoAddressSpace(_)), "{refused}");
    setrlimit(Resource::As, Rlimit { current: None, maximum: None }).unwrap();
    assert_eq!(IndexWriter::of_snapshot(IndexLayout::Hash(LAYOUT), &image).unwrap().len(), 1000);
}

/// Goal:   a snapshot is restored where no thread can be started.
/// Method: one that is long enough for several threads, in a process whose address space has no room for the stack of another.
#[test]
fn a_snapshot_is_restored_without_threads() {
    if !is_limited("a_snapshot_is_restored_without_threads") {
        return;
    }
    const COUNT: u64 = 300_000;
    let image = snapshot(&filled(COUNT));
    assert!(image.len() > 2 << 20, "restored by several threads");
    let mut restored = HashWriter::with_seed(LAYOUT, 5);
    allow(1 << 20);
    // The C library keeps stacks of threads that have ended.
    while std::thread::Builder::new().spawn(std::thread::park).is_ok() {}
    restored.restore(&image).unwrap();
    assert_eq!(restored.len(), COUNT);
    assert!((0..COUNT).all(|n| restored.get(&Key::from(n)).is_some_and(|slot| slot.at == n)));
}
