//! Hosts that break the protocol, stall, or vanish: the target reports why if it can, and serves everybody else.

use crate::world::{World, key, run_alone};
use kaml_nvme::host::{HostOptions, KeyValue, Wait};
use kaml_nvme::target::Access;
use kaml_nvme::transport::End;
use kaml_nvme::transport::outbox::Outbox;
use kaml_nvme::wire::command::{Command, Sgl};
use kaml_nvme::wire::fabrics::{
    CNTLID_DYNAMIC, Connect, ConnectData, DISCOVERY_NQN, Property, kind as fabrics, register,
};
use kaml_nvme::wire::logs::{LogRequest, lid};
use kaml_nvme::wire::pdu::{Header, Init, Transfer, kind};
use kaml_nvme::wire::text::put_name;
use proptest::prelude::*;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use zerocopy::{FromZeros, IntoBytes};

pub(crate) fn init() -> Header {
    Header::InitRequest(Init { format: 0.into(), alignment: 0, digests: 0, limit: 0.into(), reserved: [0; 112] })
}

pub(crate) fn bytes(headers: &[(Header, Vec<u8>)]) -> Vec<u8> {
    let mut outbox = Outbox::new(End::Host);
    headers.iter().for_each(|(header, data)| outbox.push_with(header, data.clone()));
    outbox.slices().iter().flat_map(|slice| slice.to_vec()).collect()
}

/// The Connect of an admin queue of 32 entries.
fn connect(subsystem: &str) -> (Header, Vec<u8>) {
    connect_queue(subsystem, 0, CNTLID_DYNAMIC)
}

/// The Connect of a queue of 32 entries.
pub(crate) fn connect_queue(subsystem: &str, queue: u16, cntlid: u16) -> (Header, Vec<u8>) {
    connect_queue_of(subsystem, queue, cntlid, 32)
}

/// The Connect of a queue of this many entries.
pub(crate) fn connect_queue_of(subsystem: &str, queue: u16, cntlid: u16, entries: u16) -> (Header, Vec<u8>) {
    let (mut connect, mut data) = (Connect::new_zeroed(), ConnectData::new_zeroed());
    (connect.queue, connect.queue_size, data.cntlid) = (queue.into(), (entries - 1).into(), cntlid.into());
    put_name(&mut data.subsystem, subsystem);
    put_name(&mut data.host, "nqn.2026-11.example:host");
    (Header::Command(connect.command()), data.as_bytes().to_vec())
}

/// What the target sends before it closes the connection: the types of its PDUs, and the last status and field.
fn answers(world: &World, sent: &[u8]) -> (Vec<u8>, u16, u32) {
    let mut socket = world.raw();
    socket.write_all(sent).unwrap();
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = Vec::new();
    let _ = socket.read_to_end(&mut all); // a reset is as good as an end
    let (mut kinds, mut status, mut field, mut rest) = (Vec::new(), 0, 0, &all[..]);
    while rest.len() >= 8 {
        let length = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
        kinds.push(rest[0]);
        if rest[0] == kind::C2H_TERM {
            let head = &rest[usize::from(rest[3])..length];
            assert!(
                head.len() >= 8 && sent.windows(head.len()).any(|part| part == head),
                "what made no sense: {head:?}"
            );
            status = u16::from_le_bytes([rest[8], rest[9]]);
            field = u32::from_le_bytes(rest[10..14].try_into().unwrap());
        }
        rest = &rest[length..];
    }
    (kinds, status, field)
}

