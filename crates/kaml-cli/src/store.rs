//! Opening a device and finding a namespace, with the words a person needs when it fails.

use crate::failure::Failure;
pub use crate::output::{FileIdentity as Identity, identity};
use crate::place::Place;
use crate::secrets::HostArguments;
use crate::whole::WholeFile;
use clap::Args;
use kaml::{Device, NamespaceInfo, NamespaceKind, NamespaceOptions, OpenOptions};
use kaml_nvme::host::RemoteDevice;
use kaml_nvme::target::{Served, served_by};
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The device that a command works on, which must be here.
#[derive(Args, Clone, PartialEq)]
pub struct DeviceArgument {
    /// Device file or block device
    #[arg(value_name = "DEVICE")]
    path: PathBuf,
    /// Wait so long for another process that has the device open [without SECONDS: 60]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "60", value_parser = seconds)]
    wait: Option<Duration>,
    /// Whether the command also runs over NVMe.
    #[arg(skip)]
    may_be_remote: bool,
}

/// The value of `--wait`, if it is given.
pub fn seconds(text: &str) -> Result<Duration, std::num::ParseIntError> {
    text.parse().map(Duration::from_secs)
}

/// Makes a call until it finds the device free, or the time is over.
fn until_free<T>(wait: Option<Duration>, mut call: impl FnMut() -> Result<T, kaml::Error>) -> Result<T, kaml::Error> {
    let begin = Instant::now();
    loop {
        match call() {
            Err(kaml::Error::InUse { .. }) if begin.elapsed() < wait.unwrap_or_default() => {}
            result => return result,
        }
    }
}

impl DeviceArgument {
    /// Opens it for reading and writing.
    pub fn open(&self) -> Result<Device, Failure> {
        self.open_with(OpenOptions::default())
    }

    /// Opens it for reading and writing, for a caller that explains errors itself.
    pub fn open_if_free(&self) -> Result<Device, kaml::Error> {
        Device::open(&self.path, &OpenOptions { wait: self.wait.unwrap_or_default(), ..OpenOptions::default() })
    }

    /// Whether nobody has it open, for such a caller.
    pub fn probe(&self) -> Result<(), kaml::Error> {
        Device::identity_of(&self.path).map(|_| ())
    }

    /// Opens it for reading only, so nothing changes on it.
    pub fn open_to_read(&self) -> Result<Device, Failure> {
        self.open_with(OpenOptions { read_only: true, ..OpenOptions::default() })
    }

    fn open_with(&self, options: OpenOptions) -> Result<Device, Failure> {
        refuse_remote(&self.path)?;
        let options = OpenOptions { wait: self.wait.unwrap_or_default(), ..options };
        let named = if self.may_be_remote { named_by_place } else { named };
        Device::open(&self.path, &options).map_err(|error| named(&self.path, error))
    }

    /// Opens it without a namespace, which is deleted; returns also what it was.
    pub fn open_without(&self, name: &str) -> Result<(Device, NamespaceInfo), Failure> {
        refuse_remote(&self.path)?;
        until_free(self.wait, || Device::open_without(&self.path, name)).map_err(|error| named(&self.path, error))
    }

    /// What hosts know it by; another one is drawn at random first if `new`.
    pub fn identity(&self, new: bool) -> Result<[u8; 16], Failure> {
        refuse_remote(&self.path)?;
        let look = if new { Device::renew_identity } else { Device::identity_of };
        until_free(self.wait, || look(&self.path)).map_err(|error| named(&self.path, error))
    }

    /// Whether it is a device of KAML; nothing is changed. One that a process has open is one.
    pub fn check(&self) -> Result<(), Failure> {
        refuse_remote(&self.path)?;
        match Device::identity_of(&self.path) {
            Ok(_) | Err(kaml::Error::InUse { .. }) => Ok(()),
            Err(error) => Err(named(&self.path, error)),
        }
    }

