//! The change stream of a device somewhere else.
//!
//! Lives here:       Read Changes, an iterator over what it returns, records with the times at which they expire.
//! Lives elsewhere:  the data (`wire::changes`), the stream of a local device (`kaml`).
//!
//! The target does not wait for changes: a host that has all of them asks again after a pause, which grows while nothing is committed.

use super::remote::{RemoteDevice, local};
use super::remote_ranges::read_named;
use super::{Error, Execute, KeyValue};
use crate::wire::changes::{ChangesReply, FROM_NOW, decode_changes, expiry_of, put_request};
use crate::wire::command::{Command, kv};
use crate::wire::ranges::{KeyRange, flag};
use crate::wire::status::Status;
use crate::wire::vendor::feature;
use kaml::{Change, ChangesCursor, Changeset, KeyBuf, KnownNamespaces, NamespaceId, NamespaceInfo, Position};
use std::collections::VecDeque;
use std::ops::Bound;
use std::time::{Duration, Instant, SystemTime};

/// Reads are for all namespaces that the host may read.
const ALL_NAMESPACES: u32 = u32::MAX;
/// Bytes of changes that are requested at a time, unless one change has more.
const ROOM: usize = 1 << 20;
/// Pauses while nothing is committed.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// A record with the time at which it expires.
pub type TimedRecord = (KeyBuf, Vec<u8>, Option<SystemTime>);

impl RemoteDevice {
    /// The position after everything that is durable now.
    ///
    /// # Errors
    /// The target has no change stream, or cannot be reached.
    pub fn position(&self) -> Result<Position, kaml::Error> {
        self.read_changes(None, 0).map(|reply| reply.next.position)
    }

    /// The changes after a position, as [`kaml::Device::changes`] has them: of the namespaces that this host may read.
    ///
    /// # Errors
    /// As [`kaml::Device::changes`]; also if the target has no change stream, or cannot be reached.
    pub fn changes(&self, since: Option<&Position>) -> Result<RemoteChanges, kaml::Error> {
        let now = self.position()?;
        let position = since.copied().unwrap_or(now);
        if position.device() != now.device() {
            return Err(foreign(&position));
        }
        let mut changes = RemoteChanges {
            device: self.clone(),
            known: KnownNamespaces::default(),
            generation: 0,
            queue: VecDeque::new(),
            partial: Vec::new(),
            read: position.into(),
            position,
            newest: now,
            failed: false,
        };
        // What is wrong with the position is reported now.
        changes.read_page()?;
        Ok(changes)
    }

    /// What was committed after a position, or the present position; and the namespaces, unless they are of this generation.
    ///
    /// # Errors
    /// As [`RemoteDevice::changes`].
    pub fn read_changes(&self, after: Option<&ChangesCursor>, generation: u64) -> Result<ChangesReply, kaml::Error> {
        if !self.can(feature::CHANGE_STREAM) {
            return Err(local(Error::Unsupported("the change stream"), 0, None));
        }
        let (opening, ring, skip) = match after {
            Some(after) => (after.position.opening(), after.position.ring_bytes(), after.skip),
            None => (0, FROM_NOW, 0),
        };
        let most = self.transfer_bytes_max();
        let mut room = ROOM.min(most);
        loop {
            let mut command = Command::new(kv::READ_CHANGES, ALL_NAMESPACES);
            put_request(&mut command, room, opening, ring, skip, generation);
            let sent = self.execute(command, &[], room).and_then(super::Finished::success);
            match sent {
                Err(error) if room < most && error.status().is_some_and(|status| status.is(Status::SGL_LENGTH)) => {
                    room = most;
                }
                Err(error) if error.status().is_some_and(|status| status.is(Status::SGL_LENGTH)) => {
                    let why = format!(
                        "one change has more than the {most} bytes that a command carries; use the device file"
                    );
                    return Err(kaml::Error::Remote(why));
                }
                Err(error) => return Err(local(error, 0, None)),
                Ok(finished) => {
                    let reply = decode_changes(&finished.data);
                    let reply = reply.ok_or_else(|| local(Error::Unsupported("such changes"), 0, None))?;
                    return match after {
                        Some(after) if after.position.device() != reply.next.position.device() => {
                            Err(foreign(&after.position))
                        }
                        _ => Ok(reply),
                    };
                }
            }
        }
    }

