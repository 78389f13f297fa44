//! The command set of a device somewhere else, as [`kaml::Device`] has it.
//!
//! Lives here:       calls and their errors; which command of a queue executes them.
//! Lives elsewhere:  the commands (`keyvalue`, `versions`), opening and errors (`remote`).

use super::carrier::unknown_if_lost;
use super::remote::{Once, RemoteDevice, local};
use super::{Error, KeyValue};
use crate::wire::command::{Command, CommandSet, admin};
use crate::wire::identify::{Controller as ControllerPage, LBA_FORMATS, PAGE_BYTES, cns, controller_list};
use crate::wire::keyvalue::{KeyFormat, store};
use crate::wire::logs::lid;
use crate::wire::manage::{
    Attributes, Create, PUT_RECORD_BYTES_MAX, PutAction, Wanted, encode_batch, encode_change, encode_put, format_of,
};
use crate::wire::status::Status;
use crate::wire::vendor::{decode_namespaces, feature, namespaces_bytes};
use kaml::{
    At, Batch, BlockOptions, Compressed, Compression, Condition, Difference, Key, KeyBuf, KeyKind, KeyRef, MergeReport,
    NamespaceChange, NamespaceId, NamespaceInfo, NamespaceKind, NamespaceOptions, Past, Retention, VersionStats,
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Room for a value whose size is not known: what most values need; larger ones take a second command.
pub(super) const ROOM_AT_FIRST: usize = 4096;
/// Namespaces that there is room for at first.
const NAMESPACES_AT_FIRST: usize = 16;
/// Bytes that a listed key takes at most.
const LISTED_BYTES_MAX: usize = 20;
/// Keys, and versions of one key, fetched at a time at most.
const KEYS_AT_ONCE: usize = 8192;
const VERSIONS_AT_ONCE: usize = 1 << 18;

impl RemoteDevice {
    // --- namespaces -------------------------------------------------------------------------------------------------

    /// Namespaces that are attached. Those of a device that is not ours are called by their numbers.
    pub fn namespaces(&self) -> Result<Vec<NamespaceInfo>, kaml::Error> {
        let listed = if self.can(feature::NAMESPACES) { self.named_namespaces() } else { self.numbered_namespaces() };
        listed.map_err(|error| local(error, 0, None))
    }

    /// Whether [`RemoteDevice::namespaces`] has their names, their kinds, and how many records each holds.
    pub fn names_namespaces(&self) -> bool {
        self.can(feature::NAMESPACES)
    }

    pub(super) fn named_namespaces(&self) -> Result<Vec<NamespaceInfo>, Error> {
        let mut room = NAMESPACES_AT_FIRST;
        loop {
            let data = self.log_page(lid::KAML_NAMESPACES, 0, namespaces_bytes(room))?;
            let (infos, count) = decode_namespaces(&data).ok_or(Error::Unsupported("names of namespaces"))?;
            if count <= room {
                return Ok(infos);
            }
            room = count;
        }
    }

    fn numbered_namespaces(&self) -> Result<Vec<NamespaceInfo>, Error> {
        let info = |id: u32| NamespaceInfo {
            id,
            name: id.to_string(),
            kind: NamespaceKind::Records(KeyKind::Bytes),
            logs: Vec::new(),
            record_count: 0,
            index_bytes: 0,
            loaded: true,
            default_ttl_ms: None,
            expiring_count: 0,
            compression: Compression::None,
            compressed: Compressed::default(),
        };
        Ok(self.standard_namespaces()?.into_iter().map(info).collect())
    }

    /// Creates a namespace and attaches it to us.
    pub fn create_namespace(&self, name: &str, options: &NamespaceOptions) -> Result<NamespaceId, kaml::Error> {
        let options = options.resolved()?;
        self.create(name, &options).map_err(|error| local(error, 0, None))
    }

    fn create(&self, name: &str, options: &NamespaceOptions) -> Result<NamespaceId, Error> {
        let mut data = Create::new_zeroed();
        let (set, versions) = match options.kind {
            NamespaceKind::Records(_) => (CommandSet::KeyValue, None),
            NamespaceKind::Blocks(blocks) => {
                let format = LBA_FORMATS.iter().position(|power| 1 << power == blocks.block_bytes);
                let usual = BlockOptions::new(blocks.block_bytes, blocks.block_count) == blocks;
                data.flbas = format.filter(|_| usual).ok_or(Error::Unsupported("such blocks"))? as u8;
                (data.nsze, data.ncap) = (blocks.block_count.into(), blocks.block_count.into());
                (CommandSet::Nvm, None)
            }
            NamespaceKind::Versions(_, versions) if versions.bloom.is_some() => {
                return Err(Error::Unsupported("the index of the Muninn paper"));
            }
            NamespaceKind::Versions(_, versions)
                if versions.merge_when_low.is_some() && !self.can(feature::CHANGES) =>
            {
                return Err(Error::Unsupported("merges when space runs low"));
            }
            NamespaceKind::Versions(_, versions)
                if versions.merge_when_low.is_some_and(|policy| policy.newest_only)
                    && !self.can(feature::NEWEST_ONLY) =>
            {
                return Err(Error::Unsupported("an index on flash"));
            }
            NamespaceKind::Versions(_, versions) => (CommandSet::KeyValue, Some(versions)),
        };
        let compression = options.compression;
        if compression != Compression::None && !self.can(feature::COMPRESSION) {
            return Err(Error::Unsupported("compression"));
        }
        let (name, keys) = (Some(name.to_owned()), Some(options.kind.keys()));
        let wanted = Wanted { name, keys, logs: options.logs.clone(), versions, compression };
        data.kaml = Attributes::of(&wanted).ok_or(Error::Unsupported("such a long name, or so many logs"))?;
        let mut command = Command::new(admin::NAMESPACE_MANAGEMENT, 0);
        command.cdw11 = (u32::from(set.csi()) << 24).into();
        let nsid = self.manage(command, data.as_bytes())?;
        let page = self.identify(cns::CONTROLLER, 0, 0)?;
        let (page, _) =
            ControllerPage::read_from_prefix(&page).map_err(|_| Error::Unsupported("Identify Controller"))?;
        let mut list = controller_list(std::iter::once(page.cntlid.get()));
        list.resize(PAGE_BYTES, 0);
        self.manage(Command::new(admin::NAMESPACE_ATTACHMENT, nsid), &list)?;
        Ok(nsid)
    }

    /// Renames a namespace, maps it to other logs, or states what may go when space runs low; durable when it returns.
    pub fn set_namespace(&self, namespace: NamespaceId, change: &NamespaceChange) -> Result<(), kaml::Error> {
        self.set(namespace, change).map_err(|error| local(error, namespace, None))
    }

    fn set(&self, namespace: NamespaceId, change: &NamespaceChange) -> Result<(), Error> {
        if !self.can(feature::CHANGES) {
            return Err(Error::Unsupported("changes of namespaces"));
        }
        if change.compression.is_some() && !self.can(feature::COMPRESSION) {
            return Err(Error::Unsupported("compression"));
        }
        let too_long = Error::Unsupported("such a long name, or so many logs");
        let (bits, data) = encode_change(change).ok_or(too_long)?;
        let mut command = Command::new(admin::SET_NAMESPACE, namespace);
        command.cdw10 = bits.into();
        self.manage(command, data.as_bytes()).map(drop)
    }

    /// Deletes a namespace with everything in it.
    pub fn delete_namespace(&self, namespace: NamespaceId) -> Result<(), kaml::Error> {
        let mut command = Command::new(admin::NAMESPACE_MANAGEMENT, namespace);
        command.cdw10 = 1.into();
        self.manage(command, &[]).map(drop).map_err(|error| local(error, namespace, None))
    }

    // --- records ----------------------------------------------------------------------------------------------------

    /// Reads a value.
    pub fn get<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<Option<Vec<u8>>, kaml::Error> {
        let (key, space) = (key.into().to_buf()?, KeyValue::new(self, namespace));
        let found = match key.as_short() {
            Some(key) => whole(|room| space.retrieve(&key, room)),
            None => self.get_long(0, namespace, &key),
        };
        found.map_err(|error| local(error, namespace, None))
    }

    /// Whether a key exists.
    pub fn exists<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<bool, kaml::Error> {
        let key = key.into().to_buf()?;
        let exists = match key.as_short() {
            Some(key) => KeyValue::new(self, namespace).exist(&key),
            None => self.exists_long(0, namespace, &key),
        };
        exists.map_err(|error| local(error, namespace, None))
    }

    /// Stores a value under a condition; durable when it returns.
    pub fn put_if<'k>(
        &self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        value: &[u8],
        condition: Condition,
    ) -> Result<(), kaml::Error> {
        let key = key.into().to_buf()?;
        let stored = match key.as_short() {
            Some(key) => self.put_short(namespace, &key, value, condition),
            None => match condition {
                Condition::Always => self
                    .may_repeat_puts(namespace)
                    .and_then(|repeatable| self.put_long(namespace, &key, PutAction::Store(value), repeatable)),
                Condition::IfPresent => self.put_long(namespace, &key, PutAction::StoreIfPresent(value), false),
                Condition::IfAbsent => self.put_long(namespace, &key, PutAction::StoreIfAbsent(value), false),
                Condition::UnchangedSince(_) => Err(Error::Unsupported("conditions on sequences")),
            },
        };
        stored.map_err(|error| self.not_stored(error, Some(&key), &[namespace]))
    }

    fn put_short(&self, namespace: NamespaceId, key: &Key, value: &[u8], condition: Condition) -> Result<(), Error> {
        match condition {
            Condition::Always => match self.may_repeat_puts(namespace)? {
                true => KeyValue::new(self, namespace).store(key, value, 0),
                false => self.store_once(namespace, key, value, 0),
            },
            Condition::IfPresent => self.store_once(namespace, key, value, store::MUST_EXIST),
            Condition::IfAbsent => self.store_once(namespace, key, value, store::MUST_NOT_EXIST),
            Condition::UnchangedSince(_) => Err(Error::Unsupported("conditions on sequences")),
        }
    }

    /// Stores a value so that it takes effect once. The standard command has no room for a number, so it is a Put where those are known.
    fn store_once(&self, namespace: NamespaceId, key: &Key, value: &[u8], options: u8) -> Result<(), Error> {
        let once = Once(self);
        let space = KeyValue::new(&once, namespace);
        let bytes_max = value.len() + PUT_RECORD_BYTES_MAX;
        if !self.can(feature::PUT) || !self.carrier.has_session() || bytes_max > self.transfer_bytes_max() {
            return space.store(key, value, options);
        }
        let action = match options {
            store::MUST_EXIST => PutAction::StoreIfPresent(value),
            store::MUST_NOT_EXIST => PutAction::StoreIfAbsent(value),
            _ => PutAction::Store(value),
        };
        let mut data = Vec::with_capacity(bytes_max);
        encode_put(&mut data, namespace, key, action);
        space.put(&data, 1)
    }

    /// An admin command that creates, changes or deletes a namespace; it is not sent again.
    fn manage(&self, command: Command, data: &[u8]) -> Result<u32, Error> {
        Ok(unknown_if_lost(self.carrier.admin(command, data, 0))?.success()?.result as u32)
    }

    /// As [`local`], of what was to be stored: shows which namespace does not exist. One that exists and not attached to us was not
    /// deleted, so nobody may forget what is to be stored in it.
    fn not_stored(&self, error: Error, key: Option<&KeyBuf>, namespaces: &[NamespaceId]) -> kaml::Error {
        if !error.status().is_some_and(|status| status.is(Status::INVALID_NAMESPACE)) {
            return local(error, namespaces[0], key);
        }
        let is_gone = |id: &&NamespaceId| self.is_allocated(**id).is_ok_and(|is_there| !is_there);
        match namespaces.iter().find(is_gone) {
            Some(gone) => kaml::Error::UnknownNamespace(*gone),
            None => kaml::Error::Remote(error.to_string()),
        }
    }

    /// Stores the records of a batch, over any namespaces, all or none; durable when it returns.
    pub fn write(&self, batch: &Batch) -> Result<(), kaml::Error> {
        if !batch.is_plain() {
            let why = "operands, expected values and times of expiry are not sent over the network";
            return Err(kaml::Error::Remote(why.to_owned()));
        }
        let format = format_of(batch)?;
        let mut records = batch.records();
        let Some(first) = records.next() else { return Err(kaml::Error::EmptyBatch) };
        let key = if records.next().is_none() { Some(first.key.to_buf()?) } else { None };
        match (&key, first.value) {
            (Some(key), Some(value)) => self.put_if(first.namespace, key, value, first.condition),
            _ => self.put(batch, first.namespace, format).map_err(|error| {
                let mut namespaces: Vec<NamespaceId> = batch.records().map(|record| record.namespace).collect();
                namespaces.dedup();
                self.not_stored(error, key.as_ref(), &namespaces)
            }),
        }
    }

    fn put(&self, batch: &Batch, first: NamespaceId, format: KeyFormat) -> Result<(), Error> {
        if format == KeyFormat::Long {
            self.need_long_keys()?;
        }
        if !self.can(feature::PUT) {
            return self.put_by_standard(batch);
        }
        let mut data = Vec::new();
        let count = encode_batch(&mut data, batch, format);
        let max = self.transfer_bytes_max();
        if data.len() > max {
            return Err(Error::TooLong { bytes: data.len(), max });
        }
        let mut repeatable = true;
        for record in batch.records() {
            repeatable =
                repeatable && record.condition == Condition::Always && self.may_repeat_puts(record.namespace)?;
        }
        let once = Once(self);
        let (again, once) = (KeyValue::new(self, first), KeyValue::new(&once, first));
        match (format, repeatable) {
            (KeyFormat::Short, true) => again.put(&data, count),
            (KeyFormat::Short, false) => once.put(&data, count),
            (KeyFormat::Long, true) => again.put_long(&data, count),
            (KeyFormat::Long, false) => once.put_long(&data, count),
        }
    }

    /// One delete without a condition is all that a device without our commands can do.
    fn put_by_standard(&self, batch: &Batch) -> Result<(), Error> {
        let mut records = batch.records();
        match (records.next(), records.next()) {
            (Some(only), None) if only.value.is_none() && only.condition == Condition::Always => {
                let key = Key::new(only.key.as_bytes()).map_err(|_| Error::Unsupported("keys above 16 bytes"))?;
                KeyValue::new(self, only.namespace).delete(&key)
            }
            _ => Err(Error::Unsupported("Puts of several records, or with conditions on deletes")),
        }
    }

    /// Keys after one in the order of the device, or from the first one on: at most `limit`, none at the end.
    pub fn list(
        &self,
        namespace: NamespaceId,
        after: Option<&KeyBuf>,
        limit: usize,
    ) -> Result<Vec<KeyBuf>, kaml::Error> {
        let limit = limit.min(KEYS_AT_ONCE);
        if self.has_long_keys(namespace).map_err(|error| local(error, namespace, None))? {
            return self.list_long(namespace, after, limit);
        }
        let after = after.map(|key| Key::new(key.as_bytes())).transpose()?;
        // The key that it begins with may come again.
        let room = 4 + (limit + 1) * LISTED_BYTES_MAX;
        let listed = KeyValue::new(self, namespace).list(after.as_ref(), room);
        let mut keys = listed.map_err(|error| local(error, namespace, None))?;
        keys.retain(|key| Some(*key) != after);
        keys.truncate(limit);
        Ok(keys.into_iter().map(KeyBuf::from).collect())
    }

    // --- versions ---------------------------------------------------------------------------------------------------

    /// Something on versions, if the device keeps any.
    fn versions<T>(
        &self,
        namespace: NamespaceId,
        act: impl FnOnce(KeyValue<'_, RemoteDevice>, KeyValue<'_, Once<'_>>) -> Result<T, Error>,
    ) -> Result<T, kaml::Error> {
        let once = Once(self);
        let done = match self.can(feature::VERSIONS) {
            true => act(KeyValue::new(self, namespace), KeyValue::new(&once, namespace)),
            false => Err(Error::Unsupported("versions")),
        };
        done.map_err(|error| local(error, namespace, None))
    }

    /// As [`RemoteDevice::versions`], about a snapshot; states which one there is not.
    fn snapshots<T>(
        &self,
        namespace: NamespaceId,
        version: u32,
        act: impl FnOnce(KeyValue<'_, RemoteDevice>, KeyValue<'_, Once<'_>>) -> Result<T, Error>,
    ) -> Result<T, kaml::Error> {
        let mut missing = false;
        let done = self.versions(namespace, |repeated, once| {
            let done = act(repeated, once);
            missing = matches!(&done, Err(error) if error.status().is_some_and(|s| s.is(Status::NO_SUCH_SNAPSHOT)));
            done
        });
        if !missing {
            return done;
        }
        let present = self.version_stats(namespace)?.user_version;
        Err(kaml::Error::NoSnapshot { version, present })
    }

    /// Reads a version of a value; nothing if it does not exist or deleted.
    pub fn get_version(&self, namespace: NamespaceId, key: Key, at: At) -> Result<Option<Vec<u8>>, kaml::Error> {
        let version = if let At::Snapshot(version) = at { version } else { 0 };
        self.snapshots(namespace, version, |space, _| whole(|room| space.retrieve_version(&key, at, room)))
    }

    /// Versions of a key, newest first, at most `limit`. Their place in a segment is not returned.
    pub fn history(&self, namespace: NamespaceId, key: Key, limit: usize) -> Result<Vec<Past>, kaml::Error> {
        self.versions(namespace, |space, _| space.history(&key, limit.min(VERSIONS_AT_ONCE)))
    }

    /// Undoes the last `count` changes of a key; returns whether it exists then.
    pub fn undo(&self, namespace: NamespaceId, key: Key, count: u32) -> Result<bool, kaml::Error> {
        self.versions(namespace, |_, once| once.undo(&key, count))
    }

    /// Takes a snapshot; returns its number.
    pub fn snapshot(&self, namespace: NamespaceId) -> Result<u32, kaml::Error> {
        self.versions(namespace, |_, once| once.take_snapshot())
    }

    /// Forgets a snapshot.
    pub fn forget_snapshot(&self, namespace: NamespaceId, version: u32) -> Result<(), kaml::Error> {
        self.snapshots(namespace, version, |_, once| once.forget_snapshot(version))
    }

    /// Makes a namespace look as it did in a snapshot; returns the number of the one taken of what it looked like.
    pub fn roll_back(&self, namespace: NamespaceId, to: u32) -> Result<u32, kaml::Error> {
        self.snapshots(namespace, to, |_, once| once.roll_back(to))
    }

    /// Reports which keys differ between two snapshots, or a snapshot and now; `each` returns whether to continue.
    pub fn diff(
        &self,
        namespace: NamespaceId,
        from: Option<u32>,
        to: Option<u32>,
        each: &mut dyn FnMut(Key, Difference) -> bool,
    ) -> Result<(), kaml::Error> {
        self.snapshots(namespace, from.or(to).unwrap_or(0), |space, _| space.diff(from, to, each))
    }

    /// How a versioned namespace is.
    pub fn version_stats(&self, namespace: NamespaceId) -> Result<VersionStats, kaml::Error> {
        self.versions(namespace, |space, _| space.version_stats())
    }

    /// Gives the space of versions back that the rules do not keep, or only states how many that would be.
    pub fn merge(
        &self,
        namespace: NamespaceId,
        retention: &Retention,
        dry_run: bool,
    ) -> Result<MergeReport, kaml::Error> {
        self.versions(namespace, |space, once| match dry_run {
            true => space.merge(retention, true),
            false => once.merge(retention, false),
        })
    }
}

/// Reads a value whose size is not known.
pub(super) fn whole(
    mut read: impl FnMut(usize) -> Result<Option<(Vec<u8>, usize)>, Error>,
) -> Result<Option<Vec<u8>>, Error> {
    let mut room = ROOM_AT_FIRST;
    loop {
        match read(room)? {
            None => return Ok(None),
            Some((value, bytes)) if value.len() == bytes => return Ok(Some(value)),
            // It is larger than what there was room for.
            Some((_, bytes)) => room = bytes,
        }
    }
}
