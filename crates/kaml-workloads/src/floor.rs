//! The floor under durable puts: a bare group-commit append log, nothing after it.
//!
//! Lives here:       the log for blocking callers (leader and followers) and the one for an event loop.
//! Lives elsewhere:  what is compared with it (`micro`).
//! Implements:       the control run that the bars on durable puts are ratios to.
//!
//! With `pages` (blocking callers), everything is written a second time in large page writes next to the log, as a store does
//! whose log is only its non-volatile buffer: the same writes, and nothing else. With a `mix`, callers read, too.
//!
//! Records of `record_bytes` with a header and a CRC32C are packed into sector-padded frames, which are written with
//! `O_DIRECT | O_DSYNC` round and round a pre-written file. There is no index, no page, no reading back.

mod mix;
mod pages;

pub use mix::Mix;

use crate::figures::{Meter, histogram, record};
use crate::keys::Rng;
use crate::scratch::Scratch;
use crate::together::{self, Gate};
use crate::uring::Loop;
use crate::{Error, Figures};
use hdrhistogram::Histogram;
use kaml_flash::AlignedBuf;
use rustix::thread::futex;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Bytes of the log, and of the pages after it if there are pages, by default; written round and round.
pub const LOG_BYTES: u64 = 256 << 20;
/// What is read at random is so many times as long as the log.
const DATA_LOGS: u64 = 8;
/// What frames are padded to by default: what every file system takes with `O_DIRECT`.
pub const SECTOR_BYTES: usize = 4096;
/// The largest sector that can be requested; where parts of a file begin.
const SECTOR_BYTES_MAX: u64 = 64 << 10;
/// Frame header: sequence (8), length (4), CRC32C of the frame's record headers (4), zeroes (16).
const FRAME_HEADER_BYTES: usize = 32;
/// Record header: key (8), length (4), CRC32C of the payload (4), zeroes (8).
const RECORD_HEADER_BYTES: usize = 24;

/// What the log is asked to do.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    /// Payload of a record.
    pub record_bytes: usize,
    /// Records per put.
    pub batch_records: usize,
    /// Blocking threads, or logical clients of the event loop.
    pub clients: usize,
    /// Writes in flight at most.
    pub writes_in_flight: usize,
    /// Frames are padded to this.
    pub sector_bytes: usize,
    /// Blocking callers: write every record again, packed into pages.
    pub pages: bool,
    /// Blocking callers: what their operations do.
    pub mix: Mix,
    /// How long.
    pub duration: Duration,
}

impl Floor {
    fn batch_bytes(&self) -> usize {
        self.batch_records * (RECORD_HEADER_BYTES + self.record_bytes)
    }

    /// Holds a put of every client at once, so no put ever waits for room.
    fn frame_bytes_max(&self) -> usize {
        (FRAME_HEADER_BYTES + self.clients * self.batch_bytes()).next_multiple_of(self.sector_bytes)
    }

    /// A file for it: the log, pages after it, and after them what is read.
    pub fn scratch(&self, dir: &Path) -> Result<Scratch, Error> {
        self.mix.check()?;
        Scratch::create(dir, self.parts() * LOG_BYTES)
    }

    /// Parts of a file, each as long as the log.
    fn parts(&self) -> u64 {
        1 + u64::from(self.pages) + if self.mix.reads > 0.0 { DATA_LOGS } else { 0 }
    }

    fn log_bytes(&self, scratch: &Scratch) -> u64 {
        scratch.bytes() / self.parts() / SECTOR_BYTES_MAX * SECTOR_BYTES_MAX
    }

    fn check(&self, log_bytes: u64) -> Result<(), Error> {
        self.mix.check()?;
        if self.clients == 0 || self.batch_records == 0 || self.writes_in_flight == 0 {
            return Err(Error::Parameters("clients, records per put and writes in flight must not be 0".into()));
        }
        if !self.sector_bytes.is_power_of_two() || !(512..=SECTOR_BYTES_MAX as usize).contains(&self.sector_bytes) {
            return Err(Error::Parameters(format!("{} B are no sector", self.sector_bytes)));
        }
        if self.frame_bytes_max() as u64 > log_bytes / 4 {
            return Err(Error::Parameters(format!(
                "{} clients with {} records of {} B do not fit the floor's log of {log_bytes} B",
                self.clients, self.batch_records, self.record_bytes
            )));
        }
        Ok(())
    }

    fn figures(&self, meter: Meter, what: &str, latencies: &Histogram<u64>) -> Figures {
        let records = latencies.len() * self.batch_records as u64;
        let mix = match self.mix {
            Mix::PUTS => String::new(),
            Mix { puts, reads } => format!(", {puts} put, {reads} read"),
        };
        let what = format!(
            "{what}{}{mix}: {} clients, {} x {} B, {} writes in flight",
            if self.pages { " and pages" } else { "" },
            self.clients,
            self.batch_records,
            self.record_bytes,
            self.writes_in_flight
        );
        meter.stop(what, records, records * self.record_bytes as u64, latencies)
    }
}

