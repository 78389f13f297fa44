use super::*;
use kaml_testkit::Rng;
use kaml_versions::{Command, Stamp};

const BACKUP: [u8; 16] = [7; 16];

fn head() -> Head {
    Head {
        backup: BACKUP,
        device: [8; 16],
        base: Some([9; 16]),
        time_ns: 10,
        sequence: 11,
        mark: BackupMark { page: 12, record: 13 },
        live_bytes: 14,
        capacity: 15,
        namespaces: 16,
    }
}

fn version() -> Version {
    let (value_len, value_crc) = (2, kaml_crc::crc32c(b"vv"));
    let key = Key::from(5);
    Version { key, kind: Kind::Value, value_len, value_crc, sequence: 6, time_ns: 7, user_version: 1, ordinal: 0 }
}

/// Namespaces of all kinds.
fn described() -> Vec<Described> {
    let mut timeline = Timeline::default();
    timeline.carry_out(Command::Snapshot, Stamp { sequence: 3, time_ns: 4 }).unwrap();
    let bloom = BloomOptions { hashes: 7, segment_keys: 1024, ..BloomOptions::default() };
    let versions = |bloom: Option<BloomOptions>| Versions {
        options: VersionOptions {
            buffer_bytes: 1 << 20,
            segment_bytes: 1 << 18,
            rows: 6,
            fingerprint_bits: if bloom.is_some() { 0 } else { 14 },
            bloom,
            merge_when_low: Some(MergePolicy {
                keep_last: 3,
                keep_for_ns: 4,
                keep_internal: true,
                newest_only: bloom.is_some(),
            }),
        },
        seed: 17,
        newest: 18,
        count: 19,
        timeline: timeline.clone(),
    };
    let of = |id, holds| Described {
        id,
        name: "users".to_owned(),
        logs: vec![0, 2],
        count: 3,
        default_ttl_ms: 0,
        compression: Compression::None,
        holds,
    };
    let keys = [KeyKind::U64, KeyKind::Bytes, KeyKind::Any, KeyKind::Ordered];
    let mut all: Vec<Described> = keys.into_iter().map(|keys| of(1, Holds::Records(keys))).collect();
    all.push(Described { default_ttl_ms: 77, ..of(1, Holds::Records(KeyKind::Any)) });
    all.push(Described { compression: Compression::Lz4, ..of(1, Holds::Records(KeyKind::Any)) });
    all.push(Described { default_ttl_ms: 77, compression: Compression::Zstd, ..of(1, Holds::Records(KeyKind::U64)) });
    all.push(of(2, Holds::Blocks(BlockOptions::new(512, 1000))));
    all.push(of(3, Holds::Versions(KeyKind::Bytes, Box::new(versions(None)))));
    all.push(of(4, Holds::Versions(KeyKind::U64, Box::new(versions(Some(bloom))))));
    all
}

