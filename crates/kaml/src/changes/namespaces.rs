//! What a reader of changes knows about namespaces.
//!
//! Lives here:       which changes of namespaces a reader has not seen.
//! Lives elsewhere:  the namespaces themselves (`kaml_device`).

use super::Change;
use crate::{NamespaceId, NamespaceInfo};
use std::collections::BTreeMap;

/// The namespaces that a reader of changes has been shown.
#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct KnownNamespaces {
    generation: Option<u64>,
    known: BTreeMap<NamespaceId, NamespaceInfo>,
}

impl KnownNamespaces {
    /// Whether namespaces may have changed since they were shown.
    pub fn is_older_than(&self, generation: u64) -> bool {
        self.generation != Some(generation)
    }

    /// What has changed now that the namespaces are these: deletions, then changes, then new ones.
    pub fn update(&mut self, generation: u64, now: &[NamespaceInfo]) -> Vec<Change> {
        let is_first = self.generation.replace(generation).is_none();
        let now: BTreeMap<NamespaceId, NamespaceInfo> = now.iter().map(|info| (info.id, info.clone())).collect();
        let gone = self.known.values().filter(|info| !now.contains_key(&info.id));
        let mut changes: Vec<Change> =
            gone.map(|info| Change::NamespaceDeleted { namespace: info.id, name: info.name.clone() }).collect();
        let (changed, new): (Vec<_>, Vec<_>) = now
            .values()
            .filter(|info| is_first || self.known.get(&info.id).is_none_or(|known| !is_same(known, info)))
            .partition(|info| self.known.contains_key(&info.id));
        changes.extend(changed.into_iter().chain(new).map(|info| Change::Namespace(info.clone())));
        self.known = now;
        changes
    }

    /// A namespace by its number.
    pub fn get(&self, namespace: NamespaceId) -> Option<&NamespaceInfo> {
        self.known.get(&namespace)
    }
}

/// Whether the names and the attributes are the same.
fn is_same(one: &NamespaceInfo, other: &NamespaceInfo) -> bool {
    let of = |info: &NamespaceInfo| (info.kind, info.default_ttl_ms);
    one.name == other.name && one.logs == other.logs && of(one) == of(other)
}
