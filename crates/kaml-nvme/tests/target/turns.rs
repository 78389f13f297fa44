//! Hosts that request much, and hosts that leave, together with others.

use crate::hostile::{bytes, connect_queue, init};
use crate::memory::peak_bytes;
use crate::world::{World, key, run_alone};
use kaml::{At, BlockOptions, Device, NamespaceId, Retention, VersionOptions};
use kaml_nvme::host::{Blocks, Controller, HostOptions, KeyValue, Wait};
use kaml_nvme::wire::command::{Command, kv, nvm};
use kaml_nvme::wire::fabrics::{CNTLID_DYNAMIC, Property, kind, register};
use kaml_nvme::wire::status::Status;
use kaml_nvme::wire::versions::{put_at, put_diff, put_merge};
use kaml_testkit::Held;
use std::io::{Read, Write};
use std::ops::Range;
use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Long enough for a worker.
const VALUE_BYTES: usize = 40_000;

fn disk(device: &Device, blocks: u64) -> NamespaceId {
    device.create_namespace("disk", &BlockOptions::new(4096, blocks).into()).unwrap()
}

/// Has a host verify 256 MiB so many times at once.
fn flood(host: &Controller, disk: NamespaceId, count: usize) {
    let mut verify = Command::new(nvm::VERIFY, disk);
    verify.cdw12 = 0xffff.into();
    for _ in 0..count {
        let _ = host.queues()[0].enqueue(verify, &[], 0).unwrap().unwrap();
    }
    host.queues()[0].send().unwrap();
}

/// A trim of this many ranges and one more.
fn trim(disk: NamespaceId, more: u32) -> Command {
    let mut dataset = Command::new(nvm::DATASET_MANAGEMENT, disk);
    (dataset.cdw10, dataset.cdw11) = (more.into(), 4.into());
    dataset
}

/// Its data.
fn ranges(of: &[Range<u64>]) -> Vec<u8> {
    let one = |range: &Range<u64>| {
        [&[0; 4][..], &((range.end - range.start) as u32).to_le_bytes(), &range.start.to_le_bytes()].concat()
    };
    of.iter().flat_map(one).collect()
}

/// How many commands of a host have completed without a response read.
fn answered(host: &Controller) -> usize {
    let mut answers = Vec::new();
    host.queues()[0].poll(Wait::No, &mut answers).unwrap();
    answers.len()
}

/// Goal:   a host that asks workers for minutes of work keeps nobody else waiting for more than a piece of it.
/// Method: a thousand verifications of 256 MiB each, and meanwhile stores, lists and compares of another host, which take a worker,
///         too: they complete while nearly all of the first are not.
#[test]
fn hosts_take_turns() {
    let world = World::new();
    let (records, disk) = (world.namespace("records"), disk(&world.device, 1 << 16));
    let busy = world.host_with(|options| options.depth = 1000);
    let other = world.host();
    flood(&busy, disk, 1000);
    let queue = &other.queues()[0];
    let (records, blocks) = (KeyValue::new(queue, records), Blocks::new(&other, queue, disk).unwrap());
    for round in 0..10u8 {
        records.store(&key(&[round]), &vec![round; VALUE_BYTES], 0).unwrap();
        assert_eq!(records.list(None, 4096).unwrap().len(), usize::from(round) + 1);
        blocks.compare(u64::from(round), &[0; 4096]).unwrap();
    }
    assert!(answered(&busy) < 100, "each of the other host's waits for one piece");
}

