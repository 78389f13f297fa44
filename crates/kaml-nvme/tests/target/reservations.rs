//! Reservations: hosts that keep each other from using a namespace.

use crate::world::{World, key};
use kaml::{BlockOptions, Device, NamespaceOptions, VersionOptions};
use kaml_nvme::host::{Blocks, Controller, Error, KeyValue, Reservations, Ticket};
use kaml_nvme::target::KeepReservations;
use kaml_nvme::wire::command::{Command, admin};
use kaml_nvme::wire::identify::cns;
use kaml_nvme::wire::logs::{LogRequest, lid};
use kaml_nvme::wire::manage::{PutAction, encode_put};
use kaml_nvme::wire::reservations::{Kind, Notice, Registrant, Report, Wish};
use kaml_nvme::wire::status::Status;
use kaml_testkit::Held;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

const CONFLICT: Option<Status> = Some(Status::RESERVATION_CONFLICT);

fn host(world: &World, number: u8) -> Controller {
    world.host_with(|options| {
        (options.host, options.host_id) = (format!("nqn.2024-01.test:{number}"), [number; 16]);
    })
}

fn status<T: std::fmt::Debug>(result: Result<T, Error>) -> Option<Status> {
    result.unwrap_err().status()
}

fn of(host: &Controller, nsid: u32) -> Reservations<'_> {
    Reservations::new(&host.queues()[0], nsid)
}

/// The kind of the oldest notice, its namespace, and how many more there are.
fn notice(host: &Controller) -> (u8, u32, u8) {
    let request = LogRequest { lid: lid::RESERVATIONS, retain: false, offset: 0, bytes: 64, csi: 0 };
    let page = host.log_page(&request).unwrap();
    (page[8], u32::from_le_bytes(page[12..16].try_into().unwrap()), page[9])
}

/// Goal:   a host that does not hold a reservation is refused whatever it excludes, by every command that reaches the namespace.
/// Method: records, blocks and versions reserved by one host; commands of all groups by another, batches over several
///         namespaces and management included; then the same without a reservation.
#[test]
fn others_are_kept_out() {
    let world = World::new();
    let (free, records) = (world.namespace("free"), world.namespace("records"));
    let disk = world.device.create_namespace("disk", &BlockOptions::new(512, 1000).into()).unwrap();
    let versioned = NamespaceOptions::from(VersionOptions::default());
    let past = world.device.create_namespace("past", &versioned).unwrap();
    let (mine, other) = (host(&world, 1), host(&world, 2));
    let queue = &other.queues()[0];
    let (theirs, versions) = (KeyValue::new(queue, records), KeyValue::new(queue, past));
    let blocks = Blocks::new(&other, queue, disk).unwrap();
    let name = key(b"k");
    KeyValue::new(&mine.queues()[0], records).store(&name, b"v", 0).unwrap();
    let list = theirs.name_keys(&[(records, name)]).unwrap();
    let mut put = Vec::new();
    [free, records].iter().for_each(|nsid| encode_put(&mut put, *nsid, &name, PutAction::Store(b"x")));
    let from_free = KeyValue::new(queue, free);
    let reads = || -> Vec<(&str, Option<Status>)> {
        let what = |result: Result<(), Error>| result.err().and_then(|error| error.status());
        vec![
            ("retrieve", what(theirs.retrieve(&name, 10).map(drop))),
            ("exist", what(theirs.exist(&name).map(drop))),
            ("list", what(theirs.list(None, 100).map(drop))),
            ("named", what(from_free.retrieve_named(list, 0, 100).map(drop))),
            ("history", what(versions.history(&name, 10).map(drop))),
            ("read", what(blocks.read(0, 512).map(drop))),
        ]
    };
    let writes = || -> Vec<(&str, Option<Status>)> {
        let what = |result: Result<(), Error>| result.err().and_then(|error| error.status());
        vec![
            ("store", what(theirs.store(&name, b"x", 0))),
            ("delete", what(theirs.delete(&name))),
            ("batch", what(from_free.put(&put, 2))),
            ("flush", what(queue.execute(Command::new(0, records), &[], 0).unwrap().success().map(drop))),
            ("snapshot", what(versions.take_snapshot().map(drop))),
            ("write", what(blocks.write(0, &[1; 512]))),
        ]
    };
    let all = [records, disk, past];
    for kind in [Kind::WriteExclusive, Kind::ExclusiveAccess] {
        for nsid in all {
            of(&mine, nsid).carry_out(&Wish::Register { key: 7 }).unwrap();
            of(&mine, nsid).carry_out(&Wish::Acquire { key: 7, kind }).unwrap();
        }
        let expected = if kind == Kind::ExclusiveAccess { CONFLICT } else { None };
        assert!(reads().iter().all(|(_, status)| *status == expected), "{kind:?}: {:?}", reads());
        assert!(writes().iter().all(|(_, status)| *status == CONFLICT), "{kind:?}: {:?}", writes());
        let mut delete = Command::new(admin::NAMESPACE_MANAGEMENT, records);
        delete.cdw10 = 1.into();
        assert_eq!(status(other.admin().execute(delete, &[], 0).unwrap().success()), CONFLICT);
        KeyValue::new(&mine.queues()[0], records).store(&name, b"v", 0).unwrap();
        assert_eq!(world.device.get(records, name).unwrap().as_deref(), Some(&b"v"[..]), "nothing has gone through");
        assert_eq!(world.device.get(free, name).unwrap(), None, "not even a part of a batch");
        all.iter().for_each(|nsid| of(&mine, *nsid).carry_out(&Wish::Clear { key: 7 }).unwrap());
    }
    assert!(reads().iter().chain(&writes()).all(|(_, status)| status.is_none()));
}

