//! Admin commands: dispatch, features, abort, events, keep-alive.
//!
//! Lives here:       what fits in a few lines each.
//! Lives elsewhere:  Identify (`identify`), Get Log Page (`logs`), namespaces (`namespaces`).
//! Implements:       spec:NVMe-Base "Admin Command Set", "Features".

use super::access::Right;
use super::controller::{IO_QUEUES_MAX, Kind, THRESHOLDS_KELVIN};
use super::core::{ALL_NAMESPACES, Origin, Outcome, Role, Target};
use super::engine::Reply;
use super::spaces::Holds;
use crate::wire::command::{Command, admin};
use crate::wire::session::name_of;
use crate::wire::status::Status;
use std::net::SocketAddr;

/// Feature identifiers.
mod feature {
    pub(super) const ARBITRATION: u8 = 0x01;
    pub(super) const POWER: u8 = 0x02;
    pub(super) const TEMPERATURE: u8 = 0x04;
    pub(super) const ERROR_RECOVERY: u8 = 0x05;
    pub(super) const WRITE_CACHE: u8 = 0x06;
    pub(super) const QUEUES: u8 = 0x07;
    pub(super) const INTERRUPT_VECTOR: u8 = 0x09;
    pub(super) const ATOMICITY: u8 = 0x0a;
    pub(super) const EVENTS: u8 = 0x0b;
    pub(super) const KEEP_ALIVE: u8 = 0x0f;
    pub(super) const HOST_BEHAVIOUR: u8 = 0x16;
    pub(super) const COMMAND_SETS: u8 = 0x19;
    pub(super) const KEY_VALUE: u8 = 0x20;
    pub(super) const HOST_ID: u8 = 0x81;
    pub(super) const RESERVATION_NOTICES: u8 = 0x82;
    pub(super) const RESERVATION_PERSISTENCE: u8 = 0x83;
}

/// Bytes of the Host Behaviour Support feature.
const HOST_BEHAVIOUR_BYTES: usize = 512;

impl Target {
    pub(crate) fn admin(
        &mut self,
        origin: Origin,
        id: u16,
        local: SocketAddr,
        command: &Command,
        data: &[u8],
    ) -> Outcome {
        let kind = self.controllers.get(&id).map(|controller| controller.kind);
        let storage = kind == Some(Kind::Storage);
        match command.opcode {
            admin::IDENTIFY => self.identify(id, command).into(),
            admin::GET_LOG_PAGE => self.log_page(id, local, command).into(),
            admin::KEEP_ALIVE => Status::SUCCESS.into(),
            admin::ASYNC_EVENT => match self.controllers.get_mut(&id) {
                Some(controller) => controller.wait_for_event(origin).into(),
                None => Status::INTERNAL.into(),
            },
            admin::ABORT => self.abort(id, command).into(),
            admin::GET_FEATURES => self.get_feature(id, command),
            admin::SET_FEATURES => self.set_feature(id, command, data).into(),
            admin::NAMESPACE_MANAGEMENT if storage => self.manage_namespace(origin, id, command, data),
            admin::NAMESPACE_ATTACHMENT if storage => self.attach_namespace(id, command, data).into(),
            admin::BEGIN_SESSION if storage => self.begin_session(id, command).into(),
            admin::SET_NAMESPACE if storage => self.change_namespace(origin, id, command, data).into(),
            _ => Status::INVALID_OPCODE.into(),
        }
    }

    /// Begins a session of numbered commands, or joins it; the result is its identifier.
    fn begin_session(&mut self, id: u16, command: &Command) -> Result<u64, Status> {
        let controller = self.controllers.get_mut(&id).ok_or(Status::INTERNAL)?;
        if let Some(before) = controller.session.take() {
            self.sessions.leave(before);
        }
        controller.session = self.sessions.join(controller.host.id, name_of(command));
        controller.session.ok_or(Status::INTERNAL)
    }

    /// Of the commands that can be in flight for long, only event requests can be aborted. Bit 0 of the result: not
    /// aborted.
    fn abort(&mut self, id: u16, command: &Command) -> Result<u64, Status> {
        let (queue, cid) = (command.cdw10.get() as u16, (command.cdw10.get() >> 16) as u16);
        let controller = self.controllers.get_mut(&id).ok_or(Status::INTERNAL)?;
        let Some(origin) = (queue == 0).then(|| controller.abort_event(cid)).flatten() else { return Ok(1) };
        self.replies.push(Reply::of(origin, Status::ABORT_REQUESTED));
        Ok(0)
    }

