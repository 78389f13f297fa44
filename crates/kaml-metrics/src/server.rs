//! The HTTP server: one thread, few connections, bounded time for each.
//!
//! Lives here:       sockets, limits, which page is at which path.
//! Lives elsewhere:  reading requests (`request`), what the pages show (`state`, `exposition`, `page.html`).
//!
//! The device is looked at for at most [`FRESH`] in turn, however many requests come, so nobody can slow it down from here. Each connection
//! carries one request. A connection that is slow has a deadline, and is closed before that when others need its place.

use crate::PAGE;
use crate::request::{self, Refusal, Request};
use crate::state::{Detail, State};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections at a time: some browsers and monitors, each with a few.
const CONNECTIONS_MAX: usize = 64;
/// Time for a request to come.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// Time for a response to be taken.
const RESPONSE_MAX: Duration = Duration::from_secs(10);
/// Time for the peer to close after it has the response: closing before it has sent all would take the response from it.
const CLOSE_MAX: Duration = Duration::from_secs(1);
/// So old a state is shown again.
const FRESH: Duration = Duration::from_millis(200);
/// How long no connection is accepted after the system had no descriptor for one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Connections accepted in a row.
const ACCEPTED_MAX: usize = 16;

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address makes no sense.
    #[error("{address:?} is not an address and a port, as 127.0.0.1:9464 or [::1]:9464")]
    BadAddress {
        /// What was given.
        address: String,
    },
    /// Another program listens there.
    #[error("{address} is in use by another program: use another port, or port 0 for a free one")]
    InUse {
        /// What was given.
        address: String,
    },
    /// The system refuses the address.
    #[error("listening at {address}: {source}")]
    Listen {
        /// What was given.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The system refuses a descriptor or a thread.
    #[error("serving metrics: {0}")]
    System(io::Error),
}