/// Goal:   hosts learn from Identify and features what the target can, and from reports how reservations stand.
/// Method: capabilities of all pages; what does not persist is refused; a report of more hosts than fit a page; hosts that
///         have gone are registered still; a namespace that is gone has none.
#[test]
fn reports_tell_how_they_stand() {
    let world = World::new();
    let nsid = world.namespace("records");
    let disk = world.device.create_namespace("disk", &BlockOptions::new(512, 1000).into()).unwrap();
    let first = host(&world, 1);
    assert_eq!(first.page().oncs.get() & 1 << 5, 1 << 5);
    let says = |what: u8, nsid: u32, csi: u8, at: usize| first.identify(what, nsid, csi).unwrap()[at];
    assert_eq!([says(cns::NAMESPACE, disk, 0, 31), says(cns::SET_NAMESPACE, nsid, 1, 27)], [0xfe; 2]);
    assert_eq!([says(cns::INDEPENDENT_NAMESPACE, disk, 0, 2), says(cns::INDEPENDENT_NAMESPACE, nsid, 1, 2)], [0xfe; 2]);
    let feature = |opcode: u8, nsid: u32, fid: u32, value: u32| {
        let mut command = Command::new(opcode, nsid);
        (command.cdw10, command.cdw11) = (fid.into(), value.into());
        first.admin().execute(command, &[], 0).unwrap()
    };
    assert_eq!(feature(admin::SET_FEATURES, nsid, 0x83, 1).status, Status::INVALID_FIELD);
    assert_eq!(feature(admin::GET_FEATURES, nsid, 0x83, 0).result, 0);
    let (mut persist, data) = Wish::Register { key: 1 }.encode(nsid);
    persist.cdw10 = (3 << 30).into();
    assert_eq!(first.queues()[0].execute(persist, &data, 0).unwrap().status, Status::INVALID_FIELD);
    let mut short = Report::command(nsid, 64);
    short.cdw11 = 0.into();
    assert_eq!(first.queues()[0].execute(short, &[], 64).unwrap().status, Status::HOST_ID_FORMAT);

    assert_eq!(of(&first, nsid).report().unwrap(), Report::default());
    for number in 1..=100 {
        of(&host(&world, number), nsid).carry_out(&Wish::Register { key: number.into() }).unwrap();
    }
    of(&first, nsid).carry_out(&Wish::Acquire { key: 1, kind: Kind::WriteExclusive }).unwrap();
    let report = of(&first, nsid).report().unwrap();
    assert_eq!((report.generation, report.kind, report.registrants.len()), (100, Some(Kind::WriteExclusive), 100));
    assert_eq!(report.registrants[0], Registrant { host: [1; 16], key: 1, is_holder: true });
    assert_eq!(report.registrants[99], Registrant { host: [100; 16], key: 100, is_holder: false });
    let nobody = world.host_with(|options| options.host_id = [0; 16]);
    assert_eq!(status(of(&nobody, nsid).carry_out(&Wish::Register { key: 1 })), Some(Status::OPERATION_DENIED));

    let mut delete = Command::new(admin::NAMESPACE_MANAGEMENT, nsid);
    delete.cdw10 = 1.into();
    first.admin().execute(delete, &[], 0).unwrap().success().unwrap();
    assert_eq!(status(of(&first, nsid).report()), Some(Status::INVALID_NAMESPACE));
}

