//! The device that `kaml salvage` makes.
//!
//! Lives here:       its size, the temporary name that it has until it is whole, what becomes of it when salvage stops early.
//! Lives elsewhere:  what is copied into it (`copy`), temporary names (`whole`).

use crate::failure::Failure;
use crate::store;
use crate::whole::{self, Temporary};
use kaml::{
    BloomOptions, CreateOptions, Device, NamespaceId, NamespaceInfo, NamespaceKind, NamespaceOptions, VersionIndex,
    VersionOptions, VersionShape,
};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A target of fixed size takes what fits; another one is made larger when live data fill more than this part of its capacity.
const FILL: (u64, u64) = (7, 8);
/// Bytes at each end of a disk that are overwritten when salvage stops early: they hold the superblocks.
const END_BYTES: u64 = 1 << 20;

/// Where a target is made.
pub struct Site {
    path: PathBuf,
    kind: SiteKind,
    force: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SiteKind {
    /// Nothing has that name.
    New,
    /// A file, which is replaced.
    File,
    /// A block device, which is written in place and has the size that it has.
    Disk,
}

/// A device on its way. Dropped before [`Target::finish`], it leaves no device.
pub struct Target {
    /// Dropped first: it locks the file.
    device: Option<Device>,
    at: At,
}

enum At {
    /// Under a temporary name.
    Temporary { temporary: Temporary, path: PathBuf, is_new: bool },
    /// Under its own name.
    InPlace(PathBuf),
    /// It is whole.
    Finished,
}

impl Site {
    /// Looks at what has that name. `damaged` is never the target.
    pub fn find(path: &Path, damaged: &Path, force: bool) -> Result<Site, Failure> {
        store::refuse_remote(path)?;
        let failed = Failure::io(path.display());
        let found = match std::fs::metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Site { path: path.to_owned(), kind: SiteKind::New, force });
            }
            Err(error) => return Err(failed(error)),
        };
        if store::identity(path).is_some_and(|found| Some(found) == store::identity(damaged)) {
            return Err(Failure::Usage(format!("{}: is the damaged device itself", path.display())));
        }
        if !found.is_file() {
            return Ok(Site { path: path.to_owned(), kind: SiteKind::Disk, force });
        }
        if !force && found.len() > 0 {
            return Err(Failure::Failed(format!("{}: not empty; --force overwrites it", path.display())));
        }
        let file = File::open(path).map_err(&failed)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(Failure::Failed(format!("{}: another process has it open; close it first", path.display())));
        }
        // A symbolic link is kept; the file that it names is replaced.
        Ok(Site { path: path.canonicalize().map_err(failed)?, kind: SiteKind::File, force })
    }

    /// Whether a larger target can be made here.
    pub fn can_grow(&self) -> bool {
        self.kind != SiteKind::Disk
    }

    /// Makes a device here.
    pub fn make(&self, options: &CreateOptions) -> Result<Target, Failure> {
        if self.kind == SiteKind::Disk {
            let options = CreateOptions { force: self.force, ..options.clone() };
            let device = Some(Device::create(&self.path, &options)?);
            return Ok(Target { device, at: At::InPlace(self.path.clone()) });
        }
        let (temporary, file) = Temporary::file(&self.path, 0o600).map_err(Failure::io(self.path.display()))?;
        drop(file); // the device locks it
        let device = Device::create(temporary.path(), options).map_err(|error| {
            // Nobody knows the temporary name.
            let (temporary_name, name) = (temporary.path().display().to_string(), self.path.display().to_string());
            Failure::Failed(error.to_string().replace(&temporary_name, &name))
        })?;
        let at = At::Temporary { temporary, path: self.path.clone(), is_new: self.kind == SiteKind::New };
        Ok(Target { device: Some(device), at })
    }
}

impl Target {
    /// The device.
    pub fn device(&self) -> &Device {
        self.device.as_ref().expect("it exists until it is finished")
    }

    /// Whether the live data of another device are sure to fit.
    pub fn has_room_for(&self, other: &Device) -> bool {
        self.device().stats().capacity_bytes / FILL.1 * FILL.0 >= other.stats().live_bytes
    }

    /// A namespace of the same kind. The device may have other dies than the damaged one, so the shares of logs are as by default.
    pub fn namespace_like(&self, info: &NamespaceInfo) -> Result<NamespaceId, kaml::Error> {
        let create = |buffer_bytes| {
            let kind = match info.kind {
                NamespaceKind::Records(keys) => NamespaceKind::Records(keys),
                NamespaceKind::Blocks(blocks) => NamespaceKind::Blocks(blocks),
                NamespaceKind::Versions(keys, VersionShape { parameters, merge_when_low }) => {
                    let bloom = matches!(parameters.index, VersionIndex::Bloom(_)).then(BloomOptions::default);
                    NamespaceKind::Versions(
                        keys,
                        VersionOptions { bloom, merge_when_low, buffer_bytes, ..VersionOptions::default() },
                    )
                }
            };
            let mut options = NamespaceOptions::new(kind);
            options.default_ttl_ms = info.default_ttl_ms;
            options.compression = info.compression;
            self.device().create_namespace(&info.name, &options)
        };
        let buffer_bytes = match info.kind {
            NamespaceKind::Records(_) | NamespaceKind::Blocks(_) => 0,
            NamespaceKind::Versions(_, shape) => shape.parameters.buffer_bytes,
        };
        // The same buffer takes values of the same length. A smaller ring may have no room for it.
        match create(buffer_bytes) {
            Err(kaml::Error::BadVersionOptions(_)) => create(0),
            created => created,
        }
    }

    /// Closes the device and gives it its name.
    pub fn finish(mut self) -> Result<(), Failure> {
        if let Some(device) = self.device.take() {
            // Dropped where this fails, as all that is unfinished.
            device.close()?;
        }
        let At::Temporary { temporary, path, is_new } = std::mem::replace(&mut self.at, At::Finished) else {
            return Ok(());
        };
        let failed = Failure::io(path.display());
        if is_new { temporary.rename_new(&path) } else { temporary.rename(&path) }.map_err(&failed)?;
        whole::sync_directory(&path).map_err(failed)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.device.take());
        if let At::InPlace(path) = &self.at {
            // What cannot be written now could not have been written before.
            let _ = overwrite_ends(path);
        }
    }
}

/// Makes sure that nobody takes what exists for a device.
fn overwrite_ends(path: &Path) -> std::io::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    let length = file.seek(SeekFrom::End(0))?;
    let zeroes = vec![0; END_BYTES.min(length) as usize];
    file.write_all_at(&zeroes, 0)?;
    file.write_all_at(&zeroes, length - zeroes.len() as u64)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaml::OpenOptions;

    /// Goal:   a target that is written in place is no device when salvage stops early, and is one when it ends.
    /// Method: drop and finish one; open it and look for what can be salvaged of it.
    #[test]
    fn what_is_unfinished_in_place_is_no_device() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        for is_finished in [false, true] {
            let site = Site { path: path.clone(), kind: SiteKind::Disk, force: true };
            let target = site.make(&CreateOptions::new(64 << 20)).unwrap();
            if is_finished {
                target.finish().unwrap()
            } else {
                drop(target)
            }
            assert_eq!(Device::open(&path, &OpenOptions::default()).is_ok(), is_finished);
            assert_eq!(Device::salvage(&path, &mut |_, _| {}).is_ok(), is_finished);
        }
    }
}
