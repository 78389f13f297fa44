//! A value that the cache and its readers share.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A value, not copied: it stays as it is, whatever happens to its record.
#[derive(Clone, PartialEq, Eq)]
pub struct Value(pub(super) Arc<[u8]>);

impl Deref for Value {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}
