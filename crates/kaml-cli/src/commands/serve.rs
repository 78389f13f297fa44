//! `kaml serve`.

mod hosts;
mod log;
mod metrics;

use crate::failure::Failure;
use crate::interrupt;
use crate::output;
use crate::size;
use crate::store::DeviceArgument;
use clap::Args;
use kaml::{CreateOptions, Device};
use kaml_nvme::target::{Access, Control, Error, KeepReservations, Options, Server, Stopper};
use serde::Serialize;
use signal_hook::consts::SIGHUP;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The default address of a target.
pub const ADDRESS: &str = "127.0.0.1:4420";

/// Flags of `kaml serve`.
#[derive(Args)]
#[command(override_usage = "kaml serve [OPTIONS] <DEVICE>
       kaml serve [OPTIONS] --in-memory <SIZE>")]
#[command(after_help = "Examples:
  kaml serve data.kaml
  kaml serve --in-memory 1GiB --busy-poll
  kaml serve data.kaml --listen 0.0.0.0:4420 --allow-host nqn.2026-11.example:host
  kaml serve data.kaml --listen 0.0.0.0:4420 --hosts hosts.toml   # secrets of hosts
  kaml serve data.kaml --metrics 127.0.0.1:9464   # a live page there, and /metrics for Prometheus
  nvme discover -t tcp -a 127.0.0.1 -s 4420
  nvme connect -t tcp -a 127.0.0.1 -s 4420 -n SUBSYSTEM

Ctrl-C ends it and closes the device cleanly.")]
pub struct Arguments {
    #[command(flatten)]
    device: Option<DeviceArgument>,
    /// Serve a new device in memory of this size instead; it is lost when the process ends
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "path")]
    in_memory: Option<u64>,
    /// Address and port; port 0 takes a free one. Without --hosts anyone that can reach it can read and write
    #[arg(long, value_name = "ADDRESS:PORT", default_value = ADDRESS)]
    listen: String,
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
    /// What to report on standard error while it runs
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log_level: log::Level,
    /// Print the addresses that it listens at as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Listening<'a> {
    address: String,
    subsystem: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<String>,
}

impl Arguments {
    /// Serves until it is interrupted.
    pub fn run(self) -> Result<(), Failure> {
        log::start(self.log_level);
        let device = self.open()?;
        let mut options = Options::for_device(&device);
        options.subsystem = self.subsystem.clone().unwrap_or(options.subsystem);
        options.access = match &self.hosts {
            Some(file) => hosts::read(file)?,
            None if self.allowed_hosts.is_empty() => Access::open(),
            None => Access::only(self.allowed_hosts.iter().map(String::as_str)),
        };
        if self.allow_management {
            options.access = options.access.with_all_rights();
        }
        options.busy_poll = self.busy_poll;
        options.reservations = self.keep_reservations();
        options.memory_bytes = usize::try_from(self.memory).unwrap_or(usize::MAX);
        let server = Server::bind(&device, &self.listen, options).map_err(failed)?;
        let metrics = self.metrics.map(|address| metrics::start(&address, &device, server.monitor())).transpose()?;
        let reload = self.hosts.clone().map(|file| (file, server.control()));
        obey_signals(server.stopper(), reload)?;
        let listening = Listening {
            address: server.address().to_string(),
            subsystem: &server.options().subsystem,
            metrics: metrics.as_ref().map(|metrics| format!("http://{}/", metrics.address())),
        };
        match self.json {
            true => output::json(&listening)?,
            false => output::line(format!("serving {} at {}", listening.subsystem, listening.address))?,
        }
        if let (false, Some(url)) = (self.json, &listening.metrics) {
            output::line(format!("metrics and a live page at {url}"))?;
        }
        server.run().map_err(failed)?;
        drop(metrics);
        Ok(device.close()?)
    }

    /// Where reservations persist: in the file that was named, next to a device file, or nowhere.
    fn keep_reservations(&self) -> KeepReservations {
        match (&self.reservations, &self.device) {
            (Some(file), _) => KeepReservations::File(file.clone()),
            (None, None) => KeepReservations::WithDevice,
            (None, Some(device)) if device.path().is_file() => {
                let mut path = device.path().as_os_str().to_owned();
                path.push(".reservations");
                KeepReservations::File(path.into())
            }
            (None, Some(_)) => KeepReservations::Nowhere,
        }
    }

    fn open(&self) -> Result<Device, Failure> {
        match (&self.device, self.in_memory) {
            (Some(device), _) => device.open(),
            (None, Some(bytes)) => in_memory(bytes),
            (None, None) => Err(Failure::Usage("serve what? Name a device, or a size with --in-memory".into())),
        }
    }
}

/// A new device in memory, if enough is free: otherwise the system would kill the process when the device fills up.
fn in_memory(bytes: u64) -> Result<Device, Failure> {
    match available_bytes().filter(|available| bytes > *available) {
        Some(available) => Err(Failure::Failed(format!("{bytes} bytes are more than the {available} of free memory"))),
        None => Ok(Device::in_allocated_memory(&CreateOptions::new(bytes))?),
    }
}

/// Memory that can be had without swapping, if the system reports it.
fn available_bytes() -> Option<u64> {
    let said = std::fs::read_to_string("/proc/meminfo").ok()?;
    let available = said.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(available.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// The first signal ends the target in order, the second one the process. With a file of hosts, SIGHUP has it read again instead.
fn obey_signals(stopper: Stopper, reload: Option<(PathBuf, Control)>) -> Result<(), Failure> {
    let mut awaited = interrupt::signals();
    if reload.is_some() && !awaited.contains(&SIGHUP) {
        awaited.push(SIGHUP);
    }
    let mut signals = signal_hook::iterator::Signals::new(awaited).map_err(Failure::io("listening for signals"))?;
    let wait = move || {
        let mut is_ending = false;
        for signal in signals.forever() {
            match (&reload, is_ending) {
                (Some((file, control)), false) if signal == SIGHUP => read_again(file, control),
                (_, false) => {
                    is_ending = true;
                    stopper.stop();
                }
                (_, true) => std::process::exit(130),
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .map(drop)
        .map_err(Failure::io("listening for signals"))
}

/// Hosts that the file names now may connect from now on; if something is wrong with it, nothing changes.
fn read_again(file: &Path, control: &Control) {
    let changed = hosts::read(file).and_then(|access| {
        control.set_access(access).map_err(|bad| Failure::Usage(format!("{}: {bad}", file.display())))
    });
    match changed {
        Ok(()) => tracing::info!(file = %file.display(), "the file of hosts was read again"),
        Err(error) => tracing::error!(%error, "the hosts that may connect are those of before"),
    }
}

fn failed(error: Error) -> Failure {
    match error {
        Error::Options(bad) => Failure::Usage(bad.to_string()),
        Error::Listen { address, source } if source.kind() == ErrorKind::InvalidInput => {
            Failure::Usage(format!("--listen {address}: {source}; an address and a port, as 127.0.0.1:4420"))
        }
        other => Failure::Failed(other.to_string()),
    }
}
