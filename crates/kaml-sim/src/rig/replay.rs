//! Replaying a trace on a device: several records in progress, each of one command for each piece.
//!
//! Lives here:       records to commands, waiting, power cuts.
//! Lives elsewhere:  reading traces (`trace`), what must be found (`replay_model`), executing commands (`rig`), the report (`replay_report`).
//! Implements:       docs/guide/research.md "Traces".
//!
//! A block trace uses a block namespace, a cache trace uses records. Volumes are placed in the block namespace in extents of
//! 1 MiB, in the order of their first use. An object longer than a piece is several records.

use super::replay_model::{Disk, Expected, Objects, Stored, fill_value};
use super::replay_report::{Latencies, ReplayReport};
use super::{Event, Host, Job, Loaded, READ_IDS, Rig, RigError};
use crate::load::{Ask, Load, Order, Sheet};
use crate::rng::Rng;
use crate::trace::{TraceError, TraceOp, TraceRecord};
use kaml_device::{BlockChange, BlockOptions, CoreStats, Key};

/// Where power is cut while a trace is replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayCuts {
    /// Nowhere.
    Never,
    /// After so many completed records.
    At(u64),
    /// After one in so many completed records, chosen by the seed.
    OneIn(u64),
}

/// How a trace is replayed.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Records in progress at most.
    pub depth: usize,
    /// Keep the times of the trace, so many times as fast; without it, a record begins when another completes.
    pub pace: Option<f64>,
    /// Bytes of the block namespace that volumes are placed in.
    pub disk_bytes: u64,
    /// Longer objects are cut to this.
    pub object_bytes_max: u32,
    /// Power cuts.
    pub cuts: ReplayCuts,
    /// Chooses the cuts, and what remains after each.
    pub seed: u64,
}

/// Why a replay ended early.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The trace cannot be read on.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The device refused something.
    #[error("record {record}: {error}")]
    Rig {
        /// The record of the trace that began last.
        record: u64,
        /// Why.
        error: RigError,
    },
    /// Volumes do not fit the disk.
    #[error(
        "record {record} uses more than {disk_bytes} bytes of its volumes in all; replay on a larger disk (--disk) or less of the trace (--limit)"
    )]
    DiskFull {
        /// The record of the trace.
        record: u64,
        /// Bytes of the disk.
        disk_bytes: u64,
    },
    /// After a cut, the device had something else than what completed.
    #[error("power was cut after {record} records (seed {seed}), and then {what}")]
    Lost {
        /// Completed records.
        record: u64,
        /// The seed.
        seed: u64,
        /// What was found.
        what: String,
    },
}

/// Bytes of a record of an object, and of a write of blocks.
const PIECE_BYTES: u32 = 16 << 10;
const WRITE_BYTES: u64 = 128 << 10;
const KINDS: [&str; 6] = ["get-hit", "get-miss", "put", "delete", "read", "write"];
const HIT: usize = 0;
const MISS: usize = 1;
const PUT: usize = 2;
const DELETE: usize = 3;
const READ: usize = 4;
const WRITE: usize = 5;
/// The host of an event that is only an arrival.
const ARRIVAL: usize = usize::MAX;

/// A record in progress.
#[derive(Clone, Copy, Default)]
struct Group {
    kind: usize,
    began: u64,
    pieces: u32,
    ends: u64,
    bytes: u64,
    reads: u64,
    /// The object to store if it is not found.
    fill: Option<(u64, u32)>,
}

/// A replay in progress.
pub(super) struct Replaying {
    records: Option<u32>,
    disk: Option<u32>,
    objects: Objects,
    blocks: Disk,
    groups: Vec<Group>,
    idle_groups: Vec<usize>,
    /// By host: its group, and what its read must find.
    group_of: Vec<usize>,
    expected: Vec<Expected>,
    idle_hosts: Vec<usize>,
    in_flight: usize,
    completed: u64,
    fills: u64,
    cut_short: u64,
    version: u32,
    sheets: Vec<Sheet>,
    hit_reads: u64,
    value_bytes_mean: u64,
    ended: bool,
}

impl Replaying {
    /// What moving a record costs depends on its length: the mean of what is put.
    pub(super) fn value_bytes_mean(&self) -> u64 {
        self.value_bytes_mean
    }
}

