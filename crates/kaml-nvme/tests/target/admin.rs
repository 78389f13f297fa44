//! Connecting, discovery, Identify, features, log pages, namespaces: what hosts request.

use crate::world::World;
use kaml_nvme::host::{Controller, HostOptions, KeyValue, Queue};
use kaml_nvme::target::{Access, Options, Server};
use kaml_nvme::transport::Digests;
use kaml_nvme::wire::command::{Command, FLAGS_FUSED, FLAGS_PSDT, admin};
use kaml_nvme::wire::fabrics::{Connect, ConnectData, DISCOVERY_NQN};
use kaml_nvme::wire::identify::{KvNamespace, cns, controller_list};
use kaml_nvme::wire::logs::{Health, LogRequest, lid};
use kaml_nvme::wire::manage::{Attributes, Create, Wanted};
use kaml_nvme::wire::status::Status;
use kaml_nvme::wire::text::{get_ascii, put_name};
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

fn words(page: &[u8]) -> Vec<u32> {
    page.chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .take_while(|word| *word != 0)
        .collect()
}

fn log(lid: u8, bytes: usize, csi: u8) -> LogRequest {
    LogRequest { lid, retain: false, offset: 0, bytes, csi }
}

/// Goal:   Linux and SPDK find in the pages what they need for a Key Value namespace.
/// Method: the list of what they look at, item by item.
#[test]
fn pages_have_what_hosts_need() {
    let world = World::new();
    let nsid = world.namespace("a");
    let host = world.host();
    let page = host.page();
    assert_eq!(page.cntlid.get(), host.id());
    assert_eq!((page.kas.get() > 0, page.ioccsz.get(), page.iorcsz.get(), page.icdoff.get()), (true, 516, 1, 0));
    assert!(page.sgls.get() & 3 != 0 && page.maxcmd.get() > 0 && page.cmic & 2 != 0 && page.cntrltype == 1);
    assert_eq!(get_ascii(&page.mn), "KAML key-value SSD");
    assert_eq!(host.transfer_bytes_max(), 16 << 20);
    assert_eq!(words(&host.identify(cns::ACTIVE_NAMESPACES, 0, 0).unwrap()), [nsid]);
    assert_eq!(words(&host.identify(cns::ACTIVE_NAMESPACES, nsid, 0).unwrap()), []);
    assert_eq!(words(&host.identify(cns::SET_ACTIVE_NAMESPACES, 0, 1).unwrap()), [nsid]);
    assert_eq!(words(&host.identify(cns::SET_ACTIVE_NAMESPACES, 0, 0).unwrap()), []);
    let descriptors = host.identify(cns::DESCRIPTORS, nsid, 0).unwrap();
    assert!(descriptors.windows(5).any(|part| part == [4, 1, 0, 0, 1]), "the command set");
    assert_eq!(descriptors[..4], [2, 16, 0, 0]);
    assert_eq!(host.identify(cns::INDEPENDENT_NAMESPACE, nsid, 0).unwrap()[14], 1, "ready");
    let blocks = host.identify(cns::NAMESPACE, nsid, 0).unwrap();
    assert!(blocks[..8] == [0; 8] && blocks[8..16] != [0; 8], "no blocks, and still a namespace to SPDK");
    let (space, _) = KvNamespace::read_from_prefix(&host.identify(cns::SET_NAMESPACE, nsid, 1).unwrap()).unwrap();
    assert_eq!(space.formats[0].key_bytes_max.get(), 16);
    assert_eq!(u64::from(space.formats[0].value_bytes_max.get()), world.device.info().value_bytes_max);
    assert_eq!(host.identify(cns::SET_CONTROLLER, 0, 0).unwrap(), [0; 4096]);
    assert_eq!(host.identify(cns::SET_CONTROLLER, 0, 1).unwrap()[..4], [0, 3, 1, 0]);
    let status = |what, nsid, csi| host.identify(what, nsid, csi).unwrap_err().status().unwrap();
    assert_eq!(status(cns::SET_CONTROLLER, 0, 2), Status::COMMAND_SET_UNSUPPORTED);
    assert_eq!(status(cns::DESCRIPTORS, 55, 0), Status::INVALID_NAMESPACE);
    assert_eq!(status(0x77, 0, 0), Status::INVALID_FIELD);
    let mut fused = Command::new(admin::IDENTIFY, 0);
    fused.cdw10 = u32::from(cns::CONTROLLER).into();
    assert_eq!(host.admin().execute(fused, &[], 4096).unwrap().status, Status::SUCCESS);
    let plain = fused.flags;
    for flags in [plain | FLAGS_FUSED, plain ^ FLAGS_PSDT, plain | FLAGS_PSDT, 0] {
        fused.flags = flags;
        assert_eq!(host.admin().execute(fused, &[], 4096).unwrap().status, Status::INVALID_FIELD, "{flags:x}");
    }
    assert_eq!(host.identify(cns::COMMAND_SETS, 0, 0).unwrap()[..16], [3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for csi in [0, 1] {
        let effects = host.log_page(&log(lid::EFFECTS, 4096, csi)).unwrap();
        assert_eq!(effects[6 * 4], 1);
        assert_eq!(effects[1024 + 4], 3, "Store or Write: supported, changes content");
        assert_eq!(effects[1024 + 4 * 0x14] & 1, csi, "Exist exists for Key Value only");
        assert_eq!(effects[1024 + 4 * 9] & 1, 1 - csi, "Dataset Management for blocks only");
    }
    let (health, _) = Health::read_from_prefix(&host.log_page(&log(lid::HEALTH, 512, 0)).unwrap()).unwrap();
    assert_eq!((health.critical_warning, health.spare_percent), (0, 100));
    let part = LogRequest { offset: 8, ..log(lid::FIRMWARE, 8, 0) };
    assert_eq!(get_ascii(&host.log_page(&part).unwrap()), env!("CARGO_PKG_VERSION"));
    assert_eq!(&host.log_page(&log(lid::KAML, 512, 0)).unwrap()[..4], b"KAML");
    assert_eq!(host.log_page(&log(0x0c, 64, 0)).unwrap_err().status().unwrap(), Status::INVALID_LOG_PAGE);
}

/// Goal:   hosts discover the subsystem, but not one that they may not connect to.
/// Method: the discovery controller, by a host that is allowed and some that are not: another one, and one without a name,
///         which may connect where all may.
#[test]
fn discovery_shows_what_is_allowed() {
    let allowed = "nqn.2024-01.test:allowed";
    let world = World::with(|options| options.access = Access::only([allowed]));
    let options = HostOptions { host: allowed.to_owned(), ..HostOptions::default() };
    let found = Controller::connect(&world.address, DISCOVERY_NQN, &options).unwrap().discovered().unwrap();
    let (address, port) = world.address.split_once(':').unwrap();
    assert_eq!(found, [(world.subsystem.clone(), address.to_owned(), port.to_owned())]);
    Controller::connect(&world.address, &world.subsystem, &options).unwrap();
    let stranger = HostOptions { host: "nqn.2024-01.test:stranger".to_owned(), ..options };
    assert_eq!(Controller::connect(&world.address, DISCOVERY_NQN, &stranger).unwrap().discovered().unwrap(), []);
    let nameless = HostOptions { host: String::new(), ..stranger.clone() };
    for host in [&stranger, &nameless] {
        let refused = Controller::connect(&world.address, &world.subsystem, host).err().unwrap();
        assert_eq!(refused.status(), Some(Status::CONNECT_HOST));
    }
    let open = World::new();
    Controller::connect(&open.address, &open.subsystem, &nameless).unwrap();
    let unknown = Controller::connect(&world.address, "nqn.2024-01.test:unknown", &stranger).err().unwrap();
    assert_eq!(unknown.status(), Some(Status::CONNECT_PARAMETERS));
}

/// Goal:   a subsystem that is listened for at two ports has two paths to the same records, and discovery shows both to a host at either.
/// Method: a host at each port; what one stores the other reads; the controllers differ and report several ports.
#[test]
fn a_subsystem_has_several_ports() {
    let device = kaml::Device::in_memory(&kaml::CreateOptions::new(64 << 20)).unwrap();
    let namespace = device.create_namespace("both", &kaml::NamespaceOptions::default()).unwrap();
    let mut server = Server::bind(&device, "127.0.0.1:0", Options::for_device(&device)).unwrap();
    server.listen_also("127.0.0.1:0").unwrap();
    let (addresses, subsystem) = (server.addresses().to_vec(), server.options().subsystem.clone());
    let stopper = server.stopper();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| server.run());
        let options = HostOptions::default();
        let mut hosts = Vec::new();
        for (at, address) in addresses.iter().enumerate() {
            let discovery = Controller::connect(&address.to_string(), DISCOVERY_NQN, &options).unwrap();
            let found = discovery.discovered().unwrap();
            let shown = |at: usize| (subsystem.clone(), "127.0.0.1".to_owned(), addresses[at].port().to_string());
            assert_eq!(found, [shown(at), shown(1 - at)]);
            hosts.push(Controller::connect(&address.to_string(), &subsystem, &options).unwrap());
        }
        assert_ne!(hosts[0].id(), hosts[1].id());
        assert_eq!(hosts[0].identify(1, 0, 0).unwrap()[76] & 0b11, 0b11, "several ports, several controllers");
        device.namespace_with_id(namespace).put("path", b"any").unwrap();
        for address in &addresses {
            let url = format!("nvme+tcp://{address}/{subsystem}").parse().unwrap();
            let remote = kaml_nvme::host::RemoteDevice::open(&url, &options).unwrap();
            let found = remote.get(namespace, "path").unwrap();
            assert_eq!(found.as_deref(), Some(&b"any"[..]));
        }
        drop(hosts);
        stopper.stop();
        running.join().unwrap().unwrap();
    });
}