/// Goal:   a host that loses its registration is notified, and stays unregistered, also when it connects again.
/// Method: preempt a host that waits for events, twice for two namespaces, one of which it has masked.
#[test]
fn those_who_lose_are_told() {
    let world = World::new();
    let spaces = [world.namespace("a"), world.namespace("b"), world.namespace("unheard")];
    let (mine, other) = (host(&world, 1), host(&world, 2));
    for nsid in spaces {
        of(&mine, nsid).carry_out(&Wish::Register { key: 1 }).unwrap();
        of(&other, nsid).carry_out(&Wish::Register { key: 2 }).unwrap();
        of(&other, nsid).carry_out(&Wish::Acquire { key: 2, kind: Kind::ExclusiveAccess }).unwrap();
    }
    let mut mask = Command::new(admin::SET_FEATURES, spaces[2]);
    (mask.cdw10, mask.cdw11) = (0x82.into(), Notice::RegistrationPreempted.mask().into());
    other.admin().execute(mask, &[], 0).unwrap().success().unwrap();
    let wait = || other.admin().submit(Command::new(admin::ASYNC_EVENT, 0), &[], 0).unwrap();
    let told = |event: Ticket| other.admin().wait(event).unwrap().result;
    let event = wait();
    for nsid in [spaces[2], spaces[0], spaces[1]] {
        let kind = Kind::WriteExclusive;
        of(&mine, nsid).carry_out(&Wish::Preempt { key: 1, kind, victim: 2, abort: true }).unwrap();
        let again = host(&world, 2);
        for theirs in [&other, &again] {
            let space = KeyValue::new(&theirs.queues()[0], nsid);
            assert_eq!(status(space.store(&key(b"k"), b"x", 0)), CONFLICT);
        }
    }
    assert_eq!(told(event), 0x80_0006);
    let event = wait();
    assert_eq!(notice(&other), (Notice::RegistrationPreempted as u8, spaces[0], 1));
    assert_eq!(told(event), 0x80_0006, "there is another one");
    assert_eq!(notice(&other), (Notice::RegistrationPreempted as u8, spaces[1], 0));
    assert_eq!((notice(&other), notice(&mine)), ((0, 0, 0), (0, 0, 0)));
}

/// Goal:   when Preempt and Abort completes, nothing that its victim has begun changes the namespace any more.
/// Method: a victim that stores large values, preempted sooner or later: what exists at the completion still exists when all of
///         them complete, and it is those that were not refused.
#[test]
fn aborted_commands_are_over() {
    let world = World::new();
    let nsid = world.namespace("a");
    let (mine, other) = (host(&world, 1), host(&world, 2));
    let (space, theirs) = (KeyValue::new(&mine.queues()[0], nsid), KeyValue::new(&other.queues()[0], nsid));
    let kind = Kind::WriteExclusiveRegistrants;
    of(&mine, nsid).carry_out(&Wish::Register { key: 1 }).unwrap();
    of(&mine, nsid).carry_out(&Wish::Acquire { key: 1, kind }).unwrap();
    let keys: Vec<_> = (0..8u64).map(kaml::Key::from).collect();
    let mut stored = 0;
    for round in 0..40u64 {
        of(&other, nsid).carry_out(&Wish::Register { key: 2 }).unwrap();
        let value = vec![round as u8; 300_000];
        let seen = |key| space.retrieve(key, 1).unwrap().map(|(value, _)| value[0]);
        let (before, ends) = std::thread::scope(|scope| {
            let victim = scope.spawn(|| {
                let tickets: Vec<_> = keys.iter().map(|key| theirs.submit_store(key, &value, 0).unwrap()).collect();
                let end = |ticket| other.queues()[0].wait(ticket).unwrap().status;
                tickets.into_iter().map(end).collect::<Vec<_>>()
            });
            std::thread::sleep(Duration::from_micros(round % 20 * 300));
            of(&mine, nsid).carry_out(&Wish::Preempt { key: 1, kind, victim: 2, abort: true }).unwrap();
            let before: Vec<_> = keys.iter().map(seen).collect();
            (before, victim.join().unwrap())
        });
        let after: Vec<_> = keys.iter().map(seen).collect();
        assert_eq!(before, after, "round {round}");
        for (end, value) in ends.iter().zip(&after) {
            assert_eq!(end.is_success(), *value == Some(round as u8), "round {round}: {end}");
            assert!(end.is_success() || *end == Status::RESERVATION_CONFLICT, "round {round}: {end}");
        }
        stored += ends.iter().filter(|end| end.is_success()).count();
    }
    assert!((1..320).contains(&stored), "{stored} of 320 came before");
}

