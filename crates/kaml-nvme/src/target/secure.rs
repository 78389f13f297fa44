//! Connections that are encrypted, or can be.
//!
//! Lives here:       what a listener requires, from the first byte of a connection to the end of its handshake, ciphertext in and out of the
//!                   socket, which connection belongs to which host.
//! Lives elsewhere:  the handshake and the records (`tls`), which host has which key (`access`), whose turn it is (`reactor`).
//! Implements:       spec:NVMe-TCP "Transport Security"; docs/nvme.md "Encryption".
//!
//! ```text
//!  Hello ──a ClientHello whose binder proves a key──▶ Channel ──handshake──▶ open
//!    └────another first byte, at a listener that allows it──▶ plain
//! ```
//!
//! Memory before a host has proved that it has a key: the receive buffers of a plain connection, and a ClientHello.

use super::core::Target;
use super::link::Link;
use super::options::Security;
use crate::tls::{Channel, Chosen, Decrypted, HELLO_BYTES_MAX, Identity, Offer, Refusal, begins_tls};
use crate::wire::fabrics::DISCOVERY_NQN;
use crate::wire::status::Status;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::net::TcpStream;
use std::time::Instant;

/// Looks at a socket for one call: control messages of TLS, which carry no data, must not have the event loop for themselves.
const RECEIVES_MAX: usize = 4;
/// Bytes of the alert that refuses a host before the handshake, and of its place in them.
const ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 0];

/// How far a connection is.
enum Stage {
    /// Nothing is known of the host. What has come of its first message.
    Hello(Vec<u8>),
    /// It has proved a key.
    Channel(Box<Channel>),
}

/// Of a connection that is encrypted, or can be.
pub(super) struct Secure {
    security: Security,
    stage: Stage,
}

/// What came of listening to a host before its connection is open.
pub(super) enum Opened {
    /// More has to come.
    Waits,
    /// It uses no TLS, and need not: so many bytes of it are where the connection receives.
    Plain(usize),
    /// The handshake is over.
    Secured,
    /// It is refused.
    Refused(Refusal),
    /// It has closed the connection.
    Gone,
}

impl Secure {
    /// Of a new connection; nothing if its listener uses no TLS.
    pub(super) fn begin(security: Security) -> Option<Box<Secure>> {
        (security != Security::Plain).then(|| Box::new(Secure { security, stage: Stage::Hello(Vec::new()) }))
    }

    /// Whether plaintext can be received and sent.
    pub(super) fn is_open(&self) -> bool {
        matches!(&self.stage, Stage::Channel(channel) if channel.is_open())
    }

    /// Whether there may be plaintext that needs no receiving.
    pub(super) fn has_unread(&self) -> bool {
        matches!(&self.stage, Stage::Channel(channel) if channel.is_open() && channel.has_unread())
    }

    /// Bytes of ciphertext that are not sent.
    pub(super) fn unsent_bytes(&self) -> usize {
        if let Stage::Channel(channel) = &self.stage { channel.unsent().len() } else { 0 }
    }

    /// Time has passed.
    pub(super) fn rest(&mut self) {
        if let Stage::Channel(channel) = &mut self.stage {
            channel.rest();
        }
    }

    /// Receives ciphertext, and takes the plaintext: so many bytes, or the connection's end; nothing if nothing has come.
    pub(super) fn receive(&mut self, socket: &TcpStream, space: &mut [u8]) -> Option<Option<usize>> {
        for _ in 0..RECEIVES_MAX {
            let taken = self.take(space);
            if taken.is_some() {
                return taken;
            }
            let Stage::Channel(channel) = &mut self.stage else { return None };
            match rustix::net::recv(socket, channel.space(), RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Some(None),
                Ok((_, count)) => channel.received(count),
                Err(Errno::AGAIN | Errno::INTR) => return None,
                Err(_) => return Some(None),
            }
        }
        None
    }

    /// Takes plaintext of what was received before.
    pub(super) fn take(&mut self, space: &mut [u8]) -> Option<Option<usize>> {
        let Stage::Channel(channel) = &mut self.stage else { return None };
        match channel.decrypt(space) {
            Ok(Decrypted::Bytes(count)) => Some(Some(count)),
            Ok(Decrypted::Nothing) => None,
            Ok(Decrypted::Closed) => Some(None),
            Err(error) => {
                tracing::warn!(%error, "closing a connection");
                Some(None)
            }
        }
    }

