//! Changes of size of files: what is kept, what a crash leaves, what is refused.

use kaml_flash::{
    AlignedBuf, BlockIndex, CAPACITY_BYTES_MIN, FileChange, FileEvent, FileMedium, FileTrace, FormatOptions, Io,
    Medium, MediumError, MemoryMedium, OpenOptions, PageAddr, Wait,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;
const SMALL: u64 = CAPACITY_BYTES_MIN;
const LARGE: u64 = 2 * CAPACITY_BYTES_MIN;

fn formatted(capacity_bytes: u64) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    // The same blocks whatever the capacity.
    let options = FormatOptions { block_bytes: Some(256 << 10), ..FormatOptions::new(capacity_bytes) };
    FileMedium::create(&path, &options).unwrap();
    (dir, path)
}

fn open(path: &Path) -> FileMedium {
    FileMedium::open(path, &OpenOptions::default()).unwrap()
}

fn resize_io(medium: &dyn Medium, capacity_bytes: u64, reserve: bool) -> Io {
    Io::Resize { blocks_per_die: medium.blocks_in(capacity_bytes).unwrap(), capacity_bytes, reserve }
}

fn resize(medium: &dyn Medium, capacity_bytes: u64) -> Result<(), MediumError> {
    medium.execute(&mut resize_io(medium, capacity_bytes, false))
}

fn program(medium: &dyn Medium, block: u32, byte: u8) -> Result<(), MediumError> {
    let data = Arc::new(AlignedBuf::copy_of(&[byte; PAGE_BYTES]));
    let at = PageAddr { block: BlockIndex(block), page: 0 };
    medium.execute(&mut Io::Program { at, data, oob: vec![byte; 32], urgent: false })
}

/// The first bytes of a block's first page and of its OOB.
fn page(medium: &dyn Medium, block: u32) -> Result<(u8, u8), MediumError> {
    let mut data =
        Io::Read { at: medium.geometry().chunk_at(BlockIndex(block), 0), into: AlignedBuf::zeroed(PAGE_BYTES) };
    medium.execute(&mut data)?;
    let mut oob = Io::ReadOob { at: PageAddr { block: BlockIndex(block), page: 0 }, into: AlignedBuf::zeroed(32) };
    medium.execute(&mut oob)?;
    match (data, oob) {
        (Io::Read { into: data, .. }, Io::ReadOob { into: oob, .. }) => Ok((data[0], oob[0])),
        _ => unreachable!("they stay what they are"),
    }
}

fn root(medium: &dyn Medium, byte: u8) {
    medium.execute(&mut Io::WriteRoot { slot: 0, data: AlignedBuf::copy_of(&[byte; 4096]) }).unwrap();
}

fn mirror(medium: &dyn Medium) -> u8 {
    let mut bytes = AlignedBuf::zeroed(4096);
    medium.read_mirror(&mut bytes).unwrap();
    bytes[0]
}

/// Goal:   a device that has grown or shrunk keeps what was in it and the mirror of its root, at once and when it is opened again, and
///         new blocks work; blocks that are gone are refused.
/// Method: a block near each end is programmed; grow and shrink several times, by `execute` and by a queue.
#[test]
fn sizes_change_and_contents_stay() {
    let (_dir, path) = formatted(SMALL);
    let mut medium = open(&path);
    program(&medium, 1, 7).unwrap();
    root(&medium, 9);
    for (round, capacity_bytes) in [LARGE, LARGE + (5 << 20), SMALL, 5 * SMALL, LARGE, SMALL].into_iter().enumerate() {
        let count = medium.blocks_in(capacity_bytes).unwrap();
        if round % 2 == 0 {
            resize(&medium, capacity_bytes).unwrap();
        } else {
            let mut queue = medium.queue(4);
            queue.submit(1, resize_io(&medium, capacity_bytes, true));
            let mut done = Vec::new();
            while done.is_empty() {
                queue.reap(Wait::ForNs(1_000_000), &mut done);
            }
            done.remove(0).result.unwrap();
        }
        for again in [false, true] {
            assert_eq!(page(&medium, 1), Ok((7, 7)));
            assert_eq!(page(&medium, count - 1), Ok(if again { (3, 3) } else { (0, 0) }), "round {round}");
            assert!(matches!(page(&medium, count), Err(MediumError::BadRange { .. })));
            assert!(matches!(program(&medium, count, 1), Err(MediumError::BadRange { .. })));
            let erase = medium.execute(&mut Io::Erase { block: BlockIndex(count), release: true });
            assert!(matches!(erase, Err(MediumError::BadRange { .. })));
            assert_eq!((mirror(&medium), medium.capacity_bytes()), (9, capacity_bytes));
            assert_eq!(std::fs::metadata(&path).unwrap().len(), capacity_bytes);
            if !again {
                program(&medium, count - 1, 3).unwrap();
                medium.execute(&mut Io::Flush).unwrap();
                drop(medium);
                medium = open(&path);
                assert_eq!(medium.geometry().block_count(), count);
            }
        }
        medium.execute(&mut Io::Erase { block: BlockIndex(count - 1), release: true }).unwrap();
    }
}

