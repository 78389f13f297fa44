//! An event store: streams of events, appended under a condition, and subscribers that continue where they stopped. It can be run again and again.
//!
//! cargo run -p kaml --example events
//!
//! An event is stored once, under its place in the order of all events. A second namespace finds the events of a stream. Both change in one
//! transaction, so a subscriber sees the events of all streams in the order in which they were committed.

use kaml::store::{Store, StoreOptions};
use kaml::{CreateOptions, Device, Error, KeyBuf, KeyKind, NamespaceId, NamespaceOptions};
use std::path::Path;

/// Events on a device. Any number of threads can call it.
pub(crate) struct EventStore {
    store: Store,
    /// Place of an event among all, to its text.
    events: NamespaceId,
    /// Stream, a zero byte, and number in it, to the place.
    streams: NamespaceId,
    /// How many events a stream has, and all; how many a subscriber has seen.
    counts: NamespaceId,
}

impl EventStore {
    pub(crate) fn open(device: Device) -> Result<EventStore, Error> {
        let ordered = NamespaceOptions::records(KeyKind::Ordered);
        let events = device.ensure_namespace("events", &ordered)?.id();
        let streams = device.ensure_namespace("streams", &ordered)?.id();
        let counts = device.ensure_namespace("counts", &NamespaceOptions::records(KeyKind::Any))?.id();
        Ok(EventStore { store: Store::open(device, &StoreOptions::new(8 << 20))?, events, streams, counts })
    }

    /// Appends events, all or none. With `after`, only if the stream has exactly so many events. Returns how many it has then, and an error with
    /// how many it has if these are others.
    pub(crate) fn append(&self, stream: &str, texts: &[&str], after: Option<u64>) -> Result<Result<u64, u64>, Error> {
        let name = format!("stream {stream}");
        self.store.run(|txn| {
            let mut count = number(txn.read_for_update(self.counts, &name)?);
            if after.is_some_and(|after| after != count) {
                return Ok(Err(count));
            }
            let mut last = number(txn.read_for_update(self.counts, "all")?);
            for text in texts {
                (count, last) = (count + 1, last + 1);
                txn.insert(self.events, last, text.as_bytes())?;
                txn.insert(self.streams, &place(stream, count)?, &last.to_be_bytes())?;
            }
            txn.upsert(self.counts, &name, &count.to_be_bytes())?;
            txn.upsert(self.counts, "all", &last.to_be_bytes())?;
            Ok(Ok(count))
        })
    }

    /// The events of a stream, oldest first, as of one moment.
    pub(crate) fn read(&self, stream: &str) -> Result<Vec<String>, Error> {
        let snapshot = self.store.read_only()?;
        let mut found = Vec::new();
        let (from, to) = (place(stream, 0)?, place(stream, u64::MAX)?);
        for entry in snapshot.range::<&KeyBuf>(self.streams, &from..&to) {
            let event = snapshot.get(self.events, number(Some(entry?.1)))?;
            found.push(String::from_utf8_lossy(&event.unwrap_or_default()).into_owned());
        }
        Ok(found)
    }

    /// Shows a subscriber the events of all streams that it has not seen, oldest first, until there are no more. An event counts as seen when `show` returns:
    /// one that was in progress when the program ended comes again.
    pub(crate) fn follow(&self, subscriber: &str, mut show: impl FnMut(u64, &str)) -> Result<(), Error> {
        let name = format!("seen {subscriber}");
        loop {
            let seen = number(self.store.get(self.counts, &name)?);
            let found = self.store.range(self.events, seen + 1.., 100)?;
            if found.is_empty() {
                return Ok(());
            }
            for (key, text) in found {
                let position = key.as_u64().unwrap_or_default();
                show(position, &String::from_utf8_lossy(&text));
                self.store.put(self.counts, &name, &position.to_be_bytes())?;
            }
        }
    }
}

fn number(value: Option<impl AsRef<[u8]>>) -> u64 {
    value.and_then(|value| value.as_ref().try_into().ok()).map_or(0, u64::from_be_bytes)
}

fn place(stream: &str, number: u64) -> Result<KeyBuf, Error> {
    Ok(KeyBuf::new(&[stream.as_bytes(), &[0], &number.to_be_bytes()].concat())?)
}

/// What `main` runs, on a device in this directory.
pub(crate) fn demo(directory: &Path) -> Result<(), Error> {
    let events =
        EventStore::open(Device::open_or_create(directory.join("events.kaml"), &CreateOptions::new(64 << 20))?)?;
    let count = events.append("order 7", &["created", "paid"], None)?.unwrap_or_default();
    if let Err(found) = events.append("order 7", &["shipped"], Some(count + 1))? {
        println!("order 7 has {found} events, not {}", count + 1);
    }
    println!("order 7: {:?}", events.read("order 7")?);
    events.follow("mailer", |position, text| println!("{position}: {text}"))
}

fn main() -> Result<(), Error> {
    demo(Path::new("."))
}
