//! What a backup and its host hand to each other: the stream one way, the base the other way, both bounded.
//!
//! Lives here:       pieces that wait for the host, parts of the base that wait for the backup, how far both are, the end.
//! Lives elsewhere:  the commands, and the thread that takes the backup (`backup`); what is sent (`wire::backup`).
//!
//! The event loop never waits here: it takes what there is. The backup waits for its host, and gives up when it has heard nothing of it for
//! long. So neither a snapshot nor memory outlives a host that is gone.

use crate::wire::backup::{BackupPage, BackupState, HEAD_BYTES, PIECE_BYTES_MAX, Place};
use crate::wire::status::Status;
use std::collections::VecDeque;
use std::io::{Error, Read, Result, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Bytes of the stream that wait for the host: a host that pauses for some milliseconds does not hold up the backup.
const STREAM_BYTES_MAX: usize = 8 << 20;
/// Bytes of the base that wait for the backup, before a part of at most 1 MiB is added.
const BASE_BYTES_MAX: usize = 1 << 20;
/// Bytes of the text that reports why a backup has failed.
const TEXT_BYTES_MAX: usize = 1 << 10;
/// A host that sends no command of its backup for so long has lost it.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Why a backup has failed.
pub(super) struct Failure {
    pub(super) status: Status,
    pub(super) text: String,
}

/// See the module.
pub(super) struct Pipe {
    state: Mutex<State>,
    has_changed: Condvar,
    /// Bytes of the stream in each piece but the last.
    piece_bytes: usize,
    silence_max: Duration,
}

struct State {
    /// Pieces of the stream, each after room for the head of a page.
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the stream that the host has.
    taken: u64,
    base: Base,
    done: u64,
    total: u64,
    /// How it ended, and with how many bytes of flash read.
    end: Option<std::result::Result<u64, Failure>>,
    /// The host has read the end.
    is_delivered: bool,
    /// Nobody needs it any more.
    is_over: bool,
    /// When the host sent its last command that was the next one.
    heard: Instant,
}

/// Parts of the base that wait to be read.
struct Base {
    parts: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Bytes that have come.
    got: u64,
    /// No part is missing.
    is_whole: bool,
}

impl Pipe {
    pub(super) fn new(piece_bytes: usize, has_base: bool, silence_max: Duration) -> Pipe {
        let base = Base { parts: VecDeque::new(), bytes: 0, got: 0, is_whole: !has_base };
        let state = State {
            pieces: VecDeque::new(),
            taken: 0,
            base,
            done: 0,
            total: 0,
            end: None,
            is_delivered: false,
            is_over: false,
            heard: Instant::now(),
        };
        Pipe { state: Mutex::new(state), has_changed: Condvar::new(), piece_bytes, silence_max }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panics under this lock")
    }

    // --- for the event loop -------------------------------------------------------------------------------------------

    /// The next page: a piece of the stream that begins at a place, if there is one. Does not wait.
    pub(super) fn take(&self, place: Place, room: usize) -> std::result::Result<Vec<u8>, Status> {
        let mut state = self.begun()?;
        if room < HEAD_BYTES + self.piece_bytes {
            return Err(Status::SGL_LENGTH);
        }
        if place.offset != state.taken {
            return Err(Status::INVALID_FIELD);
        }
        if let Some(Err(_)) = state.end {
            state.pieces.clear();
        }
        let mut data = state.pieces.pop_front().unwrap_or_else(|| vec![0; HEAD_BYTES]);
        state.taken += (data.len() - HEAD_BYTES) as u64;
        let end = if state.pieces.is_empty() { state.end.as_ref() } else { None };
        let how = match end {
            None => BackupState::Running,
            Some(Ok(read_bytes)) => BackupState::Whole(*read_bytes),
            Some(Err(Failure { status, text })) => BackupState::Failed(*status, shortened(text)),
        };
        let needs_base = state.end.is_none() && !state.base.is_whole && state.base.bytes < BASE_BYTES_MAX;
        // A host that owes the base all that there is to read must send it.
        if !needs_base || state.base.bytes > 0 || data.len() > HEAD_BYTES {
            state.heard = Instant::now();
        }
        let page = BackupPage { state: how, needs_base, done: state.done, total: state.total };
        state.is_delivered |= page.state != BackupState::Running;
        page.encode(&mut data);
        self.has_changed.notify_all();
        Ok(data)
    }

    /// Takes a part of the base that belongs at a place. Does not wait.
    pub(super) fn give_base(&self, place: Place, part: &[u8]) -> std::result::Result<(), Status> {
        let mut state = self.begun()?;
        let base = &mut state.base;
        if base.is_whole || place.offset != base.got {
            return Err(Status::INVALID_FIELD);
        }
        if part.len() > PIECE_BYTES_MAX as usize {
            return Err(Status::SGL_LENGTH);
        }
        if base.bytes >= BASE_BYTES_MAX {
            return Err(Status::COMMAND_SEQUENCE); // it was not requested
        }
        base.got += part.len() as u64;
        base.is_whole = place.is_last;
        if !part.is_empty() {
            base.bytes += part.len();
            base.parts.push_back(part.to_vec());
        }
        state.heard = Instant::now();
        self.has_changed.notify_all();
        Ok(())
    }

    /// Nobody needs the backup any more.
    pub(super) fn give_up(&self) {
        self.lock().give_up();
        self.has_changed.notify_all();
    }

    /// Whether its host has read how it ended: its thread ends at once.
    pub(super) fn is_delivered(&self) -> bool {
        self.lock().is_delivered
    }

    /// The state, unless the backup is given up.
    fn begun(&self) -> std::result::Result<MutexGuard<'_, State>, Status> {
        let state = self.lock();
        if state.is_over { Err(Status::NO_SUCH_BACKUP) } else { Ok(state) }
    }

    // --- for the backup -----------------------------------------------------------------------------------------------

    /// Whether nobody needs the backup any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_over_in(&mut self.lock())
    }

    fn is_over_in(&self, state: &mut State) -> bool {
        if !state.is_over && !state.is_delivered && state.heard.elapsed() >= self.silence_max {
            tracing::info!(seconds = self.silence_max.as_secs(), "the host of a backup is silent: the backup ends");
            state.give_up();
        }
        state.is_over
    }

    /// So much of the device is done.
    pub(super) fn advance(&self, done: u64, total: u64) {
        let mut state = self.lock();
        (state.done, state.total) = (done, total);
    }

    /// The backup has ended. Waits until the host has read that.
    pub(super) fn end(&self, how: std::result::Result<u64, Failure>) {
        self.lock().end = Some(how);
        let _ = self.wait(|state| state.is_delivered.then_some(())); // or nobody does
    }

    /// Waits until there is something, as long as the host is heard of.
    fn wait<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> Result<T> {
        let mut state = self.lock();
        loop {
            if self.is_over_in(&mut state) {
                return Err(Error::other("the host of the backup is gone"));
            }
            if let Some(found) = look(&mut state) {
                self.has_changed.notify_all();
                return Ok(found);
            }
            let left = self.silence_max.saturating_sub(state.heard.elapsed());
            state = self.has_changed.wait_timeout(state, left).expect("no panics under this lock").0;
        }
    }
}

