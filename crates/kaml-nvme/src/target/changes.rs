//! The change stream, by a command of our own.
//!
//! Lives here:       Read Changes.
//! Lives elsewhere:  its data (`wire::changes`), who reads (`workers`), the changes (`kaml`); the page for people (`docs/nvme-vendor.md`).
//!
//! The target keeps nothing for a host that reads changes: the host has its position. A host sees the namespaces that it may read.

use super::access::Right;
use super::core::{Origin, Target};
use super::engine::status_of;
use super::keyvalue::room;
use crate::wire::changes::{ChangesReply, FROM_NOW, HEAD_BYTES, encode_changes, get_request};
use crate::wire::command::Command;
use crate::wire::status::Status;
use crate::wire::vendor::namespaces_bytes;
use kaml::{Change, ChangesCursor, Device, NamespaceInfo, Position};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

impl Target {
    /// Returns what was committed after a position, as much as there is room for. Does not wait.
    pub(crate) fn read_changes(&mut self, origin: Origin, id: u16, command: &Command) -> Result<(), Status> {
        let controller = self.controllers.get(&id).ok_or(Status::INTERNAL)?;
        let rights = self.options.access.rights(&controller.host.nqn).ok_or(Status::OPERATION_DENIED)?.clone();
        let (request, room) = (get_request(command), room(command));
        self.engine.start_read(origin, move |worker| {
            let may_read = |info: &NamespaceInfo| rights.on(&info.name) >= Right::Read;
            changes_after(&worker.device, request, room, may_read).map(|data| (0, data)).into()
        });
        Ok(())
    }
}

fn changes_after(
    device: &Device,
    (opening, ring, skip, known): (u64, u64, u32, u64),
    room: usize,
    may_read: impl Fn(&NamespaceInfo) -> bool,
) -> Result<Vec<u8>, Status> {
    let failed = |error| status_of(&error);
    let now = device.position().map_err(failed)?;
    let is_from_now = ring == FROM_NOW;
    let position = if is_from_now { now } else { Position::from_parts(now.device(), opening, ring) };
    let after = ChangesCursor { position, skip: if is_from_now { 0 } else { skip } };
    let most = room.saturating_sub(HEAD_BYTES);
    let mut budget = most;
    // The namespaces come first, if they are news, and take their room. They are those of the page: no change is of a later one.
    let (mut page, visible, generation) = loop {
        let page = device.changes_page(&after, if is_from_now { 0 } else { budget }).map_err(failed)?;
        let visible: Vec<NamespaceInfo> = page.namespaces.iter().filter(|info| may_read(info)).cloned().collect();
        let generation = generation_of(&visible);
        let left = if generation == known { most } else { most.saturating_sub(namespaces_bytes(visible.len())) };
        if budget <= left || is_from_now {
            break (page, visible, generation);
        }
        if left == 0 {
            return Err(Status::SGL_LENGTH);
        }
        budget = left;
    };
    let is_news = generation != known;
    let ids: BTreeSet<u32> = visible.iter().map(|info| info.id).collect();
    for part in &mut page.parts {
        part.changes.retain(|change| namespace_of(change).is_some_and(|id| ids.contains(&id)));
    }
    page.parts.retain(|part| !part.changes.is_empty() || part.is_last());
    let namespaces = is_news.then_some(visible);
    let reply = ChangesReply { next: page.next, newest: page.newest, generation, namespaces, parts: page.parts };
    let data = encode_changes(&reply);
    if data.len() > room { Err(Status::SGL_LENGTH) } else { Ok(data) }
}

fn namespace_of(change: &Change) -> Option<u32> {
    match change {
        Change::Put { namespace, .. }
        | Change::Delete { namespace, .. }
        | Change::DeleteRange { namespace, .. }
        | Change::Version { namespace, .. }
        | Change::VersionCommand { namespace, .. } => Some(*namespace),
        _ => None,
    }
}

/// A number that is another one when the namespaces that a host may read, or their attributes, are others.
fn generation_of(visible: &[NamespaceInfo]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for info in visible {
        (info.id, &info.name, &info.logs, info.default_ttl_ms).hash(&mut hasher);
        format!("{:?}", info.kind).hash(&mut hasher);
    }
    hasher.finish().max(1)
}
