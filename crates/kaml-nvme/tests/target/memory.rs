//! What hosts can make a target take of memory.

use crate::hostile::{self, bytes, connect_queue, connect_queue_of, init};
use crate::world::{World, key, run_alone};
use kaml::{BlockOptions, CreateOptions, Device, NamespaceId, NamespaceOptions, VersionOptions};
use kaml_nvme::host::{KeyValue, Wait};
use kaml_nvme::target::{Access, Offline, Options};
use kaml_nvme::wire::command::{Command, Sgl, admin, kv, nvm};
use kaml_nvme::wire::fabrics::{CNTLID_DYNAMIC, DISCOVERY_NQN, Property, kind, register};
use kaml_nvme::wire::manage::{PutAction, encode_put};
use kaml_nvme::wire::pdu::{Header, Transfer, kind as pdu};
use kaml_nvme::wire::status::Status;
use kaml_testkit::Held;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zerocopy::FromZeros;

/// The most memory that this process has had so far.
pub(crate) fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

/// Goal:   the memory of a target bounds what reads have in progress whose hosts have room for less than the value.
/// Method: 1024 Retrieves of 4 MiB into nothing, and into 4 KiB, over eight queues, then lists of 64 such keys and versions: with
///         memory for 16 MiB the process takes no more than 96 MiB more, where the values of one round of the target's loop are
///         twice as long. In a process of its own, whose memory other tests do not use.
#[test]
fn reads_into_short_buffers_are_bounded() {
    run_alone("memory::short_buffers");
}

#[test]
#[ignore = "reads_into_short_buffers_are_bounded runs it in a process of its own"]
fn short_buffers() {
    const VALUE: usize = 4 << 20;
    let options = CreateOptions { block_bytes: Some(8 << 20), ..CreateOptions::new(512 << 20) };
    let world = World::serving(Device::in_memory(&options).unwrap(), |options| options.memory_bytes = 16 << 20);
    let nsid = world.namespace("a");
    let versions = NamespaceOptions::from(VersionOptions::default());
    let past = world.device.create_namespace("past", &versions).unwrap();
    let value: Vec<u8> = (0..VALUE).map(|at| (at / 4096) as u8).collect();
    world.device.put(nsid, key(b"k"), &value).unwrap();
    world.device.put(past, key(b"k"), &value[..100_000]).unwrap();
    let host = world.host_with(|options| (options.queues, options.depth) = (8, 128));
    let before = peak_bytes();
    for room in [0, 4096] {
        for queue in host.queues() {
            let space = KeyValue::new(queue, nsid);
            while queue.enqueue(space.retrieving(&key(b"k"), room), &[], room).unwrap().is_some() {}
            queue.send().unwrap();
        }
        for queue in host.queues() {
            let mut answers = Vec::new();
            while answers.len() < 128 {
                queue.poll(Wait::Yes, &mut answers).unwrap();
            }
            for (_, answer) in answers {
                assert_eq!(answer.result, VALUE as u64);
                assert!(answer.data == value[..room]);
            }
        }
    }
    let grown = peak_bytes() - before;
    assert!(grown < 96 << 20, "{} MiB more", grown >> 20);
    std::thread::scope(|scope| {
        for queue in host.queues() {
            scope.spawn(|| {
                let space = KeyValue::new(queue, nsid);
                let list = space.name_keys(&[(nsid, key(b"k")); 64]).unwrap();
                for room in [4096, VALUE + 12] {
                    let found = space.retrieve_named(list, 0, room).unwrap();
                    assert_eq!((found.len(), found[0].value_bytes), (1, VALUE));
                    assert!(found[0].value.as_ref().is_none_or(|found| *found == value));
                }
                let found = KeyValue::new(queue, past).retrieve(&key(b"k"), 4).unwrap().unwrap();
                assert_eq!(found, (vec![0; 4], 100_000));
            });
        }
    });
    let grown = peak_bytes() - before;
    assert!(grown < 192 << 20, "{} MiB more, the host's own buffers of 64 MiB included", grown >> 20);
}

