//! `kaml serve`.

mod config;
mod hosts;
mod log;
mod metrics;
mod service;

use crate::failure::Failure;
use crate::interrupt;
use crate::output;
use crate::size;
use crate::store::DeviceArgument;
use clap::Args;
use config::Config;
use kaml::Device;
use kaml_nvme::target::{Control, Server, Stopper};
use serde::Serialize;
use service::{Hosts, Service, Source, failed};
use signal_hook::consts::SIGHUP;
use std::path::PathBuf;

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
  nvme discover -t tcp -a 127.0.0.1 -s 4420
  nvme connect -t tcp -a 127.0.0.1 -s 4420 -n SUBSYSTEM

Ctrl-C ends it and closes the device cleanly.")]
pub struct Arguments {
    #[command(flatten)]
    device: Option<DeviceArgument>,
    /// Serve a new device in memory of this size instead; it is lost when the process ends
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "path")]
    in_memory: Option<u64>,
    /// File of devices and how each is served (see docs/nvme.md). SIGHUP reads it again, for the hosts that may connect
    #[arg(long, value_name = "FILE", conflicts_with_all = ["path", "in_memory", "listen", "metrics", "subsystem", "allowed_hosts", "hosts", "reservations",
        "allow_management", "memory", "busy_poll"])]
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
}

impl Arguments {
    /// Serves until it is interrupted.
    pub fn run(self) -> Result<(), Failure> {
        let services = self.services()?;
        if self.check {
            return check(&services, self.json);
        }
        let running = services.into_iter().map(Running::start).collect::<Result<Vec<_>, _>>()?;
        obey_signals(self.config.clone(), self.memory, &running)?;
        self.report(&running)?;
        // Nobody need have asked to be notified.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
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
        let source = match (&self.device, self.in_memory) {
            (Some(device), _) => Source::Device(device.clone()),
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
fn check(services: &[Service], json: bool) -> Result<(), Failure> {
    for service in services {
        service.check().map_err(|failure| match failure {
            Failure::Usage(what) => Failure::Usage(format!("{}: {what}", service.name())),
            other => other,
        })?;
    }
    let devices: Vec<String> = services.iter().map(Service::name).collect();
    if json {
        return output::json(&devices);
    }
    devices.iter().try_for_each(|device| output::line(format!("{device} can be served")))
}

impl Running {
    fn start(service: Service) -> Result<Running, Failure> {
        let device = service.open()?;
        let server = service.bind(&device)?;
        let start = |address: &String| metrics::start(address, &device, server.monitor());
        let metrics = service.metrics.as_ref().map(start).transpose()?;
        Ok(Running { service, device, server, metrics })
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
        drop(self.metrics);
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

/// What a signal has read again: the hosts of each device.
struct Reload {
    config: Option<PathBuf>,
    memory: u64,
    served: Vec<(Service, Control)>,
}

/// The first signal ends the targets in order, the second one the process. With a file of hosts or a configuration, SIGHUP has it read again instead.
fn obey_signals(config: Option<PathBuf>, memory: u64, running: &[Running]) -> Result<(), Failure> {
    let mut awaited = interrupt::signals();
    let reloads = config.is_some() || running.iter().any(|one| matches!(one.service.hosts, Hosts::File(_)));
    if reloads && !awaited.contains(&SIGHUP) {
        awaited.push(SIGHUP);
    }
    let stoppers: Vec<Stopper> = running.iter().map(|one| one.server.stopper()).collect();
    let served = running.iter().map(|one| (one.service.clone(), one.server.control())).collect();
    let mut reload = Reload { config, memory, served };
    let mut signals = signal_hook::iterator::Signals::new(awaited).map_err(Failure::io("listening for signals"))?;
    let wait = move || {
        let mut is_ending = false;
        for signal in signals.forever() {
            match is_ending {
                false if signal == SIGHUP && reloads => reload.run(),
                false => {
                    is_ending = true;
                    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
                    stoppers.iter().for_each(Stopper::stop);
                }
                true => std::process::exit(130),
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .map(drop)
        .map_err(Failure::io("listening for signals"))
}

impl Reload {
    /// Hosts that the files name now may connect from now on; if something is wrong with one, nothing changes.
    fn run(&mut self) {
        match self.read() {
            Ok(()) => tracing::info!("the hosts that may connect were read again"),
            Err(error) => tracing::error!(%error, "the hosts that may connect are those of before"),
        }
    }

    fn read(&mut self) -> Result<(), Failure> {
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
