//! A handle to one namespace, and the shortest ways to get one.
//!
//! Lives here:       [`Namespace`], opening what may have to be created first.
//! Lives elsewhere:  the commands themselves (`device`), ranges of keys (`range`).

use crate::device::Device;
use crate::error::Error;
use crate::{
    Condition, CreateOptions, Cursor, Expiry, KeyBuf, KeyRef, NamespaceId, NamespaceInfo, NamespaceOptions,
    OpenOptions, Operand, OrderedKeys,
};
use std::path::Path;

/// A namespace to work with. Clones are further handles to the same one, and handles of the device, too.
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.ensure_namespace("users", &NamespaceOptions::default())?;
/// users.put("ada", b"Ada Lovelace")?;
/// assert_eq!(users.get("ada")?.as_deref(), Some(&b"Ada Lovelace"[..]));
/// assert!(users.put_if("ada", b"another", kaml::Condition::IfAbsent).unwrap_err().is_conflict());
/// for key in users.keys() {
///     users.delete(&key?)?;
/// }
/// assert!(!users.exists("ada")?);
/// # Ok::<(), kaml::Error>(())
/// ```
#[derive(Clone)]
pub struct Namespace {
    device: Device,
    id: NamespaceId,
}

impl Namespace {
    /// Its number, which no other namespace of the device ever gets.
    pub fn id(&self) -> NamespaceId {
        self.id
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its name, kind and sizes.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it was deleted.
    pub fn info(&self) -> Result<NamespaceInfo, Error> {
        let found = self.device.namespaces().into_iter().find(|info| info.id == self.id);
        found.ok_or(Error::UnknownNamespace(self.id))
    }

    /// Reads a value; nothing if the key does not exist. Costs one read of flash at most.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if the namespace was deleted; [`Error::is_corrupt`] if the record is damaged.
    pub fn get<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<Option<Vec<u8>>, Error> {
        self.device.get(self.id, key)
    }

    /// Reads a value into a buffer, whose memory is used again. Returns false if the key does not exist.
    ///
    /// # Errors
    /// As [`Namespace::get`].
    pub fn get_into<'k>(&self, key: impl Into<KeyRef<'k>>, value: &mut Vec<u8>) -> Result<bool, Error> {
        self.device.get_into(self.id, key, value)
    }

    /// Whether a key exists. Reads no flash, unless the namespace is versioned.
    ///
    /// # Errors
    /// As [`Namespace::get`].
    pub fn exists<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<bool, Error> {
        self.device.exists(self.id, key)
    }

    /// Stores a value under a key, in place of any other. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::is_full`] if live data leave no room; deletes still succeed. [`Error::is_too_large`] if the value exceeds the limit
    /// of the device ([`crate::DeviceInfo::value_bytes_max`]).
    pub fn put<'k>(&self, key: impl Into<KeyRef<'k>>, value: &[u8]) -> Result<(), Error> {
        self.device.put(self.id, key, value)
    }

    /// Stores a value that expires. Durable when it returns.
    ///
    /// # Errors
    /// As [`Device::put_expiring`].
    pub fn put_expiring<'k>(&self, key: impl Into<KeyRef<'k>>, value: &[u8], expiry: Expiry) -> Result<(), Error> {
        self.device.put_expiring(self.id, key, value, expiry)
    }

    /// Changes a counter in one atomic step and returns it as it is afterwards.
    ///
    /// # Errors
    /// As [`Device::apply`].
    pub fn apply<'k>(&self, key: impl Into<KeyRef<'k>>, operand: Operand) -> Result<i64, Error> {
        self.device.apply(self.id, key, operand)
    }

    /// Adds a number to a counter and returns the sum.
    ///
    /// # Errors
    /// As [`Device::apply`].
    pub fn add<'k>(&self, key: impl Into<KeyRef<'k>>, number: i64) -> Result<i64, Error> {
        self.device.add(self.id, key, number)
    }

    /// Stores a value, or deletes the key, if it has the expected value.
    ///
    /// # Errors
    /// As [`Device::compare_and_set`].
    pub fn compare_and_set<'k>(
        &self,
        key: impl Into<KeyRef<'k>>,
        expected: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<(), Error> {
        self.device.compare_and_set(self.id, key, expected, value)
    }

    /// When the record of a key expires: [`Expiry::At`] or [`Expiry::Never`]. Nothing if the key does not exist. Reads no flash.
    ///
    /// # Errors
    /// As [`Device::expiry`].
    pub fn expiry<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<Option<Expiry>, Error> {
        self.device.expiry(self.id, key)
    }

    /// Stores a value under a condition. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::is_conflict`] if the condition does not hold, otherwise as [`Namespace::put`].
    pub fn put_if<'k>(&self, key: impl Into<KeyRef<'k>>, value: &[u8], condition: Condition) -> Result<(), Error> {
        self.device.put_if(self.id, key, value, condition)
    }

    /// Deletes a key, whether it exists or not. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if the namespace was deleted.
    pub fn delete<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<(), Error> {
        self.device.delete(self.id, key)
    }

    /// All keys, in the order of the index: that of the keys in an ordered namespace, and else none. A key that exists all the time is listed
    /// exactly once. In a namespace with [`KeyKind::Any`](crate::KeyKind::Any), the keys above 16 bytes are read from flash.
    pub fn keys(&self) -> Keys {
        Keys { namespace: self.clone(), page: Vec::new().into_iter(), next: Next::First }
    }
}

