//! Reservations that survive a restart and loss of power.
//!
//! Lives here:       the file, writing it, what is wrong with one.
//! Lives elsewhere:  reservations and what changes them (`reservations`), which file (`options`).
//! Implements:       docs/formats/reservations.md; spec:NVMe-Base "Persist Through Power Loss".
//!
//! The file has all namespaces whose reservations persist. It is replaced as a whole, so a power cut leaves the old one or the new
//! one. A device whose file is damaged is not served: hosts that were kept out would get in.

use super::identity::Identity;
use super::reservations::Reservations;
use crate::wire::reservations::{HostId, Report};
use kaml::NamespaceId;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::mem::size_of;
use std::path::{Path, PathBuf};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Whether reservations can persist, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepReservations {
    /// Nowhere: hosts that request it are refused.
    #[default]
    Nowhere,
    /// The device is in memory, and ends with the target: they last as long.
    WithDevice,
    /// In this file, which is made when it is first needed.
    File(PathBuf),
}

/// What is wrong with a file of reservations.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadReservations {
    /// It cannot be read or written.
    #[error("{}: {source}", .path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// It is damaged.
    #[error(
        "{}: is damaged, so nobody knows which hosts reservations keep out. Disconnect all hosts, delete the file, and let them reserve \
         again",
        .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// A later version of KAML has written it.
    #[error("{}: has version {version}; this program reads version {VERSION}", .path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// It is that of another device.
    #[error(
        "{}: has the reservations of another device, {uuid}. If this device is a copy or was made anew, delete the file",
        .path.display()
    )]
    AnotherDevice {
        /// The file.
        path: PathBuf,
        /// The identity of the device that it belongs to.
        uuid: String,
    },
}

const MAGIC: [u8; 4] = *b"KRV1";
const VERSION: u32 = 1;
/// Bytes of the longest file: 1024 namespaces of 1024 registrants each.
const FILE_BYTES_MAX: u64 = 128 << 20;

/// The head of the file.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 4 | `KRV1` |
/// | 4 | 4 | version, 1 |
/// | 8 | 16 | identity of the device |
/// | 24 | 4 | number of namespaces |
/// | 28 | 4 | bytes after the head, without the checksum |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 4],
    version: U32,
    identity: [u8; 16],
    count: U32,
    bytes: U32,
}

/// The head of a namespace; the data of Reservation Report follow, in their extended form.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 4 | namespace |
/// | 4 | 4 | bytes of the report |
/// | 8 | 16 | the host that acquired the reservation; zeros without one |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Entry {
    nsid: U32,
    bytes: U32,
    holder: HostId,
}

const _: () = assert!(size_of::<Head>() == 32 && size_of::<Entry>() == 24);

type All = BTreeMap<NamespaceId, Reservations>;

/// The file's bytes: head, namespaces, CRC-32C of all before it.
fn encode(identity: Identity, all: &All) -> Vec<u8> {
    let persistent = || all.iter().filter(|(_, reservations)| reservations.persists());
    let mut body = Vec::new();
    for (nsid, reservations) in persistent() {
        let report = reservations.report().encode();
        let holder = reservations.holder().unwrap_or_default();
        let entry = Entry { nsid: (*nsid).into(), bytes: (report.len() as u32).into(), holder };
        body.extend_from_slice(entry.as_bytes());
        body.extend_from_slice(&report);
    }
    let head = Head {
        magic: MAGIC,
        version: VERSION.into(),
        identity: identity.bytes(),
        count: (persistent().count() as u32).into(),
        bytes: (body.len() as u32).into(),
    };
    let mut bytes = [head.as_bytes(), &body].concat();
    bytes.extend_from_slice(&kaml_crc::crc32c(&bytes).to_le_bytes());
    bytes
}

/// The head and the namespaces, if all is whole.
fn decode(bytes: &[u8]) -> Option<(Head, All)> {
    let (whole, checksum) = bytes.split_last_chunk::<4>()?;
    let (head, mut rest) = Head::read_from_prefix(whole).ok()?;
    if head.magic != MAGIC || head.bytes.get() as usize != rest.len() {
        return None;
    }
    if kaml_crc::crc32c(whole).to_le_bytes() != *checksum {
        return None;
    }
    let mut all = All::new();
    if head.version.get() != VERSION {
        return Some((head, all));
    }
    for _ in 0..head.count.get() {
        let (entry, tail) = Entry::read_from_prefix(rest).ok()?;
        let (report, tail) = tail.split_at_checked(entry.bytes.get() as usize)?;
        all.insert(entry.nsid.get(), Reservations::restored(&Report::decode(report)?, &entry.holder)?);
        rest = tail;
    }
    rest.is_empty().then_some((head, all))
}

