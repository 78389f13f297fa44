//! A device somewhere else as the record cache and transactions take it.
//!
//! Lives here:       reads of many values, Puts in an order.
//! Lives elsewhere:  the commands (`remote_commands`), the store on top (`kaml::store`).
//! Implements:       docs/ARCHITECTURE.md "The record cache", for a remote device.

use super::remote::RemoteDevice;
use super::remote_commands::ROOM_AT_FIRST;
use super::{Error, KeyValue};
use crate::wire::named::{Found, KEYS_MAX, NAMED_KEY_BYTES_MAX};
use crate::wire::status::Status;
use crate::wire::vendor::feature;
use kaml::store::{Backing, BatchReader, Limits, PendingPut};
use kaml::{Batch, Key, KeyBuf, KeyRef, NamespaceId};
use std::ops::Bound;

/// Room for values of one Retrieve Named.
const NAMED_BYTES: usize = 1 << 20;

/// Executed when it was made: commands over several connections have no order that could be fixed before.
struct Written;

impl PendingPut for Written {
    fn wait(self: Box<Self>) -> Result<(), kaml::Error> {
        Ok(())
    }
}

/// Batched gets: many commands in flight, or else lists of keys.
struct RemoteReader(RemoteDevice);

/// What a reader gets: the position of a key, and its value.
type Answer<'a> = &'a mut dyn FnMut(usize, Result<Option<Vec<u8>>, kaml::Error>);

impl BatchReader for RemoteReader {
    fn get_many(&mut self, namespace: NamespaceId, keys: &[KeyRef<'_>], answer: Answer<'_>) {
        let device = &self.0;
        let space = KeyValue::new(device, namespace);
        let short: Option<Vec<Key>> = keys.iter().map(|key| Key::new(key.as_bytes()).ok()).collect();
        if let Some(short) = &short
            && read_at_once(&space, namespace, short, answer)
        {
            return;
        }
        let (feature, at_once) = match short {
            Some(_) => (feature::NAMED, KEYS_MAX),
            None => (feature::LONG_KEYS, (device.transfer_bytes_max() / NAMED_KEY_BYTES_MAX).clamp(1, KEYS_MAX)),
        };
        for (chunk, some) in keys.chunks(at_once).enumerate() {
            let mut told = 0;
            let mut tell = |found: Found| {
                let single = || device.get(namespace, some[told]);
                let value = match found {
                    Found { value: Some(value), .. } => Ok(Some(value)),
                    found if found.status.is(Status::NO_SUCH_KEY) => Ok(None),
                    _ => single(),
                };
                answer(chunk * at_once + told, value);
                told += 1;
            };
            if device.can(feature)
                && some.len() > 1
                && let Err(error) = read_named(&space, namespace, some, &mut tell)
            {
                tracing::debug!(%error, "keys are read one by one");
            }
            for (place, key) in some.iter().enumerate().skip(told) {
                answer(chunk * at_once + place, device.get(namespace, *key));
            }
        }
    }
}

/// Reads keys by one command each, all of them in flight; false if the way to the device has no room for that.
fn read_at_once(space: &KeyValue<'_, RemoteDevice>, namespace: NamespaceId, keys: &[Key], answer: Answer<'_>) -> bool {
    let device = space.queue;
    let commands: Vec<_> = keys.iter().map(|key| (space.retrieving(key, ROOM_AT_FIRST), ROOM_AT_FIRST)).collect();
    let mut later = Vec::new();
    let read = device.carrier.reads(&commands, &mut |place, found| match found {
        Ok(found) if found.status.is(Status::NO_SUCH_KEY) => answer(place, Ok(None)),
        Ok(found) if found.status.is_success() && found.data.len() as u64 == found.result & 0xffff_ffff => {
            answer(place, Ok(Some(found.data)));
        }
        // Larger than the room, refused, or lost: all of that is looked after one by one.
        _ => later.push(place),
    });
    later.into_iter().for_each(|place| answer(place, device.get(namespace, keys[place])));
    read.is_some()
}

/// Reads keys by a list; reports them in their order, of the first ones only if something fails.
fn read_named(
    space: &KeyValue<'_, RemoteDevice>,
    namespace: NamespaceId,
    keys: &[KeyRef<'_>],
    tell: &mut dyn FnMut(Found),
) -> Result<(), Error> {
    let short: Option<Vec<_>> = keys.iter().map(|key| Some((namespace, Key::new(key.as_bytes()).ok()?))).collect();
    let list = match short {
        Some(short) => space.name_keys(&short)?,
        None => {
            let long =
                keys.iter().map(|key| Ok((namespace, key.to_buf()?))).collect::<Result<Vec<_>, kaml::KeyError>>();
            space.name_long_keys(&long.map_err(|_| Error::Unsupported("such keys"))?)?
        }
    };
    let mut told = 0;
    while told < keys.len() {
        let found = space.retrieve_named(list, told, NAMED_BYTES)?;
        told += found.len();
        found.into_iter().for_each(&mut *tell);
    }
    Ok(())
}

impl Backing for RemoteDevice {
    fn get_into(&self, namespace: NamespaceId, key: KeyRef<'_>, value: &mut Vec<u8>) -> Result<bool, kaml::Error> {
        let found = self.get(namespace, key)?;
        Ok(found.map(|found| *value = found).is_some())
    }

    fn reader(&self) -> Box<dyn BatchReader> {
        Box::new(RemoteReader(self.clone()))
    }

    fn exists(&self, namespace: NamespaceId, key: KeyRef<'_>) -> Result<bool, kaml::Error> {
        RemoteDevice::exists(self, namespace, key)
    }

    fn is_ordered(&self, namespace: NamespaceId) -> Result<bool, kaml::Error> {
        self.has_order(namespace)
    }

    fn ordered_keys(
        &self,
        namespace: NamespaceId,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        reverse: bool,
        count: usize,
    ) -> Result<Vec<KeyBuf>, kaml::Error> {
        self.range_keys(namespace, (lower, upper), reverse, count)
    }

    fn write(&self, batch: &Batch) -> Result<(), kaml::Error> {
        RemoteDevice::write(self, batch)
    }

    fn submit(&self, batch: &Batch) -> Result<Box<dyn PendingPut>, kaml::Error> {
        RemoteDevice::write(self, batch)?;
        Ok(Box::new(Written))
    }

    fn delete_namespace(&self, namespace: NamespaceId) -> Result<(), kaml::Error> {
        RemoteDevice::delete_namespace(self, namespace)
    }

    fn may_lose_answers(&self) -> bool {
        true
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn value_bytes_max(&self, namespace: NamespaceId) -> u64 {
        self.value_bytes_max_of(namespace)
    }
}
