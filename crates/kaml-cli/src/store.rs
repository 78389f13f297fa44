//! Opening a device and finding a namespace, with the words a person needs when it fails.

use crate::failure::Failure;
use clap::Args;
use kaml::{Device, NamespaceInfo, NamespaceOptions, OpenOptions};
use std::path::{Path, PathBuf};

/// The device that a command works on.
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

    /// Opens it for reading only; if its last user was killed, it has to be recovered first, and is.
    pub fn open_to_read(&self) -> Result<Device, Failure> {
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        match Device::open(&self.path, &options) {
            Err(error) if matches!(error.command(), Some(kaml_device::Error::NeedsRecovery)) => self.open(),
            other => other.map_err(|error| named(&self.path, error)),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Opens a device; its path is in the error.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Device, Failure> {
    Device::open(path, options).map_err(|error| named(path, error))
}

fn named(path: &Path, error: kaml::Error) -> Failure {
    let mut text = error.to_string();
    if matches!(error.command(), Some(kaml_device::Error::MetadataDamaged(_))) {
        text += "; `kaml salvage` reads what is whole";
    }
    let name = path.display().to_string();
    Failure::Failed(if text.contains(&name) { text } else { format!("{name}: {text}") })
}

/// A namespace by its name.
pub fn namespace(device: &Device, name: &str) -> Result<NamespaceInfo, Failure> {
    let id = device.namespace(name)?;
    let found = device.namespaces().into_iter().find(|info| info.id == id);
    found.ok_or_else(|| Failure::NotFound(format!("namespace `{name}` was deleted meanwhile")))
}

/// A namespace by its name, made with default options if it is missing.
pub fn namespace_or_new(device: &Device, name: &str) -> Result<NamespaceInfo, Failure> {
    if device.namespace(name).is_err() {
        device.create_namespace(name, &NamespaceOptions::default())?;
    }
    namespace(device, name)
}