/// Blocking callers: a caller that finds the disk free leads, the others sleep until their frame is written.
pub fn blocking(dir: &Path, floor: &Floor) -> Result<Figures, Error> {
    floor.check(LOG_BYTES)?;
    blocking_on(&floor.scratch(dir)?, floor)
}

/// The same over a file that exists, of any size.
pub fn blocking_on(scratch: &Scratch, floor: &Floor) -> Result<Figures, Error> {
    let log_bytes = floor.log_bytes(scratch);
    floor.check(log_bytes)?;
    let mut log = Log::new(scratch.open(true)?, log_bytes, floor);
    let writer = match floor.pages {
        true => {
            let (pages, writer) = pages::pages(scratch, log_bytes..2 * log_bytes)?;
            log.state.get_mut().expect("nobody has it yet").pages = Some(pages);
            Some(std::thread::spawn(move || writer.run()))
        }
        false => None,
    };
    let start = Gate::new(floor.clients + 1);
    let (meter, latencies) = std::thread::scope(|scope| {
        let (log, start) = (&log, &start);
        let work = (0..floor.clients).map(|client| {
            move || {
                let data = || scratch.bytes() - DATA_LOGS * log_bytes..scratch.bytes();
                let reads = (floor.mix.reads > 0.0).then(|| mix::Reads::new(scratch, data(), floor.record_bytes));
                log.client(client, reads.transpose()?, start)
            }
        });
        let clients = together::start(scope, Some(start), work)?;
        let passed = start.pass();
        let meter = Meter::start();
        let all = together::join(clients)?.into_iter().fold(histogram(), |all, of_client| all + of_client);
        passed?;
        Ok::<_, Error>((meter, all))
    })?;
    let figures = floor.figures(meter, "floor, blocking", &latencies);
    drop(log);
    writer.map_or(Ok(()), |writer| writer.join().expect("the page writer does not panic"))?;
    Ok(figures)
}

/// The better of one and two writes in flight, for blocking callers: what the bars are measured against.
pub fn better(scratch: &Scratch, floor: &Floor) -> Result<Figures, Error> {
    best_of(floor, &[1, 2], |floor| blocking_on(scratch, floor))
}

/// The best of one, two and three writes in flight, for the event loop: KAML's own has up to three.
pub fn better_event_loop(scratch: &Scratch, floor: &Floor) -> Result<Figures, Error> {
    best_of(floor, &[1, 2, 3], |floor| event_loop_on(scratch, floor))
}

/// The best run of several numbers of writes in flight, which share the time. One client has no use for a second write.
fn best_of(
    floor: &Floor,
    writes_in_flight: &[usize],
    mut run: impl FnMut(&Floor) -> Result<Figures, Error>,
) -> Result<Figures, Error> {
    let useful = &writes_in_flight[..writes_in_flight.len().min(floor.clients.max(1))];
    let duration = floor.duration / useful.len() as u32;
    let mut runs = useful.iter().map(|&writes_in_flight| run(&Floor { writes_in_flight, duration, ..*floor }));
    let first = runs.next().ok_or_else(|| Error::Parameters("no writes in flight".into()))??;
    runs.try_fold(first, |best, next| {
        let next = next?;
        Ok(if next.operations_per_s > best.operations_per_s { next } else { best })
    })
}

/// One thread, many logical clients: each client puts again as soon as its put is durable; the whole frame is one write.
pub fn event_loop(dir: &Path, floor: &Floor) -> Result<Figures, Error> {
    floor.check(LOG_BYTES)?;
    let scratch = Scratch::create(dir, LOG_BYTES)?;
    event_loop_on(&scratch, floor)
}

/// The same over a file that exists, of any size.
pub fn event_loop_on(scratch: &Scratch, floor: &Floor) -> Result<Figures, Error> {
    floor.check(scratch.bytes())?;
    let slot_count = floor.writes_in_flight.min(floor.clients);
    let mut ring = Loop::new(scratch.open(true)?, slot_count, floor.frame_bytes_max())?;
    let payload = vec![0xa5u8; floor.record_bytes];
    let mut cursor = Cursor::new();
    let mut latencies = histogram();
    let mut frames: Vec<Frame> = (0..slot_count).map(|_| Frame::default()).collect();
    let mut done: Vec<usize> = (0..slot_count).collect();
    let meter = Meter::start();
    let begin = Instant::now();
    loop {
        let now = Instant::now();
        for slot in done.drain(..) {
            let frame = &mut frames[slot];
            for begun in frame.begun.drain(..) {
                record(&mut latencies, now - begun);
            }
            if now - begin >= floor.duration {
                continue;
            }
            let clients = floor.clients / slot_count + usize::from(slot < floor.clients % slot_count);
            let mut packer = Packer::new(ring.slot_mut(slot));
            for _ in 0..clients {
                frame.begun.push(Instant::now());
                for _ in 0..floor.batch_records {
                    packer.append(&payload);
                }
            }
            frame.len = packer.seal(cursor.sequence, floor.sector_bytes);
            let offset = cursor.advance(frame.len, scratch.bytes());
            ring.write(slot, offset, frame.len);
        }
        if ring.in_flight() == 0 {
            break;
        }
        ring.wait(|slot| frames[slot].len, &mut done)?;
    }
    Ok(floor.figures(meter, "floor, event loop", &latencies))
}

