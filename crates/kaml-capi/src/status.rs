//! Status codes: what every call returns.
//!
//! Lives here:       the codes, their strings, and which error of the library is which code.
//! Lives elsewhere:  messages with names and numbers (`failure`).

use kaml::{Error, ErrorClass};
use std::ffi::{CStr, c_char, c_int};

/// What every call returns. Numbers keep their meaning in later versions; later versions may add some.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kaml_status {
    /// It worked.
    KAML_OK = 0,

    /// No record has that key.
    KAML_NOT_FOUND = 1,
    /// A record has that key already.
    KAML_EXISTS = 2,
    /// The record has another value than the expected one, or does not exist.
    KAML_VALUE_DIFFERS = 3,

    /// The transaction waited for others that waited for it. It was aborted; run it again.
    KAML_DEADLOCK = 10,
    /// A lock was not granted in time. The transaction was aborted; run it again.
    KAML_LOCK_TIMEOUT = 11,
    /// What the transaction read did not become durable. It was aborted; run it again.
    KAML_DEPENDENCY_LOST = 12,
    /// With a durability delay: commits that had returned could not be stored and are undone. Nothing is committed before
    /// `kaml_store_acknowledge_lost`.
    KAML_COMMITS_LOST = 13,

    /// A null or misaligned pointer, an option or a length that makes no sense.
    KAML_BAD_ARGUMENT = 20,
    /// Not a handle, one of another kind, or one that was closed or freed.
    KAML_BAD_HANDLE = 21,
    /// The state of the transaction does not allow the call.
    KAML_BAD_STATE = 22,
    /// In use: a handle by another thread, a device by a store, a store by transactions.
    KAML_IN_USE = 23,
    /// The namespace does not take keys of this length.
    KAML_BAD_KEY = 24,
    /// A value above the limit of the device.
    KAML_VALUE_TOO_LARGE = 25,
    /// More than one Put takes.
    KAML_BATCH_TOO_LARGE = 26,
    /// The value is longer than the buffer; its length was returned.
    KAML_BUFFER_TOO_SMALL = 27,
    /// No namespace has that name or id.
    KAML_UNKNOWN_NAMESPACE = 28,
    /// A namespace has that name already.
    KAML_NAMESPACE_EXISTS = 29,
    /// A name that a namespace cannot have.
    KAML_BAD_NAME = 30,
    /// Too many namespaces, transactions or handles.
    KAML_TOO_MANY = 31,
    /// A cache too small to work.
    KAML_CACHE_TOO_SMALL = 32,
    /// The system refused memory or a thread.
    KAML_NO_RESOURCES = 33,
    /// No snapshot has that number, or the key has fewer versions.
    KAML_NO_VERSION = 34,
    /// A callback of the caller requested the end.
    KAML_CANCELLED = 35,
    /// A snapshot, or an iterator, has expired: what it keeps of overwritten records was in the way. Open another one.
    KAML_SNAPSHOT_TOO_OLD = 36,

    /// The device is full; delete something first.
    KAML_FULL = 40,
    /// The file system below the device is full.
    KAML_NO_SPACE = 41,
    /// The device is open for reading only.
    KAML_READ_ONLY = 42,
    /// A write failed earlier: nothing is accepted until the device is opened again.
    KAML_STOPPED = 44,
    /// Stored bytes do not match their checksum.
    KAML_CORRUPT = 45,
    /// The system failed to read or write.
    KAML_IO = 46,

    /// There is no KAML device.
    KAML_NOT_A_DEVICE = 50,
    /// Created by a later version of this software.
    KAML_NEWER_VERSION = 51,
    /// Open in another process, or twice in this one.
    KAML_LOCKED = 52,
    /// Something exists already, and `force` was not set.
    KAML_NOT_EMPTY = 53,
    /// The file, or the directory for a new file, does not exist.
    KAML_NO_FILE = 54,
    /// The system does not allow this user to read, write or create the file.
    KAML_NO_PERMISSION = 55,

    /// An error in this library; please report it with its message.
    KAML_INTERNAL = 99,
}

use kaml_status::*;

