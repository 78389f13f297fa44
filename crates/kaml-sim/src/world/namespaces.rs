//! Namespaces that come, move and go.
//!
//! Lives here:       commands on namespaces, and what the model knows of them.
//! Lives elsewhere:  commands on what they hold (`world`).

use super::{DELETION_TURNS, End, NAMES, World};
use crate::check::Violation;
use crate::host::Command;
use crate::model::Phase;
use crate::scenario::kind_of;
use kaml_device::{Error, KeyKind, NamespaceChange, NamespaceOptions, StageError};
use std::collections::BTreeSet;

impl World {
    pub(super) fn create(&mut self, which: usize) -> Result<(), End> {
        let is_crowded = self.workload.is_crowded;
        if !is_crowded && !self.naming.is_empty() {
            return Ok(());
        }
        self.waiting.swap_remove(which);
        let name = match is_crowded {
            true => format!("space {}", self.rng.below(NAMES)),
            false => format!("space {} {}", self.next_name, self.model.spaces.len()),
        };
        self.next_name += 1;
        let disk = self.workload.disk(&mut self.rng);
        let keys = if disk.is_some() { KeyKind::U64 } else { self.workload.key_kind(&mut self.rng) };
        let logs = self.draw_logs();
        let kind = kind_of(keys, disk, self.workload.past(&mut self.rng, disk.is_some()));
        let compression = self.workload.compression(&kind, self.next_name);
        let options = NamespaceOptions::new(kind).with_logs(logs).with_compression(compression);
        match self.core.create_namespace(&name, &options) {
            Ok(id) => {
                self.model.add_space(id, name, &options);
                self.naming.push((self.core.request_root(false), id));
                Ok(())
            }
            Err(Error::NamespaceExists(_)) => {
                let has_it = |(other, phase): &(String, Phase)| *other == name && *phase != Phase::Deleting;
                match self.model.spaces.values().any(has_it) {
                    true => Ok(()),
                    false => {
                        Err(Violation::new(format!("there is no namespace {name:?}, it was reported to exist")).into())
                    }
                }
            }
            // Not every shape of flash can have versions.
            Err(Error::TooManyNamespaces { .. } | Error::BadVersionOptions(_)) => Ok(()),
            Err(error) => self.refused(error),
        }
    }

    /// From now on a namespace appends to other logs, some of which may not exist, or be named twice.
    pub(super) fn move_space(&mut self, space: u32) -> Result<(), End> {
        let (count, last) = (self.rng.below(4), self.core.geometry().die_count() - 1);
        let logs: Vec<u32> = (0..count).map(|_| self.rng.below(u64::from(last) + 1) as u32).collect();
        let is_wrong = self.rng.one_in(8);
        let logs: Vec<u32> = logs.into_iter().chain(is_wrong.then_some(last + 1)).collect();
        let is_twice = logs.iter().collect::<BTreeSet<_>>().len() < logs.len();
        let change = NamespaceChange { logs: Some(logs.clone()), ..NamespaceChange::default() };
        match self.core.set_namespace(space, &change) {
            Ok(()) if is_wrong || is_twice => return Err(Violation::new(format!("logs {logs:?} were taken")).into()),
            Ok(()) => {
                let root = self.core.request_root(false);
                self.model.logs.get_mut(&space).expect("made with it").move_to(logs, root);
                self.counts.moves += 1;
                self.answered();
            }
            Err(Error::UnknownLog { log, .. }) if is_wrong && log == last + 1 => self.counts.moves_refused += 1,
            Err(Error::LogTwice(_)) if is_twice => self.counts.moves_refused += 1,
            Err(Error::TooManyNamespaces { .. }) => {}
            Err(error) => self.refused(error)?,
        }
        let found = self.core.namespaces().into_iter().find(|info| info.id == space).map(|info| info.logs);
        match (found, self.model.logs.get(&space)) {
            (Some(found), Some(logs)) if !logs.may_be_reported(&found) => {
                Err(Violation::new(format!("namespace {space} has logs {found:?}, and was given {logs:?}")).into())
            }
            _ => Ok(()),
        }
    }

    fn draw_logs(&mut self) -> Vec<u32> {
        let count = self.core.geometry().die_count();
        if self.rng.one_in(2) { Vec::new() } else { vec![self.rng.below(count.into()) as u32] }
    }

    pub(super) fn delete(&mut self, which: usize, space: u32) -> Result<(), End> {
        let touches = |command: &Command| command.touches(space);
        let there = self.model.spaces.get(&space).is_some_and(|(_, phase)| *phase == Phase::There);
        let is_crowded = self.workload.is_crowded;
        let busy = self.model.is_busy(space)
            || self.waiting.iter().enumerate().any(|(i, command)| i != which && touches(command))
            || self.readings.values().any(|reading| reading.address.0 == space)
            || self.unit_readings.values().any(|reading| reading.put.space == space);
        if !there || !is_crowded && (busy || !self.naming.is_empty() || !self.deletions.is_empty()) {
            self.waiting.swap_remove(which);
            return Ok(());
        }
        match self.core.delete_namespace(space, &BTreeSet::new()) {
            Ok(deletion) => {
                self.waiting.swap_remove(which);
                self.model.spaces.get_mut(&space).expect("just seen").1 = Phase::Deleting;
                self.deletions.push((deletion, space));
                self.counts.deleted_in_use += u64::from(busy);
                Ok(())
            }
            Err(StageError::NeedIndex(id)) => self.load_for(which, id),
            Err(StageError::Busy) => Ok(()),
            Err(StageError::Refused(error) | StageError::RefusedAfter(_, error)) => {
                self.waiting.swap_remove(which);
                self.refused(error)
            }
        }
    }

    /// What a deleted namespace had is counted at some time, or many turns later.
    pub(super) fn finish_deletion(&mut self) {
        let may = self.workload.is_crowded || self.naming.is_empty();
        if may && !self.deletions.is_empty() && self.rng.one_in(DELETION_TURNS) {
            let (deletion, space) = self.deletions.remove(0);
            self.core.finish_deletion(deletion.count(self.core.geometry()));
            self.naming.push((self.core.request_root(false), space));
        }
    }

    pub(super) fn named(&mut self, space: u32) {
        self.answered();
        let (_, phase) = self.model.spaces.get_mut(&space).expect("requested");
        match phase {
            Phase::Creating => {
                *phase = Phase::There;
                self.counts.created += 1;
            }
            Phase::Deleting => {
                self.model.remove_space(space);
                self.counts.deleted += 1;
            }
            Phase::There => {}
        }
    }
}
