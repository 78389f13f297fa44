//! `kaml serve`.

mod config;
mod hosts;
mod log;
mod metrics;
mod reload;
mod schedule;
mod service;
mod signals;
mod standby;

use crate::failure::Failure;
use crate::output;
use crate::size;
use crate::store::{DeviceArgument, seconds};
use clap::Args;
use config::Config;
use kaml::Device;
use kaml_nvme::target::{Server, Stopper};
use reload::Reload;
use schedule::{Schedule, Snapshots};
use sd_notify::NotifyState;
use serde::Serialize;
use service::{Hosts, Service, Source, failed};
use signals::Signals;
use standby::{Standby, TAKEOVER_PATIENCE};
use std::path::PathBuf;
use std::time::Duration;

/// The default address of a target.
pub const ADDRESS: &str = "127.0.0.1:4420";

/// Flags of `kaml serve`.
#[derive(Args)]
#[command(override_usage = "kaml serve [OPTIONS] <DEVICE>
       kaml serve [OPTIONS] --in-memory <SIZE>
       kaml serve [OPTIONS] --config <FILE>")]
#[command(after_help = "Examples:
  kaml serve data.kaml
  kaml serve --in-memory 1GiB --busy-poll
  kaml serve data.kaml --listen 0.0.0.0:4420 --allow-host nqn.2026-11.example:host
  kaml serve data.kaml --listen 0.0.0.0:4420 --hosts hosts.toml   # secrets of hosts
  kaml serve data.kaml --listen 0.0.0.0:4420,tls=required --hosts hosts.toml   # TLS
  kaml serve data.kaml --listen 192.0.2.1:4420 --listen 198.51.100.1:4420   # two paths
  kaml serve data.kaml --metrics 127.0.0.1:9464   # a live page there, and /metrics for Prometheus
  kaml serve --config serve.toml                  # several devices
  kaml serve --config serve.toml --check          # finds what is wrong, and serves nothing
  kaml serve data.kaml --wait                     # a standby, for when that server ends
  kaml serve data.kaml --snapshots past=1h,keep=24   # of a versioned namespace
  nvme discover -t tcp -a 127.0.0.1 -s 4420
  nvme connect -t tcp -a 127.0.0.1 -s 4420 -n SUBSYSTEM

Ctrl-C ends it and closes the device cleanly.")]
pub struct Arguments {
    /// Device file or block device
    #[arg(value_name = "DEVICE")]
    path: Option<PathBuf>,
    /// Be a standby: wait until the process that has the device open ends, however it ends, and serve it then; at most so long [without
    /// SECONDS: as long as that takes]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, value_parser = seconds, conflicts_with = "in_memory")]
    wait: Option<Option<Duration>>,
    /// Serve a new device in memory of this size instead; it is lost when the process ends
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "path")]
    in_memory: Option<u64>,
    /// File of devices and how each is served (see docs/nvme.md). SIGHUP reads it again, for the hosts that may connect
    #[arg(long, value_name = "FILE", conflicts_with_all = ["path", "in_memory", "listen", "metrics", "subsystem", "allowed_hosts", "hosts", "reservations",
        "allow_management", "memory", "busy_poll", "snapshots"])]
    config: Option<PathBuf>,
    /// Find what is wrong with the configuration or the flags, without opening a device, and end
    #[arg(long)]
    check: bool,
    /// Address and port; port 0 takes a free one; given several times, hosts have several paths. With `,tls=required` connections have to be
    /// encrypted, with `,tls=optional` those of hosts that have a TLS key. Without --hosts anyone that can reach it can read and write
    #[arg(long, value_name = "ADDRESS:PORT[,tls=…]", default_value = ADDRESS)]
    listen: Vec<String>,
    /// Serve a live page, /metrics for Prometheus and /health over HTTP at this address and port; port 0 takes a free one. Anyone that can
    /// reach it can read figures and names, but no data
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
    /// Qualified name of the subsystem [default: derived from the identity of the device]
    #[arg(long, value_name = "NQN")]
    subsystem: Option<String>,
    /// Qualified name of a host that may connect; can be given several times [default: all]
    #[arg(long = "allow-host", value_name = "NQN")]
    allowed_hosts: Vec<String>,
    /// File of the hosts that may connect, with their secrets (see docs/nvme.md); only its owner may read it. SIGHUP reads it again
    #[arg(long, value_name = "FILE", conflicts_with = "allowed_hosts")]
    hosts: Option<PathBuf>,
    /// File for reservations that hosts want to survive power loss [default: the device file with `.reservations` added; none for a block
    /// device]
    #[arg(long, value_name = "FILE", conflicts_with = "in_memory")]
    reservations: Option<PathBuf>,
    /// Let hosts create, change and delete namespaces; with --hosts the file states which ones may
    #[arg(long, conflicts_with = "hosts")]
    allow_management: bool,
    /// Memory for data of commands in flight, for all hosts together
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "1G")]
    memory: u64,
    /// Never sleep: lowest latency, but uses a whole core
    #[arg(long)]
    busy_poll: bool,
    /// Take a snapshot of a versioned namespace each time this time has gone by, and forget the oldest ones above a number; can be given several
    /// times [default: none]
    #[arg(long, value_name = "NAMESPACE=TIME[,keep=COUNT]")]
    snapshots: Vec<Schedule>,
    /// What to report on standard error while it runs [default: warn]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<log::Level>,
    /// How to report it [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<log::Format>,
    /// Print the addresses that it listens at as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Listening {
    address: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    more_addresses: Vec<String>,
    subsystem: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<String>,
}

