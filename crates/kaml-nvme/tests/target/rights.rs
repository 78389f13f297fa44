//! What hosts may do with each namespace, and with none.

use crate::world::{World, key};
use kaml::{BlockOptions, NamespaceId};
use kaml_nvme::host::{Blocks, Controller, Error, HostOptions, KeyValue, RemoteDevice, RemoteUrl, Reservations};
use kaml_nvme::target::{Access, HostAccess, Right, Rights};
use kaml_nvme::wire::command::{Command, admin};
use kaml_nvme::wire::identify::{KvNamespace, NvmNamespace, cns, controller_list};
use kaml_nvme::wire::logs::{LogRequest, lid};
use kaml_nvme::wire::manage::{Create, PutAction, encode_put};
use kaml_nvme::wire::reservations::Wish;
use kaml_nvme::wire::status::Status;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const READER: &str = "nqn.2026-11.example:reader";
const OWNER: &str = "nqn.2026-11.example:owner";

fn status<T: std::fmt::Debug>(result: Result<T, Error>) -> Option<Status> {
    result.unwrap_err().status()
}

/// One host that may do little, and one that may do everything.
fn access(rights: &[(&str, Right)]) -> Access {
    let namespaces = rights.iter().map(|(name, right)| ((*name).to_owned(), *right)).collect();
    let limited = Rights { namespaces, ..Rights::default() };
    let of = |name: &str, rights| (name.to_owned(), HostAccess { rights, ..HostAccess::default() });
    Access { hosts: [of(READER, limited), of(OWNER, Rights::all())].into(), ..Access::default() }
}

struct Shared {
    world: World,
    free: NamespaceId,
    records: NamespaceId,
    hidden: NamespaceId,
    disk: NamespaceId,
}

impl Shared {
    fn new() -> Shared {
        let rights = [("records", Right::Read), ("disk", Right::Read), ("hidden", Right::None)];
        let world = World::with(|options| options.access = access(&rights));
        let [free, records, hidden] = ["free", "records", "hidden"].map(|name| world.namespace(name));
        let disk = world.device.create_namespace("disk", &BlockOptions::new(4096, 1000).into()).unwrap();
        Shared { world, free, records, hidden, disk }
    }

    fn host(&self, name: &str) -> Controller {
        self.world.host_with(|options| name.clone_into(&mut options.host))
    }

    /// Namespaces as a page of Identify lists them.
    fn listed(host: &Controller, what: u8) -> Vec<u32> {
        let list = host.identify(what, 0, 0).unwrap();
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
        list.chunks_exact(4).map(number).take_while(|nsid| *nsid != 0).collect()
    }
}

/// Goal:   a host finds, reads and writes what it may, and the others do not exist for it, or cannot be changed.
/// Method: a namespace of each right; pages, names, single commands, batches over several namespaces, lists of keys, blocks, reservations.
#[test]
fn hosts_see_and_change_what_they_may() {
    let shared = Shared::new();
    let Shared { free, records, hidden, disk, .. } = shared;
    let (owner, reader) = (shared.host(OWNER), shared.host(READER));
    for what in [cns::ACTIVE_NAMESPACES, cns::ALLOCATED_NAMESPACES] {
        assert_eq!(Shared::listed(&owner, what), [free, records, hidden, disk]);
        assert_eq!(Shared::listed(&reader, what), [free, records, disk]);
    }
    let url: RemoteUrl = format!("nvme+tcp://{}/{}", shared.world.address, shared.world.subsystem).parse().unwrap();
    let remote = RemoteDevice::open(&url, &HostOptions { host: READER.into(), ..HostOptions::default() }).unwrap();
    let names: Vec<String> = remote.namespaces().unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["free", "records", "disk"]);
    for what in [cns::NAMESPACE, cns::ALLOCATED_NAMESPACE] {
        assert_eq!(reader.identify(what, hidden, 0).unwrap(), [0; 4096], "{what:02x}h");
    }
    assert_eq!(status(reader.identify(cns::DESCRIPTORS, hidden, 0)), Some(Status::INVALID_NAMESPACE));
    let attributes = |host: &Controller, nsid| {
        let page = host.identify(cns::SET_NAMESPACE, nsid, 1).unwrap();
        KvNamespace::read_from_prefix(&page).unwrap().0.nsattr
    };
    assert_eq!([attributes(&reader, free), attributes(&reader, records), attributes(&owner, records)], [0, 1, 0]);
    let page = reader.identify(cns::NAMESPACE, disk, 0).unwrap();
    assert_eq!(NvmNamespace::read_from_prefix(&page).unwrap().0.nsattr, 1, "Linux makes it a disk that is only read");
    assert_eq!(reader.identify(cns::INDEPENDENT_NAMESPACE, disk, 0).unwrap()[8], 1);

    let (mine, theirs) = (&owner.queues()[0], &reader.queues()[0]);
    let (name, value) = (key(b"k"), b"value");
    for nsid in [free, records, hidden] {
        KeyValue::new(mine, nsid).store(&name, value, 0).unwrap();
    }
    let protected = Some(Status::WRITE_PROTECTED);
    let missing = Some(Status::INVALID_NAMESPACE);
    KeyValue::new(theirs, free).store(&name, b"other", 0).unwrap();
    assert_eq!(KeyValue::new(theirs, records).retrieve(&name, 64).unwrap(), Some((value.to_vec(), 5)));
    assert_eq!(status(KeyValue::new(theirs, records).store(&name, b"other", 0)), protected);
    assert_eq!(status(KeyValue::new(theirs, records).delete(&name)), protected);
    assert_eq!(status(KeyValue::new(theirs, hidden).retrieve(&name, 64)), missing);
    assert_eq!(status(KeyValue::new(theirs, hidden).store(&name, b"other", 0)), missing);
    for (nsid, expected) in [(records, protected), (hidden, missing)] {
        let mut put = Vec::new();
        [free, nsid].iter().for_each(|nsid| encode_put(&mut put, *nsid, &name, PutAction::Store(b"x")));
        assert_eq!(status(KeyValue::new(theirs, free).put(&put, 2)), expected, "a batch");
    }
    let keys = KeyValue::new(theirs, free).name_keys(&[(hidden, name)]);
    assert_eq!(status(keys), missing, "a list of keys");
    assert!(KeyValue::new(theirs, free).name_keys(&[(records, name)]).is_ok());
    let blocks = Blocks::new(&reader, theirs, disk).unwrap();
    assert_eq!(blocks.read(0, 4096).unwrap(), [0; 4096]);
    assert_eq!(status(blocks.write(0, &[1; 4096])), protected);
    assert_eq!(status(blocks.write_zeroes(0, 1)), protected);
    let denied = Some(Status::OPERATION_DENIED);
    let register = Reservations::new(theirs, records).carry_out(&Wish::Register { key: 1 });
    assert_eq!(status(register), denied, "it would keep others from writing");
    assert!(Reservations::new(theirs, records).report().is_ok());
}

