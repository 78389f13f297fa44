//! Where the index of a namespace of records is.
//!
//! Lives here:       the choice, and the kind of namespace that it makes.
//! Lives elsewhere:  indexes in memory (`kaml-index`, `kaml-ordered`), the one on flash (`kaml-versions`, `versioned`).
//! Implements:       docs/ARCHITECTURE.md "An index on flash".
//!
//! A namespace with its index on flash is a versioned one that keeps only the newest version of each key. What it puts over is dropped as
//! soon as half of its versions are old, not only when space runs low.

use crate::error::Error;
use crate::namespace::{NamespaceInfo, NamespaceKind, NamespaceOptions};
use crate::versioned::merge_policy::MergePolicy;
use crate::versioned::state::VersionOptions;

/// Where the index of a namespace of records is: what a key costs in memory, and a get in reads of flash.
///
/// # Examples
/// ```
/// use kaml_device::{IndexPlace, KeyKind, NamespaceOptions};
///
/// // More keys than memory has room for: about two bytes of memory for each.
/// let articles = NamespaceOptions::records(KeyKind::U64).with_index(IndexPlace::Flash);
/// # let _ = articles;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IndexPlace {
    /// Every key with its address in memory, 10 to 30 bytes for each. A get reads flash one time, a get of an absent key never.
    #[default]
    Memory,
    /// About two bytes of memory for each stored record, for up to twice as many records as there are keys. A get reads flash one time, a get of
    /// an absent key hardly ever. For keys of at most 16 bytes; without order, expiry, compression and counters.
    Flash,
}

impl NamespaceOptions {
    /// The same, with its index there.
    pub fn with_index(self, index: IndexPlace) -> NamespaceOptions {
        NamespaceOptions { index, ..self }
    }

    /// The same as options of the kind of namespace that this makes: [`NamespaceKind::Versions`] if its index is on flash.
    ///
    /// # Errors
    /// [`Error::BadVersionOptions`] if there can be no such namespace.
    pub fn resolved(&self) -> Result<NamespaceOptions, Error> {
        let bad = |why: &str| Err(Error::BadVersionOptions(why.to_owned()));
        let mut resolved = self.clone();
        if self.index == IndexPlace::Flash {
            resolved.kind = match self.kind {
                NamespaceKind::Records(keys) if keys.bytes_max() > kaml_index::Key::BYTES_MAX => {
                    return bad(
                        "an index on flash takes keys of at most 16 bytes, without order; choose u64 or bytes as its keys, or keep its index in memory",
                    );
                }
                NamespaceKind::Records(keys) => {
                    let merge_when_low = Some(MergePolicy::newest_only());
                    NamespaceKind::Versions(keys, VersionOptions { merge_when_low, ..VersionOptions::default() })
                }
                NamespaceKind::Versions(..) => {
                    return bad(
                        "the index of a versioned namespace is always on flash; leave out the place of the index",
                    );
                }
                NamespaceKind::Blocks(_) => {
                    return bad("an index on flash is for records; keep the index of logical blocks in memory");
                }
            };
            resolved.index = IndexPlace::Memory;
        }
        Ok(resolved)
    }
}

impl NamespaceInfo {
    /// Where its index is. [`IndexPlace::Flash`] only of a namespace that was created so, and not of one that keeps versions for their own sake.
    pub fn index_place(&self) -> IndexPlace {
        match self.merge_when_low() {
            Some(policy) if policy.newest_only => IndexPlace::Flash,
            Some(_) | None => IndexPlace::Memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::BlockOptions;
    use kaml_index::KeyKind;

    /// Goal:   an index on flash is refused where there can be none, and the error names what to choose instead.
    /// Method: each kind of keys, blocks, versions.
    #[test]
    fn kinds_with_an_index_on_flash() {
        let resolve = |options: NamespaceOptions| options.with_index(IndexPlace::Flash).resolved();
        for keys in [KeyKind::U64, KeyKind::Bytes] {
            let kind = resolve(NamespaceOptions::records(keys)).unwrap().kind;
            assert!(matches!(kind, NamespaceKind::Versions(of, versions)
                if of == keys && versions.merge_when_low == Some(MergePolicy::newest_only())));
        }
        let long = [KeyKind::Any, KeyKind::Ordered].map(NamespaceOptions::records);
        let others = [BlockOptions::new(4096, 10).into(), VersionOptions::default().into()];
        for options in long.into_iter().chain(others) {
            let error = resolve(options).unwrap_err().to_string();
            assert!(error.contains("choose") || error.contains("keep") || error.contains("leave out"), "{error}");
        }
        assert_eq!(NamespaceOptions::default().resolved(), Ok(NamespaceOptions::default()));
    }
}
