//! A namespace as it was, and results that come piece by piece.
//!
//! Lives here:       [`VersionView`], [`Pieces`].
//! Lives elsewhere:  reading (`reading`), the commands that make them (`versions`).

use crate::{Cursor, Device, Error, Key, ListPage, NamespaceId};
use kaml_versions::{Steps, View, exists, get_seen};

/// What a snapshot shows, or what was shown when the view was made, while writers continue.
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, VersionOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let pages = device.ensure_namespace("pages", &VersionOptions::default().into())?;
/// pages.put("home", b"draft")?;
/// let then = device.view(pages.id(), None)?;
/// pages.put("home", b"final")?;
/// assert_eq!(then.get(kaml::Key::new(b"home")?)?.as_deref(), Some(&b"draft"[..]));
/// # Ok::<(), kaml::Error>(())
/// ```
pub struct VersionView {
    pub(super) device: Device,
    pub(super) namespace: NamespaceId,
    pub(super) view: View,
}

impl VersionView {
    /// Reads a value as it was. Costs as [`Device::get_version`] of a snapshot does.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::KeepsNoVersions`] if it keeps no versions.
    /// - [`Error::BadKey`] if it takes no such key; [`Error::VersionsDamaged`], [`Error::ReadFailed`] if what is stored cannot
    ///   be read.
    pub fn get(&self, key: impl Into<Key>) -> Result<Option<Vec<u8>>, Error> {
        let key = key.into();
        let mut reading = self.device.shared().reading_key(self.namespace, &key)?;
        Ok(get_seen(&mut reading, &key, &self.view)?.map(|record| record.value))
    }

    /// Whether a key existed. Costs as [`VersionView::get`] does.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::KeepsNoVersions`] if it keeps no versions.
    /// - [`Error::BadKey`] if it takes no such key; [`Error::VersionsDamaged`], [`Error::ReadFailed`] if what is stored cannot
    ///   be read.
    pub fn exists(&self, key: impl Into<Key>) -> Result<bool, Error> {
        let key = key.into();
        exists(&mut self.device.shared().reading_key(self.namespace, &key)?, &key, &self.view)
    }

    /// Keys that existed, after a cursor.
    ///
    /// Costs one read of flash, of all pages with records, for each segment of each row that the page has keys of: a page that ends
    /// within a row costs as much as the whole row. Pages of many keys cost least.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::KeepsNoVersions`] if it keeps no versions.
    /// - [`Error::BadKey`] if it takes no such key; [`Error::VersionsDamaged`], [`Error::ReadFailed`] if what is stored cannot
    ///   be read.
    pub fn list(&self, after: Option<Cursor>, limit: usize) -> Result<ListPage, Error> {
        self.device.shared().list_versions(self.namespace, Some(&self.view), after, limit.max(1))
    }
}

/// Steps of a piece, at most, and bytes that it reads before it ends: some milliseconds on a disk.
const PIECE_STEPS: usize = 64;
const PIECE_BYTES: usize = 1 << 20;

/// What takes many reads, found piece by piece: each takes a bounded amount of work, and may find nothing. It ends after all that
/// there is, or with an error.
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, VersionOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let pages = device.ensure_namespace("pages", &VersionOptions::default().into())?;
/// for _ in 0..10 {
///     pages.put("home", b"again")?;
/// }
/// let mut count = 0;
/// for piece in device.history_pieces(pages.id(), kaml::Key::new(b"home")?, u64::MAX, 100)? {
///     count += piece?.len(); // other work can be done between pieces
/// }
/// assert_eq!(count, 10);
/// # Ok::<(), kaml::Error>(())
/// ```
pub struct Pieces<T> {
    pub(super) device: Device,
    pub(super) namespace: NamespaceId,
    /// Nothing after it has ended.
    pub(super) steps: Option<T>,
}

impl<T: Steps> Pieces<T> {
    /// All that is found.
    ///
    /// # Errors
    /// As [`Device::get_version`].
    pub fn all(self) -> Result<Vec<T::Found>, Error> {
        let mut all = Vec::new();
        for piece in self {
            all.append(&mut piece?);
        }
        Ok(all)
    }

    /// The next ones that are found: `count` or a few more, fewer only at the end. Nothing is read twice, whatever the counts.
    ///
    /// # Errors
    /// As [`Device::get_version`].
    pub fn next_found(&mut self, count: usize) -> Result<Vec<T::Found>, Error> {
        let mut found = Vec::new();
        while found.len() < count
            && let Some(mut steps) = self.steps.take()
        {
            let has_more = self.go_on(&mut steps, &mut found, count)?;
            self.steps = has_more.then_some(steps);
        }
        Ok(found)
    }

    /// Takes some steps, until this many are found; returns whether there are more.
    fn go_on(&self, steps: &mut T, found: &mut Vec<T::Found>, count: usize) -> Result<bool, Error> {
        let mut reading = self.device.shared().reading(self.namespace)?;
        for _ in 0..PIECE_STEPS {
            if !steps.step(&mut reading, found)? {
                return Ok(false);
            }
            if found.len() >= count || reading.read_bytes >= PIECE_BYTES {
                break;
            }
        }
        Ok(true)
    }
}

impl<T: Steps> Iterator for Pieces<T> {
    type Item = Result<Vec<T::Found>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut steps = self.steps.take()?;
        let mut found = Vec::new();
        Some(self.go_on(&mut steps, &mut found, usize::MAX).map(|has_more| {
            self.steps = has_more.then_some(steps);
            found
        }))
    }
}
