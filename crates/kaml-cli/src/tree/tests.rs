//! Tests of `tree`, with a device in memory.

use super::*;
use kaml::{CreateOptions, Device, KeyKind, NamespaceOptions};
use kaml_testkit::Rng;

/// With an ordered namespace.
fn device() -> (Device, NamespaceInfo) {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    device.create_namespace("t", &NamespaceOptions::records(KeyKind::Ordered)).unwrap();
    let info = device.namespaces().remove(0);
    (device, info)
}

fn keys_of(tree: &Tree<'_>) -> Vec<Vec<u8>> {
    let mut keys = tree.keys((Bound::Unbounded, Bound::Unbounded));
    std::iter::from_fn(|| keys.next_key().unwrap().map(|key| key.as_bytes().to_vec())).collect()
}

/// Metadata of every kind and shape.
fn any_metadata(rng: &mut Rng) -> Metadata {
    let bytes = |rng: &mut Rng| {
        let text: Vec<u8> = (0..rng.below(20)).map(|_| rng.draw() as u8).collect();
        Bytes::from(&text[..])
    };
    let number = rng.draw() as u32;
    let kind = match rng.below(8) {
        0 => Kind::File,
        1 => {
            let runs = (0..rng.below(5)).map(|run| (run * 10, 1 + rng.below(10))).collect();
            Kind::Pieces(Pieces { upload: rng.draw() >> 11, bytes: 100 * PIECE_BYTES + rng.below(1 << 40), runs })
        }
        2 => Kind::HardLink(Bytes::from(&b"a/\xff/b"[..])),
        3 => Kind::Directory,
        4 => Kind::Link(bytes(rng)),
        5 => Kind::Fifo,
        6 => Kind::CharacterDevice(number, 3),
        _ => Kind::BlockDevice(1, number),
    };
    Metadata {
        owner: (rng.below(2) == 0).then_some((number, 7)),
        modified: (rng.below(2) == 0).then_some((rng.draw() as i64, number % 1_000_000_000)),
        is_sparse: rng.below(2) == 0,
        attributes: (0..rng.below(3)).map(|_| (bytes(rng), bytes(rng))).collect(),
        ..Metadata::unknown(kind, number & 0o7777)
    }
}

/// Goal:   a metadata record is read as what was stored; changed in any way it is refused, or is another valid record; nothing panics.
/// Method: 20 000 random records, there and back; bytes and pieces of each replaced, removed, repeated; random bytes.
#[test]
fn metadata_survive_their_record() {
    let mut rng = Rng::new(44);
    let mut read = 0;
    for _ in 0..20_000 {
        let metadata = any_metadata(&mut rng);
        let mut record = metadata.to_bytes();
        assert_eq!(Metadata::from_bytes(&record).unwrap(), metadata);
        for _ in 0..=rng.below(3) {
            let at = rng.below(record.len() as u64) as usize;
            let end = (at + rng.below(8) as usize).min(record.len());
            match rng.below(4) {
                0 => record[at] = rng.draw() as u8,
                1 => record[at] = b"0123456789[]{}\",:-"[rng.below(18) as usize],
                2 => drop(record.drain(at..end)),
                _ => {
                    let again = record[at..end].to_vec();
                    record.splice(at..at, again);
                }
            }
            if record.is_empty() {
                break;
            }
        }
        if let Ok(other) = Metadata::from_bytes(&record) {
            assert_eq!(Metadata::from_bytes(&other.to_bytes()).unwrap(), other);
            read += 1;
        }
        let noise: Vec<u8> = (0..rng.below(64)).map(|_| rng.draw() as u8).collect();
        assert!(Metadata::from_bytes(&noise).is_err());
    }
    assert!(read > 100, "only {read} changed records could be read");
}

