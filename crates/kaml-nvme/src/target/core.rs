//! The target without sockets: commands of all connections go in, answers come out.
//!
//! Lives here:       all controllers, the role of each link, dispatch.
//! Lives elsewhere:  namespaces as hosts see them (`spaces`), the commands (`fabrics`, `admin`, `keyvalue`, `blocks`), sockets and time (`reactor`).

use super::access::Right;
use super::authentication::Authentication;
use super::backup::Backups;
use super::budget::Budget;
use super::connection::Connection;
use super::controller::{Controller, Kind};
use super::engine::{After, Engine, Reply};
use super::errors::CommandSummary;
use super::identity::Identity as DeviceIdentity;
use super::options::{Options, Security};
use super::persistence;
use super::request::{Answer, Request, Transfers};
use super::reservations::{Fence, Reservations, use_of};
use super::sessions::{Admission, Numbered, Remembered, Sessions};
use super::spaces::{Holds, Space};
use crate::tls::Identity;
use crate::wire::backup::is_of_backup;
use crate::wire::command::{Command, FABRICS, FLAGS_FUSED, FLAGS_PSDT, FLAGS_SGL};
use crate::wire::fabrics::{ConnectData, DISCOVERY_NQN, kind};
use crate::wire::reservations::{HostId, opcode};
use crate::wire::session::number_of;
use crate::wire::status::Status;
use crate::wire::text::get_nqn;
use kaml::{Bytes, Device, NamespaceId};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// Controllers at a time.
const CONTROLLERS_MAX: usize = 256;
/// Those of them for discovery, which any host may connect to, so they never keep out hosts that need storage.
const DISCOVERIES_MAX: usize = 64;
/// Controller numbers that are given out: 1 to this.
const CNTLID_MAX: u16 = 0xffef;
/// A host must have authenticated a queue this long after it has made the connection: large groups take slow hosts seconds.
const AUTHENTICATION_MAX: Duration = Duration::from_secs(30);
/// Names all namespaces.
pub(crate) const ALL_NAMESPACES: u32 = u32::MAX;

/// Whom a command came from, and what its answer needs. Answered once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) link: u64,
    /// The controller of the link, after it has one.
    pub(crate) controller: u16,
    /// The host that it belongs to, by then.
    pub(crate) host: HostId,
    pub(crate) cid: u16,
    pub(crate) reserved: usize,
    pub(crate) summary: CommandSummary,
    /// It takes effect once, however often it is sent.
    pub(crate) numbered: Option<Numbered>,
}

impl Origin {
    pub(crate) fn of(link: u64, command: &Command, reserved: usize) -> Origin {
        let (cid, summary) = (command.cid.get(), CommandSummary::of(command));
        Origin { link, controller: 0, host: HostId::default(), cid, reserved, summary, numbered: None }
    }

    /// The answer to the command.
    pub(crate) fn answer(self, status: Status, result: u64, data: impl Into<Bytes>) -> Answer {
        Answer { cid: self.cid, status, result, data: data.into(), reserved: self.reserved }
    }
}

/// What a link is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nothing yet.
    Nobody,
    /// A queue that its host has to authenticate first.
    Pending,
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
    /// Its host need not authenticate it, or has.
    pub(crate) is_authenticated: bool,
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
    /// The command has completed.
    Done(Status, u64, Vec<u8>),
    /// The command has completed with a result, and its link has a queue.
    Connected(NewQueue, u64, Vec<u8>),
    /// The command has completed, and its link is closed.
    Ends(Vec<u8>),
    /// It will complete later.
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