impl kaml_status {
    /// All of them.
    pub(crate) const ALL: [kaml_status; 38] = [
        KAML_OK,
        KAML_NOT_FOUND,
        KAML_EXISTS,
        KAML_VALUE_DIFFERS,
        KAML_DEADLOCK,
        KAML_LOCK_TIMEOUT,
        KAML_DEPENDENCY_LOST,
        KAML_COMMITS_LOST,
        KAML_BAD_ARGUMENT,
        KAML_BAD_HANDLE,
        KAML_BAD_STATE,
        KAML_IN_USE,
        KAML_BAD_KEY,
        KAML_VALUE_TOO_LARGE,
        KAML_BATCH_TOO_LARGE,
        KAML_BUFFER_TOO_SMALL,
        KAML_UNKNOWN_NAMESPACE,
        KAML_NAMESPACE_EXISTS,
        KAML_BAD_NAME,
        KAML_TOO_MANY,
        KAML_CACHE_TOO_SMALL,
        KAML_NO_RESOURCES,
        KAML_NO_VERSION,
        KAML_CANCELLED,
        KAML_SNAPSHOT_TOO_OLD,
        KAML_FULL,
        KAML_NO_SPACE,
        KAML_READ_ONLY,
        KAML_STOPPED,
        KAML_CORRUPT,
        KAML_IO,
        KAML_NOT_A_DEVICE,
        KAML_NEWER_VERSION,
        KAML_LOCKED,
        KAML_NOT_EMPTY,
        KAML_NO_FILE,
        KAML_NO_PERMISSION,
        KAML_INTERNAL,
    ];

    /// A sentence without names and numbers.
    pub(crate) fn text(self) -> &'static CStr {
        match self {
            KAML_OK => c"no error",
            KAML_NOT_FOUND => c"no record has that key",
            KAML_EXISTS => c"a record has that key already",
            KAML_VALUE_DIFFERS => c"the record has another value than the expected one",
            KAML_DEADLOCK => c"deadlock; the transaction was aborted and can be run again",
            KAML_LOCK_TIMEOUT => c"a lock was not given in time; the transaction was aborted and can be run again",
            KAML_DEPENDENCY_LOST => {
                c"what was read never became durable; the transaction was aborted and can be run again"
            }
            KAML_COMMITS_LOST => c"commits that were not durable yet are lost",
            KAML_BAD_ARGUMENT => c"an argument makes no sense",
            KAML_BAD_HANDLE => c"the handle is not open, or of another kind",
            KAML_BAD_STATE => c"the state of the transaction does not allow this call",
            KAML_IN_USE => c"it is in use",
            KAML_BAD_KEY => c"a key of a length that the namespace does not take",
            KAML_VALUE_TOO_LARGE => c"the value is larger than the device takes",
            KAML_BATCH_TOO_LARGE => c"the batch is larger than one Put takes",
            KAML_BUFFER_TOO_SMALL => c"the value is longer than the buffer",
            KAML_UNKNOWN_NAMESPACE => c"the namespace does not exist",
            KAML_NAMESPACE_EXISTS => c"a namespace has that name already",
            KAML_BAD_NAME => c"a namespace cannot have that name",
            KAML_TOO_MANY => c"too many namespaces, transactions or handles",
            KAML_CACHE_TOO_SMALL => c"the cache is too small to work",
            KAML_NO_RESOURCES => c"the system refused memory or a thread",
            KAML_NO_VERSION => c"no snapshot has that number, or the key has fewer versions",
            KAML_CANCELLED => c"a callback requested the end",
            KAML_SNAPSHOT_TOO_OLD => c"the snapshot or iterator has expired; open another one",
            KAML_FULL => c"the device is full; delete something first",
            KAML_NO_SPACE => c"the file system below the device is full",
            KAML_READ_ONLY => c"the device is open for reading only",
            KAML_STOPPED => c"a write failed earlier; the device accepts nothing until it is opened again",
            KAML_CORRUPT => c"stored bytes do not match their checksum",
            KAML_IO => c"the system failed to read or write",
            KAML_NOT_A_DEVICE => c"not a KAML device",
            KAML_NEWER_VERSION => c"made by a later version of this software",
            KAML_LOCKED => c"open in another process, or twice in this one",
            KAML_NOT_EMPTY => c"something exists already",
            KAML_NO_FILE => c"no such file or directory",
            KAML_NO_PERMISSION => c"permission denied",
            KAML_INTERNAL => c"a mistake in libkaml; please report it",
        }
    }

    fn from_number(number: c_int) -> Option<kaml_status> {
        Self::ALL.into_iter().find(|status| *status as c_int == number)
    }
}