    /// Records of a namespace after a key, in the order of its index, with the times at which they expire, and whether more may follow. At least
    /// one, if there is one.
    ///
    /// # Errors
    /// The namespace holds no records; a value is longer than what a command carries; the target cannot be reached.
    pub fn timed_records(
        &self,
        namespace: NamespaceId,
        after: Option<&KeyBuf>,
        limit: usize,
    ) -> Result<(Vec<TimedRecord>, bool), kaml::Error> {
        let failed = |error| local(error, namespace, None);
        let most = self.transfer_bytes_max();
        let mut room = ROOM.min(most);
        loop {
            let lower = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
            let range = KeyRange { lower, ..KeyRange::ALL };
            let page = self.range_page((0, namespace), &range, flag::TIMES, limit, room).map_err(failed)?;
            let (listed, has_more) = page;
            let mut records = Vec::with_capacity(listed.len());
            let mut is_whole = true;
            for record in listed {
                let timed = record.value.as_deref().and_then(<[u8]>::split_first_chunk);
                let Some((time, value)) = timed else {
                    is_whole = false;
                    break;
                };
                let expires = expiry_of(u64::from_le_bytes(*time)).unwrap_or(None);
                records.push((record.key, value.to_vec(), expires));
            }
            match (is_whole || !records.is_empty(), room < most) {
                (true, _) => return Ok((records, has_more || !is_whole)),
                (false, true) => room = most,
                (false, false) => {
                    let why = format!(
                        "a value of namespace {namespace} has more than the {most} bytes that a command carries"
                    );
                    return Err(kaml::Error::Remote(why));
                }
            }
        }
    }
}

impl RemoteDevice {
    /// Which of some keys exist.
    ///
    /// # Errors
    /// The namespace does not exist, or the target cannot be reached.
    pub fn exist_many(&self, namespace: NamespaceId, keys: &[KeyBuf]) -> Result<Vec<bool>, kaml::Error> {
        let mut exist = Vec::with_capacity(keys.len());
        while exist.len() < keys.len() {
            let rest: Vec<_> = keys[exist.len()..].iter().map(|key| (namespace, key.clone())).collect();
            let space = KeyValue::new(self, namespace);
            let name = || space.name_long_keys(&rest);
            let found = read_named(name, |list| space.exist_named(list, 0, rest.len()));
            match found.map_err(|error| local(error, namespace, None))? {
                found if found.is_empty() => return Err(local(Error::Unsupported("Exist Named"), namespace, None)),
                found => exist.extend(found),
            }
        }
        Ok(exist)
    }
}

fn foreign(position: &Position) -> kaml::Error {
    let why = format!("position {position} is of another device; give one of this device, or read all records again");
    kaml::Error::BadPosition { why }
}

/// The committed changes of a remote device, in their order; as [`kaml::Changes`].
pub struct RemoteChanges {
    device: RemoteDevice,
    known: KnownNamespaces,
    generation: u64,
    queue: VecDeque<Changeset>,
    partial: Vec<Change>,
    read: ChangesCursor,
    position: Position,
    newest: Position,
    failed: bool,
}

impl RemoteChanges {
    /// The position after the last changeset that was returned.
    pub fn resume_position(&self) -> Position {
        self.position
    }

    /// The position after the last commit of the device, when it was last asked.
    pub fn newest(&self) -> Position {
        self.newest
    }

    /// A namespace by its number.
    pub fn namespace(&self, namespace: NamespaceId) -> Option<&NamespaceInfo> {
        self.known.get(namespace)
    }

    fn read_page(&mut self) -> Result<(), kaml::Error> {
        let reply = self.device.read_changes(Some(&self.read), self.generation)?;
        (self.generation, self.newest) = (reply.generation, reply.newest);
        if let Some(namespaces) = reply.namespaces {
            let changes = self.known.update(reply.generation, &namespaces);
            if !changes.is_empty() {
                self.queue.push_back(Changeset::new(self.read.position, changes));
            }
        }
        self.read = reply.next;
        for part in reply.parts {
            let is_last = part.is_last();
            self.partial.extend(part.changes);
            if is_last && !self.partial.is_empty() {
                let changes = std::mem::take(&mut self.partial);
                self.queue.push_back(Changeset::new(part.next.position, changes));
            }
        }
        Ok(())
    }

    /// The next changeset; nothing if none is committed within so long.
    ///
    /// # Errors
    /// As [`kaml::Changes::next_within`]; also if the target cannot be reached.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Changeset>, kaml::Error> {
        let (begin, mut pause) = (Instant::now(), PAUSE_MIN);
        loop {
            if let Some(next) = self.queue.pop_front() {
                self.position = next.position;
                return Ok(Some(next));
            }
            let before = self.read;
            self.read_page()?;
            if !self.queue.is_empty() || self.read != before {
                continue;
            }
            let Some(left) = timeout.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) else {
                return Ok(None);
            };
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

impl Iterator for RemoteChanges {
    type Item = Result<Changeset, kaml::Error>;

    /// Waits for the next changeset. There is none after an error.
    fn next(&mut self) -> Option<Result<Changeset, kaml::Error>> {
        while !self.failed {
            match self.next_within(Duration::from_secs(3600)) {
                Ok(Some(next)) => return Some(Ok(next)),
                Ok(None) => {}
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