/// Goal:   commands of a host that has left are not executed if no worker has begun them: they may have been done since by another way, and is not
///         to be overwritten. Others can connect meanwhile; so can that host.
/// Method: both workers are held up by reads of an index; a host's store of a long value comes after them, and the host leaves. Another
///         one connects, and stores another value under the key; then the workers continue.
#[test]
fn what_nobody_has_begun_goes_with_its_host() {
    let (held, medium) = Held::new();
    let world = World::serving(Device::on_medium(medium).unwrap(), |_| {});
    let (records, idle) = (world.namespace("records"), world.namespace("idle"));
    world.device.put(idle, key(b"one"), b"value").unwrap();
    assert!(world.device.unload_namespace(idle).unwrap());
    let (slow, lost) = (world.host(), world.host());
    held.hold(true);
    let waits = [0, 1].map(|_| {
        let retrieve = KeyValue::new(&slow.queues()[0], idle).retrieving(&key(b"one"), 10);
        slow.queues()[0].submit(retrieve, &[], 10).unwrap()
    });
    while held.waiting.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let store = KeyValue::new(&lost.queues()[0], records).storing(&key(b"key"), VALUE_BYTES, 0);
    let _ = lost.queues()[0].submit(store, &[1; VALUE_BYTES], 0).unwrap();
    // The first completes after the request for the value, the second is sent after the value.
    for _ in 0..2 {
        assert!(!KeyValue::new(&lost.queues()[0], records).exist(&key(b"key")).unwrap());
    }
    drop(lost);
    let (say, said) = channel();
    std::thread::scope(|scope| {
        let world = &world;
        scope.spawn(move || {
            let options = HostOptions { keep_alive: Duration::ZERO, ..HostOptions::default() };
            let host = Controller::connect(&world.address, &world.subsystem, &options).unwrap();
            KeyValue::new(&host.queues()[0], records).store(&key(b"key"), b"newer", 0).unwrap();
            say.send(()).unwrap();
        });
        let is_in_time = said.recv_timeout(Duration::from_secs(20)).is_ok();
        held.hold(false);
        assert!(is_in_time, "somebody else connects and stores while the workers are held up");
    });
    for wait in waits {
        assert_eq!(slow.queues()[0].wait(wait).unwrap().status, Status::SUCCESS);
    }
    // A worker's job, which would come after the lost host's.
    KeyValue::new(&slow.queues()[0], records).store(&key(b"other"), &[2; VALUE_BYTES], 0).unwrap();
    assert_eq!(*world.device.get(records, key(b"key")).unwrap().unwrap(), *b"newer");
}

/// Goal:   hosts whose data come in capsules, for which nobody asks before they are sent, keep nobody waiting for memory without end.
/// Method: a target with 4 MiB, and four queues that always have a thousand compares of 8 KiB in progress; a third host's verifications
///         slow them down. Another host needs 3 MiB.
#[test]
fn data_in_capsules_take_turns() {
    let world = World::with(|options| options.memory_bytes = 4 << 20);
    let (records, disk) = (world.namespace("records"), disk(&world.device, 1 << 14));
    (0..1 << 14).step_by(64).for_each(|at| world.device.block_write(disk, at, &[5; 64 * 4096]).unwrap());
    world.device.put(records, key(b"key"), b"value").unwrap();
    let busy = world.host_with(|options| (options.queues, options.depth) = (4, 1000));
    let (slowing, other) = (world.host_with(|options| options.depth = 1000), world.host());
    let mut verify = Command::new(nvm::VERIFY, disk);
    verify.cdw12 = 0x3fff.into();
    for _ in 0..900 {
        let _ = slowing.queues()[0].enqueue(verify, &[], 0).unwrap().unwrap();
    }
    slowing.queues()[0].send().unwrap();
    let mut compare = Command::new(nvm::COMPARE, disk);
    compare.cdw12 = 1.into();
    let (is_over, compared) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for queue in busy.queues() {
            let (is_over, compared) = (&is_over, &compared);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    while queue.enqueue(compare, &[5; 8192], 0).unwrap().is_some() {}
                    queue.send().unwrap();
                    let mut answers = Vec::new();
                    queue.poll(Wait::Yes, &mut answers).unwrap();
                    assert!(answers.iter().all(|(_, answer)| answer.status == Status::SUCCESS));
                    compared.fetch_add(answers.len(), Ordering::SeqCst);
                }
            });
        }
        std::thread::sleep(Duration::from_secs(1));
        let before = compared.load(Ordering::SeqCst);
        let (say, said) = channel();
        let other = &other;
        scope.spawn(move || {
            let space = KeyValue::new(&other.queues()[0], records);
            let _ = say.send(space.retrieve(&key(b"key"), 3 << 20).unwrap());
        });
        let found = said.recv_timeout(Duration::from_secs(10));
        let meanwhile = compared.load(Ordering::SeqCst) - before;
        is_over.store(true, Ordering::SeqCst);
        assert!(found.is_ok(), "nothing in 10 s, in which there were {meanwhile} compares");
    });
}

