//! Which hosts may connect, and what they have to prove.
//!
//! Lives here:       hosts by their names, with their secrets.
//! Lives elsewhere:  the proof (`authentication`), files with secrets (`kaml-cli`).
//! Implements:       docs/nvme.md "Who may connect".

use crate::auth::{Secret, Strength};
use crate::wire::text::is_nqn;
use std::collections::BTreeMap;

/// Which hosts may connect to a subsystem.
///
/// ```
/// use kaml_nvme::target::{Access, HostAccess};
///
/// let mut access = Access::only([]);
/// let secret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:".parse()?;
/// access.hosts.insert("nqn.2026-11.example:host".into(), HostAccess { secret: Some(secret), ..HostAccess::default() });
/// assert!(access.admits("nqn.2026-11.example:host") && !access.admits("nqn.2026-11.example:stranger"));
/// # Ok::<(), kaml_nvme::auth::BadSecret>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Hosts that are known, by their qualified names.
    pub hosts: BTreeMap<String, HostAccess>,
    /// Whether hosts that are not known may connect as well; they prove nothing.
    pub admits_others: bool,
    /// What authentication must use at least.
    pub strength: Strength,
}

/// What a host may do, and what it must prove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostAccess {
    /// With a secret, no queue of the host does anything before it was authenticated with it.
    pub secret: Option<Secret>,
    /// What the controller proves to a host that challenges it; a host that does is refused if there is none.
    pub controller_secret: Option<Secret>,
}

impl HostAccess {
    /// A host that has to authenticate itself, and the controller to it if there is a secret of the controller.
    pub fn authenticated(secret: Secret, controller_secret: Option<Secret>) -> HostAccess {
        HostAccess { secret: Some(secret), controller_secret }
    }
}

impl Access {
    /// All hosts may connect, and prove nothing.
    pub fn open() -> Access {
        Access { admits_others: true, ..Access::default() }
    }

    /// Hosts of these names may connect, and prove nothing.
    pub fn only<'a>(names: impl IntoIterator<Item = &'a str>) -> Access {
        let hosts = names.into_iter().map(|name| (name.to_owned(), HostAccess::default())).collect();
        Access { hosts, ..Access::default() }
    }

    /// Whether a host of this name may connect, if it proves what it has to.
    pub fn admits(&self, host: &str) -> bool {
        self.admits_others || self.hosts.contains_key(host)
    }

    /// A name that is no qualified name.
    pub(super) fn bad_name(&self) -> Option<&String> {
        self.hosts.keys().find(|name| !is_nqn(name))
    }
}
