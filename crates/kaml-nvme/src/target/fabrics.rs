//! Fabrics commands: Connect, Property Get and Set.
//!
//! Lives here:       who may connect to what, the registers' values.
//! Lives elsewhere:  the state after the registers (`controller`).
//! Implements:       spec:NVMe-Base "Fabrics Command Set", "Controller Properties".

use super::controller::{Controller, Ended, HostName, IO_QUEUES_MAX, Kind, round_keep_alive};
use super::core::{NewQueue, Origin, Outcome, Role, Target};
use super::engine::Reply;
use super::named::Lists;
use super::options::QUEUE_ENTRIES_MAX;
use crate::auth::Parties;
use crate::wire::command::Command;
use crate::wire::fabrics::{
    CNTLID_DYNAMIC, Configuration, Connect, ConnectData, DISCOVERY_NQN, Property, kind, register,
};
use crate::wire::status::Status;
use crate::wire::text::get_nqn;
use std::mem::offset_of;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// Fewest entries of an admin queue (spec:NVMe-oF).
const ADMIN_ENTRIES_MIN: u16 = 32;
/// VS: 2.0.
const VERSION: u32 = 0x0002_0000;
/// How long a controller may take to become ready, in units of 500 ms; ours is at once.
const READY_UNITS_MAX: u64 = 20;

/// CAP: entries less one, contiguous queues, time-out, command sets NVM (37) and all (43), ready with media (59).
const CAPABILITIES: u64 =
    (QUEUE_ENTRIES_MAX as u64 - 1) | 1 << 16 | READY_UNITS_MAX << 24 | 1 << 37 | 1 << 43 | 1 << 59;

/// A queue that a host may have, if it proves what it has to.
pub(crate) struct Admission {
    /// Of the controller.
    pub(crate) id: u16,
    pub(crate) queue: u16,
    pub(crate) kind: Kind,
    pub(crate) host: HostName,
    pub(crate) keep_alive: Duration,
    pub(crate) entries: usize,
    pub(crate) flow_control: bool,
    /// When its Connect came.
    pub(crate) began: Instant,
}

/// The version that Identify Controller reports as well.
pub(crate) fn version() -> u32 {
    VERSION
}

impl Target {
    pub(crate) fn fabrics(
        &mut self,
        origin: Origin,
        role: Role,
        command: &Command,
        data: &[u8],
        now: Instant,
    ) -> Outcome {
        let link = origin.link;
        match (command.fabrics_type(), role) {
            (kind::CONNECT, Role::Nobody) => {
                self.connect(link, command, data, now).unwrap_or_else(|(status, result)| {
                    tracing::debug!(link, %status, "a host may not connect a queue");
                    Outcome::Done(status, result, Vec::new())
                })
            }
            (kind::AUTHENTICATION_SEND, Role::Pending | Role::Admin(_) | Role::Io(..)) => {
                self.authentication_send(link, command, data, now)
            }
            (kind::AUTHENTICATION_RECEIVE, Role::Pending | Role::Admin(_) | Role::Io(..)) => {
                self.authentication_receive(origin, command)
            }
            (_, Role::Pending) => Status::AUTHENTICATION_REQUIRED.into(),
            (kind::PROPERTY_GET, Role::Admin(id)) => self.property_get(id, command).into(),
            (kind::PROPERTY_SET, Role::Admin(id)) => self.property_set(link, id, command).into(),
            (kind::CONNECT | kind::PROPERTY_GET | kind::PROPERTY_SET, _) => Status::COMMAND_SEQUENCE.into(),
            _ => Status::INVALID_OPCODE.into(),
        }
    }

    fn connect(&mut self, link: u64, command: &Command, data: &[u8], now: Instant) -> Result<Outcome, (Status, u64)> {
        let admission = self.examine(link, command, data, now)?;
        let id = u64::from(admission.id);
        match self.proof_of(&admission) {
            None => Ok(Outcome::Connected(self.enter(link, admission)?, id, Vec::new())),
            Some(parties) => {
                let queue = self.await_authentication(link, admission, parties, now);
                Ok(Outcome::Connected(queue, id | Connect::AUTHENTICATION_REQUIRED, Vec::new()))
            }
        }
    }

    /// Whether a Connect makes sense, and what it comes to.
    fn examine(&mut self, link: u64, command: &Command, data: &[u8], now: Instant) -> Result<Admission, (Status, u64)> {
        let connect = Connect::of(command);
        if connect.format != 0 {
            return Err((Status::CONNECT_FORMAT, 0));
        }
        let in_command = |offset| Connect::refusal(40 + offset, false);
        let in_data = |offset| Connect::refusal(offset, true);
        let (data, _) = ConnectData::read_from_prefix(data).map_err(|_| (Status::SGL_LENGTH, 0))?;
        let size = connect.queue_size.get();
        let entries = u32::from(size) + 1;
        if size == 0 || entries > QUEUE_ENTRIES_MAX {
            return Err(in_command(offset_of!(Connect, queue_size)));
        }
        // SPDK's tools connect without a name. A list of hosts that may connect keeps them out.
        let nqn = if data.host[0] == 0 { Some("") } else { get_nqn(&data.host) };
        let nqn = nqn.ok_or(in_data(offset_of!(ConnectData, host)))?;
        let host = HostName { nqn: nqn.to_owned(), id: data.host_id };
        let subsystem = get_nqn(&data.subsystem).ok_or(in_data(offset_of!(ConnectData, subsystem)))?;
        let kind = match subsystem {
            DISCOVERY_NQN => Kind::Discovery,
            name if name == self.options.subsystem => Kind::Storage,
            _ => return Err(in_data(offset_of!(ConnectData, subsystem))),
        };
        if kind == Kind::Storage && !self.options.access.admits(&host.nqn) {
            tracing::warn!(host = ?host.nqn, "refused: it is not one of the hosts that may connect");
            return Err((Status::CONNECT_HOST, 0));
        }
        self.check_secured(link, &host.nqn, subsystem)?;
        let (cntlid, queue) = (data.cntlid.get(), connect.queue.get());
        let id = if queue == 0 {
            if size < ADMIN_ENTRIES_MIN - 1 {
                return Err(in_command(offset_of!(Connect, queue_size)));
            }
            if cntlid != CNTLID_DYNAMIC {
                return Err(in_data(offset_of!(ConnectData, cntlid)));
            }
            if !self.has_room_for(kind) {
                return Err((Status::CONNECT_BUSY, 0));
            }
            self.free_controller_id()
        } else {
            self.check_join(cntlid, queue, kind, &host)?;
            cntlid
        };
        let flow_control = connect.attributes & Connect::NO_FLOW_CONTROL == 0;
        let keep_alive = round_keep_alive(connect.keep_alive_ms.get());
        Ok(Admission { id, queue, kind, host, keep_alive, entries: entries as usize, flow_control, began: now })
    }

