//! What a connected host may do with each namespace.
//!
//! Lives here:       the rights of each controller by namespace, what a right is needed for, changes of rights.
//! Lives elsewhere:  who has which right (`access`), what reservations allow besides (`reservations`), commands that ask (`core`,
//!                   `namespaces`, `identify`).
//! Implements:       docs/nvme.md "What hosts may do".
//!
//! A namespace that a host may not read does not exist for it. Rights are kept by the numbers of namespaces, because commands name them
//! so; they are looked up by name again after namespaces or rights have changed.

use super::access::Right;
use super::controller::{Controller, Kind};
use super::core::Target;
use super::reservations::Use;
use super::spaces::Space;
use crate::wire::status::Status;
use kaml::{NamespaceId, NamespaceInfo};
use std::collections::{BTreeMap, BTreeSet};

/// The rights of a controller. All that it may do everywhere is one value, which costs a command nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// On each namespace that is not listed.
    others: Right,
    listed: BTreeMap<NamespaceId, Right>,
    creates: bool,
}

impl Held {
    /// No rights yet.
    pub(crate) fn none() -> Held {
        Held { others: Right::None, listed: BTreeMap::new(), creates: false }
    }

    /// The right on a namespace.
    pub(crate) fn on(&self, nsid: NamespaceId) -> Right {
        if self.listed.is_empty() { self.others } else { self.listed.get(&nsid).copied().unwrap_or(self.others) }
    }
}

impl Right {
    /// Refuses what the right does not include.
    pub(crate) fn check(self, way: Use) -> Result<(), Status> {
        match way {
            Use::Read if self < Right::Read => Err(Status::INVALID_NAMESPACE),
            Use::Write if self < Right::Write => Err(Status::WRITE_PROTECTED),
            Use::Read | Use::Write => Ok(()),
        }
    }
}

impl Target {
    /// What a controller's host may do with a namespace.
    pub(crate) fn right(&self, id: u16, nsid: NamespaceId) -> Right {
        self.controllers.get(&id).map_or(Right::None, |controller| controller.held.on(nsid))
    }

    /// A namespace that exists for a controller's host, attached or not.
    pub(crate) fn seen(&self, id: u16, nsid: NamespaceId) -> Option<&Space> {
        self.spaces.get(&nsid).filter(|_| self.right(id, nsid) >= Right::Read)
    }

    /// Refuses what a host may not do with a namespace that it can read, or what a reservation keeps it from.
    pub(crate) fn check_use(&self, id: u16, nsid: NamespaceId, way: Use) -> Result<(), Status> {
        self.right(id, nsid).check(way)?;
        self.check_reservation(id, nsid, way)
    }

    /// Refuses what only administrators of a namespace may do with it.
    pub(crate) fn check_administers(&self, id: u16, nsid: NamespaceId) -> Result<(), Status> {
        if self.right(id, nsid) < Right::Administer {
            tracing::info!(controller = id, namespace = nsid, "refused: the host does not administer the namespace");
            return Err(Status::OPERATION_DENIED);
        }
        self.check_reservation(id, nsid, Use::Write)
    }

    /// Refuses to create namespaces for hosts that may not.
    pub(crate) fn check_creates(&self, id: u16) -> Result<(), Status> {
        if self.controllers.get(&id).is_some_and(|controller| controller.held.creates) {
            return Ok(());
        }
        tracing::info!(controller = id, "refused: the host may not create namespaces");
        Err(Status::OPERATION_DENIED)
    }

    /// Looks up what a controller's host may do.
    pub(crate) fn hold(&mut self, id: u16) {
        let infos = self.engine.device().namespaces();
        self.hold_of(id, &infos);
    }

    /// Looks up what all hosts may do, after namespaces or rights have changed.
    pub(crate) fn hold_all(&mut self, infos: &[NamespaceInfo]) {
        let ids: Vec<u16> = self.controllers.keys().copied().collect();
        ids.into_iter().for_each(|id| self.hold_of(id, infos));
    }

    /// A host hears of namespaces that have come, gone, or become others for it.
    fn hold_of(&mut self, id: u16, infos: &[NamespaceInfo]) {
        let access = &self.options.access;
        let Some(controller) = self.controllers.get_mut(&id).filter(|one| one.kind == Kind::Storage) else { return };
        let held = match access.rights(&controller.host.nqn) {
            None => Held::none(),
            Some(rights) => {
                let differ = |info: &&NamespaceInfo| rights.on(&info.name) != rights.others;
                // Without names there is nothing to look up.
                let named: &[NamespaceInfo] = if rights.namespaces.is_empty() { &[] } else { infos };
                let listed = named.iter().filter(differ).map(|info| (info.id, rights.on(&info.name))).collect();
                Held { others: rights.others, listed, creates: rights.creates }
            }
        };
        let before = std::mem::replace(&mut controller.held, held);
        let is_new = before == Held::none();
        if is_new || before == controller.held {
            return;
        }
        let is_other = |nsid: NamespaceId, controller: &Controller| before.on(nsid) != controller.held.on(nsid);
        // Those that are gone were among them, if they were others.
        let known: BTreeSet<u32> = infos.iter().map(|info| info.id).chain(before.listed.keys().copied()).collect();
        let changed: Vec<u32> = known.into_iter().filter(|nsid| is_other(*nsid, controller)).collect();
        changed.into_iter().for_each(|nsid| self.notify_of_namespace_anyway(nsid, |one| one.id == id));
    }
}
