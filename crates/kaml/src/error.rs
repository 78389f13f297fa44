//! The one error of the public API.
//!
//! Lives here:       [`Error`], what a caller can ask of it.
//! Lives elsewhere:  its kinds for those who report it elsewhere (`class`), how the errors of the crates below become it (`from`).

mod class;
mod from;
mod words;

pub use class::ErrorClass;

use crate::store::IllegalMove;
use crate::{Holder, Key, KeyBuf, KeyError, NamespaceId};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use words::{holder_of, larger, taker};

/// Why a call failed. Unless the variant states otherwise, what was stored before is untouched and nothing of the call took effect.
///
/// Match the variants that the program acts on, or use the questions: [`Error::is_conflict`], [`Error::is_full`],
/// [`Error::is_not_found`], [`Error::is_too_large`], [`Error::is_corrupt`], [`Error::is_retryable`]. Later versions may add variants.
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, Error};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// match device.open_namespace("users") {
///     Err(Error::UnknownNamespaceName(name)) => assert_eq!(name, "users"),
///     Err(other) => return Err(other),
///     Ok(_) => unreachable!("the device is new"),
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No namespace has this number.
    #[error("namespace {0} does not exist")]
    UnknownNamespace(NamespaceId),
    /// No namespace has this name.
    #[error("namespace {0:?} does not exist")]
    UnknownNamespaceName(String),
    /// A namespace of this name exists.
    #[error("namespace {0:?} exists already")]
    NamespaceExists(String),
    /// A namespace cannot have this name.
    #[error("namespace name {name:?}: {why}")]
    BadName {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A log that the device does not have.
    #[error("log {log} does not exist; the device has logs 0 to {last}")]
    UnknownLog {
        /// The number given.
        log: u32,
        /// The largest that exists.
        last: u32,
    },
    /// A log that is named twice in a list of logs.
    #[error("log {0} is named twice; name each log once")]
    LogTwice(u32),
    /// The device cannot describe more namespaces, or namespaces with longer names and lists of logs.
    #[error(
        "no room for more namespaces: their description would take {bytes} of {max} bytes; delete some, or shorten their names"
    )]
    TooManyNamespaces {
        /// Bytes that the description would take.
        bytes: usize,
        /// Bytes that it may take.
        max: usize,
    },
    /// All numbers of namespaces were given: those of deleted ones are not given again. There are 2^31-1.
    #[error("the device has given all its namespace numbers; restore a backup of it into a new device")]
    NamespaceNumbersUsed,
    /// Options that no versioned namespace can have on this device.
    #[error("invalid options of a namespace: {0}")]
    BadVersionOptions(String),
    /// Options that no block namespace can have.
    #[error("invalid options for a block namespace: {why}")]
    BadBlockOptions {
        /// What they must be.
        why: &'static str,
    },
    /// A command on records, of a namespace that holds logical blocks.
    #[error("namespace {0} holds blocks; use the commands on blocks, or another namespace for records")]
    HoldsBlocks(NamespaceId),
    /// A command on logical blocks, of a namespace that holds records.
    #[error("namespace {0} holds records; use the commands on records, or another namespace for blocks")]
    HoldsRecords(NamespaceId),
    /// A range of keys of a namespace whose keys have no order.
    #[error("namespace {0} is not ordered; create one with ordered keys to read ranges of it")]
    NotOrdered(NamespaceId),
    /// A listing after a cursor, of a namespace that is listed by ranges.
    #[error("namespace {0} is ordered: its keys are listed by ranges, not after a cursor")]
    ListedByRange(NamespaceId),
    /// A command that versioned namespaces do not have.
    #[error(
        "namespace {0} keeps versions or has its index on flash; this command is for records with their index in memory"
    )]
    KeepsVersions(NamespaceId),
    /// A condition in a queue, of a versioned namespace. It would read flash, for which a queue does not wait.
    #[error(
        "namespace {namespace} keeps versions, so a queue cannot ask whether key {key} exists; use put_if or write of the device"
    )]
    NoConditionOnVersions {
        /// The namespace.
        namespace: NamespaceId,
        /// The key.
        key: Key,
    },
    /// A put with an expiry, of a versioned namespace.
    #[error(
        "namespace {0} keeps versions or has its index on flash, so its records do not expire one by one; merge it with a retention time, set rules for merges when space runs low, or use a namespace with its index in memory"
    )]
    VersionsDoNotExpire(NamespaceId),
    /// A time to live of a namespace that holds something else than records without versions.
    #[error("a namespace of {0} takes no time to live")]
    BadTimeToLive(&'static str),
    /// Compression of a namespace that holds something else than records.
    #[error("a namespace of {0} cannot compress: create it without compression")]
    BadCompression(&'static str),
    /// A range of a namespace whose records expire, in a transaction: the lock of a record that has expired keeps no others out of the range.
    #[error(
        "records of namespace {0} expire, so a transaction cannot lock a range of them; read them by their keys, or a snapshot"
    )]
    NotInStore(NamespaceId),
    /// A command on versions, of a namespace that does not keep them.
    #[error("namespace {0} does not keep versions; create one that does")]
    KeepsNoVersions(NamespaceId),
    /// A condition does not hold, and nothing of the batch was stored; or a transaction inserts a record that exists, or updates or
    /// deletes one that does not, and continues.
    #[error("namespace {namespace}: key {key} {}", if *.present { "exists already" } else { "does not exist" })]
    Conflict {
        /// The namespace.
        namespace: NamespaceId,
        /// The key.
        key: KeyBuf,
        /// Whether a record has that key.
        present: bool,
    },
    /// An operand for a value that is no counter; nothing of the batch was stored.
    #[error(
        "namespace {namespace}: the value of key {key} has {bytes} bytes, and a counter 8; put a counter there, or use another key"
    )]
    NotACounter {
        /// The namespace.
        namespace: NamespaceId,
        /// The key.
        key: KeyBuf,
        /// Bytes of its value.
        bytes: u64,
    },
    /// A sum that a counter cannot have; nothing of the batch was stored.
    #[error("namespace {namespace}: the counter of key {key} would exceed 64 bits; add less, or put another value")]
    CounterOverflow {
        /// The namespace.
        namespace: NamespaceId,
        /// The key.
        key: KeyBuf,
    },
    /// A value is not the one that a batch expects, and nothing of the batch was stored.
    #[error("namespace {namespace}: key {key} {}; read it again", if *.present { "has another value" } else { "does not exist" })]
    ValueDiffers {
        /// The namespace.
        namespace: NamespaceId,
        /// The key.
        key: KeyBuf,
        /// Whether a record has that key.
        present: bool,
    },
    /// Operands or expected values in a queue, which does not wait for reads.
    #[error("a queue takes no operands and no expected values; use write of the device")]
    OperandInQueue,
    /// A read through a [`Snapshot`](crate::Snapshot) that has expired.
    #[error(
        "the snapshot is too old: it has expired, because the records that it kept were in the way of puts or exceeded the bound of \
         snapshots; open another one"
    )]
    SnapshotTooOld,
    /// A key that no namespace, or not this one, takes.
    #[error(transparent)]
    BadKey(#[from] KeyError),
    /// A value above the limit of the device, or that of a namespace which takes less.
    #[error("a value of {bytes} bytes; {} takes at most {max}{}", taker(*.namespace), larger(*.namespace))]
    ValueTooLarge {
        /// Its length.
        bytes: u64,
        /// The limit.
        max: u64,
        /// The namespace, if it takes less than the device.
        namespace: Option<NamespaceId>,
    },
    /// More records than one Put takes.
    #[error(
        "a batch of {bytes} bytes; one Put takes at most {max}; split it (a value of {direct_bytes} bytes or more counts as 48)"
    )]
    BatchTooLarge {
        /// Bytes that the batch counts.
        bytes: usize,
        /// The limit.
        max: usize,
        /// Values of this length and more bypass the commit ring.
        direct_bytes: u64,
    },
    /// A batch without records.
    #[error("an empty batch; put something into it first")]
    EmptyBatch,
    /// Logical blocks that a namespace does not have.
    #[error("namespace {namespace}: {count} blocks from block {first_block} on; it has {block_count}")]
    BlocksOutOfRange {
        /// The namespace.
        namespace: NamespaceId,
        /// The first block.
        first_block: u64,
        /// How many blocks.
        count: u64,
        /// How many the namespace has.
        block_count: u64,
    },
    /// Bytes that are not whole logical blocks.
    #[error("namespace {namespace}: {bytes} bytes are not whole blocks of {block_bytes} bytes")]
    PartialBlock {
        /// The namespace.
        namespace: NamespaceId,
        /// Bytes given.
        bytes: u64,
        /// Bytes of a block.
        block_bytes: u64,
    },
    /// No snapshot has this number: it was never taken, or it was forgotten.
    #[error("no snapshot {version}; the present user version is {present}")]
    NoSnapshot {
        /// The number.
        version: u32,
        /// The user version that Puts belong to.
        present: u32,
    },
    /// The key has fewer changes than were to be undone.
    #[error("{count} changes to undo; the key has {available}")]
    TooFarBack {
        /// How many were to be undone.
        count: u32,
        /// How many versions of the key exist.
        available: u32,
    },
    /// The namespace has as many snapshots as it can have.
    #[error("too many snapshots or rollbacks (a namespace has at most 1048576); forget snapshots first")]
    TooManySnapshots,
    /// What should be a backup is none.
    #[error("{name}: is not a backup of KAML")]
    NotABackup {
        /// Its file, or what the caller calls the stream.
        name: String,
    },
    /// A backup that is not as it was written.
    #[error("{name}: the backup is damaged before byte {offset}: {why}; use another copy of it, or another backup")]
    BackupDamaged {
        /// Its file, or what the caller calls the stream.
        name: String,
        /// The damage is in the piece that ends here, or begins here.
        offset: u64,
        /// What is wrong.
        why: String,
    },
    /// A backup that ends early: it was interrupted, or cut short later.
    #[error("{name}: ends after {bytes} bytes, before its end mark; it was interrupted or cut short: take it again")]
    BackupIncomplete {
        /// Its file, or what the caller calls the stream.
        name: String,
        /// Bytes that exist.
        bytes: u64,
    },
    /// The changes after a position are not on the device any more: later ones have overwritten them, a large value of theirs was replaced and
    /// collected, or a failure of the machine has lost the commits before the position.
    #[error(
        "the changes after this position are gone: a device keeps as many as its commit ring has bytes; read all records again and continue from the present position, as `kaml follow` does by itself"
    )]
    FellBehind,
    /// A position of another device, or none at all.
    #[error("{why}")]
    BadPosition {
        /// What is wrong, and what to do.
        why: String,
    },
    /// A backup that does not belong where it is used.
    #[error("{name}: {why}")]
    WrongBase {
        /// Its file, or what the caller calls the stream.
        name: String,
        /// Why not, and what to do.
        why: String,
    },
    /// A namespace was deleted while it was being backed up, so the backup was given up.
    #[error("namespace {namespace:?} was deleted while it was being backed up; take the backup again")]
    DeletedDuringBackup {
        /// Its name.
        namespace: String,
    },
    /// Another host takes a backup of a served device, which has one at a time.
    #[error("another backup of the device is in progress over the network; take this one when that one has ended")]
    BackupInProgress,
    /// A device to which a restore has begun and not ended.
    #[error("{}: a restore to it did not end, so it is not whole; restore to it again with --force", .path.display())]
    RestoreUnfinished {
        /// The device.
        path: PathBuf,
    },
    /// A device that cannot take what a backup has.
    #[error(
        "the backup has {live_bytes} bytes of live records; the device takes {capacity_bytes}; restore to a larger one (--capacity)"
    )]
    TargetTooSmall {
        /// Bytes that were live on the device that was backed up, in whole chunks.
        live_bytes: u64,
        /// Bytes that may be live on the new one.
        capacity_bytes: u64,
    },
    /// No space for new data. Deletes are still accepted, and free space.
    #[error(
        "the device is full: {live_bytes} of {capacity_bytes} bytes are live; delete records first, or merge namespaces that keep \
         versions (their deletes free nothing before a merge)"
    )]
    Full {
        /// Bytes of live records, in whole chunks.
        live_bytes: u64,
        /// Bytes that may be live.
        capacity_bytes: u64,
    },
    /// Snapshots take as much of the device as they may. Puts, deletes and merges continue.
    #[error(
        "namespace {namespace}: the device's snapshots take {bytes} of at most {max} bytes; forget snapshots first, or merge without \
         keeping them"
    )]
    SnapshotsFull {
        /// The namespace whose snapshot is refused.
        namespace: NamespaceId,
        /// What all snapshots would take with this one.
        bytes: u64,
        /// What they may take.
        max: u64,
    },
    /// The file system that the device is on is full. The device continues when it has space again.
    #[error("no space left below the device ({what}); free space in its file system")]
    NoSpace {
        /// The operation.
        what: String,
    },
    /// The device cannot become as small as requested, because of what is in it.
    #[error(
        "the device holds too much to become that small: records of {excess_bytes} bytes must be deleted first; {capacity_bytes} bytes \
         of records would fit"
    )]
    TooFullToShrink {
        /// Bytes of live records, in whole chunks, that are too many.
        excess_bytes: u64,
        /// Bytes that may be live at the requested size.
        capacity_bytes: u64,
    },
    /// The device cannot have the size that was requested. Its size does not change, and it can be used.
    #[error("the size cannot be changed: {why}")]
    NotResized {
        /// What is in the way, with its numbers.
        why: String,
    },
    /// A record whose bytes do not match their checksums. It is never served.
    #[error("namespace {namespace}: key {key}: record at {at} is damaged ({what})")]
    Corrupt {
        /// The namespace.
        namespace: NamespaceId,
        /// The key.
        key: KeyBuf,
        /// Where the record is.
        at: String,
        /// What does not match.
        what: &'static str,
    },
    /// A page or a value of a versioned namespace whose bytes are not what was written. It is never served.
    #[error("{place}: {what}")]
    VersionsDamaged {
        /// The namespace and the place, as far as they are known.
        place: String,
        /// What does not match.
        what: String,
    },
    /// The stored index of a namespace cannot be read.
    #[error("namespace {namespace} (`{name}`): its index cannot be loaded: {what}")]
    IndexDamaged {
        /// The namespace.
        namespace: NamespaceId,
        /// Its name.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// Metadata of the device cannot be read. [`crate::Device::salvage`] reads what is whole.
    #[error("metadata is damaged: {0}")]
    MetadataDamaged(String),
    /// Neither root of the device is whole. [`crate::Device::salvage`] reads what remains if the copy at the device's end is whole.
    #[error("both root slots are damaged: slot 0: {slot_0}; slot 1: {slot_1}")]
    RootsDamaged {
        /// What is wrong with the first one.
        slot_0: String,
        /// What is wrong with the second one.
        slot_1: String,
    },
    /// The newest root may be the one that cannot be read, so Puts may be missing without it. [`crate::Device::salvage`] reads what is
    /// whole.
    #[error(
        "root slot {slot} cannot be read: {why}; the root's mirror does not show whether the newest root was in it"
    )]
    RootUnreadable {
        /// The slot.
        slot: u8,
        /// What the medium reports.
        why: String,
    },
    /// Sizes that no device can have.
    #[error("{0}")]
    BadCreateOptions(String),
    /// The requested capacity leaves no room for records next to the commit ring and the blocks that the firmware needs.
    #[error(
        "{capacity_bytes} bytes leave no room for records; a device with these options takes at least {smallest_bytes} bytes (or choose \
         smaller blocks, a smaller ring or fewer dies)"
    )]
    NoRoom {
        /// The requested capacity.
        capacity_bytes: u64,
        /// The least capacity that the same options work with, to a MiB.
        smallest_bytes: u64,
    },
    /// The block device is smaller than the requested capacity.
    #[error("{path}: {capacity_bytes} bytes requested, the device has {actual_bytes}")]
    DeviceTooSmall {
        /// The block device.
        path: PathBuf,
        /// The requested capacity.
        capacity_bytes: u64,
        /// Bytes of the block device.
        actual_bytes: u64,
    },
    /// The path has contents already, and [`crate::CreateOptions::force`] is not set.
    #[error("{path}: contains {found}; creating a device would destroy it (--force, or `force`, overwrites it)")]
    NotEmpty {
        /// The file or block device.
        path: PathBuf,
        /// What it contains, and where.
        found: String,
    },
    /// Neither a regular file nor a block device.
    #[error("{path}: neither a regular file nor a block device")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Another handle, of this process or another one, has the device open. The same call succeeds when that is closed.
    #[error("{path}: in use by {}", holder_of(.holder))]
    InUse {
        /// The file or block device.
        path: PathBuf,
        /// The process that has it open, where the system shows which one that is.
        holder: Option<Holder>,
    },
    /// No KAML device was ever created at this path.
    #[error("{path}: {why}")]
    NotADevice {
        /// The file or block device.
        path: PathBuf,
        /// How this shows.
        why: String,
    },
    /// A later version of this software wrote the device.
    #[error("{what} {found} is newer than {supported}, the newest that this software knows; use a newer version of it")]
    NewerVersion {
        /// What has the version.
        what: String,
        /// The version.
        found: u32,
        /// The newest that this software reads.
        supported: u32,
    },
    /// The description of the device is damaged, or its file was cut short.
    #[error("{path}: {why}")]
    DeviceDamaged {
        /// The file or block device.
        path: PathBuf,
        /// What is damaged, and how this shows.
        why: String,
        /// [`crate::Device::salvage`] can read what remains.
        is_salvageable: bool,
    },
    /// A durable write failed earlier: the device accepts no changes until it is opened again.
    #[error("the device stopped accepting writes: {0}")]
    Stopped(String),
    /// The device is open for reading only.
    #[error("the device is open for reading only")]
    ReadOnly,
    /// The last handle of the device was closed.
    #[error("the device was closed")]
    Closed,
    /// [`crate::Device::close`] needs the last handle.
    #[error("the device cannot be closed: {0} other handles are in use")]
    HandlesInUse(usize),
    /// A [`Store`](crate::store::Store) is open over the device and alone changes records, because its cache would not know of
    /// changes by others.
    #[error(
        "a store is open over this device: change records through it (Store::put, Store::delete, Store::begin, Store::delete_namespace), or close it first"
    )]
    StoreIsOpen,
    /// The caller cancelled the command ([`crate::AsyncQueue::cancel_trims`]). A part of it may have been executed.
    #[error("the command was cancelled")]
    Cancelled,
    /// A remote device cannot be reached, or returned what a local one does not.
    #[error("{0}")]
    Remote(String),
    /// The system failed to read. The same read may succeed later.
    #[error("{what}: read failed: {error}")]
    ReadFailed {
        /// The address.
        what: String,
        /// What the system reported.
        error: String,
    },
    /// The system failed to write, or the medium is gone.
    #[error("{0}")]
    Failed(String),
    /// The system refused a file operation.
    #[error("{path}: {what}: {source}")]
    Io {
        /// The file or block device.
        path: PathBuf,
        /// The operation.
        what: &'static str,
        /// What the system reported.
        source: Arc<io::Error>,
    },
    /// The system refused the memory of an index. What is stored is whole.
    #[error("{0}")]
    NoMemory(String),
    /// The system refused a thread.
    #[error("a thread cannot be started: {0}")]
    Thread(#[source] Arc<io::Error>),
    /// A bug of KAML. Please report it with this message.
    #[error("a bug in KAML, please report it: {0}")]
    Internal(String),
    /// The transaction waited for others that waited for it. It is aborted; run it again.
    #[error("namespace {namespace}: key {key}: deadlock; the transaction was aborted and can be run again")]
    Deadlock {
        /// The namespace.
        namespace: NamespaceId,
        /// The key whose lock it waited for.
        key: KeyBuf,
    },
    /// A lock was not granted in time. The transaction is aborted; run it again.
    #[error("namespace {namespace}: key {key}: no lock within {waited_ms} ms; the transaction was aborted")]
    LockTimeout {
        /// The namespace.
        namespace: NamespaceId,
        /// The key whose lock it waited for.
        key: KeyBuf,
        /// The bound of the wait.
        waited_ms: u64,
    },
    /// The transaction read what another one had released early, and that did not become durable. It is aborted; run it again.
    #[error("what was read never became durable; the transaction was aborted and can be run again")]
    DependencyLost,
    /// With delayed durability: the newest commits, which had returned or which others had seen, could not be made durable and are
    /// undone. Commits and flushes are refused with this error until [`Store::acknowledge_lost`](crate::store::Store::acknowledge_lost).
    #[error("{commits} commits that were not durable yet are lost: {why}")]
    CommitsLost {
        /// How many.
        commits: u64,
        /// Why the device did not take them.
        why: Arc<Error>,
    },
    /// The state of the transaction does not allow the call.
    #[error(transparent)]
    IllegalMove(#[from] IllegalMove),
    /// As many transactions are open as the store was opened for.
    #[error("{max} transactions are open already, which is what the store was opened for")]
    TooManyTransactions {
        /// How many.
        max: u32,
    },
    /// A cache too small to work.
    #[error("a cache of {bytes} bytes; the smallest is {min} bytes")]
    CacheTooSmall {
        /// The requested size.
        bytes: u64,
        /// The smallest size that works.
        min: u64,
    },
    /// Options that no store can have.
    #[error("{0}")]
    BadStoreOptions(&'static str),
}