/// Serves the metrics of a device over HTTP until it is dropped.
///
/// | path | content |
/// |---|---|
/// | `/` | the live page |
/// | `/metrics` | Prometheus text |
/// | `/state` | the state as JSON, with the map of blocks |
/// | `/health` | `ok`, or status 503 and what stopped the device |
pub struct Server {
    address: SocketAddr,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at an address, and responds on a thread of its own; port 0 takes a free one. `state` is called for requests, at most ten times
    /// a second.
    ///
    /// # Errors
    /// [`Error`] if the address makes no sense or is taken, or the system refuses.
    pub fn start(address: &str, state: impl FnMut(Detail) -> State + Send + 'static) -> Result<Server, Error> {
        let name = || address.to_owned();
        let failed = |source: io::Error| match source.kind() {
            ErrorKind::InvalidInput => Error::BadAddress { address: name() },
            ErrorKind::AddrInUse => Error::InUse { address: name() },
            _ => Error::Listen { address: name(), source },
        };
        let resolved: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
        let listener = TcpListener::bind(&resolved[..]).map_err(failed)?;
        listener.set_nonblocking(true).map_err(Error::System)?;
        let address = listener.local_addr().map_err(Error::System)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| Error::System(e.into()))?;
        let stop = Arc::new(stop);
        let mut worker = Worker {
            listener,
            stop: Arc::clone(&stop),
            connections: Vec::new(),
            accept_again: None,
            pages: Pages { state: Box::new(state), figures: None, everything: None },
        };
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(move || worker.run());
        Ok(Server { address, stop, thread: Some(thread.map_err(Error::System)?) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The counter cannot overflow: it would take 2^64 calls.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a connection is doing.
enum Phase {
    /// The request is coming.
    Reading(Vec<u8>),
    /// The response is being sent; bytes that were.
    Writing(Vec<u8>, usize),
    /// The response was sent; what still comes is dropped.
    Closing,
}

struct Connection {
    socket: TcpStream,
    phase: Phase,
    deadline: Instant,
    is_over: bool,
}

struct Worker {
    listener: TcpListener,
    stop: Arc<OwnedFd>,
    connections: Vec<Connection>,
    /// The system had no descriptor: connections are accepted from then on.
    accept_again: Option<Instant>,
    pages: Pages,
}

impl Worker {
    fn run(&mut self) {
        loop {
            let (is_stopped, has_new) = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    tracing::error!(%error, "the metrics endpoint ends");
                    return;
                }
            };
            if is_stopped {
                return;
            }
            let now = Instant::now();
            if has_new {
                self.accept(now);
            }
            for connection in &mut self.connections {
                connection.step(&mut self.pages, now);
            }
            self.connections.retain(|connection| !connection.is_over && connection.deadline > now);
        }
    }

    /// Waits until there is something to do, or a deadline. Returns whether to stop, and whether there are new connections.
    fn wait(&mut self) -> io::Result<(bool, bool)> {
        let now = Instant::now();
        self.accept_again = self.accept_again.filter(|again| *again > now);
        let listens = if self.accept_again.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut fds =
            vec![PollFd::new(&*self.stop, PollFlags::IN), PollFd::from_borrowed_fd(self.listener.as_fd(), listens)];
        fds.extend(self.connections.iter().map(|connection| PollFd::new(&connection.socket, connection.waits_for())));
        let until = self.connections.iter().map(|connection| connection.deadline).chain(self.accept_again).min();
        let limit = until.map(|until| until.saturating_duration_since(now) + Duration::from_millis(1));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |at: usize| !fds[at].revents().is_empty();
        Ok((is_ready(0), is_ready(1)))
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTED_MAX {
            match self.listener.accept() {
                Ok((socket, _)) if socket.set_nonblocking(true).is_ok() => self.admit(socket, now),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection of the metrics endpoint failed");
                    self.accept_again = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// Takes a connection in; if there are too many, the one ends that would soonest.
    fn admit(&mut self, socket: TcpStream, now: Instant) {
        if self.connections.len() >= CONNECTIONS_MAX {
            let soonest = self.connections.iter().enumerate().min_by_key(|(_, connection)| connection.deadline);
            if let Some((at, _)) = soonest {
                self.connections.swap_remove(at);
            }
        }
        let deadline = now + REQUEST_MAX;
        self.connections.push(Connection { socket, phase: Phase::Reading(Vec::new()), deadline, is_over: false });
    }
}

impl Connection {
    fn waits_for(&self) -> PollFlags {
        match self.phase {
            Phase::Reading(_) | Phase::Closing => PollFlags::IN,
            Phase::Writing(..) => PollFlags::OUT,
        }
    }

    /// Does what can be done now.
    fn step(&mut self, pages: &mut Pages, now: Instant) {
        if let Phase::Reading(bytes) = &mut self.phase {
            let mut piece = [0; 2048];
            match self.socket.read(&mut piece) {
                Ok(0) => self.is_over = true,
                Ok(count) => bytes.extend_from_slice(&piece[..count]),
                Err(error) => self.is_over = !is_temporary(&error),
            }
            // The bytes are limited: a head that is too long is a refusal.
            if let Some(request) = request::read(bytes) {
                self.phase = Phase::Writing(pages.respond(request), 0);
                self.deadline = now + RESPONSE_MAX;
            }
        }
        if let Phase::Writing(response, sent) = &mut self.phase {
            match self.socket.write(&response[*sent..]) {
                Ok(count) => *sent += count,
                Err(error) => self.is_over |= !is_temporary(&error),
            }
            if *sent == response.len() {
                self.is_over |= self.socket.shutdown(Shutdown::Write).is_err();
                self.phase = Phase::Closing;
                self.deadline = now + CLOSE_MAX;
            }
        }
        if let Phase::Closing = self.phase {
            let mut dropped = [0; 2048];
            match self.socket.read(&mut dropped) {
                Ok(0) => self.is_over = true,
                Ok(_) => {}
                Err(error) => self.is_over |= !is_temporary(&error),
            }
        }
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// What is served, and states that were made recently.
struct Pages {
    state: Box<dyn FnMut(Detail) -> State + Send>,
    figures: Option<(Instant, Arc<State>)>,
    everything: Option<(Instant, Arc<State>)>,
}

/// A response without its head.
struct Page {
    status: u16,
    content_type: &'static str,
    body: Vec<u8>,
}

const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Page {
    fn text(status: u16, text: &str) -> Page {
        Page { status, content_type: TEXT, body: format!("{text}\n").into_bytes() }
    }
}

impl Pages {
    /// The bytes of a response.
    fn respond(&mut self, request: Result<Request, Refusal>) -> Vec<u8> {
        match request {
            Ok(Request { is_head, path }) => encode(&self.page(&path), is_head),
            Err(Refusal { status, why }) => encode(&Page::text(status, why), false),
        }
    }

    fn page(&mut self, path: &str) -> Page {
        match path {
            "/" => Page { status: 200, content_type: "text/html; charset=utf-8", body: PAGE.as_bytes().to_vec() },
            "/metrics" => {
                let body = self.fresh(Detail::Figures).prometheus().into_bytes();
                Page { status: 200, content_type: METRICS, body }
            }
            "/state" => match serde_json::to_vec(&*self.fresh(Detail::Everything)) {
                Ok(body) => Page { status: 200, content_type: "application/json", body },
                Err(error) => Page::text(500, &error.to_string()),
            },
            "/health" => match &self.fresh(Detail::Figures).stopped {
                None => Page::text(200, "ok"),
                Some(why) => Page::text(503, &format!("the device takes no more changes: {why}")),
            },
            _ => Page::text(404, "there are only /, /metrics, /state and /health"),
        }
    }

    /// A state that is not older than [`FRESH`].
    fn fresh(&mut self, detail: Detail) -> Arc<State> {
        let kept = match detail {
            Detail::Figures => &mut self.figures,
            Detail::Everything => &mut self.everything,
        };
        match kept {
            Some((made, state)) if made.elapsed() < FRESH => Arc::clone(state),
            _ => {
                let state = Arc::new((self.state)(detail));
                *kept = Some((Instant::now(), Arc::clone(&state)));
                state
            }
        }
    }
}

/// The page loads nothing from anywhere, and nobody may embed it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn encode(page: &Page, is_head: bool) -> Vec<u8> {
    let reason = match page.status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Internal Server Error",
    };
    let allow = if page.status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let mut response = format!(
        "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nContent-Security-Policy: {POLICY}\r\nReferrer-Policy: no-referrer\r\n{allow}\r\n",
        page.status,
        page.content_type,
        page.body.len(),
    )
    .into_bytes();
    if !is_head {
        response.extend_from_slice(&page.body);
    }
    response
}
