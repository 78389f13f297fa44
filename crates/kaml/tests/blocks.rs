//! Block namespaces as a disk's user meets them.

use kaml::{
    Answer, AsyncQueue, Batch, BlockOptions, CreateOptions, Device, Durability, Error, NamespaceId, NamespaceKind,
    NamespaceOptions, OpenOptions,
};
use kaml_testkit::bytes as noise;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn device() -> Device {
    Device::in_memory(&CreateOptions::new(96 << 20)).unwrap()
}

fn create(device: &Device, block_bytes: u32, unit_bytes: u32, block_count: u64) -> NamespaceId {
    let options = BlockOptions { block_bytes, block_count, unit_bytes };
    device.create_namespace("disk", &options.into()).unwrap()
}

/// A disk and what it must hold.
struct Disk {
    device: Device,
    space: NamespaceId,
    block_bytes: usize,
    model: Vec<u8>,
}

impl Disk {
    fn new(device: Device, block_bytes: u32, unit_bytes: u32, block_count: u64) -> Disk {
        let space = create(&device, block_bytes, unit_bytes, block_count);
        let model = vec![0; block_bytes as usize * block_count as usize];
        Disk { device, space, block_bytes: block_bytes as usize, model }
    }

    fn block_count(&self) -> u64 {
        (self.model.len() / self.block_bytes) as u64
    }

    fn bytes(&self, first: u64, count: u64) -> std::ops::Range<usize> {
        first as usize * self.block_bytes..(first + count) as usize * self.block_bytes
    }

    fn write(&mut self, first: u64, count: u64, seed: u64) {
        let bytes = self.bytes(first, count);
        let data = noise(seed, bytes.len());
        self.device.block_write(self.space, first, &data).unwrap();
        self.model[bytes].copy_from_slice(&data);
    }

    fn trim(&mut self, first: u64, count: u64) {
        self.device.block_trim(self.space, first, count).unwrap();
        let bytes = self.bytes(first, count);
        self.model[bytes].fill(0);
    }

    /// Long and short writes and a trim, on a disk of at least 40 001 blocks.
    fn change_much(&mut self, turn: u64) {
        self.write(3, 20_000, turn);
        self.write(20_003, 19_998, turn + 10);
        for i in 0..300 {
            self.write(i * 131 % 40_000, 1, i + turn);
        }
        self.trim(turn * 5_000 + 1, 4_000);
    }

