//! The device on real files, as an application uses it.

use kaml::{Batch, Bytes, CreateOptions, Device, Key, KeyKind, NamespaceOptions, OpenOptions};
use kaml_testkit::bytes as value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Goal:   a large batch with conditions keeps nobody waiting for long after a large one that is not committed; what is staged counts.
/// Method: 40 000 records submitted and not waited for, then as many under conditions, of other keys and of these.
#[test]
fn many_conditions_are_checked_soon() {
    const COUNT: u64 = 40_000;
    let device = Device::in_memory(&CreateOptions::new(1 << 30)).unwrap();
    let space = device.create_namespace("n", &u64_keys()).unwrap();
    let (mut first, mut others, mut same, mut gone) = (Batch::new(), Batch::new(), Batch::new(), Batch::new());
    for key in 0..COUNT {
        first.put(space, key, b"first");
        others.put_if_absent(space, key + COUNT, b"other");
        same.put_if_present(space, key, b"same");
        gone.put_if_absent(space, key, b"none");
    }
    let commit = device.submit(&first).unwrap();
    let begin = Instant::now();
    let conflict = device.write(&gone).unwrap_err();
    assert!(matches!(conflict, kaml::Error::Conflict { present: true, .. }), "{conflict}");
    device.write(&others).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(1), "it took {:?}", begin.elapsed());
    device.write(&same).unwrap();
    commit.wait().unwrap();
    assert_eq!(device.get(space, COUNT).unwrap().unwrap(), b"other");
    assert_eq!(device.get(space, 7).unwrap().unwrap(), b"same");
}

/// Goal:   a Put of many erase blocks is executed, on a new device and during collection; it does not wait forever.
/// Method: batches as long as the device takes, and half as long, of short records, on devices of short blocks, and of long chunks;
///         each over the records of the one before.
#[test]
fn puts_of_many_blocks_find_room() {
    let small = CreateOptions::new(64 << 20);
    let short_blocks = CreateOptions { block_bytes: Some(64 << 10), ring_bytes: Some(16 << 20), ..small.clone() };
    let dies = CreateOptions { die_count: Some(4), ..short_blocks.clone() };
    let long_chunks = CreateOptions { chunk_bytes: Some(1024), ..small };
    for options in [short_blocks, dies, long_chunks] {
        let device = Device::in_memory(&options).unwrap();
        let space = device.create_namespace("n", &u64_keys()).unwrap();
        let of = device.clone();
        let (done, is_done) = channel();
        let puts = std::thread::spawn(move || {
            let count = of.info().batch_bytes_max / 48;
            for round in 0..40u64 {
                let mut batch = Batch::new();
                for key in 0..count / (1 + round % 2) {
                    batch.put(space, key, &round.to_le_bytes());
                }
                done.send(of.write(&batch)).unwrap();
            }
        });
        for round in 0..40 {
            match is_done.recv_timeout(Duration::from_secs(20)) {
                Ok(written) => written.unwrap_or_else(|error| panic!("{options:?}: round {round}: {error}")),
                Err(_) => {
                    std::mem::forget(device); // closing it would wait, too
                    panic!("{options:?}: round {round}: the Put waits for ever");
                }
            }
        }
        puts.join().unwrap();
        assert_eq!(device.get(space, 0u64).unwrap().unwrap(), 39u64.to_le_bytes());
        assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
        device.close().unwrap();
    }
}

fn u64_keys() -> NamespaceOptions {
    NamespaceOptions::records(KeyKind::U64)
}

