//! A cache that is kept up to date by the change stream, and continues after a restart.
//!
//! cargo run -p kaml --example changes

use kaml::{Batch, Change, CreateOptions, Device, KeyBuf, NamespaceOptions, Position};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a program keeps: the records, and the position up to which it has them.
struct Cache {
    records: BTreeMap<KeyBuf, Vec<u8>>,
    position: Position,
}

impl Cache {
    /// Takes over what was committed since.
    fn update(&mut self, device: &Device) -> Result<usize, kaml::Error> {
        let mut changes = device.changes(Some(&self.position))?;
        let mut count = 0;
        while let Some(set) = changes.next_within(Duration::ZERO)? {
            for change in set.changes {
                count += 1;
                match change {
                    Change::Put { key, value, .. } => drop(self.records.insert(key, value)),
                    Change::Delete { key, .. } => drop(self.records.remove(&key)),
                    Change::Namespace(info) => println!("namespace {} exists", info.name),
                    _ => {}
                }
            }
            // A program that stores the position together with the records misses nothing and repeats nothing.
            self.position = set.position;
        }
        Ok(count)
    }
}

fn main() -> Result<(), kaml::Error> {
    let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    let users = device.ensure_namespace("users", &NamespaceOptions::default())?;
    let mut cache = Cache { records: BTreeMap::new(), position: device.position()? };

    users.put("ada", b"Ada Lovelace")?;
    let mut batch = Batch::new();
    batch.put(users.id(), "grace", b"Grace Hopper").delete(users.id(), "ada");
    device.write(&batch)?;
    println!("{} changes", cache.update(&device)?);

    // Later, or in another process: the stored position is all that is needed.
    let stored = cache.position.to_string();
    users.put("edsger", b"Edsger Dijkstra")?;
    cache.position = stored.parse()?;
    println!("{} changes", cache.update(&device)?);
    for (key, value) in &cache.records {
        println!("{key}: {}", String::from_utf8_lossy(value));
    }
    assert_eq!(cache.records.len(), 2);
    Ok(())
}
