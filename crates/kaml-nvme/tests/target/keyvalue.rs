//! The Key Value command set, end to end.

use crate::world::{World, key};
use kaml::{BlockOptions, CreateOptions, Device};
use kaml_nvme::host::{Blocks, Error, KeyValue};
use kaml_nvme::transport::Digests;
use kaml_nvme::wire::command::{Command, kv};
use kaml_nvme::wire::keyvalue::store;
use kaml_nvme::wire::manage::{PutAction, encode_put};
use kaml_nvme::wire::status::Status;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

fn status<T: std::fmt::Debug>(result: Result<T, Error>) -> Status {
    result.unwrap_err().status().expect("an answer of the controller")
}

/// Goal:   all five commands do what the specification requires, with every combination of digests.
/// Method: store, conditions, retrieve into buffers of other sizes, exist, delete; compare with the device itself.
#[test]
fn commands_do_what_they_say() {
    let world = World::new();
    let nsid = world.namespace("a");
    for bits in 0..4 {
        let host = world.host_with(|options| options.digests = Digests::from_bits(bits));
        let space = KeyValue::new(&host.queues()[0], nsid);
        let name = key(b"name");
        space.store(&name, b"value", 0).unwrap();
        assert_eq!(world.device.get(nsid, name).unwrap().unwrap(), b"value");
        assert_eq!(space.retrieve(&name, 100).unwrap(), Some((b"value".to_vec(), 5)));
        assert_eq!(space.retrieve(&name, 3).unwrap(), Some((b"val".to_vec(), 5)), "the size is returned in any case");
        assert_eq!(space.retrieve(&name, 0).unwrap(), Some((vec![], 5)));
        assert!(space.exist(&name).unwrap());
        assert_eq!(status(space.store(&name, b"x", store::MUST_NOT_EXIST)), Status::KEY_EXISTS);
        space.store(&name, b"other", store::MUST_EXIST).unwrap();
        assert_eq!(status(space.store(&key(b"none"), b"x", store::MUST_EXIST)), Status::NO_SUCH_KEY);
        assert_eq!(status(space.store(&name, b"x", store::MUST_EXIST | store::MUST_NOT_EXIST)), Status::INVALID_FIELD);
        space.store(&key(b"empty"), b"", 0).unwrap();
        assert_eq!(space.retrieve(&key(b"empty"), 10).unwrap(), Some((vec![], 0)));
        space.delete(&name).unwrap();
        space.delete(&name).unwrap();
        assert!(!space.exist(&name).unwrap());
        assert_eq!(space.retrieve(&name, 10).unwrap(), None);
        let full = key(&[0xff; 16]);
        space.store(&full, b"16", store::MUST_NOT_EXIST).unwrap();
        assert_eq!(world.device.get(nsid, full).unwrap().unwrap(), b"16");
        space.delete(&full).unwrap();
    }
}

/// Goal:   values of all sizes go both ways: in capsules, by R2T, in several data PDUs, and up to the limit.
/// Method: sizes around each of these boundaries, with and without digests; one byte above the limit is refused.
#[test]
fn values_of_all_sizes() {
    let world = World::new();
    let nsid = world.namespace("a");
    let max = world.device.info().value_bytes_max as usize;
    for bits in [0, 3] {
        let host = world.host_with(|options| options.digests = Digests::from_bits(bits));
        let space = KeyValue::new(&host.queues()[0], nsid);
        for bytes in [1, 3, 4095, 8192, 8193, 16_384, 16_385, 32_767, 32_768, 1 << 20, (1 << 20) + 1, max] {
            let value: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect();
            let name = key(&(bytes as u32).to_le_bytes());
            space.store(&name, &value, 0).unwrap();
            assert!(space.retrieve(&name, bytes + 10).unwrap() == Some((value, bytes)), "{bytes} bytes");
        }
        assert_eq!(status(space.store(&key(b"big"), &vec![0; max + 1], 0)), Status::INVALID_VALUE_SIZE);
    }
}