    fn check(&self, first: u64, count: u64) {
        let bytes = self.bytes(first, count);
        let mut found = vec![0xaa; bytes.len()];
        self.device.block_read(self.space, first, &mut found).unwrap();
        assert!(found == self.model[bytes], "blocks {first} to {}", first + count);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Write(u64, u64, u64),
    Trim(u64, u64),
    Zero(u64, u64),
    Read(u64, u64),
    Settle,
    Unload,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let at = any::<u64>;
    let op = prop_oneof![
        6 => (at(), 1u64..40, at()).prop_map(|(first, count, seed)| Op::Write(first, count, seed)),
        2 => (at(), 0u64..80).prop_map(|(first, count)| Op::Trim(first, count)),
        1 => (at(), 1u64..30).prop_map(|(first, count)| Op::Zero(first, count)),
        4 => (at(), 0u64..60).prop_map(|(first, count)| Op::Read(first, count)),
        1 => Just(Op::Settle),
        1 => Just(Op::Unload),
    ];
    prop::collection::vec(op, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Goal:   a block namespace is an array of bytes: reads give what was written last, or zeroes.
    /// Method: random writes, trims and reads of any place and length on it and a `Vec`, for blocks and units of each size and a
    ///         last unit that is not whole; records in buffers, on flash, and with the index out of memory and back.
    #[test]
    fn like_an_array(ops in ops(), sizes in 0usize..5, block_count in 1u64..300) {
        let (block_bytes, unit_bytes) = [(512, 512), (512, 4096), (4096, 4096), (4096, 16384), (512, 8192)][sizes];
        let mut disk = Disk::new(device(), block_bytes, unit_bytes, block_count);
        let within = |first: u64, count: u64| (first % block_count, count.min(block_count - first % block_count));
        for op in ops {
            match op {
                Op::Write(first, count, seed) => {
                    let (first, count) = within(first, count);
                    disk.write(first, count, seed);
                }
                Op::Trim(first, count) => {
                    let (first, count) = within(first, count);
                    disk.trim(first, count);
                }
                Op::Zero(first, count) => {
                    let (first, count) = within(first, count);
                    disk.device.block_write_zeroes(disk.space, first, count).unwrap();
                    let bytes = disk.bytes(first, count);
                    disk.model[bytes].fill(0);
                }
                Op::Read(first, count) => {
                    let (first, count) = within(first, count);
                    disk.check(first, count);
                }
                Op::Settle => disk.device.settle().unwrap(),
                Op::Unload => drop(disk.device.unload_namespace(disk.space).unwrap()),
            }
        }
        disk.check(0, disk.block_count());
        let report = disk.device.check(&mut |_, _| {}).unwrap();
        prop_assert_eq!(report.problems, Vec::<String>::new());
    }
}

/// Goal:   blocks and the namespace's attributes survive reopening after a clean close; the file remains in order.
/// Method: writes over the atomic limit and under a unit, and trims, so much that collection runs; sizes and contents
///         compared after each close.
#[test]
fn blocks_survive_a_close() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.kaml");
    let options = CreateOptions { durability: Durability::Process, ..CreateOptions::new(64 << 20) };
    let mut disk = Disk::new(Device::create(&path, &options).unwrap(), 512, 4096, 40_001);
    let info = disk.device.block_info(disk.space).unwrap();
    assert_eq!((info.block_bytes, info.block_count, info.unit_bytes, info.used_blocks), (512, 40_001, 4096, 0));
    assert!(info.atomic_blocks >= 8 * 31, "{info:?}");
    let open = OpenOptions { durability: Some(Durability::Process), ..OpenOptions::default() };
    for turn in 0..5 {
        disk.change_much(turn);
        let Disk { device, space, block_bytes, model } = disk;
        device.close().unwrap();
        let device = Device::open(&path, &open).unwrap();
        assert!(device.info().was_clean);
        disk = Disk { device, space, block_bytes, model };
        disk.check(0, 40_001);
        assert_eq!(disk.device.namespaces()[0].kind, NamespaceKind::Blocks(BlockOptions::new(512, 40_001)));
    }
    assert_eq!(disk.device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

/// Goal:   the same after power was cut.
/// Method: a device on flash in memory that loses what is not durable, and may tear it; everything has returned before.
#[test]
fn blocks_survive_a_cut() {
    let geometry = kaml_flash::Geometry::for_file(64 << 20, 512, &CreateOptions::new(64 << 20)).unwrap();
    let medium = kaml_flash::MemoryMedium::new(geometry);
    kaml_device::Core::format(&medium).unwrap();
    let mut disk = Disk::new(Device::on_medium(Arc::new(medium.clone())).unwrap(), 512, 4096, 40_001);
    for turn in 0..5 {
        disk.change_much(turn);
        medium.cut_after(0);
        let Disk { device, space, block_bytes, model } = disk;
        drop(device);
        medium.power_on(turn);
        let device = Device::on_medium(Arc::new(medium.clone())).unwrap();
        assert!(!device.info().was_clean);
        disk = Disk { device, space, block_bytes, model };
        disk.check(0, 40_001);
    }
}

/// Goal:   writers of different blocks of one unit never undo each other.
/// Method: four threads, two by the blocking calls and two by event loops, write blocks of their own in shared units, turn by
///         turn, while another one collects buffers onto flash; after each answer the block is read back; at the end all.
#[test]
fn neighbours_in_a_unit_survive() {
    const UNITS: u64 = 6;
    const TURNS: u64 = 150;
    let device = device();
    let space = create(&device, 512, 4096, UNITS * 8);
    let value = |block: u64, turn: u64| noise(block << 32 | turn, 512);
    let writing = AtomicU64::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (device, writing) = (&device, &writing);
            scope.spawn(move || {
                let mut queue = device.queue(8);
                for turn in 1..=TURNS {
                    for unit in 0..UNITS {
                        let block = unit * 8 + thread * 2 + turn % 2;
                        if thread % 2 == 0 {
                            device.block_write(space, block, &value(block, turn)).unwrap();
                            let mut found = vec![0; 512];
                            device.block_read(space, block, &mut found).unwrap();
                            assert!(found == value(block, turn), "block {block} lost turn {turn}");
                        } else {
                            queue.submit_block_write(unit, space, block, &value(block, turn)).unwrap();
                        }
                    }
                    drain(&mut queue);
                }
                writing.fetch_sub(1, Relaxed);
            });
        }
        scope.spawn(|| {
            while writing.load(Relaxed) > 0 {
                device.settle().unwrap();
            }
        });
    });
    for block in 0..UNITS * 8 {
        let last = if block % 2 == TURNS % 2 { TURNS } else { TURNS - 1 };
        let mut found = vec![0; 512];
        device.block_read(space, block, &mut found).unwrap();
        assert!(found == value(block, last), "block {block}");
    }
}

