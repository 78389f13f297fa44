//! Encrypted connections: hosts with the right key, and only they.

use crate::world::{World, key};
use kaml::BlockOptions;
use kaml_nvme::auth::{Hash, Secret};
use kaml_nvme::host::{Blocks, Controller, Credentials, Error, HostKey, HostOptions, KeyValue, Queue};
use kaml_nvme::target::{Access, HostAccess, Rights, Security};
use kaml_nvme::tls::{TlsError, TlsKey};
use kaml_nvme::transport::Digests;
use kaml_nvme::wire::fabrics::{CNTLID_DYNAMIC, Connect, ConnectData, DISCOVERY_NQN};
use kaml_nvme::wire::logs::{DiscoveryHead, DiscoveryRecord, LogRequest, lid};
use kaml_nvme::wire::status::Status;
use kaml_nvme::wire::text::put_name;
use std::io::{Read, Write};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const HOST: &str = "nqn.2026-11.example:host";
const OTHER: &str = "nqn.2026-11.example:other";
const PLAIN: &str = "nqn.2026-11.example:plain";

fn tls_key(seed: u8) -> TlsKey {
    TlsKey::new(&[seed; 32], Some(Hash::Sha256)).unwrap()
}

/// A target for which one host has key 1, another one key 2, and a third one none.
fn world(security: Security) -> World {
    World::with(|options| {
        let with = |seed| HostAccess { tls_key: Some(tls_key(seed)), rights: Rights::all(), ..HostAccess::default() };
        let hosts = [(HOST, with(1)), (OTHER, with(2)), (PLAIN, HostAccess::default())];
        options.access = Access::only([]);
        options.access.hosts = hosts.map(|(name, host)| (name.to_owned(), host)).into();
        options.security = security;
    })
}

fn options(host: &str, key: Option<TlsKey>) -> HostOptions {
    let tls = key.map(HostKey::new);
    HostOptions { host: host.to_owned(), keep_alive: Duration::ZERO, queues: 2, tls, ..HostOptions::default() }
}

fn connect(world: &World, host: &str, key: Option<TlsKey>) -> Result<Controller, Error> {
    Controller::connect(&world.address, &world.subsystem, &options(host, key))
}

fn refused_key(result: Result<Controller, Error>) -> bool {
    matches!(result, Err(Error::NotSecured(TlsError::KeyRefused)))
}

/// Goal:   a host with the key gets in with all of its queues, with each kind of key and identity, and data of all lengths arrive.
#[test]
fn hosts_with_the_key_are_admitted() {
    let keys = [
        TlsKey::new(&[1; 32], None).unwrap(),
        TlsKey::new(&[2; 48], None).unwrap(),
        TlsKey::new(&[3; 32], Some(Hash::Sha256)).unwrap(),
        TlsKey::new(&[4; 48], Some(Hash::Sha384)).unwrap(),
    ];
    for (key_, version) in keys.iter().flat_map(|key| [(key, 0), (key, 1)]) {
        let world = World::with(|options| {
            let host = HostAccess { tls_key: Some(key_.clone()), rights: Rights::all(), ..HostAccess::default() };
            options.access = Access::only([]);
            options.access.hosts.insert(HOST.into(), host);
            options.security = Security::Required;
        });
        let nsid = world.namespace("notes");
        let mut options = options(HOST, Some(key_.clone()));
        options.tls.as_mut().unwrap().version = version;
        let host = Controller::connect(&world.address, &world.subsystem, &options).unwrap();
        for (queue, name) in host.queues().iter().zip([b"a", b"b"]) {
            for bytes in [1, 4096, 16_383, 16_385, 100_000, 1 << 20] {
                let value: Vec<u8> = (0..bytes).map(|at| (at ^ at >> 8) as u8).collect();
                let records = KeyValue::new(queue, nsid);
                records.store(&key(name), &value, Default::default()).unwrap();
                let found = records.retrieve(&key(name), bytes).unwrap();
                assert!(found.is_some_and(|(found, _)| found == value), "{bytes} bytes");
            }
        }
    }
}

/// Goal:   many commands in flight, and reads that are longer than all buffers, do not wait for each other.
/// Method: threads that share two encrypted queues write and read disks of theirs.
#[test]
fn many_commands_are_in_flight() {
    let world = world(Security::Required);
    let nsid = world.device.create_namespace("disk", &BlockOptions::new(4096, 16 << 10).into()).unwrap();
    let host = connect(&world, HOST, Some(tls_key(1))).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let host = &host;
            scope.spawn(move || {
                let disk = Blocks::new(host, &host.queues()[thread as usize % 2], nsid).unwrap();
                for round in 0..6u64 {
                    let data = vec![(thread * 16 + round) as u8; 1 << 20];
                    disk.write(thread * 1024, &data).unwrap();
                    let found = disk.read(thread * 1024, 1 << 20).unwrap();
                    assert!(found == data, "thread {thread}, round {round}");
                }
            });
        }
    });
}

