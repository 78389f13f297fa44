//! Backups of a served device: the commands that begin one, read its stream, send its base, and end it.
//!
//! Lives here:       the fields of the commands, the page that Read Backup returns.
//! Lives elsewhere:  taking a backup (`target::backup`), reading it (`host::backup`), the stream (`docs/formats/backup.md`); the page for people
//!                   (`docs/nvme-vendor.md`).

use super::command::{Command, kv};
use super::status::Status;
use std::mem::offset_of;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 4] = *b"KAML";

/// Bytes of the stream that one Read Backup returns, at least and at most, as Begin Backup requests it.
pub const PIECE_BYTES_MIN: u32 = 4096;
/// See [`PIECE_BYTES_MIN`].
pub const PIECE_BYTES_MAX: u32 = 1 << 20;
/// Bytes of a base that are sent at a time at most.
pub const BASE_BYTES_MAX: usize = 1 << 20;
/// Bytes before the stream in the data of Read Backup.
pub const HEAD_BYTES: usize = size_of::<Head>();

/// The head of the data of Read Backup.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 4 | `"KAML"` |
/// | 4 | 1 | 0 there is more to come, 1 the stream is whole, 2 the backup has failed |
/// | 5 | 1 | bit 0: the target takes a part of the base now |
/// | 6 | 2 | of a backup that has failed, the status field of a completion that reports why |
/// | 8 | 4 | bytes that follow: of the stream, or of a text that reports why it has failed, UTF-8 |
/// | 12 | 4 | reserved, 0 |
/// | 16 | 8 | bytes of the device that are done |
/// | 24 | 8 | and in all; 0: not known yet |
/// | 32 | 8 | bytes of flash that were read, after the stream is whole |
/// | 40 | 24 | reserved, 0 |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 4],
    state: u8,
    flags: u8,
    status: U16,
    bytes: U32,
    reserved_12: U32,
    done: U64,
    total: U64,
    read_bytes: U64,
    reserved_40: [U64; 3],
}

const _: () = assert!(size_of::<Head>() == 64 && offset_of!(Head, done) == 16 && offset_of!(Head, read_bytes) == 32);

/// How far a backup is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupState {
    /// There is more to come.
    Running,
    /// The stream is whole; so many bytes of flash were read for it.
    Whole(u64),
    /// It has failed, and the text reports why.
    Failed(Status, String),
}

/// What precedes the stream in the data of Read Backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupPage {
    /// How far it is.
    pub state: BackupState,
    /// The target takes a part of the base now.
    pub needs_base: bool,
    /// Bytes of the device that are done.
    pub done: u64,
    /// And in all.
    pub total: u64,
}

impl BackupPage {
    /// Writes it to the first bytes of the data, which has room for it. Of a backup that has failed the text follows.
    pub fn encode(&self, data: &mut Vec<u8>) {
        let mut head = Head::new_zeroed();
        (head.magic, head.flags) = (MAGIC, u8::from(self.needs_base));
        (head.done, head.total) = (self.done.into(), self.total.into());
        match &self.state {
            BackupState::Running => {}
            BackupState::Whole(read_bytes) => (head.state, head.read_bytes) = (1, (*read_bytes).into()),
            BackupState::Failed(status, text) => {
                (head.state, head.status) = (2, status.field().into());
                data.truncate(HEAD_BYTES);
                data.extend_from_slice(text.as_bytes());
            }
        }
        head.bytes = ((data.len() - HEAD_BYTES) as u32).into();
        data[..HEAD_BYTES].copy_from_slice(head.as_bytes());
    }

