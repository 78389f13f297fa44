//! Devices of builds that knew the long form of a header only.

use super::*;
use crate::audit::BlockAudit;
use crate::format::crc32c_append;
use crate::format::oob::{PageOob, PageTagger};
use crate::format::record::Form;
use crate::format::root::HEADER_BYTES;
use crate::lifetime::Class;
use crate::metadata::read_stream;
use kaml_flash::BlockIndex;
use std::sync::Arc;

/// Values whose records take as many chunks in either form.
fn value(key: u64) -> Vec<u8> {
    vec![key as u8; if key.is_multiple_of(3) { 5000 } else { 20 }]
}

fn put_key(core: &mut Core, medium: &dyn Medium, namespace: u32, key: u64, value: &[u8]) {
    let body = Body::Value { value, crc32c: kaml_crc::crc32c(value) };
    let key = Key::from(key).into();
    let op = Op { namespace, key, body, condition: Condition::Always, expires: Default::default() };
    while let Err(error) = core.stage(&[op]) {
        assert_eq!(error, StageError::Busy);
        core.drive_once(medium).unwrap(); // blocks must be erased
    }
    let (id, mut io) = core.begin_persist().unwrap();
    let result = medium.execute(&mut io);
    core.complete(Completion { id, io, result });
}

fn read_pages(medium: &MemoryMedium, block: u32, pages: u32) -> (AlignedBuf, AlignedBuf) {
    let geometry = medium.geometry();
    let at = geometry.chunk_at(BlockIndex(block), 0);
    let mut data = Io::Read { at, into: AlignedBuf::zeroed((pages * geometry.page_bytes) as usize) };
    medium.execute(&mut data).unwrap();
    let at = PageAddr { block: BlockIndex(block), page: 0 };
    let mut oob = Io::ReadOob { at, into: AlignedBuf::zeroed((pages * geometry.oob_bytes) as usize) };
    medium.execute(&mut oob).unwrap();
    let (Io::Read { into: data, .. }, Io::ReadOob { into: oob, .. }) = (data, oob) else { unreachable!("still reads") };
    (data, oob)
}

/// Writes the headers of a block's records as older builds did, with the tags of pages that follow; returns how many.
fn make_older(core: &Core, medium: &MemoryMedium, block: u32, pages: u32) -> u32 {
    let (mut data, mut oob) = read_pages(medium, block, pages);
    let geometry = medium.geometry();
    let chunk = geometry.chunk_bytes as usize;
    let entries = entries_of_block(&oob, geometry.oob_bytes as usize);
    if entries.iter().flatten().any(|entry| entry.class != Class::Hot as u8) {
        return 0;
    }
    let mut count = 0;
    for extent in extents(&entries, geometry.chunks_per_page()) {
        let bytes = &mut data[extent.start as usize * chunk..][..extent.chunk_count as usize * chunk];
        let record = RecordHeader::check(bytes).unwrap();
        assert_eq!(record.form, Form::Short);
        let older = Record { form: Form::Long, ..record };
        bytes.copy_within(record.stored_range(), older.header_bytes());
        bytes[..older.header_bytes()].copy_from_slice(&RecordHeader::encode(&older));
        count += 1;
    }
    let mut tagger = PageTagger::new(core.root.secret.unwrap().sealer());
    let pages = data.chunks(geometry.page_bytes as usize).zip(oob.chunks_mut(geometry.oob_bytes as usize));
    for (page, (entry, (data, oob))) in (0..).zip(entries.iter().zip(pages)) {
        let entry = entry.unwrap();
        let at = PageAddr { block: BlockIndex(block), page };
        let tag = Some(entry.tag_at(at, data, geometry.chunk_bytes, &mut tagger));
        PageOob::encode(&Oob { tag, ..entry }, oob);
    }
    medium.execute(&mut Io::Erase { block: BlockIndex(block), release: false }).unwrap();
    let (at, data) = (PageAddr { block: BlockIndex(block), page: 0 }, Arc::new(data));
    medium.execute(&mut Io::Program { at, data, oob: oob.to_vec(), urgent: false }).unwrap();
    count
}

