//! Connecting to a subsystem: the admin queue, enabling, I/O queues, keep-alive, admin commands.
//!
//! Lives here:       the steps of connecting in their order.
//! Lives elsewhere:  one queue (`queue`), authenticating it (`authentication`).
//! Implements:       spec:NVMe-oF "Connect"; spec:NVMe-Base "Controller Initialization".

use super::authentication::{authenticate, prove};
use super::queue::{CONNECT_TIMEOUT, Queue};
use super::{Credentials, Error, Finished, HostKey};
use crate::transport::Digests;
use crate::wire::command::{Command, admin};
use crate::wire::fabrics::{
    CNTLID_DYNAMIC, Configuration, Connect, ConnectData, DISCOVERY_NQN, Property, kind, ready, register,
};
use crate::wire::identify::{Controller as ControllerPage, PAGE_BYTES, cns};
use crate::wire::logs::{DiscoveryHead, DiscoveryRecord, LogRequest, lid};
use crate::wire::status::Status;
use crate::wire::text::{get_ascii, get_nqn, put_name};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Entries of an admin queue.
const ADMIN_ENTRIES: u16 = 32;
/// Feature identifier: number of queues.
const FEATURE_QUEUES: u32 = 0x07;
/// How often to look whether a controller is ready.
const READY_POLL: Duration = Duration::from_millis(10);
/// Looks at whether a controller is ready, before giving up: 10 seconds.
const READY_POLLS_MAX: u32 = 1000;

/// How to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// Our qualified name.
    pub host: String,
    /// Our identifier.
    pub host_id: [u8; 16],
    /// I/O queues, each a connection; the controller may grant fewer.
    pub queues: u16,
    /// Commands in flight on each.
    pub depth: u16,
    /// Digests to request.
    pub digests: Digests,
    /// Keep-alive time-out; zero for none. A target that is silent for so long, and 10 seconds at least, is lost.
    pub keep_alive: Duration,
    /// What the host proves itself with, if the target requires that.
    pub credentials: Option<Credentials>,
    /// With a key, all connections are encrypted with it, and targets that do not have it are refused.
    pub tls: Option<HostKey>,
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        let id = xxhash_rust::xxh3::xxh3_128(std::fs::read("/etc/machine-id").unwrap_or_default().as_slice());
        HostOptions {
            host: format!("nqn.2014-08.org.nvmexpress:uuid:{:08x}-0000-8000-8000-{:012x}", id as u32, id >> 80),
            host_id: id.to_be_bytes(),
            queues: 1,
            depth: 128,
            digests: Digests::default(),
            keep_alive: Duration::from_secs(15),
            credentials: None,
            tls: None,
        }
    }
}

/// Sockets of I/O queues, which the thread that keeps the controller alive shuts down when it cannot any more; none then.
type Sockets = Arc<Mutex<Option<Vec<TcpStream>>>>;