/// Goal:   what is put is got, over every size class, before and after reopening.
/// Method: values of 0 B to the device's limit; read from buffers, from pages, after a clean close, after none; copied, and in
///         memory that served shorter and longer ones before.
#[test]
fn values_of_all_sizes_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.kaml");
    let device = Device::create(&path, &CreateOptions::new(512 << 20)).unwrap();
    let ns = device.create_namespace("n", &u64_keys()).unwrap();
    let max = device.info().value_bytes_max as usize;
    let sizes = [
        0,
        1,
        23,
        24,
        25,
        100,
        512,
        1000,
        1048,
        1049,
        4000,
        4096,
        8192,
        20000,
        32767,
        32768,
        65536,
        300_000,
        1 << 20,
        max,
    ];
    let check = |device: &Device| {
        for (key, size) in (0u64..).zip(sizes) {
            assert_eq!(device.get(ns, key).unwrap().as_deref(), Some(&value(key, size)[..]), "value of {size} bytes");
        }
        let mut last = Bytes::default();
        let there: Vec<_> = (0u64..).zip(sizes).collect();
        for &(key, size) in there.iter().chain(there.iter().rev()) {
            last = device.get_bytes(ns, key, last).unwrap().expect("it was put");
            assert!(*last == value(key, size), "value of {size} bytes, in the memory of another");
        }
        assert_eq!(device.get(ns, 999u64).unwrap(), None);
        assert_eq!(device.get_bytes(ns, 999u64, last).unwrap(), None);
    };
    for (key, size) in (0u64..).zip(sizes) {
        device.put(ns, key, &value(key, size)).unwrap();
    }
    check(&device);
    device.settle().unwrap();
    check(&device);
    let report = device.check(&mut |_, _| {}).unwrap();
    assert_eq!((report.records, report.problems), (sizes.len() as u64, vec![]));
    device.close().unwrap();
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    assert!(device.info().was_clean);
    check(&device);
    device.close().unwrap();
    let error = Device::open(&path, &OpenOptions::default()).unwrap().put(ns, 1u64, &vec![0; max + 1]).unwrap_err();
    assert!(error.to_string().contains("at most"), "{error}");
}

/// Goal:   overwriting a small device for long keeps every record and reclaims space.
/// Method: 40 000 random overwrites and deletes of 2 000 keys (several times the capacity) against a map; check;
///         reopen; compare all.
#[test]
fn garbage_collection_keeps_every_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.kaml");
    let device =
        Device::create(&path, &CreateOptions { durability: kaml::Durability::Process, ..CreateOptions::new(64 << 20) })
            .unwrap();
    let ns = device.create_namespace("n", &u64_keys()).unwrap();
    let mut model = BTreeMap::new();
    let mut x = 88172645463325252u64;
    for round in 0..40_000u64 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let key = x % 2000;
        if x >> 60 == 0 {
            device.delete(ns, key).unwrap();
            model.remove(&key);
        } else {
            let len = (x >> 20) as usize % 12_000;
            device.put(ns, key, &value(round, len)).unwrap();
            model.insert(key, (round, len));
        }
    }
    let stats = device.stats();
    assert!(stats.erase_count > 0 && stats.relocated_bytes > 0, "{stats:?}");
    let compare = |device: &Device| {
        for key in 0..2000 {
            let expected = model.get(&key).map(|(round, len)| value(*round, *len));
            assert_eq!(device.get(ns, key).unwrap(), expected, "key {key}");
        }
    };
    compare(&device);
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    device.close().unwrap();
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    compare(&device);
    assert_eq!(device.check(&mut |_, _| {}).unwrap().records, model.len() as u64);
}

/// Goal:   what a device takes does not depend on which indexes are in memory: one that is reopened takes no more than before, and
///         continues to accept deletes.
/// Method: six namespaces with many small records; a seventh is filled until the device is full, reopened, filled again; then
///         records of all namespaces are deleted, which loads every index, and others put.
#[test]
fn capacity_counts_indexes_that_are_not_in_memory() {
    const COUNT: u64 = 40_000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.kaml");
    let options = CreateOptions { durability: kaml::Durability::Process, ..CreateOptions::new(64 << 20) };
    let mut device = Device::create(&path, &options).unwrap();
    let spaces: Vec<_> = (0..6).map(|i| device.create_namespace(&format!("a{i}"), &u64_keys()).unwrap()).collect();
    let filled = device.create_namespace("b", &u64_keys()).unwrap();
    for space in &spaces {
        for keys in (0..COUNT).collect::<Vec<_>>().chunks(1000) {
            let mut batch = Batch::new();
            for key in keys {
                batch.put(*space, *key, b"0123456789");
            }
            device.write(&batch).unwrap();
        }
    }
    device.settle().unwrap();
    let capacity = device.stats().capacity_bytes;
    device.close().unwrap();
    device = Device::open(&path, &OpenOptions::default()).unwrap();
    let reopened = device.stats().capacity_bytes;
    assert!(reopened.abs_diff(capacity) < capacity / 10, "{capacity} before, {reopened} after reopening");
    let mut next = 0;
    for _ in 0..3 {
        let begun = next;
        let refused = loop {
            match device.put(filled, next, &value(next, 1000)) {
                Ok(()) => next += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, kaml::Error::Full { .. }), "{refused}");
        assert!(begun == 0 || next - begun < begun / 10, "{} more records when reopened", next - begun);
        device.close().unwrap();
        device = Device::open(&path, &OpenOptions::default()).unwrap();
    }
    for space in &spaces {
        (0..COUNT).step_by(10).for_each(|key| device.delete(*space, key).unwrap());
    }
    (0..next).step_by(2).for_each(|key| device.delete(filled, key).unwrap());
    (0..next / 4).for_each(|key| device.put(filled, key, &value(key, 1000)).unwrap());
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    device.close().unwrap();
}