/// The reservations that persist. Nothing if there is no file.
pub(crate) fn read(keep: &KeepReservations, identity: Identity) -> Result<All, BadReservations> {
    let KeepReservations::File(path) = keep else { return Ok(All::new()) };
    let path = || path.clone();
    let mut bytes = Vec::new();
    match File::open(path()).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(All::new()),
        Err(source) => return Err(BadReservations::System { path: path(), source }),
    }
    let (head, all) = decode(&bytes).ok_or_else(|| BadReservations::Damaged { path: path() })?;
    if head.version.get() != VERSION {
        return Err(BadReservations::Version { path: path(), version: head.version.get() });
    }
    if head.identity != identity.bytes() {
        return Err(BadReservations::AnotherDevice { path: path(), uuid: Identity::of(head.identity).uuid() });
    }
    Ok(all)
}

/// Makes the reservations durable, if there is anything to keep.
pub(crate) fn write(keep: &KeepReservations, identity: Identity, all: &All) -> Result<(), BadReservations> {
    let KeepReservations::File(path) = keep else { return Ok(()) };
    replace(path, &encode(identity, all)).map_err(|source| BadReservations::System { path: path.clone(), source })
}

/// Puts bytes into a file in one step.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::reservations::{Kind, Wish};
    use proptest::prelude::*;

    fn some() -> All {
        let mut reservations = Reservations::default();
        let [a, b] = [[1; 16], [2; 16]];
        reservations.carry_out(&a, &Wish::Register { key: 10 }).unwrap();
        reservations.carry_out(&b, &Wish::Register { key: 20 }).unwrap();
        reservations.carry_out(&a, &Wish::Acquire { key: 10, kind: Kind::WriteExclusiveRegistrants }).unwrap();
        let passing = reservations.clone();
        reservations.set_persists(true);
        [(7, reservations), (8, passing)].into()
    }

    /// Goal:   the file is what docs/formats describes, and what is read is what was written.
    /// Method: two registrants, one of which holds; a namespace that does not persist is left out.
    #[test]
    fn golden_bytes() {
        let identity = Identity::of([0xab; 16]);
        let bytes = encode(identity, &some());
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut expected = String::from("4b52563101000000");
        expected += &"ab".repeat(16);
        expected += "01000000d8000000"; // one namespace, 216 bytes
        expected += "07000000c0000000"; // namespace 7, a report of 192 bytes
        expected += &"01".repeat(16);
        expected += "0200000003020000000100"; // two changes, write exclusive for registrants, two registrants, it persists
        expected += &"00".repeat(53);
        for (status, key, host) in [("01", "0a", "01"), ("00", "14", "02")] {
            expected += &format!("ffff{status}0000000000{key}00000000000000{}{}", host.repeat(16), "00".repeat(32));
        }
        assert_eq!(hex[..expected.len()], expected);
        assert_eq!(bytes.len(), expected.len() / 2 + 4);
        let (head, all) = decode(&bytes).unwrap();
        assert_eq!((head.identity, all.len()), ([0xab; 16], 1));
        assert_eq!(encode(identity, &all), bytes);
    }

    /// Goal:   the errors of a file state what to do.
    #[test]
    fn bad_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reservations");
        let (keep, identity) = (KeepReservations::File(path.clone()), Identity::of([0xab; 16]));
        assert!(read(&keep, identity).unwrap().is_empty());
        write(&keep, identity, &some()).unwrap();
        assert_eq!(read(&keep, identity).unwrap().len(), 1);
        assert!(matches!(read(&keep, Identity::of([1; 16])), Err(BadReservations::AnotherDevice { .. })));
        let whole = std::fs::read(&path).unwrap();
        for length in [0, 31, whole.len() - 1] {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(matches!(read(&keep, identity), Err(BadReservations::Damaged { .. })), "{length} bytes");
        }
        let mut later = whole[..whole.len() - 4].to_vec();
        later[4] = 2;
        later.extend_from_slice(&kaml_crc::crc32c(&later).to_le_bytes());
        std::fs::write(&path, &later).unwrap();
        assert!(matches!(read(&keep, identity), Err(BadReservations::Version { version: 2, .. })));
        let nowhere = KeepReservations::File(folder.path().join("none/reservations"));
        assert!(matches!(write(&nowhere, identity, &some()), Err(BadReservations::System { .. })));
    }

    proptest! {
        /// Goal:   no bytes make reading panic, and a changed byte is noticed.
        #[test]
        fn changed_bytes_are_noticed(bytes in prop::collection::vec(any::<u8>(), 0..300), at: prop::sample::Index, by in 1u8..) {
            let _ = decode(&bytes);
            let mut bytes = encode(Identity::of([0xab; 16]), &some());
            let at = at.index(bytes.len());
            bytes[at] ^= by;
            prop_assert!(decode(&bytes).is_none());
        }
    }
}
