//! Damaged and hostile bytes of each format.

use super::*;

/// Goal:   what is encoded is decoded; any flipped bit is noticed.
/// Method: each format, each bit.
#[test]
fn flipped_bits_are_noticed() {
    let header = RecordHeader::encode(&record());
    assert_eq!(RecordHeader::check(&header), Some(record()));
    each_bit(&header, |bytes| assert_eq!(RecordHeader::check(bytes), None));
    let sealer = secret().sealer();
    let (bytes, mask) = FrameHeader::encode(&frame(), UUID, &sealer);
    assert_eq!(FrameHeader::check(&bytes, UUID, Some(&sealer)), Some((frame(), Some(mask))));
    assert_eq!(FrameHeader::check(&bytes, UUID, None), Some((frame(), None)));
    each_bit(&bytes, |bytes| {
        assert_eq!(FrameHeader::check(bytes, UUID, Some(&sealer)), None);
        assert_eq!(FrameHeader::check(bytes, UUID, None), None);
    });
    for tag in [None, Some(0), Some(7)] {
        let oob = Oob { bitmap: 0x8001, sequence: 3, log: 2, class: 1, continues: true, tag };
        let mut entry = [0; 32];
        PageOob::encode(&oob, &mut entry);
        assert_eq!(PageOob::check(&entry), Some(oob));
        each_bit(&entry, |bytes| assert_eq!(PageOob::check(bytes), None));
    }
    let bytes = root().encode(UUID);
    assert_eq!(Root::decode(&bytes, UUID), Ok(root()));
    each_bit(&bytes, |bytes| assert!(matches!(Root::decode(bytes, UUID), Err(DecodeError::Broken(_)))));
    let mut page = vec![0; 4096];
    let changes = [
        Change::Moved { namespace: 1, key: Key::from(5), to: Slot { at: 1 << 40, len: LenCode::of(17).unwrap() } },
        Change::Deleted { namespace: 2, key: Key::new(b"0123456789abcdef").unwrap() },
        Change::Block { block: 9, erase_count: 1000, bad: true },
    ];
    changes.iter().enumerate().for_each(|(i, change)| journal::write_entry(&mut page, i, change));
    journal::seal(&mut page, 100, 3);
    assert_eq!(journal::check(&page), Some((100, changes.to_vec())));
    each_bit(&page[..200], |bytes| {
        let mut whole = page.clone();
        whole[..200].copy_from_slice(bytes);
        assert_eq!(journal::check(&whole), None);
    });
}

fn each_bit(bytes: &[u8], check: impl Fn(&[u8])) {
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        check(&flipped);
    }
}

/// Goal:   the records of a block are found from bitmaps alone, over pages and padding, and a lost page costs only
///         the records that touch it.
/// Method: a block with a record that spans pages and padding after another.
#[test]
fn extents_follow_records_over_pages() {
    // 8 chunks a page: page 0 holds 0..3 and the start of 3..12, page 1 its end and 12..14, then padding; page 2: 16..18
    let page = |bitmap, continues| Some(Oob { bitmap, continues, ..Oob::default() });
    let pages = [page(0b100, false), page(0b10_1000, true), page(0b10, false)];
    let extent = |start, chunk_count| Extent { start, chunk_count };
    assert_eq!(extents(&pages, 8), [extent(0, 3), extent(3, 9), extent(12, 2), extent(16, 2)]);
    assert_eq!(extents(&[pages[0], None, pages[2]], 8), [extent(0, 3), extent(16, 2)]);
    assert_eq!(extents(&[None, pages[1], pages[2]], 8), [extent(12, 2), extent(16, 2)]);
}

/// Goal:   older pages that follow newer ones in a block, because an erase was lost, are not taken for the block's own.
/// Method: two newer pages in front of two older ones, and a page that is torn.
#[test]
fn pages_of_an_earlier_life_do_not_count() {
    let entry = |sequence| {
        let mut bytes = vec![0; 64];
        PageOob::encode(&Oob { bitmap: 1, sequence, ..Oob::default() }, &mut bytes);
        bytes
    };
    let torn = vec![7; 64];
    let block = [entry(20), torn, entry(21), entry(5), entry(6)].concat();
    let sequences: Vec<_> = entries_of_block(&block, 64).iter().map(|page| page.map(|oob| oob.sequence)).collect();
    assert_eq!(sequences, [Some(20), None, Some(21), None, None]);
}

proptest! {
    /// Goal:   no bytes make a decoder panic or allocate absurdly.
    /// Method: random bytes, and valid ones with random bytes in them after a repaired checksum.
    #[test]
    fn hostile_bytes_are_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..5000),
        at in 0usize..300,
        with in proptest::collection::vec(any::<u8>(), 1..40),
    ) {
        let _ = RecordHeader::check(&bytes);
        let _ = FrameHeader::check(&bytes, UUID, None);
        let _ = PageOob::check(&bytes);
        let _ = Root::decode(&bytes, UUID);
        let _ = Root::total_bytes(&bytes);
        if bytes.len() >= 32 {
            let _ = journal::check(&bytes);
        }
        let frame = Frame { epoch: 1, lsn: 0, previous_end: 0, payload_len: bytes.len() as u32, record_count: 7, records_crc: 0, committed_end: 0 };
        let _ = frame.records(&bytes);

        let mut mutated = root().encode(UUID);
        for (i, byte) in with.iter().enumerate() {
            if let Some(target) = mutated.get_mut(HEADER_BYTES + at + i) {
                *target = *byte;
            }
        }
        let crc = kaml_crc::crc32c(&mutated[HEADER_BYTES..]).to_le_bytes();
        mutated[12..16].copy_from_slice(&crc);
        let _ = Root::decode(&mutated, UUID);
    }
}
