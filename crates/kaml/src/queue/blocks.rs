//! Commands on logical blocks, many in flight from one thread.
//!
//! Lives here:       block commands of an event loop on their way through reads and Puts.
//! Lives elsewhere:  the loop itself (`queue`), what a read or a change takes (`crate::blocks`, `kaml_device::BlockChange`).
//!
//! A command is here until its last Put is staged, or its last read completes; then it waits with the loop's other Puts, or
//! is ready. A change that finds no room, or has more Puts to stage, waits here for its turn: nothing here blocks.

use super::{AsyncQueue, READ_BIT, WaitingPut};
use crate::blocks::{OneUnit, Run, UnitRead};
use crate::driver::By;
use crate::sync::Instant;
use crate::{Answer, Bytes, Error, NamespaceId};
use kaml_device::{BlockChange, BlockStep, Core, FlashRead, StageError};
use kaml_flash::{AlignedBuf, ChunkAddr, Completion, Io};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// Reads of block commands are distinguished from those of Gets by this bit of their id.
pub(super) const BLOCK_BIT: u64 = 1 << 62;
/// Puts that one change stages in one visit to the core.
const PUTS_PER_VISIT: usize = 4;
/// Changes that have their turn in one round of a poll, so a caller that has other commands in the loop does not wait for all.
const TURNS_PER_ROUND: usize = 4;

/// Block commands on their way.
#[derive(Default)]
pub(super) struct BlockCommands {
    next: u64,
    commands: BTreeMap<u64, Command>,
    /// Reads in flight, by their ids less [`READ_BIT`] and [`BLOCK_BIT`], and places among them that are free.
    reads: Vec<Option<Reading>>,
    free_reads: Vec<usize>,
    /// Reads of one unit among them, which are commands of their own.
    one_unit_reads: usize,
    /// Changes that wait for room or their turn, and how many of them were tried since one could continue.
    later: VecDeque<u64>,
    tried: usize,
    /// Reads that are done and not worked off.
    pub(super) arrived: Vec<Completion>,
}

enum Command {
    Read { token: u64, start: Instant, into: Vec<u8>, reads: usize, error: Option<Error> },
    Change { token: u64, start: Instant, change: BlockChange, data: Vec<u8>, is_cancelled: bool },
}

enum Reading {
    /// All that a read of blocks requests.
    OneUnit { token: u64, start: Instant, read: UnitRead },
    /// For the answer of a read, which is this command.
    Run(u64, Run),
    /// For a change of a part of a unit, which is this command.
    Unit(u64, FlashRead),
}

/// How far a change has come in one visit to the core.
enum Visit {
    Staged(Option<u64>),
    Read(FlashRead),
    /// There is more to stage, when it is its turn again.
    Turn,
    /// There was no room.
    Busy,
}

impl BlockCommands {
    pub(super) fn len(&self) -> usize {
        self.commands.len() + self.one_unit_reads
    }

    pub(super) fn reads_in_flight(&self) -> usize {
        self.reads.len() - self.free_reads.len()
    }

    /// Whether a change waits for room or its turn.
    pub(super) fn has_later(&self) -> bool {
        !self.later.is_empty()
    }

    fn new_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn add_read(&mut self, reading: Reading) -> u64 {
        let place = self.free_reads.pop().unwrap_or_else(|| {
            self.reads.push(None);
            self.reads.len() - 1
        });
        self.reads[place] = Some(reading);
        place as u64
    }

    fn take_read(&mut self, id: u64) -> Reading {
        let place = (id & !(READ_BIT | BLOCK_BIT)) as usize;
        self.free_reads.push(place);
        self.reads[place].take().expect("a read completes one time")
    }
}

impl AsyncQueue {
    /// Starts reading blocks of this many bytes, which must be whole ones; the answer has them. As
    /// [`crate::Device::block_read`]. An error is the command's answer; nothing else will come for its token.
    ///
    /// # Errors
    /// As [`crate::Device::block_read`].
    pub fn submit_block_read(
        &mut self,
        token: u64,
        namespace: NamespaceId,
        first_block: u64,
        bytes: usize,
    ) -> Result<(), Error> {
        let start = Instant::now();
        match self.shared.find_one_unit(namespace, first_block, bytes)? {
            None => self.read_units(token, namespace, first_block, bytes, start)?,
            Some(OneUnit::Here(blocks)) => self.blocks_found(token, start.elapsed(), Ok(blocks.into())),
            Some(OneUnit::Read(read)) => {
                self.blocks.one_unit_reads += 1;
                let (at, bytes) = (read.read.at, read.read.bytes);
                self.start_block_read(at, bytes, Reading::OneUnit { token, start, read });
            }
        }
        Ok(())
    }

