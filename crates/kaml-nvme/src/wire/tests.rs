//! Byte vectors of commands, both ways, and parsers against bytes that make no sense.

use super::blocks;
use super::changes::{self, ChangesReply};
use super::command::{Command, Completion, Sgl, kv, nvm};
use super::fabrics::{Connect, Property};
use super::keyvalue::KeyFormat;
use super::logs::LogRequest;
use super::manage::{
    Attributes, Create, PutAction, Wanted, decode_change, decode_put, encode_change, encode_long_put, encode_put,
};
use super::named::{decode_found, decode_keys, decode_long_keys, encode_keys, encode_long_keys, put_found};
use super::ranges::{KeyRange, decode_range, decode_records, encode_range, put_record};
use super::status::Status;
use super::{auth, identify, keyvalue, text, vendor, versions};
use kaml::{
    At, BlockOptions, Compression, CreateOptions, Device, Difference, Key, KeyBuf, KeyKind, MergePolicy,
    NamespaceChange, Past, Retention, SnapshotInfo, Version, VersionKind, VersionOptions, VersionStats,
};
use kaml::{Change, ChangesCursor, ChangesPart, Position};
use proptest::prelude::*;
use std::ops::Bound as KeyBound;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

fn key(bytes: &[u8]) -> Key {
    Key::new(bytes).unwrap()
}

/// Goal:   a Store is laid out as xNVMe and SPDK lay it out.
/// Method: the command that nvme-cli sends for `--cdw2=0x00636261 --cdw11=0x203 --cdw10=5`, byte for byte.
#[test]
fn golden_store() {
    let mut command = Command::new(kv::STORE, 2);
    command.cid = 0x0100.into();
    command.sgl = Sgl::transport(5);
    command.cdw10 = 5.into();
    command.cdw11 = (u32::from(keyvalue::store::MUST_NOT_EXIST) << 8).into();
    keyvalue::put_key(&mut command, &key(b"abc"));
    let mut expected = [0; 64];
    expected[..12].copy_from_slice(&[1, 0x40, 0, 1, 2, 0, 0, 0, b'a', b'b', b'c', 0]);
    expected[32] = 5;
    expected[39] = 0x5a;
    expected[40] = 5;
    expected[44..46].copy_from_slice(&[3, 2]);
    assert_eq!(command.as_bytes(), expected);
    let read = Command::read_from_bytes(&expected).unwrap();
    assert_eq!(keyvalue::get_key(&read), Ok(Some(key(b"abc"))));
    assert_eq!(keyvalue::options(&read), keyvalue::store::MUST_NOT_EXIST);
}

/// Goal:   a range of blocks is laid out as hosts lay it out, and read back; what cannot be expressed is refused.
/// Method: 8 blocks from 2^32 + 2 on, byte for byte; no blocks and too many.
#[test]
fn golden_range() {
    let mut command = Command::new(nvm::READ, 1);
    command.cdw12 = (1 << 30).into(); // Force Unit Access stays
    blocks::put_range(&mut command, (1 << 32) + 2, 8).unwrap();
    assert_eq!(command.as_bytes()[40..52], [2, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0x40]);
    assert_eq!(blocks::get_range(&command), ((1 << 32) + 2, 8));
    assert_eq!(blocks::put_range(&mut command, 0, blocks::BLOCKS_MAX), Some(()));
    assert_eq!(blocks::get_range(&command), (0, 65_536));
    assert!(blocks::put_range(&mut command, 0, 0).is_none());
    assert!(blocks::put_range(&mut command, 0, blocks::BLOCKS_MAX + 1).is_none());
}

