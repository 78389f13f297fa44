//! Encrypted queues of our host.
//!
//! Lives here:       the key of a host, its handshake, ciphertext in and out of the socket.
//! Lives elsewhere:  the handshake and the records (`tls`), commands (`queue`).
//! Implements:       spec:NVMe-TCP "Transport Security".

use super::Error;
use super::queue::Wait;
use crate::tls::{Channel, Decrypted, Psk, TlsError, TlsKey};
use crate::transport::framer::Framer;
use crate::transport::outbox::Outbox;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard};

/// The key that a host uses for TLS, and how it names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKey {
    /// The key.
    pub key: TlsKey,
    /// The version of its identity, 0 or 1. SPDK knows version 0 only.
    pub version: u8,
}

impl HostKey {
    /// With an identity of version 1.
    pub fn new(key: TlsKey) -> HostKey {
        HostKey { key, version: 1 }
    }

    /// What a host offers to a subsystem.
    pub(super) fn psk(&self, host: &str, subsystem: &str) -> Result<Psk, Error> {
        let of_version = |psk: &Psk| psk.identity.starts_with(&format!("NVMe{}", self.version));
        Ok(self.key.offered(host, subsystem).into_iter().find(of_version).ok_or(TlsError::NamesTooLong)?)
    }
}

/// An encrypted connection. A caller that sends and one that receives take turns.
pub(super) struct Secured(Mutex<Channel>);

impl Secured {
    /// Shakes hands on a new connection, whose time-out for reading applies.
    pub(super) fn begin(mut socket: &TcpStream, psk: Psk) -> Result<Secured, Error> {
        let mut channel = Channel::client(psk)?;
        loop {
            while !channel.unsent().is_empty() {
                let count = socket.write(channel.unsent())?;
                channel.sent(count);
            }
            if channel.is_open() {
                return Ok(Secured(Mutex::new(channel)));
            }
            match socket.read(channel.space()) {
                Ok(0) => return Err(TlsError::Handshake("the target has closed the connection".into()).into()),
                Ok(count) => channel.received(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Err(TlsError::Handshake("the target has closed the connection".into()).into());
                }
                Err(error) => return Err(error.into()),
            }
            channel.handshake()?;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Channel> {
        self.0.lock().expect("no panics under this lock")
    }

    /// Sends everything.
    pub(super) fn flush(&self, mut socket: &TcpStream, outbox: &mut Outbox) -> Result<(), Error> {
        let mut channel = self.lock();
        loop {
            while outbox.bytes() > 0 {
                match channel.encrypt(&outbox.slices())? {
                    0 => break,
                    count => outbox.sent(count),
                }
            }
            if channel.unsent().is_empty() {
                return Ok(());
            }
            let count = socket.write(channel.unsent())?;
            channel.sent(count);
        }
    }

    /// Whether there may be plaintext without receiving anything.
    pub(super) fn has_unread(&self) -> bool {
        self.lock().has_unread()
    }

    /// Takes plaintext of what was received before.
    pub(super) fn take(&self, framer: &mut Framer) -> Result<(), Error> {
        if let Decrypted::Bytes(count) = self.lock().decrypt(framer.space())? {
            framer.received(count);
        }
        Ok(())
    }

    /// Receives once; waits for something to come if it can wait.
    pub(super) fn receive(&self, socket: &TcpStream, framer: &mut Framer, wait: Wait) -> Result<(), Error> {
        loop {
            let mut channel = self.lock();
            match channel.decrypt(framer.space())? {
                Decrypted::Bytes(count) => {
                    framer.received(count);
                    return Ok(());
                }
                Decrypted::Closed => return Err(Error::Connection("closed by the target".into())),
                Decrypted::Nothing => {}
            }
            match rustix::net::recv(socket, channel.space(), RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(Error::Connection("closed by the target".into())),
                Ok((_, count)) => {
                    channel.received(count);
                    continue;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(std::io::Error::from(error).into()),
            }
            drop(channel);
            if wait == Wait::No {
                return Ok(());
            }
            wait_for(socket)?;
        }
    }
}

/// Waits until something can be received, as long as the socket's time-out allows.
fn wait_for(socket: &TcpStream) -> Result<(), Error> {
    let limit = socket.read_timeout()?;
    let limit = limit.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
    match rustix::event::poll(&mut [PollFd::new(socket, PollFlags::IN)], limit.as_ref()) {
        Ok(0) => Err(Error::Connection("the target is silent".into())),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(std::io::Error::from(error).into()),
    }
}