    fn get_feature(&mut self, id: u16, command: &Command) -> Outcome {
        let (fid, select) = (command.cdw10.get() as u8, command.cdw10.get() >> 8 & 7);
        let value = match self.feature(id, fid, command) {
            Ok(value) => value,
            Err(status) => return status.into(),
        };
        match select {
            // Current; nothing is saved, and saved values are then the defaults.
            0 if fid == feature::HOST_BEHAVIOUR => Outcome::Done(Status::SUCCESS, 0, vec![0; HOST_BEHAVIOUR_BYTES]),
            0 if fid == feature::HOST_ID => self.host_id(id).into(),
            0 => Outcome::Done(Status::SUCCESS, u64::from(value), Vec::new()),
            1 | 2 => Outcome::Done(Status::SUCCESS, u64::from(Self::default_feature(fid, command)), Vec::new()),
            // Capabilities: bit 1 namespace specific, bit 2 changeable, bit 0 saveable.
            3 => {
                let changeable = !matches!(fid, feature::WRITE_CACHE | feature::COMMAND_SETS | feature::HOST_ID);
                let own = u64::from(is_of_namespace(fid));
                Outcome::Done(Status::SUCCESS, own << 1 | u64::from(changeable) << 2, Vec::new())
            }
            _ => Status::INVALID_FIELD.into(),
        }
    }

    /// As the admin queue's Connect has set it.
    fn host_id(&self, id: u16) -> Result<Vec<u8>, Status> {
        self.controllers.get(&id).map(|controller| controller.host.id.to_vec()).ok_or(Status::INTERNAL)
    }

    fn default_feature(fid: u8, command: &Command) -> u32 {
        match fid {
            feature::TEMPERATURE => threshold(command).map_or(0, |which| THRESHOLDS_KELVIN[which].into()),
            feature::QUEUES => queue_counts(IO_QUEUES_MAX),
            _ => 0,
        }
    }