/// Goal:   Namespace Management is CreateNamespace and DeleteNamespace; attachment and events follow it.
/// Method: one host creates with attributes, attaches, stores, deletes; a second one waits for events.
#[test]
fn namespaces_are_managed_by_hosts() {
    let world = World::new();
    let (host, other) = (world.host(), world.host());
    assert_ne!(host.id(), other.id());
    let mut listen = Command::new(admin::SET_FEATURES, 0);
    (listen.cdw10, listen.cdw11) = (0x0b.into(), (1 << 8).into());
    for host in [&host, &other] {
        host.admin().execute(listen, &[], 0).unwrap().success().unwrap();
    }
    let event = other.admin().submit(Command::new(admin::ASYNC_EVENT, 0), &[], 0).unwrap();

    let manage = |select: u32, nsid: u32, data: &[u8]| {
        let mut command = Command::new(admin::NAMESPACE_MANAGEMENT, nsid);
        (command.cdw10, command.cdw11) = (select.into(), (1 << 24).into());
        host.admin().execute(command, data, 0).unwrap()
    };
    let mut create = Create::new_zeroed();
    let wanted =
        Wanted { name: Some("made".into()), keys: Some(kaml::KeyKind::U64), logs: vec![0], ..Wanted::default() };
    create.kaml = Attributes::of(&wanted).unwrap();
    let nsid = manage(0, 0, create.as_bytes()).success().unwrap().result as u32;
    let info = world.device.namespaces().into_iter().find(|info| info.id == nsid).unwrap();
    assert_eq!((info.name.as_str(), info.keys(), info.logs.as_slice()), ("made", kaml::KeyKind::U64, &[0][..]));
    assert_eq!(manage(0, 0, create.as_bytes()).status, Status::INVALID_FIELD, "the name is taken");
    let unnamed = manage(0, 0, Create::new_zeroed().as_bytes()).success().unwrap().result as u32;
    assert_eq!(words(&host.identify(cns::ALLOCATED_NAMESPACES, 0, 0).unwrap()), [nsid, unnamed]);
    assert_eq!(words(&host.identify(cns::ACTIVE_NAMESPACES, 0, 0).unwrap()), [], "created is not attached");

    let attach = |select: u32, ids: &[u16]| {
        let mut command = Command::new(admin::NAMESPACE_ATTACHMENT, nsid);
        command.cdw10 = select.into();
        host.admin().execute(command, &controller_list(ids.iter().copied()), 0).unwrap().status
    };
    assert_eq!(attach(0, &[]), Status::INVALID_CONTROLLER_LIST);
    assert_eq!(attach(0, &[host.id(), 999]), Status::INVALID_CONTROLLER_LIST);
    assert_eq!(attach(1, &[host.id()]), Status::NAMESPACE_NOT_ATTACHED);
    assert_eq!(attach(0, &[host.id(), other.id()]), Status::SUCCESS);
    assert_eq!(attach(0, &[host.id()]), Status::NAMESPACE_ATTACHED);
    assert_eq!(words(&host.identify(cns::ACTIVE_NAMESPACES, 0, 0).unwrap()), [nsid]);
    assert_eq!(other.admin().wait(event).unwrap().result, 0x04_0002, "a notice: namespaces have changed");
    assert_eq!(words(&other.log_page(&log(lid::CHANGED_NAMESPACES, 4096, 0)).unwrap()), [nsid]);
    assert_eq!(words(&other.log_page(&log(lid::CHANGED_NAMESPACES, 4096, 0)).unwrap()), []);

    let space = KeyValue::new(&other.queues()[0], nsid);
    space.store(&kaml::Key::from(1), b"one", 0).unwrap();
    let event = other.admin().submit(Command::new(admin::ASYNC_EVENT, 0), &[], 0).unwrap();
    assert_eq!(manage(1, nsid, &[]).status, Status::SUCCESS);
    assert_eq!(other.admin().wait(event).unwrap().result, 0x04_0002);
    let told = host.log_page(&log(lid::CHANGED_NAMESPACES, 4096, 0)).unwrap();
    assert_eq!(words(&told), [], "who creates, attaches and deletes knows");
    assert_eq!(space.exist(&kaml::Key::from(1)).unwrap_err().status(), Some(Status::INVALID_NAMESPACE));
    assert!(world.device.namespaces().iter().all(|info| info.id != nsid));

    let more = [world.namespace("b"), world.namespace("c")];
    let all = [&[unnamed][..], &more].concat();
    while words(&other.identify(cns::ALLOCATED_NAMESPACES, 0, 0).unwrap()) != all {
        std::thread::sleep(Duration::from_millis(100));
    }
    other.log_page(&log(lid::CHANGED_NAMESPACES, 4096, 0)).unwrap();
    assert_eq!(manage(1, u32::MAX, &[]).status, Status::SUCCESS);
    assert_eq!(words(&other.log_page(&log(lid::CHANGED_NAMESPACES, 4096, 0)).unwrap()), more, "each that was attached");
}

