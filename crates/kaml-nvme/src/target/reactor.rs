//! The event loop: sockets, the device's completions, time, all in one wait.
//!
//! Lives here:       accepting, whose turn it is, closing, time-outs.
//! Lives elsewhere:  one socket (`link`), what the bytes mean (`connection`), what commands do (`core`).
//! Implements:       docs/nvme.md "How it works".
//!
//! One round: wait; receive once from every link that has something; execute some commands of each, collect what the
//! device has done, send once to every link that has answers, and so on until all that came is executed. So many
//! commands share each system call and each ring write.

use super::budget::Budget;
use super::connection::Connection;
use super::control::Control;
use super::core::Target;
use super::engine::{After, Reply};
use super::link::{BY_HOST, LINGER_MAX, Link, closed_by_hosts};
use super::monitor::Monitor;
use super::options::Security;
use super::secure::{Opened, Secure};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt;
use std::collections::BTreeMap;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time-outs and namespaces are looked after this often, while anybody is connected.
const TICK: Duration = Duration::from_millis(500);
/// A link must have connected to a controller after this time, unless the target puts that off.
const GREETING_MAX: Duration = Duration::from_secs(10);
/// A host that owes us the remainder of a PDU, or does not take our answers, may be silent for so long.
const STALL_MAX: Duration = Duration::from_secs(30);
/// After so much silence of a host, the system probes whether it still exists; after as long again it counts as gone.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Ticks for which the data of one command may be on their way when somebody else has waited for memory for this many: hosts give
/// commands up after 30 seconds.
const HELD_TICKS_MAX: u32 = 20;
const WAITING_TICKS_MAX: u32 = 10;
/// A connection that has waited for memory for this many ticks has its turn before others.
const TURN_TICKS: u32 = 2;
/// How long to look for the next command before sleeping: about what it takes to fall asleep and be woken on another core.
const LOOK_MAX: Duration = Duration::from_micros(50);
/// Looks at the link that was heard last between two waits, which look at all others.
const LOOKS: usize = 16;
/// Rests of the processor between two of them: a look takes the socket's lock, which a sender on another core needs.
const RESTS: usize = 32;
/// Times in a row that a command is found so, before all others are looked at: a host that never rests must not have the
/// target for itself.
const FOUND_IN_A_ROW_MAX: usize = 8;
/// How often to look after a device's queue that cannot show when it has something.
const BLIND_WAIT: Duration = Duration::from_millis(1);
/// Events taken from one wait.
const EVENTS_MAX: usize = 256;

/// Why a link ends whose controller does.
const CONTROLLER_ENDED: &str = "its controller has ended or was reset";

const LISTENER: u64 = u64::MAX;
const DEVICE: u64 = u64::MAX - 1;
const WORKERS: u64 = u64::MAX - 2;
const STOP: u64 = u64::MAX - 3;
const AUTHENTICATION: u64 = u64::MAX - 4;
const CONTROL: u64 = u64::MAX - 5;

/// Stops a running target from any thread.
#[derive(Clone)]
pub struct Stopper {
    asked: Arc<AtomicBool>,
    event: Arc<OwnedFd>,
}

impl Stopper {
    pub(crate) fn new() -> io::Result<Stopper> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Stopper { asked: Arc::default(), event: Arc::new(event) })
    }

    /// The target completes what is in flight, closes its links and ends.
    pub fn stop(&self) {
        self.asked.store(true, Ordering::Release);
        // The counter cannot overflow: it would take 2^64 calls.
        let _ = rustix::io::write(&*self.event, &1u64.to_ne_bytes());
    }
}

/// See the module.
pub(crate) struct Reactor {
    epoll: OwnedFd,
    listeners: Vec<(TcpListener, Security)>,
    target: Target,
    budget: Budget,
    links: BTreeMap<u64, Link>,
    next_link: u64,
    touched: Vec<u64>,
    /// No descriptor is left for new connections: they are accepted again with the next tick.
    accept_paused: bool,
    /// The link that has waited for memory longest, if that is too long.
    turn: Option<u64>,
    /// Links that have more commands to execute.
    unfinished: Vec<u64>,
    /// Links of which something can be taken that was received before.
    unread: Vec<u64>,
    stopper: Stopper,
    control: Control,
    monitor: Monitor,
    ticked: Instant,
    /// When something was last received, and on which link.
    received: Instant,
    last_link: u64,
    /// Commands in a row that were found on it without a wait.
    found_in_a_row: usize,
}