/// Writes the present root as version 14 did, whose images have no lists of parts.
fn write_older_root(core: &Core, medium: &MemoryMedium) {
    let mut root = core.root.clone();
    for image in root.namespaces.iter_mut().filter_map(|namespace| namespace.snapshot.as_mut()) {
        let stored = read_stream(medium, image).unwrap();
        image.bytes -= u64::from(std::mem::take(&mut image.list_bytes));
        image.crc32c = kaml_crc::crc32c(&stored[..image.bytes as usize]);
    }
    let mut bytes = root.encode(medium.uuid());
    bytes.truncate(bytes.len() - (size_of::<u32>() + size_of::<u8>()) * root.namespaces.len());
    bytes[4] = 14;
    let body = (bytes.len() - HEADER_BYTES) as u32;
    bytes[8..12].copy_from_slice(&body.to_le_bytes());
    let crc = crc32c_append(kaml_crc::crc32c(&bytes[..12]), &bytes[16..]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    let mut data = AlignedBuf::zeroed(bytes.len().next_multiple_of(512));
    data[..bytes.len()].copy_from_slice(&bytes);
    medium.execute(&mut Io::WriteRoot { slot: (core.root.generation % 2) as u8, data }).unwrap();
}

fn check_all(core: &Core, medium: &MemoryMedium, namespace: u32, newer: &[u64]) {
    for key in 0..200 {
        let slot = core.slot(namespace, Key::from(key)).unwrap();
        let mut io = Io::Read { at: ChunkAddr(slot.at), into: AlignedBuf::zeroed(64 * slot.len.chunks_max() as usize) };
        medium.execute(&mut io).unwrap();
        let Io::Read { into, .. } = io else { unreachable!("still a read") };
        let record = RecordHeader::check(&into).unwrap();
        let expected = if newer.contains(&key) { (Form::Short, b"new".to_vec()) } else { (Form::Long, value(key)) };
        assert_eq!((record.form, into[record.stored_range()].to_vec()), expected, "key {key}");
    }
    let reader = core.reader();
    let mut records = 0;
    for block in core.blocks_in_use() {
        let judgement = BlockAudit::read(&reader, medium, block).judge(core);
        assert_eq!(judgement.problems, Vec::<String>::new());
        records += judgement.records;
    }
    assert_eq!(records, 200);
}

/// Goal:   a device whose records all have long headers opens, is written on with short ones, and is refused by builds that do not know these;
///         the older records are read, moved, checked and salvaged.
/// Method: the pages of a device are written again as an older build would have, with a root of its version; some records are put, blocks
///         collected, the device closed and opened; at last the image of its index is lost.
#[test]
fn devices_with_long_headers_are_written_on() {
    let medium = formatted();
    let (mut core, namespace) = with_namespace(&medium);
    (0..200).for_each(|key| put_key(&mut core, &medium, namespace, key, &value(key)));
    close(&mut core, &medium);
    let gate = core.gate();
    let per_page = medium.geometry().chunks_per_page();
    let pages = |block| gate.programmed_chunks(block) / per_page;
    let blocks: Vec<u32> =
        (0..core.log.blocks.count()).filter(|block| core.log.blocks.get(*block).valid_chunks > 0).collect();
    let changed: u32 = blocks.iter().map(|block| make_older(&core, &medium, *block, pages(*block).min(32))).sum();
    assert_eq!(changed, 200);
    write_older_root(&core, &medium);

    let (mut core, report) = Core::open(&medium).unwrap();
    assert!(report.clean);
    core.load_index(&medium, namespace).unwrap();
    check_all(&core, &medium, namespace, &[]);
    let slot = core.slot(namespace, Key::from(4)).unwrap();
    let newer = [7, 9, 11];
    newer.iter().for_each(|key| put_key(&mut core, &medium, namespace, *key, b"new"));
    commit_root(&mut core, &medium);
    core.drive(&medium, |core| core.root_is_idle()).unwrap();

    // What older builds read first.
    let mut root = AlignedBuf::zeroed(512);
    medium.read_root((core.root.generation % 2) as u8, &mut root).unwrap();
    assert!(root[4] >= 16, "the first version with short headers");

    for block in &blocks {
        core.log.blocks.set_failing(*block);
    }
    let is_over = |core: &Core| !core.log.blocks.has_failing() && !core.collector.is_running();
    core.drive(&medium, is_over).unwrap();
    assert_ne!(core.slot(namespace, Key::from(4)).unwrap(), slot, "moved");
    close(&mut core, &medium);
    check_all(&core, &medium, namespace, &newer);

    let image = core.root.namespaces[0].snapshot.clone().unwrap();
    medium.execute(&mut Io::Erase { block: BlockIndex(image.runs[0].block), release: false }).unwrap();
    let (core, report) = Core::salvage(&medium, &mut |_, _| {}).unwrap();
    assert_eq!(report.rebuilt, [namespace], "{report:?}");
    check_all(&core, &medium, namespace, &newer);
}
