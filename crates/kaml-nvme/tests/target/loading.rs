//! Indexes that are loaded while hosts are at work.

use crate::world::{World, key};
use kaml::{BlockOptions, Device};
use kaml_nvme::host::{Blocks, KeyValue};
use kaml_nvme::wire::keyvalue::store;
use kaml_nvme::wire::manage::{PutAction, encode_put};
use kaml_nvme::wire::status::Status;
use kaml_testkit::Held;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Goal:   a command on a namespace whose index is not in memory executes and holds up nobody in another one, also not
///         on its own queue.
/// Method: reads of indexes are held up while each kind of command is sent to records and to blocks that are not in memory; others
///         are stored, retrieved, listed, written and read meanwhile. Then all of the first complete, and what they changed
///         exists.
#[test]
fn others_go_on_while_an_index_is_loaded() {
    let (held, medium) = Held::new();
    let world = World::serving(Device::on_medium(medium).unwrap(), |_| {});
    let device = &world.device;
    let (idle, busy) = (world.namespace("idle"), world.namespace("busy"));
    let disk = |name| device.create_namespace(name, &BlockOptions::new(4096, 64).into()).unwrap();
    let (idle_disk, busy_disk) = (disk("idle disk"), disk("busy disk"));
    (0..200u8).for_each(|at| device.put(idle, key(&[at]), &[at; 100]).unwrap());
    for disk in [idle_disk, busy_disk] {
        device.block_write(disk, 0, &[1; 32 * 4096]).unwrap();
    }
    let host = world.host();
    let queue = &host.queues()[0];
    let (records, blocks) = (KeyValue::new(queue, idle), Blocks::new(&host, queue, idle_disk).unwrap());
    let (others, other_blocks) = (KeyValue::new(queue, busy), Blocks::new(&host, queue, busy_disk).unwrap());
    for space in [idle, idle_disk] {
        assert!(device.unload_namespace(space).unwrap() && !device.is_namespace_loaded(space).unwrap());
    }
    held.hold(true);
    std::thread::scope(|scope| {
        let (blocks, others) = (&blocks, &others);
        scope.spawn(move || records.store(&key(b"new"), b"stored", 0).unwrap());
        scope.spawn(move || {
            let refused = records.store(&key(b"absent"), b"no", store::MUST_EXIST).unwrap_err();
            assert_eq!(refused.status(), Some(Status::NO_SUCH_KEY));
        });
        scope.spawn(move || assert_eq!(records.retrieve(&key(&[7]), 10).unwrap().unwrap(), (vec![7; 10], 100)));
        scope.spawn(move || assert!(records.exist(&key(&[8])).unwrap()));
        scope.spawn(move || records.delete(&key(&[9])).unwrap());
        scope.spawn(move || assert!(records.list(None, 4096).unwrap().len() >= 199));
        scope.spawn(move || {
            let mut put = Vec::new();
            encode_put(&mut put, busy, &key(b"both"), PutAction::Store(b"1"));
            encode_put(&mut put, idle, &key(b"both"), PutAction::Store(b"2"));
            others.put(&put, 2).unwrap();
        });
        scope.spawn(move || assert_eq!(blocks.read(0, 4096).unwrap(), [1; 4096]));
        scope.spawn(move || assert_eq!(blocks.read(1, 4 * 4096).unwrap(), [1; 4 * 4096]));
        scope.spawn(move || blocks.write(40, &[2; 4096]).unwrap());
        scope.spawn(move || blocks.write_zeroes(8, 4).unwrap());
        scope.spawn(move || blocks.deallocate(&[16..18, 20..21]).unwrap());
        std::thread::sleep(Duration::from_millis(100)); // they are on their way
        let (done, is_done) = channel();
        let held = &held;
        let watch = scope.spawn(move || {
            let is_in_time = is_done.recv_timeout(Duration::from_secs(20)).is_ok();
            held.hold(false);
            is_in_time
        });
        for round in 0..50u8 {
            others.store(&key(&[round]), &[round; 50], 0).unwrap();
            assert_eq!(others.retrieve(&key(&[round]), 50).unwrap().unwrap().0, [round; 50]);
            assert_eq!(others.list(None, 4096).unwrap().len(), usize::from(round) + 1);
            other_blocks.write(u64::from(round), &vec![round; 4096]).unwrap();
            assert_eq!(other_blocks.read(u64::from(round), 4096).unwrap(), [round; 4096]);
            assert_eq!(other_blocks.read(0, 32 * 4096).unwrap().len(), 32 * 4096);
        }
        assert!(!device.is_namespace_loaded(idle).unwrap() && !device.is_namespace_loaded(idle_disk).unwrap());
        done.send(()).unwrap();
        assert!(watch.join().unwrap(), "nothing completed until the indexes were loaded");
    });
    assert_eq!(records.retrieve(&key(b"new"), 10).unwrap().unwrap().0, b"stored");
    assert_eq!(device.get(idle, key(b"both")).unwrap().unwrap(), b"2");
    assert_eq!(device.get(busy, key(b"both")).unwrap().unwrap(), b"1");
    assert_eq!(device.list(idle, None, 1000).unwrap().keys.len(), 201);
    assert_eq!(blocks.read(40, 4096).unwrap(), [2; 4096]);
    for (at, is_there) in [(7, 1), (8, 0), (11, 0), (12, 1), (15, 1), (16, 0), (17, 0), (18, 1), (20, 0), (21, 1)] {
        assert_eq!(blocks.read(at, 4096).unwrap(), [is_there; 4096], "block {at}");
    }
}

