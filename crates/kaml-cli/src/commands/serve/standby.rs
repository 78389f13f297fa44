//! A standby: waits until no other process has the devices open, and opens them then.
//!
//! Lives here:       how long it waits, what it reports meanwhile.
//! Lives elsewhere:  the lock, which the kernel releases when its holder has ended (`kaml_flash`, "lock"), listening (`service`), signals (`signals`).
//! May be called by: `serve`.

use super::service::{Obstacle, Service};
use super::signals::Signals;
use crate::failure::Failure;
use crate::output;
use kaml::{Device, Holder};
use sd_notify::{NotifyState, notify};
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// The kernel releases a killed process's device, sockets and names one after another. Whoever has the device tries for so long to get the others.
pub const TAKEOVER_PATIENCE: Duration = Duration::from_secs(10);

/// How a standby waits.
pub struct Standby<'a> {
    /// It gives up then.
    pub longest: Option<Duration>,
    pub json: bool,
    pub signals: &'a Signals,
}

/// What it prints while it waits.
#[derive(Serialize)]
struct Waiting<'a> {
    waiting_for: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<u32>,
}

impl Standby<'_> {
    /// Opens all devices when none of them is in use. While one is, none is held, so another process can have the others. After SIGHUP, what is to be
    /// served is `read_again`.
    pub fn open(
        &self,
        mut services: Vec<Service>,
        read_again: impl Fn() -> Result<Vec<Service>, Failure>,
    ) -> Result<Vec<(Service, Device)>, Failure> {
        let begun = Instant::now();
        let mut reported = None;
        loop {
            let (path, holder) = match self.attempt(&services) {
                Ok(devices) => {
                    if reported.is_some() {
                        tracing::info!(waited = ?begun.elapsed(), "no other process has the devices any more: taking over");
                    }
                    return Ok(services.into_iter().zip(devices).collect());
                }
                Err(Obstacle::InUse { path, holder }) => (path, holder),
                Err(Obstacle::Failed(failure)) => return Err(failure),
            };
            if self.longest.is_some_and(|longest| begun.elapsed() >= longest) {
                let waited = begun.elapsed().as_secs();
                return Err(Failure::Failed(format!("{}; waited for {waited} s", kaml::Error::InUse { path, holder })));
            }
            // The system shows less and less of a process that ends.
            let now = (path, holder.as_ref().map(|holder| holder.process));
            let asked_to_reload = self.signals.waiting();
            if reported.as_ref() != Some(&now) {
                self.report(&now.0, holder.as_ref())?;
                reported = Some(now);
            }
            if asked_to_reload {
                match read_again() {
                    Ok(new) => {
                        services = new;
                        tracing::info!("what is to be served was read again");
                    }
                    Err(error) => tracing::error!(%error, "what is to be served is that of before"),
                }
            }
        }
    }

    /// Each call takes a fraction of a second if a device is in use: opening tries as long as that.
    fn attempt(&self, services: &[Service]) -> Result<Vec<Device>, Obstacle> {
        services.iter().try_for_each(Service::probe)?;
        self.signals.opening();
        services.iter().map(Service::open).collect()
    }

    fn report(&self, path: &Path, holder: Option<&Holder>) -> Result<(), Failure> {
        let (device, process) = (path.display().to_string(), holder.map(|holder| holder.process));
        let by = holder.map_or("another process".into(), Holder::to_string);
        let status = format!("waiting for {device}, in use by {by}");
        // A standby is ready when it waits: units that are ordered after it need not wait for the end of another process.
        let _ = notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
        tracing::info!(device, process, "waiting for the end of the process that has the device");
        match self.json {
            true => output::json(&Waiting { waiting_for: &device, process }),
            false => output::line(status),
        }
    }
}
