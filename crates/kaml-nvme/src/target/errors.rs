//! The error log: commands that failed, wherever that was found.
//!
//! Lives here:       what an entry contains of a command, where in it the fault lies, which failures do not count.
//! Lives elsewhere:  the entries' layout (`wire::logs`), the entries of a controller (`controller`), reading them (`logs`).
//! Implements:       spec:NVMe-Base "Error Information (Log Identifier 01h)".

use super::core::{ALL_NAMESPACES, Origin, Role, Target};
use super::spaces::Holds;
use crate::wire::command::{Command, CommandSet, FABRICS, admin, kv, nvm};
use crate::wire::logs::ErrorEntry;
use crate::wire::status::Status;
use zerocopy::FromZeros;

/// No single field is to blame.
const NOWHERE: u16 = 0xffff;
/// The entry contains command set and opcode.
const ENTRY_VERSION: u8 = 1;
/// The transport that it came by.
const TCP: u8 = 3;

/// What of a command is remembered until it completes, for the case that it fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandSummary {
    opcode: u8,
    nsid: u32,
    /// Dwords 10 and 11: the first block, if it is a command on a range of blocks.
    first: u64,
}

impl CommandSummary {
    pub(crate) fn of(command: &Command) -> CommandSummary {
        let first = u64::from(command.cdw10.get()) | u64::from(command.cdw11.get()) << 32;
        CommandSummary { opcode: command.opcode, nsid: command.nsid.get(), first }
    }

    /// Whether an I/O command names namespaces and keys in its data, or before, too.
    fn names_more(&self) -> bool {
        matches!(self.opcode, kv::PUT | kv::NAME_KEYS | kv::RETRIEVE_NAMED | kv::EXIST_NAMED)
    }

    /// Whether an I/O command names keys in its data.
    fn names_keys(&self) -> bool {
        self.names_more() || matches!(self.opcode, kv::NAME_RANGE | kv::COUNT_RANGE | kv::DELETE_RANGE)
    }

    /// Whether the command may be about a namespace.
    pub(crate) fn may_touch(&self, nsid: u32) -> bool {
        self.nsid == nsid || self.nsid == ALL_NAMESPACES || self.names_more()
    }
}

/// Where in a command the field lies that a status is about: its byte, and its bit above that. `set` is that of the namespace;
/// none for commands that are not for one.
fn location(summary: &CommandSummary, set: Option<CommandSet>, status: Status) -> u16 {
    let is = |other: Status| status.is(other);
    let on_records = set == Some(CommandSet::KeyValue);
    let names_more = on_records && summary.names_more();
    match summary.opcode {
        FABRICS if is(Status::INVALID_OPCODE) => 4,
        _ if is(Status::INVALID_OPCODE) => 0,
        _ if is(Status::INVALID_NAMESPACE) && !names_more => 4,
        _ if is(Status::SGL_OFFSET) => 24,
        _ if is(Status::SGL_LENGTH) => 32,
        _ if is(Status::SGL_TYPE) => 39,
        kv::STORE if on_records && is(Status::INVALID_VALUE_SIZE) => 40,
        _ if on_records && !summary.names_keys() && is(Status::INVALID_KEY_SIZE) => 44,
        kv::RETRIEVE_NAMED | kv::EXIST_NAMED | kv::RETRIEVE_RANGE if on_records && is(Status::NO_SUCH_LIST) => 44,
        kv::CLOSE_SNAPSHOT if is(Status::NO_SUCH_SNAPSHOT) => 40,
        kv::RETRIEVE_NAMED | kv::EXIST_NAMED | kv::RETRIEVE_RANGE | kv::COUNT_RANGE
            if on_records && is(Status::NO_SUCH_SNAPSHOT) =>
        {
            56
        }
        opcode if set == Some(CommandSet::Nvm) && is(Status::LBA_OUT_OF_RANGE) && is_on_range(opcode) => 40,
        admin::GET_LOG_PAGE if set.is_none() && is(Status::INVALID_LOG_PAGE) => 40,
        admin::GET_LOG_PAGE if set.is_none() && is(Status::COMMAND_SET_UNSUPPORTED) => 59,
        admin::IDENTIFY | admin::NAMESPACE_MANAGEMENT if set.is_none() && is(Status::COMMAND_SET_UNSUPPORTED) => 47,
        admin::SET_FEATURES if set.is_none() && is(Status::NOT_SAVEABLE) => 7 << 8 | 43,
        admin::SET_FEATURES if set.is_none() && is(Status::NOT_CHANGEABLE) => 40,
        _ => NOWHERE,
    }
}

