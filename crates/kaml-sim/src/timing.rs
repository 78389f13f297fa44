//! When an operation is done: dies, channels, the battery-backed buffer; or whatever a seed likes.
//!
//! Lives here:       busy times and queues of dies and channels.
//! Lives elsewhere:  the numbers (`board`).
//! Implements:       paper:KAML IV.A (chips of a channel work in parallel, one of them transfers at a time).
//!
//! An operation on pages runs step by step, `planes` pages each: a read senses, then transfers; a program transfers,
//! then programs. Between two steps of a long operation a waiting read may go first.

use crate::board::{BYTES_PER_US_MAX, BoardError, NS_MAX, in_range};
use crate::rng::Rng;
use kaml_flash::{Geometry, Io};
use std::collections::VecDeque;

/// What flash, channels and the buffer take. Lists have one entry for each kind of page, in the order of the pages;
/// `planes` pages in a row are of one kind.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NandTiming {
    /// From the command to the page register (tR).
    pub read_ns: Vec<u64>,
    /// From the page register to the cells (tPROG).
    pub program_ns: Vec<u64>,
    /// An erase (tBERS).
    pub erase_ns: u64,
    /// Each of the three varies by so much up and down, evenly.
    pub spread_percent: u64,
    /// How much longer an erase takes at `rated_erases`.
    pub erase_wear_percent: u64,
    /// How much shorter a program takes at `rated_erases`: worn cells take charge faster.
    pub program_wear_percent: u64,
    /// The wear at which the two apply in full.
    pub rated_erases: u64,
    /// Pages of different planes that are sensed or programmed together.
    pub planes: u32,
    /// Bus of one channel.
    pub channel_bytes_per_us: u64,
    /// Command and address cycles of each transfer.
    pub channel_command_ns: u64,
    /// Bandwidth of the battery-backed buffer, where the commit ring and the roots are kept.
    pub buffer_bytes_per_us: u64,
    /// Until a write to the buffer counts as done.
    pub buffer_write_ns: u64,
}

/// Whose time it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Timing {
    /// A board.
    Board(NandTiming),
    /// No board at all: the seed determines how long each operation takes, up to this long, and overtakes any other.
    Chaos {
        /// Longest operation, unless a fault slows it.
        ns_max: u64,
    },
}

/// What comes next for an operation.
pub(crate) enum Next {
    /// Something happens to it then.
    At(u64),
    /// It waits for its die.
    Waits,
    /// It is done now.
    Done,
    /// It stepped aside for the operation named, whose next event is then.
    Yields(u32, u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Read,
    ReadOob,
    Program,
    Erase,
}

/// What an operation does to a die.
#[derive(Clone, Copy, Debug)]
struct Work {
    kind: Kind,
    die: u32,
    first_page: u32,
    pages: u32,
    /// Bytes that cross the channel.
    bytes: u64,
}

/// Where an operation is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Nothing for what needs no die of a board.
    work: Option<Work>,
    page: u32,
    sensed: bool,
    slowness: u64,
}

impl Progress {
    pub(crate) fn new(io: &Io, timing: &Timing, geometry: &Geometry, slowness: u64) -> Progress {
        let work = match timing {
            Timing::Board(_) => work(io, geometry),
            Timing::Chaos { .. } => None,
        };
        Progress { work, page: 0, sensed: false, slowness }
    }
}

#[derive(Default)]
struct Die {
    busy: bool,
    /// Operations that wait, and whether they are reads.
    waiting: VecDeque<(u32, bool)>,
}

/// Dies, channels and the buffer at work. Operations have a number each, which they keep while they are here.
pub(crate) struct Clocks {
    dies: Vec<Die>,
    channel_free_ns: Vec<u64>,
    buffer_free_ns: u64,
}

impl Clocks {
    pub(crate) fn new(geometry: &Geometry) -> Clocks {
        Clocks {
            dies: (0..geometry.die_count()).map(|_| Die::default()).collect(),
            channel_free_ns: vec![0; geometry.channel_count as usize],
            buffer_free_ns: 0,
        }
    }