/// Goal:   each breach of the protocol completes with a terminate request that names it.
/// Method: one breach each, written down with the status of the specification.
#[test]
fn breaches_are_named() {
    let world = World::new();
    let command = |opcode| Header::Command(Command::new(opcode, 0));
    let term = kind::C2H_TERM;
    let opened = |more: Vec<u8>| [bytes(&[(init(), vec![])]), more].concat();
    assert_eq!(
        answers(&world, &bytes(&[(command(6), vec![])])),
        (vec![term], 2, 0),
        "a command before the connection is open"
    );
    assert_eq!(answers(&world, &opened(bytes(&[(init(), vec![])]))), (vec![1, term], 2, 0), "opened twice");
    assert_eq!(answers(&world, &opened(vec![0x63, 0, 24, 0, 24, 0, 0, 0])), (vec![1, term], 1, 0), "no such type");
    assert_eq!(answers(&world, &opened(vec![5, 0, 24, 0, 24, 0, 0, 0])), (vec![1, term], 1, 0), "a controller's PDU");
    assert_eq!(answers(&world, &opened(vec![4, 0, 70, 0, 72, 0, 0, 0])), (vec![1, term], 1, 2), "header length");
    assert_eq!(
        answers(&world, &opened(vec![4, 1, 72, 0, 76, 0, 0, 0])),
        (vec![1, term], 1, 1),
        "a digest nobody requested"
    );
    assert_eq!(
        answers(&world, &opened(vec![4, 0, 72, 9, 99, 0, 0, 0])),
        (vec![1, term], 1, 3),
        "data within the header"
    );
    let huge = bytes(&[(Header::Command(Command { sgl: Sgl::in_capsule(9000), ..Command::new(1, 1) }), vec![0; 9000])]);
    assert_eq!(answers(&world, &opened(huge)), (vec![1, term], 1, 4), "more data than a capsule takes");
    let transfer = Transfer { cid: 1.into(), tag: 3.into(), offset: 0.into(), length: 8.into(), reserved: 0.into() };
    let stray = bytes(&[(Header::DataIn(transfer, true), vec![0; 8])]);
    assert_eq!(answers(&world, &opened(stray)), (vec![1, term], 1, 10), "data that nobody requested");
    let many = bytes(&[(command(6), vec![]), (command(6), vec![])]);
    assert_eq!(
        answers(&world, &opened([many.clone(), many].concat())).0.last(),
        Some(&5),
        "a response, but no connection"
    );
    let mut bad_init = bytes(&[(init(), vec![])]);
    bad_init[8] = 1;
    assert_eq!(answers(&world, &bad_init), (vec![term], 6, 8), "an unknown format");
    // A peer that ends the connection gets no response, also if its data would begin within the header.
    for data_offset in [24, 0] {
        let mut end = vec![kind::H2C_TERM, 0, 24, data_offset, 48, 0, 0, 0, 1, 0];
        end.resize(48, 0);
        assert_eq!(answers(&world, &opened(end)).0, [1], "a host ends the connection");
    }
}

/// Goal:   a host whose machine has gone does not stay connected forever, whether or not it requested a keep-alive time-out.
/// Method: the system looks after connections itself: their timers are the ones for that.
#[test]
fn dead_hosts_are_noticed() {
    const KEEP_ALIVE_TIMER: &str = "02:";
    let world = World::new();
    let _host = world.host();
    let begin = Instant::now();
    // Another timer runs while something is not acknowledged yet.
    while timers(&world.address).iter().any(|timer| !timer.starts_with(KEEP_ALIVE_TIMER)) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", timers(&world.address));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(timers(&world.address).len() >= 2, "an admin queue and an I/O queue");
}

/// Resident bytes of this process, other tests and devices in memory included.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Goal:   hosts that vanish in the middle of anything leave nothing.
/// Method: 10 000 connections that end at some byte of a conversation with R2T and data, every second one by a reset;
///         afterwards the target holds none of them, has hardly more memory than after the first thousand, and serves. In a process
///         of its own, whose memory other tests do not use.
#[test]
fn vanished_hosts_leave_nothing() {
    run_alone("hostile::hosts_vanish");
}