/// A device with a namespace whose index is not in memory, all reads of which are held up.
fn held_up() -> (Arc<Held>, Device, NamespaceId) {
    let (held, medium) = Held::new();
    let device = Device::on_medium(medium).unwrap();
    let nsid = device.create_namespace("a", &NamespaceOptions::default()).unwrap();
    device.put(nsid, key(b"one"), b"value").unwrap();
    assert!(device.unload_namespace(nsid).unwrap());
    held.hold(true);
    (held, device, nsid)
}

/// Goal:   commands of a host that has left count in the target's memory until they end, so leaving repeatedly gains no memory.
///         What nobody has begun is over at once.
/// Method: a target without sockets; two of many values are on their way to the device, held up, when their host leaves.
#[test]
fn commands_of_the_gone_count_until_they_are_over() {
    const VALUE: u32 = 256 << 10;
    let (held, device, nsid) = held_up();
    let mut target = Offline::new(&device, Options::for_device(&device)).unwrap();
    let subsystem = target.subsystem().to_owned();
    let (admin, queue) = (target.connect(), target.connect());
    let enable = Property::command(kind::PROPERTY_SET, register::CC, false, 0x0046_0061);
    let connect = connect_queue(&subsystem, 0, CNTLID_DYNAMIC);
    target.receive(admin, &bytes(&[(init(), vec![]), connect, (Header::Command(enable), vec![])]));
    let cntlid = u16::from_le_bytes(target.take_sent(admin)[136..138].try_into().unwrap());
    target.receive(queue, &bytes(&[(init(), vec![]), connect_queue(&subsystem, 1, cntlid)]));
    let stores: Vec<_> = (0..16u8)
        .map(|number| {
            let mut store = Command::new(kv::STORE, nsid);
            (store.sgl, store.cdw2) = (Sgl::transport(VALUE), u32::from(number).into());
            (store.cdw10, store.cdw11) = (VALUE.into(), 1.into());
            (Header::Command(store), vec![])
        })
        .collect();
    target.receive(queue, &bytes(&stores));
    for tag in 0..16u16 {
        let transfer = Transfer { tag: tag.into(), length: VALUE.into(), ..Transfer::new_zeroed() };
        target.receive(queue, &bytes(&[(Header::DataIn(transfer, true), vec![1; VALUE as usize])]));
    }
    let under_way = target.used_bytes();
    assert!(under_way >= 16 * VALUE as usize, "they wait for workers: {under_way}");
    // One or both workers have begun one; the others are not begun.
    while held.waiting.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    target.disconnect(queue);
    target.disconnect(admin);
    target.pass_time(0);
    let left = target.used_bytes();
    held.hold(false);
    let begun = left / VALUE as usize;
    assert!((1..=2).contains(&begun) && left == begun * VALUE as usize, "{left}");
    target.settle();
    assert_eq!(target.used_bytes(), 0);
    for number in 0..16u8 {
        let is_there = device.exists(nsid, key(&[number])).unwrap();
        assert_eq!(is_there, usize::from(number) < begun, "{number}: those begun are executed");
    }
}

/// The admin queue of a controller that was enabled, and its number.
fn enabled(world: &World) -> (TcpStream, u16) {
    let mut admin = world.raw();
    let enable = Property::command(kind::PROPERTY_SET, register::CC, false, 0x0046_0061);
    let connect = connect_queue(&world.subsystem, 0, CNTLID_DYNAMIC);
    admin.write_all(&bytes(&[(init(), vec![]), connect, (Header::Command(enable), vec![])])).unwrap();
    let mut answers = [0; 128 + 2 * 24];
    admin.read_exact(&mut answers).unwrap();
    let cntlid = u16::from_le_bytes([answers[136], answers[137]]);
    (admin, cntlid)
}

/// Reads answers without data; statuses of this many.
fn statuses(socket: &mut TcpStream, count: usize) -> Vec<u16> {
    let mut answers = vec![0; 24 * count];
    socket.read_exact(&mut answers).unwrap();
    answers.chunks(24).map(|answer| u16::from_le_bytes([answer[22], answer[23]])).collect()
}

/// Goal:   data in capsules, which hosts send without a request, count in the memory of a target: while that is in use,
///         the target does not listen to their hosts.
#[test]
fn data_in_capsules_are_bounded() {
    run_alone("memory::capsules");
}

