//! What the firmware looks at twice: conditions, places, frames and snapshots that look like the right ones and are not.

#[allow(dead_code, reason = "what happens is chosen here, not by a seed")]
mod common;

use common::{geometry, value};
use kaml_device::{
    Body, Buffered, Condition, Core, DIRECT_BYTES, Error, FlashRead, Found, Key, KeyKind, NamespaceOptions, Op,
    StageError, VersionOptions, encode_image, image_bytes,
};
use kaml_flash::{AlignedBuf, Completion, Io, Medium, MemoryMedium, Packing};
use std::collections::BTreeMap;

/// The firmware on one thread, which does nothing by itself.
struct Device {
    core: Core,
    medium: MemoryMedium,
    namespace: u32,
}

impl Device {
    /// With one namespace.
    fn new(blocks_per_die: u32) -> Device {
        let medium = MemoryMedium::new(geometry(Packing::Across, blocks_per_die));
        Core::format(&medium).unwrap();
        let core = Core::open(&medium).unwrap().0;
        let mut device = Device { core, medium, namespace: 0 };
        device.namespace = device.create("n", of_numbers());
        device
    }

    /// The device as it would be found if power failed now, every write so far being there.
    fn after_crash(&self) -> Device {
        let medium = self.medium.clone_state();
        let core = Core::open(&medium).unwrap().0;
        Device { core, medium, namespace: self.namespace }
    }

    fn create(&mut self, name: &str, options: NamespaceOptions) -> u32 {
        let id = self.core.create_namespace(name, &options).unwrap();
        self.commit_root(false);
        id
    }

    fn execute(&mut self, (id, mut io): (u64, Io)) {
        let result = self.medium.execute(&mut io);
        self.core.complete(Completion { id, io, result });
    }

    /// Executes background work until `done`; `seen` sees each operation and the device just after it.
    fn work(&mut self, done: impl Fn(&Core) -> bool, mut seen: impl FnMut(&Device, &Io)) {
        for _ in 0..100_000 {
            if done(&self.core) {
                return;
            }
            let mut started = Vec::new();
            self.core.poll(0, &mut started);
            for (id, mut io) in started {
                let result = self.medium.execute(&mut io);
                seen(self, &io);
                self.core.complete(Completion { id, io, result });
            }
        }
        panic!("this never ends: {:?}", self.core);
    }

    fn commit_root(&mut self, settle: bool) {
        let request = self.core.request_root(settle);
        self.work(|core| core.roots_done() >= request, |_, _| {});
    }

    /// Writes out the index and takes it out of memory.
    fn unload(&mut self) {
        let request = self.core.request_checkpoint();
        self.work(|core| core.roots_done() >= request && core.is_idle(), |_, _| {});
        assert!(self.core.unload_index(self.namespace).unwrap());
    }

    fn stage(&mut self, key: u64, value: Option<&[u8]>, condition: Condition) -> Result<u64, StageError> {
        self.core.stage(&[op(self.namespace, key, value, condition)])
    }

    fn persist(&mut self) {
        let write = self.core.begin_persist().expect("one at a time");
        self.execute(write);
    }

    fn put(&mut self, key: u64, value: &[u8]) {
        self.stage(key, Some(value), Condition::Always).unwrap();
        self.persist();
    }

    /// Puts a value that goes to its pages first; `seen` sees each operation.
    fn put_large(&mut self, key: u64, value: &[u8], mut seen: impl FnMut(&Device, &Io)) {
        let (namespace, key) = (self.namespace, Key::from(key));
        let buf = AlignedBuf::zeroed(image_bytes(self.core.geometry(), key, value.len()));
        let value = (value, kaml_crc::crc32c(value));
        let image = encode_image(self.core.geometry(), namespace, key, value, self.core.last_sequence(), buf);
        let mut turn = |device: &mut Device| {
            let turns = std::cell::Cell::new(0);
            device.work(|_| turns.replace(turns.get() + 1) == 1, &mut seen);
        };
        let ticket = loop {
            match self.core.place(namespace, key, image.clone()) {
                Ok(ticket) => break ticket,
                Err(StageError::Busy) => turn(self),
                Err(error) => panic!("{error:?}"),
            }
        };
        while !self.core.is_placed(ticket) {
            turn(self);
        }
        let op = Op {
            namespace,
            key: key.into(),
            body: Body::Placed { ticket },
            condition: Condition::Always,
            expires: Default::default(),
        };
        while let Err(error) = self.core.stage(&[op]) {
            assert_eq!(error, StageError::Busy);
            turn(self);
        }
        self.persist();
    }

