//! Taking a backup while the device is in use.
//!
//! Lives here:       the order of a backup: versions, then records block after block, then lists of keys; its files.
//! Lives elsewhere:  its moment (`moment`), its bytes (`format`).
//! Implements:       docs/ARCHITECTURE.md "Backups".
//!
//! Three threads share the work: one reads blocks, one decides which of their records belong to the backup, one computes checksums and
//! writes. Buffers return to whom they came from.

use super::format::{
    Described, Entry, Head, Holds, PIECE_BYTES, Piece, PieceHeader, PieceKind, Totals, encode_trailer, encode_version,
};
use super::list::Listing;
use super::moment::Moment;
use super::progress::Progress;
use super::read::{BackupBase, io_error};
use crate::error::Error;
use crate::{Device, KeyKind, NamespaceId};
use kaml_device::{BackupMark, BlockRead, FullKey, RecordsAt, Scanned, VersionsAt};
use kaml_versions::copy_row;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{SystemTime, UNIX_EPOCH};

/// Blocks that are read ahead, and pieces that wait to be written.
const BLOCKS_AHEAD: usize = 3;
const PIECES_AHEAD: usize = 8;

/// What a backup came to.
///
/// # Examples
/// See [`Device::backup`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// Namespaces in it.
    pub namespaces: u64,
    /// Records and units of blocks in it. A few that moved meanwhile may count twice.
    pub records: u64,
    /// Versions in it.
    pub versions: u64,
    /// Keys in it that were deleted since its base.
    pub deleted: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// Bytes of flash that were read for it.
    pub read_bytes: u64,
    /// It adds to an earlier one.
    pub is_incremental: bool,
}

impl Device {
    /// Writes everything that is on the device now to a stream, while others read and write: all namespaces with their attributes, records,
    /// blocks, and all versions with their snapshots. With a `base` only what has changed since that backup. The stream is whole if this
    /// returns a report; otherwise it has no end mark, and nothing restores it.
    ///
    /// `progress` receives the bytes of the device that are done and those in all, with each block and each megabyte of the stream.
    /// [`ControlFlow::Break`] ends the backup. The caller's thread calls it, without a lock. It can read and change the device, but it must
    /// not merge versions, which waits for this backup.
    ///
    /// Costs one sequential read of all blocks with records, or of the parts of them that were written since the base. Records that are
    /// overwritten meanwhile are kept until it ends, within the bounds of snapshots ([`Snapshot`](crate::Snapshot)). Merges of versions
    /// wait until the versions are in it.
    ///
    /// # Errors
    /// - [`Error::Cancelled`] if `progress` ends it.
    /// - [`Error::SnapshotTooOld`] if what is overwritten meanwhile needs too much room.
    /// - [`Error::DeletedDuringBackup`] if a namespace is deleted meanwhile.
    /// - [`Error::WrongBase`] if the base is of another device; as [`verify_backup`](crate::verify_backup) if it is damaged.
    /// - [`Error::Corrupt`], [`Error::VersionsDamaged`], [`Error::ReadFailed`] if something cannot be read.
    /// - [`Error::Io`] if the stream cannot be written; [`Error::Closed`], [`Error::Stopped`].
    ///
    /// # Examples
    /// ```
    /// use kaml::{BackupBase, CreateOptions, Device, NamespaceOptions, RestoreSource};
    /// use std::ops::ControlFlow;
    ///
    /// let dir = tempfile::tempdir()?;
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let users = device.create_namespace("users", &NamespaceOptions::default())?;
    /// device.put(users, "ada", b"Ada Lovelace")?;
    /// let (full, more) = (dir.path().join("full"), dir.path().join("more"));
    /// device.backup_to_file(&full, None, &mut |_, _| ControlFlow::Continue(()))?;
    /// device.put(users, "grace", b"Grace Hopper")?;
    /// device.backup_to_file(&more, Some(&full), &mut |done, total| {
    ///     println!("{} %", 100 * done / total.max(1));
    ///     ControlFlow::Continue(())
    /// })?;
    ///
    /// let copy = dir.path().join("copy.kaml");
    /// let sources = vec![RestoreSource::file(&full), RestoreSource::file(&more)];
    /// Device::restore(sources, &copy, &CreateOptions::new(64 << 20), &mut |_| ControlFlow::Continue(()))?;
    /// let copy = Device::open(&copy, &Default::default())?;
    /// let users = copy.open_namespace("users")?;
    /// assert_eq!(users.get("grace")?.as_deref(), Some(&b"Grace Hopper"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backup(
        &self,
        out: &mut (dyn Write + Send),
        base: Option<BackupBase>,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<BackupReport, Error> {
        self.backup_until(out, base, progress, &|| false)
    }

