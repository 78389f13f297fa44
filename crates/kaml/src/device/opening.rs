//! How a device comes to be open.
//!
//! Lives here:       creating, opening, salvage, devices in memory and on other media.
//! Lives elsewhere:  what is read and written then (`kaml_device::Core`), the shape of the file (`kaml_flash`).

use super::{About, Device, Inner};
use crate::driver::Shared;
use crate::error::Error;
use crate::sync::{Instant, Mutex};
use crate::{NamespaceInfo, background};
use kaml_device::{Core, OpenReport, SalvageReport};
use kaml_flash::{
    Durability, FileMedium, FormatOptions as CreateOptions, Geometry, Medium, MemoryMedium, OpenOptions, Overlay,
};
use std::path::Path;
use std::sync::Arc;

/// A medium in memory of the shape that a file would have, with a random UUID (RFC 9562, version 4): hosts know a device by its UUID,
/// and may use several devices in memory at a time.
fn memory(options: &CreateOptions) -> Result<MemoryMedium, Error> {
    let geometry = Geometry::with_room(options.capacity_bytes, 512, options, &kaml_device::has_room)?;
    let number = u128::from(crate::sync::secret_word(0)) << 64 | u128::from(crate::sync::secret_word(1));
    let mut uuid = number.to_be_bytes();
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(MemoryMedium::with_uuid(geometry, uuid).map_err(kaml_flash::FormatError::from)?)
}

/// A number that nobody can foretell.
fn random() -> u64 {
    crate::sync::secret_word(0)
}

impl Device {
    /// Creates a device on a file (made sparse, of the given capacity) or a block device, and opens it. If that fails, a file that did not
    /// exist does not exist afterwards.
    ///
    /// # Errors
    /// - [`Error::BadCreateOptions`], [`Error::DeviceTooSmall`], [`Error::NotAFile`] if no device can have these sizes there.
    /// - [`Error::NotEmpty`] if the path has contents and [`CreateOptions::force`] is not set; [`Error::InUse`] if another
    ///   process has it open.
    /// - [`Error::Io`], [`Error::NoSpace`] if the system refuses.
    pub fn create(path: impl AsRef<Path>, options: &CreateOptions) -> Result<Device, Error> {
        Device::create_with(path, options, &mut |_, _| {})
    }

