//! Backups of a device somewhere else.
//!
//! Lives here:       beginning one, reading its stream, sending its base; verifying what comes while it is written.
//! Lives elsewhere:  the data (`wire::backup`), the backup itself (`kaml`, `target::backup`).
//!
//! A thread reads ahead while the caller's thread verifies and writes. The stream is written as it comes, so it is the same as that of a local
//! backup.

use super::remote::{RemoteDevice, local};
use super::{Error, Execute, Finished};
use crate::wire::backup::{
    BASE_BYTES_MAX, BackupPage, BackupState, HEAD_BYTES, PIECE_BYTES_MAX, PIECE_BYTES_MIN, Place, begin,
};
use crate::wire::command::{Command, kv};
use crate::wire::identify::cns;
use crate::wire::status::Status;
use crate::wire::vendor::feature;
use kaml::{BackupBase, BackupReport, verify_backup, write_whole_backup};
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// For commands that need no namespace.
const ALL_NAMESPACES: u32 = u32::MAX;
/// Pieces that wait to be written.
const PIECES_AHEAD: usize = 4;
/// Pauses while the target has nothing.
const PAUSE_MIN: Duration = Duration::from_micros(500);
const PAUSE_MAX: Duration = Duration::from_millis(10);
/// The target needs so long to end the last backup of a host that has just left.
const BUSY_MAX: Duration = Duration::from_secs(2);
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// Receives bytes done and bytes in all.
type Hear<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

impl RemoteDevice {
    /// Writes everything that is on the device now to a stream, as [`kaml::Device::backup`] does on its own machine: consistent over all namespaces,
    /// while other hosts read and write. What comes is verified. The stream is whole if this returns a report; otherwise it has no end mark, and
    /// nothing restores it.
    ///
    /// This host needs the right to read all namespaces. A device has one backup over the network at a time. The target ends it if this process
    /// disappears, or if one write to the stream takes a minute.
    ///
    /// # Errors
    /// - As [`kaml::Device::backup`].
    /// - [`kaml::Error::BackupInProgress`] if another host takes one.
    /// - [`kaml::Error::Remote`] if this host may not, if the server is of an earlier version, or if the connection is lost: it is not resumed.
    ///
    /// # Examples
    /// ```
    /// use kaml::{CreateOptions, Device, NamespaceOptions, RestoreSource};
    /// use kaml_nvme::host::{HostOptions, RemoteDevice};
    /// use kaml_nvme::target::{Options, Server};
    /// use std::ops::ControlFlow;
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let notes = device.create_namespace("notes", &NamespaceOptions::default())?;
    /// let server = Server::bind(&device, "127.0.0.1:0", Options::for_device(&device))?;
    /// let url = format!("nvme+tcp://{}/{}", server.address(), server.options().subsystem).parse()?;
    /// let stopper = server.stopper();
    /// let serving = std::thread::spawn(|| server.run());
    ///
    /// let remote = RemoteDevice::open(&url, &HostOptions::default())?;
    /// let dir = tempfile::tempdir()?;
    /// let (full, more) = (dir.path().join("full"), dir.path().join("more"));
    /// remote.backup_to_file(&full, None, &mut |_, _| ControlFlow::Continue(()))?;
    /// device.put(notes, "ada", b"Ada Lovelace")?;
    /// let report = remote.backup_to_file(&more, Some(&full), &mut |_, _| ControlFlow::Continue(()))?;
    /// assert!(report.is_incremental && report.records == 1);
    /// # stopper.stop();
    /// # serving.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backup(
        &self,
        out: &mut (dyn Write + Send),
        base: Option<BackupBase>,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<BackupReport, kaml::Error> {
        if !self.can(feature::BACKUPS) {
            let what = "backups over NVMe: a server of an earlier version of KAML; update it, or stop it and run `kaml backup` on the device file";
            return Err(local(Error::Unsupported(what), 0, None));
        }
        let (is_incremental, base_name) = (base.is_some(), base.as_ref().map(|base| base.name().to_owned()));
        let mut session = Session::begin(self, base)?;
        let (send, pieces) = sync_channel(PIECES_AHEAD);
        std::thread::scope(|scope| {
            let reading = scope.spawn(move || session.read_all(&send, base_name.as_deref()));
            let mut arriving = Arriving { pieces, piece: Vec::new(), read: 0, out, progress, failed: None };
            let verified = verify_backup(&mut arriving, &self.name());
            let Arriving { pieces, failed, .. } = arriving;
            drop(pieces); // the thread ends, if it has not
            let read =
                reading.join().unwrap_or_else(|_| Err(kaml::Error::Internal("reading a backup panicked".into())));
            if let Some(error) = failed {
                return Err(error);
            }
            let (info, read_bytes) = match (verified, read) {
                (Ok(info), read) => (info, read?),
                // What did not come is not verified either.
                (Err(kaml::Error::BackupIncomplete { .. } | kaml::Error::NotABackup { .. }), Err(error)) => {
                    return Err(error);
                }
                (Err(error), _) => return Err(error),
            };
            let mut report = BackupReport::default();
            report.namespaces = info.namespaces.len() as u64;
            (report.records, report.versions, report.deleted) = (info.records, info.versions, info.deleted);
            (report.bytes, report.read_bytes, report.is_incremental) = (info.bytes, read_bytes, is_incremental);
            Ok(report)
        })
    }

