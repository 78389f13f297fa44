//! A versioned namespace of the shipped firmware on flash that counts its pages.
//!
//! Lives here:       one host that puts and gets, without link and controller; the paper's flash.
//! Lives elsewhere:  the firmware (`kaml-device`), what is put (`keys`), what is measured (`measure`).
//! Implements:       paper:Muninn 6 (4 KiB pages, segments of 1 MiB, 15 microseconds an access, one I/O thread).

use super::measure::Stored;
use crate::Keep;
use crate::faults::Faults;
use crate::medium::{Options, SimMedium, SimQueue};
use crate::rig::RigError;
use crate::timing::{NandTiming, Timing};
use crate::versions::Reading;
use kaml_device::{
    Body, Condition, Core, Error, FindError, Key, KeyKind, NamespaceOptions, Op, StageError, VersionOptions,
};
use kaml_flash::{Completion, Geometry, Io, IoId, Packing, Queue, Wait};
use kaml_versions::{At, Columns, SegmentInfo, Source, Version, get, history, records};

/// The paper's flash: an access takes so long, and nothing else takes any time.
const ACCESS_NS: u64 = 15_000;
const PAGE_BYTES: u32 = 4096;
pub(super) const SEGMENT_BYTES: u32 = 1 << 20;
/// Segments of an erase block, and dies.
const SEGMENTS_PER_BLOCK: u32 = 4;
const DIES: u32 = 8;
/// Blocks of a device beyond those that data fill: an eighth, and some for each die to write to.
const SPARE: u64 = 8;
const SPARE_BLOCKS: u64 = 96;
/// A versioned namespace's buffer is a quarter of the ring by default.
const RING_OF_BUFFERS: u64 = 4;
/// Puts that become durable together.
const PUTS_TOGETHER: u32 = 32;
/// So often may time pass without anything happening.
const IDLE_TURNS_MAX: u32 = 1000;
const IDLE_NS: u64 = 200_000_000;

/// Flash with room for so much data.
fn flash(data_bytes: u64, buffer_bytes: u64, seed: u64) -> Result<SimMedium, RigError> {
    let block_bytes = u64::from(SEGMENT_BYTES * SEGMENTS_PER_BLOCK);
    let blocks = data_bytes.div_ceil(block_bytes) * (SPARE + 1) / SPARE + SPARE_BLOCKS;
    let geometry = Geometry {
        channel_count: DIES,
        dies_per_channel: 1,
        blocks_per_die: blocks.div_ceil(u64::from(DIES)) as u32,
        pages_per_block: SEGMENT_BYTES * SEGMENTS_PER_BLOCK / PAGE_BYTES,
        page_bytes: PAGE_BYTES,
        oob_bytes: 64,
        chunk_bytes: 64,
        pages_per_program: 1,
        packing: Packing::Across,
        ring_bytes: RING_OF_BUFFERS * buffer_bytes,
        sector_bytes: 512,
        root_bytes: 1 << 20,
    };
    let timing = Timing::Board(NandTiming {
        read_ns: vec![ACCESS_NS],
        program_ns: vec![ACCESS_NS],
        erase_ns: ACCESS_NS,
        spread_percent: 0,
        erase_wear_percent: 0,
        program_wear_percent: 0,
        rated_erases: 1,
        planes: 1,
        channel_bytes_per_us: u64::from(u32::MAX),
        channel_command_ns: 0,
        buffer_bytes_per_us: u64::from(u32::MAX),
        buffer_write_ns: 0,
    });
    let options = Options { timing, faults: Faults::default(), keep: Keep::Runs, blank: 0xFF, seed };
    Ok(SimMedium::new(geometry, options)?)
}

/// The firmware with one versioned namespace.
pub(super) struct Device {
    core: Core,
    medium: SimMedium,
    queue: SimQueue,
    space: u32,
    /// Puts staged since the last commit, and the frame of the last one.
    staged: u32,
    frame: u64,
    started: Vec<(IoId, Io)>,
    done: Vec<Completion>,
}

impl Device {
    /// A fresh device.
    pub(super) fn new(data_bytes: u64, options: VersionOptions, seed: u64) -> Result<Device, RigError> {
        let medium = flash(data_bytes, options.buffer_bytes, seed)?;
        Core::format(&medium)?;
        let (mut core, _) = Core::open(&medium)?;
        let space = NamespaceOptions::versions(KeyKind::U64, options);
        let space = core.create_namespace("versions", &space)?;
        let queue = SimQueue::new(&medium);
        let (started, done) = (Vec::new(), Vec::new());
        let mut device = Device { core, medium, queue, space, staged: 0, frame: 0, started, done };
        device.rest()?;
        Ok(device)
    }

    /// Looks at the index.
    pub(super) fn look<T>(&mut self, look: impl FnOnce(&Columns) -> T) -> Result<T, RigError> {
        self.core.load_index(&self.medium, self.space)?;
        let mut reader = self.core.reader().versions(self.space)?;
        reader.look(|versions, _| look(versions.columns())).map_err(|error| match error {
            FindError::Refused(error) => error.into(),
            FindError::NeedIndex => RigError::Stuck("an index that was loaded is missing".to_owned()),
        })
    }

