//! Loops with many commands in flight next to each other and the housekeeping thread, where room is scarce.

use kaml::{AsyncQueue, BlockOptions, CreateOptions, Device, KeyKind, NamespaceId, NamespaceOptions, OpenOptions};
use kaml_device::Core;
use kaml_flash::{Completion, Geometry, Io, IoId, MemoryMedium, Queue, Wait, Wake};
use kaml_testkit::{Access, Watched};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const CAPACITY_BYTES: u64 = 32 << 20;
const KEYS: u64 = 1500;
const VALUE_BYTES: usize = 4096;
const IN_FLIGHT: usize = 32;

/// Whether a key is put in a round: all in the first, then every other one in no order, so blocks keep some live records.
fn is_put(key: u64, round: u64) -> bool {
    round == 0 || (key ^ round).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 0
}

/// What a key holds after its `round`th put.
fn value(key: u64, round: u64) -> Vec<u8> {
    let mut value = vec![key as u8; VALUE_BYTES];
    value[..8].copy_from_slice(&(key << 32 | round).to_le_bytes());
    value
}

fn device() -> (Device, NamespaceId, NamespaceId) {
    let device = Device::in_memory(&CreateOptions::new(CAPACITY_BYTES)).unwrap();
    let options = NamespaceOptions::records(KeyKind::U64);
    let records = device.create_namespace("records", &options).unwrap();
    let disk = device.create_namespace("disk", &BlockOptions::new(4096, KEYS).into()).unwrap();
    (device, records, disk)
}

/// How a loop is used.
#[derive(Clone, Copy)]
struct Manner {
    keeps_house: bool,
    sleeps: bool,
}

/// Overwrites records `first`, `first + 2` and so on, and blocks of these numbers, again and again. Returns the longest time that
/// any command, or waiting for an answer, took among those after the slowest three.
fn overwrite(device: &Device, [records, disk]: [NamespaceId; 2], first: u64, rounds: u64, manner: Manner) -> Duration {
    let mut queue = device.queue(64);
    if manner.keeps_house {
        queue.enable_housekeeping();
    }
    let (mut answers, mut slowest) = (Vec::new(), vec![Duration::ZERO; 4]);
    let mut poll = |queue: &mut AsyncQueue| {
        queue.poll(manner.sleeps, &mut answers);
        answers.drain(..).for_each(|answer| drop(answer.result.unwrap()));
    };
    for round in 0..rounds {
        for key in (first..KEYS).step_by(2).filter(|key| is_put(*key, round)) {
            let begin = Instant::now();
            let value = value(key, round);
            queue.put(key, records, key, &value).unwrap();
            queue.submit_block_write(key, disk, key, &value).unwrap();
            while queue.in_flight() >= IN_FLIGHT {
                poll(&mut queue);
            }
            slowest.push(begin.elapsed());
            slowest.sort();
            slowest.remove(0);
        }
        // A key is put again when the last one is durable: commands in flight together have no order.
        while queue.in_flight() > 0 {
            poll(&mut queue);
        }
    }
    slowest[0]
}

fn compare_all(device: &Device, [records, disk]: [NamespaceId; 2], rounds: u64) {
    let mut block = vec![0; VALUE_BYTES];
    for key in 0..KEYS {
        let round = (0..rounds).rfind(|round| is_put(key, *round)).unwrap();
        assert!(device.get(records, key).unwrap() == Some(value(key, round)), "record {key}");
        device.block_read(disk, key, &mut block).unwrap();
        assert!(block == value(key, round), "block {key}");
    }
}

/// Goal:   loops execute programs and collection in the order that flash needs, whichever thread executes others, lose nothing, and do not
///         sleep while they have something to do.
/// Method: two threads overwrite a small device in memory eight times over, so collection runs; one sleeps in its polls, both
///         keep house or neither. A program out of order would stop the device; a sleep that nobody ends lasts a second.
#[test]
fn loops_beside_each_other() {
    for keeps_house in [true, false] {
        let (device, records, disk) = device();
        let spaces = [records, disk];
        let rounds = 8 * CAPACITY_BYTES / (KEYS * VALUE_BYTES as u64);
        let slow = std::thread::scope(|scope| {
            let run = |first| {
                let (device, manner) = (&device, Manner { keeps_house, sleeps: first == 0 });
                scope.spawn(move || overwrite(device, spaces, first, rounds, manner))
            };
            [0, 1].map(run).map(|thread| thread.join().unwrap())
        });
        compare_all(&device, spaces, rounds);
        assert!(device.stats().relocated_bytes > 0, "blocks were collected");
        let report = device.check(&mut |_, _| {}).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert!(slow.iter().all(|slow| *slow < Duration::from_millis(900)), "{slow:?}");
        device.close().unwrap();
    }
}

