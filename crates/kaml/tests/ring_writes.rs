//! Ring writes of event loops whose thread is at something else: they hold the Puts of everybody.

#[path = "support/held.rs"]
mod held;
#[path = "support/held_queue.rs"]
mod held_queue;

use held::Held;
use held_queue::hold_back;
use kaml::{AsyncQueue, Device, KeyKind, NamespaceId, NamespaceOptions, Retention, VersionOptions};
use kaml_flash::{Io, Medium, Wait};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Flash in memory whose reads by blocked callers can be held up, and whose queues end ring writes only for who waits for them.
fn flash() -> (Arc<Held>, Arc<dyn Medium>) {
    Held::with_queues(hold_back(|io, wait| matches!((io, wait), (Io::Persist { .. }, Wait::No))))
}

fn namespace(device: &Device, name: &str, versions: Option<VersionOptions>) -> NamespaceId {
    let options = NamespaceOptions { keys: KeyKind::U64, versions, ..NamespaceOptions::default() };
    device.create_namespace(name, &options).unwrap()
}

/// A loop whose ring write is under way with a Put in it.
fn loop_with_ring_write(device: &Device, space: NamespaceId) -> AsyncQueue {
    let mut queue = device.queue(8);
    queue.put(0, space, 0u64, b"queued").unwrap();
    queue.poll(false, &mut Vec::new());
    assert_eq!(queue.in_flight(), 1, "it is not done");
    queue
}

/// Goal:   a thread whose loop has a ring write under way, and which has to load an index, keeps nobody waiting who puts.
/// Method: it gets a record of a namespace that is not in memory, blocked and in the loop; while reads are held up another thread puts.
#[test]
fn loops_end_their_ring_writes_before_they_load() {
    for blocked in [true, false] {
        let (held, medium) = flash();
        let device = Device::on_medium(medium).unwrap();
        let (idle, busy) = (namespace(&device, "idle", None), namespace(&device, "busy", None));
        (0..1000u64).for_each(|key| device.put(idle, key, &key.to_le_bytes()).unwrap());
        assert!(device.unload_namespace(idle).unwrap());
        std::thread::scope(|scope| {
            let device = &device;
            let (say, said) = channel();
            held.hold(true);
            scope.spawn(move || {
                let mut queue = loop_with_ring_write(device, busy);
                match blocked {
                    true => assert!(device.exists(idle, 7u64).unwrap()),
                    false => queue.put(1, idle, 7u64, b"seven").unwrap(),
                }
            });
            while held.waiting.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            scope.spawn(move || say.send(device.put(busy, 1u64, b"blocked")).unwrap());
            let put = said.recv_timeout(Duration::from_secs(5));
            held.hold(false);
            assert!(put.is_ok(), "a Put waits for an index that it does not need");
        });
        device.close().unwrap();
    }
}

/// Goal:   a thread whose loop has a ring write under way, and which has to wait for a merge that somebody else makes, keeps nobody waiting
///         who puts.
/// Method: it merges, too, while the other merge is held up at a read; another thread puts.
#[test]
fn loops_end_their_ring_writes_before_they_wait_for_merges() {
    let (held, medium) = flash();
    let device = Device::on_medium(medium).unwrap();
    let kept = namespace(&device, "kept", Some(VersionOptions::default()));
    let busy = namespace(&device, "busy", None);
    (0..10_000u64).for_each(|key| device.put(kept, key % 100, &[7; 500]).unwrap());
    std::thread::scope(|scope| {
        let device = &device;
        let merge = move || device.merge(kept, &Retention::default(), &mut |_, _| {}).map(drop).unwrap();
        let (say, said) = channel();
        let (begin, begun) = channel();
        held.hold(true);
        scope.spawn(merge);
        while held.waiting.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        scope.spawn(move || {
            let _queue = loop_with_ring_write(device, busy);
            begin.send(()).unwrap();
            merge();
        });
        begun.recv().unwrap();
        scope.spawn(move || say.send(device.put(busy, 1u64, b"blocked")).unwrap());
        let put = said.recv_timeout(Duration::from_secs(5));
        held.hold(false);
        assert!(put.is_ok(), "a Put waits for a merge");
    });
    device.close().unwrap();
}