impl State {
    fn give_up(&mut self) {
        self.is_over = true;
        self.pieces = VecDeque::new();
        self.base.parts = VecDeque::new();
    }
}

/// As much of a text as a page has room for.
fn shortened(text: &str) -> String {
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].to_owned()
}

/// The stream, on its way into a pipe.
pub(super) struct StreamIn {
    pipe: Arc<Pipe>,
    /// What there is of the next piece.
    piece: Vec<u8>,
}

impl StreamIn {
    pub(super) fn new(pipe: Arc<Pipe>) -> StreamIn {
        StreamIn { pipe, piece: Vec::new() }
    }
}

impl Write for StreamIn {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let whole = HEAD_BYTES + self.pipe.piece_bytes;
        if self.piece.is_empty() {
            self.piece = Vec::with_capacity(whole);
            self.piece.resize(HEAD_BYTES, 0);
        }
        let count = bytes.len().min(whole - self.piece.len());
        self.piece.extend_from_slice(&bytes[..count]);
        if self.piece.len() == whole {
            self.flush()?;
        }
        Ok(count)
    }

    /// Hands over what there is, when there is room.
    fn flush(&mut self) -> Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece_count_max = (STREAM_BYTES_MAX / self.pipe.piece_bytes).max(1);
        let mut piece = Some(std::mem::take(&mut self.piece));
        self.pipe.wait(|state| {
            let has_room = state.pieces.len() < piece_count_max;
            if has_room { piece.take().map(|piece| state.pieces.push_back(piece)) } else { None }
        })
    }
}

