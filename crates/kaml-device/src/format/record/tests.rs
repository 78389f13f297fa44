use super::*;
use crate::format::frame::Frame;
use proptest::prelude::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn record(kind: RecordKind, key: &[u8], stored: &[u8]) -> Record {
    let key = Key::new(key).unwrap();
    let form = Form::of(&key, stored.len());
    let (value_len, value_crc) = (stored.len() as u32, kaml_crc::crc32c(stored));
    Record { namespace: 7, key, kind, value_len, value_crc, sequence: 0x0102_0304_0506, packed: false, form }
}

/// Goal:   the short form never changes unnoticed.
/// Method: a value, a tombstone and a record that expires, written out byte by byte; their sums computed by hand.
#[test]
fn golden_short_headers() {
    for (kind, key, stored, fields) in [
        (RecordKind::Value, &b"key"[..], &b"value"[..], "0500070000800605040302010103"),
        (RecordKind::Tombstone, b"0123456789abcdef", b"", "0000070000800605040302010210"),
        (RecordKind::Expiring, b"12345678", b"value\x01\0\0\0\0\0\0\0", "0d00070000800605040302010808"),
        (RecordKind::Value, b"key", b"\x01\x02", "0200070000800605040302018103"),
        (RecordKind::Expiring, b"key", b"\x01\x02\x01\0\0\0\0\0\0\0", "0a00070000800605040302018803"),
    ] {
        let packed = fields.ends_with("8103") || fields.ends_with("8803");
        let record = Record { packed, ..record(kind, key, stored) };
        let header = RecordHeader::encode(&record);
        assert_eq!(hex(&header[6..]), fields.to_owned() + &hex(key));
        let header_crc = kaml_crc::crc32c(&header[6..]);
        assert_eq!(header[..4], (header_crc ^ kaml_crc::crc32c(stored)).to_le_bytes());
        assert_eq!(
            header[4..6],
            ((header_crc as u16) ^ (header_crc >> 16) as u16 >> 8 ^ ((header_crc >> 16) as u16) << 8).to_le_bytes()
        );
        assert_eq!(RecordHeader::check(&header), Some(record));
        assert_eq!(record.stored_range(), 20 + key.len()..20 + key.len() + stored.len());
    }
    let header = RecordHeader::encode(&record(RecordKind::Value, b"key", b"value"));
    assert_eq!(hex(&header[..6]), "d0dcf93163c6");
}

/// Goal:   100 bytes under a number take two chunks, and the form depends on the key and on what is stored, as limits and estimates assume.
/// Method: lengths at the bounds.
#[test]
fn small_records_are_short() {
    let number = Key::from(1);
    assert_eq!((record_bytes(&number, 100), record_bytes(&number, 1024)), (128, 1052));
    assert_eq!((Form::of(&number, DIRECT_BYTES - 1), Form::of(&number, DIRECT_BYTES)), (Form::Short, Form::Long));
    assert_eq!(Form::of(&Key::of_digest([0; 16]), 0), Form::Long);
    assert_eq!(record_bytes(&Key::new(&[1; 16]).unwrap(), 0), 36);
    assert_eq!((RecordHeader::RING_BYTES_MIN, RecordHeader::BYTES_MAX), (24, 40));
}

/// Goal:   up to three flipped bits of a header make no other record of it, nor a header of the other form.
/// Method: both forms, keys of each length, every bit and every pair of bits; of a key of 8 bytes every three bits. Bits of the sum over the value
///         are noticed with the value.
#[test]
fn flipped_bits_of_headers_are_noticed() {
    for len in 1..=16 {
        let short = record(RecordKind::Value, &b"0123456789abcdef"[..len], b"value");
        for record in [short, Record { form: Form::Long, ..short }] {
            let header = RecordHeader::encode(&record);
            let mut bytes = [0xa5; LONG_BYTES];
            bytes[..header.len()].copy_from_slice(&header);
            let mut flip = |bits: &[usize]| {
                bits.iter().for_each(|bit| bytes[bit / 8] ^= 1 << (bit % 8));
                let found = RecordHeader::check(&bytes);
                let is_noticed = found.is_none_or(|found| {
                    let same = Record { value_crc: record.value_crc, ..found } == record;
                    record.form == Form::Short && same && found.value_crc != record.value_crc
                });
                assert!(is_noticed, "{:?}, key of {len}: bits {bits:?}", record.form);
                bits.iter().for_each(|bit| bytes[bit / 8] ^= 1 << (bit % 8));
            };
            let count = header.len() * 8;
            for first in 0..count {
                flip(&[first]);
                for second in 0..first {
                    flip(&[first, second]);
                    let thirds = if len == 8 && record.form == Form::Short { second } else { 0 };
                    (0..thirds).for_each(|third| flip(&[first, second, third]));
                }
            }
        }
    }
}

