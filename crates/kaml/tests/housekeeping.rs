//! Rounds of housekeeping as those notice who wait for them. A process of its own: threads are counted.

#[path = "support/held.rs"]
mod held;

use held::Held;
use kaml::{CreateOptions, Device, KeyKind, NamespaceId, NamespaceOptions};
use std::fs;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One test at a time, so that threads of a name are its own.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn namespace(device: &Device, name: &str) -> NamespaceId {
    let options = NamespaceOptions { keys: KeyKind::U64, ..NamespaceOptions::default() };
    device.create_namespace(name, &options).unwrap()
}

/// How often the housekeeping thread has gone to sleep.
fn sleeps() -> u64 {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path().join("status"));
    let told = threads.filter_map(|status| fs::read_to_string(status).ok()); // others end
    let own = told.filter(|status| status.starts_with("Name:\tkaml-background\n"));
    let count = |status: String| {
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse::<u64>().unwrap()
    };
    own.map(count).sum()
}

/// Goal:   a device that nobody uses takes no processor time.
/// Method: sleeps of its thread are counted for a while, once what it was asked for is done.
#[test]
fn an_idle_device_sleeps() {
    let _alone = alone();
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let space = namespace(&device, "n");
    (0..1000u64).for_each(|key| device.put(space, key, &[7; 1000]).unwrap());
    device.settle().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let before = sleeps();
    assert!(before > 0, "it is looked at");
    std::thread::sleep(Duration::from_secs(1));
    let count = sleeps() - before;
    assert!(count <= 2, "it woke {count} times in a second");
}

/// Records that are overwritten: so many that no block is empty before it is collected.
const BUSY: u64 = 4000;

/// Overwrites records at random until a condition holds.
fn overwrite_until(device: &Device, space: NamespaceId, what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    for turn in 0u64.. {
        if is_so() {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        let key = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        device.put(space, key % BUSY, &[turn as u8; 8000]).unwrap();
    }
}

/// Goal:   collection goes on where records are of indexes that have left memory, of one after the other; and a device that was closed
///         leaves its medium alone, whatever it was about.
/// Method: records of two namespaces stand in blocks among others; their indexes leave memory, and the others are overwritten until both
///         are back. Then one leaves again and reads are held up while collection wants it, and the device is closed.
#[test]
fn indexes_are_loaded_for_collection() {
    let _alone = alone();
    let (held, medium) = Held::new();
    let device = Device::on_medium(medium.clone()).unwrap();
    let [busy, one, two] = ["busy", "one", "two"].map(|name| namespace(&device, name));
    for key in 0..BUSY {
        device.put(busy, key, &[1; 8000]).unwrap();
        [one, two].iter().for_each(|space| device.put(*space, key, &key.to_le_bytes().repeat(20)).unwrap());
    }
    let is_loaded = |id| device.is_namespace_loaded(id).unwrap();
    [one, two].iter().for_each(|space| assert!(device.unload_namespace(*space).unwrap()));
    overwrite_until(&device, busy, "an index does not come back", || is_loaded(one) && is_loaded(two));
    while !device.unload_namespace(one).unwrap() {
        device.settle().unwrap(); // it was being collected
    }
    held.hold(true);
    overwrite_until(&device, busy, "nobody wants the index", || held.waiting.load(Ordering::SeqCst) > 0);
    std::thread::scope(|scope| {
        let closed = scope.spawn(|| device.close());
        std::thread::sleep(Duration::from_millis(200));
        held.hold(false);
        closed.join().unwrap().unwrap();
    });
    assert_eq!(Arc::strong_count(&medium), 1, "somebody still has the medium");
    let device = Device::on_medium(medium).unwrap();
    for key in 0..BUSY {
        for space in [one, two] {
            assert!(device.get(space, key).unwrap() == Some(key.to_le_bytes().repeat(20)), "record {key}");
        }
    }
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}
