//! One queue of a host: many commands in flight over one connection, from any threads.
//!
//! Lives here:       initialisation, capsules, data in both directions, which thread receives for all.
//! Lives elsewhere:  what the commands are (`controller`, `keyvalue`).
//! Implements:       spec:NVMe-TCP "Connection Establishment", "Data Transfer".
//!
//! A caller sends its command under the lock. A caller that waits for an answer and finds nobody receiving takes the framer, and
//! receives outside the lock, for all, until its own response has arrived; then it hands the framer on. So a single thread
//! never waits for another one.
//!
//! An event loop enqueues commands, sends them together, and polls for completions; nobody else needs to wait.

use super::Error;
use super::secure::{HostKey, Secured};
use crate::tls::Psk;
use crate::transport::framer::{Event, Framer};
use crate::transport::outbox::Outbox;
use crate::transport::{Digests, End};
use crate::wire::command::{Command, Completion, Direction, Sgl};
use crate::wire::pdu::{Fatal, Header, Init, Transfer};
use crate::wire::status::Status;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::io::Write;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How long the peer may take for each step of connecting.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Memory of data of this length and more is kept for the next ones, so many times at most.
const SPARE_BYTES_MIN: usize = 64 << 10;
const SPARE_MAX: usize = 8;

/// What a command came to, with what was sent for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// The status.
    pub status: Status,
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// Data from the controller, as many as it sent.
    pub data: Vec<u8>,
}

impl Finished {
    /// Itself, if the command was executed.
    pub fn success(self) -> Result<Finished, Error> {
        if self.status.is_success() { Ok(self) } else { Err(Error::Status(self.status)) }
    }
}

/// Names a command in flight; its answer must be waited for.
#[must_use = "the command's place is in use until its answer is waited for"]
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket(u16);

impl Ticket {
    /// Its place among the commands in flight on the queue: less than the queue's depth.
    pub fn place(&self) -> usize {
        usize::from(self.0)
    }
}

/// Whether a call may wait for the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It may.
    Yes,
    /// It takes what exists.
    No,
}

struct InFlight {
    /// Data that the controller may still request.
    sending: Vec<u8>,
    /// What it has sent.
    received: Vec<u8>,
    got: usize,
    finished: Option<Finished>,
    /// It completes by [`Queue::poll`].
    polled: bool,
}

struct State {
    /// With nobody: a caller that needs to receive takes it.
    framer: Option<Framer>,
    outbox: Outbox,
    /// By command identifier.
    in_flight: Vec<Option<InFlight>>,
    free: Vec<u16>,
    /// Commands that are finished and to be polled.
    polled: Vec<u16>,
    /// What the data that arrive belong to, and what they end.
    arriving: Option<(u16, usize, bool)>,
    data_pdu_bytes_max: usize,
    capsule_bytes_max: usize,
    /// Memory of long data whose command has completed, for the next ones.
    spare: Vec<Vec<u8>>,
    /// Threads that wait for something to change: notifying nobody costs a system call all the same.
    waiting: usize,
    /// Why nothing can be sent or received any more.
    lost: Option<String>,
}

/// See the module.
pub struct Queue {
    socket: TcpStream,
    /// Of one that is encrypted.
    secured: Option<Secured>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    /// Makes a connection for up to `depth` commands in flight and initialises it; digests as requested, if the target agrees.
    pub fn open(address: &str, depth: u16, digests: Digests) -> Result<Queue, Error> {
        Queue::open_with(address, depth, digests, None)
    }

    /// The same, encrypted with the key of a host of this name for a subsystem.
    ///
    /// # Errors
    /// [`Error::NotSecured`] if the target does not use TLS or does not accept the key, or this build has no TLS; [`Error::Connection`] if it
    /// cannot be reached.
    pub fn open_secured(
        address: &str,
        depth: u16,
        digests: Digests,
        key: &HostKey,
        host: &str,
        subsystem: &str,
    ) -> Result<Queue, Error> {
        Queue::open_with(address, depth, digests, Some(key.psk(host, subsystem)?))
    }