/// A device that is being served.
struct Running {
    service: Service,
    device: Device,
    server: Server,
    metrics: Option<kaml_metrics::Server>,
    snapshots: Option<Snapshots>,
}

impl Arguments {
    /// Serves until it is interrupted.
    pub fn run(self) -> Result<(), Failure> {
        let services = self.services()?;
        if self.check {
            return check(&services, self.json);
        }
        let reloads = self.config.is_some() || services.iter().any(|one| matches!(one.hosts, Hosts::File(_)));
        let signals = Signals::listen(reloads)?;
        let running = match self.wait {
            None => services.into_iter().map(Running::open).collect::<Result<Vec<_>, _>>()?,
            Some(longest) => {
                all_right(&services)?;
                let read_again = || self.services().and_then(|services| all_right(&services).map(|()| services));
                let standby = Standby { longest, json: self.json, signals: &signals };
                let opened = standby.open(services, read_again)?;
                let start = |(service, device)| Running::start(service, device, TAKEOVER_PATIENCE);
                opened.into_iter().map(start).collect::<Result<Vec<_>, _>>()?
            }
        };
        let stoppers = running.iter().map(|one| one.server.stopper()).collect();
        let served = running.iter().map(|one| (one.service.clone(), one.server.control())).collect();
        signals.serving(stoppers, Reload { config: self.config.clone(), memory: self.memory, served });
        self.report(&running)?;
        // Nobody need have asked to be notified.
        let _ = sd_notify::notify(&[NotifyState::Ready, NotifyState::Status("serving")]);
        serve_all(running)
    }

    /// What is to be served, and the log is started as requested.
    fn services(&self) -> Result<Vec<Service>, Failure> {
        let (level, format) = (self.log_level, self.log_format);
        let config = match &self.config {
            Some(file) => config::read(file, self.memory)?,
            None => Config { log_level: None, log_format: None, services: vec![self.service()?] },
        };
        let level = level.or(config.log_level).unwrap_or(log::Level::Warn);
        log::start(level, format.or(config.log_format).unwrap_or(log::Format::Text));
        Ok(config.services)
    }

    /// The one device of the flags.
    fn service(&self) -> Result<Service, Failure> {
        let source = match (&self.path, self.in_memory) {
            (Some(path), _) => Source::Device(DeviceArgument::at(path.clone())),
            (None, Some(bytes)) => Source::InMemory(bytes),
            (None, None) => {
                let what = "serve what? Name a device, a size with --in-memory, or a file with --config";
                return Err(Failure::Usage(what.into()));
            }
        };
        let hosts = match &self.hosts {
            Some(file) => Hosts::File(file.clone()),
            None if self.allowed_hosts.is_empty() => Hosts::All,
            None => Hosts::Named(self.allowed_hosts.clone()),
        };
        schedule::check(&self.snapshots).map_err(Failure::Usage)?;
        Ok(Service {
            source,
            listen: self.listen.clone(),
            metrics: self.metrics.clone(),
            subsystem: self.subsystem.clone(),
            hosts,
            allow_management: self.allow_management,
            reservations: self.reservations.clone(),
            memory: self.memory,
            busy_poll: self.busy_poll,
            snapshots: self.snapshots.clone(),
        })
    }