    /// How many versions of a key there are, found one by one.
    pub(super) fn history(&mut self, key: u64) -> Result<u64, RigError> {
        let mut reading = Reading::new(&mut self.core, &self.medium, self.space)?;
        Ok(history(&mut reading, &Key::from(key), usize::MAX)?.len() as u64)
    }

    /// The versions of a segment.
    pub(super) fn versions_of(&mut self, segment: &SegmentInfo) -> Result<Vec<Version>, RigError> {
        let mut reading = Reading::new(&mut self.core, &self.medium, self.space)?;
        reading.look(|_, hold| hold(segment.at))?;
        let versions = reading.read(segment.at, 0..(segment.hashed_pages * PAGE_BYTES) as usize, |pages| {
            pages.chunks(PAGE_BYTES as usize).flat_map(records).map(|record| Ok(record?.0)).collect()
        })?;
        Ok(versions)
    }

    fn commit(&mut self) -> Result<(), RigError> {
        self.staged = 0;
        let mut idle_turns = 0;
        while self.core.committed() <= self.frame {
            self.turn(&mut idle_turns)?;
        }
        Ok(())
    }

    /// Submits what the firmware emits, and lets the next thing happen.
    fn turn(&mut self, idle_turns: &mut u32) -> Result<(), RigError> {
        if let Some((id, io)) = self.core.begin_persist() {
            self.queue.submit(id, io);
        }
        if self.core.wants_poll() {
            self.poll()?;
        }
        if self.medium.advance() {
            self.queue.reap(Wait::No, &mut self.done);
            let mut polls = false;
            for completion in self.done.drain(..) {
                polls |= !matches!(completion.io, Io::Persist { .. });
                self.core.complete(completion);
            }
            return if polls { self.poll() } else { Ok(()) };
        }
        *idle_turns += 1;
        if *idle_turns > IDLE_TURNS_MAX {
            return Err(RigError::Stuck(format!("{:?}", self.core)));
        }
        self.medium.wait_until(self.medium.now_ns() + IDLE_NS);
        self.poll()
    }

    fn poll(&mut self) -> Result<(), RigError> {
        self.core.poll(self.medium.now_ns(), &mut self.started);
        self.started.drain(..).for_each(|(id, io)| self.queue.submit(id, io));
        self.core.stopped().map_or(Ok(()), |error| Err(error.into()))
    }
}

impl Device {
    /// Puts.
    pub(super) fn put(&mut self, key: u64, value: &[u8]) -> Result<(), RigError> {
        let body = Body::Value { value, crc32c: kaml_crc::crc32c(value) };
        let op = Op {
            namespace: self.space,
            key: Key::from(key).into(),
            body,
            condition: Condition::Always,
            expires: Default::default(),
        };
        let mut idle_turns = 0;
        self.frame = loop {
            match self.core.stage(&[op]) {
                Ok(frame) => break frame,
                Err(StageError::Busy) => self.turn(&mut idle_turns)?,
                Err(StageError::NeedIndex(id)) => self.core.load_index(&self.medium, id)?,
                Err(StageError::Refused(error) | StageError::RefusedAfter(_, error)) => return Err(error.into()),
            }
        };
        self.staged += 1;
        if self.staged == PUTS_TOGETHER { self.commit() } else { Ok(()) }
    }

    /// Everything that was put is durable, nothing is in progress.
    pub(super) fn rest(&mut self) -> Result<(), RigError> {
        if self.staged > 0 {
            self.commit()?;
        }
        self.poll()?;
        let mut idle_turns = 0;
        while !self.core.is_idle() {
            self.turn(&mut idle_turns)?;
        }
        Ok(())
    }

    /// The newest value of a key.
    pub(super) fn get(&mut self, key: u64) -> Result<Option<Vec<u8>>, RigError> {
        let mut reading = Reading::new(&mut self.core, &self.medium, self.space)?;
        Ok(get(&mut reading, &Key::from(key), At::Latest)?.map(|record| record.value))
    }

    /// The flash.
    pub(super) fn medium(&self) -> &SimMedium {
        &self.medium
    }

    /// What became of puts of this many bytes.
    pub(super) fn stored(&mut self, put_bytes: u64) -> Result<Stored, RigError> {
        let pages = self.medium.page_counts().written;
        self.look(|columns| {
            let rows = 0..columns.parameters().rows;
            let buffered = rows.clone().flat_map(|row| columns.buffered(row));
            let buffered_bytes: u64 = buffered.map(|(version, _)| version.stored_bytes() as u64).sum();
            let room = |segment: SegmentInfo| SEGMENT_BYTES - segment.table_pages * PAGE_BYTES;
            let room = rows.flat_map(|row| columns.segments(row)).map(room).map(u64::from).sum();
            Stored {
                versions: columns.live_estimate().0,
                bytes: put_bytes - buffered_bytes,
                room,
                index_bytes: columns.memory().index_bytes as u64,
                pages: pages as f64,
            }
        })
    }
}

impl From<kaml_versions::Error> for RigError {
    fn from(error: kaml_versions::Error) -> RigError {
        RigError::Device(Error::from(error))
    }
}
