//! The target: a device, served over NVMe/TCP.
//!
//! Lives here:       starting and stopping it.
//! Lives elsewhere:  see the modules: sockets (`reactor`, `link`), one connection (`connection`, `request`), their memory
//!                   (`share`, `budget`), controllers (`controller`), which hosts there are (`monitor`), who else serves the same device (`claim`),
//!                   where a process serves devices (`published`), which hosts may connect and what they may do (`access`, `rights`) after they have proved who they are
//!                   (`authentication`, `exponents`), changes while it runs (`control`), reservations that survive it (`persistence`), what other threads have done (`mailbox`),
//!                   dispatch (`core`), namespaces as hosts see them (`spaces`), commands (`fabrics`, `admin`, `identify`, `logs`, `namespaces`, `keyvalue`, `named`,
//!                   `versions`, `blocks`, `reservations`, `backup`), what is executed one time (`sessions`), what failed (`errors`), the device (`engine`, `workers`).
//! Implements:       spec:NVMe-TCP; spec:NVMe-oF; spec:NVMe-NVM; spec:NVMe-KV; docs/nvme.md "How it works".

mod access;
mod admin;
mod authentication;
mod backup;
mod backup_pipe;
mod blocks;
mod budget;
mod changes;
mod claim;
mod connection;
mod control;
mod controller;
mod core;
mod engine;
mod errors;
mod exponents;
mod fabrics;
mod identify;
mod identity;
mod keyvalue;
mod link;
mod logs;
mod mailbox;
mod monitor;
mod named;
mod namespaces;
mod offline;
mod options;
mod persistence;
mod published;
mod ranges;
mod reactor;
mod request;
mod reservations;
mod rights;
mod secure;
mod sessions;
mod share;
mod snapshots;
mod spaces;
mod versions;
mod workers;

pub use access::{Access, HostAccess, Right, Rights};
pub use control::Control;
pub use identity::Identity;
pub use monitor::{ConnectedHost, Monitor};
pub use offline::Offline;
pub use options::{BadName, Options, QUEUE_ENTRIES_MAX, Security};
pub use persistence::{BadReservations, KeepReservations};
pub use published::{Served, served_by};
pub use reactor::Stopper;

use kaml::Device;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

/// Why a target could not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option makes no sense.
    #[error(transparent)]
    Options(#[from] BadName),
    /// The file of reservations cannot be used.
    #[error(transparent)]
    Reservations(#[from] BadReservations),
    /// The address cannot be listened at.
    #[error("listening at {address}: {source}")]
    Listen {
        /// What was requested.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
    /// Another server on this host has a device with the same identity: one of the two is a copy, or they are one.
    #[error(
        "another server on this host has a device with the identity {uuid}; hosts would take both for one. If this device is a copy, \
         give it an identity of its own: kaml identity DEVICE --new"
    )]
    IdentityInUse {
        /// The identity of both.
        uuid: String,
    },
    /// Another server on this host uses the subsystem's name.
    #[error(
        "another server on this host uses the subsystem name {subsystem:?}; hosts would take both for one. Use another name; the \
         default one follows the device's identity"
    )]
    SubsystemInUse {
        /// The name of both.
        subsystem: String,
    },
    /// A listener is to use TLS, and this build has none.
    #[error(transparent)]
    Tls(#[from] crate::tls::TlsError),
    /// The system refused a descriptor, a thread, or the wait.
    #[error("serving: {0}")]
    System(#[from] io::Error),
}

/// A target that listens and is not running yet.
pub struct Server {
    device: Device,
    options: Options,
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    /// Of each listener.
    security: Vec<Security>,
    stopper: Stopper,
    control: Control,
    monitor: Monitor,
    claim: claim::Claim,
    published: published::Published,
}

impl Server {
    /// Listens at an address. Port 0 takes a free one.
    ///
    /// # Errors
    /// - [`Error::IdentityInUse`] and [`Error::SubsystemInUse`] if another server on this host, in this process or another one, has a
    ///   device with the same identity, or uses the same subsystem name.
    /// - [`Error::Tls`] if the options require TLS and this build has none.
    /// - [`Error::Options`], [`Error::Listen`] and [`Error::System`] as documented there.
    pub fn bind(device: &Device, address: &str, options: Options) -> Result<Server, Error> {
        options.check()?;
        check_built(options.security)?;
        persistence::read(&options.reservations, Identity::of_hex(&device.info().uuid))?;
        let claim = claim::Claim::new(&device.info().uuid, &options.subsystem)?;
        let (listener, address) = listen(address)?;
        let (listeners, addresses, security) = (vec![listener], vec![address], vec![options.security]);
        let (stopper, control, monitor) = (Stopper::new()?, Control::new()?, Monitor::default());
        let published = published::Published::new(address, &options.subsystem);
        let device = device.clone();
        Ok(Server { device, options, listeners, addresses, security, stopper, control, monitor, claim, published })
    }

    /// Listens at another address too: another port of the same subsystem, by which hosts have another path to the same namespaces. Discovery
    /// reports all of them. Returns where it listens.
    ///
    /// # Errors
    /// [`Error::Listen`].
    ///
    /// # Examples
    /// ```
    /// use kaml::{CreateOptions, Device};
    /// use kaml_nvme::target::{Options, Server};
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let mut server = Server::bind(&device, "127.0.0.1:0", Options::for_device(&device))?;
    /// server.listen_also("[::1]:0").or_else(|_| server.listen_also("127.0.0.1:0"))?;
    /// assert_eq!(server.addresses().len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn listen_also(&mut self, address: &str) -> Result<SocketAddr, Error> {
        self.listen_with(address, self.options.security)
    }

    /// The same, with its own choice whether connections are encrypted.
    ///
    /// # Errors
    /// [`Error::Listen`], and [`Error::Tls`] in a build without TLS.
    pub fn listen_with(&mut self, address: &str, security: Security) -> Result<SocketAddr, Error> {
        check_built(security)?;
        let (listener, address) = listen(address)?;
        self.listeners.push(listener);
        self.addresses.push(address);
        self.security.push(security);
        Ok(address)
    }

    /// Where it listens first.
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Everywhere that it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// How it is set up.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What ends [`Server::run`], from any thread or signal handler's thread.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// What changes [`Server::run`], from any thread.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Shows which hosts are connected while [`Server::run`] runs.
    pub fn monitor(&self) -> Monitor {
        self.monitor.watch()
    }

    /// Serves on the calling thread until stopped; then answers what is in flight.
    pub fn run(self) -> Result<(), Error> {
        let _until_it_ends = (self.claim, self.published);
        let mut target = core::Target::new(&self.device, self.options)?;
        target.ports = self.addresses;
        target.security.clone_from(&self.security);
        let listeners = self.listeners.into_iter().zip(self.security).collect();
        Ok(reactor::Reactor::new(listeners, target, self.stopper, self.control, self.monitor)?.run()?)
    }
}

/// Refuses TLS in a build without it.
fn check_built(security: Security) -> Result<(), crate::tls::TlsError> {
    let can = security == Security::Plain || crate::tls::IS_BUILT;
    if can { Ok(()) } else { Err(crate::tls::TlsError::NotBuilt) }
}

fn listen(address: &str) -> Result<(TcpListener, SocketAddr), Error> {
    let failed = |source| Error::Listen { address: address.to_owned(), source };
    let resolved: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
    let listener = TcpListener::bind(&resolved[..]).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}