#[test]
#[ignore = "vanished_hosts_leave_nothing runs it in a process of its own"]
fn hosts_vanish() {
    let world = World::new();
    let nsid = world.namespace("a");
    let mut store = Command::new(1, nsid);
    store.sgl = Sgl::transport(8000);
    let conversation = bytes(&[
        (init(), vec![]),
        (Header::Command(Command { sgl: Sgl::in_capsule(1024), ..Command::new(0x7f, 1) }), vec![0; 1024]),
        (Header::Command(store), vec![]),
        (Header::Command(Command { sgl: Sgl::in_capsule(4000), ..Command::new(1, nsid) }), vec![1; 4000]),
    ]);
    let mut resident = 0;
    for number in 0..10_000 {
        let mut socket = world.raw();
        socket.write_all(&conversation[..number * 7919 % conversation.len()]).unwrap();
        if number % 2 == 0 {
            rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
        }
        if number == 1000 {
            resident = resident_bytes();
        }
    }
    let grown = resident_bytes().saturating_sub(resident);
    assert!(grown < 128 << 20, "{grown} bytes more, where a connection has 64 KiB and more");
    let host = world.host();
    assert!(held_connections(&world.address) > 0, "this one is");
    let space = KeyValue::new(&host.queues()[0], nsid);
    space.store(&key(b"k"), &[5; 50_000], 0).unwrap();
    assert_eq!(space.retrieve(&key(b"k"), 50_000).unwrap().unwrap().1, 50_000);
    drop(host);
    let begin = Instant::now();
    while held_connections(&world.address) > 0 {
        assert!(begin.elapsed() < Duration::from_secs(30), "{} connections are held", held_connections(&world.address));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Connections to an address of 127.0.0.1 whose accepting end somebody holds; other tests have descriptors, too.
fn held_connections(address: &str) -> usize {
    timers(address).len()
}

/// The timers of these.
fn timers(address: &str) -> Vec<String> {
    const LISTENING: &str = "0A";
    let port: u16 = address.rsplit(':').next().unwrap().parse().unwrap();
    let local = format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let is_held = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[1].ends_with(&local) && fields[3] != LISTENING && fields[9] != "0"
    };
    table.lines().skip(1).filter(is_held).map(|line| line.split_whitespace().nth(5).unwrap().to_owned()).collect()
}

/// Goal:   a real host that vanishes with commands in flight leaves nothing in flight for others.
/// Method: large stores begun by a host whose connections are cut; another host continues. Targets that sleep, and that poll and
///         program pages themselves.
#[test]
fn hosts_that_vanish_with_commands_in_flight() {
    for busy_poll in [false, true] {
        let world = World::with(|options| options.busy_poll = busy_poll);
        let nsid = world.namespace("a");
        for round in 0..10 {
            let host = world.host();
            let space = KeyValue::new(&host.queues()[0], nsid);
            let store = |n: u64| space.submit_store(&kaml::Key::from(n), &[1; 60_000], 0);
            let tickets: Vec<_> = (0..20).map(store).collect();
            if round % 2 == 0 {
                tickets.into_iter().for_each(|ticket| drop(host.queues()[0].wait(ticket.unwrap())));
            }
        }
        let host = world.host();
        KeyValue::new(&host.queues()[0], nsid).store(&key(b"k"), b"v", 0).unwrap();
    }
}

/// Goal:   a host that never rests does not have the target for itself.
/// Method: one keeps 256 commands in flight that complete at once, for 20 seconds at most; another one completes 100
///         meanwhile, one after the other.
#[test]
fn busy_hosts_leave_room_for_others() {
    let world = World::new();
    let nsid = world.namespace("a");
    let (busy, calm) = (world.host_with(|options| options.depth = 256), world.host());
    let (begin, done) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (queue, mut answers) = (&busy.queues()[0], Vec::new());
            let command = KeyValue::new(queue, nsid).retrieving(&key(b"x"), 16);
            while !done.load(Relaxed) && begin.elapsed() < Duration::from_secs(20) {
                while queue.enqueue(command, &[], 16).unwrap().is_some() {}
                queue.poll(Wait::Yes, &mut answers).unwrap();
                answers.clear();
            }
        });
        let records = KeyValue::new(&calm.queues()[0], nsid);
        (0..100).for_each(|_| assert!(!records.exist(&key(b"x")).unwrap()));
        done.store(true, Relaxed);
        assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    });
}

/// Goal:   a host that sends commands and does not read what they come to gets an error that it has exceeded its queue.
/// Method: Keep Alives without end, before a Connect and on a queue of 32; the target closes before it has kept much for us.
#[test]
fn who_does_not_read_is_cut_off() {
    let world = World::new();
    for connects in [false, true] {
        let mut socket = world.raw();
        socket.write_all(&bytes(&[(init(), vec![])])).unwrap();
        socket.read_exact(&mut [0; 128]).unwrap();
        if connects {
            socket.write_all(&bytes(&[connect(&world.subsystem)])).unwrap();
            socket.read_exact(&mut [0; 24]).unwrap();
        }
        socket.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        let commands = bytes(&[(Header::Command(Command::new(0x18, 0)), vec![])]).repeat(10_000);
        let begin = Instant::now();
        while socket.write_all(&commands).is_ok() {
            assert!(begin.elapsed() < Duration::from_secs(10), "it takes all of them");
        }
        drop(world.host());
    }
}