    /// As [`RemoteDevice::backup`], to a file of this machine, as [`kaml::Device::backup_to_file`] writes it.
    ///
    /// # Errors
    /// As [`RemoteDevice::backup`]; also if another process is writing that backup.
    pub fn backup_to_file(
        &self,
        path: impl AsRef<Path>,
        base: Option<&Path>,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<BackupReport, kaml::Error> {
        let base = base.map(BackupBase::open).transpose()?;
        write_whole_backup(path.as_ref(), |file| self.backup(file, base, progress))
    }
}

/// A piece of the stream with how far the backup is.
struct Piece {
    /// After the head of a page.
    data: Vec<u8>,
    done: u64,
    total: u64,
}

/// The stream as it comes: progress is reported, and each piece is written before it is verified.
struct Arriving<'a> {
    pieces: Receiver<Piece>,
    piece: Vec<u8>,
    /// Bytes of the piece that were read.
    read: usize,
    out: &'a mut (dyn Write + Send),
    progress: Hear<'a>,
    /// Why it ends here.
    failed: Option<kaml::Error>,
}

impl Read for Arriving<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while self.read == self.piece.len() {
            let Ok(piece) = self.pieces.recv() else { return Ok(0) };
            if (self.progress)(piece.done, piece.total).is_break() {
                self.failed = Some(kaml::Error::Cancelled);
                return Err(std::io::Error::other("cancelled"));
            }
            (self.piece, self.read) = (piece.data, HEAD_BYTES);
            if let Err(error) = self.out.write_all(&self.piece[HEAD_BYTES..]) {
                let text = error.to_string();
                let (path, what, source) = ("the backup".into(), "write", Arc::new(error));
                self.failed = Some(kaml::Error::Io { path, what, source });
                return Err(std::io::Error::other(text));
            }
        }
        let count = into.len().min(self.piece.len() - self.read);
        into[..count].copy_from_slice(&self.piece[self.read..][..count]);
        self.read += count;
        Ok(count)
    }
}

/// A backup that the target takes.
struct Session<'a> {
    device: &'a RemoteDevice,
    nsid: u32,
    number: u32,
    /// Bytes of a piece.
    piece_bytes: usize,
    /// Bytes of the stream that were read.
    offset: u64,
    base: Option<Outline>,
}

/// A base on its way to the target.
struct Outline {
    input: Box<dyn Read + Send>,
    name: String,
    sent: u64,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // Not again if the connection is lost: the target has ended it then.
        let mut command = Command::new(kv::END_BACKUP, self.nsid);
        Place { backup: self.number, offset: 0, is_last: false }.put(&mut command);
        let _ = self.device.carrier.io(command, &[], 0);
    }
}

