//! Large values whose caller is alone, which programs them itself.

use kaml::{Batch, CreateOptions, Device, KeyKind, NamespaceOptions, OpenOptions};
use kaml_device::Core;
use kaml_flash::{AlignedBuf, Begun, FileMedium, Geometry, Io, Medium, MediumError, Queue};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A file whose programs by callers fail on request.
struct Failing {
    medium: FileMedium,
    fails: AtomicBool,
    programs: AtomicU64,
}

impl Medium for Failing {
    fn geometry(&self) -> &Geometry {
        self.medium.geometry()
    }
    fn uuid(&self) -> [u8; 16] {
        self.medium.uuid()
    }
    fn execute(&self, io: &mut Io) -> Result<(), MediumError> {
        self.medium.execute(io)
    }
    fn begin<'a>(&'a self, io: &'a mut Io) -> Result<Begun<'a>, MediumError> {
        self.programs.fetch_add(1, Ordering::Relaxed);
        let Io::Program { at, .. } = io else { panic!("only programs begin") };
        match self.fails.swap(false, Ordering::Relaxed) {
            true => Err(MediumError::BlockFailed { block: at.block, what: "program", error: "worn out".into() }),
            false => self.medium.begin(io),
        }
    }
    fn queue(&self, depth: u32) -> Box<dyn Queue> {
        self.medium.queue(depth)
    }
    fn read_root(&self, slot: u8, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.medium.read_root(slot, into)
    }
    fn read_ring(&self, offset: u64, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.medium.read_ring(offset, into)
    }
    fn describe(&self) -> String {
        self.medium.describe()
    }
}

impl Failing {
    fn create(path: &Path) -> Arc<Failing> {
        let medium = FileMedium::create(path, &CreateOptions::new(256 << 20)).unwrap();
        Core::format(&medium).unwrap();
        Arc::new(Failing { medium, fails: AtomicBool::default(), programs: AtomicU64::default() })
    }
}

fn value(key: u64) -> Vec<u8> {
    let mut value = vec![key as u8; (1 << 20) + key as usize];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value
}

/// Goal:   large values of a caller that is alone are stored, and elsewhere if their program fails, without waiting for the next round of
///         housekeeping.
/// Method: values put one by one on a file, some of whose programs fail, small ones between; all read back, then from the device
///         opened again.
#[test]
fn callers_program_their_values() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("device");
    let medium = Failing::create(&path);
    let device = Device::on_medium(medium.clone()).unwrap();
    let options = NamespaceOptions::records(KeyKind::U64);
    let space = device.create_namespace("large", &options).unwrap();
    for key in 0..80u64 {
        medium.fails.fetch_or(key % 16 == 9, Ordering::Relaxed);
        let begun = Instant::now();
        device.put(space, key, &value(key)).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "key {key} took {:?}", begun.elapsed());
        assert!(device.get(space, key).unwrap().unwrap() == value(key), "key {key}");
        if key % 16 == 3 {
            device.put(space, 1000 + key, b"small").unwrap();
        }
    }
    let failures = device.stats().program_failures;
    assert!(medium.programs.load(Ordering::Relaxed) > 30 && failures > 3, "{failures} failed: {medium:?}");
    (0..80).for_each(|key| assert!(device.get(space, key).unwrap().unwrap() == value(key), "key {key}"));
    drop(device);
    drop(medium);
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    let space = device.namespace("large").unwrap();
    (0..80).for_each(|key| assert!(device.get(space, key).unwrap().unwrap() == value(key), "key {key}, opened again"));
    device.close().unwrap();
}

impl std::fmt::Debug for Failing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} programs by callers", self.programs.load(Ordering::Relaxed))
    }
}

/// Goal:   no batch of large values exceeds the capacity.
/// Method: batches of ever more large values, each on a fresh device, until one is refused; what is live after each.
#[test]
fn batches_of_large_values_stay_within_the_capacity() {
    let options = NamespaceOptions::records(KeyKind::U64);
    let value = vec![7; 33_000];
    for count in (1000..2000u64).step_by(20) {
        let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
        let space = device.create_namespace("n", &options).unwrap();
        let mut batch = Batch::new();
        for key in 0..count {
            batch.put(space, key, &value);
        }
        let written = device.write(&batch);
        let stats = device.stats();
        assert!(stats.live_bytes <= stats.capacity_bytes, "{count} values: {stats:?}");
        if let Err(error) = written {
            assert!(matches!(error, kaml::Error::Full { .. }), "{error}");
            return;
        }
    }
    panic!("none was refused");
}

/// Goal:   a device that has refused a batch because there was no room takes others at once.
/// Method: a batch of large values that is more than all of it; then a record is put.
#[test]
fn what_is_refused_leaves_no_full_device() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let options = NamespaceOptions::records(KeyKind::U64);
    let space = device.create_namespace("n", &options).unwrap();
    let (value, mut batch) = (vec![7; 200_000], Batch::new());
    for key in 0..300u64 {
        batch.put(space, key, &value);
    }
    assert!(matches!(device.write(&batch).unwrap_err(), kaml::Error::Full { .. }));
    device.put(space, 1u64, b"small").unwrap();
}

/// Goal:   nor do values whose Puts are not durable yet, large or small.
/// Method: values submitted one by one, none of which is waited for, until one is refused; what is live after all are durable.
#[test]
fn submitted_values_stay_within_the_capacity() {
    for value_bytes in [100_000, 30_000] {
        let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
        let options = NamespaceOptions::records(KeyKind::U64);
        let space = device.create_namespace("n", &options).unwrap();
        let (value, mut commits) = (vec![7; value_bytes], Vec::new());
        let refused = (0..10_000u64).find_map(|key| {
            let mut batch = Batch::new();
            batch.put(space, key, &value);
            device.submit(&batch).map(|commit| commits.push(commit)).err()
        });
        let error = refused.expect("a device has an end");
        assert!(matches!(error, kaml::Error::Full { .. }), "{error}");
        commits.into_iter().for_each(|commit| commit.wait().unwrap());
        let stats = device.stats();
        assert!(stats.live_bytes <= stats.capacity_bytes, "values of {value_bytes} bytes: {stats:?}");
    }
}

/// Goal:   a device on which collection was deadlocked accepts Puts as soon as deletes have made room.
/// Method: large values that leave a part of each block unused, until one is refused; all are deleted, and a record is put at once.
#[test]
fn deletes_end_a_stand_at_once() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let options = NamespaceOptions::records(KeyKind::U64);
    let space = device.create_namespace("n", &options).unwrap();
    let value = vec![7; 200_000];
    for round in 0..10 {
        let refused = (0..1000u64).find_map(|key| device.put(space, key, &value).err().map(|error| (key, error)));
        let (count, error) = refused.expect("a device has an end");
        assert!(matches!(error, kaml::Error::Full { .. }), "{error}");
        let stats = device.stats();
        assert!(stats.live_bytes < stats.capacity_bytes, "what is live is not what refuses it: {stats:?}");
        (0..count).for_each(|key| device.delete(space, key).unwrap());
        device.put(space, 0u64, b"small").unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
}
