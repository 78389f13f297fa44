//! The error log: every command that failed is in it, whichever part noticed.

use crate::world::{World, key};
use kaml::{BlockOptions, CreateOptions, Device, NamespaceOptions, OpenOptions};
use kaml_nvme::host::{Controller, Error, KeyValue};
use kaml_nvme::wire::command::{Command, Sgl, kv, nvm};
use kaml_nvme::wire::logs::{ErrorEntry, Health, LogRequest, lid};
use kaml_nvme::wire::status::Status;
use std::fs;
use zerocopy::FromBytes;

const NOWHERE: u16 = 0xffff;

/// Entries, the newest first, as `nvme error-log` reads them: as many as Identify Controller reports, unused ones without a number.
fn entries(host: &Controller) -> Vec<ErrorEntry> {
    let bytes = (usize::from(host.page().elpe) + 1) * size_of::<ErrorEntry>();
    let page = host.log_page(&LogRequest { lid: lid::ERRORS, retain: true, offset: 0, bytes, csi: 0 }).unwrap();
    let all = page.chunks_exact(size_of::<ErrorEntry>()).map(|entry| ErrorEntry::read_from_bytes(entry).unwrap());
    all.take_while(|entry| entry.number.get() != 0).collect()
}

fn health(host: &Controller) -> (u64, u64) {
    let page = host.log_page(&LogRequest { lid: lid::HEALTH, retain: true, offset: 0, bytes: 512, csi: 0 }).unwrap();
    let (health, _) = Health::read_from_prefix(&page).unwrap();
    (health.media_errors[0].get(), health.error_entries[0].get())
}

fn status<T: std::fmt::Debug>(result: Result<T, Error>) -> Status {
    result.unwrap_err().status().expect("an answer of the controller")
}

/// Goal:   commands that fail in the device are in the error log with queue, status, namespace, command and the field at fault, as
///         those are that are refused before; what is an ordinary answer is not. Counters of the health page agree.
/// Method: a value that a flipped bit in the file damaged, read over the second of two queues; a full device; a range after the
///         end; a data length that does not fit, refused before anybody looks at the command; a missing key.
#[test]
fn what_fails_is_in_the_error_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    let value: Vec<u8> = (0..100_000u32).map(|at| (at.wrapping_mul(at) >> 3) as u8).collect();
    let device = Device::create(&path, &CreateOptions::new(64 << 20)).unwrap();
    let nsid = device.create_namespace("a", &NamespaceOptions::default()).unwrap();
    let disk = device.create_namespace("disk", &BlockOptions::new(4096, 100).into()).unwrap();
    device.put(nsid, key(b"k"), &value).unwrap();
    device.close().unwrap();
    let mut image = fs::read(&path).unwrap();
    let at = image.windows(1000).position(|bytes| bytes == &value[50_000..51_000]).unwrap();
    image[at] ^= 1;
    fs::write(&path, &image).unwrap();

    let world = World::serving(Device::open(&path, &OpenOptions::default()).unwrap(), |_| {});
    let host = world.host_with(|options| options.queues = 2);
    let records = |queue: usize| KeyValue::new(&host.queues()[queue], nsid);
    assert_eq!((entries(&host).len(), health(&host)), (0, (0, 0)));
    assert!(records(0).retrieve(&key(b"none"), 4).unwrap().is_none(), "an ordinary answer");
    assert_eq!(health(&host), (0, 0));

    assert_eq!(status(records(1).retrieve(&key(b"k"), 100_000)), Status::UNRECOVERED);
    let found = entries(&host);
    assert_eq!((found.len(), health(&host)), (1, (1, 1)));
    let first = &found[0];
    assert_eq!((first.number.get(), first.queue.get(), first.nsid.get()), (1, 2, nsid));
    assert_eq!(first.status.get(), Status::UNRECOVERED.field());
    assert_eq!((first.location.get(), first.lba.get(), first.vendor, first.transport), (NOWHERE, 0, 0, 3));
    assert_eq!((first.csi, first.opcode, first.version), (1, kv::RETRIEVE, 1));

    // By a worker, until nothing more fits; and by the device's queue.
    let full = (0..).map(|n: u64| records(0).store(&kaml::Key::from(n), &value, 0)).find(Result::is_err).unwrap();
    assert_eq!(status(full), Status::CAPACITY_EXCEEDED);
    let space = KeyValue::new(&host.queues()[0], disk);
    assert_eq!(status(space.delete(&key(b"k"))), Status::INVALID_OPCODE);
    let mut read = Command::new(nvm::READ, disk);
    (read.cdw10, read.cdw12) = (99.into(), 1.into());
    let behind = host.queues()[1].execute(read, &[], 8192).unwrap();
    assert_eq!(behind.status, Status::LBA_OUT_OF_RANGE);
    // Longer than any transfer may be: the connection itself refuses it.
    let mut long = Command::new(kv::RETRIEVE, nsid);
    long.sgl = Sgl::transport(0);
    let refused = host.queues()[1].execute(long, &[], 17 << 20).unwrap();
    assert_eq!(refused.status, Status::INVALID_FIELD);

    let found = entries(&host);
    let told: Vec<_> = found
        .iter()
        .map(|entry| (entry.number.get(), entry.queue.get(), entry.nsid.get(), entry.opcode, entry.location.get()))
        .collect();
    assert_eq!(
        told,
        [
            (5, 2, nsid, kv::RETRIEVE, NOWHERE),
            (4, 2, disk, nvm::READ, 40),
            (3, 1, disk, kv::DELETE, 0),
            (2, 1, nsid, kv::STORE, NOWHERE),
            (1, 2, nsid, kv::RETRIEVE, NOWHERE),
        ]
    );
    assert_eq!((found[1].lba.get(), found[1].csi, found[2].csi), (99, 0, 0));
    assert_eq!(found[3].status.get(), Status::CAPACITY_EXCEEDED.field());
    assert_eq!(health(&host), (1, 5));
    // Page by page, too: unused entries are part of the log.
    let part = |offset| LogRequest { lid: lid::ERRORS, retain: true, offset, bytes: 64, csi: 0 };
    let third = ErrorEntry::read_from_bytes(&host.log_page(&part(128)).unwrap()).unwrap();
    assert_eq!(third.number.get(), 3);
    assert_eq!(host.log_page(&part(63 * 64)).unwrap(), [0; 64], "the last one");
    assert_eq!(status(host.log_page(&part(64 * 64 + 4))), Status::INVALID_FIELD, "after the end");
    // The log is the controller's: another host sees its own errors.
    assert_eq!(entries(&world.host()).len(), 0);
}