/// Goal:   a thread that holds a device and a loop until it ends closes them in order, whatever else it has given up by then.
/// Method: both in memory of the thread, requested before and after their first use, Puts not completed yet; on a file, and
///         again from another thread.
#[test]
fn threads_end_with_devices() {
    thread_local!(static HELD: RefCell<Option<(AsyncQueue, Device)>> = const { RefCell::new(None) });
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let device = Device::create(&path, &CreateOptions::new(CAPACITY_BYTES)).unwrap();
    let options = NamespaceOptions::records(KeyKind::U64);
    let records = device.create_namespace("records", &options).unwrap();
    device.close().unwrap();
    for asks_first in [true, false] {
        let path = path.clone();
        let end = std::thread::spawn(move || {
            if asks_first {
                HELD.with(|held| assert!(held.borrow().is_none()));
            }
            let device = Device::open(&path, &OpenOptions::default()).unwrap();
            let mut queue = device.queue(32);
            for key in 0..20 {
                queue.put(key, records, key, &value(key, u64::from(asks_first))).unwrap();
            }
            HELD.set(Some((queue, device)));
        });
        end.join().unwrap();
        let device = Device::open(dir.path().join("device"), &OpenOptions::default()).unwrap();
        for key in 0..20 {
            let found = device.get(records, key).unwrap();
            assert_eq!(found.as_deref(), Some(&value(key, u64::from(asks_first))[..]), "{key}");
        }
        device.close().unwrap();
    }
}

/// Waits as an event loop does until everything completes: it sleeps only while it may, and `false` reports that nobody woke it.
fn wait_at_descriptor(queue: &mut AsyncQueue) -> bool {
    let mut answers = Vec::new();
    while queue.in_flight() > 0 {
        if queue.arm() {
            let fd = queue.fd().expect("files have a descriptor");
            let timeout = Timespec { tv_sec: 5, tv_nsec: 0 };
            if rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() == 0 {
                return false;
            }
        }
        queue.poll(false, &mut answers);
        answers.drain(..).for_each(|answer| drop(answer.result.unwrap()));
    }
    true
}

/// Goal:   an event loop that may sleep is woken, whatever has been staged since its last poll or by it.
/// Method: writes of parts of units that are on flash, so their Puts are staged when a read is done; and Puts that are
///         not polled for before the loop sleeps.
#[test]
fn loops_that_sleep_are_woken() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let device = Device::create(&path, &CreateOptions::new(CAPACITY_BYTES)).unwrap();
    let options = NamespaceOptions::records(KeyKind::U64);
    let records = device.create_namespace("records", &options).unwrap();
    let disk = device.create_namespace("disk", &BlockOptions::new(512, 1024).into()).unwrap();
    device.block_write(disk, 0, &vec![1; 512 * 1024]).unwrap();
    device.close().unwrap();
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    let mut queue = device.queue(32);
    for round in 0..20 {
        queue.submit_block_write(round, disk, round * 48 + 1, &[2; 512]).unwrap();
        assert!(wait_at_descriptor(&mut queue), "a part of a unit, round {round}");
        queue.put(round, records, round, &[3; 100]).unwrap();
        assert!(wait_at_descriptor(&mut queue), "a record, round {round}");
    }
    let mut unit = [0; 4096];
    device.block_read(disk, 48, &mut unit).unwrap();
    assert!(unit[..512] == [1; 512] && unit[512..1024] == [2; 512] && unit[1024..] == [1; 3072]);
}