/// A frame of the event loop: when its puts began, and its padded length.
#[derive(Default)]
struct Frame {
    begun: Vec<Instant>,
    len: usize,
}

/// Where the next frame is written.
struct Cursor {
    sequence: u64,
    offset: u64,
}

impl Cursor {
    fn new() -> Cursor {
        Cursor { sequence: 1, offset: 0 }
    }

    /// Takes `len` bytes, wrapping before the end.
    fn advance(&mut self, len: usize, log_bytes: u64) -> u64 {
        let len = len as u64;
        if self.offset + len > log_bytes {
            self.offset = 0;
        }
        let offset = self.offset;
        self.offset += len;
        self.sequence += 1;
        offset
    }
}

/// Packs records into a frame.
struct Packer<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl<'a> Packer<'a> {
    fn new(bytes: &'a mut [u8]) -> Packer<'a> {
        Packer { bytes, len: FRAME_HEADER_BYTES }
    }

    fn append(&mut self, payload: &[u8]) {
        self.len += write_record(&mut self.bytes[self.len..], self.len as u64, payload);
    }

    /// Pads to the sector and fills in the header.
    fn seal(self, sequence: u64, sector_bytes: usize) -> usize {
        seal(self.bytes, self.len, sequence, sector_bytes)
    }
}

fn write_record(into: &mut [u8], key: u64, payload: &[u8]) -> usize {
    let len = RECORD_HEADER_BYTES + payload.len();
    let (header, body) = into[..len].split_at_mut(RECORD_HEADER_BYTES);
    body.copy_from_slice(payload);
    header[..8].copy_from_slice(&key.to_le_bytes());
    header[8..12].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[12..16].copy_from_slice(&kaml_crc::crc32c(body).to_le_bytes());
    header[16..].fill(0);
    len
}

fn seal(bytes: &mut [u8], len: usize, sequence: u64, sector_bytes: usize) -> usize {
    let padded = len.next_multiple_of(sector_bytes);
    bytes[len..padded].fill(0);
    let header = &mut bytes[..FRAME_HEADER_BYTES];
    header.fill(0);
    header[..8].copy_from_slice(&sequence.to_le_bytes());
    header[8..12].copy_from_slice(&(len as u32).to_le_bytes());
    let crc = kaml_crc::crc32c(&header[..12]);
    header[12..16].copy_from_slice(&crc.to_le_bytes());
    padded
}

/// The meaning of the two lowest bits of a frame's word; the other bits are the frame's number.
const WAITING: u32 = 0;
const LEAD: u32 = 1;
const DONE: u32 = 2;
const FAILED: u32 = 3;
/// A word is used again so many frames later. Leaders that are kept from running meanwhile leave it alone then; that the frame
/// they wrote last is so far back takes a pause of a tenth of a second and more.
const WORD_COUNT: u32 = 4096;

/// The log of blocking callers.
struct Log<'a> {
    file: File,
    bytes: u64,
    floor: &'a Floor,
    state: Mutex<State>,
    words: Vec<Word>,
}

/// The word that the callers of one frame sleep on, in a cache line of its own.
#[repr(align(64))]
struct Word(AtomicU32);

/// The open frame and which caller is writing.
struct State {
    open: AlignedBuf,
    /// Bytes packed into the open frame.
    len: usize,
    /// Number of the open frame.
    number: u32,
    /// Leaders, those appointed and not yet awake included.
    leader_count: usize,
    /// A waiting caller of the open frame has been appointed to write it and has not taken it yet.
    heir: bool,
    cursor: Cursor,
    spare: Vec<AlignedBuf>,
    pages: Option<pages::Pages>,
}

