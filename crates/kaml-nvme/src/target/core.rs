//! The target without sockets: commands of all connections go in, answers come out.
//!
//! Lives here:       all controllers, who sits where, dispatch, namespaces as hosts see them.
//! Lives elsewhere:  the commands (`fabrics`, `admin`, `keyvalue`, `blocks`), sockets and time (`reactor`).

use super::budget::Budget;
use super::connection::Connection;
use super::controller::{Controller, Kind, NAMESPACE_EVENTS};
use super::engine::{Engine, Reply};
use super::errors::Asked;
use super::options::Options;
use super::request::{Answer, Request, Transfers};
use super::reservations::{Fence, Reservations, use_of};
use super::workers::Change;
use crate::wire::command::{Command, CommandSet, FABRICS, FLAGS_FUSED, FLAGS_PSDT, FLAGS_SGL, kv};
use crate::wire::fabrics::{ConnectData, DISCOVERY_NQN, kind};
use crate::wire::reservations::{HostId, opcode};
use crate::wire::status::Status;
use crate::wire::text::get_nqn;
use kaml::{BlockInfo, Bytes, Device, KeyKind, NamespaceId};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;
use zerocopy::FromBytes;

/// Controllers at a time.
const CONTROLLERS_MAX: usize = 256;
/// Of these, for discovery, which anybody may connect to: so that they never keep out hosts that want storage.
const DISCOVERIES_MAX: usize = 64;
/// Controller numbers that are given out: 1 to this.
const CNTLID_MAX: u16 = 0xffef;
/// Names all namespaces.
pub(crate) const ALL_NAMESPACES: u32 = u32::MAX;

/// Whom a command came from, and what its answer needs. Answered once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) link: u64,
    /// The controller of the link, once it has one.
    pub(crate) controller: u16,
    /// The host that it belongs to, by then.
    pub(crate) host: HostId,
    pub(crate) cid: u16,
    pub(crate) reserved: usize,
    pub(crate) asked: Asked,
}

impl Origin {
    fn of(link: u64, command: &Command, reserved: usize) -> Origin {
        let (cid, asked) = (command.cid.get(), Asked::of(command));
        Origin { link, controller: 0, host: HostId::default(), cid, reserved, asked }
    }

    /// The answer to the command.
    pub(crate) fn answer(self, status: Status, result: u64, data: impl Into<Bytes>) -> Answer {
        Answer { cid: self.cid, status, result, data: data.into(), reserved: self.reserved }
    }
}

/// What a link is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    /// Nothing yet.
    Nobody,
    /// The admin queue of a controller.
    Admin(u16),
    /// An I/O queue of a controller.
    Io(u16, u16),
}

/// The queue that a link was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewQueue {
    pub(crate) entries: usize,
    pub(crate) flow_control: bool,
}

/// A Connect that is put off.
pub(crate) struct LateConnect {
    origin: Origin,
    command: Command,
    data: Vec<u8>,
}

/// What a command comes to at once.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is answered.
    Done(Status, u64, Vec<u8>),
    /// It is answered with a result, and its link has a queue.
    Connected(NewQueue, u64),
    /// It will be answered later.
    Later,
}

/// What a link's turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// A command has connected it to a controller.
    pub(crate) has_connected: bool,
    /// More commands may have come whole: it needs another turn before anything is received on it.
    pub(crate) has_more: bool,
}

impl From<Status> for Outcome {
    fn from(status: Status) -> Outcome {
        Outcome::Done(status, 0, Vec::new())
    }
}

impl From<Result<u64, Status>> for Outcome {
    fn from(result: Result<u64, Status>) -> Outcome {
        match result {
            Ok(result) => Outcome::Done(Status::SUCCESS, result, Vec::new()),
            Err(status) => status.into(),
        }
    }
}

impl From<Result<Vec<u8>, Status>> for Outcome {
    fn from(result: Result<Vec<u8>, Status>) -> Outcome {
        match result {
            Ok(data) => Outcome::Done(Status::SUCCESS, 0, data),
            Err(status) => status.into(),
        }
    }
}

impl From<Result<(), Status>> for Outcome {
    /// Success means that the command was started.
    fn from(result: Result<(), Status>) -> Outcome {
        result.map_or_else(Outcome::from, |()| Outcome::Later)
    }
}

