//! Finding what a tree consists of.
//!
//! Lives here:       walking, what remains out, showing paths to a person.
//! Lives elsewhere:  storing what was found (`intake`).

use crate::store::Identity;
use kaml_terminal::failure::Failure;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A path to be stored.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where it is now.
    pub source: PathBuf,
    /// Relative to the root.
    pub path: PathBuf,
    /// Bytes of contents when it was found.
    pub bytes: u64,
    /// The same file was found before, with this name.
    pub first_name: Option<PathBuf>,
}

/// What was found under a root.
#[derive(Debug, Default)]
pub struct Walk {
    /// What can be stored, in a fixed order.
    pub entries: Vec<Entry>,
    /// What cannot, and what it is.
    pub left_out: Vec<(PathBuf, &'static str)>,
    /// What could not be looked at, and why.
    pub failed: Vec<(PathBuf, String)>,
}

/// Everything under `root` but the root itself; directories whose name is in `skip` are passed over, the device and sockets are left
/// out. Fails only if the root cannot be listed.
pub fn walk(root: &Path, skip: &[&str], device: Option<Identity>) -> Result<Walk, Failure> {
    let skipped = |entry: &walkdir::DirEntry| {
        entry.depth() > 0 && entry.file_type().is_dir() && skip.iter().any(|name| entry.file_name() == OsStr::new(name))
    };
    let walk = walkdir::WalkDir::new(root).min_depth(1).sort_by_file_name();
    let (mut found, mut names) = (Walk::default(), HashMap::new());
    for entry in walk.into_iter().filter_entry(|entry| !skipped(entry)) {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                let (at, depth) = (error.path().unwrap_or(root).to_owned(), error.depth());
                let what = error.into_io_error().map_or_else(|| "a loop of links".into(), |error| error.to_string());
                if depth == 0 {
                    return Err(Failure::Failed(format!("{}: {what}", shown(&at))));
                }
                found.failed.push((at, what));
                continue;
            }
        };
        let kind = entry.file_type();
        let metadata = if kind.is_dir() { None } else { entry.metadata().ok() };
        let file = metadata.as_ref().map(|found| (found.dev(), found.ino()));
        if let Some(what) = match kind.is_socket() {
            true => Some("a socket"),
            false => (device.is_some() && file == device).then_some("the device itself"),
        } {
            found.left_out.push((entry.into_path(), what));
            continue;
        }
        let bytes = metadata.as_ref().map_or(0, |metadata| if kind.is_file() { metadata.len() } else { 0 });
        let path = entry.path().strip_prefix(root).expect("walked from the root").to_owned();
        let first_name = match (file, metadata.is_some_and(|metadata| metadata.nlink() > 1)) {
            (Some(file), true) => match names.entry(file) {
                Slot::Occupied(first) => Some(PathBuf::clone(first.get())),
                Slot::Vacant(slot) => {
                    slot.insert(path.clone());
                    None
                }
            },
            _ => None,
        };
        found.entries.push(Entry { source: entry.into_path(), path, bytes, first_name });
    }
    Ok(found)
}

/// Bytes of a key as a path.
pub fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// A path on one line, without anything that a terminal would obey.
pub fn shown(path: &Path) -> String {
    let mut shown = String::new();
    for c in path.to_string_lossy().chars() {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   a path is one line and nothing that a terminal obeys.
    /// Method: a line break, an escape sequence, other control characters; letters of any script are kept.
    #[test]
    fn paths_are_shown_on_one_line() {
        assert_eq!(shown(Path::new("a\nb\x1b[2Jc\u{9b}d")), "a\\nb\\u{1b}[2Jc\\u{9b}d");
        assert_eq!(shown(Path::new("dir/Zürich 日本")), "dir/Zürich 日本");
    }
}
