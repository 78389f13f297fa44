//! A target without sockets: its connections are bytes that a caller hands in and takes out. For tests and fuzzers.
//!
//! Lives here:       connections without sockets, time that passes when it is asked to.
//! Lives elsewhere:  what the bytes mean (`connection`), what commands do (`core`), the same with sockets (`reactor`).

use super::budget::Budget;
use super::connection::Connection;
use super::core::Target;
use super::engine::{After, Reply};
use super::{Error, Options};
use kaml::Device;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The address that hosts are shown.
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 4420);

/// See the module.
pub struct Offline {
    target: Target,
    budget: Budget,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    now: Instant,
}

impl Offline {
    /// Serves a device to the hosts that [`Offline::connect`] connects.
    pub fn new(device: &Device, options: Options) -> Result<Offline, Error> {
        options.check()?;
        let target = Target::new(device, options)?;
        Ok(Offline {
            budget: target.budget.clone(),
            target,
            connections: BTreeMap::new(),
            next: 0,
            now: Instant::now(),
        })
    }

    /// Makes a connection; returns its name.
    pub fn connect(&mut self) -> u64 {
        self.next += 1;
        self.connections.insert(self.next, Connection::new(self.budget.clone()));
        self.target.on_connect(self.next, None);
        self.next
    }

    /// Closes a connection, unless it is closed.
    pub fn disconnect(&mut self, link: u64) {
        let mut closing = vec![link];
        while let Some(link) = closing.pop() {
            if self.connections.remove(&link).is_some() {
                self.target.on_disconnect(link);
                closing.append(&mut self.target.to_close);
            }
        }
    }

    /// The target receives bytes on a connection; nothing happens if it is closed.
    pub fn receive(&mut self, link: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(connection) = self.connections.get_mut(&link).filter(|connection| !connection.is_closing()) else {
                return;
            };
            if connection.is_full() {
                std::thread::yield_now();
                self.poll();
                continue;
            }
            let space = connection.space();
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            connection.received(count);
            self.serve(link);
        }
    }

    /// Gives a connection turns until none of its commands is left.
    fn serve(&mut self, link: u64) {
        let mut has_more = true;
        while has_more && let Some(connection) = self.connections.get_mut(&link) {
            has_more = self.target.serve(link, connection, ADDRESS, self.now).has_more;
            self.poll();
        }
    }

    /// What the target has sent on a connection since.
    pub fn take_sent(&mut self, link: u64) -> Vec<u8> {
        let mut sent = Vec::new();
        while let Some(connection) = self.connections.get_mut(&link)
            && connection.outbox().bytes() > 0
        {
            let before = sent.len();
            connection.outbox().slices().iter().for_each(|slice| sent.extend_from_slice(slice));
            connection.sent(sent.len() - before);
            // There is room now for commands that wait.
            self.serve(link);
        }
        sent
    }

    /// Hands answers to their connections, and closes those that are to be closed.
    fn poll(&mut self) {
        self.target.poll();
        for Reply { origin, status, result, data, after, .. } in std::mem::take(&mut self.target.replies) {
            if let Some(connection) = self.connections.get_mut(&origin.link) {
                if let After::Queue(queue) = after {
                    connection.set_queue(queue);
                    connection.set_transfers(self.target.transfers(origin.link));
                }
                connection.answer(origin.answer(status, result, data));
                if after == After::End {
                    connection.end();
                }
            }
        }
        std::mem::take(&mut self.target.to_close).into_iter().for_each(|link| self.disconnect(link));
    }

    /// Waits for all that is in progress.
    pub fn settle(&mut self) {
        loop {
            self.poll();
            if self.target.engine.is_idle() {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Time passes.
    pub fn pass_time(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.target.tick(self.now);
        self.poll();
    }

    /// Bytes of data that count for commands.
    pub fn used_bytes(&self) -> usize {
        self.budget.used()
    }

    /// Controllers that hosts have.
    pub fn controller_count(&self) -> usize {
        self.target.controllers.len()
    }

    /// The subsystem's name.
    pub fn subsystem(&self) -> &str {
        &self.target.options.subsystem
    }
}