/// Goal:   where TLS is required, exactly the hosts with their own key get in.
/// Method: no TLS; another key; the key of another host; a host without a key; an unknown one; another subsystem's key.
#[test]
fn a_listener_that_requires_tls() {
    let world = world(Security::Required);
    assert!(connect(&world, HOST, Some(tls_key(1))).is_ok() && connect(&world, OTHER, Some(tls_key(2))).is_ok());
    assert!(matches!(connect(&world, HOST, None), Err(Error::Connection(_))), "no TLS");
    assert!(matches!(connect(&world, PLAIN, None), Err(Error::Connection(_))), "no TLS, and no key");
    assert!(refused_key(connect(&world, HOST, Some(tls_key(3)))), "another key");
    assert!(refused_key(connect(&world, HOST, Some(tls_key(2)))), "the key of another host");
    assert!(refused_key(connect(&world, PLAIN, Some(tls_key(1)))), "a host that has none");
    assert!(refused_key(connect(&world, "nqn.2026-11.example:stranger", Some(tls_key(1)))), "a stranger");
    let elsewhere = "nqn.2026-11.example:elsewhere";
    let error = Controller::connect(&world.address, elsewhere, &options(HOST, Some(tls_key(1)))).err();
    assert!(matches!(error, Some(Error::NotSecured(TlsError::KeyRefused))), "another subsystem");
    let long = TlsKey::new(&[1; 48], Some(Hash::Sha384)).unwrap();
    assert!(refused_key(connect(&world, HOST, Some(long))), "a key of another kind");
    assert!(connect(&world, HOST, Some(tls_key(1))).is_ok());
}

/// Goal:   where TLS is optional, a host without a key needs none, and one with a key is not admitted without.
#[test]
fn a_listener_that_allows_tls() {
    let world = world(Security::Optional);
    let nsid = world.namespace("notes");
    let plain = connect(&world, PLAIN, None).unwrap();
    KeyValue::new(&plain.queues()[0], nsid).store(&key(b"k"), b"value", Default::default()).unwrap();
    assert_eq!(connect(&world, HOST, None).err().unwrap().status(), Some(Status::CONNECT_HOST), "it has a key");
    assert!(refused_key(connect(&world, HOST, Some(tls_key(2)))));
    let host = connect(&world, HOST, Some(tls_key(1))).unwrap();
    let found = KeyValue::new(&host.queues()[0], nsid).retrieve(&key(b"k"), 100).unwrap();
    assert_eq!(found.unwrap().0, b"value");
}

/// Goal:   a listener without TLS refuses a host that uses it, and one that has a key.
#[test]
fn a_listener_without_tls() {
    let world = world(Security::Plain);
    assert!(matches!(connect(&world, HOST, Some(tls_key(1))), Err(Error::NotSecured(TlsError::NotSpoken))));
    assert_eq!(connect(&world, HOST, None).err().unwrap().status(), Some(Status::CONNECT_HOST));
    assert!(connect(&world, PLAIN, None).is_ok());
}

/// Goal:   a host that has proved its key cannot take another one's name, neither for a new controller nor for queues of its controller.
/// Method: our host with the key of one name and the Connect of another.
#[test]
fn the_key_is_that_of_the_name() {
    let world = world(Security::Required);
    let victim = connect(&world, OTHER, Some(tls_key(2))).unwrap();
    let own = HostKey::new(tls_key(1));
    for (name, number, cntlid) in [(OTHER, 0, CNTLID_DYNAMIC), (OTHER, 2, victim.id()), (PLAIN, 0, CNTLID_DYNAMIC)] {
        let queue = Queue::open_secured(&world.address, 31, Digests::default(), &own, HOST, &world.subsystem).unwrap();
        let (mut connect, mut data) = (Connect::new_zeroed(), ConnectData::new_zeroed());
        (connect.queue, connect.queue_size, data.cntlid) = (number.into(), 31.into(), cntlid.into());
        put_name(&mut data.subsystem, &world.subsystem);
        put_name(&mut data.host, name);
        let status = queue.execute(connect.command(), data.as_bytes(), 0).unwrap().status;
        assert!(status.is(Status::CONNECT_HOST), "{name}: {status}");
    }
    drop(victim);
}

