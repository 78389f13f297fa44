//! What a target knows of its source: records of a namespace of its own.
//!
//! Lives here:       which device it follows, up to which position, and how far each namespace is copied.
//! Lives elsewhere:  who changes that (`apply`, `copy`).
//!
//! Whatever is applied is in one batch with the state after it. So a target that is opened again, after whatever crash, knows what it has.

use super::{Stop, of_target};
use crate::failure::Failure;
use crate::keys::hex;
use kaml::{
    Batch, ChangesCursor, Device, KeyBuf, Namespace, NamespaceChange, NamespaceId, NamespaceInfo, NamespaceKind,
    NamespaceOptions, Position,
};
use std::collections::{BTreeMap, BTreeSet};

/// The namespace with the state; a follower of a follower does not copy it.
pub const STATE: &str = ".kaml-follow";

const SOURCE: &str = "source";
const POSITION: &str = "position";
/// Before the number of a namespace of the source.
const SPACE: u8 = b's';

/// How far a namespace is copied. Keys are in the order of the index of whom they are listed of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// What the source has after a key is missing; after that, `sweeps`, keys may exist that the source has not.
    Copying { after: Option<KeyBuf>, sweeps: bool },
    /// Keys of the target after this one may not exist on the source.
    Sweeping { after: Option<KeyBuf> },
    /// It is what the source had at the position.
    Whole,
}

/// A namespace that is followed.
#[derive(Clone, Debug)]
pub struct Followed {
    /// Its number on the target.
    pub target: NamespaceId,
    pub progress: Progress,
}

/// A device that follows.
pub struct Target {
    device: Device,
    state: Namespace,
    /// Up to where it has everything.
    pub cursor: ChangesCursor,
    has_position: bool,
    pub spaces: BTreeMap<NamespaceId, Followed>,
}

fn space_key(source: NamespaceId) -> [u8; 5] {
    let [a, b, c, d] = source.to_be_bytes();
    [SPACE, a, b, c, d]
}

impl Followed {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.target.to_le_bytes().to_vec();
        let (tag, key) = match &self.progress {
            Progress::Copying { after, sweeps: false } => (if after.is_some() { 1 } else { 0 }, after.as_ref()),
            Progress::Copying { after, sweeps: true } => (if after.is_some() { 3 } else { 2 }, after.as_ref()),
            Progress::Sweeping { after } => (if after.is_some() { 5 } else { 4 }, after.as_ref()),
            Progress::Whole => (6, None),
        };
        bytes.push(tag);
        bytes.extend_from_slice(key.map_or(&[], KeyBuf::as_bytes));
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Followed> {
        let (target, rest) = bytes.split_first_chunk()?;
        let (tag, key) = rest.split_first()?;
        let after = if tag % 2 == 1 { Some(KeyBuf::new(key).ok()?) } else { key.is_empty().then_some(None)? };
        let progress = match tag {
            0 | 1 => Progress::Copying { after, sweeps: false },
            2 | 3 => Progress::Copying { after, sweeps: true },
            4 | 5 => Progress::Sweeping { after },
            6 => Progress::Whole,
            _ => return None,
        };
        Some(Followed { target: u32::from_le_bytes(*target), progress })
    }
}

fn encode_cursor(cursor: &ChangesCursor) -> Vec<u8> {
    [&cursor.position.to_bytes()[..], &cursor.skip.to_le_bytes()].concat()
}

fn decode_cursor(bytes: &[u8]) -> Option<ChangesCursor> {
    let (position, skip) = bytes.split_first_chunk()?;
    Some(ChangesCursor { position: Position::from_bytes(position), skip: u32::from_le_bytes(skip.try_into().ok()?) })
}