    /// As [`Device::backup`]; ends also while it waits for a merge, if `is_over`.
    ///
    /// # Errors
    /// As [`Device::backup`].
    #[doc(hidden)]
    pub fn backup_until(
        &self,
        out: &mut (dyn Write + Send),
        base: Option<BackupBase>,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<BackupReport, Error> {
        let shared = self.shared();
        let device = shared.medium.identity();
        if let Some(base) = base.as_ref().filter(|base| base.head.device != device) {
            let why = "is a backup of another device; take a full backup first".to_owned();
            return Err(Error::WrongBase { name: base.name.clone(), why });
        }
        std::thread::scope(|scope| {
            let (pieces, wait) = sync_channel(PIECES_AHEAD);
            let (used, spare) = channel();
            let writer = scope.spawn(move || write_pieces(out, &wait, &used));
            let taken = Moment::now(shared, is_over)
                .and_then(|moment| take(moment, device, base, Pieces { send: pieces, spare }, progress));
            let written = writer.join().unwrap_or_else(|_| Err(Error::Internal("a backup's writer panicked".into())));
            // A writer that failed ends the backup: its error is the reason.
            let bytes = written?;
            taken.map(|report| BackupReport { bytes, ..report })
        })
    }

    /// As [`Device::backup`], to a file, which gets its name when it is whole and durable, and replaces what had that name. `base` is the
    /// file of an earlier backup. A backup that fails or is cancelled leaves no file. What a backup left that was killed is removed by the
    /// next one to the same name.
    ///
    /// # Errors
    /// As [`Device::backup`]; also if another process is writing that backup.
    pub fn backup_to_file(
        &self,
        path: impl AsRef<Path>,
        base: Option<&Path>,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<BackupReport, Error> {
        let base = base.map(BackupBase::open).transpose()?;
        write_whole_backup(path.as_ref(), |file| self.backup(file, base, progress))
    }
}

/// Writes a backup to a file, which gets its name when it is whole and durable. One that fails leaves no file.
///
/// # Errors
/// What `write` returns; the file cannot be written, or another process is writing it.
#[doc(hidden)]
pub fn write_whole_backup(
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<BackupReport, Error>,
) -> Result<BackupReport, Error> {
    let unfinished = Unfinished::next_to(path)?;
    let failed = |what| move |source| io_error(&path.display().to_string(), what, source);
    let mut file = unfinished.create().map_err(failed("create"))?;
    let report = write(&mut file)?;
    file.sync_all().map_err(failed("write"))?;
    std::fs::rename(unfinished.path(), path).map_err(failed("rename"))?;
    sync_directory(path).map_err(failed("sync the directory of"))?;
    Ok(report)
}

/// Makes the name of a file durable.
pub(super) fn sync_directory(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// A file that has not got its name yet; removed unless it was renamed. Its temporary name follows from the name, so the next attempt
/// finds what a killed process left.
pub(super) struct Unfinished(PathBuf);

impl Unfinished {
    /// Next to a path, where nothing is now: what a process left that was killed is removed. A process that is at work has it locked,
    /// and this fails.
    pub(super) fn next_to(path: &Path) -> Result<Unfinished, Error> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".unfinished");
        let at = path.with_file_name(name);
        let failed = |what| move |source| io_error(&path.display().to_string(), what, source);
        match File::options().write(true).open(&at) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Unfinished(at)),
            Err(error) => return Err(failed("write next to")(error)),
            Ok(left) => match left.try_lock() {
                Ok(()) | Err(TryLockError::Error(_)) => {} // a file system without locks
                Err(TryLockError::WouldBlock) => {
                    let why = format!("another process writes {}; wait for it", at.display());
                    return Err(failed("write")(std::io::Error::new(ErrorKind::ResourceBusy, why)));
                }
            },
        }
        std::fs::remove_file(&at).map_err(failed("remove what is left next to"))?;
        Ok(Unfinished(at))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes it, locked as long as it is open.
    fn create(&self) -> std::io::Result<File> {
        let file = File::options().write(true).create_new(true).open(&self.0)?;
        let _ = file.try_lock(); // a file system without locks
        Ok(file)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0); // there is none if it was renamed
    }
}