    /// Prints where it listens: an object, or a list of them for a configuration.
    fn report(&self, running: &[Running]) -> Result<(), Failure> {
        let all: Vec<Listening> = running.iter().map(Running::listening).collect();
        match (self.json, &self.config, &all[..]) {
            (true, None, [one]) => return output::json(one),
            (true, ..) => return output::json(&all),
            (false, ..) => {}
        }
        for one in &all {
            output::line(format!("serving {} at {}", one.subsystem, one.address))?;
            one.more_addresses.iter().try_for_each(|address| output::line(format!("and at {address}")))?;
            if let Some(url) = &one.metrics {
                output::line(format!("metrics and a live page at {url}"))?;
            }
        }
        Ok(())
    }
}

/// Reports the first thing that is wrong.
fn all_right(services: &[Service]) -> Result<(), Failure> {
    services.iter().try_for_each(|service| {
        service.check().map_err(|failure| match failure {
            Failure::Usage(what) => Failure::Usage(format!("{}: {what}", service.name())),
            other => other,
        })
    })
}

/// The same for people, with the names of what can be served.
fn check(services: &[Service], json: bool) -> Result<(), Failure> {
    all_right(services)?;
    let devices: Vec<String> = services.iter().map(Service::name).collect();
    if json {
        return output::json(&devices);
    }
    devices.iter().try_for_each(|device| output::line(format!("{device} can be served")))
}

impl Running {
    fn open(service: Service) -> Result<Running, Failure> {
        let device = service.open()?;
        Running::start(service, device, Duration::ZERO)
    }

    /// Listens; for so long an address or name that another process has is tried again.
    fn start(service: Service, device: Device, patience: Duration) -> Result<Running, Failure> {
        let server = service.bind(&device, patience)?;
        let start = |address: &String| metrics::start(address, &device, &server.monitor(), patience);
        let metrics = service.metrics.as_ref().map(start).transpose()?;
        let snapshots = Snapshots::start(&device, &service.snapshots)?;
        Ok(Running { service, device, server, metrics, snapshots })
    }

    fn listening(&self) -> Listening {
        let mut addresses = self.server.addresses().iter().map(ToString::to_string);
        Listening {
            address: addresses.next().unwrap_or_default(),
            more_addresses: addresses.collect(),
            subsystem: self.server.options().subsystem.clone(),
            metrics: self.metrics.as_ref().map(|metrics| format!("http://{}/", metrics.address())),
        }
    }

    /// Serves until it is stopped, and closes the device.
    fn serve(self) -> Result<(), Failure> {
        self.server.run().map_err(failed)?;
        drop((self.metrics, self.snapshots));
        Ok(self.device.close()?)
    }
}

/// Serves all devices, one of them on this thread. If one ends, the others are stopped.
fn serve_all(mut running: Vec<Running>) -> Result<(), Failure> {
    let stoppers: Vec<Stopper> = running.iter().map(|one| one.server.stopper()).collect();
    let serve = |one: Running| {
        let served = one.serve();
        stoppers.iter().for_each(Stopper::stop);
        served
    };
    let Some(first) = running.pop() else { return Ok(()) };
    std::thread::scope(|scope| {
        let mut started = Ok(());
        let mut others = Vec::new();
        for one in running {
            match std::thread::Builder::new().name("serve".into()).spawn_scoped(scope, || serve(one)) {
                Ok(thread) => others.push(thread),
                Err(error) => {
                    stoppers.iter().for_each(Stopper::stop);
                    started = Err(Failure::io("starting a thread for a device")(error));
                }
            }
        }
        let served = serve(first);
        let others = others.into_iter().map(|thread| thread.join().expect("a server does not panic"));
        started.and(others.fold(served, Result::and))
    })
}