    /// What the host of a queue has to prove before it gets the queue. Those that only look what there is prove nothing.
    fn proof_of(&self, admission: &Admission) -> Option<Arc<Parties>> {
        if admission.kind == Kind::Storage { self.parties(&admission.host.nqn) } else { None }
    }

    /// What a host has to prove that uses the subsystem.
    pub(crate) fn parties(&self, host: &str) -> Option<Arc<Parties>> {
        let known = self.options.access.hosts.get(host)?;
        Some(Arc::new(Parties {
            host: host.to_owned(),
            subsystem: self.options.subsystem.clone(),
            secret: known.secret.clone()?,
            controller_secret: known.controller_secret.clone(),
            strength: self.options.access.strength,
        }))
    }

    /// Gives a link its queue.
    pub(crate) fn enter(&mut self, link: u64, admission: Admission) -> Result<NewQueue, (Status, u64)> {
        let Admission { id, queue, kind, host, keep_alive, entries, flow_control, began } = admission;
        let name = host.nqn.clone();
        let role = if queue == 0 {
            if !self.has_room_for(kind) {
                return Err((Status::CONNECT_BUSY, 0));
            }
            self.refresh();
            let lists = Lists::new(self.budget.clone());
            self.controllers.insert(id, Controller::new(id, kind, host, link, keep_alive, lists, began));
            self.hold(id);
            Role::Admin(id)
        } else {
            self.check_join(id, queue, kind, &host)?.io_links.insert(queue, link);
            Role::Io(id, queue)
        };
        self.roles.insert(link, role);
        tracing::debug!(link, host = ?name, controller = id, queue, "a queue is connected");
        Ok(NewQueue { entries, flow_control, is_authenticated: true })
    }

    /// The controller that a host may give an I/O queue to. Hosts prove nothing by their identifier, and some make a new one for each
    /// queue: as with the targets of Linux and SPDK, the name has to do, and each queue is authenticated if the host has a secret.
    fn check_join(
        &mut self,
        cntlid: u16,
        queue: u16,
        kind: Kind,
        host: &HostName,
    ) -> Result<&mut Controller, (Status, u64)> {
        let no_such = Connect::refusal(offset_of!(ConnectData, cntlid), true);
        let controller = self.controllers.get_mut(&cntlid).ok_or(no_such)?;
        if controller.kind != kind || kind == Kind::Discovery {
            return Err(no_such);
        }
        if controller.host.nqn != host.nqn {
            return Err(Connect::refusal(offset_of!(ConnectData, host), true));
        }
        if queue > controller.queues_granted.min(IO_QUEUES_MAX) {
            return Err(Connect::refusal(40 + offset_of!(Connect, queue), false));
        }
        if !controller.is_ready() || controller.io_links.contains_key(&queue) {
            return Err((Status::COMMAND_SEQUENCE, 0));
        }
        Ok(controller)
    }

    fn property_get(&mut self, id: u16, command: &Command) -> Result<u64, Status> {
        let property = Property::of(command);
        let controller = self.controllers.get(&id).ok_or(Status::INTERNAL)?;
        Ok(match (property.offset.get(), property.bytes()) {
            (register::CAP, 8) => CAPABILITIES,
            (register::VS, 4) => u64::from(VERSION),
            (register::CC, 4) => u64::from(controller.configuration().0),
            (register::CSTS, 4) => u64::from(controller.status()),
            (register::CRTO, 4) => READY_UNITS_MAX,
            // Without "do not retry": nvme-cli (2.3) compares the whole status when it shows all properties.
            _ => return Err(Status::NO_SUCH_PROPERTY),
        })
    }

    fn property_set(&mut self, link: u64, id: u16, command: &Command) -> Result<u64, Status> {
        let property = Property::of(command);
        if (property.offset.get(), property.bytes()) != (register::CC, 4) {
            return Err(Status::INVALID_FIELD);
        }
        let controller = self.controllers.get_mut(&id).ok_or(Status::INTERNAL)?;
        let ended = controller.configure(Configuration(property.value.get() as u32))?;
        if let Some(Ended { links, mut requests }) = ended {
            tracing::debug!(controller = id, "the host has reset its controller");
            self.to_close.extend(links);
            let are_told = |reply: &mut Reply| reply.origin.link == link;
            requests.extend(self.replies.extract_if(.., are_told).map(|reply| reply.origin));
            requests.extend(self.engine.forget(link));
            requests.extend(self.authentication.forget_receive(link));
            self.reset = Some(requests);
        }
        Ok(0)
    }
}
