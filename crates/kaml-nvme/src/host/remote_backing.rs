//! A device somewhere else as the record cache and transactions take it.
//!
//! Lives here:       reads of many values, Puts in an order.
//! Lives elsewhere:  the commands (`remote_commands`), the store on top (`kaml::store`).
//! Implements:       design section 7 (the cache and transactions run on anything that is a device).

use super::remote::RemoteDevice;
use super::remote_commands::ROOM_AT_FIRST;
use super::{Error, KeyValue};
use crate::wire::named::{Found, KEYS_MAX};
use crate::wire::status::Status;
use crate::wire::vendor::feature;
use kaml::store::{Backing, BatchReader, Limits, PendingPut};
use kaml::{Batch, Key, NamespaceId};

/// Room for values of one Retrieve Named.
const NAMED_BYTES: usize = 1 << 20;

/// Carried out when it was made: commands over several connections have no order that could be fixed before.
struct Written;

impl PendingPut for Written {
    fn wait(self: Box<Self>) -> Result<(), kaml::Error> {
        Ok(())
    }
}

/// Batched gets: many commands in flight, or else lists of keys.
struct RemoteReader(RemoteDevice);

/// What a reader is told: the place of a key, and what there is of it.
type Answer<'a> = &'a mut dyn FnMut(usize, Result<Option<Vec<u8>>, kaml::Error>);

impl BatchReader for RemoteReader {
    fn get_many(&mut self, namespace: NamespaceId, keys: &[Key], answer: Answer<'_>) {
        let device = &self.0;
        let space = KeyValue::new(device, namespace);
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
        if read.is_some() {
            return;
        }
        for (chunk, some) in keys.chunks(KEYS_MAX).enumerate() {
            let mut told = 0;
            let mut tell = |found: Found| {
                let single = || device.get(namespace, some[told]);
                let value = match found {
                    Found { value: Some(value), .. } => Ok(Some(value)),
                    found if found.status.is(Status::NO_SUCH_KEY) => Ok(None),
                    _ => single(),
                };
                answer(chunk * KEYS_MAX + told, value);
                told += 1;
            };
            if device.can(feature::NAMED)
                && some.len() > 1
                && let Err(error) = read_named(&space, namespace, some, &mut tell)
            {
                tracing::debug!(%error, "keys are read one by one");
            }
            for (place, key) in some.iter().enumerate().skip(told) {
                answer(chunk * KEYS_MAX + place, device.get(namespace, *key));
            }
        }
    }
}

/// Reads keys by a list; tells of them in their order, of the first ones only if something fails.
fn read_named(
    space: &KeyValue<'_, RemoteDevice>,
    namespace: NamespaceId,
    keys: &[Key],
    tell: &mut dyn FnMut(Found),
) -> Result<(), Error> {
    let named: Vec<_> = keys.iter().map(|key| (namespace, *key)).collect();
    let list = space.name_keys(&named)?;
    let mut told = 0;
    while told < keys.len() {
        let found = space.retrieve_named(list, told, NAMED_BYTES)?;
        told += found.len();
        found.into_iter().for_each(&mut *tell);
    }
    Ok(())
}

impl Backing for RemoteDevice {
    fn get_into(&self, namespace: NamespaceId, key: Key, value: &mut Vec<u8>) -> Result<bool, kaml::Error> {
        let found = self.get(namespace, key)?;
        Ok(found.map(|found| *value = found).is_some())
    }

    fn reader(&self) -> Box<dyn BatchReader> {
        Box::new(RemoteReader(self.clone()))
    }

    fn exists(&self, namespace: NamespaceId, key: Key) -> Result<bool, kaml::Error> {
        RemoteDevice::exists(self, namespace, key)
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
