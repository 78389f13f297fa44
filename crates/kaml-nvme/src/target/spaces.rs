//! Namespaces as hosts see them.
//!
//! Lives here:       what a namespace holds, which ones there are, which are attached, hosts that are notified of changes.
//! Lives elsewhere:  commands that manage them (`namespaces`), what hosts may do with them (`rights`).

use super::access::Right;
use super::controller::{Controller, Kind, NAMESPACE_EVENTS};
use super::core::{ALL_NAMESPACES, Role, Target};
use super::workers::Change;
use crate::wire::command::CommandSet;
use crate::wire::status::Status;
use kaml::{BlockInfo, KeyKind, NamespaceId};
use std::collections::BTreeMap;

/// A namespace as hosts see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) id: NamespaceId,
    pub(crate) holds: Holds,
    /// Deleting a key that does not exist is an error (feature 20h).
    pub(crate) delete_must_exist: bool,
}

/// What a namespace holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Records by such keys.
    Records(KeyKind),
    /// Records by such keys, with every version of each.
    Versions(KeyKind),
    /// Logical blocks; how many were in use when it was first seen.
    Blocks(BlockInfo),
}

impl Space {
    /// The command set that it is for.
    pub(crate) fn set(&self) -> CommandSet {
        match self.holds {
            Holds::Records(_) | Holds::Versions(_) => CommandSet::KeyValue,
            Holds::Blocks(_) => CommandSet::Nvm,
        }
    }

    /// Whether even looking for a key may read flash, which an event loop does not wait for.
    pub(crate) fn look_may_read(&self) -> bool {
        match self.holds {
            Holds::Records(_) | Holds::Blocks(_) => false,
            Holds::Versions(_) => true,
        }
    }
}

impl Target {
    /// A namespace that is attached to a controller which has enabled its command set, and that its host may read.
    pub(crate) fn attached(&self, id: u16, nsid: u32) -> Result<&Space, Status> {
        self.attached_with_right(id, nsid).map(|(space, _)| space)
    }

    /// The same, and what the host may do with it.
    pub(crate) fn attached_with_right(&self, id: u16, nsid: u32) -> Result<(&Space, Right), Status> {
        let controller = self.controllers.get(&id).ok_or(Status::INTERNAL)?;
        let right = controller.held.on(nsid);
        let is_there = |_: &&Space| !controller.detached.contains(&nsid) && right >= Right::Read;
        let enabled = |space: &&Space| match controller.configuration().command_sets() {
            0 => space.set() == CommandSet::Nvm,
            set => set == 6,
        };
        let space = self.spaces.get(&nsid).filter(is_there).filter(enabled);
        space.map(|space| (space, right)).ok_or(Status::INVALID_NAMESPACE)
    }

    /// A worker has created or deleted a namespace for the host after a link.
    pub(crate) fn managed(&mut self, link: u64, change: Change) {
        self.managing -= 1;
        if let Change::Deleted(id) = change {
            // The host that deleted it knows; the others are notified below.
            self.spaces.remove(&id);
        }
        if let Change::Created(id) = change {
            // Created is not attached (spec:NVMe-Base "Namespace Management").
            self.controllers.values_mut().for_each(|controller| {
                controller.detached.insert(id);
            });
        }
        self.refresh();
        // A host that deletes all of them names none: the deleted ones were reported just now.
        if let Change::Deleted(id) = change
            && id != ALL_NAMESPACES
        {
            let by = self.roles.get(&link).copied();
            let has_lost =
                |controller: &Controller| by != Some(Role::Admin(controller.id)) && !controller.detached.contains(&id);
            self.notify_of_namespace(id, has_lost);
            self.controllers.values_mut().for_each(|controller| {
                controller.detached.remove(&id);
            });
        }
    }

    /// Notifies the controllers for which a namespace exists, or existed, that it has changed.
    pub(crate) fn notify_of_namespace(&mut self, nsid: u32, whom: impl Fn(&Controller) -> bool) {
        self.notify_of_namespace_anyway(nsid, |controller| controller.held.on(nsid) >= Right::Read && whom(controller));
    }

    /// The same, also those whose host may not read it any more.
    pub(crate) fn notify_of_namespace_anyway(&mut self, nsid: u32, whom: impl Fn(&Controller) -> bool) {
        for controller in self.controllers.values_mut() {
            let hears = controller.kind == Kind::Storage && controller.event_mask & NAMESPACE_EVENTS != 0;
            if hears && whom(controller) {
                controller.change_namespace(nsid);
            }
        }
    }

    /// Looks which namespaces there are, and reports those that came and went by other hands than a host's.
    pub(crate) fn refresh(&mut self) {
        if self.managing > 0 {
            return;
        }
        let infos = self.engine.device().namespaces();
        let now: BTreeMap<u32, Space> = infos.iter().filter_map(|info| Some((info.id, self.space(info)?))).collect();
        let gone = self.spaces.keys().filter(|id| !now.contains_key(id));
        let come = now.keys().filter(|id| !self.spaces.contains_key(id));
        let changed: Vec<u32> = gone.chain(come).copied().collect();
        self.spaces = now;
        self.reservations.retain(|id, _| self.spaces.contains_key(id));
        self.hold_all(&infos);
        for id in changed {
            self.notify_of_namespace(id, |controller| !controller.detached.contains(&id));
        }
    }

    /// As it is known already, because ids are never used again; nothing if it is gone meanwhile.
    fn space(&self, info: &kaml::NamespaceInfo) -> Option<Space> {
        if let Some(known) = self.spaces.get(&info.id) {
            return Some(*known);
        }
        let holds = match info.kind {
            kaml::NamespaceKind::Records(keys) => Holds::Records(keys),
            kaml::NamespaceKind::Versions(keys, _) => Holds::Versions(keys),
            kaml::NamespaceKind::Blocks(_) => Holds::Blocks(self.engine.device().block_info(info.id).ok()?),
        };
        Some(Space { id: info.id, holds, delete_must_exist: false })
    }
}
