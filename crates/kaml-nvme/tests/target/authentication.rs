//! Who gets in: hosts with the right secret, and only they.

use crate::hostile::{bytes, connect_queue, init};
use crate::world::{World, key};
use kaml_nvme::auth::{Group, Hash, Secret, Strength};
use kaml_nvme::host::{Controller, Credentials, Error, HostOptions, KeyValue, NotAuthenticated, Queue};
use kaml_nvme::target::{Access, HostAccess};
use kaml_nvme::transport::Digests;
use kaml_nvme::wire::auth::{Carrier, FromController, FromHost, Negotiate, Reason};
use kaml_nvme::wire::command::{Command, admin, kv};
use kaml_nvme::wire::fabrics::{CNTLID_DYNAMIC, Connect, ConnectData, Property, kind, register};
use kaml_nvme::wire::status::Status;
use kaml_nvme::wire::text::put_name;
use std::io::{Read, Write};
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

const HOST: &str = "nqn.2026-11.example:host";

fn secret(seed: u8) -> Secret {
    Secret::new(&[seed; 32], Some(Hash::Sha256)).unwrap()
}

/// A target for which one host has secret 1, and which has secret 2.
fn world() -> World {
    world_with(Strength::default())
}

fn world_with(strength: Strength) -> World {
    World::with(|options| {
        let host = HostAccess::authenticated(secret(1), Some(secret(2)));
        options.access = Access { hosts: [(HOST.to_owned(), host)].into(), others: None, strength };
    })
}

fn options(credentials: Option<Credentials>) -> HostOptions {
    HostOptions { host: HOST.to_owned(), keep_alive: Duration::ZERO, queues: 2, credentials, ..HostOptions::default() }
}

fn connect(world: &World, credentials: Option<Credentials>) -> Result<Controller, NotAuthenticated> {
    Controller::connect(&world.address, &world.subsystem, &options(credentials)).map_err(|error| match error {
        Error::NotAuthenticated(why) => why,
        other => panic!("{other}"),
    })
}

/// Goal:   a host with the right secret gets in with all of its queues, in one direction and in both, in each group, and stores.
#[test]
fn hosts_with_the_secret_are_admitted() {
    for group in Group::ALL {
        let world = world_with(Strength { hash: Hash::Sha384, group });
        let nsid = world.namespace("notes");
        for controller_secret in [None, Some(secret(2))] {
            let host = connect(&world, Some(Credentials::new(secret(1), controller_secret))).unwrap();
            for queue in host.queues() {
                KeyValue::new(queue, nsid).store(&key(b"k"), b"value", Default::default()).unwrap();
            }
        }
    }
}

/// Goal:   all others are refused, and learn why; so does a host that meets the wrong target.
#[test]
fn hosts_without_the_secret_are_refused() {
    let world = world();
    let refused = |credentials| connect(&world, credentials).err();
    let new = |own, controller: Option<u8>| Some(Credentials::new(secret(own), controller.map(secret)));
    assert_eq!(refused(None), Some(NotAuthenticated::NoSecret));
    assert_eq!(refused(new(3, None)), Some(NotAuthenticated::Refused(Reason::Failed)), "another secret");
    assert_eq!(refused(new(2, None)), Some(NotAuthenticated::Refused(Reason::Failed)), "that of the controller");
    assert_eq!(refused(new(1, Some(3))), Some(NotAuthenticated::Refuses(Reason::Failed)), "another controller");
    assert!(connect(&world, new(1, Some(2))).is_ok());

    let stranger = HostOptions { host: "nqn.2026-11.example:stranger".into(), ..options(new(1, None)) };
    let error = Controller::connect(&world.address, &world.subsystem, &stranger).err().unwrap();
    assert_eq!(error.status(), Some(Status::CONNECT_HOST));

    let open = World::new();
    assert_eq!(connect(&open, new(1, Some(2))).err(), Some(NotAuthenticated::NotRequired), "it can prove nothing");
    assert!(connect(&open, new(1, None)).is_ok());

    let strong = world_with(Strength { hash: Hash::Sha512, group: Group::Ffdhe3072 });
    let weak = Strength { hash: Hash::Sha256, group: Group::Null };
    let credentials = |strength| Some(Credentials { strength, ..Credentials::new(secret(1), None) });
    assert!(connect(&strong, credentials(weak)).is_ok(), "the host offers all");
    assert!(connect(&strong, credentials(Strength { hash: Hash::Sha512, group: Group::Ffdhe8192 })).is_ok());
}

