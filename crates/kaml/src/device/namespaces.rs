//! Commands on namespaces as a whole.
//!
//! Lives here:       creating, finding, changing and deleting them; their indexes in memory.
//! Lives elsewhere:  handles of one namespace (`namespace`), what the firmware does (`kaml_device`).
//! Implements:       paper:KAML Table I.

use super::Device;
use crate::error::Error;
use crate::queue::finish_ring_writes;
use crate::{NamespaceChange, NamespaceId, NamespaceInfo, NamespaceOptions};
use kaml_device::{Core, StageError};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Device {
    /// Creates a namespace (paper:KAML CreateNamespace); durable when it returns. Nobody sees it before it is durable. If there is no
    /// space below, this returns an error, and the namespace appears when there is space again; the same holds of changing and deleting.
    ///
    /// # Errors
    /// - [`Error::NamespaceExists`], [`Error::BadName`], [`Error::UnknownLog`], [`Error::LogTwice`] for the name and the logs.
    /// - [`Error::BadBlockOptions`], [`Error::BadVersionOptions`], [`Error::TooManyNamespaces`] if there can be no such namespace.
    /// - [`Error::ReadOnly`], [`Error::Stopped`], [`Error::Closed`] if the device takes no changes; [`Error::NoSpace`] if its
    ///   file system is full.
    pub fn create_namespace(&self, name: &str, options: &NamespaceOptions) -> Result<NamespaceId, Error> {
        let mut core = self.shared().lock();
        match core.create_namespace(name, options) {
            Ok(id) => {
                let request = core.request_root(false);
                self.shared().wait_root(core, request)?;
                Ok(id)
            }
            Err(error) => Err(self.shared().refused_under(core, error)),
        }
    }

    /// The id of a namespace. One that is being created, renamed or deleted is found as it was until that is durable.
    ///
    /// # Errors
    /// [`Error::UnknownNamespaceName`] if there is none.
    pub fn namespace(&self, name: &str) -> Result<NamespaceId, Error> {
        Ok(self.shared().lock().namespace(name)?)
    }

    /// All namespaces in the order of their ids, as far as they are durable.
    pub fn namespaces(&self) -> Vec<NamespaceInfo> {
        self.shared().lock().namespaces()
    }

    /// Renames a namespace or maps it to other logs, while it is in use; durable when it returns.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`]; [`Error::NamespaceExists`], [`Error::BadName`], [`Error::UnknownLog`],
    ///   [`Error::LogTwice`] for what it is to be.
    /// - [`Error::StoreIsOpen`] if the time to live is changed while a store is open over the device.
    /// - [`Error::KeepsNoVersions`] if rules for merges are set where no versions are kept.
    /// - [`Error::ReadOnly`], [`Error::Stopped`], [`Error::Closed`] if the device takes no changes; [`Error::NoSpace`] if its
    ///   file system is full.
    pub fn set_namespace(&self, id: NamespaceId, change: &NamespaceChange) -> Result<(), Error> {
        let mut core = self.shared().lock();
        if change.default_ttl_ms.is_some() {
            self.shared().admit(self.by())?; // it knows which records it can cache
        }
        if let Err(error) = core.set_namespace(id, change) {
            return Err(self.shared().refused_under(core, error));
        }
        let request = core.request_root(false);
        self.shared().wait_root(core, request)
    }

    /// Deletes a namespace with everything in it (paper:KAML DeleteNamespace); durable when it returns. That its index cannot be
    /// read any more does not matter.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if it was deleted before; [`Error::StoreIsOpen`] if a store alone changes records.
    /// - [`Error::ReadOnly`], [`Error::Stopped`], [`Error::Closed`] if the device takes no changes; [`Error::NoSpace`] if its
    ///   file system is full.
    pub fn delete_namespace(&self, id: NamespaceId) -> Result<(), Error> {
        let (shared, lost) = (self.shared(), RefCell::new(BTreeSet::new()));
        let delete = |core: &mut Core| core.delete_namespace(id, &lost.borrow());
        let clear = |core, why| match why {
            StageError::NeedIndex(needed) => Ok(shared.load_index(core, needed).unwrap_or_else(|why| {
                tracing::warn!(namespace = needed, %why, deleting = id, "a namespace is deleted without this index");
                lost.borrow_mut().insert(needed);
                shared.lock()
            })),
            other => shared.clear(core, other),
        };
        let (core, deletion) = shared.visit_with(self.by(), delete, clear)?;
        drop(core);
        finish_ring_writes(self.shared());
        let counted = deletion.count(&self.shared().geometry); // others continue meanwhile
        let mut core = self.shared().lock();
        core.finish_deletion(counted);
        let request = core.request_root(false);
        self.shared().wait_root(core, request)
    }

    /// Takes the index of an idle namespace out of memory; it is loaded again when it is next used. False if it is in
    /// use just now.
    ///
    /// # Errors
    /// [`Error::UnknownNamespace`]; [`Error::ReadOnly`], [`Error::Stopped`], [`Error::Closed`] if the device takes no changes;
    /// [`Error::NoSpace`] if its file system is full.
    pub fn unload_namespace(&self, id: NamespaceId) -> Result<bool, Error> {
        for _ in 0..2 {
            let mut core = self.shared().lock();
            match core.unload_index(id) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => return Err(self.shared().refused_under(core, error)),
            }
            // Its snapshot is older than the index: take another one.
            let request = core.request_checkpoint();
            self.shared().wait_root(core, request)?;
        }
        let mut core = self.shared().lock();
        core.unload_index(id).map_err(|error| self.shared().refused_under(core, error))
    }

    /// Whether the index of a namespace is in memory. If not, the next command on it reads it first, which takes a quarter of a
    /// second for ten million keys, also in an event loop ([`Device::queue`]): a loop with other things to do lets another thread
    /// execute that command.
    ///
    /// # Errors
    /// [`Error::UnknownNamespace`] if there is no such namespace.
    pub fn is_namespace_loaded(&self, id: NamespaceId) -> Result<bool, Error> {
        self.shared().reader.is_loaded(id).map_err(|error| self.shared().refused(error))
    }

    /// After how long without use the index of a namespace leaves memory, to be loaded again when it is next used: between
    /// `idle` and twice that. 10 minutes by default; at least a millisecond.
    pub fn unload_idle_after(&self, idle: Duration) {
        let millis = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        self.shared().index_idle_ms.store(millis.max(1), Ordering::Relaxed);
        self.shared().wake_background();
    }
}