    /// As [`Device::create`]; `progress` receives bytes written and bytes in all while the blocks are written ahead
    /// ([`CreateOptions::prewrite`]).
    ///
    /// # Errors
    /// As [`Device::create`].
    pub fn create_with(
        path: impl AsRef<Path>,
        options: &CreateOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Device, Error> {
        let path = path.as_ref();
        let is_new = !path.exists();
        let medium = FileMedium::create_with(path, options, &kaml_device::has_room, progress)?;
        let durability = medium.durability();
        let made = Core::format(&medium).map_err(Error::from);
        let made = made.and_then(|()| Device::start(Arc::new(medium), path, durability, false, random));
        let made = made.map(Device::with_host_clocks);
        if made.is_err() && is_new {
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Opens a device. After a crash this brings back exactly what was acknowledged.
    ///
    /// With [`OpenOptions::read_only`] nothing is ever written to it. If its last user was killed, it is recovered in memory
    /// each time, which takes up to the size of the commit ring and a few blocks of it. So one that is worn out, or lies
    /// where nothing can be written, can be read.
    ///
    /// A process that is forked from this one has a copy of the locked descriptor, and cannot use the device. If this process is killed, the
    /// device stays in use until the other one ends or executes another program.
    ///
    /// # Errors
    /// - [`Error::NotADevice`], [`Error::DeviceDamaged`], [`Error::NewerVersion`] if there is no device that this version reads.
    /// - [`Error::InUse`] if another process has it open; [`Error::Io`] if the system refuses.
    /// - [`Error::RestoreUnfinished`] if a restore to it was interrupted.
    /// - [`Error::RootsDamaged`], [`Error::MetadataDamaged`], [`Error::IndexDamaged`] if it cannot be recovered;
    ///   [`Device::salvage`] reads what is whole.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Device, Error> {
        let device = Device::open_unfinished(path.as_ref(), options)?;
        match device.namespace(crate::backup::UNFINISHED) {
            Ok(_) => Err(Error::RestoreUnfinished { path: path.as_ref().to_owned() }),
            Err(_) => Ok(device),
        }
    }

    /// As [`Device::open`], also of a device that is being restored.
    pub(crate) fn open_unfinished(path: &Path, options: &OpenOptions) -> Result<Device, Error> {
        let medium = FileMedium::open(path, options)?;
        let durability = medium.durability();
        let medium: Arc<dyn Medium> = match options.read_only && !Core::was_closed(&medium)? {
            true => Arc::new(Overlay::new(Arc::new(medium))),
            false => Arc::new(medium),
        };
        Ok(Device::start(medium, path, durability, options.read_only, random)?.with_host_clocks())
    }

    /// What hosts know the device at a path by, which is [`crate::DeviceInfo::uuid`]. No other program may be writing to it.
    ///
    /// # Errors
    /// [`Error::NotADevice`], [`Error::DeviceDamaged`] if there is no device; [`Error::InUse`] if it is in use; [`Error::Io`].
    pub fn identity_of(path: impl AsRef<Path>) -> Result<[u8; 16], Error> {
        Ok(FileMedium::identity_of(path)?)
    }

    /// Gives the device at a path, which nobody may have open, another identity, and returns it. A copy of a device has the identity of
    /// the original, so it needs another one before the same host uses both: a host takes devices of one identity for paths to the same
    /// data. What is stored does not change. A power cut leaves the old identity or the new one.
    ///
    /// # Errors
    /// As [`Device::identity_of`]; [`Error::Io`] if it cannot be written.
    pub fn renew_identity(path: impl AsRef<Path>) -> Result<[u8; 16], Error> {
        Ok(FileMedium::renew_identity(path)?)
    }

    /// A device in memory, gone when it is closed: for tests and for measuring what the medium costs.
    ///
    /// # Errors
    /// [`Error::BadCreateOptions`] if no device can have these sizes; [`Error::Thread`] if the system refuses a thread.
    pub fn in_memory(options: &CreateOptions) -> Result<Device, Error> {
        Device::in_memory_of(memory(options)?, options)
    }

    /// As [`Device::in_memory`], but all of its memory is taken from the system before anything is written.
    ///
    /// # Errors
    /// As [`Device::in_memory`].
    pub fn in_allocated_memory(options: &CreateOptions) -> Result<Device, Error> {
        let medium = memory(options)?;
        medium.allocate();
        Device::in_memory_of(medium, options)
    }

    fn in_memory_of(medium: MemoryMedium, options: &CreateOptions) -> Result<Device, Error> {
        Core::format(&medium)?;
        let device = Device::start(Arc::new(medium), Path::new(""), options.durability, false, random)?;
        Ok(device.with_host_clocks())
    }

    /// Opens a device on any medium that was formatted before. It does the same each time: nothing is drawn at random, so this is for
    /// laboratories. Its clock stands still until it is advanced ([`Device::clock`]). A tenant that knows the UUID of such a device can choose keys that collide, and values that pass for metadata.
    ///
    /// # Errors
    /// As [`Device::open`], as far as that concerns what is on the medium.
    pub fn on_medium(medium: Arc<dyn Medium>) -> Result<Device, Error> {
        Device::start(medium, Path::new(""), Durability::Power, false, || 0)
    }

    /// Opens a device without one of its namespaces, which is deleted with everything in it: for a device that cannot be opened
    /// after a crash because that namespace is damaged. [`Device::salvage`] reads what remains of it before. Returns also what it
    /// was.
    ///
    /// # Errors
    /// As [`Device::open`]; [`Error::UnknownNamespaceName`] if there is no such namespace.
    pub fn open_without(path: impl AsRef<Path>, name: &str) -> Result<(Device, NamespaceInfo), Error> {
        let begin = Instant::now();
        let medium = FileMedium::open(path.as_ref(), &OpenOptions::default())?;
        let durability = medium.durability();
        let (mut core, report, gone) = Core::open_without(&medium, name, &mut random)?;
        let path = path.as_ref().display().to_string();
        let about = About { path, durability, report, open: begin.elapsed(), read_only: false };
        core.draw_index_seed(random);
        Ok((Device::run(core, Arc::new(medium), about)?.with_host_clocks(), gone))
    }

    /// Opens a damaged device, or one whose last user was killed, for reading, and changes nothing on it: what recovery
    /// writes is kept in memory, up to the size of the commit ring and a few blocks. Indexes that cannot be read are made again
    /// from a scan of all pages; the report states which, and what else is damaged. Of a file that was cut short what remains is read.
    /// `progress` receives blocks read and blocks in
    /// all meanwhile.
    ///
    /// Fails if there is no superblock, or no root that can be read: neither at the beginning of the device nor at its end.
    ///
    /// # Errors
    /// [`Error::NotADevice`], [`Error::RootsDamaged`], [`Error::MetadataDamaged`] if neither end of the device describes it;
    /// [`Error::InUse`], [`Error::Io`].
    pub fn salvage(
        path: impl AsRef<Path>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Device, SalvageReport), Error> {
        let begin = Instant::now();
        let (medium, why) = FileMedium::open_damaged(path.as_ref())?;
        let durability = medium.durability();
        let medium = Arc::new(Overlay::of_damaged(Arc::new(medium)));
        let (core, mut found) = Core::salvage(&*medium, progress)?;
        found.problems.splice(0..0, why.map(|why| why.to_string()));
        let path = path.as_ref().display().to_string();
        let about = About { path, durability, report: OpenReport::default(), open: begin.elapsed(), read_only: true };
        Ok((Device::run(core, medium, about)?.with_host_clocks(), found))
    }

    fn start(
        medium: Arc<dyn Medium>,
        path: &Path,
        durability: Durability,
        read_only: bool,
        mut draw: fn() -> u64,
    ) -> Result<Device, Error> {
        let begin = Instant::now();
        let (mut core, report) = match read_only {
            true => Core::open_to_read(&*medium)?,
            false => Core::open_with(&*medium, &mut draw)?,
        };
        core.draw_index_seed(draw);
        let path = path.display().to_string();
        let about = About { path, durability, report, open: begin.elapsed(), read_only };
        Device::run(core, medium, about)
    }

    fn run(core: Core, medium: Arc<dyn Medium>, about: About) -> Result<Device, Error> {
        let shared = Arc::new(Shared::new(core, medium));
        let background = background::start(shared.clone())?;
        Ok(Device { inner: Arc::new(Inner { shared, background: Mutex::new(Some(background)), about }), right: None })
    }
}