    /// The bytes on the medium that should be a key's record, and what is known of them.
    fn read(&self, namespace: u32, key: u64) -> (FlashRead, AlignedBuf) {
        let Found::Flash(read) = self.core.reader().find(namespace, Key::from(key)).unwrap() else {
            panic!("key {key} is not on the medium")
        };
        let mut io = Io::Read { at: read.at, into: AlignedBuf::zeroed(read.bytes) };
        self.medium.execute(&mut io).unwrap();
        let Io::Read { into, .. } = io else { unreachable!("still a read") };
        (read, into)
    }

    fn get(&mut self, key: u64) -> Result<Option<Vec<u8>>, Error> {
        self.core.load_index(&self.medium, self.namespace)?;
        match self.core.reader().find(self.namespace, Key::from(key)).unwrap() {
            Found::Absent => Ok(None),
            Found::Flash(_) => {
                let (read, bytes) = self.read(self.namespace, key);
                Ok(Some(read.value(&bytes)?.of(&bytes).to_vec()))
            }
            Found::Buffered => match self.core.read_buffered(self.namespace, Key::from(key)).unwrap() {
                Buffered::Value(value) => Ok(Some(value)),
                other => panic!("{other:?}"),
            },
        }
    }
}

fn of_numbers() -> NamespaceOptions {
    NamespaceOptions::records(KeyKind::U64)
}

fn op(namespace: u32, key: u64, value: Option<&[u8]>, condition: Condition) -> Op<'_> {
    let body = match value {
        Some(value) => Body::Value { value, crc32c: kaml_crc::crc32c(value) },
        None => Body::Delete,
    };
    Op { namespace, key: Key::from(key).into(), body, condition, expires: Default::default() }
}

/// Goal:   a condition is judged by the newest record of its key that is not committed yet, staged or in flight, also where a Put has
///         many conditions.
/// Method: a key that exists is deleted, and one that is not is put and deleted and put, none of it committed; then conditions that
///         only the newest record fulfils, and those that only older ones do; before and after the frame is on its way.
#[test]
fn conditions_see_the_newest_uncommitted_record() {
    for count in [1, 9] {
        for in_flight in [false, true] {
            let mut device = Device::new(40);
            let namespace = device.namespace;
            let (gone, there) = (0..count, 100..100 + count);
            for key in gone.clone() {
                device.put(key, b"committed");
            }
            for key in gone.clone() {
                device.stage(key, Some(b"newer"), Condition::IfPresent).unwrap();
                device.stage(key, None, Condition::IfPresent).unwrap();
            }
            for key in there.clone() {
                device.stage(key, Some(b"first"), Condition::IfAbsent).unwrap();
                device.stage(key, None, Condition::IfPresent).unwrap();
                device.stage(key, Some(b"again"), Condition::IfAbsent).unwrap();
            }
            let write = in_flight.then(|| device.core.begin_persist().unwrap());
            let all = |condition_of_gone, condition_of_there| -> Vec<Op<'_>> {
                let gone = gone.clone().map(|key| op(namespace, key, Some(b"last"), condition_of_gone));
                gone.chain(there.clone().map(|key| op(namespace, key, Some(b"last"), condition_of_there))).collect()
            };
            for key in gone.clone().chain(there.clone()) {
                let present = there.contains(&key);
                let wrong = if present { Condition::IfAbsent } else { Condition::IfPresent };
                let mut ops = all(Condition::IfAbsent, Condition::IfPresent);
                ops.iter_mut().filter(|op| *op.key.key() == Key::from(key)).for_each(|op| op.condition = wrong);
                let conflict = Error::Conflict { namespace, key: Key::from(key).into(), present };
                let frame = device.core.staging_frame() - u64::from(in_flight);
                let refused = Err(StageError::RefusedAfter(frame, conflict));
                assert_eq!(device.core.stage(&ops), refused, "{count} {in_flight} {key}");
            }
            device.core.stage(&all(Condition::IfAbsent, Condition::IfPresent)).unwrap();
            write.into_iter().for_each(|write| device.execute(write));
            device.persist();
            for key in gone.clone().chain(there.clone()) {
                assert_eq!(device.get(key).unwrap().unwrap(), b"last");
            }
        }
    }
}