/// The Connect of a queue; returns the queue and the result.
fn raw_queue(world: &World, number: u16, cntlid: u16) -> (Queue, u64) {
    let queue = Queue::open(&world.address, 31, Digests::default()).unwrap();
    let (mut connect, mut data) = (Connect::new_zeroed(), ConnectData::new_zeroed());
    (connect.queue, connect.queue_size, data.cntlid) = (number.into(), 31.into(), cntlid.into());
    put_name(&mut data.subsystem, &world.subsystem);
    put_name(&mut data.host, HOST);
    let result = queue.execute(connect.command(), data.as_bytes(), 0).unwrap().success().unwrap().result;
    (queue, result)
}

fn status(queue: &Queue, command: Command, data: &[u8], room: usize) -> Status {
    queue.execute(command, data, room).unwrap().status
}

fn send(queue: &Queue, message: &FromHost) -> Status {
    let message = message.write();
    status(queue, Carrier::send(message.len()), &message, 0)
}

fn receive(queue: &Queue) -> FromController {
    let received = queue.execute(Carrier::receive(4096), &[], 4096).unwrap().success().unwrap();
    FromController::read(&received.data).unwrap()
}

fn negotiate(groups: &[u8]) -> FromHost {
    FromHost::Negotiate(Negotiate {
        transaction: 7,
        secure_channel: 0,
        is_known: true,
        hashes: vec![1, 2, 3],
        groups: groups.to_vec(),
    })
}

/// Goal:   nothing is executed on a queue that is not authenticated, neither of an own controller nor of another one's.
/// Method: commands of all kinds on an admin queue, and on an I/O queue that claims the live controller of the same host.
#[test]
fn nothing_is_executed_before() {
    let world = world();
    let nsid = world.namespace("notes");
    let none = HostOptions { queues: 0, ..options(Some(Credentials::new(secret(1), None))) };
    let host = Controller::connect(&world.address, &world.subsystem, &none).unwrap();
    for (number, cntlid) in [(0, CNTLID_DYNAMIC), (1, host.id())] {
        let (queue, result) = raw_queue(&world, number, cntlid);
        assert_eq!(result & Connect::AUTHENTICATION_REQUIRED, Connect::AUTHENTICATION_REQUIRED);
        let required = Status::AUTHENTICATION_REQUIRED;
        let get = Property::command(kind::PROPERTY_GET, register::CAP, true, 0);
        assert_eq!(status(&queue, get, &[], 0), required);
        let enable = Property::command(kind::PROPERTY_SET, register::CC, false, 0x0046_0061);
        assert_eq!(status(&queue, enable, &[], 0), required);
        assert_eq!(status(&queue, Command::new(admin::KEEP_ALIVE, 0), &[], 0), required);
        assert_eq!(status(&queue, Command::new(admin::IDENTIFY, 0), &[], 4096), required);
        assert_eq!(status(&queue, Command::new(kv::FLUSH, nsid), &[], 0), required);
        assert_eq!(status(&queue, Connect::new_zeroed().command(), &[0; 1024], 0), required);
    }
    let (queue, _) = raw_queue(&world, 0, CNTLID_DYNAMIC);
    let mut wrong = Carrier::send(8);
    wrong.cdw10 = 0xe800_0100u32.into();
    assert_eq!(status(&queue, wrong, &[0; 8], 0), Status::INVALID_FIELD, "another protocol");
    let mut wrong = Carrier::send(8);
    wrong.cdw11 = 9.into();
    assert_eq!(status(&queue, wrong, &[0; 8], 0), Status::INVALID_FIELD, "another length");
    assert_eq!(status(&queue, Carrier::send(5000), &[0; 5000], 0), Status::INVALID_FIELD, "too long");
    assert_eq!(status(&queue, Carrier::receive(4096), &[], 4096), Status::COMMAND_SEQUENCE, "nothing is due");
    drop(host);
}

/// Goal:   a host that sends what is not due learns the reason, and its connection is closed.
#[test]
fn what_is_not_due_ends_the_connection() {
    let world = world();
    let success = FromHost::Success2 { transaction: 7 };
    for (messages, reason) in [
        (vec![success.clone()], Reason::Message),
        (vec![negotiate(&[9])], Reason::Group),
        (vec![negotiate(&[0]), negotiate(&[0])], Reason::Message),
        (vec![negotiate(&[1]), negotiate(&[1])], Reason::Message),
        (vec![negotiate(&[0]), success], Reason::Message),
    ] {
        let (queue, _) = raw_queue(&world, 0, CNTLID_DYNAMIC);
        for (number, message) in messages.iter().enumerate() {
            if number > 0 {
                assert!(matches!(receive(&queue), FromController::Challenge(_)));
            }
            assert_eq!(send(&queue, message), Status::SUCCESS);
        }
        assert_eq!(receive(&queue), FromController::Failure1 { transaction: 7, reason: Some(reason) });
        let after = queue.execute(Carrier::receive(4096), &[], 4096);
        assert!(matches!(after, Err(Error::Connection(_))), "{after:?}");
    }
}

