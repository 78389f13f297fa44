//! The configuration file of `kaml serve`: several devices in one process.
//!
//! Lives here:       its form, and what is wrong with one.
//! Lives elsewhere:  what is done with it (`service`), the file of hosts (`hosts`).
//! May be called by: `serve`.

use super::hosts::place_of;
use super::log::{Format, Level};
use super::schedule::{self, Schedule, Stated};
use super::service::{Hosts, Service, Source, listener};
use crate::failure::Failure;
use crate::size;
use crate::store::DeviceArgument;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Bytes of the longest file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What the file states.
pub struct Config {
    pub log_level: Option<Level>,
    pub log_format: Option<Format>,
    pub services: Vec<Service>,
}

/// The file as a whole.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    log_level: Option<Level>,
    log_format: Option<Format>,
    #[serde(default)]
    device: Vec<Device>,
}

/// One device.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Device {
    path: Option<PathBuf>,
    in_memory: Option<Size>,
    #[serde(default)]
    listen: Vec<String>,
    metrics: Option<String>,
    subsystem: Option<String>,
    hosts: Option<PathBuf>,
    #[serde(default)]
    allow_hosts: Vec<String>,
    #[serde(default)]
    allow_management: bool,
    reservations: Option<PathBuf>,
    memory: Option<Size>,
    #[serde(default)]
    busy_poll: bool,
    #[serde(default)]
    snapshots: Vec<Stated>,
}

/// A size as people write it.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "SizeText")]
struct Size(u64);

#[derive(Deserialize)]
#[serde(untagged)]
enum SizeText {
    Bytes(u64),
    Text(String),
}

impl TryFrom<SizeText> for Size {
    type Error = size::SizeError;
    fn try_from(text: SizeText) -> Result<Size, size::SizeError> {
        match text {
            SizeText::Bytes(bytes) => Ok(Size(bytes)),
            SizeText::Text(text) => size::parse(&text).map(Size),
        }
    }
}

/// Reads the file. Paths in it are relative to it.
pub fn read(path: &Path, default_memory: u64) -> Result<Config, Failure> {
    let failed = Failure::io(path.display());
    if std::fs::metadata(path).map_err(&failed)?.len() > FILE_BYTES_MAX {
        return Err(Failure::Usage(format!("{}: a configuration has at most 1 MiB", path.display())));
    }
    let text = std::fs::read_to_string(path).map_err(&failed)?;
    parse(&text, path.parent().unwrap_or(Path::new("")), default_memory)
        .map_err(|what| Failure::Usage(format!("{}: {what}", path.display())))
}

fn parse(text: &str, directory: &Path, default_memory: u64) -> Result<Config, String> {
    let file: File = toml::from_str(text).map_err(|error| place_of(&error, text))?;
    if file.device.is_empty() {
        return Err("there is no [[device]]".into());
    }
    let (mut paths, mut addresses) = (BTreeSet::new(), BTreeSet::new());
    let mut services = Vec::new();
    for (number, device) in (1..).zip(file.device) {
        let service = device.service(directory, default_memory).map_err(|what| format!("device {number}: {what}"))?;
        if let Source::Device(device) = &service.source
            && !paths.insert(device.path().to_owned())
        {
            return Err(format!("device {number}: {} appears twice", device.path().display()));
        }
        let listeners = service.listen.iter().map(|text| listener(text).map(|(address, _)| address));
        let listeners = listeners.collect::<Result<Vec<_>, _>>().map_err(|what| format!("device {number}: {what}"))?;
        let metrics = service.metrics.as_deref();
        for address in listeners.into_iter().chain(metrics).filter(|address| !address.ends_with(":0")) {
            if !addresses.insert(address.to_owned()) {
                return Err(format!("device {number}: {address} is listened at twice"));
            }
        }
        services.push(service);
    }
    Ok(Config { log_level: file.log_level, log_format: file.log_format, services })
}