impl<'a> Log<'a> {
    fn new(file: File, bytes: u64, floor: &'a Floor) -> Log<'a> {
        let frame = || AlignedBuf::zeroed(floor.frame_bytes_max());
        let state = State {
            open: frame(),
            len: FRAME_HEADER_BYTES,
            number: 0,
            leader_count: 0,
            heir: false,
            cursor: Cursor::new(),
            spare: (0..floor.writes_in_flight.min(floor.clients)).map(|_| frame()).collect(),
            pages: None,
        };
        let words = (0..WORD_COUNT).map(|_| Word(AtomicU32::new(WAITING))).collect();
        Log { file, bytes, floor, state: Mutex::new(state), words }
    }

    /// Puts until time is up.
    fn client(&self, client: usize, mut reads: Option<mix::Reads>, start: &Gate) -> Result<Histogram<u64>, Error> {
        let mut rng = Rng::new(client as u64);
        let payload = vec![client as u8; self.floor.record_bytes];
        let mut batch = vec![0u8; self.floor.batch_bytes()];
        let mut latencies = histogram();
        start.pass()?;
        let begin = Instant::now();
        let mut begun = begin;
        while begun - begin < self.floor.duration {
            if let Some(reads) = &mut reads
                && rng.unit() < self.floor.mix.reads
            {
                reads.read(&mut rng).map_err(Error::io("reading the floor's data"))?;
            }
            if rng.unit() < self.floor.mix.puts {
                let mut len = 0;
                for key in 0..self.floor.batch_records {
                    len += write_record(&mut batch[len..], key as u64, &payload);
                }
                self.put(&batch).map_err(Error::io("writing the floor's log"))?;
            }
            let now = Instant::now();
            record(&mut latencies, now - begun);
            begun = now;
        }
        Ok(latencies)
    }

    /// Durable when it returns.
    fn put(&self, batch: &[u8]) -> std::io::Result<()> {
        let mut state = self.lock();
        let at = state.len;
        state.open[at..at + batch.len()].copy_from_slice(batch);
        state.len += batch.len();
        if let Some(pages) = &mut state.pages {
            pages.append(batch)?;
        }
        let number = state.number;
        if state.leader_count < self.floor.writes_in_flight && !state.heir {
            state.leader_count += 1;
            return self.lead(state);
        }
        drop(state);
        self.follow(number)
    }

    /// Writes the open frame, hands the seat on, and wakes those who wait for this frame.
    fn lead(&self, mut state: MutexGuard<'_, State>) -> std::io::Result<()> {
        let number = state.number;
        let spare = state.spare.pop().expect("a spare frame for each leader");
        let mut frame = std::mem::replace(&mut state.open, spare);
        let len = seal(&mut frame, state.len, state.cursor.sequence, self.floor.sector_bytes);
        let offset = state.cursor.advance(len, self.bytes);
        state.len = FRAME_HEADER_BYTES;
        state.number = number.wrapping_add(1) & (u32::MAX >> 2);
        self.word(state.number).store(state.number << 2 | WAITING, Ordering::Release);
        drop(state);

        let result = self.file.write_all_at(&frame[..len], offset);

        let mut state = self.lock();
        state.spare.push(frame);
        let open = state.number;
        let appoint = state.len > FRAME_HEADER_BYTES && !state.heir;
        if appoint {
            state.heir = true; // who keeps this leader's seat
            self.word(open).store(open << 2 | LEAD, Ordering::Release);
        } else {
            state.leader_count -= 1;
        }
        drop(state);
        if appoint {
            self.wake(open, 1);
        }
        let outcome = number << 2 | if result.is_ok() { DONE } else { FAILED };
        let is_ours = |word: u32| (word >> 2 == number).then_some(outcome);
        let _ = self.word(number).fetch_update(Ordering::Release, Ordering::Relaxed, is_ours);
        self.wake(number, u32::MAX >> 1);
        result
    }

    /// Sleeps until the frame is written, or its caller is appointed to write it.
    fn follow(&self, number: u32) -> std::io::Result<()> {
        let word = self.word(number);
        loop {
            let seen = word.load(Ordering::Acquire);
            if seen >> 2 != number {
                return Ok(());
            }
            match seen & 3 {
                DONE => return Ok(()),
                FAILED => return Err(std::io::Error::other("the leader's write failed")),
                LEAD => {
                    let taken = word.compare_exchange(seen, number << 2, Ordering::AcqRel, Ordering::Relaxed);
                    if taken.is_ok() {
                        let mut state = self.lock();
                        state.heir = false;
                        assert_eq!(state.number, number, "an appointed frame stays open until it is taken");
                        return self.lead(state);
                    }
                }
                _ => {
                    let _ = futex::wait(word, futex::Flags::PRIVATE, seen, None);
                }
            }
        }
    }

    fn word(&self, number: u32) -> &AtomicU32 {
        &self.words[(number % WORD_COUNT) as usize].0
    }

    fn wake(&self, number: u32, count: u32) {
        let _ = futex::wake(self.word(number), futex::Flags::PRIVATE, count);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a client panicked while holding the log")
    }
}

#[cfg(test)]
mod tests;