/// Goal:   ranges to deallocate go through byte for byte; short data and ranges beyond all numbers are refused.
/// Method: two ranges; the same one byte short, with more after them, and with a range that ends after 2^64.
#[test]
fn golden_dataset_ranges() {
    let data = blocks::encode_ranges(&[5..8, 0x0102..0x0103]).unwrap();
    assert_eq!(data[..16], [0, 0, 0, 0, 3, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(data[16..], [0, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
    let mut command = Command::new(nvm::DATASET_MANAGEMENT, 1);
    command.cdw10 = 1.into();
    assert_eq!(blocks::decode_ranges(&command, &data), Ok(vec![5..8, 0x0102..0x0103]));
    assert_eq!(blocks::decode_ranges(&command, &[data.clone(), vec![9; 99]].concat()).unwrap().len(), 2);
    assert_eq!(blocks::decode_ranges(&command, &data[..31]), Err(Status::SGL_LENGTH));
    command.cdw10 = 0.into();
    let far = [[0, 0, 0, 0, 1, 0, 0, 0].as_slice(), &[0xff; 8]].concat();
    assert_eq!(blocks::decode_ranges(&command, &far), Err(Status::LBA_OUT_OF_RANGE));
    assert!(blocks::encode_ranges(&[]).is_none() && blocks::encode_ranges(&vec![0..1; 257]).is_none());
}

/// Goal:   keys of all lengths go through, others are refused.
/// Method: lengths 0 to 255.
#[test]
fn keys_of_all_lengths() {
    let all: Vec<u8> = (1..=16).collect();
    for len in 0..=255usize {
        let mut command = Command::new(kv::EXIST, 1);
        command.cdw11 = (len as u32).into();
        if (1..=16).contains(&len) {
            keyvalue::put_key(&mut command, &key(&all[..len]));
            assert_eq!(keyvalue::get_key(&command), Ok(Some(key(&all[..len]))));
            assert_eq!(command.as_bytes()[56..64], key(&all[..len]).padded()[8..]);
        } else {
            let expected = if len == 0 { Ok(None) } else { Err(Status::INVALID_FIELD) };
            assert_eq!(keyvalue::get_key(&command), expected);
        }
    }
}

/// Goal:   the data of List have whole keys only, each filled up to a multiple of 4.
/// Method: a golden list, and every room for it.
#[test]
fn golden_list() {
    let keys = [key(b"a"), key(b"bcd"), key(b"efghij")];
    let bytes = keyvalue::encode_list(&keys, 4096);
    assert_eq!(bytes, b"\x03\0\0\0\x01\0a\0\x03\0bcd\0\0\0\x06\0efghij");
    assert_eq!(keyvalue::decode_list(&bytes).unwrap(), keys);
    for room in 4..bytes.len() {
        let part = keyvalue::decode_list(&keyvalue::encode_list(&keys, room)).unwrap();
        assert!(part.len() < keys.len() && keys.starts_with(&part), "room {room}");
    }
}

/// Goal:   Connect and the properties are laid out as hosts send them.
/// Method: bytes at their offsets.
#[test]
fn golden_fabrics_commands() {
    let mut connect = Connect::new_zeroed();
    (connect.queue, connect.queue_size, connect.keep_alive_ms) = (1.into(), 127.into(), 5000.into());
    let command = connect.command();
    assert_eq!(command.as_bytes()[..5], [0x7f, 0x40, 0, 0, 1]);
    assert_eq!(command.as_bytes()[32..52], [0, 4, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 127, 0, 0, 0, 0x88, 0x13, 0, 0]);
    assert_eq!(Connect::of(&command), connect);
    let set = Property::command(super::fabrics::kind::PROPERTY_SET, 0x14, false, 0x0046_0061);
    assert_eq!(set.as_bytes()[40..52], [0, 0, 0, 0, 0x14, 0, 0, 0, 0x61, 0, 0x46, 0]);
    assert_eq!(Property::of(&set).value.get(), 0x0046_0061);
}

/// Goal:   an atomic Put and namespace attributes read back as written.
/// Method: golden bytes of one record; all actions; attributes with everything set.
#[test]
fn vendor_data_read_back() {
    let mut data = Vec::new();
    encode_put(&mut data, 5, &key(b"k1"), PutAction::StoreIfAbsent(b"value"));
    let mut expected = vec![5, 0, 0, 0, 5, 0, 0, 0, 2, 2, 0, 0, b'k', b'1'];
    expected.resize(28, 0);
    expected.extend(b"value\0\0\0");
    assert_eq!(data, expected);
    for action in
        [PutAction::Store(b""), PutAction::StoreIfPresent(b"x"), PutAction::Delete, PutAction::DeleteIfPresent]
    {
        encode_put(&mut data, 6, &key(b"k2"), action);
    }
    let batch = decode_put(&data, 5, KeyFormat::Short).unwrap();
    assert_eq!((batch.len(), batch.value_bytes()), (5, 6));
    assert_eq!(decode_put(&data, 6, KeyFormat::Short).unwrap_err(), Status::SGL_LENGTH);
    data[8] = 17;
    assert_eq!(decode_put(&data, 1, KeyFormat::Short).unwrap_err(), Status::INVALID_KEY_SIZE);

    let merge_when_low =
        Some(MergePolicy { keep_last: 3, keep_for_ns: 1 << 40, keep_internal: true, newest_only: true });
    let (buffer_bytes, segment_bytes) = (1 << 40, 1 << 20);
    let versions = VersionOptions { buffer_bytes, segment_bytes, merge_when_low, ..VersionOptions::default() };
    let wanted = Wanted {
        name: Some("läufe".into()),
        keys: Some(KeyKind::U64),
        logs: vec![0, 3],
        versions: Some(versions),
        compression: Compression::Zstd,
    };
    let mut create = Create::new_zeroed();
    assert_eq!(create.kaml.read(), Ok(Wanted::default()));
    create.kaml = Attributes::of(&wanted).unwrap();
    let read = Create::read_from_bytes(create.as_bytes()).unwrap();
    assert_eq!(read.kaml.read(), Ok(wanted));
    create.kaml.policy = 8;
    assert_eq!(create.kaml.read(), Err(Status::INVALID_FIELD), "a rule that nobody knows might keep more");
}

/// Goal:   changes of a namespace are laid out as `docs/nvme-vendor.md` specifies; what makes no sense is refused.
/// Method: golden bytes of one change of each kind, and all of them there and back.
#[test]
fn golden_changes() {
    let logs = NamespaceChange { logs: Some(vec![1, 258]), ..NamespaceChange::default() };
    let (bits, attributes) = encode_change(&logs).unwrap();
    let data = attributes.as_bytes();
    assert_eq!((bits, &data[..8], &data[72..76]), (2, &b"KAML\x01\0\0\x02"[..], &[1, 0, 2, 1][..]));
    assert_eq!(decode_change(bits, data), Ok(logs));
    let policy = MergePolicy { keep_last: 2, keep_for_ns: 3, keep_internal: true, newest_only: false };
    let all = NamespaceChange {
        name: Some("läufe".into()),
        logs: Some(Vec::new()),
        merge_when_low: Some(Some(policy)),
        ..NamespaceChange::default()
    };
    let (bits, attributes) = encode_change(&all).unwrap();
    let data = attributes.as_bytes();
    assert_eq!((bits, data[6], &data[8..14], data[201]), (7, 6, "läufe".as_bytes(), 3));
    assert_eq!(data[216..228], [3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(decode_change(bits, data), Ok(all));
    let never = NamespaceChange { merge_when_low: Some(None), ..NamespaceChange::default() };
    let (bits, attributes) = encode_change(&never).unwrap();
    let data = attributes.as_bytes();
    assert_eq!((bits, decode_change(bits, data)), (4, Ok(never)));
    let change = NamespaceChange { compression: Some(Compression::Lz4), ..NamespaceChange::default() };
    let (bits, compressing) = encode_change(&change).unwrap();
    assert_eq!((bits, compressing.as_bytes()[202]), (8, 1));
    assert_eq!(decode_change(bits, compressing.as_bytes()), Ok(change));
    let mut unknown = compressing;
    unknown.compression = 3;
    assert_eq!(decode_change(bits, unknown.as_bytes()), Err(Status::INVALID_FIELD));
    for (bits, data, status) in [
        (0, data, Status::INVALID_FIELD),
        (16, data, Status::INVALID_FIELD),
        (1, data, Status::INVALID_FIELD), // no name
        (2, &[0; 240][..], Status::INVALID_FIELD),
        (2, &data[..239], Status::SGL_LENGTH),
    ] {
        assert_eq!(decode_change(bits, data), Err(status));
    }
    assert!(encode_change(&NamespaceChange { name: Some("n".repeat(65)), ..NamespaceChange::default() }).is_none());
    assert!(encode_change(&NamespaceChange { logs: Some(vec![0; 65]), ..NamespaceChange::default() }).is_none());
}

/// Goal:   lists of keys and what is returned for them are laid out as `docs/nvme-vendor.md` specifies.
/// Method: golden bytes of a key, a value, a missing one, and a value without room.
#[test]
fn golden_named_keys() {
    let data = encode_keys([(5, key(b"k1"))].into_iter());
    let mut expected = vec![5, 0, 0, 0, 2, 0, 0, 0, b'k', b'1'];
    expected.resize(24, 0);
    assert_eq!(data, expected);
    assert_eq!(decode_keys(&data, 1), Ok(vec![(5, key(b"k1"))]));
    assert_eq!(decode_keys(&data, 2), Err(Status::SGL_LENGTH));
    assert_eq!(decode_keys(&data, 0), Err(Status::INVALID_FIELD));
    let mut told = Vec::new();
    assert!(put_found(&mut told, Ok(b"value"), 40));
    assert!(put_found(&mut told, Err(Status::NO_SUCH_KEY), 40));
    assert!(!put_found(&mut told, Ok(&[]), 40));
    let expected = [[5, 0, 0, 0], [5, 0, 0, 0], [0; 4], *b"valu", *b"e\0\0\0", [0; 4], [0; 4], [0x0e, 0x81, 0, 0]];
    assert_eq!(told, expected.concat());
    let found = decode_found(&told, 2).unwrap();
    assert_eq!((found[0].value.as_deref(), found[1].status), (Some(&b"value"[..]), Status::NO_SUCH_KEY));
    assert_eq!(decode_found(&told, 3), None);
    let mut told = Vec::new();
    assert!(put_found(&mut told, Ok(&[1; 100]), 40));
    assert_eq!(told, [[100, 0, 0, 0], [0; 4], [0; 4]].concat());
}

/// Goal:   commands on versions and their results are laid out as `docs/nvme-vendor.md` specifies.
/// Method: golden bytes of a version, a snapshot and a difference; rules of a merge there and back; names of namespaces.
#[test]
fn golden_versions() {
    let version = Version {
        key: key(b"k"),
        kind: VersionKind::Tombstone,
        value_len: 3,
        value_crc: 4,
        sequence: 1,
        time_ns: 2,
        user_version: 5,
        ordinal: 0,
    };
    let past = Past { version, is_seen: true };
    let told = versions::encode_history(&[past]);
    assert_eq!(told, [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 1, 1, 0, 0]);
    assert_eq!(versions::decode_history(&told, 1, key(b"k")), Some(vec![past]));
    let snapshots = vec![SnapshotInfo { version: 7, time_ns: 9 }];
    let stats = VersionStats { version_count: 1, user_version: 8, snapshots, ..VersionStats::default() };
    let told = versions::encode_stats(&stats);
    assert_eq!(told[56..], [8, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(versions::decode_stats(&told), Some((stats, 1)));
    let mut told = Vec::new();
    versions::put_difference(&mut told, &key(b"k"), Difference::Removed);
    assert_eq!(told[..6], [2, 1, 0, 0, b'k', 0]);
    assert_eq!(versions::decode_differences(&told, 1), Some(vec![(key(b"k"), Difference::Removed)]));
    let mut command = Command::new(0xda, 1);
    let rules = Retention { keep_last: 3, keep_since_ns: Some(5 << 32 | 6), ..Retention::default() };
    versions::put_merge(&mut command, &rules, true);
    assert_eq!(command.as_bytes()[44..60], [15, 0, 0, 0, 3, 0, 0, 0, 6, 0, 0, 0, 5, 0, 0, 0]);
    assert_eq!(versions::get_merge(&command), Ok((rules, true)));
    versions::put_at(&mut command, At::Back(4));
    assert_eq!(versions::get_at(&command), Ok(At::Back(4)));
    let device =
        Device::in_memory(&CreateOptions { block_bytes: Some(2 << 20), ..CreateOptions::new(128 << 20) }).unwrap();
    device.create_namespace("läufe", &BlockOptions::new(512, 77).into()).unwrap();
    let infos = device.namespaces();
    let page = vendor::encode_namespaces(infos.iter());
    assert_eq!((&page[..10], page[20], page[22]), (&b"KAML\x01\0\0\x02\x01\0"[..], 2, 6));
    assert_eq!(vendor::decode_namespaces(&page), Some((infos, 1)));
    assert_eq!(vendor::decode_namespaces(&page[..500]), Some((vec![], 1)));
}

/// Goal:   text fields and lists are what hosts read.
/// Method: one of each.
#[test]
fn texts_and_lists() {
    let mut field = [0; 8];
    text::put_ascii(&mut field, "1.2ü");
    assert_eq!(&field, b"1.2?    ");
    assert_eq!(text::get_ascii(&field), "1.2?");
    assert_eq!(text::get_nqn(b"nqn.x\0..."), Some("nqn.x"));
    assert_eq!(text::get_nqn(b"nqn.x"), None);
    assert_eq!(text::get_nqn(b"iqn.x\0"), None);
    let page = identify::controller_list([1, 5].into_iter());
    assert_eq!(page[..6], [2, 0, 1, 0, 5, 0]);
    assert_eq!(identify::read_controller_list(&page), Some(vec![1, 5]));
    assert_eq!(identify::read_controller_list(&[0xff; 4096]), None);
    assert_eq!(identify::namespace_list([3, 9].into_iter())[..12], [3, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    let request = LogRequest { lid: 0x70, retain: true, offset: 0x1_0000_0004, bytes: 1 << 20, csi: 1 };
    assert_eq!(LogRequest::of(&request.command(0)), Some(request));
}

/// Goal:   long keys in the data of commands are laid out as documented and read back; each field out of range is refused.
/// Method: one list of keys and one Put as bytes; keys of 0 and 1025 bytes, reserved bytes, an unknown action, a delete with a value, and each
///         length of data cut short.
#[test]
fn golden_long_keys() {
    let long = KeyBuf::new(b"a key of 21 bytes ...").unwrap();
    let keys = [(7, KeyBuf::new(b"k").unwrap()), (8, long.clone())];
    let data = encode_long_keys(keys.iter().map(|(nsid, key)| (*nsid, key)));
    assert_eq!(data[..12], [7, 0, 0, 0, 1, 0, 0, 0, b'k', 0, 0, 0]);
    assert_eq!((data[12..20].to_vec(), data.len()), (vec![8, 0, 0, 0, 21, 0, 0, 0], 44));
    assert_eq!(decode_long_keys(&data, 2), Ok(keys.to_vec()));
    for cut in 0..41 {
        assert_eq!(decode_long_keys(&data[..cut], 2), Err(Status::SGL_LENGTH), "{cut}");
    }
    assert_eq!(decode_long_keys(&data, 0), Err(Status::INVALID_FIELD));
    assert_eq!(decode_long_keys(&data, 4097), Err(Status::INVALID_FIELD));
    let changed = |data: &[u8], at: usize, with: &[u8]| {
        let mut data = [data, &[0; 2000]].concat();
        data[at..at + with.len()].copy_from_slice(with);
        data
    };
    assert_eq!(decode_long_keys(&changed(&data, 4, &[0, 0]), 1), Err(Status::INVALID_KEY_SIZE));
    assert_eq!(decode_long_keys(&changed(&data, 4, &[1, 4]), 1), Err(Status::INVALID_KEY_SIZE));
    assert_eq!(decode_long_keys(&changed(&data, 6, &[1]), 1), Err(Status::INVALID_FIELD));

    let mut data = Vec::new();
    encode_long_put(&mut data, 9, long.as_bytes(), PutAction::StoreIfAbsent(b"value"));
    encode_long_put(&mut data, 9, b"k", PutAction::DeleteIfPresent);
    assert_eq!(data[..12], [9, 0, 0, 0, 5, 0, 0, 0, 21, 0, 2, 0]);
    assert_eq!((&data[36..41], data.len()), (&b"value"[..], 60));
    let batch = decode_put(&data, 2, KeyFormat::Long).unwrap();
    let records: Vec<_> = batch.records().map(|record| (record.key.as_bytes().to_vec(), record.value)).collect();
    assert_eq!(records, [(long.as_bytes().to_vec(), Some(&b"value"[..])), (b"k".to_vec(), None)]);
    let refused = |data: &[u8]| decode_put(data, 1, KeyFormat::Long).unwrap_err();
    for cut in 0..41 {
        assert_eq!(refused(&data[..cut]), Status::SGL_LENGTH, "{cut}");
    }
    assert_eq!(refused(&changed(&data, 8, &[0, 0])), Status::INVALID_KEY_SIZE);
    assert_eq!(refused(&changed(&data, 8, &[1, 4])), Status::INVALID_KEY_SIZE);
    assert_eq!(refused(&changed(&data, 10, &[5])), Status::INVALID_FIELD);
    assert_eq!(refused(&changed(&data, 10, &[3])), Status::INVALID_FIELD, "a delete with a value");
    assert_eq!(refused(&changed(&data, 11, &[1])), Status::INVALID_FIELD);
}

/// Goal:   ranges and the records of a page are laid out as documented and read back; each field out of range is refused; bounds of any length
///         mean what they do on a local device.
/// Method: one range as bytes; unknown kinds, keys without a bound, keys and prefixes of 0 and 1025 bytes, inverted bounds, data cut short; pages with room
///         for a part; prefixes within, below and above the bounds.
#[test]
fn golden_ranges() {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let buf = |bytes: &[u8]| KeyBuf::new(bytes).unwrap();
    let range = KeyRange { lower: Included(buf(b"ab")), upper: Excluded(buf(b"b")), prefix: b"a".to_vec() };
    let data = encode_range(&range);
    assert_eq!(data, [&[1, 2, 0, 0, 2, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0], &b"abba"[..]].concat());
    assert_eq!(decode_range(&data), Ok(range.clone()));
    assert_eq!(decode_range(&encode_range(&KeyRange::ALL)), Ok(KeyRange::ALL));
    for cut in 0..data.len() {
        assert_eq!(decode_range(&data[..cut]), Err(Status::SGL_LENGTH), "{cut}");
    }
    let refused = |at: usize, with: &[u8]| {
        let mut data = [&data[..], &[0; 3000]].concat();
        data[at..at + with.len()].copy_from_slice(with);
        decode_range(&data).unwrap_err()
    };
    for (at, with) in [(0, 3), (0, 0), (1, 3), (1, 0), (2, 1), (3, 1), (10, 1), (15, 1)] {
        assert_eq!(refused(at, &[with]), Status::INVALID_FIELD, "byte {at}");
    }
    for at in [4, 6] {
        assert_eq!(refused(at, &[0, 0]), Status::INVALID_KEY_SIZE, "byte {at}");
        assert_eq!(refused(at, &[1, 4]), Status::INVALID_KEY_SIZE, "byte {at}");
    }
    assert_eq!(refused(8, &[1, 4]), Status::INVALID_KEY_SIZE);
    assert_eq!(refused(18, b"aa"), Status::INVERTED_RANGE);
    // Bounds with a prefix.
    let owned = |lower: std::ops::Bound<&[u8]>, upper: std::ops::Bound<&[u8]>| {
        (lower.map(<[u8]>::to_vec), upper.map(<[u8]>::to_vec))
    };
    let with = |lower, upper, prefix: &[u8]| KeyRange { lower, upper, prefix: prefix.to_vec() }.bounds();
    assert_eq!(range.bounds(), owned(Included(b"ab"), Excluded(b"b")));
    assert_eq!(with(Unbounded, Unbounded, b"a\xff"), owned(Included(b"a\xff"), Excluded(b"b")));
    assert_eq!(with(Unbounded, Unbounded, b"\xff"), owned(Included(b"\xff"), Unbounded));
    assert_eq!(with(Excluded(buf(b"ax")), Included(buf(b"az")), b"a"), owned(Excluded(b"ax"), Included(b"az")));
    assert_eq!(with(Excluded(buf(b"A")), Included(buf(b"b")), b"a"), owned(Included(b"a"), Excluded(b"b")));
    // Bounds that no key can be.
    let long = [7; 1025];
    let within = |lower, upper| KeyRange::within(lower, upper).map(|range| range.bounds());
    assert_eq!(within(Included(b""), Unbounded), Some((Unbounded, Unbounded)));
    assert_eq!(within(Unbounded, Included(b"")), None);
    assert_eq!(within(Unbounded, Excluded(b"")), None);
    assert_eq!(within(Included(&long), Unbounded), Some(owned(Excluded(&long[..1024]), Unbounded)));
    assert_eq!(within(Unbounded, Excluded(&long)), Some(owned(Unbounded, Included(&long[..1024]))));
    assert_eq!(within(Included(b"b"), Excluded(b"a")), None);
    // Records.
    let mut page = Vec::new();
    assert!(put_record(&mut page, b"key", b"value", 64));
    assert_eq!(page, [&[5, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0][..], b"key\0value\0\0\0"].concat());
    assert!(put_record(&mut page, b"k", b"", 64) && !put_record(&mut page, b"k", &[1; 9], 64));
    let records = decode_records(&page, 2).unwrap();
    assert_eq!((&records[0].key, &records[0].value), (&buf(b"key"), &Some(b"value".to_vec())));
    assert_eq!((&records[1].key, &records[1].value), (&buf(b"k"), &Some(Vec::new())));
    assert!(decode_records(&page, 3).is_none());
    let mut page = Vec::new();
    assert!(put_record(&mut page, b"key", &[1; 100], 64), "the first one, without its value");
    let record = decode_records(&page, 1).unwrap().remove(0);
    assert_eq!((record.value_bytes, record.value, page.len()), (100, None, 16));
    assert!(!put_record(&mut Vec::new(), b"key", b"", 15));
}

/// Goal:   a reply of Read Changes goes through byte for byte; cut anywhere, it is refused.
/// Method: one with a namespace and two parts; each shorter one.
#[test]
fn golden_change_stream() {
    let position = |ring| Position::from_parts([0xab; 16], 3, ring);
    let cursor = |ring, skip| ChangesCursor { position: position(ring), skip };
    let put = Change::Put { namespace: 7, key: KeyBuf::new(b"key").unwrap(), value: b"value".to_vec(), expires: None };
    let lower = KeyBound::Included(b"a".to_vec());
    let range = Change::DeleteRange { namespace: 7, lower, upper: KeyBound::Unbounded };
    let parts = vec![
        ChangesPart { next: cursor(4096, 2), changes: vec![put] },
        ChangesPart { next: cursor(8192, 0), changes: vec![range] },
    ];
    let reply = ChangesReply { next: cursor(8192, 0), newest: position(9216), generation: 5, namespaces: None, parts };
    let data = changes::encode_changes(&reply);
    assert_eq!(data[..16], *b"KCH1\x02\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(data[80..104], [3, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(data[104..116], [1, 0, 3, 0, 7, 0, 0, 0, 5, 0, 0, 0]);
    assert_eq!(data[136..148], *b"key\0value\0\0\0");
    assert_eq!((data[172], data[173], data.len()), (3, 1, 208));
    let again = changes::decode_changes(&data).unwrap();
    assert_eq!((again.next, again.newest, again.generation), (reply.next, reply.newest, 5));
    assert_eq!(again.parts, reply.parts);
    assert!((0..data.len()).all(|len| changes::decode_changes(&data[..len]).is_none()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Goal:   no parser panics, whatever the bytes.
    /// Method: random and mutated bytes into each.
    #[test]
    fn parsers_survive_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300), count in 0u32..9, at: prop::sample::Index, with: u8) {
        let _ = keyvalue::decode_list(&bytes);
        let _ = (decode_put(&bytes, count, KeyFormat::Short), decode_change(count, &bytes));
        let _ = (decode_put(&bytes, count, KeyFormat::Long), decode_long_keys(&bytes, count));
        let _ = (decode_range(&bytes), decode_records(&bytes, count as usize));
        let _ = (decode_keys(&bytes, count), decode_found(&bytes, count as usize));
        let _ = (versions::decode_history(&bytes, count as usize, key(b"k")), versions::decode_stats(&bytes));
        let _ = (versions::decode_differences(&bytes, count as usize), versions::decode_merged(&bytes));
        let _ = changes::decode_changes(&bytes);
        let _ = (vendor::decode_namespaces(&bytes), vendor::DevicePage::read(&bytes).is_some());
        let _ = identify::read_controller_list(&bytes);
        let _ = (auth::FromHost::read(&bytes), auth::FromController::read(&bytes), auth::transaction_of(&bytes));
        let _ = super::pdu::Header::parse(&bytes);
        if let Ok((command, _)) = Command::read_from_prefix(&bytes) {
            let _ = (keyvalue::get_key(&command), LogRequest::of(&command), command.direction());
            let _ = (Connect::of(&command), Property::of(&command).bytes(), command.sgl.is_in_capsule());
        }
        if let Ok((completion, _)) = Completion::read_from_prefix(&bytes) {
            let _ = format!("{}", completion.status());
        }
        let mut data = Vec::new();
        encode_put(&mut data, 1, &key(b"some key"), PutAction::Store(b"some value"));
        let at = at.index(data.len());
        data[at] = with;
        let _ = (decode_put(&data, 1, KeyFormat::Short), decode_put(&data, 1, KeyFormat::Long));
    }
}