fn is_for_discovery(connect_data: &[u8]) -> bool {
    let data = ConnectData::read_from_prefix(connect_data);
    data.is_ok_and(|(data, _)| get_nqn(&data.subsystem) == Some(DISCOVERY_NQN))
}

/// A namespace as hosts see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) id: NamespaceId,
    pub(crate) holds: Holds,
    /// Deleting a key that is not there is an error (feature 20h).
    pub(crate) delete_must_exist: bool,
}

/// What a namespace holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Records by such keys; whether every version of them is kept.
    Records(KeyKind, bool),
    /// Logical blocks; how many were in use when it was first seen.
    Blocks(BlockInfo),
}

impl Space {
    /// The command set that it is for.
    pub(crate) fn set(&self) -> CommandSet {
        match self.holds {
            Holds::Records(..) => CommandSet::KeyValue,
            Holds::Blocks(_) => CommandSet::Nvm,
        }
    }

    /// Whether every version of its records is kept, so that even looking whether a key exists may read flash.
    pub(crate) fn keeps_versions(&self) -> bool {
        matches!(self.holds, Holds::Records(_, true))
    }
}

/// What does not change while a device is served.
pub(crate) struct Limits {
    pub(crate) value_bytes_max: u64,
    pub(crate) batch_bytes_max: u64,
    pub(crate) chunk_bytes: u32,
    pub(crate) uuid: [u8; 16],
    pub(crate) serial: String,
}

/// See the module.
pub(crate) struct Target {
    pub(crate) options: Options,
    pub(crate) limits: Limits,
    pub(crate) engine: Engine,
    /// For data of commands of all links.
    pub(crate) budget: Budget,
    pub(crate) controllers: BTreeMap<u16, Controller>,
    pub(crate) seats: BTreeMap<u64, Seat>,
    pub(crate) spaces: BTreeMap<NamespaceId, Space>,
    /// Of namespaces that a host has ever registered with.
    pub(crate) reservations: BTreeMap<NamespaceId, Reservations>,
    /// Answers that wait for the end of preempted hosts' commands.
    pub(crate) fences: Vec<Fence>,
    /// Links that get no queue before what hosts that have gone asked for is over.
    pub(crate) late_connects: Vec<LateConnect>,
    /// Commands of the link whose turn it is that end without an answer, if it has reset its controller.
    pub(crate) reset: Option<Vec<Origin>>,
    /// Links that are to be closed.
    pub(crate) doomed: Vec<u64>,
    pub(crate) replies: Vec<Reply>,
    /// Namespaces that workers are creating or deleting: the list is left alone meanwhile.
    pub(crate) managing: usize,
    pub(crate) began: Instant,
    /// Commands that failed because of the medium.
    pub(crate) media_error_count: u64,
    next_id: u16,
}

impl Target {
    pub(crate) fn new(device: &Device, options: Options) -> std::io::Result<Target> {
        let info = device.info();
        let hex = |at: usize| info.uuid.get(at..at + 2).and_then(|byte| u8::from_str_radix(byte, 16).ok()).unwrap_or(0);
        let limits = Limits {
            value_bytes_max: info.value_bytes_max,
            batch_bytes_max: info.batch_bytes_max,
            chunk_bytes: info.chunk_bytes,
            uuid: std::array::from_fn(|place| hex(place * 2)),
            serial: info.uuid.get(..20).unwrap_or(&info.uuid).to_owned(),
        };
        let budget = Budget::new(options.memory_bytes);
        let mut target = Target {
            engine: Engine::new(device, options.busy_poll, budget.clone())?,
            budget,
            options,
            limits,
            controllers: BTreeMap::new(),
            seats: BTreeMap::new(),
            spaces: BTreeMap::new(),
            reservations: BTreeMap::new(),
            fences: Vec::new(),
            late_connects: Vec::new(),
            reset: None,
            doomed: Vec::new(),
            replies: Vec::new(),
            managing: 0,
            began: Instant::now(),
            media_error_count: 0,
            next_id: 1,
        };
        target.refresh();
        Ok(target)
    }

    // --- links --------------------------------------------------------------------------------------------------------