impl Reactor {
    pub(crate) fn new(
        listeners: Vec<(TcpListener, Security)>,
        target: Target,
        stopper: Stopper,
        control: Control,
        monitor: Monitor,
    ) -> io::Result<Reactor> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let watch =
            |fd: rustix::fd::BorrowedFd<'_>, name| epoll::add(&epoll, fd, EventData::new_u64(name), EventFlags::IN);
        for (listener, _) in &listeners {
            listener.set_nonblocking(true)?;
            watch(rustix::fd::AsFd::as_fd(listener), LISTENER)?;
        }
        watch(target.engine.workers_fd(), WORKERS)?;
        watch(target.authentication.fd(), AUTHENTICATION)?;
        watch(control.fd(), CONTROL)?;
        watch(rustix::fd::AsFd::as_fd(&*stopper.event), STOP)?;
        if let Some(fd) = target.engine.queue_fd() {
            watch(fd, DEVICE)?;
        }
        let budget = target.budget.clone();
        let now = Instant::now();
        Ok(Reactor {
            epoll,
            listeners,
            target,
            budget,
            links: BTreeMap::new(),
            next_link: 0,
            touched: Vec::new(),
            accept_paused: false,
            turn: None,
            unfinished: Vec::new(),
            unread: Vec::new(),
            stopper,
            control,
            monitor,
            ticked: now,
            received: now,
            last_link: 0,
            found_in_a_row: 0,
        })
    }

    pub(crate) fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !self.stopper.asked.load(Ordering::Acquire) {
            let found = self.look();
            if found.is_none() {
                self.wait(&mut events)?;
            }
            let now = found.unwrap_or_else(Instant::now);
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept(now),
                    CONTROL => self.control.take().into_iter().for_each(|access| self.target.set_access(access)),
                    DEVICE | WORKERS | STOP | AUTHENTICATION => {} // looked after below in any case
                    link => self.hear(link, event.flags, now),
                }
            }
            self.settle(now);
            if now.duration_since(self.ticked) >= TICK {
                self.tick(now);
            }
        }
        self.finish();
        Ok(())
    }

    /// Looks for the next command of the host that sent the last one, if nobody else has anything to do: a wait that would
    /// find it takes longer. Returns when it came.
    fn look(&mut self) -> Option<Instant> {
        let in_a_row = std::mem::take(&mut self.found_in_a_row);
        let nothing_left = self.target.replies.is_empty() && self.touched.is_empty() && self.target.engine.is_idle();
        let worth_it = self.target.options.busy_poll || self.awaits_more();
        if !nothing_left || !worth_it || in_a_row >= FOUND_IN_A_ROW_MAX {
            return None;
        }
        let link =
            self.links.get_mut(&self.last_link).filter(|link| !link.connection.is_closing() && !link.is_deaf())?;
        let received = (0..LOOKS).find_map(|look| {
            if look > 0 {
                (0..RESTS).for_each(|_| std::hint::spin_loop());
            }
            link.receive()
        })?;
        let now = Instant::now();
        self.received(self.last_link, received, now);
        self.found_in_a_row = in_a_row + 1;
        Some(now)
    }

    /// Waits until there is something to do.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> io::Result<()> {
        let tick = if self.links.is_empty() && !self.accept_paused { None } else { Some(TICK) };
        let nothing_left = self.target.replies.is_empty() && self.touched.is_empty();
        let waiting = nothing_left && !self.target.options.busy_poll && !self.awaits_more();
        let limit = if !waiting || !self.target.engine.arm() {
            Some(Duration::ZERO)
        } else if !self.target.engine.is_idle() && self.target.engine.queue_fd().is_none() {
            Some(BLIND_WAIT)
        } else {
            tick
        };
        let limit =
            limit.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a host that waits for answers has just had the last one: its next command is worth some looks.
    fn awaits_more(&self) -> bool {
        self.target.engine.is_idle() && self.received.elapsed() < LOOK_MAX
    }

    // --- links --------------------------------------------------------------------------------------------------------

    /// Takes all connections that wait at any listener.
    fn accept(&mut self, now: Instant) {
        (0..self.listeners.len()).for_each(|at| self.accept_at(at, now));
    }

    fn accept_at(&mut self, at: usize, now: Instant) {
        loop {
            let (listener, security) = &self.listeners[at];
            match listener.accept() {
                Ok((socket, peer)) => {
                    if self.links.len() >= self.target.options.connections_max {
                        tracing::warn!(%peer, "refused: there are too many connections");
                    } else if let Err(error) = self.admit(socket, *security, now) {
                        tracing::warn!(%peer, %error, "a connection could not be set up");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Out of descriptors or memory. A waiting connection would wake the loop again at once, without end.
                    tracing::warn!(%error, "accepting a connection failed");
                    return self.listen(false);
                }
            }
        }
    }

    /// Waits for new connections, or does not.
    fn listen(&mut self, listens: bool) {
        let flags = if listens { EventFlags::IN } else { EventFlags::empty() };
        for (listener, _) in &self.listeners {
            match epoll::modify(&self.epoll, listener, EventData::new_u64(LISTENER), flags) {
                Ok(()) => self.accept_paused = !listens,
                Err(error) => tracing::error!(%error, "a listener cannot be waited for"),
            }
        }
    }

    fn admit(&mut self, socket: TcpStream, security: Security, now: Instant) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        notice_silence(&socket)?;
        let local = socket.local_addr()?;
        let link = self.next_link;
        let peer = socket.peer_addr().ok();
        tracing::debug!(link, ?peer, "a connection is made");
        epoll::add(&self.epoll, &socket, EventData::new_u64(link), EventFlags::IN)?;
        self.next_link += 1;
        let connection = Connection::new(self.budget.clone());
        let link_state = Link {
            socket,
            local,
            connection,
            secure: Secure::begin(security),
            began: now,
            moved: now,
            connected: false,
            watched: EventFlags::IN,
            touched: false,
            gone: false,
            reason: "it is over by the protocol",
        };
        self.links.insert(link, link_state);
        self.target.on_connect(link, peer);
        Ok(())
    }

    /// Receives once from a link that has something. The next wait reports more.
    fn hear(&mut self, number: u64, events: EventFlags, now: Instant) {
        let Some(link) = self.links.get_mut(&number) else { return };
        link.touch(number, &mut self.touched);
        if link.is_deaf() {
            if events.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
                link.end(BY_HOST);
            }
        } else if link.connection.is_closing() {
            link.drain();
        } else if link.is_opening() {
            self.open_secure(number, now);
        } else if let Some(received) = link.receive() {
            self.received(number, received, now);
        }
    }

    /// Takes what was received before. Nothing is received, so a host that never rests does not have the target for itself.
    fn take_unread(&mut self, number: u64, now: Instant) {
        let Some(link) = self.links.get_mut(&number).filter(|link| link.has_unread()) else { return };
        link.touch(number, &mut self.touched);
        if let Some(received) = link.take_unread() {
            self.received(number, received, now);
        }
    }

    /// Something came on a link that is to be encrypted, or can be.
    fn open_secure(&mut self, number: u64, now: Instant) {
        let Some(link) = self.links.get_mut(&number) else { return };
        let (opened, identity) = link.open_secure(now, |offer| self.target.choose_key(offer));
        self.target.secured.extend(identity.map(|identity| (number, identity)));
        match opened {
            Opened::Plain(count) => self.received(number, Some(count), now),
            Opened::Secured => {
                let host = self.target.secured.get(&number).map(|proved| proved.host.as_str());
                tracing::debug!(link = number, ?host, "a connection is encrypted");
            }
            Opened::Refused(reason) => {
                let host = self.target.secured.get(&number).map(|proved| proved.host.as_str());
                let peer = self.target.peers.get(&number);
                tracing::warn!(?peer, ?host, %reason, "refused a connection to a listener with TLS");
            }
            Opened::Waits | Opened::Gone => {}
        }
    }

    /// This many bytes came on a link, or its end: executes the first commands.
    fn received(&mut self, number: u64, count: Option<usize>, now: Instant) {
        let Some(link) = self.links.get_mut(&number) else { return };
        link.touch(number, &mut self.touched);
        let Some(count) = count else {
            link.end(BY_HOST);
            return;
        };
        link.connection.received(count);
        link.moved = now;
        (self.received, self.last_link) = (now, number);
        self.carry_out(number, now);
    }

    /// Executes commands that have come whole.
    fn carry_out(&mut self, number: u64, now: Instant) {
        if self.links.get(&number).is_some_and(|link| !link.connected) {
            self.part_with_gone();
        }
        let Some(link) = self.links.get_mut(&number) else { return };
        let turn = self.target.serve(number, &mut link.connection, link.local, now);
        link.connected |= turn.has_connected;
        if turn.has_more {
            self.unfinished.push(number);
        }
    }

    /// Closes links whose hosts have left, though not all that they sent has been received: a host that connects again must find nothing
    /// changed later by what it sent before. What was not executed yet never is.
    fn part_with_gone(&mut self) {
        for number in closed_by_hosts(self.links.iter().filter(|(_, link)| link.connected)) {
            self.links.get_mut(&number).expect("just seen").end(BY_HOST);
            self.close(number);
        }
    }

    /// Executes what remains of what came, turn by turn.
    fn settle(&mut self, now: Instant) {
        self.send_answers(now);
        while !self.unfinished.is_empty() || !self.unread.is_empty() {
            for number in std::mem::take(&mut self.unfinished) {
                if let Some(link) = self.links.get_mut(&number) {
                    link.touch(number, &mut self.touched);
                    self.carry_out(number, now);
                }
            }
            if self.unfinished.is_empty() {
                for number in std::mem::take(&mut self.unread) {
                    self.take_unread(number, now);
                }
            }
            self.send_answers(now);
        }
    }

    /// Hands answers to their links, sends, and closes what is to be closed.
    fn send_answers(&mut self, now: Instant) {
        self.target.poll();
        for reply in std::mem::take(&mut self.target.replies) {
            let Reply { origin, status, result, data, after, .. } = reply;
            // A host that has left meanwhile needs no response.
            if let Some(link) = self.links.get_mut(&origin.link) {
                if let After::Queue(queue) = after {
                    link.connection.set_queue(queue);
                    link.connection.set_transfers(self.target.transfers(origin.link));
                    link.connected |= queue.is_authenticated;
                }
                link.connection.answer(origin.answer(status, result, data));
                if after == After::End {
                    link.connection.end();
                }
                link.touch(origin.link, &mut self.touched);
            }
        }
        for number in std::mem::take(&mut self.target.to_close) {
            if let Some(link) = self.links.get_mut(&number) {
                link.end(CONTROLLER_ENDED);
                link.touch(number, &mut self.touched);
            }
        }
        for number in std::mem::take(&mut self.touched) {
            let Some(link) = self.links.get_mut(&number) else { continue };
            link.touched = false;
            link.send(now);
            link.connection.take_spent().for_each(|data| self.target.engine.recycle(data));
            if link.is_over(now) {
                self.close(number);
                continue;
            }
            link.watch(&self.epoll, number, now);
            if link.has_unread() && !self.unread.contains(&number) {
                self.unread.push(number);
            }
            if link.connection.is_parked() {
                self.go_on(number, now);
            }
        }
        self.look_after_turn(now);
    }

    /// What was sent has made room, perhaps. If there is more to send now, the next round does, at once.
    fn go_on(&mut self, number: u64, now: Instant) {
        let sends = |reactor: &Self| reactor.links.get(&number).map_or(0, |link| link.connection.outbox().bytes());
        let before = sends(self);
        self.carry_out(number, now);
        if sends(self) > before
            && let Some(link) = self.links.get_mut(&number)
        {
            link.touch(number, &mut self.touched);
        }
    }

    /// What was sent has made room, perhaps, for the link whose turn it is; after it is over, it is everybody's.
    fn look_after_turn(&mut self, now: Instant) {
        while let Some(number) = self.turn {
            self.go_on(number, now);
            if !self.budget.is_nobodys_turn() {
                return;
            }
            self.choose_turn();
            if self.turn.is_none() {
                let waits = |link: &Link| link.connection.is_parked() || link.is_deaf();
                let waiting = self.links.iter_mut().filter(|(_, link)| waits(link));
                waiting.for_each(|(number, link)| link.touch(*number, &mut self.touched));
            }
        }
    }

    /// The link that has waited for memory longest has its turn, if any has waited for too long.
    fn choose_turn(&mut self) {
        let longest = self.links.iter().max_by_key(|(_, link)| link.connection.waiting_ticks());
        let longest = longest.filter(|(_, link)| link.connection.waiting_ticks() >= TURN_TICKS);
        self.turn = longest.map(|(number, link)| {
            link.connection.take_turn();
            *number
        });
    }

    /// Shows a monitor which hosts are connected.
    fn publish(&self, now: Instant) {
        let peer_of = |link: u64| self.links.get(&link).and_then(|link| link.socket.peer_addr().ok());
        self.monitor.publish(self.target.controllers.values(), peer_of, now);
    }

    fn close(&mut self, number: u64) {
        if let Some(link) = self.links.get(&number) {
            self.target.log_end(number, link.reason);
            if link.connection.was_offered_tls() {
                let peer = self.target.peers.get(&number);
                tracing::warn!(?peer, "refused: the host begins TLS, and the listener does not use it");
            }
        }
        self.target.on_disconnect(number);
        // Dropping the socket takes it out of the wait.
        self.links.remove(&number);
        let touched = &mut self.touched;
        for number in std::mem::take(&mut self.target.to_close) {
            if let Some(link) = self.links.get_mut(&number) {
                link.end(CONTROLLER_ENDED);
                link.touch(number, touched);
            }
        }
        if self.links.is_empty() {
            self.publish(Instant::now()); // no tick comes any more
        }
    }

    /// What is due from time to time.
    fn tick(&mut self, now: Instant) {
        self.ticked = now;
        if self.accept_paused {
            self.listen(true);
        }
        let unheard = self.links.iter().filter(|(_, link)| link.is_deaf());
        unheard.for_each(|(number, _)| self.target.suspend_keep_alive(*number, now));
        self.target.tick(now);
        self.publish(now);
        for link in self.links.values_mut() {
            link.connection.tick();
            link.secure.iter_mut().for_each(|secure| secure.rest());
        }
        if self.budget.is_nobodys_turn() {
            self.choose_turn();
        }
        let waits = |link: &Link| link.connection.waiting_ticks() >= WAITING_TICKS_MAX;
        let waiting: Vec<u64> = self.links.iter().filter(|(_, link)| waits(link)).map(|(number, _)| *number).collect();
        for (number, link) in &mut self.links {
            let is_in_the_way = waiting.iter().any(|other| other != number);
            if is_in_the_way && link.connection.held_ticks() > HELD_TICKS_MAX {
                tracing::warn!(peer = ?link.socket.peer_addr().ok(), "closing a slow connection: others wait for memory");
                link.end("it is slow, and others wait for memory");
            }
            let stalled = link.connection.is_owed() && !link.is_deaf() || link.unsent_bytes() > 0;
            let limit = self.target.greeting_max(*number).unwrap_or(GREETING_MAX);
            let late = !link.connected && now.duration_since(link.began) > limit;
            if late || stalled && now.duration_since(link.moved) > STALL_MAX {
                tracing::info!(peer = ?link.socket.peer_addr().ok(), "closing a connection that does not move");
                link.end("it does not move");
            }
            // Room may have been made by other links.
            if link.gone || link.connection.is_parked() || link.connection.is_closing() || link.is_deaf() {
                link.touch(*number, &mut self.touched);
            }
        }
        self.settle(now);
    }

    /// Orderly shutdown: nothing new is accepted, and results of commands in flight are sent.
    fn finish(&mut self) {
        let until = Instant::now() + LINGER_MAX;
        while !self.target.engine.is_idle() && Instant::now() < until {
            self.settle(Instant::now());
            std::thread::sleep(BLIND_WAIT);
        }
        self.settle(Instant::now());
        self.links.clear();
    }
}

/// Has the system end a connection whose peer does not respond any more: hosts need not request a keep-alive time-out.
fn notice_silence(socket: &TcpStream) -> std::io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    // The system sends no probe while it repeats what the peer has not confirmed, for a quarter of an hour by default.
    sockopt::set_tcp_user_timeout(socket, 2 * SILENCE_MAX.as_millis() as u32)?;
    sockopt::set_tcp_keepidle(socket, SILENCE_MAX)?;
    sockopt::set_tcp_keepintvl(socket, SILENCE_MAX / 4)?;
    Ok(sockopt::set_tcp_keepcnt(socket, 4)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   a host that leaves while a response is on its way to it is noticed as soon as one that leaves in silence.
    #[test]
    fn silence_has_an_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        notice_silence(&socket).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 120_000);
        assert_eq!(
            sockopt::tcp_keepidle(&socket).unwrap() + 4 * sockopt::tcp_keepintvl(&socket).unwrap(),
            2 * SILENCE_MAX
        );
    }
}