/// Goal:   a host that never had a namespace is not notified of its deletion; a host that had it is.
/// Method: one host creates two namespaces and attaches one of them to another host, then deletes both.
#[test]
fn who_never_had_a_namespace_does_not_miss_it() {
    let world = World::new();
    let (host, other) = (world.host(), world.host());
    let mut listen = Command::new(admin::SET_FEATURES, 0);
    (listen.cdw10, listen.cdw11) = (0x0b.into(), (1 << 8).into());
    other.admin().execute(listen, &[], 0).unwrap().success().unwrap();
    let manage = |select: u32, nsid: u32, data: &[u8]| {
        let mut command = Command::new(admin::NAMESPACE_MANAGEMENT, nsid);
        (command.cdw10, command.cdw11) = (select.into(), (1 << 24).into());
        host.admin().execute(command, data, 0).unwrap().success().unwrap().result as u32
    };
    let [had, missing] = [(); 2].map(|()| manage(0, 0, Create::new_zeroed().as_bytes()));
    let attach = Command::new(admin::NAMESPACE_ATTACHMENT, had);
    host.admin().execute(attach, &controller_list([other.id()].into_iter()), 0).unwrap().success().unwrap();
    other.log_page(&log(lid::CHANGED_NAMESPACES, 4096, 0)).unwrap();
    manage(1, missing, &[]);
    assert_eq!(words(&other.log_page(&log(lid::CHANGED_NAMESPACES, 4096, 0)).unwrap()), []);
    manage(1, had, &[]);
    assert_eq!(words(&other.log_page(&log(lid::CHANGED_NAMESPACES, 4096, 0)).unwrap()), [had]);
}