    /// A link was made.
    pub(crate) fn greet(&mut self, link: u64) {
        self.seats.insert(link, Seat::Nobody);
    }

    /// How much commands of a link may move.
    pub(crate) fn transfers(&self, link: u64) -> Transfers {
        let Some(Seat::Admin(id) | Seat::Io(id, _)) = self.seats.get(&link) else { return Transfers::Capsules };
        match self.controllers.get(id) {
            Some(controller) if controller.kind == Kind::Discovery => Transfers::Discovery,
            Some(controller) if controller.is_ready() => Transfers::Long,
            Some(_) | None => Transfers::Capsules,
        }
    }

    /// A link is gone: with an admin queue its controller goes, and with that the links of all its queues.
    pub(crate) fn part(&mut self, link: u64) {
        self.engine.leave_behind(link);
        self.late_connects.retain(|late| late.origin.link != link);
        match self.seats.remove(&link) {
            Some(Seat::Admin(id)) => self.end(id),
            Some(Seat::Io(id, queue)) => {
                let controller = self.controllers.get_mut(&id);
                if let Some(controller) = controller.filter(|controller| controller.io_links.get(&queue) == Some(&link))
                {
                    controller.io_links.remove(&queue);
                }
            }
            Some(Seat::Nobody) | None => {}
        }
    }

    fn end(&mut self, id: u16) {
        if let Some(controller) = self.controllers.remove(&id) {
            self.doomed.push(controller.admin_link);
            self.doomed.extend(controller.io_links.into_values());
        }
    }

    /// Makes a controller with a free number.
    pub(crate) fn admit(&mut self, kind: Kind, make: impl FnOnce(u16) -> Controller) -> Option<u16> {
        let discoveries = || self.controllers.values().filter(|controller| controller.kind == Kind::Discovery).count();
        let is_full = kind == Kind::Discovery && discoveries() >= DISCOVERIES_MAX;
        if is_full || self.controllers.len() >= CONTROLLERS_MAX {
            return None;
        }
        while self.controllers.contains_key(&self.next_id) {
            self.next_id = self.next_id % CNTLID_MAX + 1;
        }
        let id = self.next_id;
        self.next_id = id % CNTLID_MAX + 1;
        self.controllers.insert(id, make(id));
        Some(id)
    }

    // --- commands -----------------------------------------------------------------------------------------------------

    /// Carries out some of the commands of a connection that have come whole.
    pub(crate) fn serve(&mut self, link: u64, connection: &mut Connection, local: SocketAddr, now: Instant) -> Turn {
        let mut turn = Turn { has_connected: false, has_more: true };
        for _ in 0..connection.turn() {
            let request = connection.next_request();
            connection.take_refused().for_each(|(command, status)| self.note(&Origin::of(link, &command, 0), status));
            let Some(request) = request else {
                turn.has_more = false;
                break;
            };
            let Request { command, data, reserved } = request;
            let origin = Origin::of(link, &command, reserved);
            match self.execute(origin, local, &command, connection.data(data), now) {
                Outcome::Done(status, result, data) => connection.answer(origin.answer(status, result, data)),
                Outcome::Connected(queue, result) => {
                    turn.has_connected = true;
                    connection.set_queue(queue.entries, queue.flow_control);
                    connection.answer(origin.answer(Status::SUCCESS, result, Vec::new()));
                }
                Outcome::Later => {}
            }
            if command.opcode == FABRICS {
                connection.set_transfers(self.transfers(link));
            }
            if let Some(ended) = self.reset.take() {
                connection.reset(ended.iter().map(|origin| origin.reserved));
            }
        }
        turn
    }