/// The base, on its way out of a pipe.
pub(super) struct BaseOut {
    pipe: Arc<Pipe>,
    part: Vec<u8>,
    /// Bytes of the part that were read.
    read: usize,
}

impl BaseOut {
    pub(super) fn new(pipe: Arc<Pipe>) -> BaseOut {
        BaseOut { pipe, part: Vec::new(), read: 0 }
    }
}

impl Read for BaseOut {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        if self.read == self.part.len() {
            let next = self.pipe.wait(|state| match state.base.parts.pop_front() {
                Some(part) => {
                    state.base.bytes -= part.len();
                    Some(Some(part))
                }
                None => state.base.is_whole.then_some(None),
            })?;
            let Some(next) = next else { return Ok(0) };
            (self.part, self.read) = (next, 0);
        }
        let count = into.len().min(self.part.len() - self.read);
        into[..count].copy_from_slice(&self.part[self.read..][..count]);
        self.read += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    fn at(offset: u64) -> Place {
        Place { backup: 1, offset, is_last: false }
    }

    fn pipe(piece_bytes: usize, silence_max: Duration) -> Arc<Pipe> {
        Arc::new(Pipe::new(piece_bytes, true, silence_max))
    }

    /// Goal:   a stream that is larger than the pipe comes out as it went in, the pipe never has more than its bound, and a place that was read
    ///         is not read again.
    /// Method: 40 MiB, a reader that is slower than the writer.
    #[test]
    fn streams_pass_and_are_bounded() {
        let pipe = pipe(1 << 20, SOON);
        let stream: Vec<u8> = (0..40u32 << 20).map(|at| (at >> 3 ^ at >> 17) as u8).collect();
        let (writer, written) = (Arc::clone(&pipe), stream.clone());
        let thread = std::thread::spawn(move || {
            let mut into = StreamIn::new(Arc::clone(&writer));
            written.chunks(333_333).for_each(|some| into.write_all(some).unwrap());
            into.flush().unwrap();
            writer.advance(7, 9);
            writer.end(Ok(5));
        });
        let (mut got, mut most) = (Vec::new(), 0);
        loop {
            std::thread::sleep(Duration::from_millis(1));
            most = most.max(pipe.lock().pieces.len());
            let data = pipe.take(at(got.len() as u64), HEAD_BYTES + (1 << 20)).unwrap();
            let (page, bytes) = BackupPage::decode(&data).unwrap();
            got.extend_from_slice(&data[HEAD_BYTES..][..bytes]);
            if page.state != BackupState::Running {
                assert_eq!((page.state, page.done, page.total), (BackupState::Whole(5), 7, 9));
                break;
            }
        }
        thread.join().unwrap();
        assert!(got == stream && most <= 8, "{} bytes, {most} pieces", got.len());
        assert_eq!(pipe.take(at(5), HEAD_BYTES + (1 << 20)), Err(Status::INVALID_FIELD));
        assert_eq!(pipe.take(at(got.len() as u64), HEAD_BYTES), Err(Status::SGL_LENGTH));
    }