/// Method: four queues send stores of 8 KiB, 32 MiB together, to a target with 4 MiB; they wait for an index that is not in memory,
///         whose reads are held up. The process takes no more than 16 MiB. Once reads continue, each store completes.
#[test]
#[ignore = "data_in_capsules_are_bounded runs it in a process of its own"]
fn capsules() {
    const VALUE: usize = 8192;
    const STORES: usize = 1023;
    let (held, device, nsid) = held_up();
    let world = World::serving(device, |options| options.memory_bytes = 4 << 20);
    let (_admin, cntlid) = enabled(&world);
    let before = peak_bytes();
    std::thread::scope(|scope| {
        let hosts: Vec<_> = (1..=4)
            .map(|queue| {
                let mut socket = world.raw();
                let connect = connect_queue_of(&world.subsystem, queue, cntlid, STORES as u16 + 1);
                socket.write_all(&bytes(&[(init(), vec![]), connect])).unwrap();
                socket.read_exact(&mut [0; 128]).unwrap();
                assert_eq!(statuses(&mut socket, 1), [0]);
                let mut sender = socket.try_clone().unwrap();
                scope.spawn(move || {
                    for number in 0..STORES {
                        let mut store = Command::new(kv::STORE, nsid);
                        (store.cid, store.sgl) = ((number as u16).into(), Sgl::in_capsule(VALUE as u32));
                        (store.cdw2, store.cdw10, store.cdw11) =
                            ((number as u32 % 16).into(), (VALUE as u32).into(), 1.into());
                        sender.write_all(&bytes(&[(Header::Command(store), vec![number as u8; VALUE])])).unwrap();
                    }
                });
                socket
            })
            .collect();
        while held.waiting.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_secs(1));
        let (grown, idle) = (peak_bytes() - before, world.processor_time());
        std::thread::sleep(Duration::from_secs(1));
        assert!(world.processor_time() - idle < Duration::from_millis(200), "nobody listens, and nobody looks");
        held.hold(false);
        assert!(grown < 16 << 20, "{} KiB more", grown >> 10);
        assert!(grown > 4 << 20, "the test has filled the memory: {} KiB", grown >> 10);
        for mut socket in hosts {
            assert_eq!(statuses(&mut socket, STORES), vec![0; STORES]);
        }
    });
}