    /// An operation has arrived.
    pub(crate) fn arrive(
        &mut self,
        (number, io, progress): (u32, &Io, &mut Progress),
        (now, erase_count): (u64, u32),
        (timing, rng): (&Timing, &mut Rng),
    ) -> Next {
        let board = match timing {
            Timing::Chaos { ns_max } => return Next::At(now + (1 + rng.below(*ns_max)) * progress.slowness),
            Timing::Board(board) => board,
        };
        let Some(work) = progress.work else {
            return Next::At(self.buffer(io, now, board, progress.slowness));
        };
        let die = &mut self.dies[work.die as usize];
        if die.busy {
            die.waiting.push_back((number, work.kind == Kind::Read));
            return Next::Waits;
        }
        die.busy = true;
        Next::At(self.step((work, progress), (now, erase_count), (board, rng)))
    }

    fn buffer(&mut self, io: &Io, now: u64, board: &NandTiming, slowness: u64) -> u64 {
        let bytes = match io {
            Io::Persist { len, .. } => *len as u64,
            Io::WriteRoot { data, .. } => data.len() as u64,
            _ => 0, // a flush: programs that are done are in their cells
        };
        self.buffer_free_ns = self.buffer_free_ns.max(now) + bytes * 1000 / board.buffer_bytes_per_us;
        self.buffer_free_ns + board.buffer_write_ns * slowness
    }

    /// Starts the next step; returns when it ends.
    fn step(
        &mut self,
        (work, progress): (Work, &mut Progress),
        (now, erase_count): (u64, u32),
        (board, rng): (&NandTiming, &mut Rng),
    ) -> u64 {
        let page = work.first_page + progress.page;
        // Pages are sensed or programmed together that have the same place in their planes.
        let step_pages = (board.planes - page % board.planes).min(work.pages - progress.page).max(1);
        let bytes = || (work.bytes * u64::from(step_pages)).div_ceil(u64::from(work.pages));
        match work.kind {
            Kind::Erase => {
                progress.page = work.pages;
                now + board.erase(erase_count, rng) * progress.slowness
            }
            Kind::Program => {
                progress.page += step_pages;
                let sent = self.transfer(work.die, now, bytes(), board);
                sent + board.program(page, erase_count, rng) * progress.slowness
            }
            Kind::Read | Kind::ReadOob if !progress.sensed => {
                progress.sensed = true;
                now + board.read(page, rng) * progress.slowness
            }
            Kind::Read | Kind::ReadOob => {
                progress.sensed = false;
                progress.page += step_pages;
                self.transfer(work.die, now, bytes(), board)
            }
        }
    }

    fn transfer(&mut self, die: u32, now: u64, bytes: u64, board: &NandTiming) -> u64 {
        let channel = die as usize % self.channel_free_ns.len();
        let free = &mut self.channel_free_ns[channel];
        *free = now.max(*free) + board.channel_command_ns + bytes * 1000 / board.channel_bytes_per_us;
        *free
    }

    /// A step of an operation has ended.
    pub(crate) fn advance(
        &mut self,
        (number, progress): (u32, &mut Progress),
        (now, erase_count): (u64, u32),
        (timing, rng): (&Timing, &mut Rng),
    ) -> Next {
        let (Timing::Board(board), Some(work)) = (timing, progress.work) else { return Next::Done };
        if progress.page == work.pages {
            return Next::Done;
        }
        let die = &mut self.dies[work.die as usize];
        if !progress.sensed
            && let Some(position) = die.waiting.iter().position(|(_, is_read)| *is_read)
        {
            let (reader, _) = die.waiting.remove(position).expect("just found");
            // It continues after this one read, and a step of it comes before the next: nobody starves.
            die.waiting.push_front((number, false));
            return Next::Yields(reader, now);
        }
        Next::At(self.step((work, progress), (now, erase_count), (board, rng)))
    }

    /// An operation that waited has its die.
    pub(crate) fn resume(
        &mut self,
        progress: &mut Progress,
        when: (u64, u32),
        (timing, rng): (&Timing, &mut Rng),
    ) -> u64 {
        let (Timing::Board(board), Some(work)) = (timing, progress.work) else {
            unreachable!("only boards have dies that are waited for")
        };
        self.step((work, progress), when, (board, rng))
    }

