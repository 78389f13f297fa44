//! Golden bytes and hostile bytes for every format of the firmware.

use super::crc32c_append;
use super::frame::{Frame, FrameHeader};
use super::journal::{self, Change, LongKey};
use super::oob::{Extent, Oob, PageOob, entries_of_block, extents};
use super::record::{Form, Record, RecordHeader, RecordKind, suffix, trailer};
use super::root::{DecodeError, HEADER_BYTES, NamespaceRoot, Root, Run, Stream};
use super::version::{Directory, Entry, VersionStamp};
use crate::compression::Compression;
use crate::layout::{BlockOptions, Layout, VersionLayout};
use crate::secret::Secret;
use crate::versioned::Again;
use crate::versioned::merge_policy::MergePolicy;
use kaml_index::{FullKey, Key, KeyKind, LenCode, Slot};
use kaml_versions::{BloomOptions, Command, Parameters, SegmentAt, Stamp};
use proptest::prelude::*;

mod damage;

const UUID: [u8; 16] = *b"0123456789abcdef";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn record() -> Record {
    Record {
        namespace: 7,
        key: Key::new(b"key").unwrap(),
        kind: RecordKind::Value,
        value_len: 5,
        value_crc: kaml_crc::crc32c(b"value"),
        sequence: 0x1234,
        packed: false,
        form: Form::Long,
    }
}

fn root() -> Root {
    let stream =
        Stream { runs: vec![Run { block: 3, page: 4, page_count: 5 }], bytes: 20_000, crc32c: 9, list_bytes: 0 };
    Root {
        generation: 11,
        epoch: 2,
        clean: true,
        ring_tail: 4096,
        next_sequence: 77,
        next_namespace: 3,
        namespaces: vec![
            NamespaceRoot {
                id: 1,
                name: "users".to_owned(),
                layout: Layout::Records(KeyKind::Bytes),
                logs: vec![0, 2],
                record_count: 42,
                snapshot: Some(stream.clone()),
                snapshot_entry: 6,
                kept: None,
                kept_before: 0,
                merge_when_low: None,
                next_expiry: u64::MAX,
                default_ttl_ms: 0,
                compression: Compression::None,
                values_of: None,
            },
            NamespaceRoot {
                id: 2,
                name: "disk".to_owned(),
                layout: Layout::Blocks(BlockOptions {
                    block_bytes: 512,
                    block_count: 0x03_0405_0607,
                    unit_bytes: 4096,
                }),
                logs: vec![],
                record_count: 0,
                snapshot: None,
                snapshot_entry: 7,
                kept: None,
                kept_before: 0,
                merge_when_low: None,
                next_expiry: u64::MAX,
                default_ttl_ms: 0,
                compression: Compression::None,
                values_of: None,
            },
            NamespaceRoot {
                id: 3,
                name: "past".to_owned(),
                layout: Layout::Versions(VersionLayout {
                    keys: KeyKind::Bytes,
                    parameters: Parameters { rows: 5, ..Parameters::for_buffer(1 << 20, 0x0102_0304) },
                }),
                logs: vec![],
                record_count: 0,
                snapshot: None,
                snapshot_entry: 8,
                kept: Some(stream.clone()),
                kept_before: 70,
                merge_when_low: None,
                next_expiry: u64::MAX,
                default_ttl_ms: 0,
                compression: Compression::None,
                values_of: None,
            },
            NamespaceRoot {
                id: 4,
                name: "lossy".to_owned(),
                layout: Layout::Versions(VersionLayout {
                    keys: KeyKind::U64,
                    parameters: Parameters::for_buffer(1 << 20, 5),
                }),
                logs: vec![],
                record_count: 0,
                snapshot: None,
                snapshot_entry: 9,
                kept: None,
                kept_before: 0,
                merge_when_low: Some(MergePolicy {
                    keep_last: 3,
                    keep_for_ns: 0x0102_0304_0506,
                    keep_internal: true,
                    newest_only: false,
                }),
                next_expiry: u64::MAX,
                default_ttl_ms: 0,
                compression: Compression::None,
                values_of: None,
            },
            NamespaceRoot {
                id: 5,
                name: "paper".to_owned(),
                layout: Layout::Versions(VersionLayout {
                    keys: KeyKind::Bytes,
                    parameters: Parameters::for_buffer(2 << 20, 5).with_bloom(&BloomOptions::default()),
                }),
                logs: vec![],
                record_count: 0,
                snapshot: None,
                snapshot_entry: 10,
                kept: None,
                kept_before: 0,
                merge_when_low: Some(MergePolicy::default()),
                next_expiry: u64::MAX,
                default_ttl_ms: 0,
                compression: Compression::None,
                values_of: None,
            },
            of_records(6, "any", KeyKind::Any),
            of_records(7, "ordered", KeyKind::Ordered),
        ],
        blocks: Some(stream),
        blocks_entry: 8,
        journal: vec![Run { block: 1, page: 0, page_count: 2 }],
        journal_entries_end: 290,
        journal_tail: vec![7; 56],
        lifetime: [1, 2, 3, 4, 5, 6, 7, 8],
        index_seed: 0x1112_1314_1516_1718,
        secret: Some(secret()),
        clock_ms: 0,
    }
}

