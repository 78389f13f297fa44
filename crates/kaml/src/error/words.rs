//! Parts of what errors report.
//!
//! Lives here:       words that depend on what is known.
//! Lives elsewhere:  the errors (`error`).

use crate::{Holder, NamespaceId};

/// What takes no more.
pub(super) fn taker(namespace: Option<NamespaceId>) -> String {
    namespace.map_or_else(|| "this device".to_owned(), |id| format!("namespace {id}"))
}

/// Only namespaces that keep versions take less than the device.
pub(super) fn larger(namespace: Option<NamespaceId>) -> &'static str {
    namespace.map_or("", |_| ", because it keeps versions; put larger values into a namespace that does not")
}

/// What has the device open.
pub(super) fn holder_of(holder: &Option<Holder>) -> String {
    holder.as_ref().map_or("another process, or opened twice in this one".into(), Holder::to_string)
}