/// How many keys are taken from the index at a time.
const PAGE_KEYS: usize = 1024;

enum Next {
    First,
    After(Cursor),
    Ordered(OrderedKeys),
    End,
}

/// The keys of a namespace; see [`Namespace::keys`].
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.ensure_namespace("users", &NamespaceOptions::default())?;
/// users.put("ada", b"")?;
/// let keys = users.keys().collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(keys[0].as_bytes(), b"ada");
/// # Ok::<(), kaml::Error>(())
/// ```
pub struct Keys {
    namespace: Namespace,
    page: std::vec::IntoIter<KeyBuf>,
    next: Next,
}

impl Iterator for Keys {
    type Item = Result<KeyBuf, Error>;

    fn next(&mut self) -> Option<Result<KeyBuf, Error>> {
        loop {
            if let Some(key) = self.page.next() {
                return Some(Ok(key));
            }
            let after = match std::mem::replace(&mut self.next, Next::End) {
                Next::First => match self.namespace.device.is_ordered(self.namespace.id) {
                    Ok(true) => {
                        self.next = Next::Ordered(self.namespace.all_keys());
                        continue;
                    }
                    Ok(false) => None,
                    Err(error) => return Some(Err(error)),
                },
                Next::Ordered(mut keys) => {
                    let key = keys.next();
                    self.next = Next::Ordered(keys);
                    return key;
                }
                Next::After(cursor) => Some(cursor),
                Next::End => return None,
            };
            match self.namespace.device.list(self.namespace.id, after, PAGE_KEYS) {
                Ok(page) => {
                    self.page = page.keys.into_iter();
                    self.next = page.next.map_or(Next::End, Next::After);
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Device {
    /// Opens a device, or creates it first if its file does not exist or is empty.
    ///
    /// `options` are those of [`Device::create`]; a device that exists keeps its own.
    ///
    /// # Errors
    /// As [`Device::open`] and [`Device::create`]. A file that is not a KAML device is refused, and not changed.
    pub fn open_or_create(path: impl AsRef<Path>, options: &CreateOptions) -> Result<Device, Error> {
        let path = path.as_ref();
        let is_new = match std::fs::metadata(path) {
            Ok(found) => found.is_file() && found.len() == 0,
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        if !is_new {
            return Device::open(path, &OpenOptions::default());
        }
        match Device::create(path, &CreateOptions { force: false, ..options.clone() }) {
            // Another process was quicker: its device is as good.
            Err(Error::NotEmpty { .. } | Error::InUse { .. }) => Device::open(path, &OpenOptions::default()),
            created => created,
        }
    }

    /// The namespace of a name.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if there is none.
    pub fn open_namespace(&self, name: &str) -> Result<Namespace, Error> {
        let id = self.namespace(name)?;
        Ok(Namespace { device: self.clone(), id })
    }

    /// The namespace with a number. Nothing is looked up: if there is none, its calls return [`Error::UnknownNamespace`].
    ///
    /// # Examples
    /// ```
    /// use kaml::{CreateOptions, Device, NamespaceOptions};
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let id = device.create_namespace("users", &NamespaceOptions::default())?;
    /// device.namespace_with_id(id).put("ada", b"Ada Lovelace")?;
    /// assert!(device.namespace_with_id(id + 1).get("ada").unwrap_err().is_not_found());
    /// # Ok::<(), kaml::Error>(())
    /// ```
    pub fn namespace_with_id(&self, id: NamespaceId) -> Namespace {
        Namespace { device: self.clone(), id }
    }

    /// The namespace of a name, created first if there is none. One that exists keeps its options.
    ///
    /// # Errors
    /// As [`Device::create_namespace`].
    pub fn ensure_namespace(&self, name: &str, options: &NamespaceOptions) -> Result<Namespace, Error> {
        match self.open_namespace(name) {
            Err(error) if error.is_not_found() => {}
            found => return found,
        }
        match self.create_namespace(name, options) {
            Ok(id) => Ok(Namespace { device: self.clone(), id }),
            // Another thread was quicker.
            Err(Error::NamespaceExists(_)) => self.open_namespace(name),
            Err(error) => Err(error),
        }
    }
}
