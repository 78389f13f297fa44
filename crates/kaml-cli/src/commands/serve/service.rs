//! One device, and how it is served.
//!
//! Lives here:       opening it, which hosts may connect, what can be found wrong before it is served.
//! Lives elsewhere:  where this comes from (`config`, or the flags of `serve`), hosts with their secrets (`hosts`).
//! May be called by: `serve`.

use super::hosts;
use super::schedule::Schedule;
use crate::failure::Failure;
use crate::secrets::refuse_without_tls;
use crate::store::{DeviceArgument, in_use_for_server, named, refuse_remote};
use kaml::{CreateOptions, Device, Holder};
use kaml_nvme::target::{Access, Error, KeepReservations, Options, Security, Server};
use std::io::ErrorKind;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait before an address or name that a process has is tried again.
const BETWEEN_TRIES: Duration = Duration::from_millis(5);

/// A name that is one, where the device that gives the name is not open.
const ANY_SUBSYSTEM: &str = "nqn.2014-08.org.nvmexpress:check";

/// What is served.
#[derive(Clone, PartialEq)]
pub enum Source {
    /// A file or block device.
    Device(DeviceArgument),
    /// A new device in memory of so many bytes.
    InMemory(u64),
}

/// Which hosts may connect.
#[derive(Clone, PartialEq)]
pub enum Hosts {
    /// All of them.
    All,
    /// Those with these qualified names.
    Named(Vec<String>),
    /// Those in a file, with what they have to prove and what they may do.
    File(PathBuf),
}

/// See the module.
#[derive(Clone, PartialEq)]
pub struct Service {
    pub source: Source,
    /// Addresses and ports, each with what it requires of connections ([`listener`]).
    pub listen: Vec<String>,
    /// Address and port of the metrics.
    pub metrics: Option<String>,
    pub subsystem: Option<String>,
    pub hosts: Hosts,
    /// Hosts may create, change and delete namespaces.
    pub allow_management: bool,
    pub reservations: Option<PathBuf>,
    /// Bytes for data of commands in flight.
    pub memory: u64,
    pub busy_poll: bool,
    /// Snapshots of its namespaces that are taken meanwhile.
    pub snapshots: Vec<Schedule>,
}

impl Service {
    /// What it is called in messages.
    pub fn name(&self) -> String {
        match &self.source {
            Source::Device(device) => device.path().display().to_string(),
            Source::InMemory(bytes) => format!("a device in memory of {}", crate::size::show(*bytes)),
        }
    }

    /// Opens the device.
    pub fn open(&self) -> Result<Device, Obstacle> {
        match &self.source {
            Source::Device(device) => {
                refuse_remote(device.path()).map_err(Obstacle::Failed)?;
                device.open_if_free().map_err(|error| Obstacle::new(device.path(), error))
            }
            Source::InMemory(bytes) => {
                refuse_too_large(*bytes).map_err(Obstacle::Failed)?;
                Device::in_allocated_memory(&CreateOptions::new(*bytes)).map_err(|error| Obstacle::Failed(error.into()))
            }
        }
    }

    /// Finds out whether it could be opened, as far as others matter that have it open.
    pub fn probe(&self) -> Result<(), Obstacle> {
        match &self.source {
            Source::Device(device) => device.probe().map_err(|error| Obstacle::new(device.path(), error)),
            Source::InMemory(_) => Ok(()),
        }
    }

    /// Which hosts may connect; files are read again by each call.
    pub fn access(&self) -> Result<Access, Failure> {
        let access = match &self.hosts {
            Hosts::All => Access::open(),
            Hosts::Named(names) => Access::only(names.iter().map(String::as_str)),
            Hosts::File(file) => hosts::read(file)?,
        };
        Ok(if self.allow_management { access.with_all_rights() } else { access })
    }

    /// Listens at all of its addresses. An address or name that another process has is tried again as long as the patience lasts.
    pub fn bind(&self, device: &Device, patience: Duration) -> Result<Server, Failure> {
        self.check_tls()?;
        let options = self.options(Options::for_device(device))?;
        let (first, others) =
            self.listen.split_first().ok_or_else(|| Failure::Usage("no address to listen at".into()))?;
        let (first, security) = listener(first)?;
        let options = Options { security, ..options };
        let bind = || Server::bind(device, first, options.clone());
        let mut server = while_it_lingers(patience, is_of_another, bind).map_err(failed)?;
        for address in others {
            let (address, security) = listener(address)?;
            while_it_lingers(patience, is_of_another, || server.listen_with(address, security)).map_err(failed)?;
        }
        Ok(server)
    }

    fn options(&self, defaults: Options) -> Result<Options, Failure> {
        Ok(Options {
            subsystem: self.subsystem.clone().unwrap_or(defaults.subsystem),
            access: self.access()?,
            security: defaults.security,
            reservations: self.keep_reservations(),
            memory_bytes: usize::try_from(self.memory).unwrap_or(usize::MAX),
            busy_poll: self.busy_poll,
            connections_max: defaults.connections_max,
        })
    }