/// Goal:   TLS and authentication together: both have to be right.
#[test]
fn keys_do_not_replace_secrets() {
    let secret = |seed| Secret::new(&[seed; 32], None).unwrap();
    let world = World::with(|options| {
        let host = HostAccess { tls_key: Some(tls_key(1)), ..HostAccess::authenticated(secret(7), None) };
        options.access = Access::only([]);
        options.access.hosts.insert(HOST.into(), host);
        options.security = Security::Required;
    });
    let with = |tls, own| {
        let credentials = Some(Credentials::new(secret(own), None));
        let options = HostOptions { credentials, ..options(HOST, Some(tls_key(tls))) };
        Controller::connect(&world.address, &world.subsystem, &options)
    };
    assert!(with(1, 7).is_ok());
    assert!(matches!(with(1, 8), Err(Error::NotAuthenticated(_))));
    assert!(refused_key(with(2, 7)));
}

/// Goal:   a host whose key changes is disconnected, and gets in with the new one only.
#[test]
fn changed_keys_count_at_once() {
    let world = world(Security::Required);
    let host = connect(&world, HOST, Some(tls_key(1))).unwrap();
    let mut access = Access::only([]);
    let changed = HostAccess { tls_key: Some(tls_key(9)), ..HostAccess::default() };
    access.hosts.insert(HOST.into(), changed);
    world.control.set_access(access).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while host.log_page(&LogRequest { lid: lid::HEALTH, retain: true, offset: 0, bytes: 512, csi: 0 }).is_ok() {
        assert!(Instant::now() < until, "it is still connected");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(refused_key(connect(&world, HOST, Some(tls_key(1)))));
    assert!(connect(&world, HOST, Some(tls_key(9))).is_ok());
}

/// Goal:   discovery reports of each port whether connections are encrypted there, and is encrypted itself where that is required.
#[test]
fn discovery_reports_tls() {
    for (security, requirements, kind) in
        [(Security::Plain, 2, 0), (Security::Optional, 2, 2), (Security::Required, 1, 2)]
    {
        let world = world(security);
        let (name, key) = if security == Security::Plain { (PLAIN, None) } else { (HOST, Some(tls_key(1))) };
        let host = Controller::connect(&world.address, DISCOVERY_NQN, &options(name, key)).unwrap();
        let page =
            host.log_page(&LogRequest { lid: lid::DISCOVERY, retain: false, offset: 0, bytes: 2048, csi: 0 }).unwrap();
        let (head, rest) = DiscoveryHead::read_from_prefix(&page).unwrap();
        let (record, _) = DiscoveryRecord::read_from_prefix(rest).unwrap();
        assert_eq!(head.record_count.get(), 1);
        assert_eq!((record.requirements & 3, record.security[0]), (requirements, kind), "{security:?}");
    }
}

/// Goal:   garbage at each point of a handshake ends the connection, within the time for it, and harms nobody else.
/// Method: random bytes, records of wrong types and lengths, half a message, a message that never ends, while a host works.
#[test]
fn garbage_is_refused() {
    let world = world(Security::Required);
    let nsid = world.namespace("notes");
    let host = connect(&world, HOST, Some(tls_key(1))).unwrap();
    let works = || {
        KeyValue::new(&host.queues()[0], nsid).store(&key(b"k"), b"value", Default::default()).unwrap();
    };
    let mut endless = vec![22, 3, 1, 0x40, 0, 1, 0, 0x1f, 0];
    endless.resize(20_000, 7);
    let samples: [&[u8]; 8] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0; 128],
        &[22, 3, 1, 0, 0],
        &[22, 3, 1, 0, 1, 2],
        &[22, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff],
        &[22, 3, 1, 0, 5, 1, 0, 0, 1, 0],
        &[23, 3, 3, 0, 1, 0],
        &endless,
    ];
    for sample in samples {
        let mut socket = world.raw();
        socket.write_all(sample).unwrap();
        // It reads an alert or nothing, and then the end.
        let mut rest = Vec::new();
        let ended = socket.read_to_end(&mut rest);
        let is_over = ended.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset);
        assert!((ended.is_ok() || is_over) && rest.len() <= 7, "{sample:02x?}: {ended:?} {rest:02x?}");
        works();
    }
    let began = Instant::now();
    let mut silent = world.raw();
    silent.write_all(&[22, 3, 1]).unwrap();
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0, "a handshake without progress is ended");
    assert!(began.elapsed() < Duration::from_secs(15));
    works();
}

