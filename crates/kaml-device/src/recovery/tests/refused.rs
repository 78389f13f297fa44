//! Roots that the disk refuses to read, in a file with a real mirror.

use super::*;
use crate::error::RootError;
use kaml_flash::{CAPACITY_BYTES_MIN, FileMedium, FormatOptions, OpenOptions, Overlay};
use std::path::PathBuf;
use std::sync::Arc;

/// In place of a slot.
const MIRROR: u8 = 2;

/// A file of which sectors of roots cannot be read until they are written.
struct Refusing {
    medium: FileMedium,
    /// Slot and offset in it.
    refused: Mutex<Vec<(u8, usize)>>,
}

impl Refusing {
    fn check(&self, place: u8, into: &AlignedBuf) -> Result<(), MediumError> {
        let refused = self.refused.lock().unwrap();
        match refused.iter().any(|(at, offset)| *at == place && *offset < into.len()) {
            true => Err(MediumError::ReadFailed { what: format!("root {place}"), error: "EIO".into() }),
            false => Ok(()),
        }
    }
}

impl Medium for Refusing {
    fn geometry(&self) -> &Geometry {
        self.medium.geometry()
    }

    fn uuid(&self) -> [u8; 16] {
        self.medium.uuid()
    }

    fn execute(&self, io: &mut Io) -> Result<(), MediumError> {
        self.medium.execute(io)?;
        if let Io::WriteRoot { slot, data } = io {
            let is_written = |place| place == *slot || place == MIRROR;
            self.refused.lock().unwrap().retain(|(place, offset)| !is_written(*place) || *offset >= data.len());
        }
        Ok(())
    }

    fn queue(&self, depth: u32) -> Box<dyn Queue> {
        self.medium.queue(depth)
    }

    fn read_root(&self, slot: u8, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.check(slot, into)?;
        self.medium.read_root(slot, into)
    }

    fn read_mirror(&self, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.check(MIRROR, into)?;
        self.medium.read_mirror(into)
    }

    fn read_ring(&self, offset: u64, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.medium.read_ring(offset, into)
    }

    fn describe(&self) -> String {
        self.medium.describe()
    }
}

/// A device that was closed, opened and used, and then lost its power.
struct Used {
    dir: tempfile::TempDir,
    id: u32,
    /// The slot of the newest root.
    newest: u8,
}

impl Used {
    fn new() -> Used {
        let dir = tempfile::tempdir().unwrap();
        let medium = FileMedium::create(dir.path().join("device"), &FormatOptions::new(CAPACITY_BYTES_MIN)).unwrap();
        Core::format(&medium).unwrap();
        let (mut core, id) = with_namespace(&medium);
        put(&mut core, &medium, id, b"old");
        close(&mut core, &medium);
        let mut core = Core::open(&medium).unwrap().0;
        core.load_index(&medium, id).unwrap();
        put(&mut core, &medium, id, b"new");
        let newest = (core.root.generation % 2) as u8;
        Used { dir, id, newest }
    }

    /// A copy of it with sectors that cannot be read.
    fn refusing(&self, refused: &[(u8, usize)]) -> Arc<Refusing> {
        let copy: PathBuf = self.dir.path().join("copy");
        std::fs::copy(self.dir.path().join("device"), &copy).unwrap();
        let medium = FileMedium::open(&copy, &OpenOptions::default()).unwrap();
        Arc::new(Refusing { medium, refused: Mutex::new(refused.to_vec()) })
    }

    fn value(&self, core: &Core, medium: &dyn Medium) -> Vec<u8> {
        let slot = core.slot(self.id, Key::from(1)).unwrap();
        let bytes = slot.len.chunks_max() as usize * core.log.geometry.chunk_bytes as usize;
        let mut io = Io::Read { at: ChunkAddr(slot.at), into: AlignedBuf::zeroed(bytes) };
        medium.execute(&mut io).unwrap();
        let Io::Read { into, .. } = io else { unreachable!("still a read") };
        let record = RecordHeader::check(&into).unwrap();
        into[record.stored_range()].to_vec()
    }
}