    /// The page, and how many bytes of the stream follow its head; nothing if there is none.
    pub fn decode(data: &[u8]) -> Option<(BackupPage, usize)> {
        let (head, rest) = Head::read_from_prefix(data).ok()?;
        let bytes = head.bytes.get() as usize;
        let is_sound =
            head.magic == MAGIC && head.flags < 2 && head.reserved_12 == 0 && head.reserved_40 == [U64::ZERO; 3];
        let follows = rest.get(..bytes).filter(|_| is_sound)?;
        let (state, bytes) = match (head.state, head.status.get(), head.read_bytes.get()) {
            (0, 0, 0) => (BackupState::Running, bytes),
            (1, 0, read_bytes) => (BackupState::Whole(read_bytes), bytes),
            (2, field, 0) => {
                let status = Status::from_field(field);
                let is_failure = !status.is_success() && status.field() == field;
                let text = std::str::from_utf8(follows).ok().filter(|_| is_failure)?;
                (BackupState::Failed(status, text.to_owned()), 0)
            }
            _ => return None,
        };
        let (done, total) = (head.done.get(), head.total.get());
        Some((BackupPage { state, needs_base: head.flags == 1, done, total }, bytes))
    }
}

/// Whether a command is one of these.
pub fn is_of_backup(opcode: u8) -> bool {
    matches!(opcode, kv::BEGIN_BACKUP | kv::SEND_BASE | kv::READ_BACKUP | kv::END_BACKUP)
}

/// Begins a backup whose stream is read in pieces of so many bytes; its result is the number of the backup.
pub fn begin(nsid: u32, piece_bytes: u32, has_base: bool) -> Command {
    let mut command = Command::new(kv::BEGIN_BACKUP, nsid);
    (command.cdw10, command.cdw11) = (piece_bytes.into(), u32::from(has_base).into());
    command
}

/// What Begin Backup requests: bytes of a piece, and whether a base follows; nothing if it makes no sense.
pub fn get_begin(command: &Command) -> Option<(u32, bool)> {
    let (piece_bytes, flags) = (command.cdw10.get(), command.cdw11.get());
    let is_sound = piece_bytes >= PIECE_BYTES_MIN && flags < 2;
    is_sound.then(|| (piece_bytes.min(PIECE_BYTES_MAX), flags == 1))
}

/// Where in a stream a command reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of the backup.
    pub backup: u32,
    /// Bytes of the stream before it.
    pub offset: u64,
    /// Of a part of the base: nothing follows it.
    pub is_last: bool,
}

impl Place {
    /// Writes it to dwords 11 to 14 of a command.
    pub fn put(&self, command: &mut Command) {
        command.cdw11 = self.backup.into();
        (command.cdw12, command.cdw13) = ((self.offset as u32).into(), ((self.offset >> 32) as u32).into());
        command.cdw14 = u32::from(self.is_last).into();
    }

    /// Reads it.
    pub fn of(command: &Command) -> Place {
        let offset = u64::from(command.cdw12.get()) | u64::from(command.cdw13.get()) << 32;
        Place { backup: command.cdw11.get(), offset, is_last: command.cdw14.get() & 1 == 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   pages and places are what was written, and where the documentation puts them; a page that claims more than there is, is none.
    #[test]
    fn pages_are_read_as_they_were_written() {
        let failed = BackupState::Failed(Status::WRONG_BASE, "is another one".to_owned());
        for state in [BackupState::Running, BackupState::Whole(1 << 40), failed] {
            let page = BackupPage { state: state.clone(), needs_base: true, done: 3, total: 1 << 33 };
            let mut data = vec![7; HEAD_BYTES + 5];
            page.encode(&mut data);
            let bytes = if matches!(state, BackupState::Failed(..)) { 0 } else { 5 };
            assert_eq!(BackupPage::decode(&data), Some((page, bytes)));
            assert_eq!((data[4] < 3, data[5], &data[16..18]), (true, 1, &[3, 0][..]));
            (0..data.len()).for_each(|cut| assert_eq!(BackupPage::decode(&data[..cut]), None));
            data[63] = 1;
            assert_eq!(BackupPage::decode(&data), None);
        }
        let place = Place { backup: 9, offset: 5 << 32 | 6, is_last: true };
        let mut command = Command::new(kv::SEND_BASE, u32::MAX);
        place.put(&mut command);
        assert_eq!(
            (Place::of(&command), &command.as_bytes()[44..60]),
            (place, &[9, 0, 0, 0, 6, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0][..])
        );
        assert_eq!(get_begin(&begin(1, PIECE_BYTES_MAX + 1, true)), Some((PIECE_BYTES_MAX, true)));
        assert_eq!(get_begin(&begin(1, PIECE_BYTES_MIN - 1, true)), None);
    }
}