    /// A device at a path, not waited for.
    pub fn at(path: PathBuf) -> DeviceArgument {
        DeviceArgument { path, wait: None, may_be_remote: false }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The device that a command works on, wherever it is.
#[derive(Args)]
pub struct PlaceArgument {
    /// Device file or block device, nvme+tcp://HOST:PORT/SUBSYSTEM of one that is served, or its /dev/ngXnY
    #[arg(value_name = "DEVICE")]
    path: PathBuf,
    /// Wait so long for another process that has the device open [without SECONDS: 60]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "60", value_parser = seconds)]
    wait: Option<Duration>,
    #[command(flatten)]
    host: HostArguments,
}

/// The same for a command that has subcommands without a device.
#[derive(Args)]
pub struct OptionalPlace {
    /// Device file or block device, nvme+tcp://HOST:PORT/SUBSYSTEM of one that is served, or its /dev/ngXnY
    #[arg(value_name = "DEVICE", required = true)]
    path: Option<PathBuf>,
    /// Wait so long for another process that has the device open [without SECONDS: 60]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "60", value_parser = seconds)]
    wait: Option<Duration>,
    #[command(flatten)]
    host: HostArguments,
}

impl OptionalPlace {
    /// The device, if one is named.
    pub fn given(self) -> Option<PlaceArgument> {
        Some(PlaceArgument { path: self.path?, wait: self.wait, host: self.host })
    }
}

impl PlaceArgument {
    /// Opens it for reading and writing.
    pub fn open(&self) -> Result<Box<dyn Place>, Failure> {
        self.open_or(DeviceArgument::open)
    }

    /// Opens it for reading only, as [`DeviceArgument::open_to_read`] does.
    pub fn open_to_read(&self) -> Result<Box<dyn Place>, Failure> {
        self.open_or(DeviceArgument::open_to_read)
    }

    fn open_or(
        &self,
        here: impl FnOnce(&DeviceArgument) -> Result<Device, Failure>,
    ) -> Result<Box<dyn Place>, Failure> {
        match self.remote()? {
            Some(remote) => Ok(Box::new(remote)),
            None => Ok(Box::new(here(&self.local())?)),
        }
    }

    /// Whether it is a file or a disk of this machine.
    pub fn is_here(&self) -> bool {
        refuse_remote(&self.path).is_ok()
    }

    /// Connects, if it is somewhere else.
    pub fn remote(&self) -> Result<Option<RemoteDevice>, Failure> {
        let opened = RemoteDevice::open_named(&self.path, &self.host.options()?);
        opened.transpose().map_err(|error| match error {
            kaml_nvme::host::Error::Url { .. } => Failure::Usage(error.to_string()),
            _ => Failure::Failed(format!("{}: {}", self.path.display(), self.host.named(error))),
        })
    }

    /// Creates a file that replaces what exists after it is whole, unless that is the device.
    pub fn create_beside(&self, path: &Path) -> Result<WholeFile, Failure> {
        self.refuse_itself(path)?;
        WholeFile::create(path).map_err(Failure::io(path.display()))
    }

    /// Refuses a path that leads to the device.
    pub fn refuse_itself(&self, path: &Path) -> Result<(), Failure> {
        match identity(path).is_some_and(|found| self.identity() == Some(found)) {
            true => Err(Failure::Usage(format!("{}: is the device itself", path.display()))),
            false => Ok(()),
        }
    }

    /// Statistics of its file, if it is local.
    pub fn identity(&self) -> Option<Identity> {
        identity(&self.path)
    }

    /// The same device as a local one.
    pub fn local(&self) -> DeviceArgument {
        DeviceArgument { path: self.path.clone(), wait: self.wait, may_be_remote: true }
    }
}

/// Refuses a remote device, for a command that works only on files and disks.
pub fn refuse_remote(path: &Path) -> Result<(), Failure> {
    let name = path.to_string_lossy();
    let is_special = || std::fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device());
    if name.starts_with("nvme+tcp:") || (name.starts_with("/dev/ng") && is_special()) {
        let here = "stop the server and run the command on the device file or disk";
        return Err(Failure::Usage(format!("{name}: this command cannot run over NVMe; {here}")));
    }
    Ok(())
}

/// Opens a device; its path is in the error.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Device, Failure> {
    refuse_remote(path)?;
    Device::open(path, options).map_err(|error| named(path, error))
}

/// As [`named`], of a command that also runs over NVMe.
pub fn named_by_place(path: &Path, error: kaml::Error) -> Failure {
    match &error {
        kaml::Error::InUse { holder, .. } => {
            Failure::Failed(format!("{error}{}", way_past(holder.as_ref(), Some(path))))
        }
        _ => named(path, error),
    }
}

/// What `kaml serve` reports of a device that a process has open.
pub fn in_use_for_server(path: &Path, holder: Option<kaml::Holder>) -> String {
    let urls = holder.as_ref().and_then(urls_of).unwrap_or_default();
    let at = if urls.is_empty() { String::new() } else { format!(", which serves at {}", urls.join(", ")) };
    let error = kaml::Error::InUse { path: path.to_owned(), holder };
    format!("{error}{at}: stop that process, or take over when it ends with --wait")
}