    /// Reads blocks of several units.
    fn read_units(
        &mut self,
        token: u64,
        namespace: NamespaceId,
        first_block: u64,
        bytes: usize,
        start: Instant,
    ) -> Result<(), Error> {
        let mut into = vec![0; bytes];
        let runs = self.shared.find_blocks(namespace, first_block, &mut into)?;
        if runs.is_empty() {
            self.blocks_found(token, start.elapsed(), Ok(into.into()));
            return Ok(());
        }
        let id = self.blocks.new_id();
        let command = Command::Read { token, start, into, reads: runs.len(), error: None };
        self.blocks.commands.insert(id, command);
        runs.into_iter().for_each(|run| self.start_block_read(run.at, run.bytes, Reading::Run(id, run)));
        Ok(())
    }

    fn blocks_found(&mut self, token: u64, took: Duration, blocks: Result<Bytes, Error>) {
        self.tally.get_ns.push(took.as_nanos() as u64);
        self.ready.push(Answer { token, result: blocks.map(Some) });
    }

    /// Starts writing whole blocks; durable on completion. As [`crate::Device::block_write`]. Commands in flight together
    /// have no order: a caller that needs one waits for the first completion.
    ///
    /// # Errors
    /// As [`crate::Device::block_write`].
    pub fn submit_block_write(
        &mut self,
        token: u64,
        namespace: NamespaceId,
        first_block: u64,
        data: &[u8],
    ) -> Result<(), Error> {
        let change = BlockChange::write(&self.shared.reader, namespace, first_block, data);
        let change = change.map_err(|error| self.shared.refused(error))?;
        self.start_change(token, change, data)
    }

    /// Starts a trim. As [`crate::Device::block_trim`]. One of more units than a few waits for its turn among those that continue, so
    /// to start many takes no time.
    ///
    /// # Errors
    /// As [`crate::Device::block_trim`].
    pub fn submit_block_trim(
        &mut self,
        token: u64,
        namespace: NamespaceId,
        first_block: u64,
        count: u64,
    ) -> Result<(), Error> {
        let blocks = first_block..first_block.saturating_add(count);
        self.submit_block_trims(token, namespace, std::slice::from_ref(&blocks))
    }

    /// Starts a trim of ranges of blocks, one after the other; it completes as one.
    ///
    /// # Errors
    /// As [`crate::Device::block_trim`].
    pub fn submit_block_trims(
        &mut self,
        token: u64,
        namespace: NamespaceId,
        ranges: &[Range<u64>],
    ) -> Result<(), Error> {
        let change = BlockChange::trim(&self.shared.reader, namespace, ranges);
        let change = change.map_err(|error| self.shared.refused(error))?;
        if change.is_one_step() {
            return self.start_change(token, change, &[]);
        }
        self.ask_to_be_woken();
        let id = self.blocks.new_id();
        let (start, data) = (Instant::now(), Vec::new());
        let change = Command::Change { token, start, change, data, is_cancelled: false };
        self.blocks.commands.insert(id, change);
        self.blocks.later.push_back(id);
        Ok(())
    }

    /// Starts making blocks read as zeroes. As [`crate::Device::block_write_zeroes`].
    ///
    /// # Errors
    /// As [`crate::Device::block_trim`].
    pub fn submit_block_write_zeroes(
        &mut self,
        token: u64,
        namespace: NamespaceId,
        first_block: u64,
        count: u64,
    ) -> Result<(), Error> {
        self.submit_block_trim(token, namespace, first_block, count)
    }

    fn start_change(&mut self, token: u64, mut change: BlockChange, data: &[u8]) -> Result<(), Error> {
        self.ask_to_be_woken();
        let start = Instant::now();
        let visit = match self.visit(&mut change, data) {
            Ok(Visit::Staged(frame)) => {
                self.change_staged(token, start, frame);
                return Ok(());
            }
            Ok(visit) => visit,
            Err(error) if change.frame().is_none() => return Err(error),
            Err(error) => {
                self.change_failed(token, start, &change, error);
                return Ok(());
            }
        };
        let id = self.blocks.new_id();
        let data = data.to_vec();
        self.blocks.commands.insert(id, Command::Change { token, start, change, data, is_cancelled: false });
        self.after_visit(id, visit);
        Ok(())
    }