/// Computes checksums and writes; returns the bytes of the backup. The last piece is the end mark. Buffers go to `used` afterwards.
fn write_pieces(
    out: &mut (dyn Write + Send),
    pieces: &Receiver<(PieceKind, Vec<u8>)>,
    used: &Sender<Vec<u8>>,
) -> Result<u64, Error> {
    let failed = |source| io_error("the backup", "write", source);
    let (mut backup, mut number, mut offset, mut tail) = ([0; 16], 0, 0u64, None);
    let mut headers_crc = 0;
    for (kind, mut bytes) in pieces {
        if kind == PieceKind::End {
            let Some(totals) = Totals::decode(&bytes) else { break };
            bytes = Totals { pieces: number, crc: headers_crc, ..totals }.encode();
        }
        if matches!(kind, PieceKind::Deleted | PieceKind::Keys | PieceKind::End) {
            tail.get_or_insert((offset, number));
        }
        let piece = Piece { kind, number, len: bytes.len(), crc: kaml_crc::crc32c(&bytes) };
        let header = PieceHeader::encode(&piece, &backup);
        out.write_all(&header).and_then(|()| out.write_all(&bytes)).map_err(failed)?;
        headers_crc = kaml_crc::crc32c_append(headers_crc, &header);
        (number, offset) = (number + 1, offset + (header.len() + bytes.len()) as u64);
        if let (PieceKind::Head, Ok(head)) = (kind, Head::decode(&bytes)) {
            backup = head.backup;
        }
        if kind == PieceKind::End {
            let (tail, piece) = tail.unwrap_or((offset, number));
            let trailer = encode_trailer(&backup, tail, piece);
            out.write_all(&trailer).and_then(|()| out.flush()).map_err(failed)?;
            return Ok(offset + trailer.len() as u64);
        }
        let _ = used.send(bytes); // nobody needs it any more
    }
    Ok(offset) // the backup failed, and its error is known to the other thread
}

/// The way to the writer, and back for buffers.
struct Pieces {
    send: SyncSender<(PieceKind, Vec<u8>)>,
    spare: Receiver<Vec<u8>>,
}

/// Pieces on their way to the writer.
pub(super) struct Out<'p> {
    pieces: Pieces,
    pub(super) totals: Totals,
    progress: Progress<'p>,
}

impl Out<'_> {
    fn send(&mut self, kind: PieceKind, bytes: Vec<u8>) -> Result<(), Error> {
        self.progress.advance(0)?;
        // The writer reports why it has ended.
        self.pieces.send.send((kind, bytes)).map_err(|_| Error::Cancelled)
    }

    /// Sends what was collected if it is enough for a piece, or if it `is_last`.
    pub(super) fn flush(&mut self, kind: PieceKind, collected: &mut Vec<u8>, is_last: bool) -> Result<(), Error> {
        if collected.len() < PIECE_BYTES && (!is_last || collected.is_empty()) {
            return Ok(());
        }
        let mut next = self.pieces.spare.try_recv().unwrap_or_default();
        next.clear();
        next.reserve(if is_last { 0 } else { PIECE_BYTES + PIECE_BYTES / 4 });
        self.send(kind, std::mem::replace(collected, next))
    }
}

