//! Ring writes of event loops whose thread is at something else: they hold the Puts of everybody.

use kaml::{AsyncQueue, Device, KeyKind, NamespaceId, NamespaceKind, NamespaceOptions, Retention, VersionOptions};
use kaml_flash::{Io, Medium, Wait};
use kaml_testkit::{Held, hold_back};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Flash in memory whose reads by blocked callers can be held up, and whose queues end ring writes only for a caller that waits for them.
fn flash() -> (Arc<Held>, Arc<dyn Medium>) {
    Held::with_queues(hold_back(|io, wait| matches!((io, wait), (Io::Persist { .. }, Wait::No))))
}

fn namespace(device: &Device, name: &str, versions: Option<VersionOptions>) -> NamespaceId {
    let kind = versions
        .map_or(NamespaceKind::Records(KeyKind::U64), |versions| NamespaceKind::Versions(KeyKind::U64, versions));
    let options = NamespaceOptions::new(kind);
    device.create_namespace(name, &options).unwrap()
}

/// A loop whose ring write is in progress with a Put in it.
fn loop_with_ring_write(device: &Device, space: NamespaceId) -> AsyncQueue {
    let mut queue = device.queue(8);
    queue.put(0, space, 0u64, b"queued").unwrap();
    queue.poll(false, &mut Vec::new());
    assert_eq!(queue.in_flight(), 1, "it is not done");
    queue
}

/// Goal:   a thread whose loop has a ring write in progress, and which has to load an index, delays no other put.
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

/// Goal:   a thread whose loop has a ring write in progress, and which has to wait for a merge that somebody else makes, keeps nobody waiting
///         put.
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
        let merge = move || device.merge(kept, &Retention::default(), &mut kaml::to_the_end).map(drop).unwrap();
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

/// How the thread whose loop writes the ring comes back to it.
#[derive(Clone, Copy, Debug)]
enum Return {
    Polls,
    DropsItsLoop,
    PutsBlocked,
    GetsNothing,
}

/// Goal:   a loop that sleeps is woken when another one has committed its Put, however that came to take the completion of its ring
///         write; and then starts what it has put since.
/// Method: both put, the other one's loop starts the write, and its thread comes back to it in each of these ways after the first
///         sleeps. A sleep that nobody ends lasts a second.
#[test]
fn loops_are_woken_when_others_commit_their_puts() {
    for way in [Return::Polls, Return::DropsItsLoop, Return::PutsBlocked, Return::GetsNothing] {
        let (_, medium) = flash();
        let device = Device::on_medium(medium).unwrap();
        let space = namespace(&device, "n", None);
        let idle = namespace(&device, "idle", None);
        assert!(device.unload_namespace(idle).unwrap());
        std::thread::scope(|scope| {
            let device = &device;
            let (have_put, both_put) = channel();
            let (start, started) = channel();
            let (sleep, asleep) = channel();
            scope.spawn(move || {
                let mut queue = device.queue(8);
                both_put.recv().unwrap();
                queue.put(0, space, 0u64, b"writes").unwrap();
                queue.poll(false, &mut Vec::new());
                assert_eq!(queue.in_flight(), 1, "it is not done");
                start.send(()).unwrap();
                asleep.recv().unwrap();
                std::thread::sleep(Duration::from_millis(50));
                match way {
                    Return::Polls => queue.poll(true, &mut Vec::new()),
                    Return::DropsItsLoop => drop(queue),
                    Return::PutsBlocked => device.put(space, 2u64, b"blocked").unwrap(),
                    Return::GetsNothing => assert_eq!(device.get(idle, 0u64).unwrap(), None),
                }
            });
            let (mut queue, mut answers) = (device.queue(8), Vec::new());
            queue.put(1, space, 1u64, b"sleeps").unwrap();
            have_put.send(()).unwrap();
            started.recv().unwrap();
            queue.put(3, space, 3u64, b"later").unwrap();
            sleep.send(()).unwrap();
            let begin = Instant::now();
            while queue.in_flight() > 0 {
                queue.poll(true, &mut answers);
            }
            assert!(begin.elapsed() < Duration::from_millis(900), "{way:?}: it slept {:?}", begin.elapsed());
            let tokens: Vec<u64> = answers.iter().map(|answer| answer.token).collect();
            assert_eq!(tokens, [1, 3]);
        });
        for (key, value) in [(0u64, &b"writes"[..]), (1, b"sleeps"), (3, b"later")] {
            assert_eq!(device.get(space, key).unwrap().unwrap(), value);
        }
        device.close().unwrap();
    }
}

/// Goal:   reads that are done by the time a blocked call takes a loop's ring writes complete by the loop.
/// Method: Gets from flash and a ring write are in flight when the thread puts blocked; then it polls.
#[test]
fn reads_outlast_ring_writes_that_are_taken() {
    let (_, medium) = flash();
    let device = Device::on_medium(medium).unwrap();
    let space = namespace(&device, "n", None);
    (0..20u64).for_each(|key| device.put(space, key, &[key as u8; 1000]).unwrap());
    device.settle().unwrap();
    let mut queue = loop_with_ring_write(&device, space);
    (1..20u64).for_each(|key| queue.get(key, space, key).unwrap());
    device.put(space, 30u64, b"blocked").unwrap();
    let mut answers = Vec::new();
    while queue.in_flight() > 0 {
        queue.poll(true, &mut answers);
    }
    answers.sort_by_key(|answer| answer.token);
    assert_eq!(answers.len(), 20);
    for answer in answers.drain(1..) {
        assert_eq!(answer.result.unwrap().as_deref(), Some(&[answer.token as u8; 1000][..]));
    }
    assert!(answers[0].result.as_ref().unwrap().is_none());
}

/// Goal:   a blocked call ends the ring writes that its thread's loops have on its device, and on no other.
/// Method: loops on two devices have one in progress each when the thread puts blocked to one; then both
///         loops are polled.
#[test]
fn ring_writes_belong_to_their_device() {
    let devices = [(); 2].map(|()| Device::on_medium(flash().1).unwrap());
    let spaces = devices.each_ref().map(|device| namespace(device, "n", None));
    let mut queues = [0, 1].map(|at| loop_with_ring_write(&devices[at], spaces[at]));
    devices[1].put(spaces[1], 1u64, b"blocked").unwrap();
    let mut answers = Vec::new();
    queues[0].poll(false, &mut answers);
    assert_eq!((queues[0].in_flight(), answers.len()), (1, 0), "nobody has taken it");
    for queue in &mut queues {
        queue.poll(true, &mut answers);
        assert!(answers.pop().unwrap().result.unwrap().is_none());
    }
    for (device, space) in devices.iter().zip(spaces) {
        assert_eq!(device.get(space, 0u64).unwrap().unwrap(), b"queued");
    }
}