/// Goal:   a header of each form is found without any context, and its bytes are counted as they are, also of what is none.
/// Method: both forms; bytes of erased pages, zeroes, and a length that no key has.
#[test]
fn lengths_of_headers_are_known() {
    for len in 1..=16 {
        let short = record(RecordKind::Value, &b"0123456789abcdef"[..len], b"value");
        for (record, expected) in [(short, 20 + len), (Record { form: Form::Long, ..short }, 40)] {
            let mut bytes = [0xff; LONG_BYTES];
            let header = RecordHeader::encode(&record);
            bytes[..header.len()].copy_from_slice(&header);
            assert_eq!((RecordHeader::len_at(&bytes), header.len()), (expected, expected));
        }
    }
    assert_eq!([[0; 40], [0xff; 40]].map(|bytes| RecordHeader::len_at(&bytes)), [40, 40]);
    assert_eq!([[0; 40], [0xff; 40]].map(|bytes| RecordHeader::check(&bytes)), [None, None]);
    let cut = RecordHeader::encode(&record(RecordKind::Value, b"key", b""));
    (0..cut.len()).for_each(|len| assert_eq!(RecordHeader::check(&cut[..len]), None));
}

/// Goal:   a frame with records of both forms is read.
/// Method: the records of a frame, one after the other; then a flipped bit in each byte of it.
#[test]
fn frames_hold_both_forms() {
    let short = record(RecordKind::Value, b"key", b"value");
    let long = Record { form: Form::Long, ..short };
    let tombstone = record(RecordKind::Tombstone, b"k", b"");
    let (mut payload, mut crc) = (Vec::new(), 0);
    for (record, stored) in [(short, &b"value"[..]), (long, b"value"), (tombstone, b"")] {
        let header = RecordHeader::encode(&record);
        crc = crate::format::crc32c_append(crc, &header);
        payload.extend_from_slice(&header);
        payload.extend_from_slice(stored);
        payload.resize(payload.len().next_multiple_of(RING_ALIGN), 0);
    }
    let frame = Frame {
        epoch: 1,
        lsn: 0,
        previous_end: 0,
        payload_len: payload.len() as u32,
        record_count: 3,
        records_crc: crc,
        committed_end: 0,
    };
    let expected = [(short, &b"value"[..]), (long, b"value"), (tombstone, b"")];
    assert_eq!(frame.records(&payload).unwrap(), expected);
    for at in 0..payload.len() {
        let mut damaged = payload.clone();
        damaged[at] ^= 1 << (at % 8);
        assert_eq!(frame.records(&damaged), None, "byte {at}");
    }
}

proptest! {
    /// Goal:   what is encoded is decoded, in both forms; nothing else passes for it.
    /// Method: records of all kinds; bytes of any content with the mark of a short header, as they are and with their check made right.
    #[test]
    fn headers_come_back(
        namespace in 0..=NAMESPACE_MAX,
        key in proptest::collection::vec(any::<u8>(), 1..=16),
        code in 1u8..=9,
        value_len in 0..DIRECT_BYTES as u32,
        value_crc: u32,
        sequence in 0u64..1 << 48,
        packed: bool,
        mut bytes in proptest::array::uniform32(any::<u8>()),
    ) {
        let kind = RecordKind::of_code(code).unwrap();
        let key = Key::new(&key).unwrap();
        let form = if kind.may_be_short() { Form::of(&key, value_len as usize) } else { Form::Long };
        let record = Record { namespace, key, kind, value_len, value_crc, sequence, packed: packed && kind.may_be_packed(), form };
        for record in [record, Record { form: Form::Long, ..record }] {
            prop_assert_eq!(RecordHeader::check(&RecordHeader::encode(&record)), Some(record));
        }
        bytes[11] |= 0x80;
        let _ = RecordHeader::check(&bytes);
        bytes[19] = bytes[19] % 12 + 1;
        let crc = kaml_crc::crc32c(&bytes[6..20 + usize::from(bytes[19])]);
        bytes[4..6].copy_from_slice(&header_check(crc).to_le_bytes());
        let found = RecordHeader::check(&bytes);
        prop_assert_eq!(found.is_some(), matches!(bytes[18], 1 | 2 | 8 | 0x81 | 0x88));
        if let Some(found) = found {
            prop_assert_eq!(&RecordHeader::encode(&found)[..], &bytes[..20 + usize::from(bytes[19])]);
        }
    }
}
