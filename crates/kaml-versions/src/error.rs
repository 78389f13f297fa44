//! What the world may get wrong.

/// Why something was refused or could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes of a record are not what was written.
    #[error("damaged record: {0}")]
    DamagedRecord(&'static str),
    /// The bytes of a stored table are not what was written, or not of this namespace.
    #[error("damaged table: {0}")]
    DamagedTable(&'static str),
    /// No segment could ever hold it.
    #[error("a value of {bytes} bytes; a segment takes at most {max}")]
    ValueTooLarge {
        /// Its length.
        bytes: u64,
        /// The longest.
        max: u64,
    },
    /// No such snapshot: never taken, or forgotten.
    #[error("no snapshot {version}; the present user version is {present}")]
    NoSnapshot {
        /// The one requested.
        version: u32,
        /// The user version that puts belong to.
        present: u32,
    },
    /// More changes were to be undone than are known of the key.
    #[error("{count} changes to undo; the key has {available}")]
    TooFarBack {
        /// How many were to be undone.
        count: u32,
        /// How many versions of it are kept and seen.
        available: u32,
    },
    /// The namespace has as many snapshots as it may have, or their numbers or the ranges of their views have run out.
    #[error("too many snapshots or rollbacks (a namespace has at most 1048576); forget snapshots first")]
    TooManySnapshots,
    /// A namespace cannot be shaped like this.
    #[error("{what} is {value}, must be {must}")]
    BadParameter {
        /// Which number.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What is allowed.
        must: &'static str,
    },
}
