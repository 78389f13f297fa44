//! What a Put is made of, and why one is not staged.
//!
//! Lives here:       operations, conditions, refusals.
//! Lives elsewhere:  staging (`staging`), what is wrong with a command (`error`).

use crate::error::Error;
use crate::format::record::suffix_bytes;
use kaml_index::FullKey;

/// When a record of a Put is to be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Condition {
    /// Always.
    #[default]
    Always,
    /// Only if the key does not exist (spec:NVMe-KV Store option).
    IfAbsent,
    /// Only if the key exists.
    IfPresent,
    /// Only if no version of the key was put after this sequence, for certain; versioned namespaces only. A caller that has looked
    /// at [`Core::newest_committed`](crate::Core::newest_committed) before reading a version knows by it that what was read is still the newest.
    UnchangedSince(u64),
}

/// When a record that is put expires: nobody sees it any more, and its room is released.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Expires {
    /// After the time to live of its namespace, if that has one.
    #[default]
    Default,
    /// Never.
    Never,
    /// At this time of the [device's clock](crate::DeviceClock), in milliseconds since 1970. A time that has passed: the record is never
    /// seen, and replaces what there was.
    At(u64),
}

/// What a record of a Put does.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// Stores a value.
    Value {
        /// Its bytes.
        value: &'a [u8],
        /// Their CRC32C, computed by the caller outside any lock.
        crc32c: u32,
    },
    /// Stores a value that is compressed ([`Reader::pack`](crate::Reader::pack)).
    Packed {
        /// Its bytes as they are stored.
        value: &'a [u8],
        /// Their CRC32C, computed by the caller outside any lock.
        crc32c: u32,
    },
    /// Stores a large value whose pages are programmed already.
    Placed {
        /// The answer to [`Core::place`](crate::Core::place), done.
        ticket: u64,
    },
    /// Deletes the key.
    Delete,
}

/// One record of a Put.
#[derive(Clone, Copy, Debug)]
pub struct Op<'a> {
    /// The namespace.
    pub namespace: u32,
    /// The key.
    pub key: FullKey<'a>,
    /// What happens to it.
    pub body: Body<'a>,
    /// On what condition.
    pub condition: Condition,
    /// When a record that is stored expires. That of a large value is in its image.
    pub expires: Expires,
}

impl Op<'_> {
    /// Bytes of the value that it stores, with what is stored after it; nothing if that is no value, or placed already.
    pub fn stored_bytes(&self) -> Option<usize> {
        match self.body {
            Body::Value { value, .. } | Body::Packed { value, .. } => Some(value.len() + suffix_bytes(&self.key)),
            Body::Placed { .. } | Body::Delete => None,
        }
    }
}

/// Why a Put was not staged.
#[derive(Debug, PartialEq, Eq)]
pub enum StageError {
    /// It never will be.
    Refused(Error),
    /// It never will be, because of records in this frame, which is not committed yet. A caller reports the error once
    /// [`Core::committed`](crate::Core::committed) is beyond the frame: until then nobody knows whether the reason will ever be true.
    RefusedAfter(u64, Error),
    /// The index of this namespace must be loaded first ([`Core::load_index`](crate::Core::load_index)).
    NeedIndex(u32),
    /// Not now: wait until the firmware has made progress, then try again.
    Busy,
}

impl From<Error> for StageError {
    fn from(error: Error) -> Self {
        StageError::Refused(error)
    }
}

/// A refusal that was decided by a record in this frame, or by committed records alone.
pub(crate) fn refused_by(frame: Option<u64>, error: Error) -> StageError {
    match frame {
        Some(frame) => StageError::RefusedAfter(frame, error),
        None => StageError::Refused(error),
    }
}
