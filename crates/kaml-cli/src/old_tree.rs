//! Trees that earlier versions stored, in two namespaces: NAME with contents, and NAME.meta with metadata. They are only read.
//!
//! Lives here:       their records, as far as an export needs them.
//! Lives elsewhere:  making the files (`restore`).
//!
//! | key | namespace | record |
//! |---|---|---|
//! | hash of the path (16 bytes) | metadata | JSON with the path, see [`Record`] |
//! | the same | contents | the contents of a file, or the target of a link |
//! | `00 'P'`, upload (8 bytes), part (4 bytes) | contents | part of a larger file |
//! | XXH3-128 of path, 00, checksum and number of the part | contents | the same, before uploads had numbers |
//!
//! Other keys in the namespace of metadata are the secret of the hashes, and work that was in progress.

use crate::place::Place;
use crate::tree::{Kind, Metadata, Node, Take, is_path};
use crate::{keys, walk};
use kaml::{Key, KeyBuf, NamespaceId};
use kaml_terminal::failure::Failure;
use serde::Deserialize;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::Xxh3;

/// Bytes of the key of a path.
const PATH_KEY_BYTES: usize = 16;

/// A metadata record.
#[derive(Deserialize)]
struct Record {
    path_hex: Option<String>,
    path: String,
    kind: OldKind,
    mode: u32,
    uid: Option<u32>,
    gid: Option<u32>,
    mtime_s: i64,
    mtime_ns: u32,
    bytes: u64,
    xxh3_128: String,
    part_bytes: u64,
    upload: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OldKind {
    File,
    Directory,
    Link,
}

/// Where the contents of a file are.
#[derive(Clone, Debug)]
pub struct Contents {
    path: Vec<u8>,
    /// Of the record, if the contents are one.
    key: Key,
    /// 0 if they are one record.
    part_count: u64,
    upload: Option<u64>,
    bytes: u64,
    checksum: String,
}

impl Contents {
    /// How many records they are.
    pub fn record_count(&self) -> u64 {
        self.part_count.max(1)
    }

    fn part_key(&self, part: u64) -> Option<Key> {
        let bytes = match (self.part_count, self.upload) {
            (0, _) => return Some(self.key),
            (_, Some(upload)) => [b"\0P", &upload.to_be_bytes()[..], &u32::try_from(part).ok()?.to_be_bytes()].concat(),
            (_, None) => {
                let mut hash = Xxh3::new();
                for piece in [&self.path, &b"\0"[..], self.checksum.as_bytes(), &part.to_le_bytes()] {
                    hash.update(piece);
                }
                hash.digest128().to_be_bytes().to_vec()
            }
        };
        Key::new(&bytes).ok()
    }

    /// Hands over the contents, piece by piece; fails if any byte differs from what was stored. Returns their length.
    pub fn read(&self, device: &dyn Place, namespace: NamespaceId, take: &mut Take<'_>) -> Result<u64, Failure> {
        let (mut hash, mut at) = (Xxh3::new(), 0);
        for part in 0..self.record_count() {
            let bytes = self.part_key(part).map(|key| device.get(namespace, key.into())).transpose()?.flatten();
            let bytes = bytes.ok_or_else(|| Failure::Failed("contents are missing".into()))?;
            hash.update(&bytes);
            take(at, &bytes)?;
            at += bytes.len() as u64;
        }
        if at != self.bytes || format!("{:032x}", hash.digest128()) != self.checksum {
            return Err(Failure::Failed("contents do not match the metadata".into()));
        }
        Ok(at)
    }
}

/// Every path of a tree; for what is damaged, its name and why. Targets of links are read.
pub type Nodes = Vec<Result<Node, (String, Failure)>>;

/// Reads the metadata of a tree.
pub fn nodes(device: &dyn Place, contents: NamespaceId, metadata: NamespaceId) -> Result<Nodes, Failure> {
    let (mut found, mut nodes, mut after) = (BTreeMap::new(), Vec::new(), None::<KeyBuf>);
    loop {
        let page = device.list(metadata, after.as_ref(), 4096)?;
        let Some(last) = page.last() else { break };
        after = Some(last.clone());
        for key in page.iter().filter_map(KeyBuf::as_short).filter(|key| key.as_bytes().len() == PATH_KEY_BYTES) {
            let Some(bytes) = device.get(metadata, key.into())? else { continue };
            match record(&bytes) {
                Ok((path, record)) => drop(found.insert(path, (key, record))),
                Err(failure) => nodes.push(Err((format!("metadata record {key}"), failure))),
            }
        }
    }
    for (path, (key, record)) in &found {
        // A directory that was imported as something else later: what was below it has gone.
        let mut above = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at]);
        if above.any(|above| found.get(above).is_some_and(|(_, record)| record.kind != OldKind::Directory)) {
            continue;
        }
        let node = record.node(path, *key, device, contents);
        nodes.push(node.map_err(|failure| (walk::shown(walk::as_path(path)), failure)));
    }
    Ok(nodes)
}

fn record(bytes: &[u8]) -> Result<(Vec<u8>, Record), Failure> {
    let record: Record =
        serde_json::from_slice(bytes).map_err(|error| Failure::Failed(format!("not a metadata record: {error}")))?;
    let path = match &record.path_hex {
        None => record.path.clone().into_bytes(),
        Some(digits) => keys::parse_hex(digits)?,
    };
    match is_path(&path) {
        true => Ok((path, record)),
        false => Err(Failure::Failed(format!("`{}` leads out of the tree", walk::shown(walk::as_path(&path))))),
    }
}

impl Record {
    fn node(&self, path: &[u8], key: Key, device: &dyn Place, namespace: NamespaceId) -> Result<Node, Failure> {
        let wrong = || Failure::Failed("not a metadata record: its parts have no names".into());
        let upload = self.upload.as_deref().map(|digits| u64::from_str_radix(digits, 16)).transpose();
        let contents = Contents {
            path: path.to_vec(),
            key,
            part_count: if self.part_bytes == 0 { 0 } else { self.bytes.div_ceil(self.part_bytes) },
            upload: upload.map_err(|_| wrong())?,
            bytes: self.bytes,
            checksum: self.xxh3_128.clone(),
        };
        let mut target = Vec::new();
        let kind = match self.kind {
            OldKind::File => Kind::File,
            OldKind::Directory => Kind::Directory,
            OldKind::Link => {
                contents.read(device, namespace, &mut |_, bytes| {
                    target.extend_from_slice(bytes);
                    Ok(())
                })?;
                Kind::Link(target[..].into())
            }
        };
        let metadata = Metadata {
            owner: self.uid.zip(self.gid),
            modified: Some((self.mtime_s, self.mtime_ns)),
            ..Metadata::unknown(kind, self.mode & 0o7777)
        };
        let old = (self.kind != OldKind::Directory).then_some(contents);
        Ok(Node { path: path.to_vec(), metadata, old })
    }
}

#[cfg(test)]
mod tests;