/// Goal:   features, abort and event requests answer as hosts expect.
/// Method: number of queues, keep-alive, delete of missing keys, unknown ones; abort of an event request and of nothing.
#[test]
fn features_and_abort() {
    let world = World::new();
    let nsid = world.namespace("a");
    let host = world.host();
    let feature = |opcode: u8, nsid: u32, fid: u32, value: u32| {
        let mut command = Command::new(opcode, nsid);
        (command.cdw10, command.cdw11) = (fid.into(), value.into());
        host.admin().execute(command, &[], 0).unwrap()
    };
    assert_eq!(feature(admin::GET_FEATURES, 0, 0x07, 0).result, 0, "one queue was requested and granted");
    assert_eq!(feature(admin::SET_FEATURES, 0, 0x0f, 1500).status, Status::SUCCESS);
    assert_eq!(feature(admin::GET_FEATURES, 0, 0x0f, 0).result, 2000);
    assert_eq!(feature(admin::SET_FEATURES, 0, 0x0f, 0).status, Status::SUCCESS);
    assert_eq!(feature(admin::SET_FEATURES, 0, 0x04, 333).status, Status::SUCCESS);
    assert_eq!(feature(admin::GET_FEATURES, 0, 0x04, 0).result, 333);
    assert_eq!(feature(admin::GET_FEATURES, 0, 0x04 | 1 << 8, 0).result, 343, "the default");
    assert_eq!(feature(admin::GET_FEATURES, 0, 0x04, 1 << 20).result, 0, "the threshold below");
    assert_eq!(feature(admin::GET_FEATURES, 0, 0x04, 2 << 20).status, Status::INVALID_FIELD);
    assert_eq!(feature(admin::SET_FEATURES, 0, 0x04, 333 | 1 << 16).status, Status::INVALID_FIELD, "one sensor");
    assert_eq!(feature(admin::GET_FEATURES, 0, 0xd0, 0).status, Status::INVALID_FIELD);
    assert_eq!(feature(admin::SET_FEATURES, 0, 0x81, 0).status, Status::COMMAND_SEQUENCE);
    let mut command = Command::new(admin::GET_FEATURES, 0);
    (command.cdw10, command.cdw11) = (0x81.into(), 1.into());
    assert_eq!(host.admin().execute(command, &[], 16).unwrap().data, HostOptions::default().host_id);
    let space = KeyValue::new(&host.queues()[0], nsid);
    let missing = kaml::Key::from(5);
    space.delete(&missing).unwrap();
    assert_eq!(feature(admin::SET_FEATURES, nsid, 0x20, 1).status, Status::SUCCESS);
    assert_eq!(feature(admin::GET_FEATURES, nsid, 0x20, 0).result, 1);
    assert_eq!(space.delete(&missing).unwrap_err().status(), Some(Status::NO_SUCH_KEY));

    let event = host.admin().submit(Command::new(admin::ASYNC_EVENT, 0), &[], 0).unwrap();
    let mut aborted = 1;
    for cid in 0..32u32 {
        let mut command = Command::new(admin::ABORT, 0);
        command.cdw10 = (cid << 16).into();
        aborted &= host.admin().execute(command, &[], 0).unwrap().success().unwrap().result;
    }
    assert_eq!(aborted, 0, "one of them was the event request");
    assert_eq!(host.admin().wait(event).unwrap().status, Status::ABORT_REQUESTED);
    assert_eq!(host.admin().execute(Command::new(0x05, 0), &[], 0).unwrap().status, Status::INVALID_OPCODE);
}

