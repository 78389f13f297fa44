//! The firmware on one thread, above a medium that a test makes fail.

use kaml_device::{
    BlockAudit, Body, Buffered, Condition, Core, Error, Found, Key, KeyKind, NamespaceOptions, Op, StageError,
    encode_image, image_bytes,
};
use kaml_flash::{
    AlignedBuf, BlockIndex, ChunkAddr, Completion, Geometry, Io, Medium, MediumError, MemoryMedium, Packing,
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) fn geometry() -> Geometry {
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
pub(crate) struct World {
    pub(crate) bad_blocks: BTreeSet<u32>,
    /// The block that is programmed next becomes bad.
    pub(crate) wear_out: bool,
    pub(crate) no_space: bool,
    pub(crate) no_ring: bool,
    /// The index of this namespace cannot be loaded.
    pub(crate) lost_index: Option<u32>,
    /// A bit flips on its way in one read of three; reads so far.
    pub(crate) flips: bool,
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
pub(crate) struct Rig {
    pub(crate) core: Core,
    pub(crate) medium: MemoryMedium,
    pub(crate) world: World,
    pub(crate) now_ns: u64,
    pub(crate) namespace: u32,
    /// Requested the lost index in vain.
    pub(crate) lost_asked: u32,
    pub(crate) poll_after_puts: bool,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::on(geometry())
    }

    pub(crate) fn on(geometry: Geometry) -> Rig {
        let medium = MemoryMedium::new(geometry);
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
        let options = NamespaceOptions::records(KeyKind::U64);
        rig.namespace = rig.core.create_namespace("n", &options).unwrap();
        rig.settle();
        rig
    }

    pub(crate) fn execute(&mut self, id: u64, mut io: Io) {
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

    pub(crate) fn background(&mut self) {
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

    pub(crate) fn settle(&mut self) {
        let request = self.core.request_root(true);
        for _ in 0..10_000 {
            if self.core.roots_done() >= request {
                return;
            }
            self.background();
        }
        panic!("no root is made");
    }

    pub(crate) fn put(&mut self, key: u64, value: Option<&[u8]>) -> Result<(), Error> {
        let body = match value {
            Some(value) => Body::Value { value, crc32c: kaml_crc::crc32c(value) },
            None => Body::Delete,
        };
        let op = Op {
            namespace: self.namespace,
            key: Key::from(key).into(),
            body,
            condition: Condition::Always,
            expires: Default::default(),
        };
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
                Err(StageError::Refused(error) | StageError::RefusedAfter(_, error)) => return Err(error),
                Err(StageError::NeedIndex(id)) => self.core.load_index(&self.medium, id)?,
                Err(StageError::Busy) => self.background(),
            }
        }
        panic!("a Put waits for ever");
    }

    /// Puts a large value as a caller does that is alone: it executes the program itself if it may. Returns the program's result then.
    pub(crate) fn put_large(&mut self, key: u64, value: &[u8]) -> Option<Result<(), MediumError>> {
        let (namespace, key) = (self.namespace, Key::from(key));
        let buf = AlignedBuf::zeroed(image_bytes(self.core.geometry(), key, value.len()));
        let value = (value, kaml_crc::crc32c(value));
        let image = encode_image(self.core.geometry(), namespace, key, value, self.core.last_sequence(), buf);
        let ticket = self.core.place(namespace, key, image).unwrap();
        let op = Op {
            namespace,
            key: key.into(),
            body: Body::Placed { ticket },
            condition: Condition::Always,
            expires: Default::default(),
        };
        let mut programmed = None;
        if let Some((id, mut io)) = self.core.take_program(ticket) {
            let result = self.attempt(&mut io);
            self.core.complete(Completion { id, io, result: result.clone() });
            programmed = Some(result);
        }
        while !self.core.is_placed(ticket) {
            self.background();
        }
        self.core.stage(&[op]).unwrap();
        let (id, io) = self.core.begin_persist().expect("one at a time");
        self.execute(id, io);
        programmed
    }

    /// Fails a ring write, and executes nothing of what there is to do.
    pub(crate) fn stop(&mut self) {
        self.world.no_ring = true;
        self.put(0, Some(b"lost")).unwrap_err();
        self.core.poll(self.now_ns, &mut Vec::new());
    }

    pub(crate) fn get(&mut self, key: u64) -> Option<Vec<u8>> {
        self.core.load_index(&self.medium, self.namespace).unwrap();
        let key = Key::from(key);
        let read = match self.core.reader().find(self.namespace, key).unwrap() {
            Found::Absent => return None,
            Found::Flash(read) => read,
            Found::Buffered => match self.core.read_buffered(self.namespace, key).unwrap() {
                Buffered::Value(value) => return Some(value),
                Buffered::Packed(packed) => return Some(packed.unpack().unwrap()),
                Buffered::Programmed(read) => read,
                Buffered::Absent => panic!("found, then not"),
            },
        };
        let mut io = Io::Read { at: read.at, into: AlignedBuf::zeroed(read.bytes) };
        self.medium.execute(&mut io).unwrap();
        let Io::Read { into, .. } = io else { unreachable!() };
        Some(read.value(&into).unwrap().of(&into).to_vec())
    }

    pub(crate) fn compare(&mut self, model: &BTreeMap<u64, Vec<u8>>, keys: u64) {
        for key in 0..keys {
            assert_eq!(self.get(key).as_ref(), model.get(&key), "key {key}");
        }
    }

    /// What is accounted as live exists, block by block.
    pub(crate) fn audit(&mut self) {
        for block in self.core.blocks_in_use() {
            let audit = BlockAudit::read(&self.core.reader(), &self.medium, block);
            assert_eq!(audit.needed_index(&self.core, &BTreeSet::new()), None);
            assert_eq!(audit.judge(&self.core).problems, Vec::<String>::new());
        }
    }

    pub(crate) fn reopen(&mut self) {
        self.core = Core::open(&self.medium).unwrap().0;
    }

    /// Takes the namespace's index out of memory.
    pub(crate) fn unload(&mut self) {
        self.core.request_checkpoint();
        while !self.core.unload_index(self.namespace).unwrap() {
            self.background();
        }
    }

    /// The same while a record is in a buffer, whose block becomes bad.
    pub(crate) fn unload_and_wear_out(&mut self, key: u64) {
        let at = ChunkAddr(self.core.slot(self.namespace, Key::from(key)).unwrap().at);
        self.unload();
        self.world.bad_blocks.insert(self.medium.geometry().split(at).0.0);
    }
}

pub(crate) fn value(key: u64, round: u64) -> Vec<u8> {
    vec![(key ^ round) as u8; 200 + (key * 31 + round * 7) as usize % 4000]
}

pub(crate) fn scattered(round: u64) -> u64 {
    round.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 33
}
