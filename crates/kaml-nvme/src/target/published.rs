//! Where a process serves devices, for those who find one of them in use.
//!
//! Lives here:       publishing the address and the name of a server for as long as it exists, and finding those of another process.
//! Lives elsewhere:  which process has a device open (`kaml_flash`), that two servers do not have one identity (`claim`).
//! May be called by: `target`; programs that find a device in use ([`served_by`]).
//!
//! A server binds two sockets with abstract names, one with its address and one with its subsystem. The kernel lists such names in
//! `/proc/net/unix` and removes them when the process ends, however it ends. Any process can bind any name, so a name counts only if its socket is
//! among the descriptors of the process that it names.

use rustix::process::getpid;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as Name, UnixDatagram};
use std::sync::atomic::{AtomicU32, Ordering};

const ADDRESS: &str = "kaml-nvme/at/";
const SUBSYSTEM: &str = "kaml-nvme/of/";
/// Descriptors of a process that are looked at.
const DESCRIPTORS_MAX: usize = 1 << 16;

/// Publishes where a server is until it is dropped.
pub(super) struct Published {
    _sockets: [Option<UnixDatagram>; 2],
}

impl Published {
    /// Publishes a server. What a system has no room or no permission for is left out: it helps people, and nothing depends on it.
    pub(super) fn new(address: SocketAddr, subsystem: &str) -> Published {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let bind = |kind: &str, what: &str| {
            let name = format!("{kind}{}-{number}/{what}", getpid().as_raw_nonzero());
            let socket = Name::from_abstract_name(name).and_then(|name| UnixDatagram::bind_addr(&name)).ok()?;
            let _ = socket.shutdown(std::net::Shutdown::Read); // nobody may fill its queue
            Some(socket)
        };
        Published { _sockets: [bind(ADDRESS, &address.to_string()), bind(SUBSYSTEM, subsystem)] }
    }
}

/// A device that a process serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Served {
    /// Where the server listens.
    pub address: SocketAddr,
    /// The name of the subsystem, unless it is too long to be published.
    pub subsystem: Option<String>,
}

impl Served {
    /// The URL by which a program on this host uses the device. A name that is not known is `SUBSYSTEM`.
    pub fn url(&self) -> String {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let address = SocketAddr::new(ip, self.address.port());
        format!("nvme+tcp://{address}/{}", self.subsystem.as_deref().unwrap_or("SUBSYSTEM"))
    }
}

/// The devices that a process serves, in the order in which it began to. Nothing of a process in another network namespace, or of another user
/// unless this is root.
pub fn served_by(process: u32) -> Vec<Served> {
    let Ok(sockets) = std::fs::read("/proc/net/unix") else { return Vec::new() };
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return Vec::new() };
    let links = descriptors.take(DESCRIPTORS_MAX).flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let own: Vec<u64> = links.filter_map(|link| socket_inode(link.to_str()?)).collect();
    published(&String::from_utf8_lossy(&sockets), process, |inode| own.contains(&inode))
}

/// `socket:[4711]`.
fn socket_inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// What the sockets of a process publish, in a list of all: `0000: 00000002 00000000 00000000 0002 01 4711 @kaml-nvme/at/17-0/127.0.0.1:4420`.
fn published(sockets: &str, process: u32, is_own: impl Fn(u64) -> bool) -> Vec<Served> {
    let names = |kind: &'static str| {
        let is_own = &is_own;
        sockets.lines().filter_map(move |line| {
            let mut fields = line.split_ascii_whitespace().skip(6);
            let (inode, name) = (fields.next()?.parse().ok()?, fields.next()?);
            let (number, what) = name.strip_prefix('@')?.strip_prefix(kind)?.split_once('/')?;
            let number: u32 = number.strip_prefix(&format!("{process}-"))?.parse().ok()?;
            is_own(inode).then_some((number, what))
        })
    };
    let of = |number: u32| names(SUBSYSTEM).find(|(of, _)| *of == number).map(|(_, name)| name.to_owned());
    let mut found: Vec<(u32, SocketAddr)> =
        names(ADDRESS).filter_map(|(number, address)| Some((number, address.parse().ok()?))).collect();
    found.sort_unstable();
    found.into_iter().map(|(number, address)| Served { address, subsystem: of(number) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(address: &str, subsystem: Option<&str>) -> Served {
        Served { address: address.parse().unwrap(), subsystem: subsystem.map(str::to_owned) }
    }

    /// Goal:   what a server publishes is found while it exists, and not afterwards; a name that is too long leaves the address.
    /// Method: servers of this process.
    #[test]
    fn servers_are_found() {
        let (address, long) = ("[::1]:1".parse().unwrap(), "n".repeat(200));
        let found = || {
            let all = served_by(std::process::id()).into_iter(); // other tests serve, too
            all.filter(|served| served.address == address).collect::<Vec<_>>()
        };
        let [one, two] = ["nqn.one", &long].map(|name| Published::new(address, name));
        assert_eq!(found(), [served("[::1]:1", Some("nqn.one")), served("[::1]:1", None)]);
        drop((one, two));
        assert_eq!(found(), []);
    }

    /// Goal:   of all sockets only those count that the process itself has, whatever the list contains.
    /// Method: its sockets, those of others with its number, other names, lines that are cut short at every byte or make no sense.
    #[test]
    fn others_cannot_publish_for_a_process() {
        let line = |inode: u32, name: &str| format!("0: 00000002 00000000 00000000 0002 01 {inode} {name}\n");
        let list = [
            "Num       RefCount Protocol Flags    Type St Inode Path\n".to_owned(),
            line(5, "@kaml-nvme/of/17-1/nqn.b"),
            line(6, "@kaml-nvme/at/17-1/[::1]:2"),
            line(7, "@kaml-nvme/at/17-0/127.0.0.1:1"),
            line(8, "@kaml-nvme/of/17-0/nqn.a"),
            line(90, "@kaml-nvme/at/17-2/10.0.0.1:3"),
            line(9, "@kaml-nvme/at/170-3/10.0.0.1:4"),
            line(9, "@kaml-nvme/at/17-4/10.0.0.1"),
            line(9, "kaml-nvme/at/17-5/10.0.0.1:5"),
            "0: 1 2\n\u{fffd} @\n\n".to_owned(),
        ]
        .concat();
        let own = |inode| (5..10).contains(&inode);
        let expected = [served("127.0.0.1:1", Some("nqn.a")), served("[::1]:2", Some("nqn.b"))];
        assert_eq!(published(&list, 17, own), expected);
        assert_eq!(published(&list, 17, |_| false), []);
        for end in (0..list.len()).filter(|end| list.is_char_boundary(*end)) {
            assert!(published(&list[..end], 17, own).len() <= 2);
        }
        assert_eq!(
            (socket_inode("socket:[12]"), socket_inode("pipe:[12]"), socket_inode("socket:[")),
            (Some(12), None, None)
        );
    }

    /// Goal:   a URL reaches a server that listens at all addresses.
    /// Method: URLs of servers at one address and at all.
    #[test]
    fn urls_reach_servers() {
        assert_eq!(served("0.0.0.0:4420", Some("nqn.a")).url(), "nvme+tcp://127.0.0.1:4420/nqn.a");
        assert_eq!(served("[::]:1", None).url(), "nvme+tcp://[::1]:1/SUBSYSTEM");
        assert_eq!(served("10.1.2.3:1", Some("nqn.a")).url(), "nvme+tcp://10.1.2.3:1/nqn.a");
    }
}