/// Goal:   a host can authenticate live queues again; if that fails it is as it was before.
#[test]
fn queues_are_authenticated_again() {
    let world = world();
    let nsid = world.namespace("notes");
    let host = connect(&world, Some(Credentials::new(secret(1), None))).unwrap();
    host.reauthenticate(&Credentials::new(secret(1), Some(secret(2)))).unwrap();
    let refused = host.reauthenticate(&Credentials::new(secret(3), None));
    assert!(matches!(refused, Err(Error::NotAuthenticated(NotAuthenticated::Refused(Reason::Failed)))), "{refused:?}");
    let refused = host.reauthenticate(&Credentials::new(secret(1), Some(secret(1))));
    assert!(matches!(refused, Err(Error::NotAuthenticated(NotAuthenticated::Refuses(_)))), "{refused:?}");
    for queue in host.queues() {
        KeyValue::new(queue, nsid).store(&key(b"k"), b"value", Default::default()).unwrap();
    }
    host.reauthenticate(&Credentials::new(secret(1), None)).unwrap();

    let open = World::new();
    let host = connect(&open, None).unwrap();
    let refused = host.reauthenticate(&Credentials::new(secret(1), None)).unwrap_err();
    assert_eq!(refused.status(), Some(Status::INVALID_OPCODE), "the target knows no secret of it");
}

/// Goal:   those that connect and do not continue keep nobody out, and take the place of one another.
/// Method: more connections than may wait, all of which claim the name of a host, then that host.
#[test]
fn pretenders_keep_nobody_out() {
    let world = world();
    let begin = bytes(&[(init(), vec![]), connect_queue(&world.subsystem, 0, CNTLID_DYNAMIC)]);
    let mut pretenders: Vec<_> = (0..200)
        .map(|_| {
            let mut socket = world.raw();
            socket.write_all(&begin).unwrap();
            socket.read_exact(&mut [0; 152]).unwrap();
            socket
        })
        .collect();
    let host = connect(&world, Some(Credentials::new(secret(1), Some(secret(2))))).unwrap();
    assert_eq!(pretenders[0].read(&mut [0; 1]).unwrap(), 0, "the oldest was closed");
    drop(host);
    let last = pretenders.last_mut().unwrap();
    last.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    assert!(last.read(&mut [0; 1]).is_err(), "the newest waits");
}

/// Goal:   changes apply to hosts that are connected: those that may not connect any more, or have another secret, are disconnected.
/// Method: the same hosts again, another secret, none, the host left out, all hosts; each time the host that was connected, and a new one.
#[test]
fn changes_apply_to_connected_hosts() {
    let world = world();
    let access = |secret: Option<Secret>| {
        let host = HostAccess { secret, ..HostAccess::default() };
        Access { hosts: [(HOST.to_owned(), host)].into(), ..Access::default() }
    };
    let credentials = |seed| Some(Credentials::new(secret(seed), None));
    let mut host = connect(&world, credentials(1)).unwrap();
    let lives = |host: &Controller| host.admin().execute(Command::new(admin::KEEP_ALIVE, 0), &[], 0).is_ok();
    let is_cut_off = |host: &Controller| {
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while lives(host) {
            assert!(std::time::Instant::now() < until, "it is connected still");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    world.control.set_access(access(Some(secret(1)))).unwrap();
    let other = connect(&world, credentials(1)).unwrap();
    assert!(lives(&host), "nothing has changed for it");
    drop(other);
    for (change, new) in
        [(access(Some(secret(3))), credentials(3)), (access(None), None), (access(Some(secret(1))), credentials(1))]
    {
        world.control.set_access(change).unwrap();
        is_cut_off(&host);
        host = connect(&world, new).unwrap();
    }
    world.control.set_access(Access::only(["nqn.2026-11.example:other"])).unwrap();
    is_cut_off(&host);
    let error = Controller::connect(&world.address, &world.subsystem, &options(credentials(1))).err().unwrap();
    assert_eq!(error.status(), Some(Status::CONNECT_HOST));
    world.control.set_access(Access::open()).unwrap();
    connect(&world, None).unwrap();
    assert!(world.control.set_access(Access::only(["no name"])).is_err());
}