/// A number that no other backup has.
fn random_id() -> [u8; 16] {
    let word = |at| crate::sync::secret_word(at).to_le_bytes();
    let mut id = [0; 16];
    id[..8].copy_from_slice(&word(0));
    id[8..].copy_from_slice(&word(1));
    id[0] |= 1; // zeroes are no number
    id
}

/// Takes a backup; its pieces go to the writer.
fn take(
    mut moment: Moment<'_>,
    device: [u8; 16],
    mut base: Option<BackupBase>,
    pieces: Pieces,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<BackupReport, Error> {
    let time_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let described: Vec<Described> =
        moment.ticket.namespaces.iter().map(|(info, versions)| Described::of(info, versions.as_ref())).collect();
    let geometry = moment.shared.lock().geometry().clone();
    let head = Head {
        backup: random_id(),
        device,
        base: base.as_ref().map(|base| base.head.backup),
        time_ns,
        sequence: moment.ticket.sequence,
        mark: moment.mark,
        live_bytes: moment.ticket.live_bytes,
        capacity: geometry.block_bytes() * u64::from(geometry.block_count()),
        namespaces: described.len() as u32,
    };
    let blocks = (moment.ticket.full_blocks.len() + moment.ticket.open_blocks.len()) as u64;
    let versions = moment.ticket.namespaces.iter().filter_map(|(_, versions)| versions.as_ref());
    let total = blocks * geometry.block_bytes() + versions.map(|at| at.bytes).sum::<u64>();
    let mut out = Out { pieces, totals: Totals::default(), progress: Progress::new(total, progress) };
    out.send(PieceKind::Head, head.encode())?;
    for namespace in &described {
        out.send(PieceKind::Namespace, namespace.encode())?;
    }
    copy_versions(&moment, base.as_ref(), &mut out)?;
    drop(moment.merges.take());
    let after = base.as_ref().map_or(BackupMark::default(), |base| base.head.mark);
    let mut scan = Scan::new(&moment, after, base.is_some(), &described, out)?;
    scan.run()?;
    let (bad, read_bytes, mut out) = (scan.bad, scan.read_bytes, scan.out);
    for namespace in described.iter().filter(|namespace| !matches!(namespace.holds, Holds::Versions(..))) {
        Listing::new(&moment, namespace, &bad)?.run(base.as_mut(), &mut out)?;
    }
    moment.check_namespaces()?;
    let totals = out.totals;
    out.send(PieceKind::End, totals.encode())?;
    Ok(BackupReport {
        namespaces: described.len() as u64,
        records: totals.records,
        versions: totals.versions,
        deleted: totals.deleted,
        bytes: 0,
        read_bytes,
        is_incremental: base.is_some(),
    })
}

/// Copies the versions of all namespaces that keep them: those after the base, or all.
fn copy_versions(moment: &Moment<'_>, base: Option<&BackupBase>, out: &mut Out<'_>) -> Result<(), Error> {
    for (info, versions) in &moment.ticket.namespaces {
        let Some(at) = versions else { continue };
        let before = base.and_then(|base| base.namespaces.iter().find(|namespace| namespace.id == info.id));
        let before = before.and_then(|namespace| match &namespace.holds {
            Holds::Versions(_, versions) => Some((versions.newest, versions.count)),
            Holds::Records(_) | Holds::Blocks(_) => None,
        });
        let first = before.map_or(0, |(newest, _)| newest + 1);
        let older = copy_versions_of(moment, info.id, at, first, out)?;
        if before.is_some_and(|(_, count)| count != older) {
            // A merge has dropped versions that the base has: only all of them are what there was.
            out.send(PieceKind::Reset, info.id.to_le_bytes().to_vec())?;
            copy_versions_of(moment, info.id, &VersionsAt { bytes: 0, ..at.clone() }, 0, out)?;
        }
    }
    Ok(())
}

/// Copies the versions of a namespace from a sequence on; returns how many older ones there are.
fn copy_versions_of(
    moment: &Moment<'_>,
    namespace: NamespaceId,
    at: &VersionsAt,
    first: u64,
    out: &mut Out<'_>,
) -> Result<u64, Error> {
    let mut reading = moment.shared.reading(namespace)?;
    let row_count = reading.reader.row_count();
    let (mut older, mut collected) = (0, Vec::new());
    for row in 0..row_count {
        older += copy_row(&mut reading, row, &(first..at.newest + 1), &mut |version, value| {
            encode_version(namespace, version, value, &mut collected);
            out.totals.versions += 1;
            out.totals.bytes += (version.key.len() + value.len()) as u64;
            out.flush(PieceKind::Versions, &mut collected, false)
        })?;
        let share = |rows: u32| (u128::from(at.bytes) * u128::from(rows) / u128::from(row_count)) as u64;
        out.progress.advance(share(row + 1) - share(row))?;
    }
    out.flush(PieceKind::Versions, &mut collected, true)?;
    Ok(older)
}

/// A namespace of records or blocks during a scan.
struct Space<'a> {
    at: RecordsAt<'a>,
    names_by_digest: bool,
}

