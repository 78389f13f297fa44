//! The errors of commands that cannot be executed.

use crate::format::record::NAMESPACE_MAX;
use kaml_flash::{ChunkAddr, MediumError};
use kaml_index::{Key, KeyBuf, KeyError, NoAddressSpace};

/// Why a command was refused or failed. Data that was stored before is untouched in every case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No namespace of that id.
    #[error("namespace {0} does not exist")]
    UnknownNamespace(u32),
    /// No namespace of that name.
    #[error("namespace {0:?} does not exist")]
    UnknownNamespaceName(String),
    /// A namespace of that name exists.
    #[error("namespace {0:?} exists already")]
    NamespaceExists(String),
    /// A name that cannot be given.
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
    #[error("log {0} is named twice")]
    LogTwice(u32),
    /// Too many namespaces for a root, or too long names and lists of logs.
    #[error("no room for that in the root: all namespaces would take {bytes} of {max} bytes")]
    TooManyNamespaces {
        /// What the root would take.
        bytes: usize,
        /// What it may take.
        max: usize,
    },
    /// All numbers of namespaces were given: those of deleted ones are not given again.
    #[error("the device has given all its {NAMESPACE_MAX} namespace numbers; restore a backup of it into a new device")]
    NamespaceNumbersUsed,
    /// A key that no namespace, or not this one, takes.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// A value above the device's limit, or that of a namespace which takes less.
    #[error("a value of {bytes} bytes; {} takes at most {max}", whoever_takes(*.namespace))]
    ValueTooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        max: u64,
        /// The namespace, if it takes less than the device.
        namespace: Option<u32>,
    },
    /// The records of one Put do not fit one frame of the commit ring.
    #[error("a batch of {bytes} bytes; one Put takes at most {max} (values of {direct_bytes} bytes and more count 48)")]
    BatchTooLarge {
        /// Ring bytes of the batch.
        bytes: usize,
        /// The limit.
        max: usize,
        /// Values from this size on bypass the ring.
        direct_bytes: u64,
    },
    /// A command on records, of a namespace that holds logical blocks.
    #[error("namespace {0} holds blocks; records are put and got in others")]
    HoldsBlocks(u32),
    /// A command on logical blocks, of a namespace that holds records.
    #[error("namespace {0} holds records; blocks are read and written in others")]
    HoldsRecords(u32),
    /// A command on records that a versioned namespace has no answer for.
    #[error(transparent)]
    KeepsVersions(#[from] NotForVersions),
    /// A command on versions, of a namespace that does not keep them.
    #[error("namespace {0} does not keep versions; create one that does")]
    KeepsNoVersions(u32),
    /// An operand for a value that is no counter.
    #[error("namespace {namespace}: the value of key {key} has {bytes} bytes, and a counter 8")]
    NotACounter {
        /// The namespace.
        namespace: u32,
        /// The key.
        key: KeyBuf,
        /// Bytes of its value.
        bytes: u64,
    },
    /// A sum that a counter cannot have.
    #[error("namespace {namespace}: the counter of key {key} would exceed 64 bits")]
    CounterOverflow {
        /// The namespace.
        namespace: u32,
        /// The key.
        key: KeyBuf,
    },
    /// A value is not the one that a batch expects.
    #[error("namespace {namespace}: key {key} {}", if *.present { "has another value" } else { "does not exist" })]
    ValueDiffers {
        /// The namespace.
        namespace: u32,
        /// The key.
        key: KeyBuf,
        /// Whether a record has that key.
        present: bool,
    },
    /// A time to live of a namespace whose content cannot expire.
    #[error("a namespace of {0} takes no time to live")]
    BadTimeToLive(&'static str),
    /// Compression of a namespace whose content is stored as it is.
    #[error("a namespace of {0} cannot compress: create it without compression")]
    BadCompression(&'static str),
    /// A command on versions that cannot be executed.
    #[error(transparent)]
    Versions(#[from] kaml_versions::Error),
    /// Attributes that no versioned namespace can have on this device.
    #[error("invalid options of a namespace: {0}")]
    BadVersionOptions(String),
    /// Attributes that no block namespace can have.
    #[error("invalid options for a block namespace: {why}")]
    BadBlockOptions {
        /// What it would have to be.
        why: &'static str,
    },
    /// Logical blocks that a namespace does not have.
    #[error("namespace {namespace}: {count} blocks from {first_block} on; it has {block_count}")]
    BlocksOutOfRange {
        /// The namespace.
        namespace: u32,
        /// The first block requested.
        first_block: u64,
        /// How many.
        count: u64,
        /// How many there are.
        block_count: u64,
    },
    /// Bytes that are not whole logical blocks.
    #[error("namespace {namespace}: {bytes} bytes are not whole blocks of {block_bytes}")]
    PartialBlock {
        /// The namespace.
        namespace: u32,
        /// Bytes given.
        bytes: u64,
        /// Bytes of a block.
        block_bytes: u64,
    },
    /// A batch without records.
    #[error("an empty batch")]
    EmptyBatch,
    /// A conditional store whose condition does not hold; nothing of its batch was stored.
    #[error("namespace {namespace}: key {key} {}", if *.present { "exists already" } else { "does not exist" })]
    Conflict {
        /// The namespace.
        namespace: u32,
        /// The key.
        key: KeyBuf,
        /// Whether the key exists.
        present: bool,
    },
    /// A range of keys of a namespace whose keys have no order.
    #[error("namespace {0} is not ordered: create it with ordered keys to read ranges of it")]
    NotOrdered(u32),
    /// A listing after a cursor of a namespace whose keys have an order: it is listed by ranges of keys.
    #[error("namespace {0} is ordered: its keys are listed by ranges, not after a cursor")]
    ListedByRange(u32),
    /// No space for new data. Deletes are still accepted and release space.
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
    /// The device cannot become as small as requested: what is in it does not fit.
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
    /// Snapshots take as much of the device as they may. Puts, deletes, forgetting snapshots and merging continue.
    #[error(
        "namespace {namespace}: the device's snapshots take {bytes} of at most {max} bytes; forget snapshots first, or merge without \
         keeping them"
    )]
    SnapshotsFull {
        /// The namespace in which one more was to be taken.
        namespace: u32,
        /// What the snapshots of all namespaces take, and this one would.
        bytes: u64,
        /// What they may take.
        max: u64,
    },
    /// A read through a snapshot that has expired, because what it kept was in the way of Puts.
    #[error(
        "the snapshot is too old: it has expired, because the records that it kept were in the way of puts or exceeded the bound of \
         snapshots; open another one"
    )]
    SnapshotTooOld,
    /// A record whose bytes do not match their checksums; it is never served.
    #[error("namespace {namespace}: key {key}: record at {at} is damaged ({what})")]
    Corrupt {
        /// The namespace.
        namespace: u32,
        /// The key.
        key: KeyBuf,
        /// Where it lies.
        at: ChunkAddr,
        /// What does not match.
        what: &'static str,
    },
    /// A part of a segment whose bytes are not what was written: a page with versions, or the value of one. It is never served.
    #[error("namespace {namespace}: versions at {at}: {what}")]
    SegmentDamaged {
        /// The namespace.
        namespace: u32,
        /// Where the part lies.
        at: ChunkAddr,
        /// What does not match.
        what: kaml_versions::Error,
    },
    /// The stored index of a namespace cannot be read.
    #[error("namespace {namespace} (`{name}`): its index cannot be loaded: {what}")]
    IndexDamaged {
        /// The namespace.
        namespace: u32,
        /// Its name.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// The system refuses the memory of an index. What is stored is whole.
    #[error(transparent)]
    NoAddressSpace(#[from] NoAddressSpace),
    /// Metadata that the root points at cannot be read.
    #[error("metadata is damaged: {0}")]
    MetadataDamaged(String),
    /// No root can be read.
    #[error(transparent)]
    Root(#[from] RootError),
    /// Flash or the medium below it failed.
    #[error(transparent)]
    Medium(#[from] MediumError),
    /// A durable write failed earlier: nothing new is accepted until the device is opened again.
    #[error("the device stopped accepting writes: {0}")]
    Stopped(MediumError),
    /// Opened for reading only.
    #[error("the device is open for reading only")]
    ReadOnly,
    /// The last handle was closed: nothing is written after the last root.
    #[error("the device was closed")]
    Closed,
}

/// Something that a versioned namespace cannot be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotForVersions {
    /// A read that does not state which version.
    #[error(
        "namespace {0} keeps versions or has its index on flash; this command is for records with their index in memory"
    )]
    Command(u32),
    /// A condition where no version is read.
    #[error("namespace {namespace} keeps versions: whether key {key} is {} cannot be determined in a batch or a queue",
        if *.present { "there" } else { "absent" })]
    Condition {
        /// The namespace.
        namespace: u32,
        /// The key.
        key: Key,
        /// Whether it is to exist.
        present: bool,
    },
    /// A record with a time at which it expires.
    #[error(
        "namespace {0} keeps versions or has its index on flash, so its records do not expire one by one (merge it with a retention time, or use a namespace with its index in memory)"
    )]
    Expiry(u32),
}

fn whoever_takes(namespace: Option<u32>) -> String {
    namespace.map_or_else(|| "this device".to_owned(), |id| format!("namespace {id}"))
}

/// Why no root can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RootError {
    /// Neither slot holds a whole root.
    #[error("both root slots are damaged: slot 0: {0}; slot 1: {1}")]
    Damaged(String, String),
    /// One slot cannot be read, and no whole mirror shows whether the newest root was in it: Puts may be missing without it.
    #[error(
        "root slot {slot} cannot be read: {why}; the root's mirror does not show whether the newest root was in it"
    )]
    Unreadable {
        /// The slot.
        slot: u8,
        /// The error of the medium.
        why: String,
    },
    /// Written by a later version of this software.
    #[error("root format version {found}; this version reads up to {supported}")]
    NewerVersion {
        /// In the root.
        found: u32,
        /// Here.
        supported: u32,
    },
}