fn root_with_expiry() -> Root {
    let mut root = Root { clock_ms: 0x0304_0506_0708, ..root() };
    (root.namespaces[0].next_expiry, root.namespaces[0].default_ttl_ms) = (0x0102_0304_0506, 1000);
    root
}

fn root_with_parts() -> Root {
    let mut root = root_with_expiry();
    root.namespaces[0].snapshot.as_mut().expect("it has one").list_bytes = 0x40;
    root
}

fn of_records(id: u32, name: &str, keys: KeyKind) -> NamespaceRoot {
    NamespaceRoot {
        id,
        name: name.to_owned(),
        layout: Layout::Records(keys),
        logs: vec![],
        record_count: 0,
        snapshot: None,
        snapshot_entry: 11,
        kept: None,
        kept_before: 0,
        merge_when_low: None,
        next_expiry: u64::MAX,
        default_ttl_ms: 0,
        compression: Compression::None,
        values_of: None,
    }
}

fn secret() -> Secret {
    Secret { key: *b"fedcba9876543210", since_epoch: 2 }
}

fn frame() -> Frame {
    Frame {
        epoch: 1,
        lsn: 512,
        previous_end: 512,
        payload_len: 48,
        record_count: 1,
        records_crc: 5,
        committed_end: 256,
    }
}

/// Goal:   the bytes of each format never change unnoticed.
/// Method: encode fixed contents and compare with the stored bytes.
#[test]
fn golden_bytes() {
    assert_eq!(
        hex(&RecordHeader::encode(&record())),
        "4489c88d6303e0e107000000050000003412000000000301\
         6b657900000000000000000000000000"
    );
    assert_eq!(
        hex(&FrameHeader::encode(&frame(), UUID, &secret().sealer()).0),
        "4b524632e2ced93f30313233343536373839616263646566010000000000000000020000000000000002000000000000\
         3000000001000000050000000001000000000000\
         4a2df28039c3d0a400000000"
    );
    let mut entry = [0; 32];
    PageOob::encode(
        &Oob { bitmap: 0x8001, sequence: 3, log: 2, class: 1, continues: true, tag: Some(0x2122_2324) },
        &mut entry,
    );
    assert_eq!(hex(&entry), "4f4f42321c876a6b018000000000000003000000000000000200010124232221");
    let mut bytes = root_with_parts().encode(UUID);
    let before_compression = as_version(15, &encode_short_by(&root_with_parts(), 0));
    assert_eq!(kaml_crc::crc32c(&before_compression), 1_162_116_445, "but for its version");
    let expiry = "0807060504030000".to_owned() + "0605040302010000" + "e803000000000000" + "ffffffffffffffff";
    assert!(hex(&bytes).contains(&expiry), "the clock, and what the first namespace has on expiry");
    assert!(
        hex(&bytes).ends_with(&("40000000".to_owned() + &"00".repeat(4 * 6 + 7))),
        "the lists of parts, and no compression"
    );
    assert_eq!(Root::decode(&bytes, UUID), Ok(root_with_parts()));
    assert!(
        Root::decode(&as_version(17, &before_compression), UUID) == Ok(root_with_parts()),
        "as version 17 wrote it"
    );
    let mut compressing = root_with_parts();
    (compressing.namespaces[0].compression, compressing.namespaces[5].compression) =
        (Compression::Zstd, Compression::Lz4);
    bytes = compressing.encode(UUID);
    assert!(hex(&bytes).ends_with("02000000000100"), "how namespaces compress");
    assert_eq!(Root::decode(&bytes, UUID), Ok(compressing));
    let past = "0300000004000000001000000001000005000000030000000e000000000010000000000004030201000000000400";
    assert!(hex(&bytes).contains(past), "the attributes of a versioned namespace");
    let bloom = "0a000000001000000001000002000000000000000000000000002000000000000500000000000000\
                 00020000000100008000000040000000200000001000000008000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 20000000f4010000f203000040000000";
    assert!(hex(&bytes).contains(bloom), "the attributes of a namespace with the paper's index");
    let policy = "0300000001000000060504030201000000000000";
    assert!(hex(&bytes).contains(&policy[..32]), "what may go when space runs low");
    let disk = "02000000020000000002000000100000070605040300000004000000".to_owned() + &hex(b"disk");
    assert!(hex(&bytes).contains(&disk), "the attributes of a block namespace");
}

