//! Changes to a running target.
//!
//! Lives here:       handing them to the event loop, applying them.
//! Lives elsewhere:  what hosts may do (`access`), when the event loop looks (`reactor`).

use super::access::Access;
use super::controller::Kind;
use super::core::Target;
use super::mailbox::Mailbox;
use super::options::BadName;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Changes a running target from any thread.
#[derive(Clone)]
pub struct Control {
    changes: Arc<Mailbox<Access>>,
}

impl Control {
    pub(super) fn new() -> std::io::Result<Control> {
        Ok(Control { changes: Arc::new(Mailbox::new()?) })
    }

    /// From now on these hosts may connect. Connected hosts that may not any more, or whose secret or TLS key is another one, are disconnected.
    ///
    /// # Errors
    /// [`BadName`] if a host is called by what is no qualified name; nothing changes then.
    pub fn set_access(&self, access: Access) -> Result<(), BadName> {
        match access.bad_name() {
            Some(name) => Err(BadName { name: name.clone() }),
            None => {
                self.changes.push([(0, access)]);
                Ok(())
            }
        }
    }

    /// The last change since, if there is any.
    pub(super) fn take(&self) -> Option<Access> {
        let mut changes = Vec::new();
        self.changes.take(&mut changes);
        changes.pop().map(|(_, access)| access)
    }

    /// What becomes readable when there are changes.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.changes.fd()
    }
}

impl Target {
    /// Changes which hosts may connect.
    pub(crate) fn set_access(&mut self, access: Access) {
        let before = std::mem::replace(&mut self.options.access, access);
        let now = &self.options.access;
        let secret = |access: &Access, host: &str| {
            access.hosts.get(host).map(|host| (host.secret.clone(), host.tls_key.clone())).unwrap_or_default()
        };
        let remains = |host: &str| now.admits(host) && secret(&before, host) == secret(now, host);
        let storage = self.controllers.values().filter(|controller| controller.kind == Kind::Storage);
        let lost: Vec<u16> =
            storage.filter(|controller| !remains(&controller.host.nqn)).map(|controller| controller.id).collect();
        for id in lost {
            let host = self.controllers.get(&id).map(|controller| controller.host.nqn.as_str());
            tracing::info!(
                ?host,
                controller = id,
                "disconnecting a host: it may not connect any more, or has another secret or TLS key"
            );
            self.end(id);
        }
        self.renew_authentication();
        let infos = self.engine.device().namespaces();
        self.hold_all(&infos);
        tracing::info!(hosts = self.options.access.hosts.len(), "the hosts that may connect have been changed");
    }
}