    /// Listens to a host whose connection is not open. `choose` finds the key that it has.
    fn open_secure(
        &mut self,
        socket: &TcpStream,
        plain: &mut [u8],
        choose: impl FnOnce(&Offer) -> Result<Chosen, Refusal>,
    ) -> (Opened, Option<Identity>) {
        match &mut self.stage {
            Stage::Hello(hello) => {
                let begin = hello.len();
                hello.resize(HELLO_BYTES_MAX, 0);
                let received = rustix::net::recv(socket, &mut hello[begin..], RecvFlags::DONTWAIT);
                let count = received.as_ref().map_or(0, |(_, count)| *count);
                hello.truncate(begin + count);
                match received {
                    Ok((_, 0)) => return (Opened::Gone, None),
                    Ok(_) => {}
                    Err(Errno::AGAIN | Errno::INTR) => return (Opened::Waits, None),
                    Err(_) => return (Opened::Gone, None),
                }
                if begin == 0 && self.security == Security::Optional && !begins_tls(hello[0]) {
                    plain[..count].copy_from_slice(hello);
                    return (Opened::Plain(count), None);
                }
                match Offer::read(hello).and_then(|offer| offer.as_ref().map(choose).transpose()) {
                    Ok(None) => {
                        hello.shrink_to_fit();
                        (Opened::Waits, None)
                    }
                    Ok(Some(Chosen { identity, psk })) => match Channel::server(psk, hello) {
                        Ok(channel) => {
                            self.stage = Stage::Channel(Box::new(channel));
                            (self.shake_hands(), Some(identity))
                        }
                        Err(error) => (Opened::Refused(Refusal::Handshake(error.to_string())), None),
                    },
                    Err(refusal) => (Opened::Refused(refusal), None),
                }
            }
            Stage::Channel(channel) => match rustix::net::recv(socket, channel.space(), RecvFlags::DONTWAIT) {
                Ok((_, 0)) => (Opened::Gone, None),
                Ok((_, count)) => {
                    channel.received(count);
                    (self.shake_hands(), None)
                }
                Err(Errno::AGAIN | Errno::INTR) => (Opened::Waits, None),
                Err(_) => (Opened::Gone, None),
            },
        }
    }

    fn shake_hands(&mut self) -> Opened {
        let Stage::Channel(channel) = &mut self.stage else { return Opened::Waits };
        match channel.handshake() {
            Ok(()) if channel.is_open() => {
                tracing::debug!(suite = channel.suite(), "a TLS handshake is over");
                Opened::Secured
            }
            Ok(()) => Opened::Waits,
            Err(error) => Opened::Refused(Refusal::Handshake(error.to_string())),
        }
    }
}

impl Link {
    /// Listens to a host whose connection is not open yet. Also returns the identity that it has proved just now.
    pub(super) fn open_secure(
        &mut self,
        now: Instant,
        choose: impl FnOnce(&Offer) -> Result<Chosen, Refusal>,
    ) -> (Opened, Option<Identity>) {
        let Some(secure) = &mut self.secure else { return (Opened::Waits, None) };
        let opened = secure.open_secure(&self.socket, self.connection.space(), choose);
        match &opened.0 {
            Opened::Plain(_) => self.secure = None,
            Opened::Refused(refusal) => {
                self.send_securely(now); // an alert of the handshake, if there is any
                if !matches!(refusal, Refusal::Handshake(_) | Refusal::Plain) {
                    let mut alert = ALERT;
                    alert[6] = refusal.alert();
                    // The connection ends in any case.
                    let _ = rustix::net::send(&self.socket, &alert, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                }
                self.end("its host was refused before it was connected");
            }
            Opened::Gone => self.end(super::link::BY_HOST),
            Opened::Waits | Opened::Secured => {}
        }
        opened
    }

    /// Encrypts what is to be sent, and sends as much as the socket takes.
    pub(super) fn send_securely(&mut self, now: Instant) {
        let Some(Secure { stage: Stage::Channel(channel), .. }) = self.secure.as_deref_mut() else { return };
        loop {
            while channel.is_open() && self.connection.outbox().bytes() > 0 {
                match channel.encrypt(&self.connection.outbox().slices()) {
                    Ok(0) => break,
                    Ok(count) => self.connection.sent(count),
                    Err(error) => {
                        tracing::warn!(%error, "closing a connection");
                        return self.end("nothing can be encrypted on it");
                    }
                }
            }
            if channel.unsent().is_empty() {
                return;
            }
            match rustix::net::send(&self.socket, channel.unsent(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.moved = now;
                    channel.sent(count);
                }
                // The rest is sent when the socket takes it: `watch` waits for that.
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => return self.end("nothing can be sent on it"),
            }
        }
    }
}

impl Target {
    /// The key that a host has shown to have, of those that hosts have here.
    pub(super) fn choose_key(&self, offer: &Offer) -> Result<Chosen, Refusal> {
        offer.choose(|identity| {
            let Identity { host, subsystem, .. } = identity;
            if *subsystem != self.options.subsystem && subsystem != DISCOVERY_NQN {
                return Err(Refusal::OtherSubsystem { host: host.clone(), subsystem: subsystem.clone() });
            }
            let key = self.options.access.hosts.get(host).and_then(|host| host.tls_key.as_ref());
            Ok(key.ok_or_else(|| Refusal::UnknownHost(host.clone()))?.named(identity))
        })
    }

    /// Refuses a host that has a TLS key and does not use it, and one that uses the key of another host or for another subsystem.
    pub(super) fn check_secured(&self, link: u64, host: &str, subsystem: &str) -> Result<(), (Status, u64)> {
        let peer = self.peers.get(&link);
        let has_key = || self.options.access.hosts.get(host).is_some_and(|host| host.tls_key.is_some());
        let why = match self.secured.get(&link) {
            Some(proved) if proved.host != host => "its TLS key is that of another host",
            Some(proved) if proved.subsystem != subsystem => "its TLS key is for another subsystem",
            None if subsystem != DISCOVERY_NQN && has_key() => "it has a TLS key, and its connection is not encrypted",
            Some(_) | None => return Ok(()),
        };
        tracing::warn!(link, ?host, ?peer, why, "refused a host");
        Err((Status::CONNECT_HOST, 0))
    }
}
