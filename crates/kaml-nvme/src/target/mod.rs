//! The target: a device, served over NVMe/TCP.
//!
//! Lives here:       starting and stopping it.
//! Lives elsewhere:  see the modules: sockets (`reactor`, `link`), one connection (`connection`, `request`), their memory
//!                   (`share`, `budget`), controllers (`controller`),
//!                   dispatch (`core`), commands (`fabrics`, `admin`, `identify`, `logs`, `namespaces`, `keyvalue`, `named`,
//!                   `versions`, `blocks`, `reservations`), what failed (`errors`), the device (`engine`, `workers`).
//! Implements:       spec:NVMe-TCP; spec:NVMe-oF; spec:NVMe-NVM; spec:NVMe-KV; design section 2, driver (ii).

mod admin;
mod blocks;
mod budget;
mod connection;
mod controller;
mod core;
mod engine;
mod errors;
mod fabrics;
mod identify;
mod keyvalue;
mod link;
mod logs;
mod named;
mod namespaces;
mod offline;
mod options;
mod reactor;
mod request;
mod reservations;
mod share;
mod versions;
mod workers;

pub use offline::Offline;
pub use options::{BadName, Options, QUEUE_ENTRIES_MAX};
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
    /// The address cannot be listened at.
    #[error("listening at {address}: {source}")]
    Listen {
        /// What was asked for.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused a descriptor, a thread, or the wait.
    #[error("serving: {0}")]
    System(#[from] io::Error),
}

/// A target that listens and is not running yet.
pub struct Server {
    device: Device,
    options: Options,
    listener: TcpListener,
    address: SocketAddr,
    stopper: Stopper,
}

impl Server {
    /// Listens at an address. Port 0 takes a free one.
    pub fn bind(device: &Device, address: &str, options: Options) -> Result<Server, Error> {
        options.check()?;
        let failed = |source| Error::Listen { address: address.to_owned(), source };
        let resolved: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
        let listener = TcpListener::bind(&resolved[..]).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Server { device: device.clone(), options, listener, address, stopper: Stopper::new()? })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How it is set up.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What ends [`Server::run`], from any thread or signal handler's thread.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves on the calling thread until stopped; then answers what is in flight.
    pub fn run(self) -> Result<(), Error> {
        let target = core::Target::new(&self.device, self.options)?;
        Ok(reactor::Reactor::new(self.listener, target, self.stopper)?.run()?)
    }
}