/// Goal:   a host that needs to hear of the device's health does, once until the page is read and the warning has passed.
/// Method: thresholds of the temperature around the one it has, since blocks of memory do not fail.
#[test]
fn warnings_are_told() {
    let world = World::new();
    let host = world.host();
    let set = |fid: u32, value: u32| {
        let mut command = Command::new(admin::SET_FEATURES, 0);
        (command.cdw10, command.cdw11) = (fid.into(), value.into());
        host.admin().execute(command, &[], 0).unwrap().success().unwrap();
    };
    let warning = || host.log_page(&log(lid::HEALTH, 512, 0)).unwrap()[0];
    let event = || host.admin().submit(Command::new(admin::ASYNC_EVENT, 0), &[], 0).unwrap();
    let first = event();
    assert_eq!(warning(), 0);
    set(0x04, 300);
    assert_eq!(warning(), 2, "as warm as the threshold over it");
    set(0x0b, 0xff);
    assert_eq!(
        host.admin().wait(first).unwrap().result,
        0x02_0101,
        "on request it is reported, though it existed before"
    );
    let second = event();
    set(0x04, 301);
    assert_eq!(warning(), 0);
    std::thread::sleep(Duration::from_secs(1)); // it passes
    set(0x04, 299 | 1 << 20);
    assert_eq!(warning(), 0);
    set(0x04, 300 | 1 << 20);
    assert_eq!(host.admin().wait(second).unwrap().result, 0x02_0101, "as cold as the threshold under it");
}