/// Reads blocks and passes on the records that belong to the backup.
struct Scan<'a, 'p> {
    moment: &'a Moment<'a>,
    after: BackupMark,
    is_incremental: bool,
    spaces: BTreeMap<NamespaceId, Space<'a>>,
    out: Out<'p>,
    collected: Vec<u8>,
    /// Places where a record begins that cannot be read.
    bad: BTreeSet<u64>,
    read_bytes: u64,
}

impl<'a, 'p> Scan<'a, 'p> {
    fn new(
        moment: &'a Moment<'a>,
        after: BackupMark,
        is_incremental: bool,
        described: &[Described],
        out: Out<'p>,
    ) -> Result<Scan<'a, 'p>, Error> {
        let mut spaces = BTreeMap::new();
        for namespace in described {
            let names_by_digest = match namespace.holds {
                Holds::Versions(..) => continue,
                Holds::Records(keys) => keys == KeyKind::Any,
                Holds::Blocks(_) => false,
            };
            spaces.insert(namespace.id, Space { at: moment.records(namespace.id)?, names_by_digest });
        }
        let (collected, bad) = (Vec::new(), BTreeSet::new());
        Ok(Scan { moment, after, is_incremental, spaces, out, collected, bad, read_bytes: 0 })
    }

    fn run(&mut self) -> Result<(), Error> {
        let ticket = &self.moment.ticket;
        self.blocks(&ticket.full_blocks)?;
        self.settle()?;
        self.blocks(&ticket.open_blocks)?;
        self.take_moved()?;
        let mut collected = std::mem::take(&mut self.collected);
        self.out.flush(PieceKind::Records, &mut collected, true)
    }

    /// What is in write buffers gets to flash: a device that is only read has nothing there.
    fn settle(&self) -> Result<(), Error> {
        let mut core = self.moment.shared.lock();
        if self.moment.ticket.open_blocks.is_empty() || core.is_read_only() {
            return Ok(());
        }
        let request = core.request_root(true);
        self.moment.shared.wait_root(core, request)
    }