/// A connected controller.
pub struct Controller {
    id: u16,
    admin: Arc<Queue>,
    queues: Vec<Queue>,
    transfer_bytes_max: usize,
    page: ControllerPage,
    /// What we are called, and what the subsystem is.
    names: (String, String),
    sockets: Sockets,
    /// Ends the thread that keeps the controller alive.
    keeper: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Controller {
    /// Connects to a subsystem at `host:port` and enables its controller.
    pub fn connect(address: &str, subsystem: &str, options: &HostOptions) -> Result<Controller, Error> {
        let admin = Arc::new(open_queue(address, ADMIN_ENTRIES - 1, subsystem, options)?);
        if !options.keep_alive.is_zero() {
            admin.set_silence_max(options.keep_alive.max(CONNECT_TIMEOUT))?;
        }
        let id = connect_queue(&admin, 0, ADMIN_ENTRIES, CNTLID_DYNAMIC, subsystem, options)?;
        enable(&admin)?;
        let page = identify(&admin, cns::CONTROLLER, 0, 0)?;
        let (page, _) =
            ControllerPage::read_from_prefix(&page).map_err(|_| Error::Unsupported("Identify Controller"))?;
        let mdts = match page.mdts {
            0 => usize::MAX >> 1,
            power => 4096usize.checked_shl(u32::from(power)).unwrap_or(usize::MAX >> 1),
        };
        let transfer_bytes_max = mdts.min(u32::MAX as usize);
        let sockets = Arc::new(Mutex::new(Some(Vec::new())));
        let keeper =
            (!options.keep_alive.is_zero()).then(|| keep_alive(&admin, &sockets, options.keep_alive)).transpose()?;
        let names = (options.host.clone(), subsystem.to_owned());
        let mut controller =
            Controller { id, admin, queues: Vec::new(), transfer_bytes_max, page, names, sockets, keeper };
        if subsystem != DISCOVERY_NQN && options.queues > 0 {
            controller.open_queues(address, subsystem, options)?;
        }
        Ok(controller)
    }

    fn open_queues(&mut self, address: &str, subsystem: &str, options: &HostOptions) -> Result<(), Error> {
        let wanted = u32::from(options.queues - 1);
        let mut command = Command::new(admin::SET_FEATURES, 0);
        command.cdw10 = FEATURE_QUEUES.into();
        command.cdw11 = (wanted << 16 | wanted).into();
        let granted = self.admin.execute(command, &[], 0)?.success()?.result as u32;
        let count = (granted & 0xffff).min(granted >> 16).min(wanted) + 1;
        let capsule_bytes = (self.page.ioccsz.get() as usize * 16).saturating_sub(64);
        for number in 1..=count as u16 {
            let queue = open_queue(address, options.depth, subsystem, options)?;
            match self.sockets.lock().expect("no panics under this lock").as_mut() {
                Some(sockets) => sockets.push(queue.socket()?),
                None => return Err(Error::Connection("the target is silent".into())),
            }
            connect_queue(&queue, number, options.depth + 1, self.id, subsystem, options)?;
            queue.set_capsule_bytes(capsule_bytes);
            self.queues.push(queue);
        }
        Ok(())
    }

    /// Authenticates all of its queues again, for example after the secret was changed at the target.
    ///
    /// # Errors
    /// [`Error::NotAuthenticated`] if one of both refuses the other one, and [`Error::Status`] if the target knows no secret of this
    /// host. The queues can be used as before.
    pub fn reauthenticate(&self, credentials: &Credentials) -> Result<(), Error> {
        let (host, subsystem) = &self.names;
        let queues = std::iter::once(&*self.admin).chain(&self.queues);
        queues.into_iter().try_for_each(|queue| prove(queue, host, subsystem, credentials))
    }

    /// Its number.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// What it reports about itself.
    pub fn page(&self) -> &ControllerPage {
        &self.page
    }

    /// The longest transfer of one command.
    pub fn transfer_bytes_max(&self) -> usize {
        self.transfer_bytes_max
    }

    /// Its admin queue.
    pub fn admin(&self) -> &Queue {
        &self.admin
    }

    /// Its I/O queues.
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// An Identify page.
    pub fn identify(&self, what: u8, nsid: u32, csi: u8) -> Result<Vec<u8>, Error> {
        identify(&self.admin, what, nsid, csi)
    }

    /// A log page, or a part of it.
    pub fn log_page(&self, request: &LogRequest) -> Result<Vec<u8>, Error> {
        Ok(self.admin.execute(request.command(u32::MAX), &[], request.bytes)?.success()?.data)
    }

    /// Subsystems that a discovery controller knows: name, address, service.
    pub fn discovered(&self) -> Result<Vec<(String, String, String)>, Error> {
        let part =
            |offset, bytes| self.log_page(&LogRequest { lid: lid::DISCOVERY, retain: false, offset, bytes, csi: 0 });
        let (head, _) =
            DiscoveryHead::read_from_prefix(&part(0, 1024)?).map_err(|_| Error::Unsupported("discovery"))?;
        let mut found = Vec::new();
        for number in 0..head.record_count.get() {
            let record = part((number + 1) * 1024, 1024)?;
            let (record, _) =
                DiscoveryRecord::read_from_prefix(&record).map_err(|_| Error::Unsupported("discovery"))?;
            let name = get_nqn(&record.subsystem).unwrap_or_default().to_owned();
            found.push((name, get_ascii(&record.address), get_ascii(&record.service)));
        }
        Ok(found)
    }
}

impl Drop for Controller {
    /// Shuts the controller down, as an orderly host does.
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.keeper.take() {
            drop(stop);
            if thread.join().is_err() {
                tracing::error!("the keep-alive thread panicked");
            }
        }
        let value = Configuration::ALL_COMMAND_SETS.0 | Configuration::SHUTDOWN;
        let shutdown = Property::command(kind::PROPERTY_SET, register::CC, false, u64::from(value));
        let told = self.admin.set_silence_max(CONNECT_TIMEOUT).and_then(|()| self.admin.execute(shutdown, &[], 0));
        if let Err(error) = told {
            tracing::debug!(%error, "the controller could not be notified of the disconnect");
        }
    }
}

