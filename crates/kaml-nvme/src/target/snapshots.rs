//! Snapshots of the device, by commands of our own.
//!
//! Lives here:       the snapshots that a controller has open, Open Snapshot, Close Snapshot.
//! Lives elsewhere:  what a snapshot shows (`kaml::Snapshot`), the commands that read through one (`ranges`, `named`), snapshots of versioned
//!                   namespaces (`versions`); the page for people (`docs/nvme-vendor.md`).
//!
//! A snapshot goes with its controller: a host that is gone keeps nothing.

use super::core::{Origin, Outcome, Target};
use super::engine::status_of;
use crate::wire::command::{Command, kv};
use crate::wire::status::Status;
use kaml::{Device, Snapshot};
use std::hash::{BuildHasher, RandomState};

/// Snapshots of one controller at most. What they keep, the device bounds for all of them.
const SNAPSHOTS_MAX: usize = 16;

/// The snapshots that a controller has open.
#[derive(Default)]
pub(crate) struct Snapshots(Vec<(u32, Snapshot)>);

impl Snapshots {
    /// Opens one. Its number is drawn at random: after a new connection, or a restart, a number of before does not name another snapshot.
    fn open(&mut self, device: &Device) -> Result<u32, Status> {
        if self.0.len() >= SNAPSHOTS_MAX {
            return Err(Status::TOO_MANY_SNAPSHOTS);
        }
        let snapshot = device.open_snapshot().map_err(|error| status_of(&error))?;
        let mut drawn = (0u32..).map(|turn| RandomState::new().hash_one(turn) as u32);
        let number = drawn.find(|number| *number != 0 && self.find(*number).is_err());
        let number = number.ok_or(Status::INTERNAL)?;
        self.0.push((number, snapshot));
        Ok(number)
    }

    fn close(&mut self, number: u32) -> Result<(), Status> {
        let at = self.0.iter().position(|(of, _)| *of == number).ok_or(Status::NO_SUCH_SNAPSHOT)?;
        self.0.swap_remove(at);
        Ok(())
    }

    fn find(&self, number: u32) -> Result<&Snapshot, Status> {
        let found = self.0.iter().find(|(of, _)| *of == number);
        found.map(|(_, snapshot)| snapshot).ok_or(Status::NO_SUCH_SNAPSHOT)
    }

    /// What a command reads, by its dword 14: a snapshot, or the present if it is 0.
    pub(super) fn of(&self, command: &Command) -> Result<Option<Snapshot>, Status> {
        match command.cdw14.get() {
            0 => Ok(None),
            number => self.find(number).cloned().map(Some),
        }
    }
}

impl Target {
    /// A command that names all namespaces, if there is one of this kind.
    pub(crate) fn on_all_namespaces(&mut self, origin: Origin, id: u16, command: &Command) -> Option<Outcome> {
        match command.opcode {
            kv::FLUSH => Some(Status::SUCCESS.into()), // whatever completed is durable
            kv::OPEN_SNAPSHOT | kv::CLOSE_SNAPSHOT => Some(self.snapshot_command(id, command).into()),
            kv::READ_CHANGES => Some(self.read_changes(origin, id, command).into()),
            _ => None,
        }
    }

    /// Open Snapshot, whose result is the number of the snapshot, and Close Snapshot, which has that number in dword 10. They are about the whole
    /// device, so they need no namespace.
    pub(crate) fn snapshot_command(&mut self, id: u16, command: &Command) -> Result<u64, Status> {
        let controller = self.controllers.get_mut(&id).ok_or(Status::INTERNAL)?;
        match command.opcode {
            kv::OPEN_SNAPSHOT => controller.snapshots.open(self.engine.device()).map(u64::from),
            _ => controller.snapshots.close(command.cdw10.get()).map(|()| 0),
        }
    }

    /// What a command of a controller reads.
    pub(super) fn snapshot_of(&self, id: u16, command: &Command) -> Result<Option<Snapshot>, Status> {
        self.controllers.get(&id).ok_or(Status::INTERNAL)?.snapshots.of(command)
    }
}