/// Goal:   reads that were done at once are all returned before the loop sleeps, although one poll returns only some of them; also when
///         a blocked call of the thread has found them done.
/// Method: many Gets from flash, polled for when all have had time to be done: blocked, at the descriptor, and at the descriptor after
///         a blocked Put next to one of the loop. A sleep that nobody ends lasts a second, or five.
#[test]
fn reads_done_together_are_answered_together() {
    const GETS: u64 = 64;
    let dir = tempfile::tempdir().unwrap();
    let device = Device::create(dir.path().join("device"), &CreateOptions::new(CAPACITY_BYTES)).unwrap();
    let options = NamespaceOptions::records(KeyKind::U64);
    let records = device.create_namespace("records", &options).unwrap();
    (0..GETS).for_each(|key| device.put(records, key, &value(key, 0)).unwrap());
    device.settle().unwrap();
    let (mut queue, mut answers) = (device.queue(128), Vec::new());
    let mut get_all = |queue: &mut AsyncQueue, puts: bool| {
        if puts {
            queue.put(GETS, records, GETS, b"in the loop").unwrap();
        }
        (0..GETS).for_each(|key| queue.get(key, records, key).unwrap());
        queue.poll(false, &mut answers);
        std::thread::sleep(Duration::from_millis(20));
        answers.clear();
    };
    for round in 0..5 {
        get_all(&mut queue, false);
        let begin = Instant::now();
        let mut answers = Vec::new();
        while queue.in_flight() > 0 {
            queue.poll(true, &mut answers);
        }
        assert!(begin.elapsed() < Duration::from_millis(900), "round {round}: it slept {:?}", begin.elapsed());
        for answer in answers {
            assert!(answer.result.unwrap().as_deref() == Some(&value(answer.token, 0)[..]), "{}", answer.token);
        }
        get_all(&mut queue, false);
        assert!(wait_at_descriptor(&mut queue), "round {round}");
        get_all(&mut queue, true);
        device.put(records, GETS + 1, b"blocked").unwrap();
        assert!(wait_at_descriptor(&mut queue), "round {round}, after a blocked Put");
    }
}

/// Goal:   a queue that outlives its device loses nothing that it acknowledges: what comes after the device was closed is refused.
/// Method: put before and after the last handle is closed, records and blocks, small ones and a large one; the device is opened again.
#[test]
fn queues_of_closed_devices_take_no_puts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.kaml");
    let device = Device::create(&path, &CreateOptions::new(CAPACITY_BYTES)).unwrap();
    let options = NamespaceOptions::records(KeyKind::U64);
    let records = device.create_namespace("records", &options).unwrap();
    let disk = device.create_namespace("disk", &BlockOptions::new(4096, KEYS).into()).unwrap();
    let (mut queue, mut answers) = (device.queue(8), Vec::new());
    queue.put(1, records, 1, b"one").unwrap();
    device.close().unwrap();
    for len in [3, 100_000] {
        let refused = queue.put(2, records, 2, &vec![2; len]).unwrap_err();
        assert!(matches!(refused, kaml::Error::Closed), "{refused}");
    }
    let written = queue.submit_block_write(3, disk, 0, &[3; 4096]);
    queue.get(4, records, 1).unwrap();
    while queue.in_flight() > 0 {
        queue.poll(true, &mut answers);
    }
    let answer = |token| answers.iter().find(|answer| answer.token == token).map(|answer| &answer.result);
    assert!(written.is_err() || answer(3).is_some_and(Result::is_err));
    assert_eq!(answer(4).unwrap().as_ref().unwrap().as_deref(), Some(&b"one"[..]));
    drop(queue);
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(device.get(records, 1).unwrap().as_deref(), Some(&b"one"[..]));
    assert_eq!(device.get(records, 2).unwrap(), None);
}

/// Goal:   Gets that wait for memory come in their order, each completes, and the memory is free in the end.
/// Method: long values, from flash and from write buffers, under a limit that one of them nearly takes; a record whose namespace is deleted
///         while its Get waits; a loop that sleeps only while it may.
#[test]
fn held_gets_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::create(dir.path().join("device"), &CreateOptions::new(CAPACITY_BYTES)).unwrap();
    let options = NamespaceOptions::records(KeyKind::U64);
    let [records, gone] = ["records", "gone"].map(|name| device.create_namespace(name, &options).unwrap());
    (0..4u64).for_each(|key| device.put(records, key, &[key as u8; 100 << 10]).unwrap());
    device.put(records, 4u64, &[4; 20 << 10]).unwrap();
    device.put(gone, 5u64, &[5; 100 << 10]).unwrap();
    let (mut queue, mut answers) = (device.queue(32), Vec::new());
    queue.set_spare_bytes_max(150 << 10);
    for key in 0..5u64 {
        queue.get_with_room(key, records, key, 0).unwrap();
    }
    queue.get_with_room(5, gone, 5u64, 0).unwrap();
    device.delete_namespace(gone).unwrap();
    for _ in 0..1000 {
        assert!(queue.spare_bytes() <= 150 << 10);
        queue.poll(true, &mut answers);
    }
    assert_eq!((answers.len(), queue.in_flight(), queue.spare_bytes()), (6, 0, 0));
    assert!(
        (0..3).all(|at| answers[at].token == at as u64),
        "reads of flash that do not fit together keep their order"
    );
    answers.sort_by_key(|answer| answer.token);
    let gone = answers.pop().unwrap().result;
    assert!(gone.is_err() && answers.into_iter().all(|answer| answer.result.unwrap().is_some()));
    for key in 0..4u64 {
        queue.get_with_room(key, records, key, 0).unwrap();
    }
    queue.get(9, records, 9u64).unwrap();
    assert!(wait_at_descriptor(&mut queue), "one that is returned makes room for the next");
    queue.get(9, records, 9u64).unwrap();
    assert!(wait_at_descriptor(&mut queue), "the result exists already");
}

