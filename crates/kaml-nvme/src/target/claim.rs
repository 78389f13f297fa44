//! One server for each identity on a host.
//!
//! Lives here:       claiming an identity and a subsystem name for as long as a server exists.
//! Lives elsewhere:  where identities come from (`kaml::Device`), giving a copy another one (`kaml identity`).
//!
//! A copied device has the UUID of its original. Hosts take both for one device with two paths, and mix their data. A claim is a
//! socket with an abstract name, so the kernel releases it when the process ends, however it ends. Abstract names are visible in one
//! network namespace: servers in different ones listen at different addresses, and do not see each other's claims.

use super::Error;
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Longest subsystem name that fits an abstract address together with its prefix.
const NAME_BYTES_MAX: usize = 90;

/// Holds the identity of a device, and the name of its subsystem, until it is dropped.
pub(super) struct Claim {
    _identity: Option<UnixDatagram>,
    _subsystem: Option<UnixDatagram>,
}

impl Claim {
    /// Claims both, or reports which one another server on this host has.
    pub(super) fn new(uuid: &str, subsystem: &str) -> Result<Claim, Error> {
        let identity =
            hold(&format!("kaml-nvme/uuid/{uuid}")).map_err(|Held| Error::IdentityInUse { uuid: uuid.to_owned() })?;
        // A longer name shares its claim with names that begin alike: refusing too much is safe, and no name of ours is so long.
        let start = &subsystem.as_bytes()[..subsystem.len().min(NAME_BYTES_MAX)];
        let subsystem = hold(&format!("kaml-nvme/nqn/{}", String::from_utf8_lossy(start)))
            .map_err(|Held| Error::SubsystemInUse { subsystem: subsystem.to_owned() })?;
        Ok(Claim { _identity: identity, _subsystem: subsystem })
    }
}

/// Another server holds the name.
struct Held;

/// Binds an abstract name. A system that allows no such sockets cannot determine, which is logged; the server starts all the same.
fn hold(name: &str) -> Result<Option<UnixDatagram>, Held> {
    match SocketAddr::from_abstract_name(name).and_then(|address| UnixDatagram::bind_addr(&address)) {
        Ok(socket) => {
            // Nobody may fill its queue.
            let _ = socket.shutdown(std::net::Shutdown::Read);
            Ok(Some(socket))
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse => Err(Held),
        Err(error) => {
            tracing::warn!(name, %error, "cannot check whether another server has the same identity");
            Ok(None)
        }
    }
}