/// Goal:   trims of large ranges, one after another and many at once, keep nobody waiting.
/// Method: a disk of 64 GiB with a block here and there; one host trims all of it many times over, in ranges that overlap and in many
///         commands; another one's commands complete while most of the trims are not. At the end all is zeroes.
#[test]
fn trims_take_turns() {
    const BLOCKS: u64 = 64 << 18;
    let world = World::new();
    let (records, disk) = (world.namespace("records"), disk(&world.device, BLOCKS));
    let touched = || (0..BLOCKS).step_by(10_000);
    touched().for_each(|block| world.device.block_write(disk, block, &[1; 4096]).unwrap());
    let busy = world.host_with(|options| options.depth = 200);
    let other = world.host();
    let records = KeyValue::new(&other.queues()[0], records);
    let data = ranges(&(0..256).map(|from| from..BLOCKS).collect::<Vec<_>>());
    for _ in 0..200 {
        let _ = busy.queues()[0].enqueue(trim(disk, 255), &data, 0).unwrap().unwrap();
    }
    busy.queues()[0].send().unwrap();
    for round in 0..10u8 {
        records.store(&key(&[round]), &[round], 0).unwrap();
        assert_eq!(records.retrieve(&key(&[round]), 1).unwrap().unwrap().0, [round]);
    }
    let mut heard = answered(&busy);
    assert!(heard < 100, "{heard} trims completed before");
    while heard < 200 {
        let mut answers = Vec::new();
        busy.queues()[0].poll(Wait::Yes, &mut answers).unwrap();
        assert!(answers.iter().all(|(_, answer)| answer.status == Status::SUCCESS));
        heard += answers.len();
    }
    let mut block = [1; 4096];
    for at in touched() {
        world.device.block_read(disk, at, &mut block).unwrap();
        assert!(block == [0; 4096], "block {at}");
    }
}

/// Goal:   a store during a trim completes, however far the trim is when it comes.
/// Method: one host with a trim of a large disk, of which only the first block holds anything, and a store after this many microseconds;
///         nobody else commits anything.
#[test]
fn stores_beside_trims_are_answered() {
    const BLOCKS: u64 = 64 << 18;
    let world = World::new();
    let (records, disk) = (world.namespace("records"), disk(&world.device, BLOCKS));
    (0..BLOCKS).step_by(10_000).for_each(|block| world.device.block_write(disk, block, &[1; 4096]).unwrap());
    let host = world.host();
    let queue = &host.queues()[0];
    let records = KeyValue::new(queue, records);
    for round in 0..60u64 {
        world.device.block_write(disk, 0, &[1; 4096]).unwrap();
        let begin = Instant::now();
        let _ = queue.enqueue(trim(disk, 0), &ranges(from_ref(&(0..BLOCKS))), 0).unwrap().unwrap();
        queue.send().unwrap();
        std::thread::sleep(Duration::from_micros(round * 97 % 5000));
        let _ = queue.enqueue(records.storing(&key(&[1]), 1, 0), &[1], 0).unwrap().unwrap();
        queue.send().unwrap();
        let mut heard = 0;
        while heard < 2 {
            heard += answered(&host);
            if begin.elapsed().as_secs() >= 20 {
                std::mem::forget(world); // which would wait forever, too
                panic!("round {round}: {heard} of 2 have completed");
            }
        }
    }
}

/// Goal:   trims of hosts that have gone keep nobody waiting.
/// Method: hosts send a thousand trims of a large disk each, and go; another one connects.
#[test]
fn trims_go_with_their_host() {
    const BLOCKS: u64 = 64 << 18;
    let world = World::new();
    let large = disk(&world.device, BLOCKS);
    (0..BLOCKS).step_by(10_000).for_each(|block| world.device.block_write(large, block, &[1; 4096]).unwrap());
    let hosts: Vec<Controller> = (0..4).map(|_| world.host_with(|options| options.depth = 1000)).collect();
    for host in &hosts {
        for _ in 0..999 {
            let _ = host.queues()[0].enqueue(trim(large, 0), &ranges(from_ref(&(0..BLOCKS))), 0).unwrap().unwrap();
        }
        host.queues()[0].send().unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    drop(hosts);
    let begin = Instant::now();
    drop(world.host());
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(5), "another host waited {took:?} for its connection");
}