/// Notes how many operations a queue has had at the same time at most.
struct Counted {
    queue: Box<dyn Queue>,
    most: Arc<AtomicUsize>,
}

impl Queue for Counted {
    fn submit(&mut self, id: IoId, io: Io) {
        self.queue.submit(id, io);
        self.most.fetch_max(self.queue.in_flight(), Ordering::SeqCst);
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) {
        self.queue.reap(wait, done);
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.queue.waker()
    }
}

/// Goal:   no more Gets than a queue's depth are read at the same time, however many are in flight; each completes once.
/// Method: 1500 Gets of records on flash, of keys that do not exist and of a namespace that is deleted meanwhile, before the first poll; all
///         with room for their values, or half of them without, under a limit of memory. Operations are counted below.
#[test]
fn depth_bounds_what_is_read() {
    const DEPTH: usize = 8;
    let options = CreateOptions::new(CAPACITY_BYTES);
    let medium = MemoryMedium::new(Geometry::for_file(options.capacity_bytes, 512, &options).unwrap());
    Core::format(&medium).unwrap();
    let most = Arc::new(AtomicUsize::new(0));
    let counts = most.clone();
    let before = move |queue| Box::new(Counted { queue, most: counts.clone() }) as Box<dyn Queue>;
    let device = Device::on_medium(Arc::new(Watched { medium, watch: |_: Access<'_>| Ok(()), before })).unwrap();
    let keys = NamespaceOptions::records(KeyKind::U64);
    let records = device.create_namespace("records", &keys).unwrap();
    for room in [usize::MAX, 0] {
        let gone = device.create_namespace("gone", &keys).unwrap();
        (0..KEYS).for_each(|key| device.put(records, key, &value(key, 0)).unwrap());
        (0..KEYS / 10).for_each(|key| device.put(gone, key, &value(key, 0)).unwrap());
        device.put(records, 0u64, &[0; 30 << 10]).unwrap();
        device.settle().unwrap();
        most.store(0, Ordering::SeqCst);
        let (mut queue, mut answers) = (device.queue(DEPTH as u32), Vec::new());
        queue.set_spare_bytes_max(40 << 10);
        for token in 0..KEYS {
            let (space, key) = match token % 10 {
                1 => (gone, token / 10),
                2 => (records, token + KEYS),
                3 => (records, 0),
                _ => (records, token),
            };
            let room = if token % 2 == 0 { usize::MAX } else { room };
            if let Err(error) = queue.get_with_room(token, space, key, room) {
                panic!("{error}");
            }
        }
        assert_eq!(queue.in_flight(), KEYS as usize);
        device.delete_namespace(gone).unwrap();
        while queue.in_flight() > 0 {
            queue.poll(true, &mut answers);
        }
        let most = most.load(Ordering::SeqCst);
        assert!((2..=DEPTH).contains(&most), "{most} at the same time");
        assert_eq!(answers.len(), KEYS as usize);
        answers.sort_by_key(|answer| answer.token);
        for (answer, token) in answers.into_iter().zip(0..) {
            assert_eq!(answer.token, token);
            match token % 10 {
                1 => {} // the namespace existed for some
                2 => assert_eq!(answer.result.unwrap(), None),
                3 => assert_eq!(answer.result.unwrap().as_deref(), Some(&[0; 30 << 10][..])),
                _ if token == 0 => assert!(answer.result.unwrap().is_some()),
                _ => assert_eq!(answer.result.unwrap().as_deref(), Some(&value(token, 0)[..])),
            }
        }
    }
}

/// Goal:   a loop that sleeps only while it may gets what waits after a queue's depth.
/// Method: many more Gets of records in a file than are read at the same time, waited for at the descriptor.
#[test]
fn gets_beyond_the_depth_are_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::create(dir.path().join("device"), &CreateOptions::new(CAPACITY_BYTES)).unwrap();
    let options = NamespaceOptions::records(KeyKind::U64);
    let records = device.create_namespace("records", &options).unwrap();
    (0..100).for_each(|key| device.put(records, key, &value(key, 0)).unwrap());
    device.settle().unwrap();
    let mut queue = device.queue(2);
    for _ in 0..5 {
        (0..100).for_each(|key| queue.get(key, records, key).unwrap());
        assert!(wait_at_descriptor(&mut queue));
    }
}