/// Goal:   a host that leaves while the target does not listen to it is noticed, and what it requested is given up.
/// Method: a target with 1 MiB; a queue of a host has more than that in compares in progress, whose reads are held up, when it closes its
///         connection. While they are held up the host can have the queue again.
#[test]
fn who_goes_unheard_is_noticed() {
    const COMPARES: u16 = 160;
    let (held, medium) = Held::new();
    let device = Device::on_medium(medium).unwrap();
    let disk = device.create_namespace("disk", &BlockOptions::new(4096, 1 << 12).into()).unwrap();
    (0..1 << 12).step_by(64).for_each(|at| device.block_write(disk, at, &[5; 64 * 4096]).unwrap());
    let world = World::serving(device, |options| options.memory_bytes = 1 << 20);
    let (_admin, cntlid) = enabled(&world);
    let join = || {
        let mut socket = world.raw();
        let connect = connect_queue_of(&world.subsystem, 1, cntlid, COMPARES + 1);
        socket.write_all(&bytes(&[(init(), vec![]), connect])).unwrap();
        socket.read_exact(&mut [0; 128]).unwrap();
        let status = statuses(&mut socket, 1)[0];
        (socket, status)
    };
    let (mut socket, status) = join();
    assert_eq!(status, 0);
    held.hold(true);
    for number in 0..COMPARES {
        let mut compare = Command::new(nvm::COMPARE, disk);
        (compare.cid, compare.sgl, compare.cdw12) = (number.into(), Sgl::in_capsule(8192), 1.into());
        socket.write_all(&bytes(&[(Header::Command(compare), vec![5; 8192])])).unwrap();
    }
    std::thread::sleep(Duration::from_millis(300));
    drop(socket);
    std::thread::sleep(Duration::from_millis(300));
    let (idle, begin) = (world.processor_time(), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let (busy, took) = (world.processor_time() - idle, begin.elapsed());
    let (_socket, status) = join();
    held.hold(false);
    assert_eq!(status, 0, "the queue is free");
    assert!(busy < took / 5, "nobody looks: {busy:?}");
}

/// Goal:   a host that nobody listens to does not lose its controller by being silent: any command would keep it alive, but none is heard.
/// Method: a target with 1 MiB, and a keep-alive time-out of one second; a queue has more than that in compares in progress, whose reads
///         are held up for three and a half. Then each completes.
#[test]
fn who_is_not_listened_to_is_not_silent() {
    const COMPARES: u16 = 160;
    let (held, medium) = Held::new();
    let device = Device::on_medium(medium).unwrap();
    let disk = device.create_namespace("disk", &BlockOptions::new(4096, 1 << 12).into()).unwrap();
    (0..1 << 12).step_by(64).for_each(|at| device.block_write(disk, at, &[5; 64 * 4096]).unwrap());
    let world = World::serving(device, |options| options.memory_bytes = 1 << 20);
    let (mut admin, cntlid) = enabled(&world);
    let mut keep_alive = Command::new(admin::SET_FEATURES, 0);
    (keep_alive.cdw10, keep_alive.cdw11) = (0x0f.into(), 1000.into());
    admin.write_all(&bytes(&[(Header::Command(keep_alive), vec![])])).unwrap();
    assert_eq!(statuses(&mut admin, 1), [0]);
    let mut socket = world.raw();
    socket.write_all(&bytes(&[(init(), vec![]), connect_queue_of(&world.subsystem, 1, cntlid, COMPARES + 1)])).unwrap();
    socket.read_exact(&mut [0; 128]).unwrap();
    assert_eq!(statuses(&mut socket, 1), [0]);
    held.hold(true);
    for number in 0..COMPARES {
        let mut compare = Command::new(nvm::COMPARE, disk);
        (compare.cid, compare.sgl, compare.cdw12) = (number.into(), Sgl::in_capsule(8192), 1.into());
        socket.write_all(&bytes(&[(Header::Command(compare), vec![5; 8192])])).unwrap();
    }
    std::thread::sleep(Duration::from_millis(3500));
    held.hold(false);
    let mut answers = vec![0; 24 * usize::from(COMPARES)];
    socket.read_exact(&mut answers).expect("it is still connected");
    assert!(answers.chunks(24).all(|answer| answer[22..] == [0, 0]));
}

/// A controller and an I/O queue of a target without sockets.
fn connected(target: &mut Offline) -> (u64, u64) {
    let subsystem = target.subsystem().to_owned();
    let (admin, queue) = (target.connect(), target.connect());
    let enable = Property::command(kind::PROPERTY_SET, register::CC, false, 0x0046_0061);
    let connect = connect_queue(&subsystem, 0, CNTLID_DYNAMIC);
    target.receive(admin, &bytes(&[(init(), vec![]), connect, (Header::Command(enable), vec![])]));
    let cntlid = u16::from_le_bytes(target.take_sent(admin)[136..138].try_into().unwrap());
    target.receive(queue, &bytes(&[(init(), vec![]), connect_queue(&subsystem, 1, cntlid)]));
    target.take_sent(queue);
    (admin, queue)
}

/// Goal:   of data in a capsule all count, as all are kept, however little of them the command names.
/// Method: a target without sockets; stores of the first byte of 8 KiB, which come in two pieces, wait for an index whose reads are held
///         up.
#[test]
fn unnamed_data_in_capsules_count() {
    const STORES: usize = 16;
    let (held, medium) = Held::new();
    let device = Device::on_medium(medium).unwrap();
    let nsid = device.create_namespace("a", &NamespaceOptions::default()).unwrap();
    device.put(nsid, key(b"one"), b"value").unwrap();
    assert!(device.unload_namespace(nsid).unwrap());
    held.hold(true);
    let mut target = Offline::new(&device, Options::for_device(&device)).unwrap();
    let (_, queue) = connected(&mut target);
    for number in 0..STORES as u16 {
        let mut store = Command::new(kv::STORE, nsid);
        (store.cid, store.sgl, store.cdw2) = (number.into(), Sgl::in_capsule(1), u32::from(number).into());
        (store.cdw10, store.cdw11) = (1.into(), 1.into());
        let capsule = bytes(&[(Header::Command(store), vec![7; 8192])]);
        let (head, rest) = capsule.split_at(100);
        target.receive(queue, head);
        target.receive(queue, rest);
    }
    let used = target.used_bytes();
    held.hold(false);
    assert!(used >= STORES * 8192, "{used} bytes count");
    target.settle();
    target.take_sent(queue);
    assert_eq!(target.used_bytes(), 0);
    assert_eq!(*device.get(nsid, key(&[3])).unwrap().unwrap(), [7]);
}

/// Goal:   Puts of many short records take about the memory of their data while they wait, and such as no device takes are refused
///         before anybody reads them.
#[test]
fn puts_of_many_records_are_bounded() {
    run_alone("memory::many_records");
}

/// Method: a target without sockets, whose reads are held up; thirty Puts of as many deletes as the device takes wait for an index that
///         is not in memory. The process takes no more than twice their data, where their records take more than four times as much.
///         One with more deletes is refused for that, not for its namespaces.
#[test]
#[ignore = "puts_of_many_records_are_bounded runs it in a process of its own"]
fn many_records() {
    const PUTS: usize = 30;
    let (held, device, nsid) = held_up();
    let mut target = Offline::new(&device, Options::for_device(&device)).unwrap();
    let (_, queue) = connected(&mut target);
    let count = device.info().batch_bytes_max as u32 / 40 - 1;
    let mut records = Vec::new();
    let mut head = Vec::new();
    (0..count)
        .for_each(|number| encode_put(&mut records, nsid, &kaml::Key::from(u64::from(number)), PutAction::Delete));
    let put = |target: &mut Offline, cid: usize, count: u32, records: &[u8]| {
        let mut put = Command::new(kv::PUT, nsid);
        (put.cid, put.sgl) = ((cid as u16).into(), Sgl::transport(records.len() as u32));
        put.cdw10 = count.into();
        target.receive(queue, &bytes(&[(Header::Command(put), vec![])]));
        let asked = told(&target.take_sent(queue));
        assert_eq!(asked, [(pdu::R2T, cid as u16)]);
        let transfer =
            Transfer { cid: (cid as u16).into(), length: (records.len() as u32).into(), ..Transfer::new_zeroed() };
        target.receive(queue, &bytes(&[(Header::DataIn(transfer, true), records.to_vec())]));
    };
    let before = peak_bytes();
    (0..PUTS).for_each(|cid| put(&mut target, cid, count, &records));
    let (grown, data) = (peak_bytes() - before, (PUTS * records.len()) as u64);
    encode_put(&mut head, 77, &key(b"k"), PutAction::Delete);
    head.extend(&records);
    head.extend(&records);
    put(&mut target, PUTS, 1 + 2 * count, &head);
    let sent = target.take_sent(queue);
    held.hold(false);
    let status = Status::from_field(u16::from_le_bytes([sent[22], sent[23]]));
    assert!(grown < 2 * data, "{} KiB more, for {} KiB of data", grown >> 10, data >> 10);
    assert_eq!(status, Status::INVALID_FIELD);
    target.settle();
    assert_eq!(target.used_bytes(), target.take_sent(queue).len());
    assert_eq!(target.used_bytes(), 0);
}

/// Goal:   dropped lists of keys take no memory, even while commands wait for the values of their keys.
/// Method: two workers are held up; after them wait a thousand commands, each for a list of its own, of which 64 at most exist at a
///         time. The process takes no more than 32 MiB, where a thousand lists are 96. In a process of its own, whose memory other tests
///         do not use.
#[test]
fn lists_that_went_take_no_memory() {
    run_alone("memory::lists");
}

#[test]
#[ignore = "lists_that_went_take_no_memory runs it in a process of its own"]
fn lists() {
    const LISTS: usize = 1000;
    let (held, medium) = Held::new();
    let world = World::serving(Device::on_medium(medium).unwrap(), |_| {});
    let (nsid, cold) = (world.namespace("a"), world.namespace("cold"));
    world.device.put(cold, key(b"one"), b"value").unwrap();
    assert!(world.device.unload_namespace(cold).unwrap());
    let host = world.host_with(|options| options.depth = 1023);
    let queue = &host.queues()[0];
    let space = KeyValue::new(queue, nsid);
    let keys = vec![(nsid, key(b"0123456789abcdef")); 4096];
    held.hold(true);
    let mut exist = Command::new(kv::EXIST, cold);
    (exist.cdw2, exist.cdw11) = (1.into(), 1.into());
    for _ in 0..2 {
        let _ = queue.enqueue(exist, &[], 0).unwrap().unwrap();
    }
    queue.send().unwrap();
    let before = peak_bytes();
    for _ in 0..LISTS {
        let list = space.name_keys(&keys).unwrap();
        let mut exist = Command::new(kv::EXIST_NAMED, nsid);
        (exist.cdw10, exist.cdw11) = (1.into(), list.into());
        let _ = queue.enqueue(exist, &[], 1).unwrap().unwrap();
        queue.send().unwrap();
    }
    let grown = peak_bytes() - before;
    held.hold(false);
    assert!(grown < 32 << 20, "{} KiB more", grown >> 10);
    let mut statuses = Vec::new();
    while statuses.len() < LISTS + 2 {
        let mut answers = Vec::new();
        queue.poll(Wait::Yes, &mut answers).unwrap();
        statuses.extend(answers.into_iter().map(|(_, answer)| answer.status));
    }
    let count = |status| statuses.iter().filter(|other| **other == status).count();
    assert_eq!((count(Status::SUCCESS), count(Status::NO_SUCH_LIST)), (64, LISTS - 64), "what is there is looked at");
}

/// The identifiers of answers, without data, and requests for data.
fn told(mut sent: &[u8]) -> Vec<(u8, u16)> {
    let mut told = Vec::new();
    while !sent.is_empty() {
        let at = if sent[0] == pdu::RESPONSE { 20 } else { 8 };
        told.push((sent[0], u16::from_le_bytes([sent[at], sent[at + 1]])));
        sent = &sent[u32::from_le_bytes(sent[4..8].try_into().unwrap()) as usize..];
    }
    told
}

/// Goal:   a reset ends what was requested before on the admin queue: no answer comes after it, identifiers and entries are free, and
///         what is in progress counts in the target's memory until it is over.
/// Method: a target without sockets; a namespace that is being created after two held workers, a request for an event, another one that
///         is aborted just before, a command whose data were requested, and one that waits for memory. Then as many resets as fill the queue.
#[test]
fn resets_end_admin_commands() {
    let (held, medium) = Held::new();
    let device = Device::on_medium(medium).unwrap();
    let nsid = device.create_namespace("cold", &NamespaceOptions::default()).unwrap();
    device.put(nsid, key(b"one"), b"value").unwrap();
    assert!(device.unload_namespace(nsid).unwrap());
    let mut target = Offline::new(
        &device,
        Options { memory_bytes: 1 << 20, access: Access::open().with_all_rights(), ..Options::for_device(&device) },
    )
    .unwrap();
    let (admin, queue) = connected(&mut target);
    held.hold(true);
    let mut exist = Command::new(kv::EXIST, nsid);
    (exist.cdw2, exist.cdw11) = (1.into(), 1.into());
    target.receive(queue, &bytes(&[(Header::Command(exist), vec![]), (Header::Command(exist), vec![])]));
    while held.waiting.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let asked = |cid: u16, command: Command| (Header::Command(Command { cid: cid.into(), ..command }), vec![]);
    let moving = |opcode, sgl| Command { sgl, ..Command::new(opcode, 0) };
    let create = Command { cdw11: (1 << 24).into(), ..moving(admin::NAMESPACE_MANAGEMENT, Sgl::in_capsule(4096)) };
    let abort = Command { cdw10: (9 << 16).into(), ..Command::new(admin::ABORT, 0) };
    let configure = |value| Property::command(kind::PROPERTY_SET, register::CC, false, value);
    let (enable, disable) = (configure(0x0046_0061), configure(0x0046_0060));
    let send = |bytes| moving(0x81, Sgl::transport(bytes));
    target.receive(admin, &bytes(&[(asked(7, create).0, vec![0; 4096])]));
    let requests = [asked(8, Command::new(admin::ASYNC_EVENT, 0)), asked(9, Command::new(admin::ASYNC_EVENT, 0))];
    target.receive(admin, &bytes(&requests));
    target.receive(admin, &bytes(&[asked(10, send(512)), asked(11, send(2 << 20))]));
    let before = (told(&target.take_sent(admin)), target.used_bytes());
    target.receive(admin, &bytes(&[asked(12, abort), asked(13, disable), asked(14, enable)]));
    let reset = (told(&target.take_sent(admin)), target.used_bytes());
    // The host may have sent these before it knew.
    let data = Transfer { cid: 10.into(), length: 512.into(), ..Transfer::new_zeroed() };
    target.receive(admin, &bytes(&[(Header::DataIn(data, true), vec![1; 512])]));
    target.receive(admin, &bytes(&[asked(7, Command::new(admin::KEEP_ALIVE, 0))]));
    let after = (told(&target.take_sent(admin)), target.used_bytes());
    held.hold(false);
    target.settle();
    let responses = |cids: &[u16]| cids.iter().map(|cid| (pdu::RESPONSE, *cid)).collect::<Vec<_>>();
    assert_eq!(before, (vec![(pdu::R2T, 10)], 4096 + 512));
    assert_eq!(reset, (responses(&[12, 13, 14]), 4096 + 512), "what was begun, and what was requested from the host");
    assert_eq!(after, (responses(&[7]), 4096));
    assert_eq!(told(&target.take_sent(admin)), []);
    assert_eq!((target.used_bytes(), device.namespaces().len()), (0, 2));
    for _ in 0..20 {
        let events = [(); 4].map(|()| asked(8, Command::new(admin::ASYNC_EVENT, 0)));
        target.receive(admin, &bytes(&events));
        target.receive(admin, &bytes(&[asked(13, disable), asked(14, enable)]));
        assert_eq!(told(&target.take_sent(admin)), responses(&[13, 14]));
    }
}

/// Goal:   who has no business with long transfers gets no memory for them: before a controller is enabled, and of one for discovery.
/// Method: Security Send, which there is none of; where there is room, the target requests its data first.
#[test]
fn long_transfers_need_a_ready_controller() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let mut target = Offline::new(&device, Options::for_device(&device)).unwrap();
    let subsystem = target.subsystem().to_owned();
    let configure =
        |value| (Header::Command(Property::command(kind::PROPERTY_SET, register::CC, false, value)), vec![]);
    let (enable, disable) = (configure(0x0046_0061), configure(0x0046_0060));
    for (name, at_first, then) in [(DISCOVERY_NQN, 64 << 10, 64 << 10), (&subsystem, 8 << 10, 16 << 20)] {
        for (configured, longest) in [(None, at_first), (Some(&enable), then), (Some(&disable), at_first)] {
            for (bytes, asks) in [(longest, true), (longest + 1, false)] {
                let link = target.connect();
                let open = [(init(), vec![]), connect_queue(name, 0, CNTLID_DYNAMIC), enable.clone()];
                target.receive(link, &hostile::bytes(&open[..2 + usize::from(configured.is_some())]));
                configured
                    .into_iter()
                    .for_each(|command| target.receive(link, &hostile::bytes(std::slice::from_ref(command))));
                target.take_sent(link);
                let send = Command { sgl: Sgl::transport(bytes), ..Command::new(0x81, 0) };
                target.receive(link, &hostile::bytes(&[(Header::Command(send), vec![])]));
                let (sent, used) = (target.take_sent(link), target.used_bytes());
                if asks {
                    assert_eq!((sent[0], used), (pdu::R2T, bytes as usize), "{name}");
                } else {
                    let status = Status::from_field(u16::from_le_bytes([sent[22], sent[23]]));
                    assert_eq!((sent[0], used, status), (pdu::RESPONSE, 0, Status::INVALID_FIELD), "{name}");
                }
                target.disconnect(link);
            }
        }
    }
}