/// Goal:   memory that others hold, or request, does not keep a host from short commands; a host that has not connected holds none.
/// Method: a target whose memory is as much as two of the longest transfers; two strangers try to send that much without a Connect,
///         and are refused; a host needs to send it and does not, which takes all of the memory; another one stores and reads.
#[test]
fn slow_hosts_leave_room_for_others() {
    let world = World::with(|options| options.memory_bytes = 32 << 20);
    let nsid = world.namespace("a");
    let long = |opcode| {
        let sgl = Sgl::transport(16 << 20);
        (Header::Command(Command { sgl, ..Command::new(opcode, nsid) }), vec![])
    };
    let mut first = [0; 152];
    for _ in 0..2 {
        let mut stranger = world.raw();
        stranger.write_all(&bytes(&[(init(), vec![]), long(1)])).unwrap();
        stranger.read_exact(&mut first).unwrap();
        assert_eq!(first[128], kind::RESPONSE, "its data are not requested");
    }
    let mut slow = world.raw();
    let enable = Property::command(fabrics::PROPERTY_SET, register::CC, false, 0x0046_0061);
    let enable = (Header::Command(enable), vec![]);
    slow.write_all(&bytes(&[(init(), vec![]), connect(&world.subsystem), enable])).unwrap();
    slow.read_exact(&mut [0; 176]).unwrap();
    slow.write_all(&bytes(&[long(0x0d), long(0x0d)])).unwrap();
    for _ in 0..2 {
        slow.read_exact(&mut first[..24]).unwrap();
        assert_eq!(first[0], kind::R2T);
    }
    let begin = Instant::now();
    let host = world.host();
    let space = KeyValue::new(&host.queues()[0], nsid);
    space.store(&key(b"k"), &[5; 50_000], 0).unwrap();
    assert_eq!(space.retrieve(&key(b"k"), 50_000).unwrap().unwrap().1, 50_000);
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    drop(slow);
    space.store(&key(b"k"), &vec![5; 1 << 20], 0).unwrap();
}