/// Goal:   commands on a namespace whose index cannot be read end with an error, change nothing, and hinder nobody else; after it can
///         be read again, they are executed.
/// Method: reads of flash fail while each kind of command is sent to records and to blocks that are not in memory, several at once;
///         records of another namespace are stored and retrieved between them. Then the same commands again.
#[test]
fn an_index_that_cannot_be_read_fails_its_own_commands() {
    let (held, medium) = Held::new();
    let world = World::serving(Device::on_medium(medium).unwrap(), |_| {});
    let device = &world.device;
    let (lost, busy) = (world.namespace("lost"), world.namespace("busy"));
    let disk = device.create_namespace("disk", &BlockOptions::new(4096, 64).into()).unwrap();
    (0..200u8).for_each(|at| device.put(lost, key(&[at]), &[at; 100]).unwrap());
    device.block_write(disk, 0, &[1; 32 * 4096]).unwrap();
    let host = world.host();
    let queue = &host.queues()[0];
    let (records, others) = (KeyValue::new(queue, lost), KeyValue::new(queue, busy));
    let blocks = Blocks::new(&host, queue, disk).unwrap();
    for space in [lost, disk] {
        assert!(device.unload_namespace(space).unwrap());
    }
    let mut both = Vec::new();
    encode_put(&mut both, busy, &key(b"both"), PutAction::Store(b"1"));
    encode_put(&mut both, lost, &key(b"both"), PutAction::Store(b"2"));
    let (records, others, blocks, both) = (&records, &others, &blocks, &both);
    let commands: [Box<dyn Fn() -> Result<(), kaml_nvme::host::Error> + Sync>; 9] = [
        Box::new(|| records.store(&key(b"new"), b"stored", 0)),
        Box::new(|| records.retrieve(&key(&[7]), 10).map(|found| assert_eq!(found.unwrap(), (vec![7; 10], 100)))),
        Box::new(|| records.exist(&key(&[8])).map(|is_there| assert!(is_there))),
        Box::new(|| records.delete(&key(&[9]))),
        Box::new(|| records.list(None, 4096).map(|keys| assert!(keys.len() >= 199))),
        Box::new(|| others.put(both, 2)),
        Box::new(|| blocks.read(0, 4096).map(|found| assert_eq!(found, [1; 4096]))),
        Box::new(|| blocks.write(40, &[2; 4096])),
        Box::new(|| blocks.deallocate(&[16..18, 20..21])),
    ];
    held.fails.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        for (at, command) in commands.iter().enumerate() {
            scope.spawn(move || {
                let status = command().expect_err("nothing can be read").status();
                assert!(status.is_some_and(|status| status != Status::SUCCESS), "command {at}: {status:?}");
            });
            let round = at as u8;
            others.store(&key(&[round]), &[round; 50], 0).unwrap();
            assert_eq!(others.retrieve(&key(&[round]), 50).unwrap().unwrap().0, [round; 50]);
        }
    });
    assert!(!others.exist(&key(b"both")).unwrap(), "half of a Put exists");
    held.fails.store(false, Ordering::SeqCst);
    commands.iter().for_each(|command| command().unwrap());
    assert_eq!(device.get(lost, key(b"both")).unwrap().unwrap(), b"2");
    assert_eq!(device.list(lost, None, 1000).unwrap().keys.len(), 201);
    assert_eq!(blocks.read(40, 4096).unwrap(), [2; 4096]);
    assert_eq!(blocks.read(16, 4096).unwrap(), [0; 4096]);
}
