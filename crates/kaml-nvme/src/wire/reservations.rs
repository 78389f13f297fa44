//! Reservations: which hosts may use a namespace.
//!
//! Lives here:       fields and data of Reservation Register, Acquire, Release and Report, the notification log page.
//! Lives elsewhere:  what they do (`target::reservations`).
//! Implements:       spec:NVMe-Base "Reservations", "Reservation Register command" and the three that follow.
//!
//! | field | where |
//! |-------|-------|
//! | action | dword 10, bits 2:0 |
//! | ignore the present key | dword 10, bit 3 |
//! | kind of reservation (Acquire, Release) | dword 10, bits 15:8 |
//! | persistence through power loss (Register) | dword 10, bits 31:30 |
//! | dwords to return, less one (Report) | dword 10 |
//! | host identifiers of 128 bits (Report) | dword 11, bit 0 |

use super::command::Command;
use super::fabrics::CNTLID_DYNAMIC;
use super::status::Status;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Opcodes, the same in all command sets.
#[allow(missing_docs, reason = "named as in the specification")]
pub mod opcode {
    pub const REGISTER: u8 = 0x0d;
    pub const REPORT: u8 = 0x0e;
    pub const ACQUIRE: u8 = 0x11;
    pub const RELEASE: u8 = 0x15;
    pub const ALL: [u8; 4] = [REGISTER, REPORT, ACQUIRE, RELEASE];
}

/// What a namespace supports (RESCAP): all six kinds, keys ignored as since NVMe 1.3.
pub const CAPABILITIES: u8 = 0b1111_1110;
/// The same: reservations can persist through power loss.
pub const PERSISTENT: u8 = 1;

const IGNORE_KEY: u32 = 1 << 3;
const EXTENDED: u32 = 1;

/// What a host is, to reservations: its identifier, of which it may have several controllers.
pub type HostId = [u8; 16];

/// What a reservation keeps from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The holder writes.
    WriteExclusive = 1,
    /// The holder reads and writes.
    ExclusiveAccess = 2,
    /// Registrants write; one of them is the holder.
    WriteExclusiveRegistrants = 3,
    /// Registrants read and write; one of them is the holder.
    ExclusiveAccessRegistrants = 4,
    /// Registrants write; all of them are holders.
    WriteExclusiveAll = 5,
    /// Registrants read and write; all of them are holders.
    ExclusiveAccessAll = 6,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] = [
        Kind::WriteExclusive,
        Kind::ExclusiveAccess,
        Kind::WriteExclusiveRegistrants,
        Kind::ExclusiveAccessRegistrants,
        Kind::WriteExclusiveAll,
        Kind::ExclusiveAccessAll,
    ];

    /// Whether it keeps others from reading, too.
    pub fn excludes_readers(self) -> bool {
        matches!(self, Kind::ExclusiveAccess | Kind::ExclusiveAccessRegistrants | Kind::ExclusiveAccessAll)
    }

    /// Whether all registrants are holders.
    pub fn is_held_by_all(self) -> bool {
        matches!(self, Kind::WriteExclusiveAll | Kind::ExclusiveAccessAll)
    }

    /// Whether registrants may do what the holder may.
    pub fn is_for_registrants(self) -> bool {
        !matches!(self, Kind::WriteExclusive | Kind::ExclusiveAccess)
    }

    fn of(command: &Command) -> Result<Kind, Status> {
        let number = (command.cdw10.get() >> 8) as u8;
        Kind::ALL.into_iter().find(|kind| *kind as u8 == number).ok_or(Status::INVALID_FIELD)
    }
}

/// The fields of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Become a registrant with a key.
    Register {
        /// The new key.
        key: u64,
    },
    /// Be a registrant no more.
    Unregister {
        /// The present key; none if it does not matter.
        key: Option<u64>,
    },
    /// Change the key.
    Replace {
        /// The present key; none if it does not matter.
        key: Option<u64>,
        /// The new one.
        new: u64,
    },
    /// Hold a reservation.
    Acquire {
        /// The present key.
        key: u64,
        /// What is to be held.
        kind: Kind,
    },
    /// Take a reservation, or registrations, away.
    Preempt {
        /// The present key.
        key: u64,
        /// What is to be held.
        kind: Kind,
        /// The key of those who lose.
        victim: u64,
        /// Complete when nothing of theirs is in progress any more.
        abort: bool,
    },
    /// Hold it no more.
    Release {
        /// The present key.
        key: u64,
        /// What is held.
        kind: Kind,
    },
    /// Take everything away from everybody.
    Clear {
        /// The present key.
        key: u64,
    },
}