/// What a status means, in general: a string that is never freed. `kaml_last_error` states what happened.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_strerror(status: c_int) -> *const c_char {
    kaml_status::from_number(status).map_or(c"unknown status", kaml_status::text).as_ptr()
}

/// Whether a transaction that ended with this status can succeed if it runs again from its beginning.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_is_retryable(status: c_int) -> bool {
    match kaml_status::from_number(status) {
        Some(KAML_DEADLOCK | KAML_LOCK_TIMEOUT | KAML_DEPENDENCY_LOST) => true,
        Some(_) | None => false,
    }
}

impl From<&Error> for kaml_status {
    fn from(error: &Error) -> kaml_status {
        use ErrorClass as E;
        if let Error::ValueDiffers { .. } = error {
            return KAML_VALUE_DIFFERS;
        }
        match error.class() {
            E::UnknownNamespace => KAML_UNKNOWN_NAMESPACE,
            E::NamespaceExists => KAML_NAMESPACE_EXISTS,
            E::BadName => KAML_BAD_NAME,
            E::BadLogs | E::BadOptions | E::WrongKind | E::KeepsVersions | E::KeepsNoVersions => KAML_BAD_ARGUMENT,
            E::EmptyBatch | E::OutOfRange | E::PartialBlock => KAML_BAD_ARGUMENT,
            E::BadCreateOptions | E::Unsuitable | E::BadStoreOptions => KAML_BAD_ARGUMENT,
            E::TooManyNamespaces | E::TooManySnapshots | E::SnapshotsFull | E::TooManyTransactions => KAML_TOO_MANY,
            E::NoSnapshot | E::TooFarBack => KAML_NO_VERSION,
            E::SnapshotTooOld | E::FellBehind => KAML_SNAPSHOT_TOO_OLD,
            E::Exists => KAML_EXISTS,
            E::NotFound => KAML_NOT_FOUND,
            E::BadKey => KAML_BAD_KEY,
            E::ValueTooLarge => KAML_VALUE_TOO_LARGE,
            E::BatchTooLarge => KAML_BATCH_TOO_LARGE,
            E::Full => KAML_FULL,
            E::NoSpace => KAML_NO_SPACE,
            E::Corrupt | E::MetadataCorrupt => KAML_CORRUPT,
            E::NewerVersion => KAML_NEWER_VERSION,
            E::NotEmpty => KAML_NOT_EMPTY,
            E::InUse => KAML_LOCKED,
            E::NotADevice => KAML_NOT_A_DEVICE,
            E::NoFile => KAML_NO_FILE,
            E::NoPermission => KAML_NO_PERMISSION,
            E::Io | E::Remote => KAML_IO,
            E::Stopped | E::Closed => KAML_STOPPED,
            E::ReadOnly => KAML_READ_ONLY,
            E::Busy => KAML_IN_USE,
            E::Cancelled => KAML_CANCELLED,
            E::NoResources => KAML_NO_RESOURCES,
            E::Internal => KAML_INTERNAL,
            E::Deadlock => KAML_DEADLOCK,
            E::LockTimeout => KAML_LOCK_TIMEOUT,
            E::DependencyLost => KAML_DEPENDENCY_LOST,
            E::CommitsLost => KAML_COMMITS_LOST,
            E::IllegalMove => KAML_BAD_STATE,
            E::CacheTooSmall => KAML_CACHE_TOO_SMALL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Goal:   every status is found by its number and has a sentence of its own; other numbers are returned too.
    /// Method: walk the list; `text` is an exhaustive match, so a status that is missing here has no test but a text.
    #[test]
    fn every_status_has_its_own_sentence() {
        let texts: BTreeSet<&CStr> = kaml_status::ALL.iter().map(|status| status.text()).collect();
        assert_eq!(texts.len(), kaml_status::ALL.len());
        for status in kaml_status::ALL {
            assert_eq!(kaml_status::from_number(status as c_int), Some(status));
        }
        for number in [-1, 4, 98, 100, c_int::MAX, c_int::MIN] {
            assert_eq!(kaml_status::from_number(number), None);
            assert!(!kaml_strerror(number).is_null() && !kaml_is_retryable(number));
        }
    }
}