/// A connection, encrypted if the host has a key.
fn open_queue(address: &str, depth: u16, subsystem: &str, options: &HostOptions) -> Result<Queue, Error> {
    let psk = options.tls.as_ref().map(|tls| tls.psk(&options.host, subsystem)).transpose()?;
    Queue::open_with(address, depth, options.digests, psk)
}

fn connect_queue(
    queue: &Queue,
    number: u16,
    entries: u16,
    cntlid: u16,
    subsystem: &str,
    options: &HostOptions,
) -> Result<u16, Error> {
    let mut data = ConnectData::new_zeroed();
    (data.host_id, data.cntlid) = (options.host_id, cntlid.into());
    put_name(&mut data.subsystem, subsystem);
    put_name(&mut data.host, &options.host);
    let mut connect = Connect::new_zeroed();
    (connect.queue, connect.queue_size) = (number.into(), (entries - 1).into());
    connect.attributes = Connect::NO_FLOW_CONTROL;
    if number == 0 {
        connect.keep_alive_ms = (options.keep_alive.as_millis() as u32).into();
    }
    let finished = queue.execute(connect.command(), data.as_bytes(), 0)?.success()?;
    // Discovery requires no authentication, and shows a host nothing that it could be deceived with.
    let credentials = options.credentials.as_ref().filter(|_| subsystem != DISCOVERY_NQN);
    authenticate(queue, number, finished.result, &options.host, subsystem, credentials)?;
    Ok(finished.result as u16)
}

fn enable(admin: &Queue) -> Result<(), Error> {
    let property = |kind, offset, wide, value| -> Result<Finished, Error> {
        admin.execute(Property::command(kind, offset, wide, value), &[], 0)?.success()
    };
    let capabilities = property(kind::PROPERTY_GET, register::CAP, true, 0)?.result;
    // Bit 43: several command sets. A discovery controller may do without.
    let sets = if capabilities >> 43 & 1 == 1 { Configuration::ALL_COMMAND_SETS.0 } else { 0x0046_0001 };
    property(kind::PROPERTY_SET, register::CC, false, u64::from(sets))?;
    for _ in 0..READY_POLLS_MAX {
        let status = property(kind::PROPERTY_GET, register::CSTS, false, 0)?.result as u32;
        if status & ready::FATAL != 0 {
            break;
        }
        if status & ready::READY != 0 {
            return Ok(());
        }
        std::thread::sleep(READY_POLL);
    }
    Err(Error::Connection("the controller does not become ready".into()))
}

fn identify(admin: &Queue, what: u8, nsid: u32, csi: u8) -> Result<Vec<u8>, Error> {
    let mut command = Command::new(admin::IDENTIFY, nsid);
    command.cdw10 = u32::from(what).into();
    command.cdw11 = (u32::from(csi) << 24).into();
    Ok(admin.execute(command, &[], PAGE_BYTES)?.success()?.data)
}

/// Sends Keep Alive at a third of the time-out until the sender is dropped or the connection is lost: then those of I/O queues
/// are, too, because a target that is gone does not end them.
fn keep_alive(
    admin: &Arc<Queue>,
    sockets: &Sockets,
    timeout: Duration,
) -> Result<(mpsc::Sender<()>, JoinHandle<()>), Error> {
    let (stop, stopped) = mpsc::channel::<()>();
    let (admin, sockets) = (Arc::clone(admin), Arc::clone(sockets));
    let thread = std::thread::Builder::new().name("nvme-keep-alive".into()).spawn(move || {
        while stopped.recv_timeout(timeout / 3) == Err(mpsc::RecvTimeoutError::Timeout) {
            match admin.execute(Command::new(admin::KEEP_ALIVE, 0), &[], 0) {
                Ok(finished) if finished.status == Status::SUCCESS => {}
                Ok(_) => return, // it knows no such command
                Err(_) => {
                    let sockets = sockets.lock().expect("no panics under this lock").take();
                    sockets.into_iter().flatten().for_each(|socket| {
                        // It may be lost already.
                        let _ = socket.shutdown(Shutdown::Both);
                    });
                    return;
                }
            }
        }
    })?;
    Ok((stop, thread))
}