    /// An operation is done; returns the one that has its die now.
    pub(crate) fn leave(&mut self, progress: &Progress) -> Option<u32> {
        let die = &mut self.dies[progress.work?.die as usize];
        let next = die.waiting.pop_front();
        die.busy = next.is_some();
        next.map(|(number, _)| number)
    }
}

fn work(io: &Io, geometry: &Geometry) -> Option<Work> {
    let page_bytes = u64::from(geometry.page_bytes);
    let (kind, block, first_page, pages, bytes) = match io {
        Io::Read { at, into } => {
            let (block, chunk) = geometry.split(*at);
            let first = chunk / geometry.chunks_per_page();
            let end = u64::from(chunk) * u64::from(geometry.chunk_bytes) + into.len() as u64;
            let pages = (end.div_ceil(page_bytes) as u32).saturating_sub(first).max(1);
            (Kind::Read, block, first, pages, into.len() as u64)
        }
        Io::ReadOob { at, into } => {
            let pages = (into.len() as u32 / geometry.oob_bytes).max(1);
            (Kind::ReadOob, at.block, at.page, pages, into.len() as u64)
        }
        Io::Program { at, data, oob, .. } => {
            let pages = (data.len() as u64 / page_bytes).max(1) as u32;
            (Kind::Program, at.block, at.page, pages, (data.len() + oob.len()) as u64)
        }
        Io::Erase { block, .. } => (Kind::Erase, *block, 0, 1, 0),
        Io::Persist { .. } | Io::WriteRoot { .. } | Io::Flush | Io::Resize { .. } => return None,
    };
    Some(Work { kind, die: geometry.die_of(block), first_page, pages, bytes })
}

impl NandTiming {
    /// Names what no flash has. No product of two of these numbers and a percentage is too large.
    pub(crate) fn check(&self) -> Result<(), BoardError> {
        for (name, times) in [("read_ns", &self.read_ns), ("program_ns", &self.program_ns)] {
            if times.is_empty() {
                return Err(BoardError::Nothing(name));
            }
            times.iter().try_for_each(|ns| in_range(name, *ns, 0..=NS_MAX))?;
        }
        let numbers = [
            ("erase_ns", self.erase_ns, 0..=NS_MAX),
            ("channel_command_ns", self.channel_command_ns, 0..=NS_MAX),
            ("buffer_write_ns", self.buffer_write_ns, 0..=NS_MAX),
            ("spread_percent", self.spread_percent, 0..=100),
            ("erase_wear_percent", self.erase_wear_percent, 0..=1000),
            ("program_wear_percent", self.program_wear_percent, 0..=100),
            ("rated_erases", self.rated_erases, 1..=1_000_000),
            ("planes", self.planes.into(), 1..=64),
            ("channel_bytes_per_us", self.channel_bytes_per_us, 1..=BYTES_PER_US_MAX),
            ("buffer_bytes_per_us", self.buffer_bytes_per_us, 1..=BYTES_PER_US_MAX),
        ];
        numbers.into_iter().try_for_each(|(name, value, range)| in_range(name, value, range))
    }

    /// Pages that are programmed together are of one kind.
    fn kind(&self, page: u32) -> usize {
        (page / self.planes) as usize
    }

    fn vary(&self, ns: u64, rng: &mut Rng) -> u64 {
        let spread = ns * self.spread_percent / 100;
        ns - spread + rng.below(2 * spread + 1)
    }

    fn read(&self, page: u32, rng: &mut Rng) -> u64 {
        self.vary(self.read_ns[self.kind(page) % self.read_ns.len()], rng)
    }

    fn program(&self, page: u32, erase_count: u32, rng: &mut Rng) -> u64 {
        let new = self.program_ns[self.kind(page) % self.program_ns.len()];
        let less = new * self.program_wear_percent * self.worn(erase_count) / (100 * self.rated_erases);
        self.vary(new - less, rng)
    }

    fn erase(&self, erase_count: u32, rng: &mut Rng) -> u64 {
        let more = self.erase_ns * self.erase_wear_percent * self.worn(erase_count) / (100 * self.rated_erases);
        self.vary(self.erase_ns + more, rng)
    }

    fn worn(&self, erase_count: u32) -> u64 {
        u64::from(erase_count).min(self.rated_erases)
    }
}