/// Goal:   an I/O queue joins the controller of its host, which is recognised by its name, whatever identifier it has.
/// Method: queues of another host and of one that makes a new identifier for each connection.
#[test]
fn queues_join_their_host() {
    let world = World::new();
    let nsid = world.namespace("a");
    let host = world.host_with(|options| options.queues = 0);
    let join = |name: &str| {
        let queue = Queue::open(&world.address, 4, Digests::default()).unwrap();
        let mut data = ConnectData::new_zeroed();
        (data.host_id, data.cntlid) = ([9; 16], host.id().into());
        put_name(&mut data.subsystem, &world.subsystem);
        put_name(&mut data.host, name);
        let mut connect = Connect::new_zeroed();
        (connect.queue, connect.queue_size) = (1.into(), 4.into());
        let status = queue.execute(connect.command(), data.as_bytes(), 0).unwrap().status;
        (queue, status)
    };
    assert_eq!(join("nqn.2024-01.test:stranger").1, Status::CONNECT_PARAMETERS);
    let (queue, status) = join(&HostOptions::default().host);
    assert_eq!(status, Status::SUCCESS);
    KeyValue::new(&queue, nsid).store(&kaml::Key::from(1), b"one", 0).unwrap();
    assert_eq!(join(&HostOptions::default().host).1, Status::COMMAND_SEQUENCE, "the queue exists already");
}

/// Goal:   a silent host loses its controller, one that keeps it alive does not.
/// Method: two hosts with a time-out of one second, one of them without keep-alive commands.
#[test]
fn silent_hosts_are_dropped() {
    let world = World::new();
    world.namespace("a");
    let alive = world.host_with(|options| options.keep_alive = Duration::from_secs(1));
    let silent = world.host();
    let mut command = Command::new(admin::SET_FEATURES, 0);
    (command.cdw10, command.cdw11) = (0x0f.into(), 1000.into());
    silent.admin().execute(command, &[], 0).unwrap().success().unwrap();
    std::thread::sleep(Duration::from_millis(3500));
    assert!(silent.admin().execute(Command::new(admin::KEEP_ALIVE, 0), &[], 0).is_err(), "the connection is closed");
    assert!(silent.queues()[0].execute(Command::new(0, 1), &[], 0).is_err(), "those of its queues too");
    alive.queues()[0].execute(Command::new(0, 1), &[], 0).unwrap().success().unwrap();
}