    /// Encrypted with a key if there is one.
    pub(super) fn open_with(address: &str, depth: u16, digests: Digests, psk: Option<Psk>) -> Result<Queue, Error> {
        let mut failed = Error::Connection(format!("{address}: no such host"));
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(socket) => return Queue::initialise(socket, depth, digests, psk),
                Err(error) => failed = Error::Connection(format!("{address}: {error}")),
            }
        }
        Err(failed)
    }

    fn initialise(socket: TcpStream, depth: u16, digests: Digests, psk: Option<Psk>) -> Result<Queue, Error> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(CONNECT_TIMEOUT))?;
        let secured = psk.map(|psk| Secured::begin(&socket, psk)).transpose()?;
        let (mut framer, mut outbox) = (Framer::new(End::Host), Outbox::new(End::Host));
        let init =
            Init { format: 0.into(), alignment: 0, digests: digests.bits(), limit: 0.into(), reserved: [0; 112] };
        outbox.push(&Header::InitRequest(init));
        flush(&socket, secured.as_ref(), &mut outbox)?;
        let answer = loop {
            match framer.next_event()? {
                Some(Event::Header(Header::InitResponse(answer), 0)) => break answer,
                Some(_) => return Err(Fatal::Sequence.into()),
                None => receive(&socket, secured.as_ref(), &mut framer, Wait::Yes)
                    .map_err(|error| unwelcome(error, secured.is_some()))?,
            }
        };
        let agreed = Digests::from_bits(answer.digests);
        if answer.format != 0 || answer.alignment != 0 || answer.limit.get() < 4096 || agreed != digests {
            return Err(Fatal::Unsupported { offset: 8 }.into());
        }
        socket.set_read_timeout(None)?;
        framer.set_digests(agreed);
        outbox.set_digests(agreed);
        let state = State {
            framer: Some(framer),
            outbox,
            in_flight: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            polled: Vec::new(),
            arriving: None,
            data_pdu_bytes_max: answer.limit.get() as usize,
            capsule_bytes_max: 8192, // what every controller takes for Connect
            spare: Vec::new(),
            waiting: 0,
            lost: None,
        };
        Ok(Queue { socket, secured, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// The connection is lost when somebody waits and nothing has come for so long.
    pub(super) fn set_silence_max(&self, silence: Duration) -> Result<(), Error> {
        Ok(self.socket.set_read_timeout(Some(silence))?)
    }

    /// Its socket, for shutting it down: a caller that waits for an answer learns that the connection is lost.
    pub(super) fn socket(&self) -> Result<TcpStream, Error> {
        Ok(self.socket.try_clone()?)
    }

    /// The controller's limit for I/O queues: how many bytes of data a capsule may carry.
    pub fn set_capsule_bytes(&self, bytes: usize) {
        self.lock().capsule_bytes_max = bytes;
    }

    /// Executes one command: `data` go to the controller, at most `room` bytes are taken from it.
    pub fn execute(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error> {
        let ticket = self.submit(command, data, room)?;
        self.wait(ticket)
    }

    /// Sends a command, waiting while as many as the queue takes are in flight. Several tickets of one thread must leave
    /// room for those of others.
    pub fn submit(&self, command: Command, data: &[u8], room: usize) -> Result<Ticket, Error> {
        let mut state = self.lock();
        loop {
            state.check()?;
            if let Some(cid) = state.free.pop() {
                return Ok(self.start(&mut state, cid, command, data, room));
            }
            state = match state.in_flight.iter().flatten().any(|command| command.finished.is_some()) {
                // It releases its place without anything being received.
                true => self.wait_for_others(state),
                false => self.progress(state, Wait::Yes),
            };
        }
    }

    /// Sends a command; nothing if as many as the queue takes are in flight.
    pub fn try_submit(&self, command: Command, data: &[u8], room: usize) -> Result<Option<Ticket>, Error> {
        let mut state = self.lock();
        state.check()?;
        let cid = state.free.pop();
        Ok(cid.map(|cid| self.start(&mut state, cid, command, data, room)))
    }

    fn start(&self, state: &mut State, cid: u16, command: Command, data: &[u8], room: usize) -> Ticket {
        state.start(cid, command, data, room, false);
        self.flush(state);
        Ticket(cid)
    }

    /// Puts a command in, to be sent by the next [`Queue::poll`] and completed by one; nothing if as many as the queue takes
    /// are in flight.
    pub fn enqueue(&self, command: Command, data: &[u8], room: usize) -> Result<Option<Ticket>, Error> {
        let mut state = self.lock();
        state.check()?;
        let Some(cid) = state.free.pop() else { return Ok(None) };
        state.start(cid, command, data, room, true);
        Ok(Some(Ticket(cid)))
    }

    /// Sends what is enqueued, now rather than with the next poll.
    pub fn send(&self) -> Result<(), Error> {
        let mut state = self.lock();
        self.flush(&mut state);
        state.check()
    }

    /// Sends what is enqueued, and appends its completions; if it can wait, at least one. Something enqueued
    /// must be in flight then.
    pub fn poll(&self, wait: Wait, out: &mut Vec<(Ticket, Finished)>) -> Result<(), Error> {
        let before = out.len();
        let mut state = self.lock();
        self.flush(&mut state);
        loop {
            state.check()?;
            for cid in std::mem::take(&mut state.polled) {
                let in_flight = state.in_flight[usize::from(cid)].take();
                state.free.push(cid);
                self.notify_waiters(&state);
                out.extend(in_flight.and_then(|command| Some((Ticket(cid), command.finished?))));
            }
            if out.len() > before {
                return Ok(());
            }
            state = self.progress(state, wait);
            if wait == Wait::No && state.polled.is_empty() {
                return Ok(());
            }
        }
    }

    /// Waits for a command's answer.
    pub fn wait(&self, ticket: Ticket) -> Result<Finished, Error> {
        let place = usize::from(ticket.0);
        let mut state = self.lock();
        loop {
            let in_flight = state.in_flight[place].as_mut().expect("a ticket is waited for once");
            let finished = in_flight.finished.take();
            if finished.is_some() || state.lost.is_some() {
                state.in_flight[place] = None;
                state.free.push(ticket.0);
                self.notify_waiters(&state);
                let why = state.lost.clone().unwrap_or_default();
                return finished.ok_or(Error::Connection(why));
            }
            state = self.progress(state, Wait::Yes);
        }
    }

    /// Takes back the memory of an answer's data, for the next ones, if it is worth it: fresh memory costs more than what is
    /// received into it.
    pub fn recycle(&self, data: Vec<u8>) {
        if data.capacity() >= SPARE_BYTES_MIN {
            let mut state = self.lock();
            if state.spare.len() < SPARE_MAX {
                state.spare.push(data);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panics under this lock")
    }

    /// Receives once, for all; or waits until somebody else has, if it may wait.
    fn progress<'a>(&'a self, mut state: MutexGuard<'a, State>, wait: Wait) -> MutexGuard<'a, State> {
        let Some(mut framer) = state.framer.take() else {
            return if wait == Wait::Yes { self.wait_for_others(state) } else { state };
        };
        drop(state);
        let received = receive(&self.socket, self.secured.as_ref(), &mut framer, wait);
        let mut state = self.lock();
        let mut handled = received.and_then(|()| Ok(state.handle(&mut framer)?));
        // What is decrypted already makes no socket readable: a caller that waits for that must find nothing left.
        while let (Ok(()), Some(secured)) = (&handled, &self.secured)
            && secured.has_unread()
        {
            handled = secured.take(&mut framer).and_then(|()| Ok(state.handle(&mut framer)?));
        }
        state.framer = Some(framer);
        if let Err(error) = handled {
            state.lost.get_or_insert(error.to_string());
        }
        self.flush(&mut state);
        self.notify_waiters(&state);
        state
    }

    /// Waits until another thread has changed something.
    fn wait_for_others<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.waiting += 1;
        state = self.changed.wait(state).expect("no panics under this lock");
        state.waiting -= 1;
        state
    }

    /// Wakes all who wait for something to change.
    fn notify_waiters(&self, state: &State) {
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    fn flush(&self, state: &mut State) {
        if let Err(error) = flush(&self.socket, self.secured.as_ref(), &mut state.outbox) {
            state.lost.get_or_insert(error.to_string());
            self.notify_waiters(state);
        }
    }
}

impl AsFd for Queue {
    /// For waiting until there is something to poll.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // The peer notices in any case.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

/// A target that ends the connection before anything else may require TLS.
fn unwelcome(error: Error, is_secured: bool) -> Error {
    match error {
        Error::Connection(why) if !is_secured => {
            Error::Connection(format!("{why}; if it requires TLS, give the key of this host (--tls-key-file)"))
        }
        other => other,
    }
}

fn flush(mut socket: &TcpStream, secured: Option<&Secured>, outbox: &mut Outbox) -> Result<(), Error> {
    if let Some(secured) = secured {
        return secured.flush(socket, outbox);
    }
    while outbox.bytes() > 0 {
        let count = socket.write_vectored(&outbox.slices())?;
        outbox.sent(count);
    }
    Ok(())
}

fn receive(socket: &TcpStream, secured: Option<&Secured>, framer: &mut Framer, wait: Wait) -> Result<(), Error> {
    if let Some(secured) = secured {
        return secured.receive(socket, framer, wait);
    }
    let mut looks = if wait == Wait::Yes && framer.is_within() { LOOKS } else { 0 };
    loop {
        let sleeps = wait == Wait::Yes && looks == 0;
        let flags = if sleeps { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        return match rustix::net::recv(socket, framer.space(), flags) {
            Ok((_, 0)) => Err(Error::Connection("closed by the target".into())),
            Ok((_, count)) => {
                framer.received(count);
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(Errno::AGAIN) if looks > 0 => {
                looks -= 1;
                (0..RESTS).for_each(|_| std::hint::spin_loop());
                continue;
            }
            Err(Errno::AGAIN) if wait == Wait::No => Ok(()),
            Err(Errno::AGAIN) => Err(Error::Connection("the target is silent".into())),
            Err(error) => Err(std::io::Error::from(error).into()),
        };
    }
}

/// A caller that waits for the remainder of a PDU looks for it so often before it sleeps, some 50 µs: it is on its way, and waking a sleeper for each piece
/// takes the sender longer than sending it.
const LOOKS: u32 = 64;
/// Between two looks: a look takes the lock that a sender on another core needs.
const RESTS: u32 = 20;

impl State {
    fn check(&self) -> Result<(), Error> {
        self.lost.as_ref().map_or(Ok(()), |why| Err(Error::Connection(why.clone())))
    }

    /// Hands a command to the outbox, under an identifier that is free.
    fn start(&mut self, cid: u16, mut command: Command, data: &[u8], room: usize, polled: bool) {
        command.cid = cid.into();
        let in_capsule =
            command.direction() == Direction::In && data.len() <= self.capsule_bytes_max && !data.is_empty();
        let moved = if command.direction() == Direction::In { data.len() } else { room };
        command.sgl = if in_capsule { Sgl::in_capsule(moved as u32) } else { Sgl::transport(moved as u32) };
        let sending = if in_capsule { Vec::new() } else { data.to_vec() };
        let received = if command.direction() == Direction::Out { self.memory(room) } else { Vec::new() };
        self.in_flight[usize::from(cid)] = Some(InFlight { sending, received, got: 0, finished: None, polled });
        match in_capsule {
            true => self.outbox.push_copy(&Header::Command(command), data),
            false => self.outbox.push(&Header::Command(command)),
        }
    }

    /// This many bytes, whatever they are: no more of them are used than are received.
    fn memory(&mut self, bytes: usize) -> Vec<u8> {
        let spare = if bytes >= SPARE_BYTES_MIN { self.spare.pop() } else { None };
        let Some(mut memory) = spare else { return vec![0; bytes] };
        memory.resize(bytes, 0);
        memory
    }

    fn handle(&mut self, framer: &mut Framer) -> Result<(), Fatal> {
        while let Some(event) = framer.next_event()? {
            match event {
                Event::Header(Header::Response(completion), 0) => self.complete(completion)?,
                Event::Header(Header::ReadyToTransfer(transfer), 0) => self.send_data(&transfer)?,
                Event::Header(Header::DataOut(transfer, last, success), bytes) => {
                    self.place(framer, &transfer, last && success, bytes)?;
                }
                Event::Data(data, intact) => self.placed(data, intact)?,
                Event::Header(..) => return Err(Fatal::Sequence),
            }
        }
        Ok(())
    }

    fn command(&mut self, cid: u16) -> Result<&mut InFlight, Fatal> {
        let found = self.in_flight.get_mut(usize::from(cid)).and_then(Option::as_mut);
        found.filter(|found| found.finished.is_none()).ok_or(Fatal::Field { offset: 8 })
    }

    fn complete(&mut self, completion: Completion) -> Result<(), Fatal> {
        let in_flight = self.command(completion.cid.get())?;
        let mut data = std::mem::take(&mut in_flight.received);
        data.truncate(in_flight.got);
        in_flight.finished = Some(Finished { status: completion.status(), result: completion.result.get(), data });
        if in_flight.polled {
            self.polled.push(completion.cid.get());
        }
        Ok(())
    }

    /// Sends the data that the controller requests.
    fn send_data(&mut self, asked: &Transfer) -> Result<(), Fatal> {
        let step = self.data_pdu_bytes_max;
        let (begin, length) = (asked.offset.get() as usize, asked.length.get() as usize);
        let data = std::mem::take(&mut self.command(asked.cid.get())?.sending);
        let range = data.get(begin..).and_then(|rest| rest.get(..length)).filter(|range| !range.is_empty());
        for (number, piece) in range.ok_or(Fatal::Range)?.chunks(step).enumerate() {
            let offset = begin + number * step;
            let transfer = Transfer { offset: (offset as u32).into(), length: (piece.len() as u32).into(), ..*asked };
            self.outbox.push_with(&Header::DataIn(transfer, offset + piece.len() == begin + length), piece.to_vec());
        }
        self.command(asked.cid.get())?.sending = data;
        Ok(())
    }

    fn place(&mut self, framer: &mut Framer, transfer: &Transfer, ends: bool, bytes: usize) -> Result<(), Fatal> {
        let cid = transfer.cid.get();
        let in_flight = self.command(cid)?;
        let at = transfer.offset.get() as usize;
        if bytes == 0 || transfer.length.get() as usize != bytes {
            return Err(Fatal::Field { offset: 16 });
        }
        if at != in_flight.got || bytes > in_flight.received.len() - at {
            return Err(Fatal::Range);
        }
        framer.place(std::mem::take(&mut in_flight.received), at);
        self.arriving = Some((cid, bytes, ends));
        Ok(())
    }

    fn placed(&mut self, data: Vec<u8>, intact: bool) -> Result<(), Fatal> {
        let (cid, bytes, ends) = self.arriving.take().ok_or(Fatal::Sequence)?;
        let in_flight = self.command(cid)?;
        in_flight.received = data;
        in_flight.got += bytes;
        if !intact {
            // Data that were sent wrong are not used, whatever the completion reports.
            return Err(Fatal::Range);
        }
        if ends { self.complete(Completion::new(cid, 0, Status::SUCCESS, 0)) } else { Ok(()) }
    }
}