/// Goal:   the remaining pieces of a job are not done after its host has left.
/// Method: a host leaves while the first piece of a long verification is being read, which is held up; how much is read afterwards.
#[test]
fn rests_of_jobs_go_with_their_host() {
    let (held, medium) = Held::new();
    let world = World::serving(Device::on_medium(medium).unwrap(), |_| {});
    let disk = disk(&world.device, 1 << 12);
    (0..1 << 12).step_by(64).for_each(|at| world.device.block_write(disk, at, &[5; 64 * 4096]).unwrap());
    let other = world.host();
    held.hold(true);
    let mut verify = Command::new(nvm::VERIFY, disk);
    verify.cdw12 = 0xfff.into();
    let _ = other.queues()[0].enqueue(verify, &[], 0).unwrap().unwrap();
    other.queues()[0].send().unwrap();
    while held.waiting.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(other);
    // A caller that connects does so after the one that has gone.
    drop(world.host());
    std::thread::sleep(Duration::from_millis(200));
    let before = world.device.stats().read_bytes;
    held.hold(false);
    std::thread::sleep(Duration::from_millis(500));
    let read = world.device.stats().read_bytes - before;
    assert!(read <= 2 << 20, "{read} bytes of 16 MiB were read for nobody");
}

/// A namespace that keeps versions: one of a key of its own, a snapshot of that, and so many of the same key that they fill pages.
fn past(device: &Device, count: u64, value_bytes: usize) -> NamespaceId {
    let versions = VersionOptions { buffer_bytes: 1 << 20, ..VersionOptions::default() };
    let past = device.create_namespace("past", &versions.into()).unwrap();
    device.put(past, key(b"hot"), b"first").unwrap();
    device.snapshot(past).unwrap();
    for number in 0..count {
        device.put(past, key(b"hot"), &vec![number as u8; value_bytes]).unwrap();
    }
    past
}

/// What a host has no end of waiting for.
#[derive(Clone, Copy, Debug)]
enum Long {
    Diff,
    History,
    OldVersion,
    Merge { dry_run: bool },
}

const LONG: [Long; 5] =
    [Long::Diff, Long::History, Long::OldVersion, Long::Merge { dry_run: false }, Long::Merge { dry_run: true }];

impl Long {
    /// Lets a host request it.
    fn begin(self, host: &Controller, past: NamespaceId) {
        const ROOM: usize = 4 << 20;
        let of_key = KeyValue::new(&host.queues()[0], past).retrieving(&key(b"hot"), ROOM);
        let mut command = Command { cdw10: (ROOM as u32).into(), ..Command::new(kv::DIFF, past) };
        match self {
            Long::Diff => put_diff(&mut command, Some(1), None, 0),
            Long::History => command = Command { opcode: kv::HISTORY, ..of_key },
            Long::OldVersion => {
                command = Command { opcode: kv::RETRIEVE_VERSION, ..of_key };
                put_at(&mut command, At::Back(7_000));
            }
            Long::Merge { dry_run } => {
                command.opcode = kv::MERGE;
                put_merge(&mut command, &Retention { keep_last: 1, ..Retention::default() }, dry_run);
            }
        }
        let _ = host.queues()[0].submit(command, &[], ROOM).unwrap();
    }
}

/// Goal:   what reads long chains of versions keeps nobody else waiting for more than a piece of it.
/// Method: a host sends as many commands as there are workers, each of which reads many versions; another one's stores, which take
///         a worker, complete before any of that is.
#[test]
fn versions_take_turns() {
    let world = World::new();
    let (records, past) = (world.namespace("records"), past(&world.device, 20_000, 8));
    let other = world.host();
    let records = KeyValue::new(&other.queues()[0], records);
    for long in [Long::Diff, Long::History, Long::OldVersion] {
        let busy = world.host();
        (0..2).for_each(|_| long.begin(&busy, past));
        std::thread::sleep(Duration::from_millis(20));
        for round in 0..5u8 {
            records.store(&key(&[round]), &vec![round; VALUE_BYTES], 0).unwrap();
        }
        assert_eq!(answered(&busy), 0, "{long:?}: a store waits for one piece of it");
    }
}

/// Goal:   what a host that has gone, or has reset its controller, needed to know of versions, or asked to merge, is given up.
/// Method: a host leaves, or resets, while the first read is held up; how much is read afterwards, and whether a version has gone.
#[test]
fn long_commands_on_versions_go_with_their_host() {
    for (long, resets) in LONG.into_iter().flat_map(|long| [(long, false), (long, true)]) {
        let (held, medium) = Held::new();
        let world = World::serving(Device::on_medium(medium).unwrap(), |_| {});
        let past = past(&world.device, 8_000, 1000);
        let count = || world.device.version_stats(past).unwrap().version_count;
        let host = world.host();
        let before = count();
        held.hold(true);
        long.begin(&host, past);
        while held.waiting.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        if resets {
            let reset = Property::command(kind::PROPERTY_SET, register::CC, false, 0x0046_0060);
            host.admin().execute(reset, &[], 0).unwrap();
        } else {
            drop(host);
        }
        drop(world.host());
        std::thread::sleep(Duration::from_millis(200));
        let read_before = world.device.stats().read_bytes;
        held.hold(false);
        std::thread::sleep(Duration::from_millis(500));
        let read = world.device.stats().read_bytes - read_before;
        assert!(read <= 2 << 20, "{long:?}, reset {resets}: {read} bytes of 8 MB were read for nobody");
        assert_eq!(count(), before, "{long:?}, reset {resets}");
    }
}