    /// Stages what can be staged of a change now.
    fn visit(&mut self, change: &mut BlockChange, data: &[u8]) -> Result<Visit, Error> {
        let shared = self.shared.clone();
        let attempt = |core: &mut Core| match visit_core(core, change, data) {
            Ok(visit) => Ok(Ok(visit)),
            Err(StageError::Busy) => Ok(Ok(Visit::Busy)),
            Err(StageError::Refused(error)) => Ok(Err(error)),
            Err(hindered) => Err(hindered),
        };
        // Changes of blocks are under no condition, and a store does not cache blocks.
        let (mut core, visit) = shared.visit(By::Store, attempt)?;
        let wake = core.has_background();
        let persisting = self.persisting();
        let part = match visit {
            Ok(Visit::Staged(Some(frame))) => self.parts.staged(frame, persisting, &mut core),
            _ => None,
        };
        drop(core);
        if let Some(part) = part {
            self.operations().start_persist(part);
        }
        if wake {
            self.wants_housekeeping();
        }
        visit.map_err(|error| shared.refused(error))
    }

    fn after_visit(&mut self, id: u64, visit: Visit) {
        match visit {
            Visit::Staged(frame) => {
                let Some(Command::Change { token, start, .. }) = self.blocks.commands.remove(&id) else {
                    unreachable!("changes are visited, not reads")
                };
                self.change_staged(token, start, frame);
            }
            Visit::Read(read) => self.start_block_read(read.at, read.bytes, Reading::Unit(id, read)),
            Visit::Turn | Visit::Busy => self.blocks.later.push_back(id),
        }
    }

    /// Trims of such tokens do not continue any more: they complete with [`Error::Cancelled`], after what was done of them is durable.
    pub fn cancel_trims(&mut self, tokens: &BTreeSet<u64>) {
        let mut cancelled = BTreeSet::new();
        for (id, command) in &mut self.blocks.commands {
            if let Command::Change { token, data, is_cancelled, .. } = command
                && data.is_empty()
                && tokens.contains(token)
            {
                *is_cancelled = true;
                cancelled.insert(*id);
            }
        }
        // Those that are not here wait for a read, and see it then.
        let later = std::mem::take(&mut self.blocks.later);
        let (given_up, later): (VecDeque<u64>, _) = later.into_iter().partition(|id| cancelled.contains(id));
        (self.blocks.later, self.blocks.tried) = (later, 0);
        given_up.into_iter().for_each(|id| self.give_up(id, Error::Cancelled));
    }

    /// The last Put of a change is staged, or was when it had more to look at. Puts that wait are in the order of their frames.
    fn change_staged(&mut self, token: u64, start: Instant, frame: Option<u64>) {
        match frame {
            Some(frame) => self.add_waiting(WaitingPut { frame, token, start, failed: None }),
            None => self.ready.push(Answer { token, result: Ok(None) }),
        }
    }

    pub(super) fn add_waiting(&mut self, put: WaitingPut) {
        let at = self.puts.partition_point(|before| before.frame <= put.frame);
        self.puts.insert(at, put);
    }

    fn start_block_read(&mut self, at: ChunkAddr, bytes: usize, reading: Reading) {
        let into = self.buffers.take(bytes);
        let id = self.blocks.add_read(reading);
        self.tally.read_count += 1;
        self.tally.read_bytes += bytes as u64;
        self.operations().io.submit(id | READ_BIT | BLOCK_BIT, Io::Read { at, into });
    }

    /// Works off the reads that are done. Call it without the core's lock.
    pub(super) fn take_arrived(&mut self, now: Instant) {
        let shared = self.shared.clone();
        for Completion { id, mut io, result } in std::mem::take(&mut self.blocks.arrived) {
            let reading = self.blocks.take_read(id);
            let result = result.map_err(Error::from);
            match reading {
                Reading::OneUnit { token, start, read } => {
                    let blocks = result.and_then(|()| shared.take_read(&mut io, |bytes| read.blocks(bytes)));
                    self.one_unit_read(token, now - start, blocks, io);
                    continue;
                }
                Reading::Run(command, run) => {
                    self.run_read(command, |into| {
                        result.and_then(|()| shared.take_read(&mut io, |bytes| run.copy(bytes, into)))
                    });
                }
                Reading::Unit(command, read) => {
                    let unit = |bytes: &[u8]| Ok(read.value(bytes)?.of(bytes).to_vec());
                    let value = result.and_then(|()| shared.take_read(&mut io, unit));
                    self.unit_read(command, value.map(|value| (read, value)));
                }
            }
            self.buffers.give(memory_of(io));
        }
    }