fn drain(queue: &mut AsyncQueue) -> Vec<(u64, Option<Vec<u8>>)> {
    let mut answers = vec![];
    while queue.in_flight() > 0 {
        queue.poll(true, &mut answers);
    }
    let told = |answer: kaml::Answer| (answer.token, answer.result.unwrap().map(kaml::Bytes::into_vec));
    answers.into_iter().map(told).collect()
}

/// Goal:   a read sees each atomic write whole or not at all.
/// Method: one thread writes all units of a stretch with one turn's number, others read it by both APIs.
#[test]
fn reads_see_whole_writes() {
    let device = device();
    let space = create(&device, 4096, 4096, 64);
    let done = AtomicU64::new(0);
    let check = |bytes: &[u8]| assert!(bytes.iter().all(|byte| *byte == bytes[0]), "parts of two writes");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut queue = device.queue(8);
            while done.load(Relaxed) == 0 {
                let mut found = vec![0; 32 * 4096];
                device.block_read(space, 7, &mut found).unwrap();
                check(&found);
                queue.submit_block_read(1, space, 7, found.len()).unwrap();
                drain(&mut queue).into_iter().for_each(|(_, found)| check(&found.unwrap()));
            }
        });
        for turn in 0..400u32 {
            device.block_write(space, 7, &vec![turn as u8; 32 * 4096]).unwrap();
        }
        done.store(1, Relaxed);
    });
}

/// Goal:   one event loop has many commands in flight, longer than one Put and shorter than a unit, and all return the right results.
/// Method: rounds of commands on blocks of their own, all in flight at once; then everything is read back by the loop.
#[test]
fn many_in_flight() {
    let mut disk = Disk::new(device(), 512, 4096, 50_000);
    let mut queue = disk.device.queue(64);
    for round in 0..4u64 {
        let mut expected = 0;
        for i in 0..100u64 {
            let first = i * 500 + round * 3;
            let count = [1, 7, 8, 40, 450][(i % 5) as usize];
            let bytes = disk.bytes(first, count);
            if (i + round) % 7 == 6 {
                queue.submit_block_trim(i, disk.space, first, count).unwrap();
                disk.model[bytes].fill(0);
            } else {
                let data = noise(i + round * 1000, bytes.len());
                queue.submit_block_write(i, disk.space, first, &data).unwrap();
                disk.model[bytes].copy_from_slice(&data);
            }
            expected += 1;
        }
        let mut tokens: Vec<u64> = drain(&mut queue).into_iter().map(|(token, _)| token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (0..expected).collect::<Vec<_>>(), "each command completes one time");
        if round == 1 {
            disk.device.settle().unwrap();
        }
        for first in (0..50_000).step_by(1000) {
            queue.submit_block_read(first, disk.space, first, 1000 * 512).unwrap();
        }
        for (first, found) in drain(&mut queue) {
            assert!(found.unwrap() == disk.model[disk.bytes(first, 1000)], "blocks from {first} on");
        }
        let rest_of_unit = |first: u64| 8 - first % 8;
        for first in (0..50_000).step_by(97) {
            queue.submit_block_read(first, disk.space, first, rest_of_unit(first) as usize * 512).unwrap();
        }
        for (first, found) in drain(&mut queue) {
            assert!(
                found.unwrap() == disk.model[disk.bytes(first, rest_of_unit(first))],
                "blocks of a unit from {first} on"
            );
        }
    }
    // Longer than many Puts, and than the room that the ring has.
    let data = noise(9, 40_000 * 512);
    queue.submit_block_write(1, disk.space, 5, &data).unwrap();
    assert_eq!(drain(&mut queue), [(1, None)]);
    let bytes = disk.bytes(5, 40_000);
    disk.model[bytes].copy_from_slice(&data);
    disk.check(0, 50_000);
    queue.submit_block_write_zeroes(2, disk.space, 0, 50_000).unwrap();
    assert_eq!(drain(&mut queue), [(2, None)]);
    assert_eq!(disk.device.block_info(disk.space).unwrap().used_blocks, 0);
}