    fn feature(&self, id: u16, fid: u8, command: &Command) -> Result<u32, Status> {
        let controller = self.controllers.get(&id).ok_or(Status::INTERNAL)?;
        match fid {
            feature::EVENTS => return Ok(controller.event_mask),
            feature::KEEP_ALIVE => return Ok(controller.keep_alive_ms()),
            _ if controller.kind == Kind::Discovery => return Err(Status::INVALID_FIELD),
            _ => {}
        }
        match fid {
            feature::QUEUES => Ok(queue_counts(controller.queues_granted)),
            feature::KEY_VALUE => {
                let space = self.attached(id, command.nsid.get())?;
                match space.holds {
                    Holds::Records(_) | Holds::Versions(_) => Ok(u32::from(space.delete_must_exist)),
                    Holds::Blocks(_) => Err(Status::INVALID_FIELD),
                }
            }
            feature::RESERVATION_NOTICES | feature::RESERVATION_PERSISTENCE if command.nsid == ALL_NAMESPACES => Ok(0),
            feature::RESERVATION_NOTICES => {
                let nsid = self.attached(id, command.nsid.get())?.id;
                Ok(controller.notice_masks.get(&nsid).copied().unwrap_or(0))
            }
            feature::RESERVATION_PERSISTENCE => {
                let nsid = self.attached(id, command.nsid.get())?.id;
                Ok(self.reservations.get(&nsid).is_some_and(|reservations| reservations.persists()).into())
            }
            feature::WRITE_CACHE | feature::HOST_BEHAVIOUR | feature::COMMAND_SETS | feature::HOST_ID => Ok(0),
            feature::TEMPERATURE => Ok(controller.thresholds_kelvin[threshold(command)?].into()),
            _ if is_kept(fid) => Ok(controller.features.get(&fid).copied().unwrap_or(0)),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn set_feature(&mut self, id: u16, command: &Command, data: &[u8]) -> Result<u64, Status> {
        let (fid, save) = (command.cdw10.get() as u8, command.cdw10.get() >> 31 != 0);
        let value = command.cdw11.get();
        self.feature(id, fid, command)?;
        if save {
            return Err(Status::NOT_SAVEABLE);
        }
        if fid == feature::RESERVATION_PERSISTENCE {
            let all = command.nsid == ALL_NAMESPACES;
            let nsids: Vec<u32> = self.spaces.keys().copied().filter(|nsid| all || command.nsid == *nsid).collect();
            let may = |nsid: &u32| self.right(id, *nsid) >= Right::Write;
            let (allowed, refused): (Vec<u32>, Vec<u32>) = nsids.into_iter().partition(may);
            if !all && !refused.is_empty() {
                return Err(Status::OPERATION_DENIED);
            }
            return allowed.into_iter().try_for_each(|nsid| self.set_persistence(nsid, value & 1 == 1)).map(|()| 0);
        }
        if fid == feature::KEY_VALUE && self.right(id, command.nsid.get()) < Right::Write {
            return Err(Status::WRITE_PROTECTED); // it applies to all hosts
        }
        let controller = self.controllers.get_mut(&id).ok_or(Status::INTERNAL)?;
        match fid {
            feature::EVENTS => controller.event_mask = value,
            feature::KEEP_ALIVE => controller.set_keep_alive_ms(value),
            feature::TEMPERATURE => controller.thresholds_kelvin[threshold(command)?] = value as u16,
            feature::QUEUES => {
                let (submission, completion) = (value as u16, (value >> 16) as u16);
                if submission == u16::MAX || completion == u16::MAX {
                    return Err(Status::INVALID_FIELD);
                }
                if !controller.io_links.is_empty() {
                    return Err(Status::COMMAND_SEQUENCE);
                }
                // Over fabrics a queue is a pair.
                controller.queues_granted = (submission.min(completion) + 1).min(IO_QUEUES_MAX);
                return Ok(u64::from(queue_counts(controller.queues_granted)));
            }
            feature::KEY_VALUE => {
                let space = self.spaces.get_mut(&command.nsid.get()).ok_or(Status::INVALID_NAMESPACE)?;
                space.delete_must_exist = value & 1 != 0;
            }
            feature::RESERVATION_NOTICES => {
                let all = command.nsid == ALL_NAMESPACES;
                let nsids = self.spaces.keys().filter(|nsid| all || **nsid == command.nsid.get());
                controller.notice_masks.extend(nsids.map(|nsid| (*nsid, value)));
            }
            feature::RESERVATION_PERSISTENCE => unreachable!("it was set before"),
            feature::HOST_BEHAVIOUR if data.len() < HOST_BEHAVIOUR_BYTES => return Err(Status::SGL_LENGTH),
            feature::HOST_BEHAVIOUR => {}                     // nothing here depends on it
            feature::COMMAND_SETS if value & 0x1ff == 0 => {} // the one combination there is
            feature::COMMAND_SETS => return Err(Status::INVALID_FIELD),
            feature::HOST_ID => return Err(Status::COMMAND_SEQUENCE), // Connect has set it
            feature::WRITE_CACHE => return Err(Status::NOT_CHANGEABLE), // there is none
            _ => {
                controller.features.insert(fid, value);
            }
        }
        Ok(0)
    }

    /// The link of a controller's admin queue, for hosts that must not be notified of their own changes.
    pub(crate) fn is_by(&self, origin: Origin, id: u16) -> bool {
        self.roles.get(&origin.link) == Some(&Role::Admin(id))
    }

    /// A namespace that exists, attached or not.
    pub(crate) fn allocated(&self, id: u16, nsid: u32) -> Result<&super::spaces::Space, Status> {
        match nsid {
            0 | ALL_NAMESPACES => Err(Status::INVALID_NAMESPACE),
            _ => self.seen(id, nsid).ok_or(Status::INVALID_FIELD),
        }
    }
}

/// Which threshold of the temperature a command means, over or under; there is one sensor.
fn threshold(command: &Command) -> Result<usize, Status> {
    let (sensor, which) = (command.cdw11.get() >> 16 & 15, command.cdw11.get() >> 20 & 3);
    if matches!(sensor, 0 | 15) && which < 2 { Ok(which as usize) } else { Err(Status::INVALID_FIELD) }
}

/// Numbers of queues less one, in both halves.
fn queue_counts(count: u16) -> u32 {
    let count = u32::from(count - 1);
    count << 16 | count
}

/// Features that each namespace has for itself.
fn is_of_namespace(fid: u8) -> bool {
    use feature::{KEY_VALUE, RESERVATION_NOTICES, RESERVATION_PERSISTENCE};
    matches!(fid, KEY_VALUE | RESERVATION_NOTICES | RESERVATION_PERSISTENCE)
}

/// Features whose value changes nothing here: it is kept and reported.
fn is_kept(fid: u8) -> bool {
    use feature::{ARBITRATION, ATOMICITY, ERROR_RECOVERY, INTERRUPT_VECTOR, POWER};
    matches!(fid, ARBITRATION | ATOMICITY | ERROR_RECOVERY | INTERRUPT_VECTOR | POWER)
}
