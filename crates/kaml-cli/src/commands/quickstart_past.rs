//! The last act of `kaml quickstart`: change files in a versioned namespace, look back, roll back.
//!
//! Lives here:       the act.
//! Lives elsewhere:  the story it belongs to (`quickstart`), versions (`kaml`).

use crate::failure::Failure;
use crate::walk::Entry;
use kaml::{At, Device, NamespaceOptions, VersionOptions};

/// Files of the act at most, and the longest of them: it is to be short.
const FILES_MAX: usize = 100;
const FILE_BYTES_MAX: u64 = 64 << 10;
/// What every file is changed to.
const CHANGED: &[u8] = b"changed by mistake\n";

/// Changes small files, and finds them as they were: in a snapshot, and after rolling back to it. Returns how many, and the
/// snapshot.
pub fn look_back(device: &Device, files: &[Entry]) -> Result<(usize, u32), Failure> {
    let options = NamespaceOptions::from(VersionOptions::default());
    let past = device.create_namespace("past", &options)?;
    let small = files.iter().filter(|entry| entry.bytes <= FILE_BYTES_MAX).take(FILES_MAX);
    let small: Vec<(u64, Vec<u8>)> = (0..).zip(small.filter_map(|entry| std::fs::read(&entry.source).ok())).collect();
    for (key, contents) in &small {
        device.put(past, *key, contents)?;
    }
    let snapshot = device.snapshot(past)?;
    for (key, _) in &small {
        device.put(past, *key, CHANGED)?;
    }
    for (key, contents) in &small {
        let then = device.get_version(past, *key, At::Snapshot(snapshot))?.map(|record| record.value);
        if then.as_ref() != Some(contents) || device.get(past, *key)?.as_deref() != Some(CHANGED) {
            return Err(Failure::Failed(format!("snapshot {snapshot} does not show a file as it was")));
        }
    }
    device.roll_back(past, snapshot)?;
    for (key, contents) in &small {
        if device.get(past, *key)?.as_ref() != Some(contents) {
            return Err(Failure::Failed(format!("rolling back to snapshot {snapshot} did not bring a file back")));
        }
    }
    Ok((small.len(), snapshot))
}