/// Goal:   roots of older versions are still read: 1 knew no block namespaces, 2 no versioned ones, 4 no journal entries in
///         the root, 5 no merges because there is no space, 6 not the paper's index, 8 not the checksum of the header, 9 directories once,
///         10 no seed of indexes, 11 no secret, 12 no keys above 16 bytes, 13 no records that expire,
///         16 no lists of parts, 17 no compression. Version 18: [`golden_newest_only`].
/// Method: the bytes that each version wrote, checked against the sum that it froze.
#[test]
fn older_roots_open() {
    for (version, namespaces, sum) in [(1, 1, 3_892_935_238), (2, 2, 367_554_758), (4, 3, 2_814_431_330)] {
        let mut old = Root { journal_tail: Vec::new(), ..root_without_seed() };
        old.namespaces.truncate(namespaces);
        let mut bytes = encode_without_seed(&old);
        // Without the length of the tail, which is in front of the eight sums.
        let behind = bytes.len() - 64;
        bytes.drain(behind - 4..behind);
        let body = &bytes[HEADER_BYTES..];
        let (len, crc) = (body.len() as u32, kaml_crc::crc32c(body));
        let fields = [version, len, crc].map(u32::to_le_bytes);
        bytes[4..16].copy_from_slice(fields.as_flattened());
        assert_eq!(kaml_crc::crc32c(&bytes), sum, "as version {version} wrote it");
        assert_eq!(Root::decode(&bytes, UUID), Ok(old));
    }
    for (version, namespaces, sum) in [(5, 3, 3_847_074_820), (6, 4, 2_020_765_534), (8, 5, 397_817_397)] {
        let mut old = root_without_seed();
        old.namespaces.truncate(namespaces);
        let mut bytes = encode_without_seed(&old);
        bytes[4] = version;
        let crc = kaml_crc::crc32c(&bytes[HEADER_BYTES..]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(kaml_crc::crc32c(&bytes), sum, "as version {version} wrote it");
        assert_eq!(Root::decode(&bytes, UUID), Ok(old));
    }
    let newer = [
        (9, 32, root_without_seed(), 1_492_963_056),
        (10, 32, root_without_seed(), 2_666_733_024),
        (11, 24, Root { secret: None, ..root() }, 3_806_140_925),
        (12, 0, root(), 87_640_190),
        (13, 0, root(), 1_017_361_264),
    ];
    for (version, without, mut old, sum) in newer {
        old.namespaces.truncate(if version == 13 { 7 } else { 5 });
        let mut bytes = encode_without(&old, without);
        bytes[4] = version;
        let crc = crc32c_append(kaml_crc::crc32c(&bytes[..12]), &bytes[16..]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(kaml_crc::crc32c(&bytes), sum, "as version {version} wrote it");
        assert_eq!(Root::decode(&bytes, UUID), Ok(old));
    }
    let bytes = as_version(14, &encode_short_by(&root_with_expiry(), 4 * root_with_expiry().namespaces.len()));
    assert_eq!(kaml_crc::crc32c(&bytes), 2_093_424_306, "as version 14 wrote it");
    assert_eq!(Root::decode(&bytes, UUID), Ok(root_with_expiry()));
    let bytes = as_version(16, &bytes);
    assert_eq!(kaml_crc::crc32c(&bytes), 1_153_346_528, "as version 16 wrote it");
    assert_eq!(Root::decode(&bytes, UUID), Ok(root_with_expiry()));
}

/// Goal:   the root that states that only newest versions are kept never changes unnoticed, and no rule is read that this build does not know: it
///         could mean that more is kept.
/// Method: the policy written out byte by byte; the same root as version 18 wrote it, and with bits that each version did not have.
#[test]
fn golden_newest_only() {
    let with_bits = |version: u8, bits: u8| {
        let mut bytes = root_with_parts().encode(UUID);
        let policy = [3, 0, 0, 0, 1, 0, 0, 0, 6, 5, 4, 3, 2, 1];
        let at = bytes.windows(policy.len()).position(|window| window == policy).expect("the policy of \"lossy\"");
        bytes[at + 4] = bits;
        as_version(version, &bytes)
    };
    let root_with = |keep_internal: bool, newest_only: bool| {
        let mut root = root_with_parts();
        root.namespaces[3].merge_when_low =
            Some(MergePolicy { keep_last: 3, keep_for_ns: 0x0102_0304_0506, keep_internal, newest_only });
        root
    };
    let bytes = root_with(false, true).encode(UUID);
    assert!(
        hex(&bytes).contains("03000000020000000605040302010000"),
        "what is kept of a namespace with its index on flash"
    );
    assert_eq!((kaml_crc::crc32c(&bytes), bytes[4]), (491_363_249, 19), "as version 19 writes it");
    assert_eq!(bytes, with_bits(19, 2));
    for (version, bits, root) in [
        (18, 0, Some(root_with(false, false))),
        (18, 1, Some(root_with(true, false))),
        (18, 2, None),
        (19, 2, Some(root_with(false, true))),
        (19, 3, Some(root_with(true, true))),
        (19, 4, None),
        (19, 0x80, None),
    ] {
        assert_eq!(Root::decode(&with_bits(version, bits), UUID).ok(), root, "version {version}, bits {bits:#x}");
    }
    assert_eq!(kaml_crc::crc32c(&with_bits(18, 1)), 1_169_586_984, "as version 18 wrote it");
}

/// Goal:   a root whose list of parts is longer than the image, or belongs to no image, is refused.
/// Method: lengths that do not fit, in roots whose checksums are right.
#[test]
fn lists_of_parts_fit_their_images() {
    for (namespace, list_bytes, fits) in [(0, 19_999u32, true), (0, 20_000, false), (5, 1, false)] {
        let mut bytes = root().encode(UUID);
        let count = root().namespaces.len();
        let at = bytes.len() - count - 4 * (count - namespace);
        bytes[at..at + 4].copy_from_slice(&list_bytes.to_le_bytes());
        let crc = crc32c_append(kaml_crc::crc32c(&bytes[..12]), &bytes[16..]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Root::decode(&bytes, UUID).is_ok(), fits, "{list_bytes} bytes");
    }
}

/// The same root with another version.
fn as_version(version: u8, root: &[u8]) -> Vec<u8> {
    let mut bytes = root.to_vec();
    bytes[4] = version;
    let crc = crc32c_append(kaml_crc::crc32c(&bytes[..12]), &bytes[16..]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Goal:   the formats of large values of versioned namespaces never change unnoticed; what is encoded is decoded, and nothing that is cut.
/// Method: a record of the ring, and a root with a namespace of such values, written out byte by byte.
#[test]
fn golden_large_versions() {
    let large = Record { kind: RecordKind::LargeVersion, ..record() };
    let bytes = RecordHeader::encode(&large);
    assert_eq!(
        hex(&bytes),
        "bfe21b996303e0e10700000005000000341200000000030a\
         6b657900000000000000000000000000"
    );
    assert_eq!(RecordHeader::check(&bytes), Some(large));
    assert_eq!((large.ring_payload_bytes(), large.ring_head_bytes()), (24, 24));
    let stamp = VersionStamp { time_ns: 0x0102_0304_0506_0708, user_version: 9 };
    let body = [&stamp.encode()[..], &0x1112_1314_1516_1718u64.to_le_bytes()].concat();
    let Some(Again::Version(version, stored)) = Again::of_ring(&large, &body) else { panic!("a version") };
    assert_eq!((version.kind, version.value_len), (kaml_versions::Kind::Large(0x1112_1314_1516_1718), 5));
    assert_eq!(stored, version.record(&[]));
    assert!((0..24).all(|len| Again::of_ring(&large, &body[..len]).is_none()));
    let values = NamespaceRoot { values_of: Some(3), ..of_records(8, "", KeyKind::U64) };
    let mut root = root_with_expiry();
    root.namespaces.push(values);
    let bytes = as_version(15, &encode_short_by(&root, 4 * root.namespaces.len()));
    let values = "080000000d0000000300000000000000".to_owned() + "00000000" + "0000000000000000";
    assert!(hex(&bytes).contains(&values), "whose values a namespace has");
    assert_eq!(kaml_crc::crc32c(&as_version(15, &bytes)), 1_889_717_013, "as version 15 wrote it");
    assert_eq!(Root::decode(&bytes, UUID), Ok(root));
}

fn root_without_seed() -> Root {
    Root { index_seed: 0, secret: None, ..root() }
}

fn encode_without_seed(root: &Root) -> Vec<u8> {
    encode_without(root, 32)
}

/// The root without what versions 14 and 17 have last, and so many bytes before; its checksum is wrong.
fn encode_without(root: &Root, count: usize) -> Vec<u8> {
    encode_short_by(root, 8 + (16 + 4) * root.namespaces.len() + count)
}

/// The root without what version 18 has last, and so many bytes before; its checksum is wrong.
fn encode_short_by(root: &Root, count: usize) -> Vec<u8> {
    let mut bytes = root.encode(UUID);
    bytes.truncate(bytes.len() - root.namespaces.len() - count);
    let len = (bytes.len() - HEADER_BYTES) as u32;
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// Goal:   the formats of versioned namespaces never change unnoticed; what is encoded is decoded, and nothing that is cut.
/// Method: a stamp, a directory, and journal entries of each kind, written out byte by byte.
#[test]
fn golden_versions() {
    let stamp = VersionStamp { time_ns: 0x0102_0304_0506_0708, user_version: 9 };
    assert_eq!(hex(&stamp.encode()), "08070605040302010900000000000000");
    assert_eq!(VersionStamp::decode(&stamp.encode()), Some(stamp));
    let entry = Entry { at: SegmentAt::new(0x0102_0304).unwrap(), table_pages: 5, live: 6, identity: 0x0708_090a };
    let directory = Directory { rows: vec![vec![entry], vec![]], ..Directory::new(2) };
    let bytes = directory.encode(128);
    let timeline = hex(&directory.timeline.encode());
    let copy = format!("4b564432020000002c000000{timeline}01000000040302010000050006000a09080700000000");
    assert_eq!((hex(&bytes[..78]), hex(&bytes[78..128])), (copy, "00".repeat(50)));
    assert_eq!(bytes[..128], bytes[128..]);
    assert_eq!(Directory::decode(&bytes, 2), Some(directory.clone()));
    assert!((0..2 * 78).all(|len| Directory::decode(&bytes[..len], 2).is_none()), "of a stream its half is a copy");
    let crc = kaml_crc::crc32c(&bytes);
    for at in 0..256 {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x20;
        assert_eq!(Directory::mend(&damaged, crc).as_ref(), Some(&bytes), "byte {at}");
        damaged[(at + 100) / 128 * 128 % 256] ^= 1;
        assert_eq!(Directory::mend(&damaged, crc).is_some(), at / 128 == (at + 100) / 128 % 2, "byte {at}");
    }
    let old = format!("4b564431020000002c000000{timeline}010000000403020100000500060000000000");
    let old: Vec<u8> = (0..old.len()).step_by(2).map(|at| u8::from_str_radix(&old[at..at + 2], 16).unwrap()).collect();
    let without = Directory { rows: vec![vec![Entry { identity: 0, ..entry }], vec![]], ..Directory::new(2) };
    assert_eq!(Directory::decode(&old, 2), Some(without));
    assert!((0..old.len()).all(|len| Directory::decode(&old[..len], 2).is_none()));
    let stamp = Stamp { sequence: 0x0a0b, time_ns: 0x0102_0304_0506_0708 };
    let changes = [
        Change::SegmentIn { namespace: 7, row: 1, place: 2, entry },
        Change::SegmentsOut { namespace: 7, row: 1, place: 2, count: 3 },
        Change::Versions { namespace: 7, command: Command::RollBack(4), stamp },
    ];
    let mut page = vec![0; 128];
    changes.iter().enumerate().for_each(|(i, change)| journal::write_entry(&mut page, i, change));
    journal::seal(&mut page, 7, 3);
    assert_eq!(
        hex(&page[32..]),
        "0700000000010403020100000100000002000000050006000a09080707000000\
         0002000000000000010000000200000003000000000000000700000000030b0a\
         0000000008070605040302010200000004000000000000000000000000000000"
    );
    assert_eq!(journal::check(&page), Some((7, changes.to_vec())));
}

/// Goal:   the same for a page of the journal.
/// Method: one entry of each kind, written out byte by byte; and the stored bytes are decoded.
#[test]
fn golden_journal_page() {
    let key = Key::new(b"key").unwrap();
    let changes = [
        Change::Moved { namespace: 0x1234, key, to: Slot { at: 0x01_0203_0405, len: LenCode::of(3).unwrap() } },
        Change::Deleted { namespace: 0x1234, key: Key::from(42) },
        Change::Block { block: 9, erase_count: 17, bad: true },
    ];
    let mut page = vec![0; 128];
    changes.iter().enumerate().for_each(|(i, change)| journal::write_entry(&mut page, i, change));
    journal::seal(&mut page, 7, 3);
    assert_eq!(
        hex(&page),
        "4b4a5031513d32aa070000000000000003000000000000000000000000000000\
         3412000003030504030201006b65790000000000000000000000000034120000\
         0800000000000000000000000000002a00000000000000000000000000011100\
         0000000009000000000000000000000000000000000000000000000000000000"
    );
    assert_eq!(journal::check(&page), Some((7, changes.to_vec())));
}

/// Goal:   the formats of records that expire never change unnoticed; what is encoded is decoded, and times that are none are refused.
/// Method: a record and its mapping, and journal entries, written out byte by byte; times of 0 and beyond the last one.
#[test]
fn golden_expiry() {
    let key = FullKey::from(Key::new(b"key").unwrap());
    let record = Record { kind: RecordKind::Expiring, value_len: 13, ..record() };
    assert_eq!(hex(&RecordHeader::encode(&record)[8..24]), "070000000d0000003412000000000308");
    assert_eq!(RecordHeader::check(&RecordHeader::encode(&record)), Some(record));
    let stored = [b"value", &trailer(0x0102_0304_0506, &key)[..]].concat();
    assert_eq!(hex(&stored), hex(b"value") + "0605040302010000");
    assert_eq!((record.expires(&stored), record.own_value_bytes(&stored)), (Some(0x0102_0304_0506), Some(5)));
    assert_eq!((record.ring_payload_bytes(), record.ring_head_bytes()), (13, 0));
    for bad in [0, 1 << 48] {
        assert_eq!(record.expires(&[&b"value"[..], &u64::to_le_bytes(bad)].concat()), None);
    }
    assert_eq!(record.expires(b"short"), None);
    let mapping = Record { kind: record.kind.mapping(), sequence: 0, ..record };
    assert_eq!(hex(&RecordHeader::encode(&mapping)[8..24]), "070000000d0000000000000000000309");
    assert_eq!((mapping.ring_payload_bytes(), mapping.ring_head_bytes()), (16, 16));
    assert_eq!(mapping.expires(&[[9; 8], 7u64.to_le_bytes()].concat()), Some(7));
    let long = FullKey::long(Key::of_digest([7; 16]), b"a key of 22 bytes here");
    let stored = [b"value", &trailer(9, &long)[..]].concat();
    let of_long = Record { key: *long.key(), value_len: stored.len() as u32, ..record };
    assert_eq!((of_long.full_key(&stored), of_long.expires(&stored)), (Some(long), Some(9)));
    assert_eq!(of_long.own_value_bytes(&stored), Some(5));

    let changes = [
        Change::Expires { namespace: 0x1234, key: *key.key(), at: 0x0102_0304_0506 },
        Change::Expires { namespace: 0x1234, key: *key.key(), at: 0 },
        Change::Expired { namespace: 0x1234, until: 0x0102_0304_0506 },
    ];
    let mut page = vec![0; 128];
    changes.iter().enumerate().for_each(|(i, change)| journal::write_entry(&mut page, i, change));
    journal::seal(&mut page, 7, 3);
    assert_eq!(
        hex(&page[32..]),
        "3412000003800605040302016b65790000000000000000000000000034120000\
         03800000000000006b6579000000000000000000000000003412000014000605\
         0403020100000000000000000000000000000000000000000000000000000000"
    );
    assert_eq!(journal::check(&page), Some((7, changes.to_vec())));
}

/// Goal:   the formats of keys above 16 bytes never change unnoticed; what is encoded is decoded, and bytes that are no key are none.
/// Method: the suffix of a record, and the journal entries of a key, written out byte by byte; suffixes cut and with other lengths.
#[test]
fn golden_long_keys() {
    let digest = Key::of_digest(*b"0123456789abcdef");
    let key = FullKey::long(digest, b"a key of 22 bytes here");
    let record = Record { key: digest, ..record() };
    assert_eq!(RecordHeader::check(&RecordHeader::encode(&record)), Some(record));
    assert_eq!(hex(&RecordHeader::encode(&record)[16..]), "341200000000110130313233343536373839616263646566");
    let stored = [b"value", &suffix(&key)[..]].concat();
    assert_eq!(hex(&stored), hex(b"valuea key of 22 bytes here") + "1600");
    assert_eq!((record.full_key(&stored), record.own_value_bytes(&stored)), (Some(key), Some(5)));
    for bad in [&b""[..], b"\x16", b"\x16\0", &stored[6..], b"0123456789abcdef\x10\0", &[0xff; 2000]] {
        assert_eq!(record.full_key(bad), None, "{bad:?}");
    }
    let changes: Vec<Change> = journal::key_bytes(0x1234, key.long_bytes())
        .chain([Change::Deleted { namespace: 0x1234, key: digest }])
        .collect();
    let mut page = vec![0; 128];
    changes.iter().enumerate().for_each(|(i, change)| journal::write_entry(&mut page, i, change));
    journal::seal(&mut page, 7, 3);
    assert_eq!(
        hex(&page[32..116]),
        "34120000120000001600000061206b6579206f66203232206279746534120000\
         1200100016000000732068657265000000000000000000003412000011000000\
         0000000030313233343536373839616263646566"
    );
    assert_eq!(journal::check(&page), Some((7, changes.clone())));
    let mut long = LongKey::default();
    let mut add = |change: &Change| {
        let Change::KeyBytes { namespace, from, len, bytes } = change else { panic!("{change:?}") };
        long.add(*namespace, *from, *len, bytes);
        (long.of(0x1234, digest) == key, long.of(5, digest) == key)
    };
    assert_eq!(add(&changes[1]), (false, false), "its beginning is missing");
    assert_eq!(add(&changes[0]), (false, false));
    assert_eq!(add(&changes[1]), (true, false), "only in its namespace");
    assert_eq!(add(&changes[1]), (false, false), "once");
}
