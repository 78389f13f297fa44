//! A connection with its socket.
//!
//! Lives here:       receiving and sending once, what is known of the socket.
//! Lives elsewhere:  what the bytes mean (`connection`), whose turn it is (`reactor`).
//! May be called by: `reactor`.

use super::connection::Connection;
use super::secure::Secure;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Links that are closing get so long to take what remains for them.
pub(super) const LINGER_MAX: Duration = Duration::from_secs(2);

/// See the module.
pub(super) struct Link {
    pub(super) socket: TcpStream,
    pub(super) local: SocketAddr,
    pub(super) connection: Connection,
    /// Of one that is encrypted, or can be.
    pub(super) secure: Option<Box<Secure>>,
    pub(super) began: Instant,
    /// When anything last moved, in either direction.
    pub(super) moved: Instant,
    pub(super) connected: bool,
    /// What the wait is for: something to receive, room to send.
    pub(super) watched: EventFlags,
    /// Whether there is something to send, or to close.
    pub(super) touched: bool,
    pub(super) gone: bool,
    /// Why it ends.
    pub(super) reason: &'static str,
}

/// Why a link ends that its host has closed.
pub(super) const BY_HOST: &str = "the host has closed it";

/// The links whose hosts have closed them, whether or not all that they sent has been received.
pub(super) fn closed_by_hosts<'a>(links: impl Iterator<Item = (&'a u64, &'a Link)>) -> Vec<u64> {
    let (numbers, mut sockets): (Vec<u64>, Vec<PollFd<'_>>) =
        links.map(|(number, link)| (*number, PollFd::new(&link.socket, PollFlags::RDHUP))).unzip();
    if sockets.is_empty() || poll(&mut sockets, Some(&Timespec::default())).is_err() {
        return Vec::new();
    }
    let is_closed = |socket: &PollFd<'_>| !socket.revents().is_empty();
    numbers.into_iter().zip(&sockets).filter(|(_, socket)| is_closed(socket)).map(|(number, _)| number).collect()
}

impl Link {
    /// The link is to be dropped. The first reason counts.
    pub(super) fn end(&mut self, reason: &'static str) {
        if !std::mem::replace(&mut self.gone, true) {
            self.reason = reason;
        }
    }

    pub(super) fn touch(&mut self, number: u64, touched: &mut Vec<u64>) {
        if !std::mem::replace(&mut self.touched, true) {
            touched.push(number);
        }
    }

    /// Receives once, if anything has arrived: so many bytes, or the connection's end.
    pub(super) fn receive(&mut self) -> Option<Option<usize>> {
        if let Some(secure) = &mut self.secure {
            return secure.receive(&self.socket, self.connection.space());
        }
        match rustix::net::recv(&self.socket, self.connection.space(), RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Some(None),
            Ok((_, count)) => Some(Some(count)),
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(_) => Some(None),
        }
    }

    /// The same without receiving: of what was received before.
    pub(super) fn take_unread(&mut self) -> Option<Option<usize>> {
        self.secure.as_mut()?.take(self.connection.space())
    }

    /// Takes what a peer still sends to a connection that is closing, so it can read why.
    pub(super) fn drain(&mut self) {
        let mut bytes = [0; 4096];
        match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => self.end(BY_HOST),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.end(BY_HOST),
        }
    }

    pub(super) fn send(&mut self, now: Instant) {
        if self.secure.is_some() {
            return self.send_securely(now);
        }
        while !self.gone && self.connection.outbox().bytes() > 0 {
            let slices = self.connection.outbox().slices();
            let mut nothing = SendAncillaryBuffer::default();
            let sent =
                rustix::net::sendmsg(&self.socket, &slices, &mut nothing, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            match sent {
                Ok(count) => {
                    self.moved = now;
                    self.connection.sent(count);
                }
                // The rest is sent when the socket takes it: `watch` waits for that.
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => self.end("nothing can be sent on it"),
            }
        }
    }

    /// Bytes that the socket has not taken.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.connection.outbox().bytes() + self.secure.as_ref().map_or(0, |secure| secure.unsent_bytes())
    }

    /// Whether its host is not known to be one that may speak.
    pub(super) fn is_opening(&self) -> bool {
        self.secure.as_ref().is_some_and(|secure| !secure.is_open())
    }

    /// Whether there is something to take that needs no receiving, and room for it.
    pub(super) fn has_unread(&self) -> bool {
        let has_unread = self.secure.as_ref().is_some_and(|secure| secure.has_unread());
        has_unread && !self.gone && !self.connection.is_closing() && !self.is_deaf()
    }

    /// Whether the link can be dropped. One that is closing reports it to its peer when all is sent, and is dropped when the
    /// peer has closed too.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        if !self.gone && self.connection.is_closing() && self.unsent_bytes() == 0 {
            // It may have been sent before, or the peer may be gone.
            let _ = self.socket.shutdown(std::net::Shutdown::Write);
        }
        self.gone || self.connection.is_closing() && now.duration_since(self.moved) > LINGER_MAX
    }

    /// Waits for room to send exactly while there is something to send, and for something to receive while there is room for it; while
    /// there is none, for the host's end, so nothing continues for nobody.
    pub(super) fn watch(&mut self, epoll: &OwnedFd, number: u64, now: Instant) {
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::OUT, self.unsent_bytes() > 0);
        let listens = self.connection.is_closing() || !self.connection.is_full();
        wanted.set(EventFlags::IN, listens);
        wanted.set(EventFlags::RDHUP, !listens);
        if wanted == self.watched {
            return;
        }
        if self.is_deaf() {
            self.moved = now; // it could not, while nobody listened
        }
        match epoll::modify(epoll, &self.socket, EventData::new_u64(number), wanted) {
            Ok(()) => self.watched = wanted,
            Err(_) => self.end("the system cannot wait for it"),
        }
    }

    /// Whether nobody listens to the host.
    pub(super) fn is_deaf(&self) -> bool {
        !self.watched.contains(EventFlags::IN)
    }
}