    /// Blocks one after another; a thread reads ahead.
    fn blocks(&mut self, blocks: &[u32]) -> Result<(), Error> {
        let (shared, after) = (self.moment.shared, self.after);
        std::thread::scope(|scope| {
            let (send, read) = sync_channel(BLOCKS_AHEAD);
            let (used, returned) = channel();
            scope.spawn(move || {
                let mut spare = Vec::new();
                for block in blocks {
                    spare.extend(returned.try_iter());
                    let held = shared.lock().hold_block(*block);
                    let medium = &*shared.medium;
                    let read = held.map(|_held| BlockRead::read(&shared.reader, medium, *block, &after, &mut spare));
                    if send.send((*block, read)).is_err() {
                        return; // the backup has failed
                    }
                }
            });
            for (block, read) in read {
                if let Some(read) = read {
                    let read = read.map_err(Error::from)?;
                    self.block(&read)?;
                    read.into_buffers().for_each(|buffer| _ = used.send(buffer)); // the last block needs none
                }
                self.moment.ticket.watch.block_is_read(block);
                self.take_moved()?;
                self.out.progress.advance(shared.geometry.block_bytes())?;
            }
            Ok(())
        })
    }

    fn block(&mut self, read: &BlockRead) -> Result<(), Error> {
        self.read_bytes += read.bytes;
        read.for_each(&self.moment.shared.geometry, |group| {
            let records = group.iter().filter_map(|scanned| match scanned {
                Scanned::Record(record) => Some((record.namespace, &record.key)),
                Scanned::Unreadable(_) => None,
            });
            self.moment.shared.reader.prefetch(records);
            group.iter().try_for_each(|scanned| self.record(scanned))
        })
    }

    fn record(&mut self, scanned: &Scanned<'_>) -> Result<(), Error> {
        let record = match scanned {
            Scanned::Unreadable(at) => {
                self.bad.insert(*at);
                return Ok(());
            }
            Scanned::Record(record) => record,
        };
        if self.is_incremental && !record.may_be_after(&self.after) {
            return Ok(());
        }
        let Some(space) = self.spaces.get(&record.namespace) else { return Ok(()) };
        if !self.moment.look(record.namespace, || space.at.sees(&record.key, record.slot))? {
            return Ok(());
        }
        match &record.value {
            Some(value) => self.put(record.namespace, &record.key, value, record.expires),
            // A bit may have flipped on its way: a read by its key is repeated, and reports what is wrong.
            None => self.fetch(record.namespace, &record.key),
        }
    }

    /// Reads what moved before its block was read.
    fn take_moved(&mut self) -> Result<(), Error> {
        for (namespace, key) in self.moment.ticket.watch.take_moved() {
            if self.spaces.contains_key(&namespace) {
                self.fetch(namespace, &key.full())?;
            }
        }
        let mut collected = std::mem::take(&mut self.collected);
        let flushed = self.out.flush(PieceKind::Records, &mut collected, false);
        self.collected = collected;
        flushed
    }

    fn fetch(&mut self, namespace: NamespaceId, key: &FullKey<'_>) -> Result<(), Error> {
        let Some(space) = self.spaces.get(&namespace) else { return Ok(()) };
        let Some((whole, value, expires)) = self.moment.fetch(&space.at, namespace, key)? else { return Ok(()) };
        let whole = match key.key().is_digest() {
            true => FullKey::long(*key.key(), whole.as_bytes()),
            false => *key,
        };
        self.put(namespace, &whole, &value, expires)
    }

    fn put(&mut self, namespace: NamespaceId, key: &FullKey<'_>, value: &[u8], expires: u64) -> Result<(), Error> {
        let names_by_digest = self.spaces.get(&namespace).is_some_and(|space| space.names_by_digest);
        let digest = (names_by_digest && key.key().is_digest()).then(|| *key.key().padded());
        let entry = Entry { namespace, expires, digest, key: key.as_bytes(), value };
        self.collected.reserve(entry.bytes());
        entry.encode(&mut self.collected);
        self.out.totals.records += 1;
        self.out.totals.bytes += (entry.key.len() + entry.value.len()) as u64;
        self.out.flush(PieceKind::Records, &mut self.collected, false)
    }
}