impl Outcome {
    /// As a reply to a command that has waited for it; nothing if it waits still.
    pub(crate) fn into_reply(self, origin: Origin) -> Option<Reply> {
        let (status, result, data, after) = match self {
            Outcome::Done(status, result, data) => (status, result, data, After::Nothing),
            Outcome::Connected(queue, result, data) => (Status::SUCCESS, result, data, After::Queue(queue)),
            Outcome::Ends(data) => (Status::SUCCESS, 0, data, After::End),
            Outcome::Later => return None,
        };
        Some(Reply { result, data: data.into(), after, ..Reply::of(origin, status) })
    }
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

/// What does not change while a device is served.
pub(crate) struct Limits {
    pub(crate) value_bytes_max: u64,
    pub(crate) batch_bytes_max: u64,
    pub(crate) chunk_bytes: u32,
    pub(crate) identity: DeviceIdentity,
    pub(crate) serial: String,
}

/// See the module.
pub(crate) struct Target {
    pub(crate) options: Options,
    /// Where it listens; none if it has no sockets.
    pub(crate) ports: Vec<SocketAddr>,
    /// Of each of them; those that are not listed are plain.
    pub(crate) security: Vec<Security>,
    pub(crate) limits: Limits,
    pub(crate) engine: Engine,
    /// For data of commands of all links.
    pub(crate) budget: Budget,
    pub(crate) controllers: BTreeMap<u16, Controller>,
    pub(crate) roles: BTreeMap<u64, Role>,
    /// Where the hosts of links are.
    pub(crate) peers: BTreeMap<u64, SocketAddr>,
    /// What the hosts of encrypted links have proved.
    pub(crate) secured: BTreeMap<u64, Identity>,
    pub(crate) authentication: Authentication,
    pub(crate) spaces: BTreeMap<NamespaceId, Space>,
    /// Of namespaces that a host has ever registered with.
    pub(crate) reservations: BTreeMap<NamespaceId, Reservations>,
    pub(crate) sessions: Sessions,
    pub(crate) backups: Backups,
    /// Returns that wait for the end of preempted hosts' commands.
    pub(crate) fences: Vec<Fence>,
    /// Links that get no queue before the commands of hosts that have left are over.
    pub(crate) late_connects: Vec<LateConnect>,
    /// Commands of the link whose turn it is that end without an answer, if it has reset its controller.
    pub(crate) reset: Option<Vec<Origin>>,
    /// Links that are to be closed.
    pub(crate) to_close: Vec<u64>,
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
        let identity = DeviceIdentity::of_hex(&info.uuid);
        let limits = Limits {
            value_bytes_max: info.value_bytes_max,
            batch_bytes_max: info.batch_bytes_max,
            chunk_bytes: info.chunk_bytes,
            identity,
            serial: identity.serial(),
        };
        let budget = Budget::new(options.memory_bytes);
        let reservations = persistence::read(&options.reservations, identity).map_err(std::io::Error::other)?;
        let mut target = Target {
            engine: Engine::new(device, options.busy_poll, budget.clone())?,
            budget,
            options,
            ports: Vec::new(),
            security: Vec::new(),
            limits,
            controllers: BTreeMap::new(),
            roles: BTreeMap::new(),
            peers: BTreeMap::new(),
            secured: BTreeMap::new(),
            authentication: Authentication::new()?,
            spaces: BTreeMap::new(),
            reservations,
            sessions: Sessions::default(),
            backups: Backups::default(),
            fences: Vec::new(),
            late_connects: Vec::new(),
            reset: None,
            to_close: Vec::new(),
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
    pub(crate) fn on_connect(&mut self, link: u64, peer: Option<SocketAddr>) {
        self.roles.insert(link, Role::Nobody);
        self.peers.extend(peer.map(|peer| (link, peer)));
    }

    /// How much commands of a link may move.
    pub(crate) fn transfers(&self, link: u64) -> Transfers {
        let Some(Role::Admin(id) | Role::Io(id, _)) = self.roles.get(&link) else { return Transfers::Capsules };
        match self.controllers.get(id) {
            Some(controller) if controller.kind == Kind::Discovery => Transfers::Discovery,
            Some(controller) if controller.is_ready() => Transfers::Long,
            Some(_) | None => Transfers::Capsules,
        }
    }

    /// Logs that a link ends.
    pub(crate) fn log_end(&self, link: u64, reason: &'static str) {
        let Some(Role::Admin(id) | Role::Io(id, _)) = self.roles.get(&link).copied() else {
            tracing::debug!(link, reason, "a connection ends that has no queue");
            return;
        };
        let queue = if let Some(Role::Io(_, queue)) = self.roles.get(&link) { *queue } else { 0 };
        let host = self.controllers.get(&id).map(|controller| controller.host.nqn.as_str());
        tracing::debug!(link, ?host, controller = id, queue, reason, "a queue is disconnected");
    }

    /// A link is gone: with an admin queue its controller ends, and with that the links of all its queues.
    pub(crate) fn on_disconnect(&mut self, link: u64) {
        self.engine.leave_behind(link);
        self.leave_session(link);
        self.late_connects.retain(|late| late.origin.link != link);
        self.authentication.on_disconnect(link);
        self.peers.remove(&link);
        self.secured.remove(&link);
        match self.roles.remove(&link) {
            Some(Role::Admin(id)) => self.end(id),
            Some(Role::Io(id, queue)) => {
                let controller = self.controllers.get_mut(&id);
                if let Some(controller) = controller.filter(|controller| controller.io_links.get(&queue) == Some(&link))
                {
                    controller.io_links.remove(&queue);
                }
            }
            Some(Role::Nobody | Role::Pending) | None => {}
        }
    }

    /// The host of a link waits for no outcome of a command that was sent before.
    fn leave_session(&mut self, link: u64) {
        let Some(Role::Io(id, _)) = self.roles.get(&link) else { return };
        if let Some(session) = self.controllers.get(id).and_then(|controller| controller.session) {
            self.sessions.leave_behind(link, session);
        }
    }

    /// A command is over: if it is numbered, its outcome is remembered, and sent to those who have sent it again meanwhile.
    fn remember(&mut self, origin: &Origin, status: Status, result: u64, data: &[u8]) {
        let Some(numbered) = origin.numbered else { return };
        let waiting = self.sessions.record(numbered, Remembered { status, result, data: data.to_vec() });
        let reply = |origin| Reply { result, data: data.to_vec().into(), ..Reply::of(origin, status) };
        self.replies.extend(waiting.into_iter().map(reply));
    }

    pub(crate) fn end(&mut self, id: u16) {
        if let Some(controller) = self.controllers.remove(&id) {
            if let Some(session) = controller.session {
                self.sessions.leave(session);
                controller.io_links.values().for_each(|link| self.sessions.leave_behind(*link, session));
            }
            self.to_close.push(controller.admin_link);
            self.to_close.extend(controller.io_links.into_values());
        }
    }

    /// Whether there may be one more controller.
    pub(crate) fn has_room_for(&self, kind: Kind) -> bool {
        let discoveries = || self.controllers.values().filter(|controller| controller.kind == Kind::Discovery).count();
        let is_full = kind == Kind::Discovery && discoveries() >= DISCOVERIES_MAX;
        !is_full && self.controllers.len() < CONTROLLERS_MAX
    }

    /// A free number for a controller.
    pub(crate) fn free_controller_id(&mut self) -> u16 {
        while self.controllers.contains_key(&self.next_id) || self.authentication.has_promised(self.next_id) {
            self.next_id = self.next_id % CNTLID_MAX + 1;
        }
        let id = self.next_id;
        self.next_id = id % CNTLID_MAX + 1;
        id
    }

    // --- commands -----------------------------------------------------------------------------------------------------

    /// Executes some of the commands of a connection that have come whole.
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
                Outcome::Connected(queue, result, data) => {
                    turn.has_connected |= queue.is_authenticated;
                    connection.set_queue(queue);
                    connection.answer(origin.answer(Status::SUCCESS, result, data));
                }
                Outcome::Ends(data) => {
                    connection.answer(origin.answer(Status::SUCCESS, 0, data));
                    connection.end();
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

    /// Executes a command, or starts it. `local` is the address that the host reached us at.
    fn execute(
        &mut self,
        origin: Origin,
        local: SocketAddr,
        command: &Command,
        data: Cow<'_, [u8]>,
        now: Instant,
    ) -> Outcome {
        let link = origin.link;
        let Some(role) = self.roles.get(&link).copied() else { return Status::COMMAND_SEQUENCE.into() };
        let id = match role {
            Role::Nobody if self.is_early(command, &data) => {
                self.late_connects.push(LateConnect { origin, command: *command, data: data.into_owned() });
                return Outcome::Later;
            }
            Role::Nobody | Role::Pending if command.opcode == FABRICS => {
                return self.fabrics(origin, role, command, &data, now);
            }
            Role::Nobody => return Status::COMMAND_SEQUENCE.into(),
            Role::Pending => return Status::AUTHENTICATION_REQUIRED.into(),
            Role::Admin(id) | Role::Io(id, _) => id,
        };
        let Some(controller) = self.controllers.get_mut(&id) else { return Status::COMMAND_SEQUENCE.into() };
        let mut origin = Origin { controller: id, host: controller.host.id, ..origin };
        controller.hear(now);
        controller.command_count += 1;
        let ready = controller.is_ready();
        if let (Role::Io(..), Some(session), number @ 1..) = (role, controller.session, number_of(command)) {
            let numbered = Numbered { session, number };
            match self.sessions.admit(numbered, origin) {
                Admission::New => origin.numbered = Some(numbered),
                Admission::UnderWay => return Outcome::Later,
                Admission::Over(Remembered { status, result, data }) => return Outcome::Done(status, result, data),
                Admission::Forgotten => return Status::OUTCOME_FORGOTTEN.into(),
            }
        }
        let mut outcome = match role {
            _ if command.opcode == FABRICS => self.fabrics(origin, role, command, &data, now),
            _ if !ready => Status::COMMAND_SEQUENCE.into(),
            // Neither parts of one command, nor pages of the host's memory, nor metadata described by an SGL.
            _ if command.flags & (FLAGS_FUSED | FLAGS_PSDT) != FLAGS_SGL => Status::INVALID_FIELD.into(),
            Role::Io(..) => self.io(origin, id, command, data),
            Role::Admin(_) | Role::Nobody | Role::Pending => self.admin(origin, id, local, command, &data),
        };
        if let Outcome::Done(status, result, data) = &mut outcome {
            // Never more than the host has room for.
            data.truncate(command.sgl.length.get() as usize);
            self.note(&origin, *status);
            self.remember(&origin, *status, *result, data);
        }
        outcome
    }

    fn io(&mut self, origin: Origin, id: u16, command: &Command, data: Cow<'_, [u8]>) -> Outcome {
        let nsid = command.nsid.get();
        if is_of_backup(command.opcode) {
            return self.backup(id, command, &data);
        }
        if nsid == ALL_NAMESPACES
            && let Some(outcome) = self.on_all_namespaces(origin, id, command)
        {
            return outcome;
        }
        let (space, right) = match self.attached_with_right(id, nsid) {
            Err(status) => return status.into(),
            Ok((space, right)) => (*space, right),
        };
        if opcode::ALL.contains(&command.opcode) {
            // A host that only reads keeps nobody else from writing.
            return match command.opcode != opcode::REPORT && right < Right::Write {
                true => Status::OPERATION_DENIED.into(),
                false => self.reserve(origin, id, &space, command, &data),
            };
        }
        let way = use_of(space.set(), command.opcode);
        if let Err(status) = right.check(way).and_then(|()| self.check_reservation(id, nsid, way)) {
            return status.into();
        }
        match space.holds {
            Holds::Records(_) | Holds::Versions(_) => self.key_value(origin, id, &space, command, data),
            Holds::Blocks(info) => self.blocks(origin, &space, &info, command, data),
        }
    }

    // --- those who come after others ----------------------------------------------------------------------------------

    /// Whether a Connect comes while changes are in progress that a host requested that has left. The Connect may be that host's, which does
    /// not know what became of them: what it stores from now on must not be overwritten by them. A host that only looks what there is to
    /// connect to need not wait.
    fn is_early(&self, command: &Command, data: &[u8]) -> bool {
        let is_connect = command.opcode == FABRICS && command.fabrics_type() == kind::CONNECT;
        is_connect && self.has_left_behind() && !is_for_discovery(data)
    }

    /// How long a link may be without a queue, if it is not as long as others: without limit if the target puts its Connect off, longer
    /// while it is authenticated.
    pub(crate) fn greeting_max(&self, link: u64) -> Option<Duration> {
        let is_put_off = || self.late_connects.iter().any(|late| late.origin.link == link);
        match self.authentication.is_pending(link) {
            true => Some(AUTHENTICATION_MAX),
            false => is_put_off().then_some(Duration::MAX),
        }
    }

    fn has_left_behind(&self) -> bool {
        let has_gone = |link: u64| match self.roles.get(&link) {
            Some(Role::Admin(id) | Role::Io(id, _)) => !self.controllers.contains_key(id),
            Some(Role::Nobody | Role::Pending) => false,
            None => true,
        };
        self.engine.changes_for(has_gone)
    }

    /// Connects those who waited, after that is over.
    fn connect_late(&mut self) {
        if self.late_connects.is_empty() || self.has_left_behind() {
            return;
        }
        for LateConnect { origin, command, data } in std::mem::take(&mut self.late_connects) {
            let Some(role) = self.roles.get(&origin.link).copied() else { continue };
            let outcome = self.fabrics(origin, role, &command, &data, Instant::now());
            self.replies.extend(outcome.into_reply(origin));
        }
    }

    // --- what happens meanwhile ---------------------------------------------------------------------------------------

    /// Collects what the device has done, and events that can be determined.
    pub(crate) fn poll(&mut self) {
        let before = self.replies.len();
        let roles = &self.roles;
        self.engine.poll(&mut self.replies, |link| !roles.contains_key(&link));
        for place in before..self.replies.len() {
            let Reply { origin, status, .. } = self.replies[place];
            self.note(&origin, status);
            if origin.numbered.is_some() {
                let (result, data) = (self.replies[place].result, self.replies[place].data.to_vec());
                self.remember(&origin, status, result, &data);
            }
            if let Some(change) = self.replies[place].namespace {
                self.managed(self.replies[place].origin.link, change);
            }
        }
        self.open_fences();
        self.connect_late();
        self.poll_authentication();
        for controller in self.controllers.values_mut() {
            while let Some((origin, result)) = controller.next_event() {
                self.replies.push(Reply { result, ..Reply::of(origin, Status::SUCCESS) });
            }
        }
    }

    /// Nobody listens to the host after a link: it is not silent.
    pub(crate) fn suspend_keep_alive(&mut self, link: u64, now: Instant) {
        if let Some(Role::Admin(id) | Role::Io(id, _)) = self.roles.get(&link)
            && let Some(controller) = self.controllers.get_mut(id)
        {
            controller.hear(now);
        }
    }

    /// What is due from time to time: ends controllers whose hosts are silent, looks after namespaces.
    pub(crate) fn tick(&mut self, now: Instant) {
        let silent = self.controllers.values().filter(|controller| controller.is_silent(now));
        for id in silent.map(|controller| controller.id).collect::<Vec<_>>() {
            let host = self.controllers.get(&id).map(|controller| controller.host.nqn.as_str());
            tracing::info!(?host, controller = id, "the host is silent for longer than its keep-alive time-out");
            self.end(id);
        }
        self.refresh();
        self.notify_of_health();
    }
}
