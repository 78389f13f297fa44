use super::*;
use crate::command::{Body, Condition, Op, StageError};
use crate::first_root::{EPOCH_MAX, FIRST_SEQUENCE_MAX, SEQUENCES_PER_EPOCH_LOG2};
use crate::namespace::NamespaceOptions;
use crate::small::formatted;
use kaml_flash::{Geometry, MediumError, MemoryMedium, Queue};
use kaml_index::Key;
use std::sync::Mutex;

mod forged;
mod older;
mod refused;

fn commit_root(core: &mut Core, medium: &dyn Medium) {
    let request = core.request_root(false);
    core.drive(medium, |core| core.roots_done() >= request).unwrap();
}

fn close(core: &mut Core, medium: &dyn Medium) {
    let request = core.request_close();
    core.drive(medium, |core| core.roots_done() >= request && core.root.clean).unwrap();
}

fn with_namespace(medium: &dyn Medium) -> (Core, u32) {
    let mut core = Core::open(medium).unwrap().0;
    let id = core.create_namespace("n", &NamespaceOptions::default()).unwrap();
    commit_root(&mut core, medium);
    (core, id)
}

fn stage(core: &mut Core, namespace: u32, value: &[u8]) -> Result<u64, StageError> {
    let body = Body::Value { value, crc32c: kaml_crc::crc32c(value) };
    core.stage(&[Op {
        namespace,
        key: Key::from(1).into(),
        body,
        condition: Condition::Always,
        expires: Default::default(),
    }])
}

fn put(core: &mut Core, medium: &dyn Medium, namespace: u32, value: &[u8]) {
    while let Err(error) = stage(core, namespace, value) {
        assert_eq!(error, StageError::Busy);
        core.drive_once(medium).unwrap(); // blocks must be erased
    }
    let (id, mut io) = core.begin_persist().unwrap();
    let result = medium.execute(&mut io);
    core.complete(Completion { id, io, result });
}

/// Goal:   no life uses numbers that another one used: where they end the device is refused, but for reading.
/// Method: roots with the last epoch that may be followed by one, and with the next; the same with sequences of records.
#[test]
fn numbers_of_lives_end() {
    let roots: [(u64, u64, bool); 4] = [
        (EPOCH_MAX - 1, 1, true),
        (EPOCH_MAX, 1, false),
        (1, FIRST_SEQUENCE_MAX, true),
        (1, FIRST_SEQUENCE_MAX + 1, false),
    ];
    for ((epoch, next_sequence, opens), clean) in roots.into_iter().flat_map(|root| [(root, true), (root, false)]) {
        let medium = formatted();
        let root = Root { epoch, next_sequence, clean, ..read_root(&medium).unwrap() };
        write_root(&medium, &root).unwrap();
        Core::open_to_read(&medium.clone_state()).unwrap();
        match Core::open(&medium) {
            Ok((mut core, _)) => {
                assert!(opens);
                assert!(core.log.writers.sequence >= EPOCH_MAX << SEQUENCES_PER_EPOCH_LOG2 || epoch == 1);
                commit_root(&mut core, &medium);
            }
            Err(error) => assert!(!opens && matches!(error, Error::MetadataDamaged(_)), "{error}"),
        }
    }
}

/// Goal:   a life after a crash begins after all sequences that were used before it, also of Puts that left nothing in the ring;
///         so many are not used before a root reports them.
/// Method: as many as may be, without a root; one more waits for it. A crash before and after.
#[test]
fn sequences_are_not_used_again() {
    let medium = formatted();
    let (mut core, id) = with_namespace(&medium);
    core.log.sequence = core.root.next_sequence + sequences_ahead_max(&core.log.geometry) - 1;
    put(&mut core, &medium, id, b"last");
    let used = core.log.sequence;
    assert_eq!(stage(&mut core, id, b"one more"), Err(StageError::Busy));
    assert_eq!(core.log.sequence, used);
    assert!(Core::open(&medium.clone_state()).unwrap().0.log.sequence >= used);
    core.drive(&medium, |core| core.root.next_sequence == used).unwrap();
    put(&mut core, &medium, id, b"one more");
    assert!(Core::open(&medium).unwrap().0.log.sequence > used);
}

