//! Backups of the device, by commands of our own.
//!
//! Lives here:       Begin Backup, Send Base, Read Backup, End Backup; the thread that takes a backup; which hosts may take one, and how many.
//! Lives elsewhere:  the backup (`kaml`), what waits between its thread and its host (`backup_pipe`), the data (`wire::backup`); the page for
//!                   people (`docs/nvme-vendor.md`).
//!
//! A backup has a thread of its own, because it waits: for flash, and for its host. It ends with its controller, as a snapshot does.

use super::backup_pipe::{BaseOut, Failure, Pipe, SILENCE_MAX, StreamIn};
use super::core::{ALL_NAMESPACES, Outcome, Target};
use super::engine::status_of;
use super::keyvalue::room;
use super::reservations::Use;
use crate::wire::backup::{Place, get_begin};
use crate::wire::command::{Command, kv};
use crate::wire::status::Status;
use kaml::{BackupBase, Device};
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The backup of the device that is in progress: one at a time, because each keeps what is overwritten meanwhile.
#[derive(Default)]
pub(crate) struct Backups(Option<Running>);

struct Running {
    pipe: Arc<Pipe>,
    thread: JoinHandle<()>,
}

/// What a controller has of its backup, which ends with it.
pub(crate) struct Lease {
    number: u32,
    pipe: Arc<Pipe>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pipe.give_up();
    }
}

impl Backups {
    /// Begins one. Its number is drawn at random: after a new connection, or a restart, a number of before does not name another backup.
    fn begin(&mut self, device: &Device, piece_bytes: u32, has_base: bool) -> Result<Lease, Status> {
        if self.0.as_ref().is_some_and(|running| !running.thread.is_finished() && !running.pipe.is_delivered()) {
            return Err(Status::BACKUP_BUSY);
        }
        // A host that has read the end finds the device free, whatever the last steps of that thread take.
        match self.0.take_if(|running| !running.thread.is_finished()) {
            Some(delivered) => drop(delivered),
            None => self.join(),
        }
        let pipe = Arc::new(Pipe::new(piece_bytes as usize, has_base, SILENCE_MAX));
        let (device, its) = (device.clone(), Arc::clone(&pipe));
        let thread = std::thread::Builder::new().name("nvme-backup".into()).spawn(move || run(device, &its, has_base));
        let thread = thread.map_err(|error| {
            tracing::error!(%error, "a backup gets no thread");
            Status::INTERNAL
        })?;
        self.0 = Some(Running { pipe: Arc::clone(&pipe), thread });
        let number = RandomState::new().hash_one(0) as u32 | 1;
        Ok(Lease { number, pipe })
    }

    /// Waits for the thread of the last one, which has ended or is about to.
    fn join(&mut self) {
        if let Some(Running { thread, .. }) = self.0.take()
            && thread.join().is_err()
        {
            tracing::error!("a backup panicked");
        }
    }
}

impl Drop for Backups {
    fn drop(&mut self) {
        if let Some(running) = &self.0 {
            running.pipe.give_up();
        }
        self.join();
    }
}

/// Reports that a backup has failed, if its thread ends in any other way.
struct Unended<'a>(Option<&'a Pipe>);

impl Drop for Unended<'_> {
    fn drop(&mut self) {
        if let Some(pipe) = self.0 {
            pipe.end(Err(Failure { status: Status::INTERNAL, text: "the server has a fault; see its log".into() }));
        }
    }
}

/// The thread of a backup. What it keeps of the device has ended before it waits for the host to read the end.
fn run(device: Device, pipe: &Arc<Pipe>, has_base: bool) {
    let mut unended = Unended(Some(pipe));
    let report = take(&device, pipe, has_base);
    drop(device);
    unended.0 = None;
    match report {
        Ok(report) => {
            tracing::info!(bytes = report.bytes, records = report.records, "a backup has been taken");
            pipe.end(Ok(report.read_bytes));
        }
        Err(_) if pipe.is_over() => tracing::info!("a backup has ended with its host"),
        Err(error) => {
            tracing::info!(%error, "a backup has failed");
            pipe.end(Err(failure_of(&error)));
        }
    }
}