/// Goal:   the bytes are those of the page on the format.
/// Method: each structure, with different numbers in all fields.
#[test]
fn golden_bytes() {
    let piece = Piece { kind: PieceKind::Records, number: 5, len: 3, crc: 0x0102_0304 };
    let mut expected = [0u8; 32];
    expected[..4].copy_from_slice(b"KBP1");
    (expected[4], expected[8], expected[16]) = (3, 5, 3);
    expected[20..24].copy_from_slice(&[4, 3, 2, 1]);
    expected[24..28].copy_from_slice(&0x6641_7626u32.to_le_bytes());
    assert_eq!(PieceHeader::encode(&piece, &BACKUP), expected);
    assert_eq!(PieceHeader::check(&expected, &BACKUP), Ok(piece));
    let mut expected = *b"KBE1\x22\xf2\x61\xae\0\x10\0\0\0\0\0\0\x09\0\0\0\0\0\0\0";
    assert_eq!(encode_trailer(&BACKUP, 4096, 9), expected);
    assert_eq!(decode_trailer(&BACKUP, &expected), Some((4096, 9)));
    expected[8] = 1;
    assert_eq!(decode_trailer(&BACKUP, &expected), None);

    let bytes = head().encode();
    let words = bytes[56..].chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    assert_eq!((&bytes[..8], bytes.len()), (&b"KBK1\x04\0\0\0"[..], 112));
    assert_eq!((&bytes[8..24], &bytes[24..40], &bytes[40..56]), (&[7; 16][..], &[8; 16][..], &[9; 16][..]));
    assert!(words.eq(10..17));

    let mut bytes = Vec::new();
    Entry { namespace: 1, expires: 0, digest: None, key: b"k", value: b"vv" }.encode(&mut bytes);
    assert_eq!(bytes, b"\x01\0\0\0\x02\0\0\0\x01\0\0\0kvv");
    bytes.clear();
    Entry { namespace: 1, expires: 0x0102, digest: None, key: b"k", value: b"vv" }.encode(&mut bytes);
    assert_eq!(bytes, b"\x01\0\0\0\x02\0\0\0\x01\0\x02\0\x02\x01\0\0\0\0\0\0kvv");
    bytes.clear();
    encode_version(1, &version(), b"vv", &mut bytes);
    let expected =
        b"\x01\0\0\0\x01\x08\0\0\x01\0\0\0\x02\0\0\0\x06\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05vv";
    assert_eq!(bytes, expected);
    bytes.clear();
    ListedKey::Bytes((*b"k").into()).encode(&mut bytes);
    ListedKey::Digest([3; 16]).encode(&mut bytes);
    assert_eq!(bytes, [&b"\x01\0k\x10\x80"[..], &[3; 16]].concat());
    let bytes = described()[0].encode();
    assert_eq!(bytes, b"\x01\0\0\0\x01\x01\x05\0\x02\0\0\0\x03\0\0\0\0\0\0\0users\0\0\0\0\x02\0\0\0");
    let bytes = Totals { pieces: 1, records: 2, versions: 3, deleted: 4, bytes: 5, crc: 6 }.encode();
    let words: Vec<u64> = bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    assert_eq!(words, [1, 2, 3, 4, 5, 6, 0, 0]);
}

/// Goal:   everything is read as it was written.
/// Method: each structure, namespaces of all kinds included.
#[test]
fn what_is_written_is_read() {
    assert_eq!(Head::decode(&head().encode()), Ok(head()));
    let full = Head { base: None, ..head() };
    assert_eq!(Head::decode(&full.encode()), Ok(full));
    for namespace in described() {
        assert_eq!(Described::decode(&namespace.encode()), Some(namespace));
    }
    let totals = Totals { pieces: 1, records: 2, versions: 3, deleted: 4, bytes: 5, crc: 6 };
    assert_eq!(Totals::decode(&totals.encode()), Some(totals));
    let mut newer = head().encode();
    newer[4] = 5;
    assert_eq!(Head::decode(&newer), Err(Some(5)));
    for older in [1, 2, 3] {
        newer[4] = older;
        assert_eq!(Head::decode(&newer), Ok(head()), "backups of older versions are read");
    }
}

fn decode_all(bytes: &[u8]) {
    let _ = Head::decode(bytes);
    let _ = Described::decode(bytes);
    let _ = Totals::decode(bytes);
    let (mut entries, mut versions, mut keys) = (Cursor(bytes), Cursor(bytes), Cursor(bytes));
    while Entry::decode(&mut entries).is_some() {}
    while decode_version(&mut versions).is_some() {}
    while ListedKey::decode(&mut keys).is_some() {}
    if let Some(header) = bytes.first_chunk() {
        let _ = PieceHeader::check(header, &BACKUP);
    }
    if let Some(trailer) = bytes.first_chunk() {
        let _ = decode_trailer(&BACKUP, trailer);
    }
}

/// Goal:   no bytes make a decoder panic, loop or allocate absurdly: a checksum protects from damage, not from what was written on purpose.
/// Method: what is valid, with random bytes in random places; cut short; and random bytes.
#[test]
fn hostile_bytes_are_refused() {
    let mut entry = Vec::new();
    Entry { namespace: 1, expires: 5, digest: Some([1; 16]), key: b"key", value: b"value" }.encode(&mut entry);
    encode_version(1, &version(), b"vv", &mut entry);
    let mut valid: Vec<Vec<u8>> = described().iter().map(Described::encode).collect();
    valid.extend([head().encode(), entry, Totals::default().encode()]);
    let mut rng = Rng::new(1);
    for _ in 0..20_000 {
        let mut bytes = valid[rng.below(valid.len() as u64) as usize].clone();
        for _ in 0..rng.below(6) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = if rng.below(2) == 0 { 0xff } else { rng.draw() as u8 };
        }
        bytes.truncate(rng.below(2 * bytes.len() as u64) as usize);
        decode_all(&bytes);
        let random: Vec<u8> = (0..rng.below(60)).map(|_| rng.draw() as u8).collect();
        decode_all(&random);
    }
}
