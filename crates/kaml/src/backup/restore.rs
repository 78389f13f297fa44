//! Making a device of a backup, or of a full backup and the incremental ones after it.
//!
//! Lives here:       the new device, the order in which backups are applied, what each piece becomes.
//! Lives elsewhere:  reading and checking pieces (`read`), versions with their old sequences (`kaml_device`).
//! Implements:       docs/ARCHITECTURE.md "Backups".
//!
//! A device that is being restored has a namespace that says so, and cannot be opened. It is deleted last, after everything else is
//! durable.

use super::UNFINISHED;
use super::format::{Cursor, Described, Entry, Head, Holds, ListedKey, PieceKind, Versions, decode_version};
use super::progress::Progress;
use super::read::{Pieces, deleted_digests, io_error, open};
use super::write::{Unfinished, sync_directory};
use crate::driver::{By, Shared};
use crate::error::Error;
use crate::{
    Batch, BlockOptions, CreateOptions, Device, Expiry, NamespaceChange, NamespaceId, NamespaceOptions, OpenOptions,
};
use kaml_device::{Key, NamespaceKind, VersionOptions};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufReader, Read};
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// Bytes that are taken from the system at a time.
const READ_BYTES: usize = 1 << 20;
/// Bytes of values of one Put, unless a value is longer.
const BATCH_BYTES: usize = 4 << 20;
/// What a record costs in the ring besides key and value, at most; and a value at most, because longer ones are not in the ring.
const RECORD_COST: usize = 64;
const VALUE_COST_MAX: usize = kaml_device::DIRECT_BYTES;

/// Where a backup is read from.
///
/// # Examples
/// ```
/// let sources = vec![
///     kaml::RestoreSource::stream(std::io::stdin(), "standard input"),
///     kaml::RestoreSource::file("monday.backup"),
/// ];
/// # drop(sources);
/// ```
pub struct RestoreSource {
    name: String,
    input: Input,
}

enum Input {
    File(PathBuf),
    Stream(Box<dyn Read>),
}

impl RestoreSource {
    /// A file.
    pub fn file(path: impl AsRef<Path>) -> RestoreSource {
        let path = path.as_ref().to_owned();
        RestoreSource { name: path.display().to_string(), input: Input::File(path) }
    }

    /// A stream, which errors call `name`. Incremental backups must be files.
    pub fn stream(input: impl Read + 'static, name: &str) -> RestoreSource {
        RestoreSource { name: name.to_owned(), input: Input::Stream(Box::new(input)) }
    }

    fn pieces(self) -> Result<Pieces<Box<dyn Read>>, Error> {
        let input: Box<dyn Read> = match self.input {
            Input::File(path) => Box::new(BufReader::with_capacity(READ_BYTES, open(&path)?)),
            Input::Stream(input) => Box::new(BufReader::with_capacity(READ_BYTES, input)),
        };
        Ok(Pieces::new(input, &self.name))
    }
}

/// What was restored.
///
/// # Examples
/// See [`Device::backup`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// Backups that were read.
    pub backups: u64,
    /// Namespaces of the device.
    pub namespaces: u64,
    /// Records and units of blocks that were stored.
    pub records: u64,
    /// Versions that were stored.
    pub versions: u64,
    /// Keys that were deleted again.
    pub deleted: u64,
    /// Namespaces whose list of logs names some that the device does not have: they use all logs.
    pub logs_dropped: u64,
}

