//! The NVM command set, end to end.

use crate::world::World;
use kaml::{BlockOptions, NamespaceId};
use kaml_nvme::host::{Blocks, Controller, Error, KeyValue};
use kaml_nvme::transport::Digests;
use kaml_nvme::wire::command::{Command, FLAGS_FUSED, admin, nvm};
use kaml_nvme::wire::identify::{NvmNamespace, cns, controller_list};
use kaml_nvme::wire::manage::{Attributes, Create, Wanted};
use kaml_nvme::wire::reservations::opcode;
use kaml_nvme::wire::status::Status;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

fn disk(world: &World, block_bytes: u32, block_count: u64) -> NamespaceId {
    world.device.create_namespace("disk", &BlockOptions::new(block_bytes, block_count).into()).unwrap()
}

fn status<T: std::fmt::Debug>(result: Result<T, Error>) -> Status {
    result.unwrap_err().status().expect("an answer of the controller")
}

fn page(host: &Controller, what: u8, nsid: u32) -> NvmNamespace {
    NvmNamespace::read_from_bytes(&host.identify(what, nsid, 0).unwrap()).unwrap()
}

fn noise(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

/// Goal:   hosts find in the pages what a disk needs: size, formats, atomicity, what deallocated blocks read as.
/// Method: what Linux looks at, item by item, next to a Key Value namespace of the same subsystem.
#[test]
fn pages_describe_a_disk() {
    let world = World::new();
    let (records, blocks) = (world.namespace("a"), disk(&world, 512, 4000));
    let host = world.host();
    let atomic = world.device.block_info(blocks).unwrap().atomic_blocks;
    for what in [cns::NAMESPACE, cns::ALLOCATED_NAMESPACE] {
        let disk = page(&host, what, blocks);
        assert_eq!(
            (disk.nsze.get(), disk.ncap.get(), disk.nuse.get(), disk.nvmcap[0].get()),
            (4000, 4000, 0, 2_048_000)
        );
        assert_eq!((disk.nlbaf, disk.flbas, disk.lbaf[0].get() >> 16 & 0xff, disk.lbaf[1].get()), (1, 0, 9, 12 << 16));
        assert_eq!((disk.dlfeat, disk.nsfeat, disk.nmic), (9, 0x1b, 1));
        assert_eq!((disk.nawun.get(), disk.nawupf.get()), (atomic as u16 - 1, atomic as u16 - 1));
        assert_eq!((disk.npwg.get(), disk.npdg.get()), (7, 7), "units of 4 KiB");
    }
    let any = page(&host, cns::NAMESPACE, u32::MAX);
    assert_eq!((any.nsze.get(), any.nlbaf, any.lbaf[1].get()), (0, 1, 12 << 16), "what all disks have in common");
    let descriptors = host.identify(cns::DESCRIPTORS, blocks, 0).unwrap();
    assert!(descriptors.windows(5).any(|part| part == [4, 1, 0, 0, 0]), "the command set");
    let listed = |csi| host.identify(cns::SET_ACTIVE_NAMESPACES, 0, csi).unwrap()[..8].to_vec();
    assert_eq!(listed(0), [blocks.to_le_bytes(), [0; 4]].concat());
    assert_eq!(listed(1), [records.to_le_bytes(), [0; 4]].concat());
    assert_eq!(host.identify(cns::SET_NAMESPACE, blocks, 0).unwrap(), [0; 4096]);
    assert_eq!(host.identify(cns::SET_NAMESPACE, blocks, 1).unwrap_err().status(), Some(Status::INVALID_FIELD));
    assert_eq!(host.identify(cns::INDEPENDENT_NAMESPACE, blocks, 0).unwrap()[14], 1, "ready");
    assert_eq!((host.page().oncs.get(), host.page().fuses.get(), host.page().vwc & 1), (0xbd, 0, 0));
    assert!(Blocks::new(&host, &host.queues()[0], records).is_err(), "it holds no blocks");
}

/// Goal:   all commands do what the specification requires, with every combination of digests and both formats.
/// Method: write, read, compare, verify, zeroes, deallocate, flush; compared with the device itself.
#[test]
fn commands_do_what_they_say() {
    for (bits, block_bytes) in [(0, 512), (1, 4096), (2, 512), (3, 4096)] {
        let world = World::new();
        let nsid = disk(&world, block_bytes, 5000);
        let host = world.host_with(|options| options.digests = Digests::from_bits(bits));
        let disk = Blocks::new(&host, &host.queues()[0], nsid).unwrap();
        let size = disk.block_bytes();
        assert_eq!((size, disk.block_count()), (block_bytes as usize, 5000));
        let data = noise(1, 9 * size);
        disk.write(3, &data).unwrap();
        let mut found = vec![0; 9 * size];
        world.device.block_read(nsid, 3, &mut found).unwrap();
        assert!(found == data && disk.read(3, 9 * size).unwrap() == data);
        assert_eq!(disk.read(0, 3 * size).unwrap(), vec![0; 3 * size], "never written");
        disk.compare(3, &data).unwrap();
        disk.compare(5, &data[2 * size..4 * size]).unwrap();
        assert_eq!(status(disk.compare(4, &data)), Status::COMPARE_FAILURE);
        disk.verify(0, 5000).unwrap();
        disk.write_zeroes(5, 2).unwrap();
        assert_eq!(disk.read(5, 2 * size).unwrap(), vec![0; 2 * size]);
        disk.write(4999, &data[..size]).unwrap();
        disk.deallocate(&[3..4, 9..9, 4..5, 4990..5000]).unwrap();
        assert_eq!(disk.read(3, 4 * size).unwrap(), vec![0; 4 * size]);
        assert_eq!(disk.read(4999, size).unwrap(), vec![0; size]);
        assert!(disk.read(7, 5 * size).unwrap() == data[4 * size..], "their neighbours are as they were");
        disk.deallocate(&vec![1..2; 256]).unwrap();
        disk.flush().unwrap();
    }
}

/// Goal:   reads and writes of all sizes go both ways up to the longest transfer; longer ones are refused.
/// Method: sizes around the boundaries of capsules, data PDUs, atomic writes and the limit.
#[test]
fn transfers_of_all_sizes() {
    let world = World::new();
    let nsid = disk(&world, 512, 40_000);
    let host = world.host();
    let disk = Blocks::new(&host, &host.queues()[0], nsid).unwrap();
    for count in [1, 16, 17, 32, 33, 2047, 2048, 2049, 4100, 32_768] {
        let data = noise(count, count * 512);
        disk.write(7, &data).unwrap();
        assert!(disk.read(7, count * 512).unwrap() == data, "{count} blocks");
        disk.compare(7, &data).unwrap();
    }
    assert_eq!(status(disk.write(0, &vec![0; 32_769 * 512])), Status::INVALID_FIELD);
}

/// Goal:   commands that make no sense are refused with the status that hosts expect, and the queue continues.
/// Method: ranges after the end and beyond all numbers, lengths that contradict, fused and unknown commands, commands of
///         the other command set.
#[test]
fn nonsense_is_refused() {
    let world = World::new();
    let (records, nsid) = (world.namespace("a"), disk(&world, 4096, 100));
    let host = world.host();
    let queue = &host.queues()[0];
    let disk = Blocks::new(&host, queue, nsid).unwrap();
    let data = vec![1; 8192];
    assert_eq!(status(disk.read(99, 8192)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(status(disk.read(100, 4096)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(status(disk.write(99, &data)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(status(disk.write(u64::MAX, &data)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(status(disk.compare(u64::MAX - 1, &data)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(status(disk.write_zeroes(1, 100)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(status(disk.verify(1, 100)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(status(disk.deallocate(&[0..1, 99..101])), Status::LBA_OUT_OF_RANGE);
    let send = |opcode: u8, nsid: u32, dw12: u32, flags: u8, data: &[u8], room: usize| {
        let mut command = Command::new(opcode, nsid);
        (command.cdw12, command.flags) = (dw12.into(), command.flags | flags);
        queue.execute(command, data, room).unwrap().status
    };
    assert_eq!(send(nvm::WRITE, nsid, 0, 0, &data, 0), Status::SGL_LENGTH, "two blocks for one");
    assert_eq!(send(nvm::READ, nsid, 1, 0, &[], 4096), Status::SGL_LENGTH, "room for one block of two");
    assert_eq!(send(nvm::COMPARE, nsid, 0, FLAGS_FUSED & 1, &data[..4096], 0), Status::INVALID_FIELD);
    assert_eq!(send(nvm::DATASET_MANAGEMENT, nsid, 0, 0, &data[..8], 0), Status::SGL_LENGTH);
    for opcode in [0x04, 0x10, 0x14, 0x19, 0xc1] {
        assert_eq!(send(opcode, nsid, 0, 0, &[], 0), Status::INVALID_OPCODE, "{opcode:x}");
    }
    for opcode in opcode::ALL.into_iter().filter(|opcode| *opcode != opcode::REPORT) {
        assert_eq!(send(opcode, nsid, 0, 0, &data[..7], 0), Status::SGL_LENGTH, "half a key");
    }
    assert_eq!(send(nvm::WRITE_ZEROES, records, 0, 0, &[], 0), Status::INVALID_OPCODE);
    let bytes = KeyValue::new(queue, nsid).store(&kaml::Key::from(1), b"x", 0);
    assert_eq!(
        status(bytes),
        Status::LBA_OUT_OF_RANGE,
        "a Store is a Write here: the length of the key is a block number"
    );
    assert!(disk.read(0, 100 * 4096).unwrap() == vec![0; 100 * 4096], "nothing was changed");
}

/// Goal:   hosts create disks next to Key Value namespaces, as `nvme create-ns` does, and delete them.
/// Method: both formats, a name; formats and sizes that do not exist; what is created is attached and written.
#[test]
fn disks_are_managed_by_hosts() {
    let world = World::new();
    let host = world.host();
    let create = |csi: u32, flbas: u8, sizes: (u64, u64), name: &str| {
        let mut command = Command::new(admin::NAMESPACE_MANAGEMENT, 0);
        command.cdw11 = (csi << 24).into();
        let mut create = Create::new_zeroed();
        (create.flbas, create.nsze, create.ncap) = (flbas, sizes.0.into(), sizes.1.into());
        create.kaml = Attributes::of(&Wanted { name: Some(name.into()), ..Wanted::default() }).unwrap();
        let done = host.admin().execute(command, create.as_bytes(), 0).unwrap();
        done.success().map(|done| done.result as u32)
    };
    let small = create(0, 0, (800, 800), "small").unwrap();
    let large = create(0, 1, (1 << 30, 0), "large").unwrap();
    let records = create(1, 0, (0, 0), "records").unwrap();
    assert_eq!(status(create(0, 2, (8, 8), "x")), Status::INVALID_FORMAT);
    assert_eq!(status(create(0, 0, (8, 9), "x")), Status::INVALID_FIELD);
    assert_eq!(status(create(0, 0, (0, 0), "x")), Status::INVALID_FIELD);
    assert_eq!(status(create(2, 0, (8, 8), "x")), Status::COMMAND_SET_UNSUPPORTED);
    assert!(Blocks::new(&host, &host.queues()[0], small).is_err(), "created is not attached");
    for nsid in [small, large, records] {
        let attach = Command::new(admin::NAMESPACE_ATTACHMENT, nsid);
        host.admin().execute(attach, &controller_list([host.id()].into_iter()), 0).unwrap().success().unwrap();
    }
    let disk = |nsid| Blocks::new(&host, &host.queues()[0], nsid).unwrap();
    assert_eq!((disk(small).block_bytes(), disk(small).block_count()), (512, 800));
    assert_eq!((disk(large).block_bytes(), disk(large).block_count()), (4096, 1 << 30), "larger than the device");
    disk(large).write((1 << 30) - 1, &[5; 4096]).unwrap();
    assert_eq!(page(&host, cns::NAMESPACE, large).nuse.get(), 1);
    KeyValue::new(&host.queues()[0], records).store(&kaml::Key::from(1), b"x", 0).unwrap();
    let mut command = Command::new(admin::NAMESPACE_MANAGEMENT, large);
    command.cdw10 = 1.into();
    host.admin().execute(command, &[], 0).unwrap().success().unwrap();
    assert!(Blocks::new(&host, &host.queues()[0], large).is_err());
    disk(small).write(0, &[1; 512]).unwrap();
}

/// Goal:   many commands of several queues and kinds in flight all complete, with their own data, and a full device
///         reports it until blocks are released.
/// Method: two queues write and read disjoint ranges, 64 in flight each, while a third thread trims; then a disk larger
///         than the device is filled up.
#[test]
fn many_in_flight_and_a_full_device() {
    let world = World::new();
    let nsid = disk(&world, 4096, 1 << 20);
    let host = world.host_with(|options| options.queues = 2);
    std::thread::scope(|scope| {
        for (number, queue) in host.queues().iter().enumerate() {
            let disk = Blocks::new(&host, queue, nsid).unwrap();
            scope.spawn(move || {
                let first = |n: usize| (number * 1000 + n * 3) as u64;
                for round in 0..5 {
                    let data = |n: usize| noise(number + n + round, 4096 * (1 + n % 3));
                    let writes = |n| disk.submit_write(first(n), &data(n)).unwrap();
                    for ticket in (0..64).map(writes).collect::<Vec<_>>() {
                        queue.wait(ticket).unwrap().success().unwrap();
                    }
                    let reads = |n| (n, disk.submit_read(first(n), data(n).len()).unwrap());
                    for (n, ticket) in (0..64).map(reads).collect::<Vec<_>>() {
                        assert!(queue.wait(ticket).unwrap().success().unwrap().data == data(n), "{n}");
                    }
                    disk.deallocate(&[5000..6000, 7000..8000]).unwrap();
                }
            });
        }
    });
    let disk = Blocks::new(&host, &host.queues()[0], nsid).unwrap();
    let piece = vec![3; 4 << 20];
    let full = (0..200).find_map(|n| disk.write(10_000 + n * 1024, &piece).err());
    assert_eq!(full.expect("256 MiB do not take 800").status(), Some(Status::CAPACITY_EXCEEDED));
    assert!(disk.read(10_000, 4 << 20).unwrap() == piece);
    disk.deallocate(std::slice::from_ref(&(10_000..1 << 20))).unwrap();
    disk.write(10_000, &piece).unwrap();
}
