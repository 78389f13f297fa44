//! Threads that wait for the medium sleep. A process of its own: all its threads are counted.

use kaml::{CreateOptions, Device, NamespaceOptions};
use std::fs;

/// How often threads of this process have gone to sleep.
fn sleeps() -> u64 {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path().join("status"));
    let told = threads.filter_map(|status| fs::read_to_string(status).ok()); // others end
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
    const COUNT: u64 = 40;
    let dir = tempfile::tempdir().unwrap();
    let device = Device::create(dir.path().join("device"), &CreateOptions::new(256 << 20)).unwrap();
    let before = sleeps();
    for n in 0..COUNT {
        device.create_namespace(&n.to_string(), &NamespaceOptions::default()).unwrap();
    }
    let each = (sleeps() - before) / COUNT;
    println!("{each} sleeps for each namespace");
    assert!(each < 60, "{each} sleeps for each namespace");
}