/// Goal:   bytes that are another record are never returned, however whole they are.
/// Method: the records of another key and of another namespace, of the same length, where a key's own should be.
#[test]
fn other_records_are_not_served() {
    let mut device = Device::new(40);
    let first = device.namespace;
    let second = device.create("m", of_numbers());
    for (namespace, key, byte) in [(first, 1, 11), (first, 2, 12), (second, 1, 21)] {
        device.namespace = namespace;
        device.put(key, &[byte; 300]);
    }
    device.commit_root(true);
    let (read, bytes) = device.read(first, 1);
    assert_eq!(read.value(&bytes).unwrap().of(&bytes), [11; 300]);
    for (namespace, key) in [(first, 2), (second, 1)] {
        let (_, other) = device.read(namespace, key);
        let mut into = vec![1, 2, 3];
        for refused in [read.value(&other).map(drop), read.copy_value(&other, &mut into)] {
            assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
        }
        assert!(into.is_empty());
    }
}

/// Goal:   an index that was read from a snapshot is not put in place after there is a newer one.
/// Method: read an index next to the core; before it is put in place another one is, is changed, written out and leaves memory.
#[test]
fn stale_snapshots_are_not_installed() {
    let mut device = Device::new(40);
    device.put(1, b"old");
    device.put(2, b"deleted");
    device.unload();
    let load = |device: &mut Device| {
        let load = device.core.begin_load(device.namespace).unwrap().unwrap();
        load.read(&device.medium).unwrap()
    };
    let stale = load(&mut device);
    let loaded = load(&mut device);
    device.core.finish_load(loaded);
    device.put(1, b"new");
    device.stage(2, None, Condition::IfPresent).unwrap();
    device.persist();
    device.unload();
    device.core.finish_load(stale);
    assert_eq!(device.get(1).unwrap().unwrap(), b"new");
    assert_eq!(device.get(2).unwrap(), None);
}

/// Goal:   what was found by the image of an index counts only while the index is not in memory, and not after it was; a due or damaged
///         image is not used, nor one that is too short.
/// Method: a record is looked up by an image, which then is loaded, changed, and written again.
#[test]
fn images_count_until_their_index_is_loaded() {
    let mut device = Device::new(40);
    device.put(1, b"old");
    let namespace = device.namespace;
    assert!(device.core.flash_index(namespace, 0).is_none(), "it is in memory");
    device.unload();
    assert!(device.core.flash_index(namespace, 1 << 20).is_none(), "a short image is loaded");
    assert_eq!(device.core.image_load(), None);
    let key = Key::from(1);
    let image = device.core.flash_index(namespace, 0).unwrap();
    assert_eq!(device.core.image_load(), Some(namespace));
    let slot = image.find(&device.medium, &key.into()).unwrap().unwrap();
    assert_eq!(image.find(&device.medium, &Key::from(2).into()), Ok(None));
    assert!(matches!(device.core.read_found(&image, key, slot), Ok(Some(_))));
    device.core.load_index(&device.medium, namespace).unwrap();
    device.put(1, b"new");
    assert_eq!(device.core.read_found(&image, key, slot).map(|found| found.is_some()), Ok(false), "in memory");
    device.unload();
    assert_eq!(device.core.read_found(&image, key, slot).map(|found| found.is_some()), Ok(false), "another image");
    let newer = device.core.flash_index(namespace, 0).unwrap();
    let newer_slot = newer.find(&device.medium, &key.into()).unwrap().unwrap();
    assert_ne!(newer_slot, slot);
    assert!(matches!(device.core.read_found(&newer, key, newer_slot), Ok(Some(_))));
    device.core.end_image_load(namespace, true);
    assert!(device.core.flash_index(namespace, 0).is_none(), "it cannot be loaded");
    assert_eq!(device.core.image_load(), None);
    assert_eq!(device.get(1).unwrap().unwrap(), b"new");
}

/// Goal:   nobody is requested to load the index of a namespace that is gone.
/// Method: a key is looked up by an image; the index is loaded for a deletion before it is loaded for readers.
#[test]
fn deleted_namespaces_need_no_load() {
    let mut device = Device::new(40);
    device.put(1, b"x");
    let namespace = device.namespace;
    device.unload();
    assert!(device.core.flash_index(namespace, 0).is_some());
    device.core.load_index(&device.medium, namespace).unwrap();
    assert!(device.core.delete_namespace(namespace, &std::collections::BTreeSet::new()).is_ok());
    assert_eq!(device.core.image_load(), None);
}

