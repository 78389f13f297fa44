//! What tests of power cuts share: the firmware on flash in memory, driven on one thread.

use kaml_device::{Buffered, Core, Error, Found, Key, StageError, encode_image, image_bytes};
use kaml_flash::{AlignedBuf, Completion, Geometry, Io, Medium, MemoryMedium, Packing};
pub(crate) use kaml_testkit::{Rng, bytes as value};

/// Two dies of small blocks.
pub(crate) fn geometry(packing: Packing, blocks_per_die: u32) -> Geometry {
    let (page_bytes, chunk_bytes, pages_per_program) = match packing {
        Packing::Across => (4096, 64, 1),
        Packing::WithinPage => (8192, 128, 2),
    };
    Geometry {
        channel_count: 2,
        dies_per_channel: 1,
        blocks_per_die,
        pages_per_block: 32,
        page_bytes,
        oob_bytes: 32,
        chunk_bytes,
        pages_per_program,
        packing,
        ring_bytes: 1 << 20,
        sector_bytes: 512,
        root_bytes: 1 << 16,
    }
}

/// Power is gone.
#[derive(Debug)]
pub(crate) struct Cut;

/// One life of a device, from opening to a power cut.
pub(crate) struct Life {
    pub(crate) core: Core,
    pub(crate) medium: MemoryMedium,
    pub(crate) rng: Rng,
    /// Background operations not executed yet.
    started: Vec<(u64, Io)>,
}

impl Life {
    pub(crate) fn open(medium: &MemoryMedium, seed: u64) -> Result<Life, Error> {
        let (core, _) = Core::open(medium)?;
        Ok(Life { core, medium: medium.clone(), rng: Rng::new(seed), started: Vec::new() })
    }

    fn execute(&mut self, id: u64, mut io: Io) -> Result<(), Cut> {
        let result = self.medium.execute(&mut io);
        self.core.complete(Completion { id, io, result });
        if self.medium.is_cut() { Err(Cut) } else { Ok(()) }
    }

    /// Executes background work, all of it or as much as the seed determines. Programs may overtake those of other blocks.
    pub(crate) fn background(&mut self, all: bool) -> Result<(), Cut> {
        self.core.poll(0, &mut self.started);
        while !self.started.is_empty() && (all || self.rng.below(3) > 0) {
            let at = if self.rng.below(4) == 0 { self.other_block() } else { 0 };
            let (id, io) = self.started.remove(at);
            self.execute(id, io)?;
            self.core.poll(0, &mut self.started);
        }
        Ok(())
    }

    /// A program that may overtake the first operation.
    fn other_block(&self) -> usize {
        let block = |io: &Io| if let Io::Program { at, .. } = io { Some(at.block) } else { None };
        let (Some(first), Some((_, second))) = (block(&self.started[0].1), self.started.get(1)) else { return 0 };
        usize::from(block(second).is_some_and(|second| second != first))
    }

    pub(crate) fn until(&mut self, done: impl Fn(&Core) -> bool) -> Result<(), Cut> {
        for _ in 0..100_000 {
            if done(&self.core) {
                return Ok(());
            }
            self.background(true)?;
        }
        panic!("this never ends: {:?}", self.core);
    }

    fn persist(&mut self) -> Result<(), Cut> {
        match self.core.begin_persist() {
            Some((id, io)) => self.execute(id, io),
            None => Ok(()),
        }
    }

    /// Stages something and waits until it is durable.
    pub(crate) fn commit(
        &mut self,
        stage: impl Fn(&mut Core) -> Result<u64, StageError>,
    ) -> Result<Result<(), Error>, Cut> {
        let mut tries = 0;
        let frame = loop {
            tries += 1;
            assert!(tries < 100_000, "a Put waits for ever: {:?}", self.core);
            match stage(&mut self.core) {
                Ok(frame) => break frame,
                Err(StageError::Refused(error) | StageError::RefusedAfter(_, error)) => return Ok(Err(error)),
                Err(StageError::NeedIndex(id)) => self.core.load_index(&self.medium, id).expect("snapshots are whole"),
                Err(StageError::Busy) => {
                    self.persist()?;
                    self.background(true)?;
                }
            }
        };
        while self.core.committed() <= frame {
            tries += 1;
            assert!(tries < 100_000, "a frame waits for ever: {:?}", self.core);
            self.persist()?;
            self.background(false)?;
        }
        Ok(Ok(()))
    }

    /// Programs a large value ahead of its Put; returns its ticket.
    #[allow(dead_code)] // not all tests put large values
    pub(crate) fn place(&mut self, namespace: u32, key: Key, bytes: &[u8]) -> Result<Result<u64, Error>, Cut> {
        let value = (bytes, kaml_crc::crc32c(bytes));
        let mut tries = 0;
        let ticket = loop {
            tries += 1;
            assert!(tries < 100_000, "a large value waits for ever: {:?}", self.core);
            let placed = self.core.place_of(namespace, key.into()).and_then(|(at, of)| {
                let geometry = self.medium.geometry();
                let buf = AlignedBuf::zeroed(image_bytes(geometry, of, bytes.len()));
                let image = encode_image(geometry, at, of, value, self.core.last_sequence(), buf);
                self.core.place(namespace, key, image)
            });
            match placed {
                Ok(ticket) => break ticket,
                Err(StageError::Refused(error) | StageError::RefusedAfter(_, error)) => return Ok(Err(error)),
                Err(StageError::NeedIndex(id)) => self.core.load_index(&self.medium, id).expect("snapshots are whole"),
                Err(StageError::Busy) => self.background(true)?,
            }
        };
        while !self.core.is_placed(ticket) {
            self.background(true)?;
        }
        Ok(Ok(ticket))
    }

    #[allow(dead_code)] // tests of other keys read in their own way
    pub(crate) fn get(&mut self, namespace: u32, key: u64) -> Option<Vec<u8>> {
        self.core.load_index(&self.medium, namespace).unwrap();
        let key = Key::from(key);
        let read = match self.core.reader().find(namespace, key).unwrap() {
            Found::Absent => return None,
            Found::Flash(read) => read,
            Found::Buffered => match self.core.read_buffered(namespace, key).unwrap() {
                Buffered::Value(value) => return Some(value),
                Buffered::Packed(packed) => return Some(packed.unpack().unwrap()),
                Buffered::Programmed(read) => read,
                Buffered::Absent => panic!("found, then not"),
            },
        };
        let mut io = Io::Read { at: read.at, into: AlignedBuf::zeroed(read.bytes) };
        self.medium.execute(&mut io).unwrap();
        let Io::Read { into, .. } = io else { unreachable!("still a read") };
        Some(read.value(&into).unwrap().of(&into).to_vec())
    }

    /// Each block holds what is accounted for it.
    pub(crate) fn audit(&mut self) {
        for block in self.core.blocks_in_use() {
            let found = kaml_device::BlockAudit::read(&self.core.reader(), &self.medium, block).judge(&self.core);
            assert_eq!(found.problems, Vec::<String>::new());
        }
    }
}