impl Target {
    /// Opens a device to follow a source.
    ///
    /// # Errors
    /// It follows another one, or holds something else.
    pub fn open(device: Device, source: [u8; 16], name: &str) -> Result<Target, Failure> {
        if device.position()?.device() == source {
            return Err(Failure::Usage(format!("{name}: is the source itself; name another file")));
        }
        let others: Vec<String> =
            device.namespaces().into_iter().map(|info| info.name).filter(|other| other != STATE).collect();
        let exists = device.namespaces().iter().any(|info| info.name == STATE);
        let state = device.ensure_namespace(STATE, &NamespaceOptions::default())?;
        let known = state.get(SOURCE)?;
        match known.as_deref() {
            Some(known) if known == source => {}
            Some(known) => {
                return Err(Failure::Usage(format!(
                    "{name}: follows the device with identity {}, and the source has {}; name the source that it follows, or another target",
                    hex(known),
                    hex(&source)
                )));
            }
            None if !others.is_empty() => {
                if !exists {
                    device.delete_namespace(state.id())?;
                }
                return Err(Failure::Usage(format!(
                    "{name}: holds namespaces already, such as {:?}, and follows no device; name a new file",
                    others[0]
                )));
            }
            None => {}
        }
        let damaged = |what: &str| {
            Failure::Failed(format!(
                "{name}: what it knows of its source makes no sense ({what}); follow with a new target"
            ))
        };
        let cursor = match state.get(POSITION)? {
            Some(bytes) => Some(decode_cursor(&bytes).ok_or_else(|| damaged(POSITION))?),
            None => None,
        };
        let mut spaces = BTreeMap::new();
        for key in state.keys() {
            let key = key?;
            if let [SPACE, number @ ..] = key.as_bytes()
                && let Ok(number) = <[u8; 4]>::try_from(number)
            {
                let bytes = state.get(&key)?.unwrap_or_default();
                let followed = Followed::decode(&bytes).ok_or_else(|| damaged("a namespace"))?;
                spaces.insert(u32::from_be_bytes(number), followed);
            }
        }
        if known.is_none() {
            state.put(SOURCE, &source)?;
        }
        let start = Position::from_parts(source, 0, 0).into();
        Ok(Target { device, state, has_position: cursor.is_some(), cursor: cursor.unwrap_or(start), spaces })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn into_device(self) -> Device {
        let Target { device, state, .. } = self;
        drop(state);
        device
    }

    /// Whether it has a position to continue after.
    pub fn has_position(&self) -> bool {
        self.has_position
    }

    /// The position of what is applied is in a batch with it.
    pub fn note_cursor(&mut self, batch: &mut Batch, cursor: ChangesCursor) {
        batch.put(self.state.id(), POSITION, &encode_cursor(&cursor));
        (self.cursor, self.has_position) = (cursor, true);
    }

    /// How far a namespace is copied is in a batch with what was copied.
    pub fn note_progress(&mut self, batch: &mut Batch, source: NamespaceId, progress: Progress) {
        let Some(followed) = self.spaces.get_mut(&source) else { return };
        followed.progress = progress;
        batch.put(self.state.id(), &space_key(source)[..], &followed.encode());
    }

    /// Everything is to be copied again, over what exists.
    pub fn begin_again(&mut self) -> Result<(), Failure> {
        let mut batch = Batch::new();
        for source in self.spaces.keys().copied().collect::<Vec<_>>() {
            self.note_progress(&mut batch, source, Progress::Copying { after: None, sweeps: true });
        }
        batch.delete(self.state.id(), POSITION);
        self.has_position = false;
        Ok(self.device.write(&batch)?)
    }

    /// Makes the namespaces those that the source has now.
    pub fn reconcile(&mut self, infos: &[NamespaceInfo]) -> Result<(), Stop> {
        let is_followed =
            |info: &&NamespaceInfo| matches!(info.kind, NamespaceKind::Records(_)) && !info.name.starts_with(STATE);
        let wanted: BTreeMap<NamespaceId, &NamespaceInfo> =
            infos.iter().filter(is_followed).map(|info| (info.id, info)).collect();
        let gone: Vec<NamespaceId> = self.spaces.keys().filter(|id| !wanted.contains_key(id)).copied().collect();
        for source in gone {
            let Some(followed) = self.spaces.remove(&source) else { continue };
            match self.device.delete_namespace(followed.target) {
                Ok(()) | Err(kaml::Error::UnknownNamespace(_)) => {}
                Err(error) => return Err(of_target(error)),
            }
            self.state.delete(&space_key(source)[..]).map_err(of_target)?;
        }
        self.rename(&wanted)?;
        for (source, info) in wanted {
            if !self.spaces.contains_key(&source) {
                self.create(info)?;
            }
        }
        Ok(())
    }

    /// Gives namespaces the names and attributes that they have on the source. Names can change places, so they pass through others.
    fn rename(&mut self, wanted: &BTreeMap<NamespaceId, &NamespaceInfo>) -> Result<(), Stop> {
        let present: BTreeMap<NamespaceId, NamespaceInfo> =
            self.device.namespaces().into_iter().map(|info| (info.id, info)).collect();
        let set = |id, change: NamespaceChange| self.device.set_namespace(id, &change).map_err(of_target);
        let mut moved = Vec::new();
        for (source, followed) in &self.spaces {
            let (Some(want), Some(have)) = (wanted.get(source), present.get(&followed.target)) else { continue };
            if want.default_ttl_ms != have.default_ttl_ms {
                let change =
                    NamespaceChange { default_ttl_ms: Some(want.default_ttl_ms), ..NamespaceChange::default() };
                set(followed.target, change)?;
            }
            if want.name != have.name {
                let name = Some(format!("{STATE}-{source}"));
                set(followed.target, NamespaceChange { name, ..NamespaceChange::default() })?;
                moved.push((followed.target, want.name.clone()));
            }
        }
        moved.into_iter().try_for_each(|(target, name)| {
            set(target, NamespaceChange { name: Some(name), ..NamespaceChange::default() })
        })
    }

    fn create(&mut self, info: &NamespaceInfo) -> Result<(), Stop> {
        let mut options = NamespaceOptions::records(info.keys());
        options.default_ttl_ms = info.default_ttl_ms;
        let known: BTreeSet<NamespaceId> = self.spaces.values().map(|followed| followed.target).collect();
        // One that was created, and a crash came before that was noted.
        let found = self.device.namespaces().into_iter().find(|found| found.name == info.name);
        let target = match found.filter(|found| !known.contains(&found.id)) {
            Some(found) if found.record_count > 0 => {
                let why =
                    format!("the target has a namespace {:?} that does not follow; rename or delete it", info.name);
                return Err(Stop::Fatal(Failure::Failed(why)));
            }
            Some(found) if found.kind == info.kind => found.id,
            Some(found) => {
                self.device.delete_namespace(found.id).map_err(of_target)?;
                self.device.create_namespace(&info.name, &options).map_err(of_target)?
            }
            None => self.device.create_namespace(&info.name, &options).map_err(of_target)?,
        };
        let progress = Progress::Copying { after: None, sweeps: false };
        self.spaces.insert(info.id, Followed { target, progress: progress.clone() });
        let mut batch = Batch::new();
        self.note_progress(&mut batch, info.id, progress);
        self.device.write(&batch).map_err(of_target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   what a target knows survives being stored; other bytes are refused.
    /// Method: each state of a namespace, and each of its beginnings.
    #[test]
    fn states_can_be_stored() {
        let key = || Some(KeyBuf::new(b"a key of more than sixteen bytes").unwrap());
        let states = [
            Progress::Copying { after: None, sweeps: false },
            Progress::Copying { after: key(), sweeps: false },
            Progress::Copying { after: None, sweeps: true },
            Progress::Copying { after: key(), sweeps: true },
            Progress::Sweeping { after: None },
            Progress::Sweeping { after: key() },
            Progress::Whole,
        ];
        for progress in states {
            let bytes = Followed { target: 7, progress: progress.clone() }.encode();
            let again = Followed::decode(&bytes).unwrap();
            assert_eq!((again.target, again.progress), (7, progress));
            assert!((0..5).all(|len| Followed::decode(&bytes[..len]).is_none()));
        }
        assert!(Followed::decode(&[7, 0, 0, 0, 9]).is_none());
        let cursor = ChangesCursor { position: Position::from_parts([3; 16], 4, 5), skip: 6 };
        assert_eq!(decode_cursor(&encode_cursor(&cursor)), Some(cursor));
        assert_eq!(decode_cursor(&[0; 35]), None);
    }
}
