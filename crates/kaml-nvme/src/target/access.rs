//! Which hosts may connect, and what they have to prove.
//!
//! Lives here:       hosts by their names, with their secrets and their rights.
//! Lives elsewhere:  the proof (`authentication`), what a right is needed for (`rights`), files with secrets (`kaml-cli`).
//! Implements:       docs/nvme.md "Who may connect".

use crate::auth::{Secret, Strength};
use crate::tls::TlsKey;
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
    /// What hosts may do that are not known, if they may connect; they prove nothing.
    pub others: Option<Rights>,
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
    /// With a key, the host can connect over TLS with this key only, and not in the clear.
    pub tls_key: Option<TlsKey>,
    /// What it may do.
    pub rights: Rights,
}

impl HostAccess {
    /// A host that has to authenticate itself, and the controller to it if there is a secret of the controller.
    pub fn authenticated(secret: Secret, controller_secret: Option<Secret>) -> HostAccess {
        HostAccess { secret: Some(secret), controller_secret, ..HostAccess::default() }
    }
}

/// What a host may do with a namespace. Each right includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Nothing: the namespace does not appear.
    None,
    /// Read.
    Read,
    /// Read, write, and reserve.
    #[default]
    Write,
    /// Also rename and delete it, attach it to controllers and change its attributes.
    Administer,
}

/// What a host may do with all namespaces. By default it may write to all, and create and delete none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// With namespaces of these names.
    pub namespaces: BTreeMap<String, Right>,
    /// With all others.
    pub others: Right,
    /// Whether it may create namespaces.
    pub creates: bool,
}

impl Rights {
    /// A host that may do everything.
    pub fn all() -> Rights {
        Rights { namespaces: BTreeMap::new(), others: Right::Administer, creates: true }
    }

    /// What it may do with a namespace.
    pub fn on(&self, namespace: &str) -> Right {
        self.namespaces.get(namespace).copied().unwrap_or(self.others)
    }

    /// Whether it may read all namespaces, whatever they are called.
    pub(super) fn reads_all(&self) -> bool {
        self.namespaces.values().chain([&self.others]).all(|right| *right >= Right::Read)
    }
}

impl Access {
    /// All hosts may connect, prove nothing, and write to all namespaces.
    pub fn open() -> Access {
        Access { others: Some(Rights::default()), ..Access::default() }
    }

    /// Hosts of these names may connect, and prove nothing.
    pub fn only<'a>(names: impl IntoIterator<Item = &'a str>) -> Access {
        let hosts = names.into_iter().map(|name| (name.to_owned(), HostAccess::default())).collect();
        Access { hosts, ..Access::default() }
    }

    /// The same hosts, which may do everything.
    #[must_use]
    pub fn with_all_rights(mut self) -> Access {
        self.hosts.values_mut().for_each(|host| host.rights = Rights::all());
        self.others = self.others.map(|_| Rights::all());
        self
    }

    /// Whether a host of this name may connect, if it proves what it has to.
    pub fn admits(&self, host: &str) -> bool {
        self.rights(host).is_some()
    }

    /// What a host of this name may do, if it may connect.
    pub fn rights(&self, host: &str) -> Option<&Rights> {
        self.hosts.get(host).map(|host| &host.rights).or(self.others.as_ref())
    }

    /// A name that is no qualified name.
    pub(super) fn bad_name(&self) -> Option<&String> {
        self.hosts.keys().find(|name| !is_nqn(name))
    }
}