/// Goal:   only hosts that may create, change and delete namespaces; those that may connect by default may not.
/// Method: create, delete one, all and a hidden one, rename, detach, by a host without the right; then by one that has it.
#[test]
fn hosts_manage_what_they_may() {
    let shared = Shared::new();
    let (owner, reader) = (shared.host(OWNER), shared.host(READER));
    let manage = |host: &Controller, select: u32, nsid: u32| {
        let mut command = Command::new(admin::NAMESPACE_MANAGEMENT, nsid);
        (command.cdw10, command.cdw11) = (select.into(), (1 << 24).into());
        let data = Create::new_zeroed();
        host.admin().execute(command, if select == 0 { data.as_bytes() } else { &[] }, 0).unwrap().status
    };
    let before = shared.world.device.namespaces().len();
    assert_eq!(manage(&reader, 0, 0), Status::OPERATION_DENIED);
    assert_eq!(manage(&reader, 1, shared.free), Status::OPERATION_DENIED);
    assert_eq!(manage(&reader, 1, u32::MAX), Status::OPERATION_DENIED);
    assert_eq!(manage(&reader, 1, shared.hidden), Status::INVALID_FIELD, "as one that does not exist");
    let detach = |host: &Controller| {
        let mut command = Command::new(admin::NAMESPACE_ATTACHMENT, shared.free);
        command.cdw10 = 1.into();
        host.admin().execute(command, &controller_list([owner.id()].into_iter()), 0).unwrap().status
    };
    assert_eq!(detach(&reader), Status::OPERATION_DENIED);
    assert_eq!(shared.world.device.namespaces().len(), before);
    assert_eq!(detach(&owner), Status::SUCCESS);
    assert_eq!(manage(&owner, 1, shared.hidden), Status::SUCCESS);
    assert_eq!(manage(&owner, 0, 0), Status::SUCCESS);

    let open = World::with(|options| options.access = Access::open());
    open.namespace("notes");
    let host = open.host();
    assert_eq!(manage(&host, 0, 0), Status::OPERATION_DENIED, "not by default");
    assert_eq!(manage(&host, 1, u32::MAX), Status::OPERATION_DENIED, "not by default");
    assert_eq!(open.device.namespaces().len(), 1);
}

/// Goal:   changes of rights apply to connected hosts at once, and they hear of namespaces that appear, disappear, or become others; a
///         namespace that is deleted disappears too.
#[test]
fn rights_change_while_hosts_are_connected() {
    let shared = Shared::new();
    let reader = shared.host(READER);
    let mut listen = Command::new(admin::SET_FEATURES, 0);
    (listen.cdw10, listen.cdw11) = (0x0b.into(), (1 << 8).into());
    reader.admin().execute(listen, &[], 0).unwrap().success().unwrap();
    let changed = || -> Vec<u32> {
        let request = LogRequest { lid: lid::CHANGED_NAMESPACES, retain: false, offset: 0, bytes: 4096, csi: 0 };
        let page = reader.log_page(&request).unwrap();
        let numbers = page.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()));
        numbers.take_while(|nsid| *nsid != 0).collect()
    };
    changed();
    let event = reader.admin().submit(Command::new(admin::ASYNC_EVENT, 0), &[], 0).unwrap();
    let rights = [("records", Right::Write), ("free", Right::None), ("disk", Right::Read)];
    shared.world.control.set_access(access(&rights)).unwrap();
    assert_eq!(reader.admin().wait(event).unwrap().result as u32 & 0xff_00ff, 0x04_0002, "namespaces have changed");
    assert_eq!(changed(), [shared.free, shared.records, shared.hidden]);
    let queue = &reader.queues()[0];
    KeyValue::new(queue, shared.records).store(&key(b"k"), b"value", 0).unwrap();
    KeyValue::new(queue, shared.hidden).store(&key(b"k"), b"value", 0).unwrap();
    let missing = KeyValue::new(queue, shared.free).store(&key(b"k"), b"value", 0);
    assert_eq!(status(missing), Some(Status::INVALID_NAMESPACE));
    let event = reader.admin().submit(Command::new(admin::ASYNC_EVENT, 0), &[], 0).unwrap();
    shared.world.device.delete_namespace(shared.disk).unwrap();
    reader.admin().wait(event).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while Shared::listed(&reader, cns::ACTIVE_NAMESPACES) != [shared.records, shared.hidden] {
        assert!(Instant::now() < until, "{:?}", Shared::listed(&reader, cns::ACTIVE_NAMESPACES));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(changed(), [shared.disk]);
}