/// Goal:   the ring takes as many frames as it has room for and not one sector more: the oldest one that opening needs is not
///         overwritten.
/// Method: frames of one sector until no more is taken, with a root that cannot move the tail left out; then opened after a crash.
#[test]
fn a_full_ring_keeps_its_oldest_frame() {
    let mut device = Device::new(40);
    let mut count = 0u64;
    while device.stage(count, Some(&count.to_le_bytes()), Condition::Always).is_ok() {
        device.persist();
        count += 1;
    }
    assert_eq!(count, device.medium.geometry().ring_bytes / 512, "each takes a sector");
    let mut found = device.after_crash();
    for key in 0..count {
        assert_eq!(found.get(key).unwrap(), Some(key.to_le_bytes().to_vec()), "key {key}");
    }
}

/// Goal:   a frame that begins a lap does not count if the one before it is lost: it was not acknowledged.
/// Method: two frames in flight, one in the last sector of the ring and the next in the first; only the second one is written. Also
///         both, and only the first.
#[test]
fn frames_of_the_next_lap_need_the_one_before() {
    for (first_written, second_written) in [(false, true), (true, true), (true, false)] {
        let mut device = Device::new(40);
        let sectors = device.medium.geometry().ring_bytes / 512;
        for key in 0..sectors - 1 {
            device.put(key % 10, &key.to_le_bytes());
            if key == sectors / 2 {
                device.commit_root(true);
            }
        }
        device.stage(100, Some(b"first"), Condition::Always).unwrap();
        let first = device.core.begin_persist().unwrap();
        device.stage(200, Some(b"second"), Condition::Always).unwrap();
        let second = device.core.begin_persist().expect("two small ones may be in flight");
        let offset = |(_, io): &(u64, Io)| {
            let Io::Persist { offset, .. } = io else { panic!("a ring write") };
            *offset
        };
        assert_eq!((offset(&first), offset(&second)), ((sectors - 1) * 512, 0));
        for ((_, mut io), _) in [(first, first_written), (second, second_written)].into_iter().filter(|(_, made)| *made)
        {
            device.medium.execute(&mut io).unwrap();
        }
        let mut found = device.after_crash();
        let expected = |is_there: bool, value: &[u8]| is_there.then(|| value.to_vec());
        assert_eq!(found.get(100).unwrap(), expected(first_written, b"first"));
        assert_eq!(found.get(200).unwrap(), expected(first_written && second_written, b"second"));
        assert_eq!(found.get(0).unwrap(), Some((sectors - 1 - (sectors - 1) % 10).to_le_bytes().to_vec()));
    }
}

/// Goal:   a block whose records were moved away is not erased while opening would read a frame that states they are in it.
/// Method: a version in the page buffer, or a record in a write buffer, keeps the ring's tail after large values, between which others
///         are overwritten again and again, so collection moves them; roots meanwhile; opened after a crash at each erase.
#[test]
fn blocks_that_kept_frames_name_are_not_erased() {
    const KEPT: u64 = 36;
    let mut device = Device::new(17);
    let records = device.namespace;
    let versions = device.create("versions", VersionOptions { buffer_bytes: 64 << 10, ..Default::default() }.into());
    let mut model = BTreeMap::new();
    let mut crashes = 0;
    for round in 0..400u64 {
        if round % 20 == 0 {
            device.namespace = if round % 40 == 0 { versions } else { records };
            device.put(1000, b"keeps the tail");
            device.namespace = records;
        }
        let key = if round % 2 == 0 { round / 2 % KEPT } else { KEPT + round % 3 };
        let content = value(round, DIRECT_BYTES);
        let mut crash = |device: &Device, io: &Io| {
            if !matches!(io, Io::Erase { .. }) || round < 2 * KEPT {
                return;
            }
            crashes += 1;
            let mut found = device.after_crash();
            for key in (0..KEPT + 3).filter(|other| *other != key) {
                let found = found.get(key).unwrap_or_else(|error| panic!("round {round}, key {key}: {error}"));
                assert!(found.as_ref() == model.get(&key), "round {round}, key {key}");
            }
        };
        device.put_large(key, &content, &mut crash);
        let request = device.core.request_root(false);
        device.work(|core| core.roots_done() >= request, &mut crash);
        model.insert(key, content);
    }
    let relocated = device.core.stats().relocated_bytes;
    assert!(crashes > 50 && relocated > 1 << 19, "{crashes} crashes, {relocated} bytes moved");
}
