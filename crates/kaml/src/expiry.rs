//! When records expire.
//!
//! Lives here:       what a caller requests, and the clocks of the host.
//! Lives elsewhere:  the clock of a device, and removing what has expired (`kaml_device`).
//! Implements:       docs/ARCHITECTURE.md "Expiry".

use crate::device::Device;
use crate::driver::Shared;
use crate::error::Error;
use crate::{KeyRef, NamespaceId};
use kaml_device::{Body, Condition, DeviceClock, Expires, HostTime, Op, SpaceReader};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// When a record expires. From then on nobody sees it, and its room is released by itself.
///
/// Times are of the [clock of the device](Device::clock), which never goes back, in whole milliseconds; parts of one are rounded up. A time that
/// has passed: the record is never seen, and what it replaces is gone.
///
/// # Examples
/// ```
/// use kaml::{Batch, CreateOptions, Device, Expiry, NamespaceOptions};
/// use std::time::Duration;
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let options = NamespaceOptions::default().with_ttl(Duration::from_secs(3600));
/// let sessions = device.ensure_namespace("sessions", &options)?;
/// sessions.put("ada", b"an hour")?;
/// sessions.put_expiring("grace", b"a minute", Expiry::After(Duration::from_secs(60)))?;
/// let mut batch = Batch::new();
/// batch.put(sessions.id(), "admin", b"kept").expires(Expiry::Never);
/// device.write(&batch)?;
/// assert_eq!(sessions.expiry("admin")?, Some(Expiry::Never));
/// sessions.put_expiring("ada", b"", Expiry::After(Duration::ZERO))?;
/// assert_eq!(sessions.get("ada")?, None);
/// # Ok::<(), kaml::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expiry {
    /// After the time to live of its namespace ([`NamespaceOptions::with_ttl`](crate::NamespaceOptions::with_ttl)); never if that has none.
    #[default]
    Default,
    /// Never.
    Never,
    /// So long after it is put.
    After(Duration),
    /// At this time. The last one is in the year 10889; later ones mean never.
    At(SystemTime),
}

fn ms(duration: Duration) -> u64 {
    duration.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(u64::MAX)
}

impl Expiry {
    /// As the firmware takes it.
    pub(crate) fn resolve(self, shared: &Shared) -> Expires {
        match self {
            Expiry::Default => Expires::Default,
            Expiry::Never => Expires::Never,
            Expiry::After(duration) => Expires::At(shared.reader.clock().now_ms().saturating_add(ms(duration))),
            Expiry::At(time) => Expires::At(time.duration_since(UNIX_EPOCH).map_or(0, ms)),
        }
    }
}

/// The clocks of this host.
fn host_clocks() -> impl Fn() -> HostTime + Send + Sync {
    let origin = Instant::now();
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    move || HostTime {
        unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis),
        monotonic_ms: millis(origin.elapsed()),
    }
}

impl Device {
    /// From now on the clock of the device follows those of the host.
    pub(crate) fn with_host_clocks(self) -> Device {
        self.clock().set_source(host_clocks());
        self
    }

    /// The clock by which records expire. It never goes back: it begins with the time in the last root, follows the host's clock forward, and
    /// continues at the speed of the monotonic clock when the host's is set back. On a medium of a laboratory ([`Device::on_medium`]) it
    /// stands still until it is advanced.
    ///
    /// # Examples
    /// ```
    /// use kaml::{CreateOptions, Device, Expiry, NamespaceOptions};
    /// use std::time::Duration;
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let users = device.ensure_namespace("users", &NamespaceOptions::default())?;
    /// users.put_expiring("ada", b"", Expiry::After(Duration::from_secs(3600)))?;
    /// let clock = device.clock();
    /// clock.advance_to(clock.now_ms() + 3_600_000);
    /// assert!(!users.exists("ada")?);
    /// # Ok::<(), kaml::Error>(())
    /// ```
    pub fn clock(&self) -> &Arc<DeviceClock> {
        self.shared().reader.clock()
    }

    /// Stores a value that expires; durable when it returns.
    ///
    /// # Errors
    /// [`Error::VersionsDoNotExpire`] if the namespace keeps versions, unless the expiry is [`Expiry::Default`] or [`Expiry::Never`];
    /// otherwise as [`Device::put`].
    pub fn put_expiring<'k>(
        &self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        value: &[u8],
        expiry: Expiry,
    ) -> Result<(), Error> {
        let shared = self.shared();
        let body = Body::Value { value, crc32c: kaml_crc::crc32c(value) };
        let (key, expires) = (shared.key(key.into())?, expiry.resolve(shared));
        shared.write(self.by(), &mut [Op { namespace, key, body, condition: Condition::Always, expires }])
    }

    /// When the record of a key expires: [`Expiry::At`] or [`Expiry::Never`]. Nothing if the key does not exist. Reads no flash.
    ///
    /// # Errors
    /// [`Error::UnknownNamespace`]; [`Error::HoldsBlocks`], [`Error::KeepsVersions`] if it does not hold records; [`Error::BadKey`];
    /// [`Error::IndexDamaged`] if its index cannot be read.
    pub fn expiry<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<Option<Expiry>, Error> {
        let shared = self.shared();
        let key = shared.key(key.into())?;
        match shared.reader.of(namespace).map_err(|error| shared.refused(error))? {
            SpaceReader::Records(records) => {
                // A key that the namespace does not take is refused.
                if !shared.look(namespace, || records.exists(key))? {
                    return Ok(None);
                }
                let core = shared.load_index(shared.lock(), namespace)?;
                let found = core.expiry_of(namespace, &key);
                Ok(found.map(|time| match time {
                    0 => Expiry::Never,
                    time => Expiry::At(UNIX_EPOCH + Duration::from_millis(time)),
                }))
            }
            SpaceReader::Versions(_) => Err(Error::KeepsVersions(namespace)),
            SpaceReader::Blocks => Err(Error::HoldsBlocks(namespace)),
        }
    }
}