impl Wish {
    /// From a Register, Acquire or Release and its data.
    pub fn decode(command: &Command, data: &[u8]) -> Result<Wish, Status> {
        let (dw10, key_at) = (command.cdw10.get(), |at: usize| {
            let bytes = data.get(at..at + 8).ok_or(Status::SGL_LENGTH)?;
            Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
        });
        let (action, ignores) = (dw10 & 7, dw10 & IGNORE_KEY != 0);
        if command.opcode == opcode::REGISTER {
            let (key, new) = (key_at(0)?, key_at(8)?);
            let key = (!ignores).then_some(key);
            return match action {
                0 => Ok(Wish::Register { key: new }),
                1 => Ok(Wish::Unregister { key }),
                2 => Ok(Wish::Replace { key, new }),
                _ => Err(Status::INVALID_FIELD),
            };
        }
        if ignores {
            return Err(Status::INVALID_FIELD);
        }
        let key = key_at(0)?;
        let victim = if command.opcode == opcode::ACQUIRE { key_at(8)? } else { 0 };
        match (command.opcode, action) {
            (opcode::ACQUIRE, 0) => Ok(Wish::Acquire { key, kind: Kind::of(command)? }),
            (opcode::ACQUIRE, 1 | 2) => Ok(Wish::Preempt { key, kind: Kind::of(command)?, victim, abort: action == 2 }),
            (opcode::RELEASE, 0) => Ok(Wish::Release { key, kind: Kind::of(command)? }),
            (opcode::RELEASE, 1) => Ok(Wish::Clear { key }),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// As a command and its data.
    pub fn encode(&self, nsid: u32) -> (Command, Vec<u8>) {
        let ignored = |key: Option<u64>| if key.is_none() { IGNORE_KEY } else { 0 };
        let typed = |kind: Kind| u32::from(kind as u8) << 8;
        let (opcode, dw10, keys) = match *self {
            Wish::Register { key } => (opcode::REGISTER, 0, vec![0, key]),
            Wish::Unregister { key } => (opcode::REGISTER, 1 | ignored(key), vec![key.unwrap_or(0), 0]),
            Wish::Replace { key, new } => (opcode::REGISTER, 2 | ignored(key), vec![key.unwrap_or(0), new]),
            Wish::Acquire { key, kind } => (opcode::ACQUIRE, typed(kind), vec![key, 0]),
            Wish::Preempt { key, kind, victim, abort } => {
                (opcode::ACQUIRE, (1 + u32::from(abort)) | typed(kind), vec![key, victim])
            }
            Wish::Release { key, kind } => (opcode::RELEASE, typed(kind), vec![key]),
            Wish::Clear { key } => (opcode::RELEASE, 1, vec![key]),
        };
        let mut command = Command::new(opcode, nsid);
        command.cdw10 = dw10.into();
        (command, keys.into_iter().flat_map(u64::to_le_bytes).collect())
    }
}

/// How a namespace's reservations stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Counts changes of registrations.
    pub generation: u32,
    /// What is held.
    pub kind: Option<Kind>,
    /// Whether they persist through power loss.
    pub persists: bool,
    /// Registrants.
    pub registrants: Vec<Registrant>,
}

/// A host that has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// The host.
    pub host: HostId,
    /// Its key.
    pub key: u64,
    /// Whether it holds the reservation.
    pub is_holder: bool,
}

/// The head of the extended Reservation Status.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 4 | generation |
/// | 4 | 1 | kind of reservation, 0 for none |
/// | 5 | 2 | registrants |
/// | 9 | 1 | persists through power loss: 0 |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ReportHead {
    generation: U32,
    kind: u8,
    count: U16,
    reserved: [u8; 2],
    persists: u8,
    reserved_10: [u8; 54],
}

/// A registrant in the extended Reservation Status.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 2 | controller; FFFFh because controllers come and go with connections |
/// | 2 | 1 | bit 0: holds the reservation |
/// | 8 | 8 | key |
/// | 16 | 16 | host identifier |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ReportEntry {
    cntlid: U16,
    status: u8,
    reserved_3: [u8; 5],
    key: U64,
    host: HostId,
    reserved_32: [u8; 32],
}

/// The reservation notification page (80h).
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 8 | number of this notice, from 1; 0 if there is none |
/// | 8 | 1 | [`Notice`], 0 if there is none |
/// | 9 | 1 | further notices, 255 for as many and more |
/// | 12 | 4 | namespace |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the table above names the fields")]
pub struct NoticePage {
    pub number: U64,
    pub notice: u8,
    pub more: u8,
    pub reserved_10: U16,
    pub nsid: U32,
    pub reserved_16: [u8; 48],
}

const _: () = {
    assert!(size_of::<ReportHead>() == 64 && offset_of!(ReportHead, count) == 5);
    assert!(size_of::<ReportEntry>() == 64 && offset_of!(ReportEntry, key) == 8 && offset_of!(ReportEntry, host) == 16);
    assert!(size_of::<NoticePage>() == 64 && offset_of!(NoticePage, nsid) == 12);
};

/// Notices to hosts of what others did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Notice {
    /// The host's registration was taken away.
    RegistrationPreempted = 1,
    /// The reservation was given up.
    Released = 2,
    /// All registrations and the reservation were taken away.
    Preempted = 3,
}

impl Notice {
    /// Its bit in the mask of notices (feature 82h).
    pub fn mask(self) -> u32 {
        1 << self as u8
    }
}