    /// Finds what would keep it from being served, without opening or changing anything. A device that another process has open is none of that.
    pub fn check(&self) -> Result<(), Failure> {
        match &self.source {
            Source::Device(device) => device.check()?,
            Source::InMemory(bytes) => refuse_too_large(*bytes)?,
        }
        self.check_tls()?;
        let listeners = self.listen.iter().map(|address| Ok::<_, Failure>(listener(address)?.0));
        for address in listeners.chain(self.metrics.iter().map(|address| Ok(address.as_str()))) {
            let address = address?.to_owned();
            let wrong = |source| Error::Listen { address: address.clone(), source };
            address.to_socket_addrs().map_err(|source| failed(wrong(source)))?;
        }
        let defaults = Options {
            subsystem: ANY_SUBSYSTEM.into(),
            access: Access::open(),
            security: Security::Plain,
            reservations: KeepReservations::Nowhere,
            connections_max: 0,
            memory_bytes: 0,
            busy_poll: false,
        };
        self.options(defaults)?.check().map_err(|bad| failed(bad.into()))
    }

    /// Refuses keys that no listener uses, and listeners where nobody could connect.
    pub fn check_tls(&self) -> Result<(), Failure> {
        let security = self.listen.iter().map(|text| Ok(listener(text)?.1)).collect::<Result<Vec<_>, Failure>>()?;
        let has_key = self.access()?.hosts.into_iter().find(|(_, host)| host.tls_key.is_some()).map(|(name, _)| name);
        let wrong = match has_key {
            Some(name) if security.iter().all(|security| *security == Security::Plain) => format!(
                "the host {name:?} has a TLS key, but no listener uses TLS; write --listen ADDRESS:PORT,tls=required"
            ),
            None if security.contains(&Security::Required) => {
                "a listener requires TLS, but no host has a TLS key; state tls-key-file for hosts in the file of --hosts".into()
            }
            Some(_) | None => return Ok(()),
        };
        Err(Failure::Usage(wrong))
    }

    /// Where reservations persist: in the file that was named, next to a device file, or nowhere.
    fn keep_reservations(&self) -> KeepReservations {
        match (&self.reservations, &self.source) {
            (Some(file), _) => KeepReservations::File(file.clone()),
            (None, Source::InMemory(_)) => KeepReservations::WithDevice,
            (None, Source::Device(device)) if device.path().is_file() => {
                let mut path = device.path().as_os_str().to_owned();
                path.push(".reservations");
                KeepReservations::File(path.into())
            }
            (None, Source::Device(_)) => KeepReservations::Nowhere,
        }
    }
}

/// Why a device is not open.
pub enum Obstacle {
    /// A process has it open.
    InUse { path: PathBuf, holder: Option<Holder> },
    /// Something else, for which waiting is no remedy.
    Failed(Failure),
}

impl Obstacle {
    fn new(path: &Path, error: kaml::Error) -> Obstacle {
        match error {
            kaml::Error::InUse { holder, .. } => Obstacle::InUse { path: path.to_owned(), holder },
            error => Obstacle::Failed(named(path, error)),
        }
    }
}

impl From<Obstacle> for Failure {
    fn from(obstacle: Obstacle) -> Failure {
        match obstacle {
            Obstacle::InUse { path, holder } => Failure::Failed(in_use_for_server(&path, holder)),
            Obstacle::Failed(failure) => failure,
        }
    }
}

/// Another process has an address or name, or has not quite ended.
fn is_of_another(error: &Error) -> bool {
    match error {
        Error::Listen { source, .. } => source.kind() == ErrorKind::AddrInUse,
        Error::IdentityInUse { .. } | Error::SubsystemInUse { .. } => true,
        _ => false,
    }
}

/// Makes a call again for as long as it fails because of a process that ends.
pub fn while_it_lingers<T, E>(
    patience: Duration,
    is_passing: impl Fn(&E) -> bool,
    mut call: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let begun = Instant::now();
    loop {
        match call() {
            Err(error) if is_passing(&error) && begun.elapsed() < patience => std::thread::sleep(BETWEEN_TRIES),
            result => return result,
        }
    }
}

/// An address and port, and whether connections there are encrypted: `ADDRESS:PORT`, `ADDRESS:PORT,tls=optional` or `ADDRESS:PORT,tls=required`.
pub fn listener(text: &str) -> Result<(&str, Security), Failure> {
    let Some((address, option)) = text.split_once(',') else { return Ok((text, Security::Plain)) };
    let security = match option {
        "tls=required" => Security::Required,
        "tls=optional" => Security::Optional,
        _ => {
            let what =
                format!("--listen {text}: {option:?} is no option of a listener; use tls=required or tls=optional");
            return Err(Failure::Usage(what));
        }
    };
    refuse_without_tls()?;
    Ok((address, security))
}

/// A device in memory needs as much free: otherwise the system would kill the process when the device fills up.
fn refuse_too_large(bytes: u64) -> Result<(), Failure> {
    match available_bytes().filter(|available| bytes > *available) {
        Some(available) => Err(Failure::Failed(format!("{bytes} bytes are more than the {available} of free memory"))),
        None => Ok(()),
    }
}

/// Memory that can be had without swapping, if the system reports it.
fn available_bytes() -> Option<u64> {
    let said = std::fs::read_to_string("/proc/meminfo").ok()?;
    let available = said.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(available.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// An error of a target, as one of usage where it is one.
pub fn failed(error: Error) -> Failure {
    match error {
        Error::Options(bad) => Failure::Usage(bad.to_string()),
        Error::Tls(error) => Failure::Usage(error.to_string()),
        Error::Listen { address, source } if source.kind() == ErrorKind::InvalidInput => {
            Failure::Usage(format!("--listen {address}: {source}; an address and a port, as 127.0.0.1:4420"))
        }
        other => Failure::Failed(other.to_string()),
    }
}