/// Goal:   long trims take turns: a poll continues with a few of them, and with each a bit, so the loop's other commands do not wait
///         for all.
/// Method: trims of a large disk that was touched here and there, and of many short ranges without anything: how many complete by
///         each poll. All are in the end, and what existed is gone.
#[test]
fn long_trims_take_turns() {
    const BLOCKS: u64 = 1 << 20;
    let device = device();
    let space = create(&device, 4096, 4096, BLOCKS);
    let touched = || (0..BLOCKS).step_by(5000);
    touched().for_each(|block| device.block_write(space, block, &[1; 4096]).unwrap());
    let (mut queue, mut answers) = (device.queue(1000), Vec::new());
    (0..3).for_each(|token| queue.submit_block_trim(token, space, 0, BLOCKS).unwrap());
    queue.poll(false, &mut answers);
    assert!(answers.is_empty(), "a poll does not go through all of a disk");
    assert_eq!(drain(&mut queue).len(), 3);
    (0..100).for_each(|token| queue.submit_block_trim(token, space, token * 1000, 1000).unwrap());
    let mut polls = 0;
    while queue.in_flight() > 0 {
        let before = answers.len();
        queue.poll(polls % 2 == 1, &mut answers);
        assert!(answers.len() - before <= 10, "a poll continues with a few");
        polls += 1;
    }
    assert_eq!(answers.len(), 100);
    let mut block = [1; 4096];
    for at in touched() {
        device.block_read(space, at, &mut block).unwrap();
        assert!(block == [0; 4096], "block {at}");
    }
}

/// Goal:   Puts in flight during a trim are written and complete, however far the trim is when they come.
/// Method: a trim of which the first step stages something and the others nothing, and a put after this many polls; nobody else
///         commits anything.
#[test]
fn puts_beside_trims_are_answered() {
    const BLOCKS: u64 = 1 << 20;
    let device = device();
    let space = create(&device, 4096, 4096, BLOCKS);
    let records = device.create_namespace("records", &NamespaceOptions::default()).unwrap();
    (0..BLOCKS).step_by(5000).for_each(|block| device.block_write(space, block, &[1; 4096]).unwrap());
    device.block_trim(space, 0, BLOCKS).unwrap();
    for polls in 0..12 {
        device.block_write(space, 0, &[1; 4096]).unwrap();
        let (mut queue, mut answers) = (device.queue(8), Vec::new());
        queue.submit_block_trim(1, space, 0, BLOCKS).unwrap();
        (0..polls).for_each(|_| queue.poll(false, &mut answers));
        queue.put(2, records, 7u64, b"value").unwrap();
        let begin = std::time::Instant::now();
        while queue.in_flight() > 0 {
            queue.poll(false, &mut answers);
            if begin.elapsed().as_secs() >= 20 {
                std::mem::forget(queue); // which would wait forever, too
                panic!("a put after {polls} polls has not completed");
            }
        }
    }
}