    /// Carries out a command, or starts it. `local` is the address that the host reached us at.
    fn execute(
        &mut self,
        origin: Origin,
        local: SocketAddr,
        command: &Command,
        data: Cow<'_, [u8]>,
        now: Instant,
    ) -> Outcome {
        let link = origin.link;
        let Some(seat) = self.seats.get(&link).copied() else { return Status::COMMAND_SEQUENCE.into() };
        let id = match seat {
            Seat::Nobody if self.is_early(command, &data) => {
                self.late_connects.push(LateConnect { origin, command: *command, data: data.into_owned() });
                return Outcome::Later;
            }
            Seat::Nobody if command.opcode == FABRICS => return self.fabrics(link, seat, command, &data, now),
            Seat::Nobody => return Status::COMMAND_SEQUENCE.into(),
            Seat::Admin(id) | Seat::Io(id, _) => id,
        };
        let Some(controller) = self.controllers.get_mut(&id) else { return Status::COMMAND_SEQUENCE.into() };
        let origin = Origin { controller: id, host: controller.host.id, ..origin };
        controller.hear(now);
        let ready = controller.is_ready();
        let mut outcome = match seat {
            _ if command.opcode == FABRICS => self.fabrics(link, seat, command, &data, now),
            _ if !ready => Status::COMMAND_SEQUENCE.into(),
            // Neither parts of one command, nor pages of the host's memory, nor metadata described by an SGL.
            _ if command.flags & (FLAGS_FUSED | FLAGS_PSDT) != FLAGS_SGL => Status::INVALID_FIELD.into(),
            Seat::Io(..) => self.io(origin, id, command, data),
            Seat::Admin(_) | Seat::Nobody => self.admin(origin, id, local, command, &data),
        };
        if let Outcome::Done(status, _, data) = &mut outcome {
            // Never more than the host has room for.
            data.truncate(command.sgl.length.get() as usize);
            self.note(&origin, *status);
        }
        outcome
    }

    fn io(&mut self, origin: Origin, id: u16, command: &Command, data: Cow<'_, [u8]>) -> Outcome {
        let nsid = command.nsid.get();
        if nsid == ALL_NAMESPACES && command.opcode == kv::FLUSH {
            return Status::SUCCESS.into(); // whatever was answered is durable
        }
        let space = match self.attached(id, nsid) {
            Err(status) => return status.into(),
            Ok(space) => *space,
        };
        if opcode::ALL.contains(&command.opcode) {
            return self.reserve(origin, id, &space, command, &data);
        }
        if let Err(status) = self.check_reservation(id, nsid, use_of(space.set(), command.opcode)) {
            return status.into();
        }
        match space.holds {
            Holds::Records(..) => self.key_value(origin, id, &space, command, data),
            Holds::Blocks(info) => self.blocks(origin, &space, &info, command, data),
        }
    }

    /// A namespace that is attached to a controller which has enabled its command set.
    pub(crate) fn attached(&self, id: u16, nsid: u32) -> Result<&Space, Status> {
        let controller = self.controllers.get(&id).ok_or(Status::INTERNAL)?;
        let space = self.spaces.get(&nsid).filter(|_| !controller.detached.contains(&nsid));
        let enabled = |space: &&Space| match controller.configuration().command_sets() {
            0 => space.set() == CommandSet::Nvm,
            set => set == 6,
        };
        space.filter(enabled).ok_or(Status::INVALID_NAMESPACE)
    }

    // --- those who come after others ----------------------------------------------------------------------------------

    /// Whether a Connect comes while changes are under way that a host asked for which has gone. It may be that host's, which does
    /// not know what became of them: what it stores from now on must not be overwritten by them. Who only looks what there is to
    /// connect to need not wait.
    fn is_early(&self, command: &Command, data: &[u8]) -> bool {
        let is_connect = command.opcode == FABRICS && command.fabrics_type() == kind::CONNECT;
        is_connect && self.has_left_behind() && !is_for_discovery(data)
    }

    /// Whether a link has no queue yet because the target puts its Connect off.
    pub(crate) fn puts_off(&self, link: u64) -> bool {
        self.late_connects.iter().any(|late| late.origin.link == link)
    }

    fn has_left_behind(&self) -> bool {
        let has_gone = |link: u64| match self.seats.get(&link) {
            Some(Seat::Admin(id) | Seat::Io(id, _)) => !self.controllers.contains_key(id),
            Some(Seat::Nobody) => false,
            None => true,
        };
        self.engine.changes_for(has_gone)
    }