/// Goal:   hosts that send, or take, their data slowly but never stop do not keep the memory forever that others wait for.
/// Method: a target with memory for two of the longest transfers, all of which a host has: it sends a byte of them every tenth of a
///         second, or takes 8 KiB of what it requested. While nobody waits it continues; then another one requests as much, and has it
///         before hosts give commands up.
#[test]
fn trickling_hosts_do_not_starve_others() {
    const LONG: u32 = 16 << 20;
    let world = World::with(|options| options.memory_bytes = 2 * LONG as usize);
    let opened = || {
        let mut socket = world.raw();
        let enable = Property::command(fabrics::PROPERTY_SET, register::CC, false, 0x0046_0061);
        let enable = (Header::Command(enable), vec![]);
        socket.write_all(&bytes(&[(init(), vec![]), connect(&world.subsystem), enable])).unwrap();
        socket.read_exact(&mut [0; 176]).unwrap();
        socket
    };
    // Commands of an admin queue: what they request is as long as they state.
    let long = |opcode| {
        let mut command = Command { sgl: Sgl::transport(LONG), ..Command::new(opcode, 0) };
        let dwords = LONG / 4 - 1;
        (command.cdw10, command.cdw11) = ((dwords << 16 | 3).into(), (dwords >> 16).into());
        (Header::Command(command), vec![])
    };
    let others_go_on = |trickle: &mut dyn FnMut(&AtomicBool)| {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                std::thread::sleep(Duration::from_secs(12));
                let asked = Instant::now();
                let mut other = opened();
                other.write_all(&bytes(&[long(0x02)])).unwrap();
                let got = other.read_exact(&mut vec![0; 24 + LONG as usize]).map(|()| asked.elapsed());
                done.store(true, Relaxed);
                got.unwrap()
            });
            trickle(&done);
            let waited = other.join().unwrap();
            assert!(waited > Duration::from_secs(1), "it had to wait: {waited:?}");
            assert!(waited < Duration::from_secs(20), "{waited:?}");
        });
    };
    let mut slow = opened();
    slow.write_all(&bytes(&[long(0x0d), long(0x0d)])).unwrap();
    slow.read_exact(&mut [0; 48]).unwrap();
    let transfer = Transfer { length: LONG.into(), ..Transfer::new_zeroed() };
    let mut data = bytes(&[(Header::DataIn(transfer, true), vec![0; LONG as usize])]);
    data.truncate(24);
    slow.write_all(&data).unwrap();
    let (begin, mut ended) = (Instant::now(), None);
    others_go_on(&mut |done| {
        while !done.load(Relaxed) && begin.elapsed() < Duration::from_secs(50) {
            if slow.write_all(&[0]).is_err() {
                ended.get_or_insert(begin.elapsed());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    assert!(ended.is_none_or(|ended| ended > Duration::from_secs(12)), "nobody waited: {ended:?}");
    let mut slow = opened();
    slow.write_all(&bytes(&[long(0x02), long(0x02), long(0x02), long(0x02)])).unwrap();
    let begin = Instant::now();
    others_go_on(&mut |done| {
        while !done.load(Relaxed) && begin.elapsed() < Duration::from_secs(50) {
            let _ = slow.read(&mut [0; 8192]); // it can be closed by now
            std::thread::sleep(Duration::from_millis(100));
        }
    });
}

/// Goal:   long commands get their turn while hosts use all memory with shorter ones, without end.
/// Method: a target with memory for two of the longest transfers; one host keeps 256 reads of 1 MiB in flight over 16 queues; another one requests a page
///         of 16 MiB, which has to complete in 10 seconds.
#[test]
fn long_commands_come_to_their_turn() {
    let world = World::with(|options| options.memory_bytes = 32 << 20);
    let nsid = world.namespace("a");
    world.device.put(nsid, key(b"k"), &vec![7; 1 << 20]).unwrap();
    let (busy, calm) = (world.host_with(|options| (options.queues, options.depth) = (16, 16)), world.host());
    let done = AtomicBool::new(false);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for queue in busy.queues() {
            let done = &done;
            scope.spawn(move || {
                let (records, mut answers) = (KeyValue::new(queue, nsid), Vec::new());
                let command = records.retrieving(&key(b"k"), 1 << 20);
                let (mut in_flight, mut ends) = (0, false);
                // To the end: responses that nobody reads would hold the memory.
                while !ends || in_flight > 0 {
                    ends = done.load(Relaxed) || begin.elapsed() > Duration::from_secs(25);
                    while !ends && queue.enqueue(command, &[], 1 << 20).unwrap().is_some() {
                        in_flight += 1;
                    }
                    if in_flight > 0 {
                        queue.poll(Wait::Yes, &mut answers).unwrap();
                        in_flight -= answers.drain(..).count();
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_secs(1));
        let asked = Instant::now();
        let page = LogRequest { lid: lid::KAML, retain: true, offset: 0, bytes: 16 << 20, csi: 0 };
        assert_eq!(calm.log_page(&page).unwrap().len(), 16 << 20);
        done.store(true, Relaxed);
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    });
}

/// Goal:   a controller that is reset again and again over one connection begins again each time: event requests that end with it take no
///         places of the queue, and what the host had set is as at first.
/// Method: a queue of 32 and forty resets, each with event requests outstanding and an event configuration; then a feature is requested.
#[test]
fn resets_leave_nothing_behind() {
    let world = World::new();
    let mut socket = world.raw();
    let property =
        |value| (Header::Command(Property::command(fabrics::PROPERTY_SET, register::CC, false, value)), vec![]);
    let feature = |opcode, value: u32| {
        let mut command = Command::new(opcode, 0);
        (command.cdw10, command.cdw11) = (0x0b.into(), value.into());
        (Header::Command(command), vec![])
    };
    let event = || (Header::Command(Command::new(0x0c, 0)), vec![]);
    socket.write_all(&bytes(&[(init(), vec![]), connect(&world.subsystem)])).unwrap();
    socket.read_exact(&mut [0; 152]).unwrap();
    let mut answers = [0; 24];
    for _ in 0..40 {
        let one =
            [property(0x0046_0061), feature(0x0a, 0), feature(0x09, 1 << 8), event(), event(), property(0x0046_0060)];
        socket.write_all(&bytes(&one)).unwrap();
        for number in 0..4 {
            socket.read_exact(&mut answers).unwrap();
            assert_eq!((answers[0], answers[22] >> 1), (kind::RESPONSE, 0), "answer {number}: {answers:?}");
            assert!(number != 1 || answers[8..12] == [0; 4], "what was set before the reset stands: {answers:?}");
        }
    }
}

/// Goal:   hosts that are not allowed to connect do not keep out those that are.
/// Method: as many connections to discovery as there are controllers, all of which remain open; then an allowed host.
#[test]
fn discovery_leaves_room_for_storage() {
    let world = World::with(|options| options.access = Access::only([&*HostOptions::default().host]));
    let open = bytes(&[(init(), vec![]), connect(DISCOVERY_NQN)]);
    let strangers: Vec<_> = (0..256)
        .map(|_| {
            let mut socket = world.raw();
            socket.write_all(&open).unwrap();
            socket.read_exact(&mut [0; 152]).unwrap();
            socket
        })
        .collect();
    drop(world.host());
    drop(strangers);
}

/// Goal:   those who connect and do not continue take no place for long, and no more places than there are.
/// Method: eight places, all taken by connections that are silent or send a byte a second, which are dropped when their time
///         for connecting to a controller is up and not before; a host is refused, and served afterwards.
#[test]
fn slow_connections_are_dropped() {
    let world = World::with(|options| options.connections_max = 8);
    let mut slow: Vec<_> = (0..8).map(|_| world.raw()).collect();
    let begin = Instant::now();
    let conversation = bytes(&[(init(), vec![])]);
    let mut late = world.raw();
    assert!(matches!(late.read(&mut [0; 8]), Ok(0) | Err(_)), "there is no place");
    let mut given = conversation.iter();
    while given.next().is_some_and(|byte| slow[0].write_all(&[*byte]).is_ok()) {
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(begin.elapsed() >= Duration::from_secs(9), "it is not dropped before its time: {:?}", begin.elapsed());
    for socket in &mut slow {
        assert!(matches!(socket.read(&mut [0; 8]), Ok(0) | Err(_)), "it is closed");
    }
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}, where 128 bytes take two minutes", begin.elapsed());
    drop(world.host());
}

/// Goal:   a target with connected hosts that request nothing takes no processor time.
/// Method: two hosts with keep-alive, three seconds, the target's thread's time: less than 1 %.
#[test]
fn idle_targets_sleep() {
    let world = World::new();
    let _hosts = [1, 2].map(|seconds| world.host_with(|options| options.keep_alive = Duration::from_secs(seconds)));
    let before = world.processor_time();
    std::thread::sleep(Duration::from_secs(3));
    let used = world.processor_time() - before;
    assert!(used <= Duration::from_millis(30), "{used:?} in 3 s");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Goal:   no sequence of PDUs, whole or mutated, stops the target.
    /// Method: random PDUs after a good beginning, one byte changed; then a good host must be served. Every fifth time to a
    ///         target that polls, which is another each time: it takes a core.
    #[test]
    fn mutated_conversations_are_survived(
        pieces in prop::collection::vec((0u8..11, any::<u32>(), any::<u16>(), 0usize..300), 1..12),
        at: prop::sample::Index, with: u8, polls in 0..5,
    ) {
        thread_local! { static WORLD: World = World::new(); }
        let attack = |world: &World| {
            let transfer = |a: u32, b: u16| Transfer { cid: b.into(), tag: (b % 3).into(), offset: (a % 99).into(), length: a.into(), reserved: 0.into() };
            let piece = |(what, a, b, length): (u8, u32, u16, usize)| match what {
                0 => (init(), vec![]),
                1..=3 => (Header::DataIn(transfer(length as u32, b), a % 2 == 0), vec![7; length.max(1)]),
                4..=6 => (Header::Command(Command { sgl: Sgl::in_capsule(length as u32), cid: b.into(), ..Command::new(a as u8, 1) }), vec![9; length]),
                _ => (Header::Command(Command { sgl: Sgl::transport(a), cid: b.into(), ..Command::new(a as u8, 1) }), vec![]),
            };
            let mut sent = bytes(&[(init(), vec![])]);
            sent.extend(bytes(&pieces.into_iter().map(piece).collect::<Vec<_>>()));
            let at = at.index(sent.len());
            sent[at] = with;
            let mut socket = world.raw();
            let _ = socket.write_all(&sent); // it can be closed before the end
            let _ = socket.shutdown(std::net::Shutdown::Write);
            let _ = socket.read_to_end(&mut Vec::new());
            drop(world.host());
        };
        match polls {
            0 => attack(&World::with(|options| options.busy_poll = true)),
            _ => WORLD.with(attack),
        }
    }
}