    /// The blocks are not moved after the read, until their memory is released.
    fn one_unit_read(&mut self, token: u64, took: Duration, blocks: Result<Range<usize>, Error>, io: Io) {
        self.blocks.one_unit_reads -= 1;
        let blocks = match blocks {
            Ok(blocks) => Ok(Bytes::of_read(memory_of(io), blocks)),
            Err(error) => {
                self.buffers.give(memory_of(io));
                Err(error)
            }
        };
        self.blocks_found(token, took, blocks);
    }

    fn run_read(&mut self, id: u64, copy: impl FnOnce(&mut [u8]) -> Result<(), Error>) {
        let Some(Command::Read { into, reads, error, .. }) = self.blocks.commands.get_mut(&id) else {
            unreachable!("a read completes after all its runs")
        };
        *reads -= 1;
        if let Err(failure) = copy(into) {
            error.get_or_insert(failure);
        }
        if *reads == 0
            && let Some(Command::Read { token, start, into, error, .. }) = self.blocks.commands.remove(&id)
        {
            self.blocks_found(token, start.elapsed(), error.map_or(Ok(into.into()), Err));
        }
    }

    fn unit_read(&mut self, id: u64, value: Result<(FlashRead, Vec<u8>), Error>) {
        let Some(Command::Change { change, .. }) = self.blocks.commands.get_mut(&id) else {
            unreachable!("a change completes after its reads")
        };
        match value.and_then(|(read, value)| Ok(change.supply(read, value)?)) {
            Ok(()) => drop(self.go_on_with(id)),
            Err(error) => self.give_up(id, error),
        }
    }

    /// Whether it could continue.
    fn go_on_with(&mut self, id: u64) -> bool {
        let Some(Command::Change { token, start, mut change, data, is_cancelled }) = self.blocks.commands.remove(&id)
        else {
            unreachable!("only changes continue")
        };
        let visit = if is_cancelled { Err(Error::Cancelled) } else { self.visit(&mut change, &data) };
        self.blocks.commands.insert(id, Command::Change { token, start, change, data, is_cancelled });
        let goes_on = !matches!(visit, Ok(Visit::Busy));
        match visit {
            Ok(visit) => self.after_visit(id, visit),
            Err(error) => self.give_up(id, error),
        }
        goes_on
    }

    fn give_up(&mut self, id: u64, error: Error) {
        if let Some(Command::Change { token, start, change, .. }) = self.blocks.commands.remove(&id) {
            self.change_failed(token, start, &change, error);
        }
    }

    /// A change cannot continue: it completes when what was staged of it is committed.
    fn change_failed(&mut self, token: u64, start: Instant, change: &BlockChange, error: Error) {
        match change.frame() {
            Some(frame) => self.add_waiting(WaitingPut { frame, token, start, failed: Some(Box::new(error)) }),
            None => self.ready.push(Answer { token, result: Err(error) }),
        }
    }

    /// Lets some changes that wait for room or their turn continue; whether others, or they once more, may continue at once.
    pub(super) fn take_turns(&mut self) -> bool {
        for _ in 0..TURNS_PER_ROUND {
            if self.blocks.tried >= self.blocks.later.len() {
                break;
            }
            let id = self.blocks.later.pop_front().expect("more than were tried");
            self.blocks.tried = if self.go_on_with(id) { 0 } else { self.blocks.tried + 1 };
        }
        let is_over = self.blocks.tried >= self.blocks.later.len();
        if is_over {
            self.blocks.tried = 0; // there may be room when it is their turn again
        }
        !is_over
    }
}

fn memory_of(read: Io) -> AlignedBuf {
    let Io::Read { into, .. } = read else { unreachable!("a bit marks ids of reads") };
    into
}

fn visit_core(core: &mut Core, change: &mut BlockChange, data: &[u8]) -> Result<Visit, StageError> {
    for _ in 0..PUTS_PER_VISIT {
        match change.stage(core, data)? {
            BlockStep::Done(frame) => return Ok(Visit::Staged(frame)),
            BlockStep::Read(read) => return Ok(Visit::Read(read)),
            BlockStep::More => {}
        }
    }
    Ok(Visit::Turn)
}