/// Whether a Register changes what persists through power loss (CPTPL): not at all, or to this.
///
/// # Errors
/// [`Status::INVALID_FIELD`] for a value that is reserved.
pub fn persistence_of(command: &Command) -> Result<Option<bool>, Status> {
    match command.cdw10.get() >> 30 {
        0 => Ok(None),
        2 => Ok(Some(false)),
        3 => Ok(Some(true)),
        _ => Err(Status::INVALID_FIELD),
    }
}

impl Report {
    /// The command for it, with room for this many bytes.
    pub fn command(nsid: u32, bytes: u32) -> Command {
        let mut command = Command::new(opcode::REPORT, nsid);
        (command.cdw10, command.cdw11) = ((bytes / 4 - 1).into(), EXTENDED.into());
        command
    }

    /// Bytes that a Report requests. Hosts here have identifiers of 128 bits, which the shorter form cannot contain.
    pub fn room(command: &Command) -> Result<usize, Status> {
        match command.cdw11.get() & EXTENDED {
            0 => Err(Status::HOST_ID_FORMAT),
            _ => Ok((command.cdw10.get() as usize + 1).saturating_mul(4)),
        }
    }

    /// As data.
    pub fn encode(&self) -> Vec<u8> {
        let mut head = ReportHead::new_zeroed();
        head.generation = self.generation.into();
        head.kind = self.kind.map_or(0, |kind| kind as u8);
        head.persists = self.persists.into();
        head.count = (self.registrants.len() as u16).into(); // the target bounds them
        let mut data = head.as_bytes().to_vec();
        for registrant in &self.registrants {
            let mut entry = ReportEntry::new_zeroed();
            (entry.cntlid, entry.status) = (CNTLID_DYNAMIC.into(), u8::from(registrant.is_holder));
            (entry.key, entry.host) = (registrant.key.into(), registrant.host);
            data.extend_from_slice(entry.as_bytes());
        }
        data
    }

    /// From data; none if they are not whole.
    pub fn decode(data: &[u8]) -> Option<Report> {
        let (head, rest) = ReportHead::read_from_prefix(data).ok()?;
        let kind = match head.kind {
            0 => None,
            number => Some(Kind::ALL.into_iter().find(|kind| *kind as u8 == number)?),
        };
        let entries = rest.chunks_exact(size_of::<ReportEntry>()).take(usize::from(head.count.get()));
        let registrants = entries
            .filter_map(|entry| ReportEntry::read_from_bytes(entry).ok())
            .map(|entry| Registrant { host: entry.host, key: entry.key.get(), is_holder: entry.status & 1 != 0 });
        let (generation, persists) = (head.generation.get(), head.persists & 1 == 1);
        let report = Report { generation, kind, persists, registrants: registrants.collect() };
        (report.registrants.len() == usize::from(head.count.get())).then_some(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   commands and reports are laid out as the specification has them.
    /// Method: bytes written out by hand; every wish and a report there and back; reports that are cut short.
    #[test]
    fn bytes_are_as_specified() {
        let preempt = Wish::Preempt { key: 0x0102, kind: Kind::ExclusiveAccessAll, victim: 0x0304, abort: true };
        let (command, data) = preempt.encode(7);
        assert_eq!((command.opcode, command.nsid.get(), command.cdw10.get()), (0x11, 7, 0x0602));
        assert_eq!(data, [2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0]);
        let wishes = [
            preempt,
            Wish::Register { key: 9 },
            Wish::Unregister { key: Some(9) },
            Wish::Unregister { key: None },
            Wish::Replace { key: Some(9), new: 10 },
            Wish::Replace { key: None, new: 10 },
            Wish::Acquire { key: 9, kind: Kind::WriteExclusive },
            Wish::Preempt { key: 9, kind: Kind::ExclusiveAccess, victim: 0, abort: false },
            Wish::Release { key: 9, kind: Kind::WriteExclusiveRegistrants },
            Wish::Clear { key: 9 },
        ];
        for wish in wishes {
            let (mut command, data) = wish.encode(1);
            assert_eq!(Wish::decode(&command, &data), Ok(wish));
            assert_eq!(Wish::decode(&command, &data[1..]), Err(Status::SGL_LENGTH));
            command.cdw10 = (command.cdw10.get() | 7).into();
            assert_eq!(Wish::decode(&command, &data), Err(Status::INVALID_FIELD), "no such action");
        }
        let registrant = Registrant { host: [5; 16], key: 0x1122, is_holder: true };
        let registrants = vec![registrant; 2];
        let report = Report { generation: 3, kind: Some(Kind::WriteExclusive), persists: true, registrants };
        let data = report.encode();
        assert_eq!((&data[..10], data.len()), (&[3, 0, 0, 0, 1, 2, 0, 0, 0, 1][..], 64 * 3));
        assert_eq!(data[64..76], [255, 255, 1, 0, 0, 0, 0, 0, 0x22, 0x11, 0, 0]);
        assert_eq!(data[80..96], [5; 16]);
        assert_eq!(Report::decode(&data), Some(report));
        assert_eq!((Report::decode(&data[..191]), Report::decode(&data[..63])), (None, None));
    }
}