impl<'a> Session<'a> {
    fn begin(device: &'a RemoteDevice, base: Option<BackupBase>) -> Result<Session<'a>, kaml::Error> {
        let base = match base {
            None => None,
            Some(base) => {
                let name = base.name().to_owned();
                Some(Outline { input: Box::new(base.into_outline()?), name, sent: 0 })
            }
        };
        let most = device.transfer_bytes_max().saturating_sub(HEAD_BYTES) as u32;
        let piece_bytes = most.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
        let since = Instant::now();
        let (nsid, number) = loop {
            match begin_over(device, piece_bytes, base.is_some()) {
                Err(error) if is(&error, Status::BACKUP_BUSY) && since.elapsed() < BUSY_MAX => {
                    std::thread::sleep(BUSY_PAUSE)
                }
                begun => break begun.map_err(refused)?,
            }
        };
        Ok(Session { device, nsid, number, piece_bytes: piece_bytes as usize, offset: 0, base })
    }

    /// Sends a command of this backup, one time: after a lost connection there is no backup any more.
    fn send(&self, opcode: u8, data: &[u8], room: usize, place: Place) -> Result<Vec<u8>, kaml::Error> {
        let mut command = Command::new(opcode, self.nsid);
        command.cdw10 = (data.len().max(room) as u32).into();
        place.put(&mut command);
        let done = self.device.carrier.io(command, data, room).and_then(Finished::success);
        done.map(|finished| finished.data).map_err(refused)
    }

    /// Reads the whole stream, and hands it over in pieces; returns the bytes of flash that were read for it.
    fn read_all(&mut self, pieces: &SyncSender<Piece>, base_name: Option<&str>) -> Result<u64, kaml::Error> {
        let mut pause = PAUSE_MIN;
        loop {
            let place = Place { backup: self.number, offset: self.offset, is_last: false };
            let mut data = self.send(kv::READ_BACKUP, &[], HEAD_BYTES + self.piece_bytes, place)?;
            let (page, bytes) =
                BackupPage::decode(&data).ok_or_else(|| local(Error::Unsupported("such backups"), 0, None))?;
            self.offset += bytes as u64;
            let mut has_moved = bytes > 0;
            if page.needs_base && page.state == BackupState::Running {
                has_moved |= self.send_base()?;
            }
            if let BackupState::Failed(status, text) = page.state {
                return Err(failure(status, text, base_name));
            }
            data.truncate(HEAD_BYTES + bytes);
            let piece = Piece { data, done: page.done, total: page.total };
            pieces.send(piece).map_err(|_| kaml::Error::Cancelled)?;
            if let BackupState::Whole(read_bytes) = page.state {
                return Ok(read_bytes);
            }
            if has_moved {
                pause = PAUSE_MIN;
            } else {
                std::thread::sleep(pause);
                pause = (2 * pause).min(PAUSE_MAX);
            }
        }
    }

    /// Sends the next part of the base; whether there was one.
    fn send_base(&mut self) -> Result<bool, kaml::Error> {
        let Some(base) = &mut self.base else { return Ok(false) };
        let most = BASE_BYTES_MAX.min(self.device.transfer_bytes_max());
        let mut part = Vec::new();
        let read = (&mut base.input).take(most as u64).read_to_end(&mut part);
        read.map_err(|error| {
            let (path, source) = (base.name.clone().into(), Arc::new(error));
            kaml::Error::Io { path, what: "read", source }
        })?;
        let place = Place { backup: self.number, offset: base.sent, is_last: part.len() < most };
        base.sent += part.len() as u64;
        self.send(kv::SEND_BASE, &part, 0, place)?;
        if place.is_last {
            self.base = None;
        }
        Ok(true)
    }
}

/// Begins a backup; the namespace that its commands name, and its number.
fn begin_over(device: &RemoteDevice, piece_bytes: u32, has_base: bool) -> Result<(u32, u32), Error> {
    let begin_at = |nsid| -> Result<(u32, u32), Error> {
        let finished = device.execute(begin(nsid, piece_bytes, has_base), &[], 0)?.success()?;
        Ok((nsid, finished.result as u32))
    };
    match begin_at(ALL_NAMESPACES) {
        // Linux takes no command that is for all namespaces.
        Err(Error::Refused(_)) => {
            let list = device.identify(cns::ACTIVE_NAMESPACES, 0, 0)?;
            begin_at(list.first_chunk().map_or(0, |number| u32::from_le_bytes(*number)))
        }
        begun => begun,
    }
}

fn is(error: &Error, status: Status) -> bool {
    error.status().is_some_and(|found| found.is(status))
}

/// Why the target does not take a command of a backup.
fn refused(error: Error) -> kaml::Error {
    let text = match &error {
        error if is(error, Status::BACKUP_BUSY) => return kaml::Error::BackupInProgress,
        error if is(error, Status::OPERATION_DENIED) => {
            "a backup has everything, so a host needs the right to read all namespaces, and this host has not; an administrator of the server \
             gives it in the file of hosts (kaml serve --hosts)"
                .to_owned()
        }
        error if is(error, Status::NO_SUCH_BACKUP) => {
            "the target has ended the backup: it heard nothing of this host for a minute, or was started again; take it again".to_owned()
        }
        Error::Connection(why) => format!("the connection to the target was lost ({why}); the backup is not whole: take it again"),
        _ => return local(error, 0, None),
    };
    kaml::Error::Remote(text)
}

/// Why the target has ended a backup.
fn failure(status: Status, text: String, base_name: Option<&str>) -> kaml::Error {
    use kaml::Error as E;
    match status {
        status if status.is(Status::WRONG_BASE) => {
            E::WrongBase { name: base_name.unwrap_or("the base").to_owned(), why: text }
        }
        status if status.is(Status::NAMESPACE_DELETED) => E::DeletedDuringBackup { namespace: text },
        status if status.is(Status::SNAPSHOT_TOO_OLD) => E::SnapshotTooOld,
        _ => E::Remote(format!("the target has ended the backup: {text}")),
    }
}