impl Device {
    /// Makes a device of a full backup, and of incremental ones in their order. It is closed afterwards. A file that does not exist gets its
    /// name when it is whole; over contents this needs [`CreateOptions::force`], and until the restore ends the device cannot be opened. If
    /// no capacity is given, the device is as large as the one that was backed up. `progress` receives the bytes that were
    /// read; [`ControlFlow::Break`] ends the restore.
    ///
    /// The device has the namespaces, records, blocks, versions and snapshots of the last backup. Numbers of namespaces can differ.
    ///
    /// # Errors
    /// - [`Error::Cancelled`] if `progress` ends it. A file that did not exist is then removed; other contents cannot be opened until
    ///   a restore over them ends.
    /// - As [`verify_backup`](crate::verify_backup) for each backup; [`Error::WrongBase`] if one does not continue the one before it.
    /// - [`Error::TargetTooSmall`], [`Error::ValueTooLarge`], [`Error::BadVersionOptions`] if the device cannot take what they have.
    /// - As [`Device::create`].
    ///
    /// # Examples
    /// See [`Device::backup`].
    pub fn restore(
        sources: Vec<RestoreSource>,
        path: impl AsRef<Path>,
        options: &CreateOptions,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<RestoreReport, Error> {
        let path = path.as_ref();
        let digests = digests_deleted_later(&sources)?;
        let mut sources = sources.into_iter();
        let none = || Error::NotABackup { name: "an empty list of backups".to_owned() };
        let mut pieces = sources.next().ok_or_else(none)?.pieces()?;
        let head = pieces.head()?;
        if head.base.is_some() {
            return Err(pieces.wrong_base("is incremental; name the full backup that it adds to before it"));
        }
        let mut options = options.clone();
        if options.capacity_bytes == 0 && !is_block_device(path) {
            options.capacity_bytes = head.capacity + head.capacity / 8 + (8 << 20);
        }
        let is_new = std::fs::symlink_metadata(path).is_err();
        let unfinished = is_new.then(|| Unfinished::next_to(path)).transpose()?;
        let at = unfinished.as_ref().map_or(path, Unfinished::path);
        let report =
            restore_at(at, &options, (pieces, head), sources, digests, progress).map_err(|error| match error {
                // Nobody knows the temporary name.
                Error::NotEmpty { found, .. } => Error::NotEmpty { path: path.to_owned(), found },
                error => error,
            })?;
        if let Some(unfinished) = unfinished {
            let failed = |source| io_error(&path.display().to_string(), "rename", source);
            std::fs::rename(unfinished.path(), path).map_err(failed)?;
            sync_directory(path).map_err(failed)?;
        }
        Ok(report)
    }
}

fn is_block_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// The digests of keys that later backups name as deleted: only records have their bytes.
fn digests_deleted_later(sources: &[RestoreSource]) -> Result<HashSet<(u32, [u8; 16])>, Error> {
    let mut digests = HashSet::new();
    for source in sources.iter().skip(1) {
        match &source.input {
            Input::File(path) => digests.extend(deleted_digests(path)?),
            Input::Stream(_) => {
                let why = "an incremental backup cannot be restored from a stream; store it in a file first".to_owned();
                return Err(Error::WrongBase { name: source.name.clone(), why });
            }
        }
    }
    Ok(digests)
}

fn restore_at(
    path: &Path,
    options: &CreateOptions,
    (mut pieces, mut head): (Pieces<Box<dyn Read>>, Head),
    sources: impl Iterator<Item = RestoreSource>,
    digests: HashSet<(u32, [u8; 16])>,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<RestoreReport, Error> {
    let device = Device::create(path, options)?;
    device.create_namespace(UNFINISHED, &NamespaceOptions::default())?;
    let mut restore = Restore::new(&device, digests);
    let mut hear = |done, _total| progress(done);
    let progress = &mut Progress::new(u64::MAX, &mut hear);
    restore.apply(&mut pieces, &head, progress)?;
    for source in sources {
        pieces = source.pieces()?;
        let next = pieces.head()?;
        if next.base != Some(head.backup) || next.device != head.device {
            return Err(pieces.wrong_base("does not continue the backup before it; name all of them, in their order"));
        }
        head = next;
        restore.apply(&mut pieces, &head, progress)?;
    }
    let report = restore.report;
    drop(restore);
    device.close()?;
    // Versions and user versions are durable by now.
    let device = Device::open_unfinished(path, &OpenOptions::default())?;
    device.delete_namespace(device.namespace(UNFINISHED)?)?;
    device.close()?;
    Ok(report)
}

impl<R: Read> Pieces<R> {
    fn wrong_base(&self, why: &str) -> Error {
        Error::WrongBase { name: self.name().to_owned(), why: why.to_owned() }
    }
}

/// A namespace of the new device.
struct Target {
    id: NamespaceId,
    described: Described,
}

/// Versions are being inserted, until this is dropped.
struct Inserting<'a>(&'a Shared);

impl Drop for Inserting<'_> {
    fn drop(&mut self) {
        self.0.lock().end_restore();
    }
}