fn take(device: &Device, pipe: &Arc<Pipe>, has_base: bool) -> Result<kaml::BackupReport, kaml::Error> {
    let base = has_base.then(|| BackupBase::from_outline(BaseOut::new(Arc::clone(pipe)), "the base")).transpose()?;
    let mut stream = StreamIn::new(Arc::clone(pipe));
    let mut progress = |done, total| {
        pipe.advance(done, total);
        if pipe.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    device.backup_until(&mut stream, base, &mut progress, &|| pipe.is_over())
}

fn failure_of(error: &kaml::Error) -> Failure {
    use kaml::Error as E;
    match error {
        E::WrongBase { why, .. } => Failure { status: Status::WRONG_BASE, text: why.clone() },
        E::DeletedDuringBackup { namespace } => Failure { status: Status::NAMESPACE_DELETED, text: namespace.clone() },
        // The base: everything else of a device that is backed up has other errors.
        E::BackupDamaged { .. } | E::BackupIncomplete { .. } | E::NotABackup { .. } | E::NewerVersion { .. } => {
            Failure { status: Status::INVALID_FIELD, text: error.to_string() }
        }
        error => Failure { status: status_of(error), text: error.to_string() },
    }
}

impl Target {
    /// The commands of a backup. They are about the whole device, so they need no namespace; Linux passes them only to one.
    pub(crate) fn backup(&mut self, id: u16, command: &Command, data: &[u8]) -> Outcome {
        let nsid = command.nsid.get();
        if nsid != ALL_NAMESPACES
            && let Err(status) = self.attached(id, nsid)
        {
            return status.into();
        }
        let place = Place::of(command);
        match command.opcode {
            kv::BEGIN_BACKUP => self.begin_backup(id, command).into(),
            kv::END_BACKUP => self.end_backup(id, place.backup).into(),
            kv::READ_BACKUP => self.backup_of(id, place).and_then(|pipe| pipe.take(place, room(command))).into(),
            _ => {
                let part = data.get(..command.cdw10.get() as usize).ok_or(Status::SGL_LENGTH);
                part.and_then(|part| self.backup_of(id, place)?.give_base(place, part)).map(|()| 0).into()
            }
        }
    }

    fn begin_backup(&mut self, id: u16, command: &Command) -> Result<u64, Status> {
        self.check_reads_all(id)?;
        self.spaces.keys().try_for_each(|nsid| self.check_reservation(id, *nsid, Use::Read))?;
        let (piece_bytes, has_base) = get_begin(command).ok_or(Status::INVALID_FIELD)?;
        let lease = self.backups.begin(self.engine.device(), piece_bytes, has_base)?;
        let number = lease.number;
        let controller = self.controllers.get_mut(&id).ok_or(Status::INTERNAL)?;
        controller.backup = Some(lease);
        tracing::info!(host = controller.host.nqn, controller = id, has_base, "a backup begins");
        Ok(u64::from(number))
    }

    fn end_backup(&mut self, id: u16, number: u32) -> Result<u64, Status> {
        let controller = self.controllers.get_mut(&id).ok_or(Status::INTERNAL)?;
        let ended = controller.backup.take_if(|lease| lease.number == number);
        ended.map(|_| 0).ok_or(Status::NO_SUCH_BACKUP)
    }

    /// The backup that a command is about, as long as its host may take it.
    fn backup_of(&mut self, id: u16, place: Place) -> Result<Arc<Pipe>, Status> {
        if let Err(status) = self.check_reads_all(id) {
            self.controllers.get_mut(&id).ok_or(Status::INTERNAL)?.backup = None;
            return Err(status);
        }
        let controller = self.controllers.get(&id).ok_or(Status::INTERNAL)?;
        let lease = controller.backup.as_ref().filter(|lease| lease.number == place.backup);
        lease.map(|lease| Arc::clone(&lease.pipe)).ok_or(Status::NO_SUCH_BACKUP)
    }

    /// A backup has everything: only hosts that may read all namespaces take one, whatever the namespaces are called that exist now.
    fn check_reads_all(&self, id: u16) -> Result<(), Status> {
        let host = &self.controllers.get(&id).ok_or(Status::INTERNAL)?.host;
        if self.options.access.rights(&host.nqn).is_some_and(super::Rights::reads_all) {
            return Ok(());
        }
        tracing::info!(controller = id, host = host.nqn, "refused: a backup needs the right to read all namespaces");
        Err(Status::OPERATION_DENIED)
    }
}