/// Goal:   many threads and an event loop share one device.
/// Method: 8 threads put and read back their own keys while a queue keeps 64 puts in flight.
#[test]
fn threads_and_queues_share_a_device() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::create(dir.path().join("d.kaml"), &CreateOptions::new(256 << 20)).unwrap();
    let ns = device.create_namespace("n", &u64_keys()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let device = device.clone();
            scope.spawn(move || {
                for i in 0..300 {
                    let key = thread << 32 | i;
                    device.put(ns, key, &value(key, 700)).unwrap();
                    assert_eq!(device.get(ns, key).unwrap().unwrap(), value(key, 700));
                }
            });
        }
        let shared = &device;
        scope.spawn(move || {
            let mut queue = shared.queue(64);
            let mut answers = Vec::new();
            let mut answered = 0;
            for i in 0..5000u64 {
                while queue.in_flight() >= 64 {
                    queue.poll(true, &mut answers);
                    answered += puts_answered(&mut answers);
                }
                queue.put(i, ns, 99 << 32 | i, &value(i, 512)).unwrap();
            }
            while queue.in_flight() > 0 {
                queue.poll(true, &mut answers);
                answered += puts_answered(&mut answers);
            }
            assert_eq!(answered, 5000);
            for i in 0..5000u64 {
                queue.get(i, ns, 99 << 32 | i).unwrap();
            }
            while queue.in_flight() > 0 {
                queue.poll(true, &mut answers);
                for answer in answers.drain(..) {
                    assert_eq!(answer.result.unwrap().unwrap(), value(answer.token, 512));
                }
            }
        });
    });
    assert_eq!(device.namespaces()[0].record_count, 8 * 300 + 5000);
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

/// Goal:   a thread may use blocking commands and large values while it has a queue, and leave a queue without commands alone:
///         nobody waits for a ring write that nobody takes.
/// Method: small Puts in flight, then a blocking Put, a large one, and a new namespace, again and again, while another thread
///         puts; in the end the queue is not polled any more, and the other thread continues.
#[test]
fn blocking_commands_beside_a_queue() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::create(dir.path().join("d.kaml"), &CreateOptions::new(64 << 20)).unwrap();
    let ns = device.create_namespace("n", &u64_keys()).unwrap();
    let (done, is_done) = channel();
    let run = move || {
        let mut queue = device.queue(32);
        let is_alone = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let (mut puts, mut alone) = (0u64, 0);
                while alone < 200 {
                    device.put(ns, (1 << 32) | (puts % 100), &value(puts, 100)).unwrap();
                    puts += 1;
                    alone += u64::from(is_alone.load(Ordering::Relaxed));
                }
            });
            let mut answers = Vec::new();
            for round in 0..50u64 {
                (0..16).for_each(|i| queue.put(i, ns, i, &value(round, 200)).unwrap());
                queue.poll(false, &mut answers);
                match round % 3 {
                    0 => device.put(ns, 1000u64, &value(round, 300)).unwrap(),
                    1 => queue.put(16, ns, 1001u64, &value(round, 40_000)).unwrap(),
                    _ => drop(device.create_namespace(&format!("n{round}"), &u64_keys()).unwrap()),
                }
                while queue.in_flight() > 0 {
                    queue.poll(true, &mut answers);
                }
                puts_answered(&mut answers);
                assert_eq!(device.get(ns, 7u64).unwrap().unwrap(), value(round, 200));
            }
            is_alone.store(true, Ordering::Relaxed);
            other.join().unwrap();
            assert_eq!(queue.in_flight(), 0);
        });
        done.send(()).unwrap();
    };
    std::thread::spawn(run);
    is_done.recv_timeout(Duration::from_secs(60)).expect("somebody waits for ever");
}

/// Takes the answers of Puts, each of which must have been stored, and counts them.
fn puts_answered(answers: &mut Vec<kaml::Answer>) -> usize {
    let count = answers.len();
    for answer in answers.drain(..) {
        assert_eq!(answer.result.expect("the Put is stored"), None, "a Put returns no value");
    }
    count
}