impl Rig {
    /// Replays a trace. `progress` receives the number of records that have begun, regularly.
    ///
    /// # Errors
    /// The trace cannot be read, the device refuses a record, or something else is found than was stored.
    pub fn replay(
        &mut self,
        trace: &mut dyn Iterator<Item = Result<TraceRecord, TraceError>>,
        options: &Replay,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<ReplayReport, ReplayError> {
        self.loads.clear();
        self.hosts.clear();
        self.replaying = Some(Box::new(Replaying {
            records: None,
            disk: None,
            objects: Objects::default(),
            blocks: Disk::new(options.disk_bytes),
            groups: Vec::new(),
            idle_groups: Vec::new(),
            group_of: Vec::new(),
            expected: Vec::new(),
            idle_hosts: Vec::new(),
            in_flight: 0,
            completed: 0,
            fills: 0,
            cut_short: 0,
            version: 0,
            sheets: KINDS.iter().map(|_| Sheet::new()).collect(),
            hit_reads: 0,
            value_bytes_mean: 0,
            ended: false,
        }));
        let mut begun = 0;
        let outcome = self.drive(trace, options, progress, &mut begun);
        let state = self.replaying.take().expect("set above");
        let (before, began_ns, cuts, compared) = outcome?;
        let end_ns = self.now_ns;
        self.settle().map_err(|error| ReplayError::Rig { record: begun, error })?;
        let report = state.report(&before, &self.stats(), (end_ns - began_ns).max(1), self.trace_hash());
        self.loads.clear();
        Ok(ReplayReport { cuts, compared, ..report })
    }

    fn drive(
        &mut self,
        trace: &mut dyn Iterator<Item = Result<TraceRecord, TraceError>>,
        options: &Replay,
        progress: &mut dyn FnMut(u64) -> bool,
        begun: &mut u64,
    ) -> Result<(CoreStats, u64, u64, u64), ReplayError> {
        let mut rng = Rng::new(options.seed);
        let before = self.stats();
        let mut start: Option<(u64, u64)> = None;
        let mut next: Option<TraceRecord> = None;
        let (mut over, mut timer, mut checked, mut idle_turns) = (false, 0, 0, 0);
        let (mut cuts, mut compared) = (0, 0);
        let failed = |begun: u64| move |error| ReplayError::Rig { record: begun, error };
        loop {
            while !over && self.state().in_flight < options.depth {
                if next.is_none() {
                    next = trace.next().transpose()?;
                }
                let Some(record) = next else {
                    over = true;
                    break;
                };
                self.create_for(&record.op, options).map_err(failed(*begun + 1))?;
                let (first_ns, _) = *start.get_or_insert((record.at_ns, self.now_ns));
                let mut began = self.now_ns;
                if let Some(speed) = options.pace {
                    let offset = (record.at_ns.saturating_sub(first_ns) as f64 / speed) as u64;
                    began = start.expect("set above").1.saturating_add(offset);
                    if began > self.now_ns {
                        if timer != began {
                            timer = began;
                            self.push(began, Event::Ask, ARRIVAL);
                        }
                        break;
                    }
                }
                next = None;
                *begun += 1;
                self.begin(&record.op, began, *begun, options)?;
                if begun.is_multiple_of(1 << 14) && !progress(*begun) {
                    over = true;
                }
            }
            if over && self.state().in_flight == 0 {
                break;
            }
            idle_turns = if self.step().map_err(failed(*begun))? { 0 } else { idle_turns + 1 };
            if idle_turns > super::IDLE_TURNS_MAX {
                return Err(failed(*begun)(RigError::Stuck(format!("{:?}", self.core))));
            }
            if std::mem::take(&mut self.state().ended) && self.state().completed > checked {
                let completed = self.state().completed;
                let is_due = |record: u64, rng: &mut Rng| match options.cuts {
                    ReplayCuts::Never => false,
                    ReplayCuts::At(at) => record == at,
                    ReplayCuts::OneIn(n) => rng.one_in(n),
                };
                if (checked + 1..=completed).fold(false, |due, record| due | is_due(record, &mut rng)) {
                    let lost = |what| ReplayError::Lost { record: completed, seed: options.seed, what };
                    compared += self.cut_and_compare(rng.draw()).map_err(lost)?;
                    cuts += 1;
                }
                checked = completed;
            }
        }
        Ok((before, start.map_or(self.now_ns, |(_, ns)| ns), cuts, compared))
    }

    fn state(&mut self) -> &mut Replaying {
        self.replaying.as_mut().expect("a replay is in progress")
    }

    /// Creates the namespace that a record needs, before its time counts.
    fn create_for(&mut self, op: &TraceOp, options: &Replay) -> Result<(), RigError> {
        let is_blocks = matches!(op, TraceOp::Read(_) | TraceOp::Write(_));
        if is_blocks && self.state().disk.is_none() {
            let id = self.create_blocks("trace blocks", options.disk_bytes)?;
            self.state().disk = Some(id);
        } else if !is_blocks && self.state().records.is_none() {
            let id = self.create_records("trace", Vec::new())?;
            self.state().records = Some(id);
        }
        Ok(())
    }

    /// A record begins.
    fn begin(&mut self, op: &TraceOp, began: u64, record: u64, options: &Replay) -> Result<(), ReplayError> {
        let failed = |error| ReplayError::Rig { record, error };
        match *op {
            TraceOp::Read(extent) | TraceOp::Write(extent) if extent.bytes == 0 => Ok(()),
            TraceOp::Read(extent) | TraceOp::Write(extent) => {
                let is_write = matches!(op, TraceOp::Write(_));
                let mut ranges = Vec::new();
                let full = ReplayError::DiskFull { record, disk_bytes: options.disk_bytes };
                self.state().blocks.place(&extent, &mut ranges).ok_or(full)?;
                self.begin_blocks(&ranges, is_write, began).map_err(failed)
            }
            TraceOp::Get { .. } | TraceOp::Put { .. } | TraceOp::Delete { .. } => {
                let shorten = |bytes: u32| bytes.min(options.object_bytes_max);
                match *op {
                    TraceOp::Get { key, fill } => {
                        let fill = fill.map(|bytes| (key, shorten(bytes)));
                        self.begin_object(key, HIT, None, fill, began);
                    }
                    TraceOp::Put { key, bytes } => {
                        self.state().cut_short += u64::from(shorten(bytes) < bytes);
                        self.begin_object(key, PUT, Some(shorten(bytes)), None, began);
                    }
                    TraceOp::Delete { key } => self.begin_object(key, DELETE, None, None, began),
                    TraceOp::Read(_) | TraceOp::Write(_) => unreachable!("of blocks"),
                }
                Ok(())
            }
        }
    }

    fn new_group(&mut self, group: Group) -> usize {
        let state = self.state();
        state.in_flight += 1;
        match state.idle_groups.pop() {
            Some(number) => {
                state.groups[number] = group;
                number
            }
            None => {
                state.groups.push(group);
                state.groups.len() - 1
            }
        }
    }

    /// A host for one piece of a group.
    fn host_for(&mut self, group: usize, space: u32, ask: Ask) -> usize {
        let host = self.state().idle_hosts.pop().unwrap_or_else(|| {
            let host = self.hosts.len();
            let load = Load {
                space,
                ask,
                bytes: 0,
                batch: 1,
                records: 0..1,
                order: Order::Turn,
                hosts: 1,
                warm_up: 0,
                commands: None,
            };
            self.loads.push(Loaded::new(&load));
            self.hosts.push(Host { load: host, began: 0, job: Job::Nothing, reading: None });
            self.state().group_of.push(0);
            self.state().expected.push(Expected::Nothing);
            host
        });
        self.state().group_of[host] = group;
        let load = &mut self.loads[host].load;
        (load.space, load.ask) = (space, ask);
        host
    }

    /// The value of a host's Put or write: of a new version.
    fn set_value(&mut self, host: usize, bytes: u32) {
        self.state().version += 1;
        let version = self.state().version;
        let loaded = &mut self.loads[host];
        loaded.load.bytes = bytes;
        fill_value(version, bytes, &mut loaded.value);
        loaded.crc32c = kaml_crc::crc32c(&loaded.value);
        let mean = self.state().value_bytes_mean;
        self.state().value_bytes_mean = (mean * 15 + u64::from(bytes)) / 16;
        self.state().expected[host] = Expected::Version(version);
    }

    fn begin_object(&mut self, key: u64, kind: usize, put: Option<u32>, fill: Option<(u64, u32)>, began: u64) {
        let space = self.state().records.expect("created with the first record");
        let pieces = match put {
            Some(bytes) => bytes.div_ceil(PIECE_BYTES).max(1),
            None => self.state().objects.pieces(key),
        };
        let bytes = u64::from(put.unwrap_or(0));
        let group = self.new_group(Group { kind, began, pieces, ends: 0, bytes, reads: 0, fill });
        if put.is_some() {
            self.state().objects.set_pieces(key, pieces);
        }
        let ask = if kind == HIT { Ask::Get } else { Ask::Put };
        for piece in 0..pieces {
            let number = Objects::piece(key, piece);
            self.core.prefetch(space, &Key::from(Load::key(number)).into());
        }
        let taken = self.controller.take(self.now_ns, bytes, if kind == HIT { pieces.into() } else { 0 });
        for piece in 0..pieces {
            let number = Objects::piece(key, piece);
            let host = self.host_for(group, space, ask);
            if let Some(bytes) = put {
                self.set_value(host, (bytes - piece * PIECE_BYTES).min(PIECE_BYTES));
            }
            self.hosts[host].job = match kind {
                HIT => Job::Get { number },
                PUT => Job::Put { number },
                _ => Job::Delete { number },
            };
            self.push(taken, Event::Taken, host);
        }
    }

    /// Begins a read, unit by unit, or a write, of ranges of bytes of the disk.
    fn begin_blocks(&mut self, ranges: &[std::ops::Range<u64>], is_write: bool, began: u64) -> Result<(), RigError> {
        let space = self.state().disk.expect("created with the first record");
        let unit = u64::from(BlockOptions::default().unit_bytes);
        let step = if is_write { WRITE_BYTES } else { unit };
        let mut pieces = Vec::new();
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let end = ((at / step + 1) * step).min(range.end);
                pieces.push(at..end);
                at = end;
            }
        }
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let kind = if is_write { WRITE } else { READ };
        let group = Group { kind, began, pieces: pieces.len() as u32, ends: 0, bytes, reads: 0, fill: None };
        let group = self.new_group(group);
        let (data, probes) = if is_write { (bytes, 0) } else { (0, pieces.len() as u64) };
        let taken = self.controller.take(self.now_ns, data, probes);
        for range in pieces {
            let host = self.host_for(group, space, if is_write { Ask::Write } else { Ask::Read });
            if is_write {
                self.set_value(host, (range.end - range.start) as u32);
                let first = range.start / u64::from(super::BLOCK_BYTES);
                let change = BlockChange::write(&self.reader, space, first, &self.loads[host].value)?;
                self.hosts[host].job = Job::Write { change: Box::new(change), range };
            } else {
                self.hosts[host].job = Job::Read { range };
            }
            self.push(taken, Event::Taken, host);
        }
        Ok(())
    }

    /// A read is about to find the content of now.
    pub(super) fn expect(&mut self, host: usize) {
        let state = self.replaying.as_mut().expect("a replay is in progress");
        state.expected[host] = match &self.hosts[host].job {
            Job::Get { number } => Expected::Object(state.objects.get(*number)),
            Job::Read { range } => Expected::Blocks(state.blocks.unit(range.start)),
            _ => return,
        };
    }

    /// A read has found something.
    pub(super) fn replay_found(&mut self, host: usize, value: &[u8], from_flash: bool) -> Result<(), RigError> {
        let state = self.replaying.as_mut().expect("a replay is in progress");
        if !state.expected[host].is(value) {
            let what = format!("{} bytes that were not stored there were found", value.len());
            return Err(RigError::Wrong(what));
        }
        let group = &mut state.groups[state.group_of[host]];
        group.reads += u64::from(from_flash);
        let bytes = match &self.hosts[host].job {
            Job::Read { range } => range.end - range.start,
            _ => {
                if matches!(state.expected[host], Expected::Object(None)) {
                    group.kind = MISS;
                }
                group.bytes += value.len() as u64;
                value.len() as u64
            }
        };
        let when = self.controller.answer(self.now_ns, bytes);
        self.end_piece(host, when);
        Ok(())
    }

    /// Something is committed, and its host has the completion at `when`.
    pub(super) fn replay_committed(&mut self, host: usize, when: u64) {
        let state = self.replaying.as_mut().expect("a replay is in progress");
        let version = match state.expected[host] {
            Expected::Version(version) => version,
            _ => 0,
        };
        match &self.hosts[host].job {
            Job::Put { number } => {
                let bytes = self.loads[host].load.bytes;
                state.objects.put(*number, Some(Stored { version, bytes }));
            }
            Job::Delete { number } => state.objects.put(*number, None),
            Job::Write { range, .. } => state.blocks.written(range, version),
            _ => unreachable!("only changes are committed"),
        }
        self.end_piece(host, when);
    }

    fn end_piece(&mut self, host: usize, when: u64) {
        self.hosts[host].job = Job::Nothing;
        self.operations += 1;
        let state = self.state();
        state.idle_hosts.push(host);
        state.expected[host] = Expected::Nothing;
        let number = state.group_of[host];
        let group = &mut state.groups[number];
        group.ends = group.ends.max(when);
        group.pieces -= 1;
        if group.pieces == 0 {
            let ends = group.ends;
            self.push(ends, Event::Ask, number);
        }
    }

    /// The host of a record has its last completion, or a record arrives.
    pub(super) fn replay_event(&mut self, number: usize) {
        if number == ARRIVAL {
            return;
        }
        let state = self.state();
        let group = state.groups[number];
        state.idle_groups.push(number);
        state.in_flight -= 1;
        state.sheets[group.kind].note(group.began, group.ends, group.bytes);
        state.completed += 1;
        state.ended = true;
        if group.kind == HIT {
            state.hit_reads += group.reads;
        }
        if let (MISS, Some((key, bytes))) = (group.kind, group.fill) {
            state.fills += 1;
            let now = self.now_ns;
            self.begin_object(key, PUT, Some(bytes), None, now);
        }
    }

    /// Power fails now, on a fork, and the device is opened again there: it must have all that completed, and of what was in
    /// progress the old or the new content. Returns how much was compared.
    fn cut_and_compare(&mut self, choice: u64) -> Result<u64, String> {
        let state = self.replaying.as_ref().expect("a replay is in progress");
        let mut pending_objects: Vec<(u64, Option<Stored>)> = Vec::new();
        let mut pending_blocks = Vec::new();
        for (host, entry) in self.hosts.iter().enumerate() {
            let version = match state.expected[host] {
                Expected::Version(version) => version,
                _ => 0,
            };
            match &entry.job {
                Job::Put { number } => {
                    let bytes = self.loads[host].load.bytes;
                    pending_objects.push((*number, Some(Stored { version, bytes })));
                }
                Job::Delete { number } => pending_objects.push((*number, None)),
                Job::Write { range, .. } => pending_blocks.push((range.clone(), version)),
                _ => {}
            }
        }
        let fork = self.medium.fork_after_cut(choice);
        let handle = fork.handle();
        let (mut core, _) = kaml_device::Core::open(&handle).map_err(|error| format!("opening failed: {error}"))?;
        let mut compared = 0;
        if let Some(space) = state.records {
            compared += state.objects.compare(&mut core, &handle, space, &pending_objects)?;
        }
        if let Some(space) = state.disk {
            compared += state.blocks.compare(&mut core, &handle, space, &pending_blocks)?;
        }
        Ok(compared)
    }
}