/// Goal:   Preempt and Abort waits for what its victim has begun on the namespace, and for nothing else: neither for what it does
///         elsewhere, nor for others that have gone.
/// Method: workers are held up by a host's read of the namespace, which leaves, and by the victim's of another one; preempted then, and
///         again with a read of the namespace in progress.
#[test]
fn others_are_not_waited_for() {
    let (held, medium) = Held::new();
    let world = World::serving(Device::on_medium(medium).unwrap(), |_| {});
    let [here, elsewhere] = ["here", "elsewhere"].map(|name| {
        let nsid = world.namespace(name);
        world.device.put(nsid, key(b"one"), b"value").unwrap();
        assert!(world.device.unload_namespace(nsid).unwrap());
        nsid
    });
    let (mine, victim, gone) = (host(&world, 1), host(&world, 2), host(&world, 3));
    let kind = Kind::WriteExclusiveRegistrants;
    of(&mine, here).carry_out(&Wish::Register { key: 1 }).unwrap();
    of(&mine, here).carry_out(&Wish::Acquire { key: 1, kind }).unwrap();
    held.hold(true);
    let retrieve =
        |host: &Controller, nsid| KeyValue::new(&host.queues()[0], nsid).submit_retrieve(&key(b"one"), 10).unwrap();
    let _unanswered = retrieve(&gone, here);
    while held.waiting.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(gone);
    let _elsewhere = retrieve(&victim, elsewhere);
    std::thread::sleep(Duration::from_millis(300));
    let (say, said) = channel();
    let (mine, abort) = (&mine, Wish::Preempt { key: 1, kind, victim: 2, abort: true });
    let preempt = move || {
        of(mine, here).carry_out(&abort).unwrap();
        let _ = say.send(());
    };
    std::thread::scope(|scope| {
        of(&victim, here).carry_out(&Wish::Register { key: 2 }).unwrap();
        scope.spawn(preempt.clone());
        let is_soon = said.recv_timeout(Duration::from_secs(5)).is_ok();
        let mut is_early = false;
        if is_soon {
            let _here = retrieve(&victim, here);
            of(&victim, here).carry_out(&Wish::Register { key: 2 }).unwrap();
            scope.spawn(preempt);
            is_early = said.recv_timeout(Duration::from_millis(500)).is_ok();
        }
        held.hold(false);
        assert!(is_soon, "what is under way is not its victim's, or elsewhere");
        assert!(!is_early, "its victim reads");
        said.recv_timeout(Duration::from_secs(10)).unwrap();
    });
}

/// Goal:   the same holds for a victim whose connections are gone, which is why hosts are preempted.
/// Method: a victim that disconnects in the middle of large stores; what exists at the answer is there a while later.
#[test]
fn commands_of_the_gone_are_over() {
    let world = World::new();
    let nsid = world.namespace("a");
    let mine = host(&world, 1);
    let space = KeyValue::new(&mine.queues()[0], nsid);
    let kind = Kind::WriteExclusiveRegistrants;
    of(&mine, nsid).carry_out(&Wish::Register { key: 1 }).unwrap();
    of(&mine, nsid).carry_out(&Wish::Acquire { key: 1, kind }).unwrap();
    let keys: Vec<_> = (0..8u64).map(kaml::Key::from).collect();
    for round in 0..25u64 {
        let other = host(&world, 2);
        of(&other, nsid).carry_out(&Wish::Register { key: 2 }).unwrap();
        let theirs = KeyValue::new(&other.queues()[0], nsid);
        let value = vec![round as u8; 300_000];
        let tickets: Vec<_> = keys.iter().map(|key| theirs.submit_store(key, &value, 0).unwrap()).collect();
        other.queues()[0].wait(tickets.into_iter().next().unwrap()).unwrap();
        drop(other);
        of(&mine, nsid).carry_out(&Wish::Preempt { key: 1, kind, victim: 2, abort: true }).unwrap();
        let seen = |key| space.retrieve(key, 1).unwrap().map(|(value, _)| value[0]);
        let before: Vec<_> = keys.iter().map(seen).collect();
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(before, keys.iter().map(seen).collect::<Vec<_>>(), "round {round}");
    }
}