/// An error with the path of the device that it is about, and what to do.
pub fn named(path: &Path, error: kaml::Error) -> Failure {
    use kaml::Error as E;
    let mut text = error.to_string();
    match &error {
        E::UnknownNamespaceName(_) => return error.into(),
        E::DeviceDamaged { is_salvageable: true, .. } => text += "; `kaml salvage` reads what remains",
        E::InUse { holder, .. } => text += &way_past(holder.as_ref(), None),
        E::RootsDamaged { .. } => {
            text += "; `kaml salvage` reads what remains, if the copy at the device's end is whole";
        }
        E::MetadataDamaged(_) | E::RootUnreadable { .. } => text += "; `kaml salvage` reads what is whole",
        E::IndexDamaged { .. } => {
            text += "; `kaml salvage` reads what is whole, `kaml namespace delete --damaged` gives the namespace up";
        }
        _ => {}
    }
    let name = path.display().to_string();
    Failure::Failed(if text.contains(&name) { text } else { format!("{name}: {text}") })
}

/// What to do about a device that a process has open: use it over the network if it is served and the command can, else wait. `path` is what a
/// command that runs over NVMe was given.
fn way_past(holder: Option<&kaml::Holder>, path: Option<&Path>) -> String {
    let Some(urls) = holder.and_then(urls_of) else { return ", wait with --wait".into() };
    match (&urls[..], path) {
        ([], _) => ", which serves it over NVMe/TCP: use the address that it printed, or stop that process".into(),
        ([url], Some(path)) => {
            let command = std::env::args_os().skip(1).take_while(|argument| argument != path.as_os_str());
            let command: Vec<_> = command.map(|argument| argument.to_string_lossy().into_owned()).collect();
            format!(", which serves it: `kaml {} {url} ...` works meanwhile; or stop that process", command.join(" "))
        }
        (urls, Some(_)) => {
            format!(", which serves devices at {}: use the URL of this one, or stop that process", urls.join(", "))
        }
        (urls, None) => {
            let at = urls.join(", ");
            format!(", which serves at {at}; this command works on the file or disk alone: stop that process first")
        }
    }
}

/// The URLs of what a process serves, as far as they are known; nothing of a process that serves no devices.
fn urls_of(holder: &kaml::Holder) -> Option<Vec<String>> {
    let served = served_by(holder.process);
    if !served.is_empty() {
        return Some(served.iter().map(Served::url).collect());
    }
    // Another user's process shows its command line alone.
    let arguments = &holder.arguments;
    let serves = arguments.get(1).is_some_and(|command| command == "serve");
    serves.then(|| listened_at(arguments).map(|at| format!("nvme+tcp://{at}/SUBSYSTEM")).into_iter().collect())
}

/// Where a `kaml serve` listens, if its command line shows that: port 0 was replaced by another one.
fn listened_at(arguments: &[String]) -> Option<&str> {
    let mut given = arguments.iter().enumerate().filter_map(|(at, argument)| match argument.strip_prefix("--listen") {
        Some("") => arguments.get(at + 1).map(String::as_str),
        Some(rest) => rest.strip_prefix('='),
        None => None,
    });
    let address = given.next().unwrap_or(crate::commands::serve::ADDRESS);
    (!address.ends_with(":0")).then_some(address)
}

/// Closes a device whose command is done and durable; reports it if it could not be closed in order.
pub fn close(device: Box<dyn Place>) {
    if let Err(error) = device.close() {
        let what = "it is done, but the device could not be closed in order, and recovers when it is next opened";
        // If standard error is closed as well, there is no place to report it.
        let _ = writeln!(std::io::stderr(), "kaml: {what}: {error}");
    }
}

/// A namespace by its name.
pub fn namespace(device: &dyn Place, name: &str) -> Result<NamespaceInfo, Failure> {
    let found = device.namespaces()?.into_iter().find(|info| info.name == name);
    found.ok_or_else(|| kaml::Error::UnknownNamespaceName(name.to_owned()).into())
}

/// A namespace that holds records, by its name.
pub fn namespace_of_records(device: &dyn Place, name: &str) -> Result<NamespaceInfo, Failure> {
    holds_records(namespace(device, name)?)
}

/// Refuses one that holds blocks.
pub fn holds_records(info: NamespaceInfo) -> Result<NamespaceInfo, Failure> {
    match info.kind {
        NamespaceKind::Records(_) | NamespaceKind::Versions(..) => Ok(info),
        NamespaceKind::Blocks(_) => Err(Failure::Usage(format!("namespace `{}` holds blocks, not records", info.name))),
    }
}

/// A namespace by its name, made with default options if it is missing.
pub fn namespace_or_new(device: &dyn Place, name: &str) -> Result<NamespaceInfo, Failure> {
    if !device.namespaces()?.iter().any(|info| info.name == name) {
        device.create_namespace(name, &NamespaceOptions::default())?;
    }
    namespace(device, name)
}
