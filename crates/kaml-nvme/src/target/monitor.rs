//! Which hosts are connected, for a monitor outside the event loop.
//!
//! Lives here:       the list that the event loop publishes twice a second.
//! Lives elsewhere:  controllers (`controller`), when it is published (`reactor`), showing it (`kaml-metrics`).

use super::controller::{Controller, Kind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A host that is connected to a target: one for each of its controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectedHost {
    /// Its qualified name.
    pub name: String,
    /// The number of its controller.
    pub controller: u16,
    /// Whether it only looks for subsystems.
    pub is_discovery: bool,
    /// Its address, unless the connection has just ended.
    pub peer: Option<SocketAddr>,
    /// Its I/O queues.
    pub queue_count: usize,
    /// Commands that it has sent.
    pub command_count: u64,
    /// How long it has been connected.
    pub connected: Duration,
}

/// Shows which hosts are connected to a target, from any thread. What it shows is at most half a second old.
#[derive(Clone, Default)]
pub struct Monitor {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    is_watched: AtomicBool,
    hosts: Mutex<Vec<ConnectedHost>>,
}

impl Monitor {
    /// From now on the list is kept up to date.
    pub(super) fn watch(&self) -> Monitor {
        self.shared.is_watched.store(true, Ordering::Release);
        self.clone()
    }

    /// The hosts that are connected, in the order of their controllers.
    pub fn hosts(&self) -> Vec<ConnectedHost> {
        self.list().clone()
    }

    fn list(&self) -> MutexGuard<'_, Vec<ConnectedHost>> {
        self.shared.hosts.lock().expect("no panics under this lock")
    }

    /// Replaces the list, if somebody watches it.
    pub(super) fn publish<'a>(
        &self,
        controllers: impl Iterator<Item = &'a Controller>,
        peer_of: impl Fn(u64) -> Option<SocketAddr>,
        now: Instant,
    ) {
        if !self.shared.is_watched.load(Ordering::Acquire) {
            return;
        }
        let hosts = controllers.map(|controller| ConnectedHost {
            name: controller.host.nqn.clone(),
            controller: controller.id,
            is_discovery: controller.kind == Kind::Discovery,
            peer: peer_of(controller.admin_link),
            queue_count: controller.io_links.len(),
            command_count: controller.command_count,
            connected: now.saturating_duration_since(controller.began),
        });
        let hosts = hosts.collect();
        *self.list() = hosts;
    }
}