    /// Connects those who waited, once that is over.
    fn connect_late(&mut self) {
        if self.late_connects.is_empty() || self.has_left_behind() {
            return;
        }
        for LateConnect { origin, command, data } in std::mem::take(&mut self.late_connects) {
            let Some(seat) = self.seats.get(&origin.link).copied() else { continue };
            let reply = match self.fabrics(origin.link, seat, &command, &data, Instant::now()) {
                Outcome::Connected(queue, result) => {
                    Reply { result, queue: Some(queue), ..Reply::of(origin, Status::SUCCESS) }
                }
                Outcome::Done(status, result, _) => Reply { result, ..Reply::of(origin, status) },
                Outcome::Later => unreachable!("it is carried out at once"),
            };
            self.replies.push(reply);
        }
    }

    // --- what happens meanwhile ---------------------------------------------------------------------------------------

    /// Collects what the device has done, and events that can be told.
    pub(crate) fn poll(&mut self) {
        let before = self.replies.len();
        let seats = &self.seats;
        self.engine.poll(&mut self.replies, |link| !seats.contains_key(&link));
        for place in before..self.replies.len() {
            let Reply { origin, status, .. } = self.replies[place];
            self.note(&origin, status);
            if let Some(change) = self.replies[place].namespace {
                self.managed(self.replies[place].origin.link, change);
            }
        }
        self.open_fences();
        self.connect_late();
        for controller in self.controllers.values_mut() {
            while let Some((origin, result)) = controller.next_event() {
                self.replies.push(Reply { result, ..Reply::of(origin, Status::SUCCESS) });
            }
        }
    }

    /// A worker has created or deleted a namespace for the host behind a link.
    fn managed(&mut self, link: u64, change: Change) {
        self.managing -= 1;
        if let Change::Deleted(id) = change {
            // Who deleted it knows, the others are told below.
            self.spaces.remove(&id);
        }
        if let Change::Created(id) = change {
            // Created is not attached (spec:NVMe-Base "Namespace Management").
            self.controllers.values_mut().for_each(|controller| {
                controller.detached.insert(id);
            });
        }
        self.refresh();
        // Who deletes all of them names none: those that went were told of just now.
        if let Change::Deleted(id) = change
            && id != ALL_NAMESPACES
        {
            let by = self.seats.get(&link).copied();
            let has_lost =
                |controller: &Controller| by != Some(Seat::Admin(controller.id)) && !controller.detached.contains(&id);
            self.tell_of_namespace(id, has_lost);
            self.controllers.values_mut().for_each(|controller| {
                controller.detached.remove(&id);
            });
        }
    }

    /// Tells the controllers for which a namespace is there, or was, that it has changed.
    pub(crate) fn tell_of_namespace(&mut self, nsid: u32, whom: impl Fn(&Controller) -> bool) {
        for controller in self.controllers.values_mut() {
            let hears = controller.kind == Kind::Storage && controller.event_mask & NAMESPACE_EVENTS != 0;
            if hears && whom(controller) {
                controller.change_namespace(nsid);
            }
        }
    }

    /// Looks which namespaces there are, and tells of those that came and went by other hands than a host's.
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
        for id in changed {
            self.tell_of_namespace(id, |controller| !controller.detached.contains(&id));
        }
    }

    /// As it is known already, because ids are never used again; nothing if it is gone meanwhile.
    fn space(&self, info: &kaml::NamespaceInfo) -> Option<Space> {
        if let Some(known) = self.spaces.get(&info.id) {
            return Some(*known);
        }
        let holds = match info.blocks {
            None => Holds::Records(info.keys, info.versions.is_some()),
            Some(_) => Holds::Blocks(self.engine.device().block_info(info.id).ok()?),
        };
        Some(Space { id: info.id, holds, delete_must_exist: false })
    }

    /// Nobody listens to the host behind a link: it is not silent.
    pub(crate) fn excuse(&mut self, link: u64, now: Instant) {
        if let Some(Seat::Admin(id) | Seat::Io(id, _)) = self.seats.get(&link)
            && let Some(controller) = self.controllers.get_mut(id)
        {
            controller.hear(now);
        }
    }

    /// What is due from time to time: ends controllers whose hosts are silent, looks after namespaces.
    pub(crate) fn tick(&mut self, now: Instant) {
        let silent = self.controllers.values().filter(|controller| controller.is_silent(now));
        for id in silent.map(|controller| controller.id).collect::<Vec<_>>() {
            tracing::info!(controller = id, "the host is silent for longer than its keep-alive time-out");
            self.end(id);
        }
        self.refresh();
        self.tell_health();
    }
}
