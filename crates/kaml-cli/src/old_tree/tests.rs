//! Tests of `old_tree`, with records as earlier versions stored them.

use super::*;
use crate::tree::Tree;
use kaml::{CreateOptions, Device, NamespaceOptions};
use xxhash_rust::xxh3::xxh3_128;

/// Goal:   trees with unkeyed hashes and with uploads are read; damaged records are errors that name the path, and nothing panics.
/// Method: small and large files of both kinds, a link, a directory, what is below something that is none any more; each contents read,
///         also after damage.
#[test]
fn records_of_earlier_versions_are_read() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let [contents, meta] =
        ["t", "t.meta"].map(|name| device.create_namespace(name, &NamespaceOptions::default()).unwrap());
    let hash = |bytes: &[u8]| Key::new(&xxh3_128(bytes).to_be_bytes()).unwrap();
    let put = |path: &str, kind: &str, bytes: &[u8], more: &str| {
        let checksum = format!("{:032x}", xxh3_128(bytes));
        let record = format!(
            "{{\"path\":\"{path}\",\"kind\":\"{kind}\",\"mode\":420,\"mtime_s\":1,\"mtime_ns\":2,\"bytes\":{},\"xxh3_128\":\"{checksum}\"{more}}}",
            bytes.len()
        );
        device.put(meta, hash(path.as_bytes()), record.as_bytes()).unwrap();
        checksum
    };
    for (path, kind) in [("a", "file"), ("link", "link"), ("a/gone", "file")] {
        put(path, kind, path.as_bytes(), ",\"part_bytes\":0");
        device.put(contents, hash(path.as_bytes()), path.as_bytes()).unwrap();
    }
    put("dir", "directory", b"", ",\"part_bytes\":0,\"uid\":1,\"gid\":2");
    let checksum = put("hashed", "file", b"0123456789", ",\"part_bytes\":4");
    put("upload", "file", b"0123456789", ",\"part_bytes\":4,\"upload\":\"00000000000000ab\"");
    for (part, bytes) in [&b"0123"[..], b"4567", b"89"].into_iter().enumerate() {
        let name = [b"hashed\0", checksum.as_bytes(), &(part as u64).to_le_bytes()].concat();
        device.put(contents, hash(&name), bytes).unwrap();
        device.put(contents, &[b"\0P\0\0\0\0\0\0\0\xab\0\0\0", &[part as u8][..]].concat(), bytes).unwrap();
    }
    for (path, more) in [("../out", ",\"part_bytes\":0"), ("huge", ",\"part_bytes\":1,\"upload\":\"no digits\"")] {
        put(path, "file", b"x", more);
    }
    device.put(meta, hash(b"rubbish"), b"rubbish").unwrap();
    device.put(meta, b"\0tree", b"{}").unwrap();
    let (found, failed): (Vec<_>, Vec<_>) =
        nodes(&device, contents, meta).unwrap().into_iter().partition(|node| node.is_ok());
    let names: Vec<_> = found.iter().flatten().map(|node| String::from_utf8(node.path.clone()).unwrap()).collect();
    assert_eq!(names, ["a", "dir", "hashed", "link", "upload"]);
    assert_eq!(failed.len(), 3, "{failed:?}");
    let tree = Tree::of_old(&device, contents);
    let read = |number: usize| {
        let mut bytes = Vec::new();
        let take = &mut |_, piece: &[u8]| {
            bytes.extend_from_slice(piece);
            Ok(())
        };
        tree.read(found[number].as_ref().unwrap(), 0..u64::MAX, take).map(|_| String::from_utf8(bytes).unwrap())
    };
    assert_eq!([0, 2, 4].map(|number| read(number).unwrap()), ["a", "0123456789", "0123456789"]);
    let metadata = |number: usize| found[number].as_ref().unwrap().metadata.clone();
    assert_eq!((metadata(1).owner, metadata(0).owner, metadata(0).modified), (Some((1, 2)), None, Some((1, 2))));
    assert_eq!(metadata(3).kind, Kind::Link(b"link"[..].into()));
    device.put(contents, hash(b"a"), b"b").unwrap();
    assert!(read(0).unwrap_err().to_string().contains("do not match"));
    device.delete(contents, b"\0P\0\0\0\0\0\0\0\xab\0\0\0\x01").unwrap();
    assert!(read(4).unwrap_err().to_string().contains("missing"));
}
