//! Opening a device and finding a namespace, with the words a person needs when it fails.

use crate::failure::Failure;
use crate::place::Place;
use crate::whole::WholeFile;
use clap::Args;
use kaml::{Device, NamespaceInfo, NamespaceOptions, OpenOptions};
use kaml_nvme::host::{HostOptions, RemoteDevice};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The device that a command works on, which must be here.
#[derive(Args)]
pub struct DeviceArgument {
    /// Device file or block device
    #[arg(value_name = "DEVICE")]
    path: PathBuf,
}

impl DeviceArgument {
    /// Opens it for reading and writing.
    pub fn open(&self) -> Result<Device, Failure> {
        open(&self.path, &OpenOptions::default())
    }

    /// Opens it for reading only, so that nothing changes on it.
    pub fn open_to_read(&self) -> Result<Device, Failure> {
        open(&self.path, &OpenOptions { read_only: true, ..OpenOptions::default() })
    }

    /// Opens it without a namespace, which is deleted; answers also what it was.
    pub fn open_without(&self, name: &str) -> Result<(Device, NamespaceInfo), Failure> {
        refuse_remote(&self.path)?;
        Device::open_without(&self.path, name).map_err(|error| named(&self.path, error))
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

    /// Connects, if it is somewhere else.
    pub fn remote(&self) -> Result<Option<RemoteDevice>, Failure> {
        let opened = RemoteDevice::open_named(&self.path, &HostOptions::default());
        opened.transpose().map_err(|error| match error {
            kaml_nvme::host::Error::Url { .. } => Failure::Usage(error.to_string()),
            _ => Failure::Failed(format!("{}: {error}", self.path.display())),
        })
    }

    /// Creates a file that replaces what is there once it is whole, unless that is the device.
    pub fn create_beside(&self, path: &Path) -> Result<WholeFile, Failure> {
        if identity(path).is_some_and(|found| self.identity() == Some(found)) {
            return Err(Failure::Usage(format!("{}: is the device itself", path.display())));
        }
        WholeFile::create(path).map_err(Failure::io(path.display()))
    }

    /// Of its file, if it is one here.
    pub fn identity(&self) -> Option<Identity> {
        identity(&self.path)
    }

    /// As a device that is here.
    pub fn local(&self) -> DeviceArgument {
        DeviceArgument { path: self.path.clone() }
    }
}

/// What a file is, by whatever name: file system and inode.
pub type Identity = (u64, u64);

/// What a path leads to, through links too.
pub fn identity(path: &Path) -> Option<Identity> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Refuses what is somewhere else, for a command that works on nothing but files and disks.
pub fn refuse_remote(path: &Path) -> Result<(), Failure> {
    let name = path.to_string_lossy();
    let is_special = || std::fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device());
    if name.starts_with("nvme+tcp:") || (name.starts_with("/dev/ng") && is_special()) {
        let here = "this command works where the device's file or disk is";
        return Err(Failure::Usage(format!("{name}: is served by somebody; {here}")));
    }
    Ok(())
}

/// Opens a device; its path is in the error.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Device, Failure> {
    refuse_remote(path)?;
    Device::open(path, options).map_err(|error| named(path, error))
}

fn named(path: &Path, error: kaml::Error) -> Failure {
    if let Some(kaml_device::Error::UnknownNamespaceName(_)) = error.command() {
        return error.into();
    }
    let mut text = error.to_string();
    if let kaml::Error::Open(kaml::OpenError::HeadDamaged { .. } | kaml::OpenError::Truncated { .. }) = error {
        text += "; `kaml salvage` reads what is left";
    }
    match error.command() {
        Some(kaml_device::Error::Root(kaml_device::RootError::Damaged(..))) => {
            text += "; `kaml salvage` reads what is left, if the copy at the device's end is whole";
        }
        Some(
            kaml_device::Error::MetadataDamaged(_)
            | kaml_device::Error::Root(kaml_device::RootError::Unreadable { .. }),
        ) => text += "; `kaml salvage` reads what is whole",
        Some(kaml_device::Error::IndexDamaged { .. }) => {
            text += "; `kaml salvage` reads what is whole, `kaml namespace delete --damaged` gives the namespace up";
        }
        _ => {}
    }
    let name = path.display().to_string();
    Failure::Failed(if text.contains(&name) { text } else { format!("{name}: {text}") })
}

/// Closes a device that has done what it was told, which is there to stay; says so if it could not be closed in order.
pub fn close(device: Box<dyn Place>) {
    if let Err(error) = device.close() {
        let what = "it is done, but the device could not be closed in order, and recovers when it is next opened";
        // If standard error is closed as well, nobody is left to tell.
        let _ = writeln!(std::io::stderr(), "kaml: {what}: {error}");
    }
}

/// A namespace by its name.
pub fn namespace(device: &dyn Place, name: &str) -> Result<NamespaceInfo, Failure> {
    let found = device.namespaces()?.into_iter().find(|info| info.name == name);
    found.ok_or_else(|| kaml::Error::from(kaml_device::Error::UnknownNamespaceName(name.to_owned())).into())
}

/// A namespace that holds records, by its name.
pub fn namespace_of_records(device: &dyn Place, name: &str) -> Result<NamespaceInfo, Failure> {
    holds_records(namespace(device, name)?)
}

/// Refuses one that holds blocks.
pub fn holds_records(info: NamespaceInfo) -> Result<NamespaceInfo, Failure> {
    match info.blocks {
        None => Ok(info),
        Some(_) => Err(Failure::Usage(format!("namespace `{}` holds blocks, not records", info.name))),
    }
}

/// A namespace by its name, made with default options if it is missing.
pub fn namespace_or_new(device: &dyn Place, name: &str) -> Result<NamespaceInfo, Failure> {
    if !device.namespaces()?.iter().any(|info| info.name == name) {
        device.create_namespace(name, &NamespaceOptions::default())?;
    }
    namespace(device, name)
}
