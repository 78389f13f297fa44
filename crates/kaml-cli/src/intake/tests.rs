//! Tests of `intake`, with a device in memory.

use super::*;
use kaml::{CreateOptions, Device, KeyKind, NamespaceOptions};
use std::fs;
use std::time::{Duration, SystemTime};

/// Goal:   a file that changes while its pieces are stored leaves the version that is, and no pieces of the new one; so does one that the
///         person interrupts.
/// Method: store a file of several pieces; change its time, or cut it short, after it was found; interrupt; then empty it.
#[test]
fn changing_files_leave_the_stored_version() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("file");
    let bytes = 3 * PIECE_BYTES as usize + 1;
    fs::write(&source, vec![1; bytes]).unwrap();
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    device.create_namespace("t", &NamespaceOptions::records(KeyKind::Ordered)).unwrap();
    let info = device.namespaces().remove(0);
    let tree = Tree::open(&device, &info, b"").unwrap();
    let intake = Intake { tree: &tree, root: dir.path(), proceed: &|_| true };
    let entry = Entry { source: source.clone(), path: "file".into(), bytes: 0, first_name: None };
    let records = || device.namespaces()[0].record_count;
    let contents = || tree.contents(b"file").unwrap().unwrap();
    assert_eq!(intake.store(&entry).unwrap(), bytes as u64);
    assert_eq!((contents(), records()), (vec![1; bytes], 5));
    let later = SystemTime::now() + Duration::from_secs(5);
    let changes: [&dyn Fn(&File); 2] =
        [&|file| file.set_modified(later).unwrap(), &|file| file.set_len(600_000).unwrap()];
    for change in changes {
        let file = File::options().read(true).write(true).open(&source).unwrap();
        let found = file.metadata().unwrap();
        change(&file);
        let metadata = Metadata::new(Kind::File, &found);
        assert_eq!(intake.store_pieces(b"file", &file, &found, metadata).unwrap(), None);
        assert_eq!((contents(), records()), (vec![1; bytes], 5));
    }
    let stops = Intake { proceed: &|_| false, ..intake };
    assert!(matches!(stops.store(&entry), Err(NotStored::Stopped)));
    assert_eq!((contents(), records()), (vec![1; bytes], 5));
    fs::write(&source, b"").unwrap();
    stops.store(&entry).unwrap();
    assert_eq!((device.get(info.id, b"file").unwrap(), records()), (Some(Vec::new()), 2));
}
