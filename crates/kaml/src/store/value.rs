//! A value that the cache and its readers share.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A value, not copied: it does not change, whatever happens to its record.
///
/// # Examples
/// ```
/// use kaml::store::{Store, StoreOptions};
/// use kaml::{CreateOptions, Device, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.create_namespace("users", &NamespaceOptions::default())?;
/// let store = Store::open(device, &StoreOptions::new(8 << 20))?;
/// store.put(users, 1u64, b"ada")?;
/// let value = store.get(users, 1u64)?.expect("it was put");
/// store.put(users, 1u64, b"grace")?;
/// assert_eq!(&value[..], b"ada"); // as it was read
/// # Ok::<(), kaml::Error>(())
/// ```
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