/// Goal:   keys and records are those of the format page.
/// Method: compare the bytes of a large file's keys, its metadata, and metadata without what can be missing.
#[test]
fn golden_records() {
    let pieces = Pieces { upload: 0x0102, bytes: 5 * PIECE_BYTES - 1, runs: vec![(0, 1), (3, 2)] };
    let metadata = Metadata {
        owner: Some((1000, 100)),
        modified: Some((-1, 999_999_999)),
        is_sparse: true,
        attributes: vec![(Bytes::from(&b"user.a"[..]), Bytes::from(&b"\xff"[..]))],
        ..Metadata::unknown(Kind::Pieces(pieces), 0o644)
    };
    let record = r#"{"format":1,"kind":{"pieces":{"upload":258,"bytes":1310719,"runs":[[0,1],[3,2]]}},"mode":420,"owner":[1000,100],"modified":[-1,999999999],"is_sparse":true,"attributes":[["user.a",[255]]]}"#;
    assert_eq!(String::from_utf8(metadata.to_bytes()).unwrap(), record);
    let kinds = [
        (Kind::File, r#""file""#),
        (Kind::Directory, r#""directory""#),
        (Kind::Fifo, r#""fifo""#),
        (Kind::Link(Bytes::from(&b"a"[..])), r#"{"link":"a"}"#),
        (Kind::HardLink(Bytes::from(&b"a"[..])), r#"{"hard_link":"a"}"#),
        (Kind::CharacterDevice(1, 3), r#"{"character_device":[1,3]}"#),
        (Kind::BlockDevice(7, 0), r#"{"block_device":[7,0]}"#),
    ];
    for (kind, text) in kinds {
        let record = Metadata::unknown(kind, 0).to_bytes();
        assert_eq!(String::from_utf8(record).unwrap(), format!("{{\"format\":1,\"kind\":{text},\"mode\":0}}"));
    }
    assert_eq!(metadata_key(b"a/b").unwrap().as_bytes(), b"a/b\0");
    assert_eq!(piece_key(b"a/b", 0x0102, 3).unwrap().as_bytes(), b"a/b\0\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\0\x03");
}

/// Goal:   records that no file can have are refused, those of newer formats by that name.
/// Method: each fault by hand.
#[test]
fn impossible_metadata_are_refused() {
    let refused = |record: &str| Metadata::from_bytes(record.as_bytes()).unwrap_err().to_string();
    let pieces = |runs: &str, bytes: u64| {
        let kind = format!("{{\"pieces\":{{\"upload\":1,\"bytes\":{bytes},\"runs\":{runs}}}}}");
        refused(&format!("{{\"format\":1,\"kind\":{kind},\"mode\":0}}"))
    };
    assert!(refused("{\"format\":2,\"kind\":\"hologram\"}").contains("newer version"));
    assert!(refused("{\"format\":1,\"kind\":\"file\",\"mode\":0,\"more\":1}").contains("unknown field"));
    assert!(refused("{\"format\":1,\"kind\":\"file\",\"mode\":4096}").contains("a mode"));
    assert!(refused("{\"format\":1,\"kind\":{\"hard_link\":\"../x\"},\"mode\":0}").contains("leads out"));
    for runs in ["[[0,0]]", "[[0,3]]", "[[1,1],[0,1]]", "[[1,18446744073709551615]]"] {
        assert!(pieces(runs, 2 * PIECE_BYTES).contains("pieces outside"), "{runs}");
    }
    assert!(pieces("[]", u64::MAX).contains("too long"));
}

/// Goal:   a path that could lead out of a directory is none.
/// Method: roots, `..`, empty names, a NUL; usual paths.
#[test]
fn paths_stay_inside_the_root() {
    for path in ["/etc/passwd", "../x", "a/../../x", "", ".", "a\0b", "a//b", "a/", "a/./b"] {
        assert!(!is_path(path.as_bytes()), "{path:?}");
    }
    assert!(is_path(b"a/b.txt") && is_path(b"...") && is_path(b"\xff/ "));
}

/// Goal:   keys of one path are next to each other and no other's, whatever paths are called; each path is found one time.
/// Method: paths whose bytes sort around NUL, slash and others, with and without records, metadata and pieces; walk, delete one after
///         the other and compare.
#[test]
fn paths_are_found_one_time() {
    let (device, info) = device();
    let tree = Tree::open(&device, &info, b"").unwrap();
    let names: [&[u8]; 9] = [b"a", b"a\x01", b"a b", b"a-b", b"a/b", b"a/b/c", b"a0", b"a\xff", b"b"];
    let large = |upload| Kind::Pieces(Pieces { upload, bytes: 2 * PIECE_BYTES, runs: vec![(0, 2)] });
    for (number, name) in names.iter().enumerate() {
        let upload = u64::MAX >> 11 >> number;
        match number % 3 {
            0 => tree.put(name, &Metadata::unknown(Kind::File, 0o600), Some(b"x")).unwrap(),
            1 => {
                device.put(info.id, &key(&[name, b"\0", &upload.to_be_bytes()]).unwrap(), b"").unwrap();
                (0..2).for_each(|piece| device.put(info.id, &piece_key(name, upload, piece).unwrap(), b"x").unwrap());
                tree.put(name, &Metadata::unknown(large(upload), 0o600), None).unwrap();
            }
            _ => device.put(info.id, *name, b"x").unwrap(),
        }
    }
    assert_eq!(tree.delete_unfinished().unwrap(), 0);
    let found = || tree.paths().map(|found| tree.look(found.unwrap()).unwrap().unwrap().path).collect::<Vec<_>>();
    let mut expected: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
    expected.sort();
    assert_eq!(found(), expected);
    let below = Tree::open(&device, &info, b"a/").unwrap();
    assert_eq!(below.paths().map(|found| found.unwrap().path).collect::<Vec<_>>(), [&b"a/b"[..], b"a/b/c"]);
    while let Some(name) = expected.pop() {
        tree.delete(&name).unwrap();
        assert_eq!(found(), expected);
    }
    assert_eq!(keys_of(&tree), Vec::<Vec<u8>>::new());
}

/// Goal:   an upload that another import removed does not become a file; what killed imports left is deleted, and nothing else.
/// Method: a file in pieces; next to it an upload with a marker, one without, of this path and of others; the same during a commit.
#[test]
fn unfinished_uploads_are_deleted() {
    let (device, info) = device();
    let tree = Tree::open(&device, &info, b"").unwrap();
    let put = |path: &[u8], upload: u64, has_marker: bool| {
        if has_marker {
            device.put(info.id, &key(&[path, b"\0", &upload.to_be_bytes()]).unwrap(), b"").unwrap();
        }
        (0..3).for_each(|piece| device.put(info.id, &piece_key(path, upload, piece).unwrap(), b"piece").unwrap());
    };
    let kind = |upload| Kind::Pieces(Pieces { upload, bytes: 3 * PIECE_BYTES, runs: vec![(0, 3)] });
    put(b"file", 7, true);
    tree.put(b"file", &Metadata::unknown(kind(7), 0o600), None).unwrap();
    tree.put(b"small", &Metadata::unknown(Kind::File, 0o600), Some(b"x")).unwrap();
    device.put(info.id, b"foreign\0key", b"x").unwrap();
    let before = keys_of(&tree);
    for (path, upload, has_marker) in
        [(&b"file"[..], 6, true), (b"file", 8, false), (b"small", 1, true), (b"new", 2, true), (b"new", 3, false)]
    {
        put(path, upload, has_marker);
    }
    assert_eq!(tree.delete_unfinished().unwrap(), 5);
    assert_eq!((keys_of(&tree), tree.delete_unfinished().unwrap()), (before.clone(), 0));
    put(b"file", 9, true);
    assert!(tree.delete_upload(b"file", 9, true).unwrap());
    let late = tree.put(b"file", &Metadata::unknown(kind(9), 0o600), None).unwrap_err();
    assert!(late.is_conflict(), "{late}");
    assert_eq!(keys_of(&tree), before);
    // One that has become the file is not deleted.
    assert!(!tree.delete_upload(b"file", 7, true).unwrap() && !tree.delete_upload(b"file", 7, false).unwrap());
    assert_eq!(keys_of(&tree), before);
}

/// Goal:   any range of a file is read, holes are left out, and pieces that are missing or too short are errors.
/// Method: a file of five pieces with a hole; all ranges around its borders; then damage.
#[test]
fn ranges_are_read() {
    let (device, info) = device();
    let tree = Tree::open(&device, &info, b"").unwrap();
    let bytes = 4 * PIECE_BYTES + 10;
    let mut expected = kaml_testkit::bytes(1, bytes as usize);
    expected[PIECE_BYTES as usize..3 * PIECE_BYTES as usize].fill(0);
    let metadata = Metadata::unknown(Kind::Pieces(Pieces { upload: 5, bytes, runs: vec![(0, 1), (3, 2)] }), 0o600);
    device.put(info.id, &key(&[b"f\0", &5u64.to_be_bytes()]).unwrap(), b"").unwrap();
    for (piece, contents) in expected.chunks(PIECE_BYTES as usize).enumerate() {
        device.put(info.id, &piece_key(b"f", 5, piece as u64).unwrap(), contents).unwrap();
    }
    tree.put(b"f", &metadata, None).unwrap();
    let node = tree.find(b"f").unwrap().unwrap();
    let read = |range: Range<u64>| {
        let (mut found, from) = (vec![0; (range.end.min(bytes).saturating_sub(range.start)) as usize], range.start);
        let length = tree.read(&node, range, &mut |at, piece| {
            let at = (at - from) as usize;
            found[at..at + piece.len()].copy_from_slice(piece);
            Ok(())
        });
        length.map(|length| (length, found))
    };
    let borders = [0, 1, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES, 3 * PIECE_BYTES + 1, bytes - 1, bytes];
    for from in borders {
        for to in borders.into_iter().chain([u64::MAX]).filter(|to| *to >= from) {
            let wanted = &expected[from as usize..to.min(bytes) as usize];
            assert!(read(from..to).unwrap() == (bytes, wanted.to_vec()), "{from}..{to}");
        }
    }
    assert_eq!(tree.contents(b"f").unwrap().unwrap(), expected);
    device.put(info.id, &piece_key(b"f", 5, 4).unwrap(), b"short").unwrap();
    assert!(read(0..bytes).unwrap_err().to_string().contains("do not match"));
    device.delete(info.id, &piece_key(b"f", 5, 0).unwrap()).unwrap();
    assert!(read(0..bytes).unwrap_err().to_string().contains("missing"));
    // A record under the path is the contents now.
    device.put(info.id, b"f", b"written by a program").unwrap();
    let node = tree.find(b"f").unwrap().unwrap();
    assert_eq!((node.metadata.kind, node.metadata.mode), (Kind::File, 0o600));
}