    /// Goal:   a base passes in parts, no more of them than are requested, and none after the last.
    #[test]
    fn bases_pass_and_are_bounded() {
        let pipe = pipe(4096, SOON);
        let needs = || BackupPage::decode(&pipe.take(at(0), 8192).unwrap()).unwrap().0.needs_base;
        let part = vec![3; 1 << 20];
        assert!(needs());
        pipe.give_base(at(0), &part).unwrap();
        assert!(!needs());
        assert_eq!(pipe.give_base(at(1 << 20), &part), Err(Status::COMMAND_SEQUENCE));
        let mut out = BaseOut::new(Arc::clone(&pipe));
        out.read_exact(&mut vec![0; 1000]).unwrap();
        assert!(needs());
        assert_eq!(pipe.give_base(at(5), &part), Err(Status::INVALID_FIELD));
        pipe.give_base(Place { is_last: true, ..at(1 << 20) }, b"end").unwrap();
        assert_eq!(pipe.give_base(at((1 << 20) + 3), b"more"), Err(Status::INVALID_FIELD));
        let mut rest = Vec::new();
        out.read_to_end(&mut rest).unwrap();
        assert_eq!((rest.len(), &rest[rest.len() - 4..]), ((1 << 20) - 1000 + 3, &[3, b'e', b'n', b'd'][..]));
    }

    /// Goal:   a backup whose host is silent ends in each of its waits, and one that is given up ends at once.
    /// Method: a pipe that is full, a base that does not come though its host reads, an end that is not read, with a short silence; the same given up.
    #[test]
    fn backups_of_silent_hosts_end() {
        type Waits = fn(&Arc<Pipe>);
        let waits: [Waits; 4] = [
            |pipe| assert!(StreamIn::new(Arc::clone(pipe)).write_all(&vec![1; 9 << 20]).is_err()),
            |pipe| assert!(BaseOut::new(Arc::clone(pipe)).read(&mut [0; 8]).is_err()),
            |pipe| {
                let reading = Arc::clone(pipe);
                let host = std::thread::spawn(move || while reading.take(at(0), 2 << 20).is_ok() {});
                assert!(BaseOut::new(Arc::clone(pipe)).read(&mut [0; 8]).is_err(), "a host that sends no base");
                host.join().unwrap();
            },
            |pipe| pipe.end(Ok(0)),
        ];
        for wait in waits {
            let silent = pipe(1 << 20, Duration::from_millis(100));
            let begin = Instant::now();
            wait(&silent);
            assert!(begin.elapsed() >= Duration::from_millis(90) && silent.is_over());
            assert_eq!(silent.take(at(0), 2 << 20), Err(Status::NO_SUCH_BACKUP));
            assert!(silent.lock().pieces.is_empty());
            let given_up = pipe(1 << 20, SOON);
            let other = Arc::clone(&given_up);
            let thread = std::thread::spawn(move || wait(&other));
            std::thread::sleep(Duration::from_millis(20));
            given_up.give_up();
            thread.join().unwrap();
        }
    }

    /// Goal:   the reason of a failure arrives whole, or cut where a character ends.
    #[test]
    fn failures_have_their_reason() {
        let pipe = pipe(4096, SOON);
        let text = "ü".repeat(2000);
        let other = Arc::clone(&pipe);
        let thread = std::thread::spawn(move || other.end(Err(Failure { status: Status::WRONG_BASE, text })));
        let page = loop {
            let (page, _) = BackupPage::decode(&pipe.take(at(0), 8192).unwrap()).unwrap();
            if page.state != BackupState::Running {
                break page;
            }
        };
        thread.join().unwrap();
        assert_eq!(page.state, BackupState::Failed(Status::WRONG_BASE, "ü".repeat(512)));
    }
}