fn is_on_range(opcode: u8) -> bool {
    matches!(opcode, nvm::READ | nvm::WRITE | nvm::COMPARE | nvm::WRITE_ZEROES | nvm::VERIFY)
}

/// Failing so is an ordinary answer.
fn is_ordinary(status: Status) -> bool {
    status.is_success() || status.is(Status::NO_SUCH_KEY) || status.is(Status::KEY_EXISTS)
}

/// The medium has lost something, or could not take it.
fn is_of_medium(status: Status) -> bool {
    [Status::UNRECOVERED_READ, Status::WRITE_FAULT, Status::UNRECOVERED].into_iter().any(|other| status.is(other))
}

/// Logs a failed command.
fn log_failure(origin: &Origin, status: Status) {
    let (link, controller, namespace) = (origin.link, origin.controller, origin.summary.nsid);
    let opcode = origin.summary.opcode;
    tracing::debug!(link, controller, opcode = format_args!("{opcode:02x}h"), namespace, %status, "a command failed");
}

impl Target {
    /// A command completes: puts it into the error log of its controller if it has failed.
    pub(crate) fn note(&mut self, origin: &Origin, status: Status) {
        if is_ordinary(status) {
            return;
        }
        log_failure(origin, status);
        self.media_error_count += u64::from(is_of_medium(status));
        let (id, queue) = match self.roles.get(&origin.link) {
            Some(Role::Admin(id)) => (*id, 0),
            Some(Role::Io(id, queue)) => (*id, *queue),
            Some(Role::Nobody | Role::Pending) | None => return,
        };
        let summary = &origin.summary;
        let space = self.spaces.get(&summary.nsid).filter(|_| queue != 0 && summary.opcode != FABRICS);
        let set = space.map(|space| space.set());
        let mut entry = ErrorEntry::new_zeroed();
        (entry.queue, entry.cid, entry.status) = (queue.into(), origin.cid.into(), status.field().into());
        entry.location = location(summary, set, status).into();
        entry.nsid = summary.nsid.into();
        if space.is_some_and(|space| matches!(space.holds, Holds::Blocks(_))) && is_on_range(summary.opcode) {
            entry.lba = summary.first.into();
        }
        (entry.transport, entry.opcode, entry.version) = (TCP, summary.opcode, ENTRY_VERSION);
        entry.csi = set.map_or(0, CommandSet::csi);
        if let Some(controller) = self.controllers.get_mut(&id) {
            controller.note_error(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   a field is blamed only if it is the one.
    /// Method: the same status of several commands.
    #[test]
    fn faults_are_located() {
        let at = |opcode, set, status| location(&CommandSummary { opcode, ..CommandSummary::default() }, set, status);
        let (records, blocks) = (Some(CommandSet::KeyValue), Some(CommandSet::Nvm));
        assert_eq!(at(kv::STORE, records, Status::INVALID_VALUE_SIZE), 40);
        assert_eq!(at(kv::PUT, records, Status::INVALID_VALUE_SIZE), NOWHERE, "it is in the data");
        assert_eq!(at(kv::EXIST, records, Status::INVALID_KEY_SIZE), 44);
        assert_eq!(at(kv::DELETE_RANGE, records, Status::INVALID_KEY_SIZE), NOWHERE, "it is in the data");
        assert_eq!(at(kv::NAME_KEYS, records, Status::INVALID_NAMESPACE), NOWHERE, "it may be in the data");
        assert_eq!(at(nvm::READ, None, Status::INVALID_NAMESPACE), 4);
        assert_eq!(at(nvm::READ, blocks, Status::LBA_OUT_OF_RANGE), 40);
        assert_eq!(at(nvm::DATASET_MANAGEMENT, blocks, Status::LBA_OUT_OF_RANGE), NOWHERE, "it is in the data");
        assert_eq!(at(FABRICS, None, Status::INVALID_OPCODE), 4, "the type");
        assert_eq!(at(admin::SET_FEATURES, None, Status::NOT_SAVEABLE), 0x72b, "bit 31 of dword 10");
        assert_eq!(at(kv::STORE, records, Status::CAPACITY_EXCEEDED), NOWHERE);
    }
}