/// Goal:   commands that make no sense are refused with the status that hosts expect, and the queue continues.
/// Method: keys too short and too long, sizes that contradict, unknown opcodes and namespaces.
#[test]
fn nonsense_is_refused() {
    let world = World::new();
    let nsid = world.namespace("a");
    let host = world.host();
    let queue = &host.queues()[0];
    let send = |opcode: u8, nsid: u32, dw10: u32, dw11: u32, data: &[u8]| {
        let mut command = Command::new(opcode, nsid);
        (command.cdw10, command.cdw11) = (dw10.into(), dw11.into());
        queue.execute(command, data, 64).unwrap().status
    };
    assert_eq!(send(kv::STORE, nsid, 1, 0, b"x"), Status::INVALID_KEY_SIZE);
    assert_eq!(send(kv::STORE, nsid, 1, 17, b"x"), Status::INVALID_FIELD);
    assert_eq!(send(kv::STORE, nsid, 2, 4, b"x"), Status::SGL_LENGTH);
    assert_eq!(send(kv::RETRIEVE, nsid, 1, 0, b""), Status::INVALID_KEY_SIZE);
    assert_eq!(send(kv::EXIST, nsid, 0, 3, b""), Status::NO_SUCH_KEY);
    assert_eq!(send(kv::LIST, nsid, 3, 0, b""), Status::INVALID_FIELD);
    assert_eq!(send(kv::LIST, nsid, 64, 20, b""), Status::INVALID_FIELD);
    assert_eq!(send(0x04, nsid, 0, 0, b""), Status::INVALID_OPCODE);
    assert_eq!(send(0x83, nsid, 0, 0, b""), Status::INVALID_OPCODE);
    assert_eq!(send(kv::EXIST, 99, 0, 1, b""), Status::INVALID_NAMESPACE);
    assert_eq!(send(kv::EXIST, 0, 0, 1, b""), Status::INVALID_NAMESPACE);
    assert_eq!(send(kv::FLUSH, u32::MAX, 0, 0, b""), Status::SUCCESS);
    assert_eq!(send(kv::FLUSH, nsid, 0, 0, b""), Status::SUCCESS);
    let counters = world.device.create_namespace("u64", &kaml::NamespaceOptions::records(kaml::KeyKind::U64));
    let counters = counters.unwrap();
    host.identify(2, 0, 0).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100)); // the target has looked what exists
    assert_eq!(send(kv::STORE, counters, 1, 3, b"x"), Status::INVALID_KEY_SIZE);
}

/// Goal:   List answers every key once, whatever the buffer, also while others come and go.
/// Method: 3000 keys of all lengths, listed with small and large buffers.
#[test]
fn lists_answer_every_key_once() {
    let world = World::new();
    let nsid = world.namespace("a");
    let mut expected = BTreeSet::new();
    for number in 0..3000u32 {
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.resize(4 + number as usize % 13, 0x77);
        world.device.put(nsid, key(&bytes), b"").unwrap();
        expected.insert(key(&bytes));
    }
    let host = world.host();
    let space = KeyValue::new(&host.queues()[0], nsid);
    for room in [44, 100, 4096, 1 << 20] {
        let listed = space.list_all(room).unwrap();
        assert_eq!(listed.len(), expected.len(), "room {room}");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected, "room {room}");
    }
    let some = *expected.iter().nth(1000).unwrap();
    assert_eq!(space.list(Some(&some), 64).unwrap()[0], some, "the start key comes first");
    world.device.delete(nsid, some).unwrap();
    assert!(!space.list(Some(&some), 1 << 16).unwrap().contains(&some));
    assert_eq!(space.list(None, 4).unwrap(), [], "no room for any");
}