/// Goal:   reservations that a host wants to persist survive the target, and those that it does not are gone; a command whose effect cannot be
///         made durable is refused and has none.
/// Method: two namespaces reserved by Register with CPTPL 11b, as Linux sends it, and without; the same device served again, where another host
///         is kept out of the one; then CPTPL 10b, and again; feature 83h; a folder that does not exist.
#[test]
fn reservations_survive_the_target() {
    let folder = tempfile::tempdir().unwrap();
    let keep = KeepReservations::File(folder.path().join("reservations"));
    let serve = |device: kaml::Device, keep: &KeepReservations| {
        World::serving(device, |options| options.reservations = keep.clone())
    };
    let register = |host: &Controller, nsid: u32, wish: &Wish, cptpl: u32| {
        let (mut command, data) = wish.encode(nsid);
        command.cdw10 = (command.cdw10.get() | cptpl << 30).into();
        host.queues()[0].execute(command, &data, 0).unwrap().status
    };
    let world = serve(kaml::Device::in_memory(&kaml::CreateOptions::new(64 << 20)).unwrap(), &keep);
    let (kept, lost) = (world.namespace("kept"), world.namespace("lost"));
    let first = host(&world, 1);
    assert_eq!(first.identify(cns::SET_NAMESPACE, kept, 1).unwrap()[27], 0xff);
    assert_eq!(register(&first, kept, &Wish::Register { key: 1 }, 1), Status::INVALID_FIELD, "reserved");
    assert_eq!(register(&first, kept, &Wish::Register { key: 1 }, 3), Status::SUCCESS);
    assert_eq!(register(&first, lost, &Wish::Register { key: 1 }, 0), Status::SUCCESS);
    for nsid in [kept, lost] {
        of(&first, nsid).carry_out(&Wish::Acquire { key: 1, kind: Kind::WriteExclusive }).unwrap();
    }
    let before = of(&first, kept).report().unwrap();
    assert!(before.persists);
    let device = world.device.clone();
    drop((first, world));

    let world = serve(device, &keep);
    let (first, other) = (host(&world, 1), host(&world, 2));
    assert_eq!(of(&other, kept).report().unwrap(), before);
    assert_eq!(of(&other, lost).report().unwrap(), Report::default());
    let put = |host: &Controller| KeyValue::new(&host.queues()[0], kept).store(&key(b"k"), b"v", 0);
    assert_eq!(status(put(&other)), Some(Status::RESERVATION_CONFLICT));
    put(&first).unwrap();
    let feature = |opcode: u8, nsid: u32, value: u32| {
        let mut command = Command::new(opcode, nsid);
        (command.cdw10, command.cdw11) = (0x83.into(), value.into());
        first.admin().execute(command, &[], 0).unwrap()
    };
    assert_eq!([kept, lost].map(|nsid| feature(admin::GET_FEATURES, nsid, 0).result), [1, 0]);
    assert_eq!(feature(admin::SET_FEATURES, lost, 1).status, Status::SUCCESS);
    assert_eq!(register(&first, kept, &Wish::Replace { key: Some(1), new: 2 }, 2), Status::SUCCESS);
    assert_eq!([kept, lost].map(|nsid| feature(admin::GET_FEATURES, nsid, 0).result), [0, 1]);
    let device = world.device.clone();
    drop((first, other, world));

    let nowhere = KeepReservations::File(folder.path().join("none/reservations"));
    let world = serve(device.clone(), &keep);
    assert_eq!(of(&host(&world, 2), kept).report().unwrap(), Report::default());
    drop(world);
    let world = serve(device, &nowhere);
    let first = host(&world, 1);
    assert_eq!(register(&first, kept, &Wish::Register { key: 1 }, 3), Status::INTERNAL);
    assert_eq!(of(&first, kept).report().unwrap(), Report::default(), "it has no effect");
    assert_eq!(register(&first, kept, &Wish::Register { key: 1 }, 0), Status::SUCCESS);
}
