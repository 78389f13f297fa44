//! Reading hosts and configuration again while devices are served.
//!
//! Lives here:       what changes then, and what only counts from the next start on.
//! Lives elsewhere:  the signal (`signals`), the files (`config`, `hosts`).
//! May be called by: `serve`.

use super::config;
use super::service::Service;
use crate::failure::Failure;
use kaml_nvme::target::Control;
use std::path::PathBuf;

/// What a signal has read again: the hosts of each device.
pub struct Reload {
    pub config: Option<PathBuf>,
    pub memory: u64,
    pub served: Vec<(Service, Control)>,
}

impl Reload {
    /// Hosts that the files name now may connect from now on; if something is wrong with one, nothing changes.
    pub fn run(&self) {
        match self.read() {
            Ok(()) => tracing::info!("the hosts that may connect were read again"),
            Err(error) => tracing::error!(%error, "the hosts that may connect are those of before"),
        }
    }

    fn read(&self) -> Result<(), Failure> {
        let stated = self.config.as_ref().map(|file| config::read(file, self.memory)).transpose()?;
        let stated = stated.map(|config| config.services);
        let find = |service: &Service| match &stated {
            None => Some(service.clone()),
            Some(stated) => stated.iter().find(|other| other.source == service.source).cloned(),
        };
        let mut changes = Vec::new();
        for (service, control) in &self.served {
            let Some(new) = find(service) else {
                tracing::warn!(device = %service.name(), "is served until the next start, although the configuration has it no more");
                continue;
            };
            let (hosts, allow_management) = (new.hosts.clone(), new.allow_management);
            let before = Service { hosts, allow_management, ..service.clone() };
            if before != new {
                tracing::warn!(device = %service.name(), "more than its hosts has changed; that counts from the next start on");
            }
            before.check()?;
            changes.push((control, before.access()?));
        }
        if stated.as_ref().is_some_and(|stated| stated.len() > changes.len()) {
            tracing::warn!("the configuration has devices that are served from the next start on");
        }
        for (control, access) in changes {
            control.set_access(access).map_err(|bad| Failure::Usage(bad.to_string()))?;
        }
        Ok(())
    }
}
