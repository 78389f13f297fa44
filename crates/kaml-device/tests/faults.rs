//! The firmware on flash that fails: bad programs and erases, no space below, a full device, a ring that cannot be
//! written.

#[path = "common/watched.rs"]
mod watched;

use kaml_device::{
    BlockAudit, Body, Buffered, Condition, Core, DIRECT_BYTES, Error, Found, Key, KeyKind, NamespaceChange,
    NamespaceOptions, Op, StageError, VersionOptions, encode_image, image_bytes,
};
use kaml_flash::{
    AlignedBuf, BlockIndex, ChunkAddr, Completion, Geometry, Io, Medium, MediumError, MemoryMedium, Packing,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use watched::{Seen, Watched};

fn geometry() -> Geometry {
    Geometry {
        channel_count: 1,
        dies_per_channel: 2,
        blocks_per_die: 40,
        pages_per_block: 32,
        page_bytes: 4096,
        oob_bytes: 32,
        chunk_bytes: 64,
        pages_per_program: 1,
        packing: Packing::Across,
        ring_bytes: 1 << 20,
        sector_bytes: 512,
        root_bytes: 1 << 16,
    }
}

/// What the world does to operations before they reach the medium.
#[derive(Default)]
struct World {
    bad_blocks: BTreeSet<u32>,
    /// The block that is programmed next goes bad.
    wear_out: bool,
    no_space: bool,
    no_ring: bool,
    /// The index of this namespace cannot be loaded.
    lost_index: Option<u32>,
    /// A bit flips on its way in one read of three; reads so far.
    flips: bool,
    reads: u64,
}

impl World {
    /// Each time another one, anywhere.
    fn flip(&mut self, io: &mut Io) {
        let (Io::Read { into, .. } | Io::ReadOob { into, .. }) = io else { return };
        self.reads += 1;
        if self.flips && self.reads.is_multiple_of(3) {
            let bit = self.reads.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
            let at = bit as usize / 8 % into.len();
            into[at] ^= 1 << (bit % 8);
        }
    }
}

/// The firmware on one thread, with a world in between.
struct Rig {
    core: Core,
    medium: MemoryMedium,
    world: World,
    now_ns: u64,
    namespace: u32,
    /// Asked for the lost index in vain.
    lost_asked: u32,
    poll_after_puts: bool,
}

impl Rig {
    fn new() -> Rig {
        let medium = MemoryMedium::new(geometry());
        Core::format(&medium).unwrap();
        let (core, _) = Core::open(&medium).unwrap();
        let mut rig = Rig {
            core,
            medium,
            world: World::default(),
            now_ns: 0,
            namespace: 0,
            lost_asked: 0,
            poll_after_puts: true,
        };
        let options = NamespaceOptions { keys: KeyKind::U64, ..NamespaceOptions::default() };
        rig.namespace = rig.core.create_namespace("n", &options).unwrap();
        rig.settle();
        rig
    }

    fn execute(&mut self, id: u64, mut io: Io) {
        let result = self.attempt(&mut io);
        self.core.complete(Completion { id, io, result });
    }

    fn attempt(&mut self, io: &mut Io) -> Result<(), MediumError> {
        if let Io::Program { at, .. } = &*io
            && std::mem::take(&mut self.world.wear_out)
        {
            self.world.bad_blocks.insert(at.block.0);
        }
        let failed = |block: BlockIndex, what| MediumError::BlockFailed { block, what, error: "worn out".into() };
        match &*io {
            Io::Program { at, .. } if self.world.bad_blocks.contains(&at.block.0) => Err(failed(at.block, "program")),
            Io::Erase { block, .. } if self.world.bad_blocks.contains(&block.0) => Err(failed(*block, "erase")),
            Io::Program { at, .. } if self.world.no_space => Err(MediumError::NoSpace { what: at.to_string() }),
            Io::Erase { block, .. } if self.world.no_space => Err(MediumError::NoSpace { what: block.to_string() }),
            Io::Persist { .. } if self.world.no_ring => {
                Err(MediumError::NotDurable { what: "commit ring write", error: "EIO".into() })
            }
            _ => {
                self.medium.execute(io)?;
                self.world.flip(io);
                Ok(())
            }
        }
    }

    fn background(&mut self) {
        self.now_ns += 200_000_000;
        let mut started = Vec::new();
        self.core.poll(self.now_ns, &mut started);
        for (id, io) in started {
            self.execute(id, io);
        }
        if let Some(id) = self.core.wanted_index() {
            match self.load_index(id) {
                Ok(()) => self.core.forget_wanted_index(),
                Err(error) => self.core.wanted_index_is_lost(&error),
            }
        }
    }

    fn load_index(&mut self, id: u32) -> Result<(), Error> {
        if self.world.lost_index == Some(id) {
            self.lost_asked += 1;
            return Err(MediumError::ReadFailed { what: "an index".into(), error: "uncorrectable".into() }.into());
        }
        self.core.load_index(&self.medium, id)
    }

    fn settle(&mut self) {
        let request = self.core.request_root(true);
        for _ in 0..10_000 {
            if self.core.roots_done() >= request {
                return;
            }
            self.background();
        }
        panic!("no root is made");
    }

    fn put(&mut self, key: u64, value: Option<&[u8]>) -> Result<(), Error> {
        let body = match value {
            Some(value) => Body::Value { value, crc32c: crc_fast::crc32_iscsi(value) },
            None => Body::Delete,
        };
        let op = Op { namespace: self.namespace, key: Key::from(key), body, condition: Condition::Always };
        for _ in 0..10_000 {
            match self.core.stage(&[op]) {
                Ok(_) => {
                    let (id, io) = self.core.begin_persist().expect("one at a time");
                    self.execute(id, io);
                    if self.poll_after_puts {
                        self.background();
                    }
                    return self.core.stopped().map_or(Ok(()), Err);
                }
                Err(StageError::Refused(error)) => return Err(error),
                Err(StageError::NeedIndex(id)) => self.core.load_index(&self.medium, id)?,
                Err(StageError::Busy) => self.background(),
            }
        }
        panic!("a Put waits for ever");
    }

    /// Puts a large value: beside its ring write if that may be. Answers whether it was, and the result of the program.
    fn put_large(&mut self, key: u64, value: &[u8]) -> Option<Result<(), MediumError>> {
        let (namespace, key) = (self.namespace, Key::from(key));
        let buf = AlignedBuf::zeroed(image_bytes(self.core.geometry(), value.len()));
        let value = (value, crc_fast::crc32_iscsi(value));
        let image = encode_image(self.core.geometry(), namespace, key, value, self.core.last_sequence(), buf);
        let ticket = self.core.place(namespace, key, image).unwrap();
        let op = Op { namespace, key, body: Body::Placed { ticket }, condition: Condition::Always };
        let mut beside = None;
        if let Some((id, mut program)) = self.core.take_program(ticket) {
            match self.core.stage_beside(&op) {
                None => self.execute(id, program),
                Some((write_id, mut write)) => {
                    let programmed = self.attempt(&mut program);
                    // The ring write that nobody waits for any more may have been made.
                    let written = self.medium.execute(&mut write);
                    let result = programmed.clone().map(|()| written);
                    let empty = self.core.complete_beside((id, program), (write_id, write), result);
                    assert_eq!(empty.is_some(), programmed.is_err());
                    if programmed.is_ok() {
                        return Some(programmed);
                    }
                    let (id, io) = empty.unwrap();
                    self.execute(id, io);
                    beside = Some(programmed);
                }
            }
        }
        while !self.core.is_placed(ticket) {
            self.background();
        }
        self.core.stage(&[op]).unwrap();
        let (id, io) = self.core.begin_persist().expect("one at a time");
        self.execute(id, io);
        beside
    }

    /// Fails a ring write, and carries out nothing of what there is to do.
    fn stop(&mut self) {
        self.world.no_ring = true;
        self.put(0, Some(b"lost")).unwrap_err();
        self.core.poll(self.now_ns, &mut Vec::new());
    }

    fn get(&mut self, key: u64) -> Option<Vec<u8>> {
        self.core.load_index(&self.medium, self.namespace).unwrap();
        let key = Key::from(key);
        let read = match self.core.reader().find(self.namespace, &key).unwrap() {
            Found::Absent => return None,
            Found::Flash(read) => read,
            Found::Buffered => match self.core.read_buffered(self.namespace, &key).unwrap() {
                Buffered::Value(value) => return Some(value),
                Buffered::Programmed(read) => read,
                Buffered::Absent => panic!("found, then not"),
            },
        };
        let mut io = Io::Read { at: read.at, into: AlignedBuf::zeroed(read.bytes) };
        self.medium.execute(&mut io).unwrap();
        let Io::Read { into, .. } = io else { unreachable!() };
        Some(into[read.value(&into).unwrap()].to_vec())
    }

    fn compare(&mut self, model: &BTreeMap<u64, Vec<u8>>, keys: u64) {
        for key in 0..keys {
            assert_eq!(self.get(key).as_ref(), model.get(&key), "key {key}");
        }
    }

    /// What is accounted as live is there, block by block.
    fn audit(&mut self) {
        for block in self.core.blocks_in_use() {
            let audit = BlockAudit::read(&self.core.reader(), &self.medium, block);
            assert_eq!(audit.needed_index(&self.core, &BTreeSet::new()), None);
            assert_eq!(audit.judge(&self.core).problems, Vec::<String>::new());
        }
    }

    fn reopen(&mut self) {
        self.core = Core::open(&self.medium).unwrap().0;
    }

    /// Takes the namespace's index out of memory.
    fn unload(&mut self) {
        self.core.request_checkpoint();
        while !self.core.unload_index(self.namespace).unwrap() {
            self.background();
        }
    }

    /// The same while a record stands in a buffer, whose block goes bad.
    fn unload_and_wear_out(&mut self, key: u64) {
        let at = ChunkAddr(self.core.slot(self.namespace, &Key::from(key)).unwrap().at);
        self.unload();
        self.world.bad_blocks.insert(self.medium.geometry().split(at).0.0);
    }
}

/// Goal:   a large value whose program fails beside its ring write is stored elsewhere, once, and the ring goes on behind the frame that
///         says nothing now.
/// Method: large values put one by one while now and then the block programmed next goes bad, although its ring write was made;
///         the device opened again soon after each failure, and in the end; counts, and each time all values.
#[test]
fn programs_that_fail_beside_their_frames_lose_nothing() {
    let mut rig = Rig::new();
    let mut model = BTreeMap::new();
    let (mut beside, mut failed) = (0, 0);
    for round in 0..600u64 {
        let key = round * 7 % 40;
        let value = vec![round as u8; DIRECT_BYTES + (round as usize * 37) % 5000];
        rig.world.wear_out |= round % 60 == 40;
        match rig.put_large(key, &value) {
            Some(Ok(())) => beside += 1,
            Some(Err(_)) => failed += 1,
            None => {}
        }
        model.insert(key, value);
        if round % 5 == 0 {
            rig.background();
        }
        if round % 60 == 41 {
            rig.core = Core::open(&rig.medium).unwrap().0;
            rig.compare(&model, 40);
        }
    }
    assert!(beside > 200 && failed > 2, "{beside} beside, {failed} failed");
    rig.settle();
    assert!(rig.core.stats().bad_blocks > 2, "{:?}", rig.core.stats());
    rig.compare(&model, 40);
    rig.reopen();
    rig.compare(&model, 40);
}

fn value(key: u64, round: u64) -> Vec<u8> {
    vec![(key ^ round) as u8; 200 + (key * 31 + round * 7) as usize % 4000]
}

fn scattered(round: u64) -> u64 {
    round.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 33
}

/// Goal:   blocks that fail are retired with nothing lost, for good, and the device goes on.
/// Method: overwrite while now and then the block programmed next goes bad, whatever it is for; compare, reopen,
///         compare.
#[test]
fn failing_blocks_lose_nothing() {
    let mut rig = Rig::new();
    let mut model = BTreeMap::new();
    for round in 0..20_000u64 {
        rig.world.wear_out |= round % 1500 == 700;
        let key = scattered(round) % 2100;
        rig.put(key, Some(&value(key, round))).unwrap();
        model.insert(key, value(key, round));
    }
    rig.settle();
    let stats = rig.core.stats();
    assert!(stats.bad_blocks >= 10 && stats.program_failures >= 5 && stats.relocated_bytes > 0, "{stats:?}");
    rig.compare(&model, 2100);
    rig.reopen();
    rig.compare(&model, 2100);
    assert!(rig.core.stats().bad_blocks >= stats.bad_blocks);
}

/// Goal:   a record whose block fails is found at its new place, also if its index left memory while it stood in a buffer.
/// Method: after each of twenty Puts a checkpoint, until the index can be taken out of memory; then the buffer with the record is
///         programmed, and that fails; compared each time, and after the device is opened again.
#[test]
fn failing_blocks_wait_for_indexes_that_left_memory() {
    let mut rig = Rig::new();
    let mut model = BTreeMap::new();
    for key in 0..20 {
        rig.put(key, Some(&value(key, 1))).unwrap();
        model.insert(key, value(key, 1));
        rig.unload_and_wear_out(key);
        let failures = rig.core.stats().program_failures;
        rig.settle();
        assert_eq!(rig.core.stats().program_failures, failures + 1, "it stood in a buffer");
        rig.compare(&model, 20);
    }
    rig.reopen();
    rig.compare(&model, 20);
}

/// Goal:   a root does not give up the ring frames of records that a failed block took along, while they stand in a buffer again.
/// Method: fill a block, whose program fails; once its records stand in another one's buffer, a root that does not settle; then the
///         device is opened as after a crash.
#[test]
fn records_placed_again_hold_the_ring() {
    let mut rig = Rig::new();
    let one_log = NamespaceChange { logs: Some(vec![0]), ..NamespaceChange::default() };
    rig.core.set_namespace(rig.namespace, &one_log).unwrap();
    rig.settle();
    let (mut model, mut key) = (BTreeMap::new(), 0);
    rig.world.wear_out = true;
    while rig.core.stats().program_failures == 0 {
        rig.put(key, Some(&value(key, 1))).unwrap();
        model.insert(key, value(key, 1));
        key += 1;
    }
    let programs = rig.core.stats().page_bytes;
    while rig.core.wants_poll() {
        rig.background();
    }
    let request = rig.core.request_root(false);
    while rig.core.roots_done() < request {
        rig.background();
    }
    assert!(rig.core.has_unprogrammed() && key > 20, "{key} records; {programs} {:?}", rig.core.stats());
    rig.reopen();
    rig.compare(&model, key);
}

/// Goal:   where records of a failed block wait for an index that cannot be read the device stops and says so, and nothing of
///         them is lost: they are there when it is opened again.
/// Method: as above, with indexes that cannot be loaded for a while.
#[test]
fn failed_blocks_do_not_wait_for_lost_indexes_for_ever() {
    let mut rig = Rig::new();
    rig.put(1, Some(b"kept")).unwrap();
    rig.unload_and_wear_out(1);
    rig.world.lost_index = Some(rig.namespace);
    rig.core.request_root(true);
    (0..200).for_each(|_| rig.background());
    let stopped = rig.core.stopped();
    assert!(stopped.as_ref().is_some_and(|why| why.to_string().contains("the index of namespace 1")), "{stopped:?}");
    rig.reopen();
    rig.compare(&BTreeMap::from([(1, b"kept".to_vec())]), 3);
}

/// Goal:   an index that only collection needs and cannot get does not stop the device when another namespace's block fails.
/// Method: records of one namespace lie between garbage, and its index cannot be loaded; another is put until collection has asked for
///         it often, and then its blocks fail.
#[test]
fn blocks_fail_beside_an_index_that_collection_lacks() {
    let (mut rig, ..) = between_records_of_a_lost_index();
    for round in 0..20_000u64 {
        rig.put(round % 1100 * 2 + 1, Some(&value(1, round))).unwrap();
        rig.world.wear_out |= rig.lost_asked > 20;
        if rig.core.stats().program_failures > 2 {
            break;
        }
    }
    assert!(rig.core.stats().program_failures > 2, "{} {:?}", rig.lost_asked, rig.core.stats());
    assert_eq!(rig.core.stopped(), None);
}

/// A namespace, loaded, whose records lie between those of another one, whose index has left memory and cannot be loaded again; the
/// namespaces of both.
fn between_records_of_a_lost_index() -> (Rig, u32, u32) {
    let mut rig = Rig::new();
    let (lost, options) = (rig.namespace, NamespaceOptions { keys: KeyKind::U64, ..NamespaceOptions::default() });
    let busy = rig.core.create_namespace("busy", &options).unwrap();
    for key in 0..2200 {
        rig.namespace = if key % 2 == 0 { lost } else { busy };
        rig.put(key, Some(&value(key, 0))).unwrap();
    }
    rig.namespace = lost;
    rig.unload();
    (rig.namespace, rig.world.lost_index) = (busy, Some(lost));
    (rig, busy, lost)
}

/// Goal:   an index that cannot be loaded keeps no other namespace waiting: after some tries collection leaves blocks with its records
///         alone. When it is back nothing is missing, and these blocks are collected again.
/// Method: another namespace is overwritten many times beside it; then the index can be read again, and both are overwritten.
#[test]
fn collection_goes_on_without_a_lost_index() {
    let (mut rig, busy, lost) = between_records_of_a_lost_index();
    let mut model: BTreeMap<u64, Vec<u8>> = (0..1100).map(|i| (2 * i, value(2 * i, 0))).collect();
    for round in 0..20_000u64 {
        rig.put(round % 1100 * 2 + 1, Some(&value(1, round))).unwrap();
    }
    assert!((50..100).contains(&rig.lost_asked), "asked {} times", rig.lost_asked);
    let free = rig.core.stats().free_blocks;
    rig.world.lost_index = None;
    rig.namespace = lost;
    rig.compare(&model, 2200);
    for round in 0..20_000u64 {
        rig.namespace = if round % 8 == 0 { lost } else { busy };
        let key = round % 1100 * 2 + u64::from(rig.namespace == busy);
        rig.put(key, Some(&value(key, round))).unwrap();
        if rig.namespace == lost {
            model.insert(key, value(key, round));
        }
    }
    rig.namespace = lost;
    rig.settle();
    rig.compare(&model, 2200);
    let stats = rig.core.stats();
    assert!(stats.relocated_bytes > 1 << 20 && stats.bad_blocks == 0, "{free} blocks were free: {stats:?}");
    rig.reopen();
    rig.compare(&model, 2200);
}

/// Goal:   a namespace whose index cannot be loaded can be deleted, and its space comes back; beside another such one it comes back
///         when that is deleted, too.
/// Method: one or two of three namespaces are lost and deleted; then all that is accounted as live is found, and there is room again
///         for as much as they held. Compared at last, also after the device is opened again.
#[test]
fn lost_namespaces_are_deleted() {
    for lost_count in [1, 2] {
        let (mut rig, busy, lost) = between_records_of_a_lost_index();
        let mut model: BTreeMap<u64, Vec<u8>> = (0..1100).map(|i| (2 * i + 1, value(2 * i + 1, 0))).collect();
        let versions = VersionOptions { buffer_bytes: 64 << 10, ..VersionOptions::default() };
        let more = rig.core.create_namespace("more", &versions.into()).unwrap();
        rig.namespace = more;
        (0..100).for_each(|key| rig.put(key, Some(&value(key, 0))).unwrap());
        rig.settle();
        rig.unload();
        let live = rig.core.stats().live_bytes;
        let mut known_lost = BTreeSet::new();
        let mut delete = |rig: &mut Rig, id| {
            let deletion = loop {
                match rig.core.delete_namespace(id, &known_lost) {
                    Ok(deletion) => break deletion,
                    Err(StageError::NeedIndex(needed)) if needed == lost || (needed, lost_count) == (more, 2) => {
                        assert!(known_lost.insert(needed));
                    }
                    Err(StageError::NeedIndex(needed)) => rig.core.load_index(&rig.medium, needed).unwrap(),
                    Err(error) => panic!("{error:?}"),
                }
            };
            rig.core.finish_deletion(deletion.count(rig.core.geometry()));
            let again = rig.core.delete_namespace(id, &known_lost).err();
            assert_eq!(again, Some(Error::UnknownNamespace(id).into()));
        };
        delete(&mut rig, lost);
        if lost_count == 2 {
            assert_eq!(rig.core.stats().live_bytes, live, "they may be the other's");
        }
        delete(&mut rig, more);
        rig.namespace = busy;
        rig.settle();
        rig.audit();
        let left = rig.core.stats().live_bytes;
        assert!((live / 3..live / 2).contains(&left), "{left} of {live}");
        for key in 0..1100 {
            rig.put(2 * key, Some(&value(2 * key, 1))).unwrap();
            model.insert(2 * key, value(2 * key, 1));
        }
        rig.settle();
        rig.compare(&model, 2200);
        rig.audit();
        rig.reopen();
        rig.compare(&model, 2200);
    }
}

/// Goal:   a bit that flips on its way from the medium damages nothing for good: collection moves what it read right, and keeps all
///         blocks.
/// Method: records are overwritten and collected while bits flip in every third read; then read without.
#[test]
fn flipped_bits_are_not_moved_along() {
    let (mut rig, mut model) = (Rig::new(), BTreeMap::new());
    rig.world.flips = true;
    for round in 0..20_000u64 {
        let key = scattered(round) % 2600;
        rig.put(key, Some(&value(key, round))).unwrap();
        model.insert(key, value(key, round));
    }
    rig.settle();
    rig.world.flips = false;
    let stats = rig.core.stats();
    assert!(stats.relocated_bytes > 1 << 20, "{stats:?}");
    assert_eq!((stats.bad_blocks, stats.damaged_records), (0, 0), "{stats:?}");
    rig.compare(&model, 2600);
    rig.audit();
    rig.reopen();
    rig.compare(&model, 2600);
}

/// Goal:   no space below is said, loses nothing, and ends by itself.
/// Method: fail all programs and erases with no space; puts are refused while reads and deletes work; then let them succeed.
#[test]
fn no_space_below_is_survived() {
    let mut rig = Rig::new();
    let mut model = BTreeMap::new();
    for key in 0..100 {
        rig.put(key, Some(&value(key, 0))).unwrap();
        model.insert(key, value(key, 0));
    }
    rig.world.no_space = true;
    let refused = (0..2000).find_map(|i| match rig.put(i % 100, Some(&value(i % 100, 1))) {
        Ok(()) => {
            model.insert(i % 100, value(i % 100, 1));
            None
        }
        Err(error) => Some(error),
    });
    assert!(matches!(refused, Some(Error::Medium(MediumError::NoSpace { .. }))), "{refused:?}");
    rig.compare(&model, 100);
    rig.put(5, None).unwrap();
    model.remove(&5);
    rig.world.no_space = false;
    rig.background();
    rig.put(6, Some(b"again")).unwrap();
    model.insert(6, b"again".to_vec());
    rig.settle();
    rig.compare(&model, 100);
    rig.reopen();
    rig.compare(&model, 100);
}

/// Goal:   a Put that is staged can be written, whatever keeps the ring's tail from moving; others wait for that.
/// Method: put without housekeeping until the ring is full, with one and with several records in a frame, then let it go on.
#[test]
fn what_is_staged_has_a_place() {
    for frame_puts in [1, 7] {
        let mut rig = Rig::new();
        let value = value(1, 1);
        let body = Body::Value { value: &value, crc32c: crc_fast::crc32_iscsi(&value) };
        let op = |key| Op { namespace: rig.namespace, key: Key::from(key), body, condition: Condition::Always };
        let ops: Vec<_> = (0..100_000u64).map(op).collect();
        let mut frames = 0;
        let refused = ops.chunks(frame_puts).find_map(|puts| {
            let refused = puts.iter().find_map(|op| rig.core.stage(&[*op]).err());
            if let Some((id, io)) = rig.core.begin_persist() {
                frames += 1;
                rig.execute(id, io);
            }
            assert!(rig.core.begin_persist().is_none(), "all of it was written");
            assert_eq!(rig.core.committed(), rig.core.staging_frame(), "what is staged is committed");
            refused
        });
        assert_eq!(refused, Some(StageError::Busy), "the ring is full");
        assert!(frames > 50, "{frames}");
        rig.put(5, Some(b"again")).unwrap();
    }
}

/// Goal:   a large value whose namespace is deleted while its program fails does not stop the device.
/// Method: place one, delete its namespace, fail the program; whoever placed it is told that it may go on, and that the namespace is gone.
#[test]
fn failed_programs_of_deleted_namespaces_stop_nothing() {
    let mut rig = Rig::new();
    let (gone, key) = (rig.namespace, Key::from(1u64));
    let value = vec![1; DIRECT_BYTES];
    let buf = AlignedBuf::zeroed(image_bytes(rig.core.geometry(), value.len()));
    let value = (&value[..], crc_fast::crc32_iscsi(&value));
    let image = encode_image(rig.core.geometry(), gone, key, value, rig.core.last_sequence(), buf);
    let ticket = rig.core.place(gone, key, image).unwrap();
    let deletion = rig.core.delete_namespace(gone, &BTreeSet::new()).unwrap();
    rig.core.finish_deletion(deletion.count(rig.core.geometry()));
    rig.world.wear_out = true;
    (0..20).for_each(|_| rig.background());
    assert_eq!((rig.core.stats().program_failures, rig.core.stopped()), (1, None));
    assert!(rig.core.is_placed(ticket), "its caller waits for ever");
    let op = Op { namespace: gone, key, body: Body::Placed { ticket }, condition: Condition::Always };
    assert_eq!(rig.core.stage(&[op]), Err(Error::UnknownNamespace(gone).into()));
    rig.core.forget(ticket);
    rig.settle();
    assert_eq!(rig.core.stats().bad_blocks, 1);
    rig.reopen();
}

/// Goal:   a program that is tried again comes before those of later pages, whatever came up while it was under way.
/// Method: a program finds no space and is handed out again; Puts fill the next pages meanwhile; it finds none again just when it is due.
#[test]
fn programs_tried_again_keep_their_order() {
    let mut rig = Rig::new();
    let one_log = NamespaceChange { logs: Some(vec![0]), ..NamespaceChange::default() };
    rig.core.set_namespace(rig.namespace, &one_log).unwrap();
    rig.poll_after_puts = false;
    rig.world.no_space = true;
    let mut key = 0;
    let mut next_program = |rig: &mut Rig| {
        while !rig.core.has_background() {
            rig.put(key, Some(&[7; 4000])).unwrap();
            key += 1;
        }
    };
    next_program(&mut rig);
    rig.background();
    let mut started = Vec::new();
    rig.now_ns += 200_000_000;
    rig.core.poll(rig.now_ns, &mut started);
    next_program(&mut rig);
    started.drain(..).for_each(|(id, io)| rig.execute(id, io));
    rig.now_ns += 200_000_000;
    rig.core.poll(rig.now_ns, &mut started);
    let places = started.iter().filter_map(|(_, io)| if let Io::Program { at, .. } = io { Some(*at) } else { None });
    let places: Vec<_> = places.collect();
    assert!(places.len() > 1 && places.is_sorted(), "{places:?}");
}

/// Goal:   a root waits for pages that are programmed again after there was no space for them.
/// Method: fail a root's programs with no space, hand them out again and keep them under way: nothing is flushed.
#[test]
fn roots_wait_for_programs_tried_again() {
    let mut rig = Rig::new();
    rig.put(1, Some(b"kept")).unwrap();
    rig.world.no_space = true;
    let request = rig.core.request_root(true);
    rig.background();
    assert!(rig.core.is_waiting_for_space());
    rig.background();
    let mut under_way = Vec::new();
    (0..10).for_each(|_| rig.core.poll(rig.now_ns, &mut under_way));
    assert!(rig.core.is_waiting_for_space() && under_way.is_empty(), "nothing goes on before they are tried again");
    rig.world.no_space = false;
    for _ in 0..10 {
        rig.now_ns += 200_000_000;
        rig.core.poll(rig.now_ns, &mut under_way);
    }
    let count = |is: fn(&Io) -> bool| under_way.iter().filter(|(_, io)| is(io)).count();
    assert!(count(|io| matches!(io, Io::Program { .. })) > 0);
    assert_eq!(count(|io| matches!(io, Io::Flush | Io::WriteRoot { .. })), 0);
    under_way.into_iter().for_each(|(id, io)| rig.execute(id, io));
    while rig.core.roots_done() < request {
        rig.background();
    }
    rig.reopen();
    assert_eq!(rig.get(1).unwrap(), b"kept");
}

/// Goal:   a ring that cannot be written stops the device: nothing is acknowledged, what was stays readable.
/// Method: fail one ring write; puts are refused from then on, reads go on, reopening brings back the rest.
#[test]
fn a_failed_ring_write_stops_the_device() {
    let mut rig = Rig::new();
    rig.put(1, Some(b"kept")).unwrap();
    rig.world.no_ring = true;
    assert!(matches!(rig.put(1, Some(b"lost")), Err(Error::Stopped(MediumError::NotDurable { .. }))));
    rig.world.no_ring = false;
    assert!(matches!(rig.put(2, Some(b"refused")), Err(Error::Stopped(_))));
    assert_eq!(rig.get(1).unwrap(), b"kept");
    rig.reopen();
    assert_eq!(rig.get(1).unwrap(), b"kept");
    rig.put(2, Some(b"taken")).unwrap();
}

/// Goal:   a device that stopped rests, whatever it was about to do: nobody polls it for ever.
/// Method: a ring write fails after a page buffer of versions has become full, and one while a checkpoint is being taken.
#[test]
fn stopped_devices_rest() {
    let mut rig = Rig::new();
    let versions = VersionOptions { buffer_bytes: 64 << 10, ..VersionOptions::default() };
    rig.namespace = rig.core.create_namespace("versions", &versions.into()).unwrap();
    rig.settle();
    rig.poll_after_puts = false;
    let fills_buffer = |key: u64| {
        rig.put(key, Some(&[7; 3000])).unwrap();
        rig.core.wants_poll()
    };
    assert!((0..1000).any(fills_buffer));
    rig.stop();
    assert!(!rig.core.wants_poll());

    let mut rig = Rig::new();
    (0..30_000).for_each(|key| rig.put(key, Some(b"some")).unwrap());
    rig.core.request_checkpoint();
    rig.poll_after_puts = false;
    rig.core.poll(rig.now_ns, &mut Vec::new());
    assert!(rig.core.wants_poll(), "it is being taken");
    rig.stop();
    assert!(!rig.core.wants_poll());
}

/// Goal:   opening after a crash reads the ring in large pieces, however small its frames are, also over the end of a lap.
/// Method: many single puts, opened again now and then through a medium that counts; a lap is less than two pieces here.
#[test]
fn small_frames_are_read_together() {
    let mut rig = Rig::new();
    let mut frames_max = 0;
    for key in 0..5000u64 {
        rig.put(key, Some(&key.to_le_bytes())).unwrap();
        if key % 500 == 499 {
            let reads = AtomicU64::new(0);
            let watch = |seen: Seen<'_>| {
                reads.fetch_add(u64::from(matches!(seen, Seen::RingRead)), Ordering::Relaxed);
                Ok(())
            };
            let (core, report) = Core::open(&Watched { medium: rig.medium.clone(), watch }).unwrap();
            let reads = reads.into_inner();
            assert!(reads <= 32, "{reads} reads for {} frames", report.ring_frames);
            frames_max = frames_max.max(report.ring_frames);
            rig.core = core;
            (0..=key).for_each(|key| assert_eq!(rig.get(key).unwrap(), key.to_le_bytes()));
        }
    }
    assert!(frames_max > 300, "{frames_max} frames");
}