/// Goal:   a device that was used since it was closed is not opened as it was then: a damaged root takes no Puts along unnoticed.
/// Method: close, open, put; then what opening wrote is damaged. Without a Put after it that is what a power cut leaves.
#[test]
fn closed_devices_are_not_taken_for_unused() {
    for used in [false, true] {
        let medium = formatted();
        let (mut core, id) = with_namespace(&medium);
        put(&mut core, &medium, id, b"old");
        close(&mut core, &medium);
        let mut core = Core::open(&medium).unwrap().0;
        if used {
            core.load_index(&medium, id).unwrap();
            put(&mut core, &medium, id, b"new");
        }
        let slot = (core.root.generation % 2) as u8;
        medium.execute(&mut Io::WriteRoot { slot, data: AlignedBuf::zeroed(4096) }).unwrap();
        match Core::open(&medium) {
            Ok(_) => assert!(!used, "a Put is lost"),
            Err(error) => assert!(used && matches!(error, Error::MetadataDamaged(_)), "{error}"),
        }
        let (_, report) = Core::salvage(&medium, &mut |_, _| {}).unwrap();
        assert_eq!(report.problems.len(), usize::from(used), "{report:?}");
    }
}
/// Flash with a mirror of the root, which the next write of a root may leave torn.
struct Mirrored {
    medium: MemoryMedium,
    mirror: Mutex<Vec<u8>>,
}

impl Medium for Mirrored {
    fn geometry(&self) -> &Geometry {
        self.medium.geometry()
    }

    fn uuid(&self) -> [u8; 16] {
        self.medium.uuid()
    }

    fn execute(&self, io: &mut Io) -> Result<(), MediumError> {
        if let Io::WriteRoot { data, .. } = io {
            *self.mirror.lock().unwrap() = data.to_vec();
        }
        self.medium.execute(io)
    }

    fn queue(&self, depth: u32) -> Box<dyn Queue> {
        self.medium.queue(depth)
    }

    fn read_root(&self, slot: u8, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.medium.read_root(slot, into)
    }

    fn read_mirror(&self, into: &mut AlignedBuf) -> Result<(), MediumError> {
        let mirror = self.mirror.lock().unwrap();
        let len = mirror.len().min(into.len());
        into.fill(0);
        into[..len].copy_from_slice(&mirror[..len]);
        Ok(())
    }

    fn read_ring(&self, offset: u64, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.medium.read_ring(offset, into)
    }

    fn describe(&self) -> String {
        self.medium.describe()
    }
}

/// Goal:   the mirror of the newest root counts where its slot is damaged, and the slot is whole again before another root is
///         written; where both slots are whole, or the mirror is not the newest, it does not.
/// Method: a device that was closed, opened and used; either slot damaged, or the mirror, or none.
#[test]
fn mirrors_of_newest_roots_count() {
    let medium = formatted();
    let (mut core, id) = with_namespace(&medium);
    close(&mut core, &medium);
    let medium = Mirrored { medium, mirror: Mutex::default() };
    let mut core = Core::open(&medium).unwrap().0;
    core.load_index(&medium, id).unwrap();
    put(&mut core, &medium, id, b"new");
    let newest = (core.root.generation, (core.root.generation % 2) as u8);
    for damaged in [None, Some(newest.1), Some(1 - newest.1)] {
        let mirror = Mutex::new(medium.mirror.lock().unwrap().clone());
        let medium = Mirrored { medium: medium.medium.clone_state(), mirror };
        if let Some(slot) = damaged {
            let data = AlignedBuf::zeroed(4096);
            medium.medium.execute(&mut Io::WriteRoot { slot, data }).unwrap();
        }
        let found = read_root(&medium).unwrap();
        assert_eq!((found.generation, found.clean), (newest.0, false), "{damaged:?}");
        let (core, report) = Core::open(&medium).unwrap();
        assert_eq!(report.ring_records, 1, "{damaged:?}");
        assert!(core.slot(id, Key::from(1)).is_some());
    }
    // The slot is restored first: a cut while the next root is written leaves it.
    let data = AlignedBuf::zeroed(4096);
    medium.medium.execute(&mut Io::WriteRoot { slot: newest.1, data }).unwrap();
    medium.medium.cut_after(2);
    assert!(Core::open(&medium).is_err());
    medium.medium.power_on(1);
    medium.mirror.lock().unwrap().clear();
    assert_eq!(read_root(&medium).unwrap().generation, newest.0);
}