/// Goal:   a trim of many ranges trims all of them and nothing else, and completes one time.
/// Method: whole units, parts of units, an empty range, the last blocks, in namespaces of small and of large units; the model.
#[test]
fn trims_of_many_ranges() {
    let device = device();
    for (name, unit_bytes) in [("small", 512), ("large", 4096)] {
        let options = BlockOptions { block_bytes: 512, block_count: 1003, unit_bytes };
        let space = device.create_namespace(name, &options.into()).unwrap();
        let data = vec![7; 1003 * 512];
        device.block_write(space, 0, &data).unwrap();
        let ranges = [3..5, 16..40, 41..41, 90..700, 701..702, 1001..1003];
        let (mut queue, mut answers) = (device.queue(8), Vec::new());
        queue.submit_block_trims(1, space, &ranges).unwrap();
        while queue.in_flight() > 0 {
            queue.poll(true, &mut answers);
        }
        assert!(matches!(answers[..], [Answer { token: 1, result: Ok(None) }]), "{answers:?}");
        let mut found = vec![1; data.len()];
        device.block_read(space, 0, &mut found).unwrap();
        for (block, bytes) in (0..).zip(found.chunks(512)) {
            let is_trimmed = ranges.iter().any(|range| range.contains(&block));
            assert!(bytes.iter().all(|byte| *byte == if is_trimmed { 0 } else { 7 }), "{name}: block {block}");
        }
        let beyond = queue.submit_block_trims(2, space, &[0..1, 1000..1004]).unwrap_err();
        assert!(matches!(beyond, kaml::Error::BlocksOutOfRange { .. }), "{beyond}");
        device.delete_namespace(space).unwrap();
    }
}

/// Goal:   trims that are cancelled do not continue, and complete so; others do.
/// Method: two of a large disk, one of which is cancelled when both have begun; how much of the disk is left.
#[test]
fn trims_are_cancelled() {
    const BLOCKS: u64 = 1 << 20;
    let device = device();
    let spaces = ["one", "two"].map(|name| {
        let options = BlockOptions { block_bytes: 4096, block_count: BLOCKS, unit_bytes: 4096 };
        device.create_namespace(name, &options.into()).unwrap()
    });
    let touched = || (0..BLOCKS).step_by(5000);
    for space in spaces {
        touched().for_each(|block| device.block_write(space, block, &[1; 4096]).unwrap());
    }
    let (mut queue, mut answers) = (device.queue(8), Vec::new());
    (0..).zip(spaces).for_each(|(token, space)| queue.submit_block_trim(token, space, 0, BLOCKS).unwrap());
    queue.poll(false, &mut answers);
    queue.cancel_trims(&[1, 7].into());
    while queue.in_flight() > 0 {
        queue.poll(true, &mut answers);
    }
    answers.sort_by_key(|answer| answer.token);
    let [Answer { result: Ok(None), .. }, Answer { result: Err(Error::Cancelled), .. }] = &answers[..] else {
        panic!("{answers:?}")
    };
    let left = spaces.map(|space| device.namespaces().iter().find(|info| info.id == space).unwrap().record_count);
    assert!(left[0] == 0 && left[1] > 100, "{left:?}");
}

/// Goal:   a loop learns of its writes, whichever thread commits them.
/// Method: threads write next to it, so its blocks often are in their frames; no completion waits for the
///         end of a wait, which is a second.
#[test]
fn writes_that_others_commit_are_heard_of() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::create(dir.path().join("d.kaml"), &CreateOptions::new(96 << 20)).unwrap();
    let space = create(&device, 4096, 4096, 64);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (device, stop) = (&device, &stop);
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    device.block_write(space, thread, &[1; 4096]).unwrap();
                }
            });
        }
        let mut queue = device.queue(8);
        let mut longest = std::time::Duration::ZERO;
        for round in 0..400 {
            let start = std::time::Instant::now();
            queue.submit_block_write(round, space, 10, &[2; 4096]).unwrap();
            drain(&mut queue);
            longest = longest.max(start.elapsed());
            if longest.as_millis() >= 900 {
                break;
            }
        }
        stop.store(true, Relaxed);
        assert!(longest.as_millis() < 900, "one took {longest:?}");
    });
}

/// Goal:   a full device refuses writes, answers reads, and takes trims, which make it writable again.
/// Method: a namespace larger than the device, written until it is full.
#[test]
fn full_devices_take_trims() {
    let device = device();
    let space = create(&device, 4096, 4096, 1 << 30);
    let data = noise(1, 256 * 4096);
    let refused = (0..).find_map(|i| device.block_write(space, i * 256, &data).err().map(|error| (i, error)));
    let (count, error) = refused.unwrap();
    assert!(matches!(error, kaml::Error::Full { .. }), "{error}");
    let mut found = vec![0; data.len()];
    device.block_read(space, (count - 1) * 256, &mut found).unwrap();
    assert!(found == data);
    device.block_trim(space, 0, 1 << 30).unwrap();
    assert_eq!(device.block_info(space).unwrap().used_blocks, 0);
    device.block_write(space, 99, &data).unwrap();
}

fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> Error {
    result.unwrap_err()
}

/// Goal:   commands that make no sense are refused by name and change nothing.
/// Method: each of them, by the blocking calls and by the event loop.
#[test]
fn bad_input_is_refused() {
    use kaml::Error as E;
    let device = device();
    let disk = create(&device, 512, 4096, 100);
    let records = device.create_namespace("records", &Default::default()).unwrap();
    let mut queue = device.queue(8);
    let (block, key) = (noise(1, 512), kaml::Key::from(3));

    assert!(matches!(refusal(device.get(disk, key)), E::HoldsBlocks(id) if id == disk));
    assert!(matches!(refusal(device.put(disk, key, &[0; 4096])), E::HoldsBlocks(id) if id == disk));
    assert!(matches!(refusal(device.put(disk, key, &[0; 100_000])), E::HoldsBlocks(id) if id == disk));
    assert!(matches!(refusal(device.delete(disk, key)), E::HoldsBlocks(id) if id == disk));
    assert!(matches!(refusal(device.exists(disk, key)), E::HoldsBlocks(id) if id == disk));
    assert!(matches!(refusal(device.list(disk, None, 10)), E::HoldsBlocks(id) if id == disk));
    let mut batch = Batch::new();
    batch.put(records, key, b"x").put(disk, key, b"x");
    assert!(matches!(refusal(device.write(&batch)), E::HoldsBlocks(id) if id == disk));
    assert!(matches!(refusal(queue.get(1, disk, key)), E::HoldsBlocks(id) if id == disk));
    assert!(matches!(refusal(queue.put(1, disk, key, b"x")), E::HoldsBlocks(id) if id == disk));

    assert!(matches!(refusal(device.block_info(records)), E::HoldsRecords(id) if id == records));
    assert!(matches!(refusal(device.block_read(records, 0, &mut [0; 512])), E::HoldsRecords(id) if id == records));
    assert!(matches!(refusal(device.block_write(records, 0, &block)), E::HoldsRecords(id) if id == records));
    assert!(matches!(refusal(device.block_trim(records, 0, 1)), E::HoldsRecords(id) if id == records));
    assert!(matches!(refusal(queue.submit_block_write(1, records, 0, &block)), E::HoldsRecords(id) if id == records));
    assert!(matches!(refusal(queue.submit_block_read(1, records, 0, 512)), E::HoldsRecords(id) if id == records));
    assert!(matches!(refusal(device.block_info(77)), E::UnknownNamespace(id) if id == 77));
    assert!(matches!(refusal(device.block_read(77, 0, &mut [0; 512])), E::UnknownNamespace(id) if id == 77));

    let outside = |error| matches!(error, E::BlocksOutOfRange { block_count: 100, .. });
    assert!(outside(refusal(device.block_read(disk, 100, &mut [0; 512]))));
    assert!(outside(refusal(device.block_write(disk, 99, &noise(1, 1024)))));
    assert!(outside(refusal(device.block_trim(disk, u64::MAX, u64::MAX))));
    assert!(outside(refusal(device.block_write_zeroes(disk, 0, 101))));
    assert!(outside(refusal(queue.submit_block_trim(1, disk, 100, 1))));
    assert!(matches!(refusal(device.block_write(disk, 0, &noise(1, 513))), E::PartialBlock { bytes: 513, .. }));
    assert!(matches!(refusal(device.block_read(disk, 0, &mut [0; 1])), E::PartialBlock { .. }));

    let bad = |options: BlockOptions| refusal(device.create_namespace("bad", &options.into()));
    assert!(matches!(bad(BlockOptions::default()), E::BadBlockOptions { .. }));
    assert!(matches!(bad(BlockOptions::new(1000, 10)), E::BadBlockOptions { .. }));
    assert!(matches!(bad(BlockOptions::new(512, u64::MAX)), E::BadBlockOptions { .. }));
    assert_eq!(queue.in_flight(), 0);
    assert_eq!(device.block_info(disk).unwrap().used_blocks, 0);
    assert!(!device.exists(records, key).unwrap(), "the batch was refused whole");
}