/// Goal:   a batch with a condition that does not hold stores nothing; conditions see what is in flight.
/// Method: conditional puts and deletes on absent and present keys, single and in batches.
#[test]
fn conditions_hold_for_whole_batches() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let a = device.create_namespace("a", &NamespaceOptions::default()).unwrap();
    let b = device.create_namespace("b", &NamespaceOptions::default()).unwrap();
    let key = |k: &str| Key::new(k.as_bytes()).unwrap();
    let mut batch = Batch::new();
    device.write(batch.put(b, key("free"), b"1").put_if_absent(a, key("k"), b"2")).unwrap();
    batch.clear();
    let error = device.write(batch.put(b, key("other"), b"3").put_if_absent(a, key("k"), b"4")).unwrap_err();
    assert!(error.to_string().contains("exists already"), "{error}");
    assert_eq!(device.get(b, key("other")).unwrap(), None);
    assert_eq!(device.get(a, key("k")).unwrap().unwrap(), b"2");
    batch.clear();
    assert!(device.write(batch.delete_if_present(a, key("absent"))).is_err());
    batch.clear();
    device.write(batch.put_if_present(a, key("k"), b"5").delete(b, key("free"))).unwrap();
    assert_eq!(device.get(a, key("k")).unwrap().unwrap(), b"5");
    assert!(!device.exists(b, key("free")).unwrap());
}

/// Goal:   what is submitted is durable when waited for, in the order of submission, and visible then.
/// Method: several threads submit batches, wait in turn and out of turn, and read back; a refused batch is notified at once.
#[test]
fn submitted_batches_commit_in_order() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let space = device.create_namespace("s", &NamespaceOptions::records(KeyKind::U64)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                for turn in 0..200u64 {
                    let commits: Vec<_> = (0..3u64)
                        .map(|i| {
                            let mut batch = Batch::new();
                            batch.put(space, thread, &(turn * 3 + i).to_le_bytes());
                            device.submit(&batch).unwrap()
                        })
                        .collect();
                    let last_first = turn % 2 == 0;
                    let ordered: Vec<_> = if last_first { commits.into_iter().rev().collect() } else { commits };
                    for (i, commit) in ordered.into_iter().enumerate() {
                        commit.wait().unwrap();
                        let value = device.get(space, thread).unwrap().expect("it is durable");
                        let least = if last_first { turn * 3 + 2 } else { turn * 3 + i as u64 };
                        assert!(u64::from_le_bytes(value.try_into().unwrap()) >= least);
                    }
                }
            });
        }
    });
    let mut batch = Batch::new();
    batch.put_if_absent(space, 0u64, b"no");
    assert!(device.submit(&batch).is_err());
}

/// Goal:   an index that nobody uses leaves memory by itself, changed or not, and is back when it is requested.
/// Method: a short time limit; one namespace read all the time, one left alone after puts, then put, listed and read again.
#[test]
fn idle_indexes_leave_memory() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let [busy, idle] = ["busy", "idle"].map(|name| device.create_namespace(name, &u64_keys()).unwrap());
    for key in 0..500u64 {
        device.put(busy, key, &value(key, 100)).unwrap();
        device.put(idle, key, &value(key, 100)).unwrap();
    }
    device.unload_idle_after(Duration::from_millis(300));
    let is_loaded = |id| device.namespaces().iter().any(|info| info.id == id && info.loaded);
    for round in 1..3u64 {
        let begin = Instant::now();
        while is_loaded(idle) {
            assert!(begin.elapsed() < Duration::from_secs(20), "the index stays");
            assert!(device.exists(busy, 1u64).unwrap());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(is_loaded(busy));
        assert_eq!(device.get(idle, 7u64).unwrap(), Some(value(7, 100)));
        assert!(is_loaded(idle));
        device.put(idle, 500 + round, &value(500 + round, 100)).unwrap();
        assert_eq!(device.list(idle, None, 1000).unwrap().keys.len() as u64, 500 + round);
    }
    device.unload_idle_after(Duration::from_secs(600));
    assert!(device.check(&mut |_, _| {}).unwrap().problems.is_empty());
}

/// Goal:   devices in memory have identities of their own, so one host can use several of them at a time.
/// Method: a hundred of them; each UUID is a random one in its form.
#[test]
fn devices_in_memory_differ() {
    let uuid = || Device::in_memory(&CreateOptions::new(64 << 20)).unwrap().info().uuid;
    let uuids: std::collections::BTreeSet<String> = (0..100).map(|_| uuid()).collect();
    assert_eq!(uuids.len(), 100);
    for uuid in uuids {
        let number = u128::from_str_radix(&uuid, 16).unwrap();
        assert_eq!((number >> 76 & 0xf, number >> 62 & 3), (4, 2), "{uuid}");
    }
}