impl Replaying {
    fn report(&self, before: &CoreStats, after: &CoreStats, ns: u64, hash: u64) -> ReplayReport {
        let seconds = ns as f64 / 1e9;
        let count = |kind: usize| self.sheets[kind].commands;
        let latencies = KINDS.into_iter().zip(&self.sheets).filter(|(_, sheet)| sheet.commands > 0);
        let latencies = latencies.map(|(kind, sheet)| Latencies {
            kind,
            count: sheet.commands,
            bytes: sheet.bytes,
            mean_us: sheet.mean_us(),
            p50_us: sheet.quantile_us(0.5),
            p99_us: sheet.quantile_us(0.99),
            p999_us: sheet.quantile_us(0.999),
            max_us: sheet.quantile_us(1.0),
        });
        let bytes: u64 = self.sheets.iter().map(|sheet| sheet.bytes).sum();
        let ratio = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        ReplayReport {
            records: self.completed,
            fills: self.fills,
            cut_short: self.cut_short,
            virtual_seconds: seconds,
            records_per_s: self.completed as f64 / seconds,
            megabytes_per_s: bytes as f64 / 1e6 / seconds,
            latencies: latencies.collect(),
            hit_ratio: ratio(count(HIT), count(HIT) + count(MISS)),
            flash_reads_per_hit: ratio(self.hit_reads, count(HIT)),
            write_amplification: ratio(after.page_bytes - before.page_bytes, after.record_bytes - before.record_bytes),
            relocated_bytes: after.relocated_bytes - before.relocated_bytes,
            erases: after.erase_count - before.erase_count,
            live_bytes: after.live_bytes,
            cuts: 0,
            compared: 0,
            fingerprint: format!("{hash:016x}"),
        }
    }
}

const _: () = assert!(READ_IDS > usize::MAX as u64 / 2, "hosts and reads have names of their own");