/// What our host sends first, with a key.
fn recorded_hello(key: TlsKey, subsystem: &str) -> Vec<u8> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let recorder = std::thread::spawn(move || {
        let mut bytes = vec![0; 10_000];
        let count = listener.accept().unwrap().0.read(&mut bytes).unwrap();
        bytes.truncate(count);
        bytes
    });
    assert!(Queue::open_secured(&address, 31, Digests::default(), &HostKey::new(key), HOST, subsystem).is_err());
    recorder.join().unwrap()
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Goal:   a connection of a host that has no key costs at most 64 KiB and a millisecond of processor time.
#[test]
fn strangers_cost_little() {
    crate::world::run_alone("tls::costs_of_strangers");
}

/// Method: in a process of its own, many connections of each kind: one byte, half a message, a message with another key, and one with the right
///         key that somebody has recorded and sends again.
#[test]
#[ignore = "run by another test, alone"]
fn costs_of_strangers() {
    const COUNT: u32 = 250;
    let world = world(Security::Required);
    let right = recorded_hello(tls_key(1), &world.subsystem);
    let wrong = recorded_hello(tls_key(3), &world.subsystem);
    let mut warm_up = world.raw();
    warm_up.write_all(&right).unwrap();
    assert_eq!(warm_up.read(&mut [0; 1]).unwrap(), 1);
    for (kind, bytes) in
        [("a byte", &right[..1]), ("half", &right[..right.len() / 2]), ("replay", &right), ("wrong", &wrong)]
    {
        let (before_bytes, before_time) = (resident_bytes(), world.processor_time());
        let sockets: Vec<_> = (0..COUNT)
            .map(|_| {
                let mut socket = world.raw();
                socket.write_all(bytes).unwrap();
                if bytes.len() == right.len() {
                    // An alert, or the target's part of the handshake.
                    assert_eq!(socket.read(&mut [0; 1]).unwrap(), 1);
                }
                socket
            })
            .collect();
        // The target has seen the others when it has responded to one more.
        let mut last = world.raw();
        last.write_all(&right).unwrap();
        assert_eq!(last.read(&mut [0; 1]).unwrap(), 1);
        let each_bytes = resident_bytes().saturating_sub(before_bytes) / COUNT as usize;
        let each_time = (world.processor_time() - before_time) / COUNT;
        eprintln!("{kind}: {each_bytes} bytes, {each_time:?} each");
        drop(sockets);
        assert!(each_bytes <= 64 << 10 && each_time <= Duration::from_millis(1), "{kind}: {each_bytes}, {each_time:?}");
    }
}

/// Goal:   what TLS costs, for a person: `cargo test --release -p kaml-nvme --features tls --test target -- --ignored --nocapture tls::speed`.
/// Method: reads of a disk in memory in the clear and encrypted, in turns, one queue.
#[test]
#[ignore = "measures"]
fn speed() {
    let world = world(Security::Optional);
    let nsid = world.device.create_namespace("disk", &BlockOptions::new(4096, 16 << 10).into()).unwrap();
    let hosts = [connect(&world, PLAIN, None).unwrap(), connect(&world, HOST, Some(tls_key(1))).unwrap()];
    let disk = |host: usize| Blocks::new(&hosts[host], &hosts[host].queues()[0], nsid).unwrap();
    (0..64).for_each(|at| disk(0).write(at * 256, &vec![at as u8; 1 << 20]).unwrap());
    for (bytes, depth) in [(4096, 32), (1 << 20, 1), (1 << 20, 4)] {
        let mut rates = [Vec::new(), Vec::new()];
        for round in 0..14 {
            let queue = &hosts[round % 2].queues()[0];
            let disk = disk(round % 2);
            let (began, mut done, mut flight) = (Instant::now(), 0u64, std::collections::VecDeque::new());
            while began.elapsed() < Duration::from_millis(400) {
                while flight.len() < depth {
                    flight.push_back(disk.submit_read(done * 7919 % (8 << 10), bytes).unwrap());
                    done += 1;
                }
                let finished = queue.wait(flight.pop_front().unwrap()).unwrap().success().unwrap();
                queue.recycle(finished.data);
            }
            flight.into_iter().for_each(|ticket| drop(queue.wait(ticket).unwrap()));
            rates[round % 2].push(done as f64 / began.elapsed().as_secs_f64());
        }
        rates.iter_mut().for_each(|rates| rates.sort_by(f64::total_cmp));
        let [plain, tls] = [&rates[0], &rates[1]].map(|rates| rates[rates.len() / 2]);
        eprintln!("{bytes} bytes, {depth} in flight: {plain:.0}/s plain, {tls:.0}/s TLS, {:.2}", tls / plain);
    }
}