/// Goal:   whatever write a crash ends at, the device opens with its old size or with the new one, and with all contents.
/// Method: all changes of the file while it grows and shrinks are noted; each prefix of them, the last one whole and in part, is applied
///         to a copy, whose length is any that the file had.
#[test]
fn crashes_leave_the_old_size_or_the_new_one() {
    for (from, to) in [(SMALL, LARGE), (SMALL, SMALL + (1 << 20)), (LARGE, SMALL), (LARGE, LARGE - (1 << 20))] {
        let (dir, path) = formatted(from);
        let medium = open(&path);
        program(&medium, 1, 7).unwrap();
        root(&medium, 9);
        medium.execute(&mut Io::Flush).unwrap();
        let counts = [from, to].map(|capacity| medium.blocks_in(capacity).unwrap());
        drop(medium);
        let before = std::fs::read(&path).unwrap();
        let trace = Arc::new(FileTrace::default());
        let medium = FileMedium::open_traced(&path, &OpenOptions::default(), Some(trace.clone())).unwrap();
        resize(&medium, to).unwrap();
        drop(medium);
        let changes: Vec<FileChange> = trace.events(0).into_iter().filter_map(begun).collect();
        assert_eq!(changes.iter().filter(|change| matches!(change, FileChange::Write { .. })).count(), 4);
        let copy = dir.path().join("copy");
        let mut seen = [0, 0];
        for (last, part) in (0..changes.len()).flat_map(|last| [0, 512, usize::MAX].map(|part| (last, part))) {
            let mut bytes = before.clone();
            bytes.resize(from.max(to) as usize, 0);
            for (i, change) in changes[..=last].iter().enumerate() {
                let FileChange::Write { at, bytes: written, .. } = change else { continue };
                let len = if i == last { written.len().min(part) } else { written.len() };
                bytes[*at as usize..][..len].copy_from_slice(&written[..len]);
            }
            std::fs::write(&copy, &bytes).unwrap();
            for _ in 0..2 {
                let medium = open(&copy);
                let size = counts.iter().position(|count| *count == medium.geometry().block_count());
                seen[size.unwrap_or_else(|| panic!("{:?}", medium.geometry()))] += 1;
                assert_eq!((page(&medium, 1), mirror(&medium)), (Ok((7, 7)), 9), "{from} to {to}: {last}, {part}");
                assert_eq!(medium.blocks_in(medium.capacity_bytes()), Some(medium.geometry().block_count()));
            }
        }
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    }
}

fn begun(event: FileEvent) -> Option<FileChange> {
    match event {
        FileEvent::Begin(_, change) => Some(change),
        FileEvent::End(..) => None,
    }
}

/// Goal:   sizes that cannot be are refused, and the device is as it was.
/// Method: no blocks, more than can be numbered, a device that is open for reading.
#[test]
fn impossible_sizes_are_refused() {
    let (_dir, path) = formatted(SMALL);
    let medium = open(&path);
    program(&medium, 1, 7).unwrap();
    medium.execute(&mut Io::Flush).unwrap();
    for blocks_per_die in [0, (1 << 24) + 1, u32::MAX] {
        let refused = medium.execute(&mut Io::Resize { blocks_per_die, capacity_bytes: 0, reserve: false });
        assert!(matches!(refused, Err(MediumError::NotResized { .. })), "{refused:?}");
    }
    drop(medium);
    let reading = OpenOptions { read_only: true, ..OpenOptions::default() };
    let medium = FileMedium::open(&path, &reading).unwrap();
    assert!(resize(&medium, LARGE).is_err());
    assert_eq!((page(&medium, 1), medium.capacity_bytes()), (Ok((7, 7)), SMALL));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SMALL);
}

/// Goal:   devices that were formatted before there was a tail, and devices with another identity, grow, and keep what they are.
/// Method: a device with a new identity; its limit of growth is kept, and moves with a larger size.
#[test]
fn identity_and_limit_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let options = FormatOptions { grow_up_to: Some(LARGE), ..FormatOptions::new(SMALL) };
    drop(FileMedium::create(&path, &options).unwrap());
    let identity = FileMedium::renew_identity(&path).unwrap();
    let medium = open(&path);
    assert_eq!((medium.identity(), medium.grows_up_to()), (identity, Some(LARGE)));
    resize(&medium, SMALL + (1 << 20)).unwrap();
    assert_eq!(medium.grow_limit(), Some(LARGE));
    resize(&medium, 2 * LARGE).unwrap();
    drop(medium);
    let medium = open(&path);
    assert_eq!((medium.identity(), medium.grow_limit()), (identity, Some(2 * LARGE)));
}

/// Goal:   memory behaves as a file does.
/// Method: grow past what one piece holds, shrink, grow again; a power cut during it leaves the old size.
#[test]
fn memory_is_resized() {
    let geometry = kaml_flash::Geometry::for_file(SMALL, 512, &FormatOptions::new(SMALL)).unwrap();
    let (medium, few) = (MemoryMedium::new(geometry.clone()), geometry.blocks_per_die);
    let to = |medium: &MemoryMedium, blocks_per_die| {
        medium.execute(&mut Io::Resize { blocks_per_die, capacity_bytes: 0, reserve: false })
    };
    program(&medium, 1, 7).unwrap();
    to(&medium, 5000).unwrap();
    program(&medium, 4999, 3).unwrap();
    assert_eq!((page(&medium, 1), page(&medium, 4999), page(&medium, 4998)), (Ok((7, 7)), Ok((3, 3)), Ok((0, 0))));
    let medium = medium.clone_state();
    assert_eq!((medium.geometry().blocks_per_die, page(&medium, 4999)), (5000, Ok((3, 3))));
    to(&medium, few).unwrap();
    assert!(page(&medium, few).is_err());
    to(&medium, 5000).unwrap();
    assert_eq!(page(&medium, 4999), Ok((0, 0)));
    medium.cut_after(1);
    assert_eq!(to(&medium, few), Err(MediumError::Gone));
    medium.power_on(1);
    assert_eq!(medium.reopen().geometry().blocks_per_die, 5000);
    medium.allow_resizing(false);
    assert!(matches!(to(&medium, few), Err(MediumError::NoSpace { .. })));
}