impl Device {
    fn service(self, directory: &Path, default_memory: u64) -> Result<Service, String> {
        let source = match (self.path, self.in_memory) {
            (Some(path), None) => Source::Device(DeviceArgument::at(directory.join(path))),
            (None, Some(Size(bytes))) => Source::InMemory(bytes),
            (Some(_), Some(_)) => return Err("path and in-memory exclude each other".into()),
            (None, None) => return Err("it has neither a path nor in-memory".into()),
        };
        if self.listen.is_empty() {
            return Err("it has no address in `listen`".into());
        }
        let hosts = match (self.hosts, self.allow_hosts.is_empty()) {
            (None, true) => Hosts::All,
            (None, false) => Hosts::Named(self.allow_hosts),
            (Some(file), true) => Hosts::File(directory.join(file)),
            (Some(_), false) => return Err("hosts and allow-hosts exclude each other".into()),
        };
        if self.allow_management && matches!(hosts, Hosts::File(_)) {
            return Err("the file of hosts states who may create namespaces; allow-management is not for this".into());
        }
        let snapshots = self.snapshots.into_iter().map(Schedule::try_from).collect::<Result<Vec<_>, _>>()?;
        schedule::check(&snapshots)?;
        Ok(Service {
            source,
            listen: self.listen,
            metrics: self.metrics,
            subsystem: self.subsystem,
            hosts,
            allow_management: self.allow_management,
            reservations: self.reservations.map(|file| directory.join(file)),
            memory: self.memory.map_or(default_memory, |Size(bytes)| bytes),
            busy_poll: self.busy_poll,
            snapshots,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   a configuration becomes what it states, with paths relative to it, and each mistake is named with its place.
    /// Method: one with everything, and ones with one mistake each.
    #[test]
    fn configurations_are_read() {
        let read = |text: &str| parse(text, Path::new("/etc/kaml"), 7).map_err(|what| what.replace('\n', " "));
        let text = r#"
            log-level = "info"
            log-format = "json"
            [[device]]
            path = "a.kaml"
            listen = ["127.0.0.1:4420", "[::1]:8009,tls=optional"]
            hosts = "hosts.toml"
            memory = "2GiB"
            metrics = "127.0.0.1:9464"
            [[device.snapshots]]
            namespace = "notes"
            every = "1h"
            keep = 24
            [[device]]
            in-memory = 67108864
            listen = ["127.0.0.1:4421"]
            allow-hosts = ["nqn.2026-11.example:a"]
            allow-management = true
        "#;
        let config = read(text).ok().unwrap();
        assert!(config.log_level == Some(Level::Info) && config.log_format == Some(Format::Json));
        let [first, second] = &config.services[..] else { panic!("two devices") };
        assert_eq!((first.name(), first.memory, second.memory), ("/etc/kaml/a.kaml".into(), 2 << 30, 7));
        assert!(first.hosts == Hosts::File("/etc/kaml/hosts.toml".into()) && first.listen.len() == 2);
        assert_eq!((&first.snapshots[..], second.snapshots.len()), (&["notes=1h,keep=24".parse().unwrap()][..], 0));
        assert!(second.source == Source::InMemory(64 << 20) && second.allow_management);
        let device = "[[device]]\npath = \"a\"\nlisten = [\"127.0.0.1:1\"]\n";
        for (wrong, named) in [
            (String::new(), "no [[device]]"),
            ("[[device]]\nlisten = [\"127.0.0.1:1\"]".into(), "device 1: it has neither a path nor in-memory"),
            ("[[device]]\npath = \"a\"".into(), "no address in `listen`"),
            (format!("{device}in-memory = \"1G\""), "path and in-memory exclude each other"),
            (format!("{device}memory = \"much\""), "line 4: `much` is not a size"),
            (device.replace(":1", ":1,tls=no"), "\"tls=no\" is no option of a listener"),
            (format!("{device}port = 5"), "line 4: unknown field `port`"),
            (format!("{device}{device}"), "device 2: /etc/kaml/a appears twice"),
            (format!("{device}{}", device.replace("\"a\"", "\"b\"")), "device 2: 127.0.0.1:1 is listened at twice"),
            (format!("{device}hosts = \"h\"\nallow-hosts = [\"n\"]"), "hosts and allow-hosts exclude each other"),
            (format!("{device}hosts = \"h\"\nallow-management = true"), "allow-management is not for this"),
            (format!("{device}[[device.snapshots]]\nnamespace = \"n\"\nevery = \"1\""), "device 1: `1` is no time"),
            (
                format!("{device}{}", "[[device.snapshots]]\nnamespace = \"n\"\nevery = \"1h\"\n".repeat(2)),
                "device 1: namespace `n` has two schedules",
            ),
            ("log-level = \"loud\"".into(), "line 1: unknown variant `loud`"),
        ] {
            let said = read(&wrong).err().unwrap_or_default();
            assert!(said.contains(named), "{wrong}: {said}");
        }
    }
}
