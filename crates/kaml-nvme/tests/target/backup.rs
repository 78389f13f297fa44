//! Backups of a served device over the network.

use crate::world::World;
use kaml::{
    At, BackupBase, Batch, BlockOptions, CreateOptions, Device, Error, KeyKind, NamespaceId, NamespaceKind,
    NamespaceOptions, OpenOptions, RestoreSource, VersionOptions, verify_backup_file,
};
use kaml_nvme::host::{Controller, HostOptions, Reservations};
use kaml_nvme::target::{Access, HostAccess, Right, Rights};
use kaml_nvme::wire::backup::{BackupPage, BackupState, HEAD_BYTES, PIECE_BYTES_MAX, Place, begin};
use kaml_nvme::wire::command::{Command, kv};
use kaml_nvme::wire::fabrics::{Property, kind, register};
use kaml_nvme::wire::reservations::{Kind, Wish};
use kaml_nvme::wire::status::Status;
use kaml_testkit::{Rng, bytes};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);
const ALL: u32 = u32::MAX;
const READER: &str = "nqn.2026-11.example:reader";
/// Of all that backups here are of: more than the target and the host have on the way.
const LARGE: u64 = 40 << 20;

fn quiet(_done: u64, _total: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Everything that a device has: under the name of a namespace and a key, the value, and of versions the whole history.
fn contents(device: &Device) -> BTreeMap<(String, Vec<u8>), Vec<u8>> {
    let mut all = BTreeMap::new();
    for info in device.namespaces() {
        let named = |key: &[u8]| (info.name.clone(), key.to_vec());
        match info.kind {
            NamespaceKind::Blocks(blocks) => {
                for block in 0..blocks.block_count {
                    let mut value = vec![0; blocks.block_bytes as usize];
                    device.block_read(info.id, block, &mut value).unwrap();
                    all.insert(named(&block.to_be_bytes()), value);
                }
            }
            NamespaceKind::Records(KeyKind::Ordered) => {
                let namespace = device.open_namespace(&info.name).unwrap();
                for record in namespace.iter() {
                    let (key, value) = record.unwrap();
                    all.insert(named(key.as_bytes()), value);
                }
            }
            NamespaceKind::Records(_) | NamespaceKind::Versions(..) => {
                let mut after = None;
                loop {
                    let page = device.list(info.id, after, 1000).unwrap();
                    for key in &page.keys {
                        let mut value = device.get(info.id, key).unwrap().unwrap();
                        if matches!(info.kind, NamespaceKind::Versions(..)) {
                            let key = kaml::Key::new(key.as_bytes()).unwrap();
                            for past in device.history(info.id, key, usize::MAX).unwrap() {
                                value.extend(past.version.sequence.to_le_bytes());
                                value.extend(past.version.value_crc.to_le_bytes());
                            }
                        }
                        all.insert(named(key.as_bytes()), value);
                    }
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
            }
        }
    }
    all
}

fn restored(files: &[&Path]) -> (tempfile::TempDir, Device) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("restored.kaml");
    let sources = files.iter().map(RestoreSource::file).collect();
    Device::restore(sources, &path, &CreateOptions::new(0), &mut |_| ControlFlow::Continue(())).unwrap();
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    (dir, device)
}

/// A device with namespaces of all kinds, which changes at random.
struct Changing {
    world: World,
    rng: Rng,
    records: [NamespaceId; 3],
    disk: NamespaceId,
    pages: NamespaceId,
}

impl Changing {
    fn new() -> Changing {
        let world = World::new();
        let device = &world.device;
        let create = |name: &str, options: NamespaceOptions| device.create_namespace(name, &options).unwrap();
        let records = [KeyKind::U64, KeyKind::Any, KeyKind::Ordered]
            .map(|kind| create(&format!("{kind:?}"), NamespaceOptions::records(kind)));
        let disk = create("disk", BlockOptions::new(512, 8 * 60).into());
        let pages = create("pages", VersionOptions::default().into());
        Changing { rng: Rng::new(7), records, disk, pages, world }
    }

    fn change(&mut self, count: u64) {
        let device = &self.world.device;
        for _ in 0..count {
            let (draw, key) = (self.rng.draw(), self.rng.below(300));
            let value = bytes(draw, if draw.is_multiple_of(50) { 50_000 } else { draw as usize % 3000 });
            let [numbers, names, tree] = self.records;
            let long = format!("a key of more than sixteen bytes: {key}");
            let mut batch = Batch::new();
            match draw.is_multiple_of(5) {
                true => batch.delete(numbers, key).delete(names, long.as_str()).delete(tree, long.as_str()),
                false => {
                    batch.put(numbers, key, &value).put(names, long.as_str(), &value).put(tree, long.as_str(), &value)
                }
            };
            batch.put(self.pages, key % 40, &value[..value.len().min(2000)]);
            device.write(&batch).unwrap();
            match draw % 7 {
                0 => device.block_trim(self.disk, self.rng.below(400), 8).unwrap(),
                _ => device.block_write(self.disk, self.rng.below(400), &bytes(draw, 4096)).unwrap(),
            }
        }
    }
}

/// Goal:   a backup over the network is what a local one is: records, blocks and versions; full and incremental, each the base of the other kind.
/// Method: a chain of four, of which the second and the third are taken over the network, then two more; each prefix is restored and compared with
///         what the device had; the progress ends with all bytes.
#[test]
fn remote_backups_are_as_local_ones() {
    let dir = tempfile::tempdir().unwrap();
    let mut changing = Changing::new();
    let remote = changing.world.remote();
    let mut files: Vec<PathBuf> = Vec::new();
    for round in 0..6u64 {
        changing.change(if round == 0 { 1500 } else { 80 });
        if round == 2 {
            let device = &changing.world.device;
            device.delete_namespace(changing.records[1]).unwrap();
            changing.records[1] = device.create_namespace("again", &NamespaceOptions::records(KeyKind::Any)).unwrap();
        }
        let (path, base) = (dir.path().join(format!("{round}")), files.last().map(PathBuf::as_path));
        let device = &changing.world.device;
        let mut last = (0, 1);
        let mut hear = |done, total| {
            last = (done, total);
            ControlFlow::Continue(())
        };
        let report = match round {
            0 | 3 => device.backup_to_file(&path, base, &mut hear).unwrap(),
            _ => remote.backup_to_file(&path, base, &mut hear).unwrap(),
        };
        assert_eq!(last.0, last.1, "round {round}");
        let info = verify_backup_file(&path).unwrap();
        assert_eq!(report.bytes, std::fs::metadata(&path).unwrap().len());
        assert_eq!((info.records, info.versions, info.deleted), (report.records, report.versions, report.deleted));
        assert_eq!((report.is_incremental, info.base.is_some()), (round > 0, round > 0));
        assert!(report.read_bytes > 0 && report.namespaces == 5);
        files.push(path);
        let chain: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        let (_dir, copy) = restored(&chain);
        assert!(contents(&copy) == contents(device), "round {round}");
    }
    let sizes: Vec<u64> = files.iter().map(|path| std::fs::metadata(path).unwrap().len()).collect();
    assert!(sizes[1] * 2 < sizes[0], "an incremental backup has what changed: {sizes:?}");
    let mut stream = Vec::new();
    remote.backup(&mut stream, None, &mut quiet).unwrap();
    let whole = dir.path().join("stream");
    std::fs::write(&whole, stream).unwrap();
    assert!(contents(&restored(&[&whole]).1) == contents(&changing.world.device));
    assert_eq!(changing.world.device.snapshot_stats().open_count, 0);
}

/// Puts values that cannot be compressed, until there are so many bytes.
fn fill(device: &Device, namespace: NamespaceId, bytes_max: u64) {
    (0..bytes_max / 100_000).for_each(|key| device.put(namespace, key, &bytes(key, 100_000)).unwrap());
}

/// Goal:   a backup that is larger than what is on the way shows one moment over all namespaces, while other hosts write and read over the network; so
///         does the one after it, and a slow writer of the stream holds up nobody.
/// Method: hosts that put their step into three namespaces in one batch, over a device that has 40 MiB; restored, each has one step in all three, and
///         all versions up to it.
#[test]
fn backups_show_one_moment_while_hosts_write() {
    const HOSTS: u64 = 2;
    let world = World::new();
    let device = &world.device;
    let [hash, large] = ["hash", "large"].map(|name| world.namespace(name));
    let tree = device.create_namespace("tree", &NamespaceOptions::records(KeyKind::Ordered)).unwrap();
    let past = device.create_namespace("past", &VersionOptions::default().into()).unwrap();
    fill(device, large, LARGE);
    let dir = tempfile::tempdir().unwrap();
    let (is_over, steps) = (AtomicBool::new(false), [(); HOSTS as usize].map(|()| AtomicU64::new(0)));
    let counts = || steps.iter().map(|step| step.load(Ordering::SeqCst)).collect::<Vec<_>>();
    let mut taken: Vec<(PathBuf, Vec<u64>, Vec<u64>)> = Vec::new();
    std::thread::scope(|scope| {
        for host in 0..HOSTS {
            let (remote, is_over, step) = (world.remote(), &is_over, &steps[host as usize]);
            scope.spawn(move || {
                let begin = Instant::now();
                while !is_over.load(Ordering::SeqCst) && begin.elapsed() < 5 * SOON {
                    let number = step.load(Ordering::SeqCst) + 1;
                    let mut batch = Batch::new();
                    batch.put(hash, host, &number.to_be_bytes()).put(tree, host, &number.to_be_bytes());
                    batch.put(past, host, &number.to_be_bytes()).put(large, 1000 + number % 50, &bytes(number, 20_000));
                    remote.write(&batch).unwrap();
                    step.store(number, Ordering::SeqCst);
                    assert_eq!(remote.get(hash, host).unwrap().unwrap(), number.to_be_bytes());
                }
            });
        }
        let backups = || {
            let remote = world.remote();
            for round in 0..2 {
                let (begin, path) = (counts(), dir.path().join(format!("{round}")));
                while counts().iter().zip(&begin).any(|(now, begin)| *now < begin + 50) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let (before, base) = (counts(), taken.last().map(|(path, ..)| path.clone()));
                let mut slowly = |_, _| {
                    std::thread::sleep(Duration::from_millis(if round == 0 { 20 } else { 0 }));
                    ControlFlow::Continue(())
                };
                remote.backup_to_file(&path, base.as_deref(), &mut slowly).unwrap();
                let after = counts();
                assert!(round > 0 || after.iter().zip(&before).all(|(after, before)| after > before), "nobody waits");
                taken.push((path, before, after));
            }
        };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(backups));
        is_over.store(true, Ordering::SeqCst);
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
    for round in 0..taken.len() {
        let chain: Vec<&Path> = taken[..=round].iter().map(|(path, ..)| path.as_path()).collect();
        let (_dir, copy) = restored(&chain);
        let id = |name: &str| copy.namespace(name).unwrap();
        for host in 0..HOSTS {
            let found = copy.get(id("hash"), host).unwrap().unwrap();
            let number = u64::from_be_bytes(found[..].try_into().unwrap());
            let (_, before, after) = &taken[round];
            let (before, after) = (before[host as usize], after[host as usize]);
            assert!((before..=after + 1).contains(&number), "round {round}: {before} to {after}, not {number}");
            assert_eq!(copy.get(id("tree"), host).unwrap().unwrap(), found);
            assert_eq!(copy.get_version(id("past"), host, At::Latest).unwrap().unwrap().value, found);
            assert_eq!(copy.history(id("past"), host, usize::MAX).unwrap().len() as u64, number);
        }
        assert_eq!(copy.get(id("large"), 7u64).unwrap().unwrap(), bytes(7, 100_000));
    }
}

/// A host that sends the commands of a backup one by one.
struct Raw {
    host: Controller,
    number: u32,
    offset: u64,
}

impl Raw {
    fn begin(host: Controller) -> Result<Raw, Status> {
        let number = Raw::sent(&host, begin(ALL, PIECE_BYTES_MAX, false))?.0 as u32;
        Ok(Raw { host, number, offset: 0 })
    }

    fn sent(host: &Controller, command: Command) -> Result<(u64, Vec<u8>), Status> {
        let room = command.cdw10.get() as usize;
        let room = if command.opcode == kv::READ_BACKUP { room } else { 0 };
        let finished = host.queues()[0].execute(command, &[], room).unwrap();
        match finished.status.is_success() {
            true => Ok((finished.result, finished.data)),
            false => Err(finished.status),
        }
    }

    fn command(&self, opcode: u8, number: u32, offset: u64) -> Command {
        let mut command = Command::new(opcode, ALL);
        command.cdw10 = (PIECE_BYTES_MAX + HEAD_BYTES as u32).into();
        Place { backup: number, offset, is_last: false }.put(&mut command);
        command
    }

    fn read(&mut self) -> Result<BackupPage, Status> {
        let (_, data) = Raw::sent(&self.host, self.command(kv::READ_BACKUP, self.number, self.offset))?;
        let (page, bytes) = BackupPage::decode(&data).unwrap();
        self.offset += bytes as u64;
        Ok(page)
    }

    /// Reads until there is something.
    fn read_some(&mut self) -> BackupPage {
        let (begin, before) = (Instant::now(), self.offset);
        loop {
            let page = self.read().unwrap();
            if self.offset > before || page.state != BackupState::Running {
                return page;
            }
            assert!(begin.elapsed() < SOON, "nothing comes");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn large_world() -> (World, NamespaceId) {
    let world = World::new();
    let namespace = world.namespace("large");
    fill(&world.device, namespace, LARGE);
    (world, namespace)
}

/// The device keeps nothing for a backup any more.
fn wait_until_over(device: &Device) {
    let begin = Instant::now();
    while device.snapshot_stats().open_count > 0 {
        assert!(begin.elapsed() < SOON, "a snapshot is held");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Goal:   a host that is gone keeps neither a snapshot nor the place for the next backup; a host that does not read holds up no writer, and what
///         waits for it is bounded; a target that ends, ends its backup.
/// Method: a backup of 40 MiB of which one piece is read, then a closed connection, a reset, an End Backup, a dropped `RemoteDevice`, and a target that
///         is stopped.
#[test]
fn backups_of_hosts_that_vanish_end() {
    let (world, namespace) = large_world();
    let device = &world.device;
    let ends: [fn(Raw); 3] = [
        drop,
        |raw| {
            let disable = Property::command(kind::PROPERTY_SET, register::CC, false, 0x0046_0060);
            assert!(raw.host.admin().execute(disable, &[], 0).unwrap().status.is_success());
            std::mem::forget(raw); // its connections remain
        },
        |raw| {
            let end = raw.command(kv::END_BACKUP, raw.number, 0);
            Raw::sent(&raw.host, end).unwrap();
            assert_eq!(Raw::sent(&raw.host, end), Err(Status::NO_SUCH_BACKUP));
            let read = raw.command(kv::READ_BACKUP, raw.number, 0);
            assert_eq!(Raw::sent(&raw.host, read).map(drop), Err(Status::NO_SUCH_BACKUP));
            std::mem::forget(raw);
        },
    ];
    for end in ends {
        let mut raw = Raw::begin(world.host()).unwrap();
        raw.read_some();
        assert_eq!(device.snapshot_stats().open_count, 1);
        // The pipe fills up, and nobody waits for that.
        (0..50u64).for_each(|key| device.put(namespace, key, b"later").unwrap());
        assert_eq!(device.snapshot_stats().open_count, 1);
        end(raw);
        wait_until_over(device);
    }
    let remote = world.remote();
    let mut pieces = 0;
    let cancelled = remote.backup(&mut Vec::new(), None, &mut |_, _| {
        pieces += 1;
        if pieces > 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
    wait_until_over(device);
    remote.backup(&mut std::io::sink(), None, &mut quiet).unwrap();
    let mut raw = Raw::begin(world.host()).unwrap();
    raw.read_some();
    let device = device.clone();
    let begin = Instant::now();
    drop(world);
    assert!(begin.elapsed() < SOON);
    assert_eq!(device.snapshot_stats().open_count, 0);
}

/// Goal:   one backup at a time, with an error that names it; commands that make no sense have their status, and harm no backup.
#[test]
fn a_second_backup_is_refused() {
    let (world, large) = large_world();
    let mut first = Raw::begin(world.host()).unwrap();
    assert_eq!(Raw::begin(world.host()).err(), Some(Status::BACKUP_BUSY));
    // Linux passes commands only to a namespace.
    let to_namespace = begin(large, PIECE_BYTES_MAX, false);
    assert_eq!(Raw::sent(&world.host(), to_namespace).map(drop), Err(Status::BACKUP_BUSY));
    let refused = world.remote().backup(&mut Vec::new(), None, &mut quiet);
    assert!(matches!(refused, Err(Error::BackupInProgress)), "{refused:?}");
    first.read_some();
    let status = |command| Raw::sent(&first.host, command).map(drop).unwrap_err();
    assert_eq!(status(first.command(kv::READ_BACKUP, first.number, first.offset + 1)), Status::INVALID_FIELD);
    assert_eq!(status(first.command(kv::READ_BACKUP, first.number ^ 2, first.offset)), Status::NO_SUCH_BACKUP);
    let mut short = first.command(kv::READ_BACKUP, first.number, first.offset);
    short.cdw10 = 4096.into();
    assert_eq!(status(short), Status::SGL_LENGTH);
    let mut base = first.command(kv::SEND_BASE, first.number, 0);
    assert_eq!(status(base), Status::SGL_LENGTH, "no data");
    base.cdw10 = 0.into();
    assert_eq!(status(base), Status::INVALID_FIELD, "none is needed");
    assert_eq!(status(begin(ALL, 100, false)), Status::INVALID_FIELD);
    assert_eq!(status(begin(77, PIECE_BYTES_MAX, false)), Status::INVALID_NAMESPACE);
    let other = world.host();
    assert_eq!(
        Raw::sent(&other, first.command(kv::READ_BACKUP, first.number, first.offset)).map(drop),
        Err(Status::NO_SUCH_BACKUP)
    );
    while first.read_some().state == BackupState::Running {}
    assert!(first.offset > LARGE - 100_000);
    // It has ended, and its host has read that.
    world.remote().backup(&mut std::io::sink(), None, &mut quiet).unwrap();
}

/// Goal:   only hosts that may read all namespaces, whatever these are called, take a backup; one that may no longer, ends; an exclusive reservation
///         of another host refuses it; a host that is not known has no connection.
#[test]
fn backups_need_the_right_to_read_everything() {
    let access = |named: &[(&str, Right)], others| {
        let namespaces = named.iter().map(|(name, right)| ((*name).to_owned(), *right)).collect();
        let rights = Rights { namespaces, others, ..Rights::default() };
        let of = |name: &str, rights| (name.to_owned(), HostAccess { rights, ..HostAccess::default() });
        Access {
            hosts: [of(READER, rights), of("nqn.2026-11.example:owner", Rights::all())].into(),
            ..Access::default()
        }
    };
    let world = World::with(|options| options.access = access(&[("payroll", Right::None)], Right::Read));
    let large = world.namespace("large");
    fill(&world.device, large, LARGE);
    let refused = world.remote_as(READER).backup(&mut Vec::new(), None, &mut quiet);
    let Err(Error::Remote(text)) = refused else { panic!("{refused:?}") };
    assert!(text.contains("right to read all namespaces") && text.contains("--hosts"), "{text}");
    let host = |name: &str| world.host_with(|options| name.clone_into(&mut options.host));
    assert_eq!(Raw::begin(host(READER)).err(), Some(Status::OPERATION_DENIED), "though there is no such namespace now");
    world.control.set_access(access(&[("large", Right::Write)], Right::None)).unwrap();
    assert_eq!(Raw::begin(host(READER)).err(), Some(Status::OPERATION_DENIED));
    world.control.set_access(access(&[], Right::Read)).unwrap();
    world.remote_as(READER).backup(&mut std::io::sink(), None, &mut quiet).unwrap();

    let mut raw = Raw::begin(host(READER)).unwrap();
    raw.read_some();
    world.control.set_access(access(&[("large", Right::None)], Right::Read)).unwrap();
    let begin = Instant::now();
    let status = loop {
        match raw.read() {
            Ok(_) => assert!(begin.elapsed() < SOON),
            Err(status) => break status,
        }
    };
    assert_eq!(status, Status::OPERATION_DENIED);
    wait_until_over(&world.device);

    world.control.set_access(access(&[], Right::Read)).unwrap();
    let owner = world.host_with(|options| {
        options.host = "nqn.2026-11.example:owner".into();
        options.host_id = [9; 16];
    });
    let reservations = Reservations::new(&owner.queues()[0], large);
    reservations.carry_out(&Wish::Register { key: 7 }).unwrap();
    reservations.carry_out(&Wish::Acquire { key: 7, kind: Kind::ExclusiveAccess }).unwrap();
    assert_eq!(Raw::begin(host(READER)).err(), Some(Status::RESERVATION_CONFLICT));
    let options = HostOptions { host: "nqn.2026-11.example:stranger".into(), ..HostOptions::default() };
    assert!(Controller::connect(&world.address, &world.subsystem, &options).is_err());
}

/// A disk that is full after so many bytes.
struct Full(usize);

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Goal:   every reason for which a backup fails reaches the caller as the error of a local one, and leaves no file.
/// Method: a base of another device, a base with a wrong byte, a full disk, a namespace that is deleted meanwhile, a snapshot that needs too much
///         memory.
#[test]
fn failures_are_those_of_local_backups() {
    let dir = tempfile::tempdir().unwrap();
    let (world, large) = large_world();
    let remote = world.remote();
    let path = |name: &str| dir.path().join(name);
    let other = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    other.backup_to_file(path("foreign"), None, &mut quiet).unwrap();
    let refused = remote.backup_to_file(path("new"), Some(&path("foreign")), &mut quiet);
    let named = |name: &str| name.ends_with("foreign");
    assert!(
        matches!(&refused, Err(Error::WrongBase { name, why }) if named(name) && why.contains("full")),
        "{refused:?}"
    );
    assert!(BackupBase::open(path("none")).is_err());

    remote.backup_to_file(path("full"), None, &mut quiet).unwrap();
    let mut damaged = std::fs::read(path("full")).unwrap();
    let at = damaged.len() - 400;
    damaged[at] ^= 1; // within the list of keys
    std::fs::write(path("damaged"), damaged).unwrap();
    let refused = remote.backup_to_file(path("new"), Some(&path("damaged")), &mut quiet);
    assert!(matches!(&refused, Err(Error::Remote(text)) if text.contains("checksum")), "{refused:?}");

    for room in [0, 10 << 20] {
        let failed = remote.backup(&mut Full(room), None, &mut quiet);
        assert!(matches!(&failed, Err(Error::Io { what: "write", .. })), "{failed:?}");
        wait_until_over(&world.device);
    }

    let brief = world.namespace("brief");
    let mut is_first = true;
    let failed = remote.backup_to_file(path("new"), None, &mut |_, _| {
        if std::mem::take(&mut is_first) {
            let begin = Instant::now();
            while world.device.snapshot_stats().open_count == 0 {
                assert!(begin.elapsed() < SOON);
            }
            world.device.delete_namespace(brief).unwrap();
        }
        ControlFlow::Continue(())
    });
    assert!(matches!(&failed, Err(Error::DeletedDuringBackup { namespace }) if namespace == "brief"), "{failed:?}");

    world.device.limit_snapshot_memory(4096);
    let mut turn = 0;
    let failed = remote.backup_to_file(path("new"), None, &mut |_, _| {
        turn += 1;
        if turn > 2 && turn < 6 {
            (0..LARGE / 100_000).for_each(|key| world.device.put(large, key, b"new").unwrap());
        }
        ControlFlow::Continue(())
    });
    assert!(matches!(&failed, Err(Error::SnapshotTooOld)), "{failed:?}");
    let mut names: Vec<_> = dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["damaged", "foreign", "full"]);
}