/// Goal:   a slot that the disk refuses to read keeps nothing from being opened while the mirror shows what existed, and can be
///         read again before another root is written to it.
/// Method: sectors of either slot: in the root, after it where it is looked at, far after; opened to read, then to continue, and after
///         that and two more roots once more.
#[test]
fn refused_slots_are_told_by_the_mirror() {
    let used = Used::new();
    for refused in [0, 1].into_iter().flat_map(|slot| [0, 512, 3584, 65_536].map(|offset| (slot, offset))) {
        let medium = used.refusing(&[refused]);
        let over = Overlay::new(medium.clone());
        assert!(!Core::was_closed(&over).unwrap(), "{refused:?}");
        let (core, report) = Core::open_to_read(&over).unwrap();
        assert_eq!((report.ring_records, used.value(&core, &over)), (1, b"new".to_vec()), "{refused:?}");
        assert_eq!(*medium.refused.lock().unwrap(), [refused]);
        let (mut core, report) = Core::open(&*medium).unwrap();
        assert_eq!((report.ring_records, used.value(&core, &*medium)), (1, b"new".to_vec()), "{refused:?}");
        if refused.1 == 0 {
            assert_eq!(*medium.refused.lock().unwrap(), []);
        }
        commit_root(&mut core, &*medium);
        commit_root(&mut core, &*medium);
        let (core, report) = Core::open(&*medium).unwrap();
        assert_eq!((report.ring_records, used.value(&core, &*medium)), (0, b"new".to_vec()), "{refused:?}");
    }
    let medium = used.refusing(&[(0, 3584), (1, 3584), (MIRROR, 0)]);
    let (core, _) = Core::open(&*medium).unwrap();
    assert_eq!(used.value(&core, &*medium), b"new", "what is after roots does not count");
}

/// Goal:   the slot that was refused holds the root before another one is written: a cut meanwhile leaves it.
/// Method: the older slot or the newer one refused; opened without what would come next, then the other slot and the mirror are lost.
#[test]
fn refused_slots_are_written_again_first() {
    let used = Used::new();
    for slot in [0, 1] {
        let medium = used.refusing(&[(slot, 0)]);
        let root = root_to_go_on_from(&*medium).unwrap();
        assert_eq!(*medium.refused.lock().unwrap(), []);
        medium.execute(&mut Io::WriteRoot { slot: 1 - slot, data: AlignedBuf::zeroed(4096) }).unwrap();
        assert_eq!(read_root(&*medium).unwrap(), root, "slot {slot}");
    }
}

/// Goal:   where it cannot be known whether the newest root was in the slot that is refused, opening names the slot, and salvage reports
///         so, too, and finds what is in pages.
/// Method: either slot refused with a mirror that is refused, too, that is torn, or that is of an older root; then both slots.
#[test]
fn doubtful_roots_are_named() {
    let used = Used::new();
    let (newest, older) = (used.newest, 1 - used.newest);
    for (slot, mirror) in [newest, older].into_iter().flat_map(|slot| ["refused", "torn", "old"].map(|m| (slot, m))) {
        let what = format!("slot {slot}, mirror {mirror}");
        let medium = used.refusing(&[(slot, 0)]);
        let present = Root { generation: 0, ..Root::default() }.encode(medium.uuid());
        match mirror {
            "refused" => medium.refused.lock().unwrap().push((MIRROR, 0)),
            "torn" => overwrite_mirror(&used, &[0; 4096]),
            _ => overwrite_mirror(&used, &present),
        }
        let over = Overlay::new(medium.clone());
        for error in [Core::open(&*medium).err().unwrap(), Core::open_to_read(&over).err().unwrap()] {
            assert_eq!(error, Error::Root(RootError::Unreadable { slot, why: "EIO".into() }), "{what}");
        }
        let over = Overlay::of_damaged(medium);
        let (core, report) = Core::salvage(&over, &mut |_, _| {}).unwrap();
        assert!(report.problems[0].starts_with(&format!("root slot {slot} cannot be read")), "{what}: {report:?}");
        assert_eq!(report.rebuilt, [used.id], "{what}");
        let known: &[u8] = if slot == older { b"new" } else { b"old" };
        assert_eq!(used.value(&core, &over), known, "{what}");
    }
    let medium = used.refusing(&[(0, 0), (1, 0)]);
    let error = Core::open(&*medium).err().unwrap();
    assert!(matches!(error, Error::Root(RootError::Damaged(..))), "{error}");
    let over = Overlay::of_damaged(medium);
    let (core, report) = Core::salvage(&over, &mut |_, _| {}).unwrap();
    assert_eq!(report.problems, [format!("{error}; the root's mirror is whole")]);
    assert_eq!(used.value(&core, &over), b"new");
}

/// In the copy of the device, while another caller has it open.
fn overwrite_mirror(used: &Used, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(used.dir.path().join("copy")).unwrap();
    let geometry = Geometry::for_file(CAPACITY_BYTES_MIN, 512, &FormatOptions::new(CAPACITY_BYTES_MIN)).unwrap();
    file.write_all_at(bytes, CAPACITY_BYTES_MIN - 4096 - u64::from(geometry.root_bytes)).unwrap();
}
