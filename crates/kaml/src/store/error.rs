//! What calls of a store are answered with when they cannot be carried out.

use super::xcb::IllegalMove;
use crate::{Error, Key, NamespaceId};
use std::sync::Arc;

/// Why a call of the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The device refused or failed a command. A transaction that this happened to in `commit` is aborted; one that it
    /// happened to in a read goes on.
    #[error(transparent)]
    Device(#[from] Error),
    /// The transaction waited for others that waited for it. It is aborted; run it again.
    #[error("namespace {namespace}: key {key}: deadlock; the transaction was aborted and can be run again")]
    Deadlock {
        /// The namespace.
        namespace: NamespaceId,
        /// Where the wait began.
        key: Key,
    },
    /// A lock was not given in time. The transaction is aborted; run it again.
    #[error("namespace {namespace}: key {key}: no lock within {waited_ms} ms; the transaction was aborted")]
    LockTimeout {
        /// The namespace.
        namespace: NamespaceId,
        /// Where the wait began.
        key: Key,
        /// The bound.
        waited_ms: u64,
    },
    /// What the transaction read was released early by another one, which then did not become durable.
    #[error("what was read never became durable; the transaction was aborted and can be run again")]
    DependencyLost,
    /// With delayed durability, commits that had returned, or that others had seen, could not be made durable and are undone, the last
    /// ones that were made, all of them. Commits and flushes are refused so until [`Store::acknowledge_lost`](super::Store::acknowledge_lost).
    #[error("{commits} commits that were not durable yet are lost: {why}")]
    CommitsLost {
        /// How many.
        commits: u64,
        /// Why the device did not take them.
        why: Arc<Error>,
    },
    /// An update or delete of a key that is not there. The transaction goes on.
    #[error("namespace {namespace}: key {key} does not exist")]
    NotFound {
        /// The namespace.
        namespace: NamespaceId,
        /// The key.
        key: Key,
    },
    /// An insert of a key that is there. The transaction goes on.
    #[error("namespace {namespace}: key {key} exists already")]
    Exists {
        /// The namespace.
        namespace: NamespaceId,
        /// The key.
        key: Key,
    },
    /// A call that the state of the transaction does not allow.
    #[error(transparent)]
    IllegalMove(#[from] IllegalMove),
    /// All transaction control blocks are in use.
    #[error("{max} transactions are open already, which is what the store was opened for")]
    TooManyTransactions {
        /// How many there are.
        max: u32,
    },
    /// A cache too small to work at all.
    #[error("a cache of {bytes} bytes; the smallest is {min} bytes")]
    CacheTooSmall {
        /// What was asked for.
        bytes: u64,
        /// What is needed.
        min: u64,
    },
    /// An option that makes no sense.
    #[error("{0}")]
    BadOption(&'static str),
    /// The system refused a thread.
    #[error("a thread of the store cannot be started: {0}")]
    Thread(#[source] std::io::Error),
}

impl StoreError {
    /// Whether the same transaction, run again, may well succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            StoreError::Deadlock { .. } | StoreError::LockTimeout { .. } | StoreError::DependencyLost => true,
            StoreError::Device(_)
            | StoreError::CommitsLost { .. }
            | StoreError::NotFound { .. }
            | StoreError::Exists { .. }
            | StoreError::IllegalMove(_)
            | StoreError::TooManyTransactions { .. }
            | StoreError::CacheTooSmall { .. }
            | StoreError::BadOption(_)
            | StoreError::Thread(_) => false,
        }
    }
}

impl From<kaml_device::Error> for StoreError {
    fn from(error: kaml_device::Error) -> Self {
        StoreError::Device(error.into())
    }
}
