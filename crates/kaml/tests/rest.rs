//! Threads that wait sleep. A process of its own: all its threads are counted.

use kaml::{CreateOptions, Device, NamespaceOptions};
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often threads of this process whose names begin so have gone to sleep.
fn sleeps(of: &str) -> u64 {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path().join("status"));
    let told = threads.filter_map(|status| fs::read_to_string(status).ok()); // others end
    let told = told.filter(|status| status.starts_with(&format!("Name:\t{of}")));
    let count = |status: String| {
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse::<u64>().unwrap()
    };
    told.map(count).sum()
}

/// Goal:   who waits for housekeeping and its thread do not keep each other up while the medium takes its time.
/// Method: on a file, namespaces are created, each of which is a root; sleeps of all threads are counted.
#[test]
fn waiting_is_sleeping() {
    let _alone = alone();
    const COUNT: u64 = 40;
    let dir = tempfile::tempdir().unwrap();
    let device = Device::create(dir.path().join("device"), &CreateOptions::new(256 << 20)).unwrap();
    let before = sleeps("");
    for n in 0..COUNT {
        device.create_namespace(&n.to_string(), &NamespaceOptions::default()).unwrap();
    }
    let each = (sleeps("") - before) / COUNT;
    println!("{each} sleeps for each namespace");
    assert!(each < 60, "{each} sleeps for each namespace");
}

/// Goal:   a device that nobody uses takes no processor time.
/// Method: sleeps of its thread are counted for a while, after its commands are done.
#[test]
fn an_idle_device_sleeps() {
    let _alone = alone();
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let space = device.create_namespace("n", &NamespaceOptions::default()).unwrap();
    (0..1000u64).for_each(|key| device.put(space, key, &[7; 1000]).unwrap());
    device.settle().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let before = sleeps("kaml-background\n");
    assert!(before > 0, "it is looked at");
    std::thread::sleep(Duration::from_secs(1));
    let count = sleeps("kaml-background\n") - before;
    assert!(count <= 2, "it woke {count} times in a second");
}