/// Goal:   a target that is stopped does not wait for the end of what takes long.
/// Method: stop it while the first read is held up until it has completed what it could; how much is read afterwards.
#[test]
fn stopping_waits_for_nothing_long() {
    for long in LONG {
        let (held, medium) = Held::new();
        let world = World::serving(Device::on_medium(medium).unwrap(), |_| {});
        let past = past(&world.device, 8_000, 1000);
        let (device, host) = (world.device.clone(), world.host());
        held.hold(true);
        long.begin(&host, past);
        while held.waiting.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let stopping = std::thread::spawn(move || drop(world));
        std::thread::sleep(Duration::from_millis(2500));
        let before = device.stats().read_bytes;
        held.hold(false);
        stopping.join().unwrap();
        let read = device.stats().read_bytes - before;
        assert!(read <= 2 << 20, "{long:?}: {read} bytes of 8 MB were read for nobody");
        assert!(device.version_stats(past).unwrap().version_count >= 8_001, "{long:?}");
    }
}

/// Goal:   a host that the target itself keeps from connecting is not closed for having connected too late.
/// Method: a store that a worker has begun is held up, and its host leaves; another host's Connect comes, and the worker continues after
///         more time than a connection has for that.
#[test]
fn who_is_put_off_may_come_late() {
    let (held, medium) = Held::new();
    let world = World::serving(Device::on_medium(medium).unwrap(), |_| {});
    let idle = world.namespace("idle");
    world.device.put(idle, key(b"one"), b"value").unwrap();
    assert!(world.device.unload_namespace(idle).unwrap());
    let lost = world.host();
    held.hold(true);
    let store = KeyValue::new(&lost.queues()[0], idle).storing(&key(b"key"), 5, 0);
    let _ = lost.queues()[0].submit(store, b"value", 0).unwrap();
    while held.waiting.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(lost);
    std::thread::sleep(Duration::from_millis(300));
    let mut socket = world.raw();
    socket.write_all(&bytes(&[(init(), vec![]), connect_queue(&world.subsystem, 0, CNTLID_DYNAMIC)])).unwrap();
    std::thread::sleep(Duration::from_millis(11_500));
    held.hold(false);
    let mut answers = [0; 128 + 24];
    socket.read_exact(&mut answers).expect("it is still open");
    assert_eq!(answers[128 + 22..], [0, 0], "it is connected");
}

/// Goal:   trims take the memory of their ranges and no more, while they wait.
/// Method: 900 commands of 256 ranges with gaps, each range more than one step: the process takes less than 16 KiB more for each. In a
///         process of its own, whose memory other tests do not use.
#[test]
fn waiting_trims_take_little_memory() {
    run_alone("turns::waiting_trims");
}

#[test]
#[ignore = "waiting_trims_take_little_memory runs it in a process of its own"]
fn waiting_trims() {
    const BLOCKS: u64 = 64 << 18;
    let world = World::new();
    let (records, disk) = (world.namespace("records"), disk(&world.device, BLOCKS));
    (0..BLOCKS).step_by(10_000).for_each(|block| world.device.block_write(disk, block, &[1; 4096]).unwrap());
    let busy = world.host_with(|options| options.depth = 1000);
    let data = ranges(&(0..256).map(|i| i * 65_000..i * 65_000 + 60_000).collect::<Vec<_>>());
    let before = peak_bytes();
    for _ in 0..900 {
        let _ = busy.queues()[0].enqueue(trim(disk, 255), &data, 0).unwrap().unwrap();
    }
    busy.queues()[0].send().unwrap();
    // Completed after all of them, and so when they exist.
    assert!(!KeyValue::new(&busy.queues()[0], records).exist(&key(b"key")).unwrap());
    let grown = peak_bytes() - before;
    assert!(grown < 900 * (16 << 10), "{} KiB more", grown >> 10);
    assert!(answered(&busy) < 800, "most of them wait");
}
