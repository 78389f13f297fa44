//! Raft logs and state machines of [openraft](https://docs.rs/openraft/0.9) on a KAML device.
//!
//! Lives here:       the log ([`LogStore`]), the state machine ([`StateMachine`]), its snapshots.
//! Lives elsewhere:  Raft (`openraft`), the device (`kaml`), what a command does ([`Application`]: the user).
//! Implements:       `RaftLogStorage` and `RaftStateMachine` of openraft 0.9.
//!
//! One device has the log and the state of a node. A group of log entries is one atomic, durable Put. So is a group of applied commands, with the
//! id of the last one: after a crash the state is that of some prefix of the log, and openraft applies the others.
//!
//! # Examples
//! A counter. `examples/three_nodes.rs` has a whole cluster.
//! ```
//! use kaml::{CreateOptions, Device};
//! use kaml_openraft::{Application, Changes, LogStore, StateMachine};
//!
//! openraft::declare_raft_types!(
//!     pub Config:
//!         D = u64,
//!         R = u64,
//!         SnapshotData = tokio::fs::File,
//! );
//!
//! struct Counter;
//!
//! impl Application<Config> for Counter {
//!     fn apply(&self, number: &u64, records: &mut Changes<'_>) -> Result<u64, kaml::Error> {
//!         let sum = records.get(b"sum")?.map_or(0, |sum| u64::from_le_bytes(sum.try_into().expect("8 bytes")));
//!         records.put(b"sum", &(sum + number).to_le_bytes());
//!         Ok(sum + number)
//!     }
//!
//!     fn nothing(&self) -> u64 {
//!         0
//!     }
//! }
//!
//! let dir = tempfile::tempdir().expect("a directory");
//! let device = Device::open_or_create(dir.path().join("node.kaml"), &CreateOptions::new(256 << 20))?;
//! let log = LogStore::<Config>::open(&device, "raft")?;
//! let state = StateMachine::<Config, _>::open(&device, "raft", dir.path(), Counter)?;
//! // openraft::Raft::new(node, config, network, log, state)
//! # drop((log, state));
//! # Ok::<(), kaml::Error>(())
//! ```

mod log;
mod snapshot;
mod state;

pub use log::LogStore;
pub use state::{Application, Changes, StateMachine};

use kaml::{Device, Error, KeyKind, Namespace, NamespaceOptions};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;

/// The least room for other records of a Put beside one that is as large as may be.
const BATCH_PARTS: u64 = 2;

/// Of a Put this many bytes of values are collected before it is written.
fn batch_bytes(device: &Device) -> usize {
    (device.info().batch_bytes_max / BATCH_PARTS) as usize
}

fn ordered(device: &Device, name: &str) -> Result<Namespace, Error> {
    device.ensure_namespace(name, &NamespaceOptions::records(KeyKind::Ordered))
}

fn encode<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    rmp_serde::to_vec_named(value).map_err(|error| io::Error::other(format!("a value that cannot be encoded: {error}")))
}

fn decode<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> io::Result<T> {
    rmp_serde::from_slice(bytes).map_err(|error| {
        let text = format!("{what} cannot be decoded: {error}; were the types of the application changed?");
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

/// Runs what waits for flash on a thread that may wait.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