/// Goal:   many commands in flight from several threads and queues all complete, with their own data.
/// Method: four threads over two queues, 64 stores and retrieves in flight each.
#[test]
fn many_in_flight() {
    let world = World::new();
    let nsid = world.namespace("a");
    let host = world.host_with(|options| options.queues = 2);
    assert_eq!(host.queues().len(), 2);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let queue = &host.queues()[thread as usize % 2];
            scope.spawn(move || {
                let space = KeyValue::new(queue, nsid);
                let name = |number: u32| key(&(thread << 16 | number).to_be_bytes());
                let value = |number: u32| vec![(thread * 50 + number) as u8; (number as usize * 977) % 20_000];
                for round in 0..5 {
                    let stores = |n| space.submit_store(&name(n), &value(n + round), 0).unwrap();
                    for ticket in (0..64).map(stores).collect::<Vec<_>>() {
                        queue.wait(ticket).unwrap().success().unwrap();
                    }
                    let reads = |n| (n, space.submit_retrieve(&name(n), 20_000).unwrap());
                    for (number, ticket) in (0..64).map(reads).collect::<Vec<_>>() {
                        let found = queue.wait(ticket).unwrap().success().unwrap();
                        assert_eq!(found.data, value(number + round));
                    }
                }
            });
        }
    });
}

/// Goal:   durable stores complete when the disk has them, not when the target looks after its time-outs.
/// Method: rounds of stores and of writes of blocks to a device on a file; each round would take half a second.
#[test]
fn answers_do_not_wait_for_ticks() {
    let dir = tempfile::tempdir().unwrap();
    let options = CreateOptions { block_bytes: Some(2 << 20), ..CreateOptions::new(128 << 20) };
    let world = World::serving(Device::create(dir.path().join("d.kaml"), &options).unwrap(), |_| {});
    let nsid = world.namespace("a");
    let disk = world.device.create_namespace("disk", &BlockOptions::new(4096, 100).into()).unwrap();
    let host = world.host();
    let queue = &host.queues()[0];
    let (space, disk) = (KeyValue::new(queue, nsid), Blocks::new(&host, queue, disk).unwrap());
    let mut rounds: Vec<_> = (0..10u64)
        .map(|round| {
            let begin = Instant::now();
            let store = |n| space.submit_store(&kaml::Key::from(round + n), &[1; 1000], 0).unwrap();
            let mut tickets: Vec<_> = (0..16).map(store).collect();
            tickets.push(disk.submit_write(round, &[2; 4096]).unwrap());
            tickets.into_iter().for_each(|ticket| drop(queue.wait(ticket).unwrap().success().unwrap()));
            begin.elapsed()
        })
        .collect();
    rounds.sort();
    assert!(rounds[5] < Duration::from_millis(400), "half of them take more: {rounds:?}");
}

/// Goal:   the atomic Put stores all of its records or none, over several namespaces.
/// Method: a batch whose last condition fails, the same without it, and one with a namespace that does not exist.
#[test]
fn atomic_puts_over_namespaces() {
    let world = World::new();
    let (a, b) = (world.namespace("a"), world.namespace("b"));
    let host = world.host();
    let space = KeyValue::new(&host.queues()[0], a);
    let mut records = Vec::new();
    encode_put(&mut records, a, &key(b"x"), PutAction::Store(b"1"));
    encode_put(&mut records, b, &key(b"y"), PutAction::StoreIfAbsent(&[7; 5000]));
    let two = records.len();
    encode_put(&mut records, b, &key(b"z"), PutAction::DeleteIfPresent);
    assert_eq!(status(space.put(&records, 3)), Status::NO_SUCH_KEY);
    assert!(!space.exist(&key(b"x")).unwrap());
    space.put(&records[..two], 2).unwrap();
    assert_eq!(world.device.get(a, key(b"x")).unwrap().unwrap(), b"1");
    assert_eq!(world.device.get(b, key(b"y")).unwrap().unwrap(), [7; 5000]);
    assert_eq!(status(space.put(&records[..two], 2)), Status::KEY_EXISTS);
    assert_eq!(status(space.put(&records[..two], 3)), Status::SGL_LENGTH);
    assert_eq!(status(space.put(b"", 0)), Status::INVALID_FIELD);
    let mut records = Vec::new();
    encode_put(&mut records, 77, &key(b"x"), PutAction::Store(b"2"));
    assert_eq!(status(space.put(&records, 1)), Status::INVALID_NAMESPACE);
}