struct Restore<'a> {
    device: &'a Device,
    /// By their numbers in the backups.
    targets: BTreeMap<u32, Target>,
    digests: HashSet<(u32, [u8; 16])>,
    /// Namespaces of the new device with records that expire.
    expiring: HashSet<NamespaceId>,
    long_keys: HashMap<(u32, [u8; 16]), Box<[u8]>>,
    batch: Batch,
    ring_bytes: usize,
    value_bytes: usize,
    /// The frame of the blocks that were written last.
    frame: Option<u64>,
    report: RestoreReport,
}

impl<'a> Restore<'a> {
    fn new(device: &'a Device, digests: HashSet<(u32, [u8; 16])>) -> Restore<'a> {
        Restore {
            device,
            targets: BTreeMap::new(),
            digests,
            expiring: HashSet::new(),
            long_keys: HashMap::new(),
            batch: Batch::new(),
            ring_bytes: 0,
            value_bytes: 0,
            frame: None,
            report: RestoreReport::default(),
        }
    }

    /// Brings the device to the moment of a backup.
    fn apply(
        &mut self,
        pieces: &mut Pieces<Box<dyn Read>>,
        head: &Head,
        progress: &mut Progress<'_>,
    ) -> Result<(), Error> {
        let before = self.report.records;
        self.apply_all(pieces, head, progress).map_err(|error| match error {
            Error::Full { capacity_bytes, .. } if self.report.records >= before => {
                Error::TargetTooSmall { live_bytes: head.live_bytes, capacity_bytes }
            }
            error => error,
        })?;
        self.report.backups += 1;
        self.report.namespaces = self.targets.len() as u64;
        Ok(())
    }

    fn apply_all(
        &mut self,
        pieces: &mut Pieces<Box<dyn Read>>,
        head: &Head,
        progress: &mut Progress<'_>,
    ) -> Result<(), Error> {
        let described = pieces.namespaces(head)?;
        self.device.shared().lock().adopt_sequence(head.sequence)?;
        self.namespaces(described)?;
        let mut read = 0;
        let mut inserting = Some(Inserting(self.device.shared()));
        while let Some((kind, bytes)) = pieces.next()? {
            if !matches!(kind, PieceKind::Versions | PieceKind::Reset)
                && let Some(inserting) = inserting.take()
            {
                self.finish_versions(inserting)?;
            }
            let is_sound = match kind {
                PieceKind::Versions if inserting.is_some() => self.versions(&bytes)?,
                PieceKind::Reset if inserting.is_some() => self.reset(&bytes)?,
                PieceKind::Records => self.records(&bytes)?,
                PieceKind::Deleted => self.deleted(&bytes)?,
                PieceKind::Keys => true,
                PieceKind::Versions | PieceKind::Reset => false,
                PieceKind::Head | PieceKind::Namespace | PieceKind::End => false,
            };
            pieces.require(is_sound, "a piece has contents that no backup has")?;
            progress.advance(pieces.offset - read)?;
            read = pieces.offset;
        }
        if let Some(inserting) = inserting.take() {
            self.finish_versions(inserting)?;
        }
        self.flush()?;
        self.check_counts(pieces)
    }

    // --- namespaces -----------------------------------------------------------------------------------------------------

    /// Makes the namespaces what the backup says.
    fn namespaces(&mut self, described: Vec<Described>) -> Result<(), Error> {
        let is_kept = |id: &u32, target: &Target| {
            described.iter().any(|new| new.id == *id && new.holds.is_like(&target.described.holds))
        };
        let gone: Vec<u32> =
            self.targets.iter().filter(|(id, target)| !is_kept(id, target)).map(|(id, _)| *id).collect();
        for id in gone {
            if let Some(target) = self.targets.remove(&id) {
                self.device.delete_namespace(target.id)?;
            }
        }
        // Names may have been exchanged.
        for new in &described {
            if let Some(target) = self.targets.get(&new.id).filter(|target| target.described.name != new.name) {
                let name = Some(format!("{UNFINISHED}-{}", new.id));
                self.device.set_namespace(target.id, &NamespaceChange { name, ..NamespaceChange::default() })?;
            }
        }
        for new in described {
            let logs = self.logs(&new.logs);
            match self.targets.get_mut(&new.id) {
                Some(target) => {
                    let merge_when_low = match &new.holds {
                        Holds::Versions(_, versions) => Some(versions.options.merge_when_low),
                        Holds::Records(_) | Holds::Blocks(_) => None,
                    };
                    let name = Some(new.name.clone());
                    let (default_ttl_ms, compression) = match &new.holds {
                        Holds::Records(_) => (Some(NonZeroU64::new(new.default_ttl_ms)), Some(new.compression)),
                        Holds::Blocks(_) | Holds::Versions(..) => (None, None),
                    };
                    let change =
                        NamespaceChange { name, logs: Some(logs), merge_when_low, default_ttl_ms, compression };
                    self.device.set_namespace(target.id, &change)?;
                    target.described = new;
                }
                None => {
                    let id = self.create(&new, logs)?;
                    self.targets.insert(new.id, Target { id, described: new });
                }
            }
        }
        Ok(())
    }

    /// The logs of a namespace; all of them if the device lacks some.
    fn logs(&mut self, logs: &[u32]) -> Vec<u32> {
        let count = self.device.shared().geometry.die_count();
        if logs.iter().all(|log| *log < count) {
            return logs.to_vec();
        }
        self.report.logs_dropped += 1;
        Vec::new()
    }

    fn create(&self, new: &Described, logs: Vec<u32>) -> Result<NamespaceId, Error> {
        let kind = match &new.holds {
            Holds::Records(keys) => NamespaceKind::Records(*keys),
            Holds::Blocks(blocks) => NamespaceKind::Blocks(*blocks),
            Holds::Versions(keys, versions) => NamespaceKind::Versions(*keys, versions.options),
        };
        let mut options = NamespaceOptions::new(kind).with_logs(logs);
        options.default_ttl_ms = NonZeroU64::new(new.default_ttl_ms);
        options.compression = new.compression;
        let Holds::Versions(keys, versions) = &new.holds else {
            return self.device.create_namespace(&new.name, &options);
        };
        let seed = versions.seed;
        match self.create_with_seed(&new.name, &options, seed) {
            // The device has other blocks, or less room for buffers: sizes as suit it.
            Err(Error::BadVersionOptions(_)) => {
                let fitted = VersionOptions { buffer_bytes: 0, segment_bytes: 0, ..versions.options };
                let options = NamespaceOptions::versions(*keys, fitted).with_logs(options.logs);
                self.create_with_seed(&new.name, &options, seed)
            }
            created => created,
        }
    }

    fn create_with_seed(&self, name: &str, options: &NamespaceOptions, seed: u64) -> Result<NamespaceId, Error> {
        let shared = self.device.shared();
        let mut core = shared.lock();
        let id = core.create_with_seed(name, options, Some(seed))?;
        let request = core.request_root(false);
        shared.wait_root(core, request)?;
        Ok(id)
    }

    // --- versions -------------------------------------------------------------------------------------------------------

    /// Versions come in the order of their sequences, row by row.
    fn versions(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        let shared = self.device.shared();
        let mut rest = Cursor(bytes);
        while !rest.is_empty() {
            let Some((namespace, version, value)) = decode_version(&mut rest) else { return Ok(false) };
            let Some(target) = self.targets.get(&namespace) else { return Ok(false) };
            let insert = match shared.restores_placed(target.id, &version, value) {
                true => shared.restore_large(target.id, &version, value),
                false => shared.visit(By::Store, |core| core.restore_version(target.id, &version, value)),
            };
            let (core, ()) = insert.map_err(|error| named(error, target))?;
            let wakes = core.has_background();
            drop(core);
            if wakes {
                shared.wake_background();
            }
            self.report.versions += 1;
        }
        Ok(true)
    }

    /// All versions of a namespace follow.
    fn reset(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        let mut rest = Cursor(bytes);
        let Some(namespace) = rest.u32().filter(|_| rest.is_empty()) else { return Ok(false) };
        let Some(target) = self.targets.remove(&namespace) else { return Ok(false) };
        if !matches!(target.described.holds, Holds::Versions(..)) {
            return Ok(false);
        }
        // What was inserted is about to be deleted; others are not inserted at the same time.
        self.device.shared().lock().end_restore();
        self.device.delete_namespace(target.id)?;
        let logs = self.logs(&target.described.logs);
        let id = self.create(&target.described, logs)?;
        self.targets.insert(namespace, Target { id, ..target });
        Ok(true)
    }

    /// Makes the versions durable, and the user versions what the backup says.
    fn finish_versions(&mut self, inserting: Inserting<'_>) -> Result<(), Error> {
        drop(inserting);
        let shared = self.device.shared();
        let mut has_versions = false;
        for target in self.targets.values() {
            let Holds::Versions(_, versions) = &target.described.holds else { continue };
            let Versions { timeline, .. } = &**versions;
            let restore = shared.visit(By::Store, |core| core.restore_timeline(target.id, timeline.clone()));
            drop(restore.map_err(|error| named(error, target))?);
            has_versions = true;
        }
        if !has_versions {
            return Ok(());
        }
        let mut core = shared.lock();
        let request = core.request_root(true);
        shared.wait_root(core, request)
    }

    // --- records and blocks ---------------------------------------------------------------------------------------------

    fn records(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        let mut rest = Cursor(bytes);
        while !rest.is_empty() {
            let Some(entry) = Entry::decode(&mut rest) else { return Ok(false) };
            let Some(target) = self.targets.get(&entry.namespace) else { return Ok(false) };
            self.report.records += 1;
            if let Some(digest) = entry.digest.map(|digest| (entry.namespace, digest))
                && self.digests.contains(&digest)
            {
                self.long_keys.insert(digest, entry.key.into());
            }
            let id = target.id;
            match &target.described.holds {
                Holds::Versions(..) => return Ok(false),
                Holds::Blocks(blocks) => {
                    let blocks = *blocks;
                    if entry.value.len() != blocks.unit_bytes as usize {
                        return Ok(false);
                    }
                    let Some(span) = span_of(&blocks, entry.key) else { return Ok(false) };
                    let data = &entry.value[..(span.1 * u64::from(blocks.block_bytes)) as usize];
                    self.frame = self.device.shared().submit_blocks(id, span.0, data)?.or(self.frame);
                }
                Holds::Records(_) => {
                    self.reserve(entry.key.len(), entry.value.len())?;
                    let expiry = match entry.expires {
                        0 => Expiry::Never,
                        time => Expiry::At(UNIX_EPOCH + Duration::from_millis(time)),
                    };
                    self.batch.put(id, entry.key, entry.value).expires(expiry);
                    if entry.expires != 0 {
                        self.expiring.insert(id);
                    }
                }
            }
        }
        self.wait_blocks()?;
        Ok(true)
    }

    fn deleted(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        let mut rest = Cursor(bytes);
        let Some(namespace) = rest.u32() else { return Ok(false) };
        while !rest.is_empty() {
            let Some(key) = ListedKey::decode(&mut rest) else { return Ok(false) };
            let Some(target) = self.targets.get(&namespace) else { return Ok(false) };
            let (id, holds) = (target.id, &target.described.holds);
            self.report.deleted += 1;
            let key = match key {
                ListedKey::Bytes(key) => key,
                ListedKey::Digest(digest) => match self.long_keys.get(&(namespace, digest)) {
                    Some(key) => key.clone(),
                    None => return Ok(false),
                },
            };
            match holds {
                Holds::Versions(..) => return Ok(false),
                Holds::Blocks(blocks) => {
                    let Some((first, count)) = span_of(blocks, &key) else { return Ok(false) };
                    self.device.block_trim(id, first, count)?;
                }
                Holds::Records(_) => {
                    self.reserve(key.len(), 0)?;
                    self.batch.delete(id, &key[..]);
                }
            }
        }
        Ok(true)
    }

    /// Stores what was collected if another record might not fit with it.
    fn reserve(&mut self, key_bytes: usize, value_bytes: usize) -> Result<(), Error> {
        let cost = RECORD_COST + 2 * key_bytes + value_bytes.min(VALUE_COST_MAX);
        let max = self.device.shared().lock().batch_bytes_max();
        if self.ring_bytes + cost > max / 2 || self.value_bytes + value_bytes > BATCH_BYTES {
            self.flush()?;
        }
        self.ring_bytes += cost;
        self.value_bytes += value_bytes;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        if !self.batch.is_empty() {
            self.device.write(&self.batch)?;
        }
        (self.batch, self.ring_bytes, self.value_bytes) = (Batch::new(), 0, 0);
        self.wait_blocks()
    }

    fn wait_blocks(&mut self) -> Result<(), Error> {
        let shared = self.device.shared();
        self.frame.take().map_or(Ok(()), |frame| shared.wait_committed(shared.lock(), frame))
    }

    /// Compares what the device has with what the backup says.
    fn check_counts(&self, pieces: &Pieces<Box<dyn Read>>) -> Result<(), Error> {
        for target in self.targets.values() {
            let described = &target.described;
            let count = match &described.holds {
                Holds::Versions(..) => self.device.version_stats(target.id)?.version_count,
                Holds::Records(_) | Holds::Blocks(_) => {
                    let infos = self.device.namespaces();
                    infos.iter().find(|info| info.id == target.id).map_or(0, |info| info.record_count)
                }
            };
            // What expires while it is restored is gone.
            let may_be_less = count < described.count && self.expiring.contains(&target.id);
            if count != described.count && !may_be_less {
                let (name, expected) = (&described.name, described.count);
                return Err(pieces.damaged(&format!("namespace {name:?} has {count} of its {expected} records")));
            }
        }
        Ok(())
    }
}

/// An error with the name of a namespace, where only that tells what to do.
fn named(error: Error, target: &Target) -> Error {
    match error {
        Error::ValueTooLarge { bytes, max, .. } => Error::ValueTooLarge { bytes, max, namespace: Some(target.id) },
        error => error,
    }
}

/// The blocks of a unit: the first one, and how many exist.
fn span_of(blocks: &BlockOptions, key: &[u8]) -> Option<(u64, u64)> {
    let unit = Key::new(key).ok()?.as_u64()?;
    let per_unit = u64::from(blocks.unit_bytes.checked_div(blocks.block_bytes)?);
    let first = unit.checked_mul(per_unit)?;
    let count = blocks.block_count.checked_sub(first)?.min(per_unit);
    (count > 0).then_some((first, count))
}