/// Goal:   a full device refuses new data early and clearly, takes deletes, and gets its space back.
/// Method: fill until refused; delete half; fill again; overwrite at the limit for long.
#[test]
fn a_full_device_recovers_its_space() {
    let mut rig = Rig::new();
    let big = vec![7u8; 5000];
    let fill = |rig: &mut Rig, from: u64| {
        (from..).find(|key| match rig.put(*key, Some(&big)) {
            Ok(()) => false,
            Err(Error::Full { .. }) => true,
            Err(error) => panic!("{error}"),
        })
    };
    let count = fill(&mut rig, 0).unwrap();
    let stats = rig.core.stats();
    assert!(stats.live_bytes > stats.capacity_bytes * 9 / 10, "{stats:?}");
    assert!(stats.capacity_bytes > 80 * 131_072 / 2, "{stats:?}");
    for key in (0..count).step_by(2) {
        rig.put(key, None).unwrap();
    }
    let more = fill(&mut rig, count).unwrap() - count;
    assert!(more >= count / 2 - count / 50, "{count} {more}");
    rig.put(1, None).unwrap();
    for round in 0..3000u64 {
        let key = count + round * 31 % more;
        rig.put(key, None).unwrap();
        rig.put(key, Some(&vec![round as u8; 4900])).unwrap();
    }
    rig.settle();
    assert_eq!(rig.get(3).unwrap(), vec![7; 5000]);
}
