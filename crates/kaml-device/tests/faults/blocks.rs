//! Programs and erases that fail, and bits that flip.

use crate::rig::{Rig, geometry, scattered, value};
use kaml_device::{
    Body, Condition, Core, DIRECT_BYTES, Error, Key, NamespaceChange, Op, StageError, VersionOptions, VersionReader,
    encode_image, image_bytes,
};
use kaml_flash::{AlignedBuf, Completion, Geometry, Io, Medium, MediumError, PageAddr};
use kaml_testkit::{Access, Watched};
use kaml_versions::{SegmentAt, Versions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Goal:   a large value whose program fails together with its ring write is stored elsewhere, one time, and the ring continues after the frame that
///         reports nothing now.
/// Method: large values put one by one while occasionally the block programmed next becomes bad, although its ring write was made;
///         the device opened again soon after each failure, and in the end; counts, and each time all values.
#[test]
fn programs_that_fail_beside_their_frames_lose_nothing() {
    let mut rig = Rig::new();
    let mut model = BTreeMap::new();
    let (mut beside, mut failed) = (0, 0);
    for round in 0..600u64 {
        let key = round * 7 % 40;
        let value = vec![round as u8; DIRECT_BYTES + (round as usize * 37) % 5000];
        rig.world.wear_out |= round % 60 == 40;
        match rig.put_large(key, &value) {
            Some(Ok(())) => beside += 1,
            Some(Err(_)) => failed += 1,
            None => {}
        }
        model.insert(key, value);
        if round % 5 == 0 {
            rig.background();
        }
        if round % 60 == 41 {
            rig.core = Core::open(&rig.medium).unwrap().0;
            rig.compare(&model, 40);
        }
    }
    assert!(beside > 200 && failed > 2, "{beside} together, {failed} failed");
    rig.settle();
    assert!(rig.core.stats().bad_blocks > 2, "{:?}", rig.core.stats());
    rig.compare(&model, 40);
    rig.reopen();
    rig.compare(&model, 40);
}

/// Goal:   blocks that fail are retired with nothing lost, for good, and the device continues.
/// Method: overwrite while occasionally the block programmed next becomes bad, whatever it is for; compare, reopen,
///         compare.
#[test]
fn failing_blocks_lose_nothing() {
    let mut rig = Rig::new();
    let mut model = BTreeMap::new();
    for round in 0..20_000u64 {
        rig.world.wear_out |= round % 1500 == 700;
        let key = scattered(round) % 2100;
        rig.put(key, Some(&value(key, round))).unwrap();
        model.insert(key, value(key, round));
    }
    rig.settle();
    let stats = rig.core.stats();
    assert!(stats.bad_blocks >= 10 && stats.program_failures >= 5 && stats.relocated_bytes > 0, "{stats:?}");
    rig.compare(&model, 2100);
    rig.reopen();
    rig.compare(&model, 2100);
    assert!(rig.core.stats().bad_blocks >= stats.bad_blocks);
}

/// Goal:   a record whose block fails is found at its new place, also if its index left memory while it was in a buffer.
/// Method: after each of twenty Puts a checkpoint, until the index can be taken out of memory; then the buffer with the record is
///         programmed, and that fails; compared each time, and after the device is opened again.
#[test]
fn failing_blocks_wait_for_indexes_that_left_memory() {
    let mut rig = Rig::new();
    let mut model = BTreeMap::new();
    for key in 0..20 {
        rig.put(key, Some(&value(key, 1))).unwrap();
        model.insert(key, value(key, 1));
        rig.unload_and_wear_out(key);
        let failures = rig.core.stats().program_failures;
        rig.settle();
        assert_eq!(rig.core.stats().program_failures, failures + 1, "it was in a buffer");
        rig.compare(&model, 20);
    }
    rig.reopen();
    rig.compare(&model, 20);
}

/// Goal:   a root does not give up the ring frames of records that a failed block took along, while they are in a buffer again.
/// Method: fill a block, whose program fails; after its records are in another one's buffer, a root that does not settle; then the
///         device is opened as after a crash.
#[test]
fn records_placed_again_hold_the_ring() {
    let mut rig = Rig::new();
    let one_log = NamespaceChange { logs: Some(vec![0]), ..NamespaceChange::default() };
    rig.core.set_namespace(rig.namespace, &one_log).unwrap();
    rig.settle();
    let (mut model, mut key) = (BTreeMap::new(), 0);
    rig.world.wear_out = true;
    while rig.core.stats().program_failures == 0 {
        rig.put(key, Some(&value(key, 1))).unwrap();
        model.insert(key, value(key, 1));
        key += 1;
    }
    let programs = rig.core.stats().page_bytes;
    while rig.core.wants_poll() {
        rig.background();
    }
    let request = rig.core.request_root(false);
    while rig.core.roots_done() < request {
        rig.background();
    }
    assert!(rig.core.has_unprogrammed() && key > 20, "{key} records; {programs} {:?}", rig.core.stats());
    rig.reopen();
    rig.compare(&model, key);
}

/// Goal:   a large value whose namespace is deleted while its program fails does not stop the device.
/// Method: place one, delete its namespace, fail the program; its caller learns that it may continue, and that the namespace is gone.
#[test]
fn failed_programs_of_deleted_namespaces_stop_nothing() {
    let mut rig = Rig::new();
    let (gone, key) = (rig.namespace, Key::from(1u64));
    let value = vec![1; DIRECT_BYTES];
    let buf = AlignedBuf::zeroed(image_bytes(rig.core.geometry(), key, value.len()));
    let value = (&value[..], kaml_crc::crc32c(&value));
    let image = encode_image(rig.core.geometry(), gone, key, value, rig.core.last_sequence(), buf);
    let ticket = rig.core.place(gone, key, image).unwrap();
    let deletion = rig.core.delete_namespace(gone, &BTreeSet::new()).unwrap();
    rig.core.finish_deletion(deletion.count(rig.core.geometry()));
    rig.world.wear_out = true;
    (0..20).for_each(|_| rig.background());
    assert_eq!((rig.core.stats().program_failures, rig.core.stopped()), (1, None));
    assert!(rig.core.is_placed(ticket), "its caller waits for ever");
    let op = Op {
        namespace: gone,
        key: key.into(),
        body: Body::Placed { ticket },
        condition: Condition::Always,
        expires: Default::default(),
    };
    assert_eq!(rig.core.stage(&[op]), Err(Error::UnknownNamespace(gone).into()));
    rig.core.forget(ticket);
    rig.settle();
    assert_eq!(rig.core.stats().bad_blocks, 1);
    rig.reopen();
}

/// Goal:   a bit that flips on its way from the medium damages nothing for good: collection moves what it read right, and keeps all
///         blocks.
/// Method: records are overwritten and collected while bits flip in every third read; then read without.
#[test]
fn flipped_bits_are_not_moved_along() {
    let (mut rig, mut model) = (Rig::new(), BTreeMap::new());
    rig.world.flips = true;
    for round in 0..20_000u64 {
        let key = scattered(round) % 2600;
        rig.put(key, Some(&value(key, round))).unwrap();
        model.insert(key, value(key, round));
    }
    rig.settle();
    rig.world.flips = false;
    let stats = rig.core.stats();
    assert!(stats.relocated_bytes > 1 << 20, "{stats:?}");
    assert_eq!((stats.bad_blocks, stats.damaged_records), (0, 0), "{stats:?}");
    rig.compare(&model, 2600);
    rig.audit();
    rig.reopen();
    rig.compare(&model, 2600);
}

/// Goal:   a segment of versions that somebody has looked up is read whole, although its block fails before it is programmed.
/// Method: hold a segment whose program is in progress; that fails, and the segment gets another place; read it at the old one, for as
///         long as it is held.
#[test]
fn held_segments_outlive_their_failed_block() {
    let mut rig = Rig::new();
    let versions = VersionOptions { buffer_bytes: 64 << 10, ..VersionOptions::default() };
    rig.namespace = rig.core.create_namespace("versions", &versions.into()).unwrap();
    rig.settle();
    rig.poll_after_puts = false;
    let segments = |reader: &mut VersionReader| {
        let rows = 0..reader.row_count();
        let hold_all = |versions: &Versions, hold: &mut dyn FnMut(SegmentAt)| {
            let all: Vec<SegmentAt> =
                rows.flat_map(|row| versions.columns().segments(row)).map(|found| found.at).collect();
            all.iter().for_each(|at| hold(*at));
            all
        };
        reader.look(hold_all).unwrap()
    };
    let mut reader = rig.core.reader().versions(rig.namespace).unwrap();
    let (mut programs, mut key) = (Vec::new(), 0);
    let at = loop {
        rig.put(key, Some(&[key as u8; 3000])).unwrap();
        rig.core.poll(rig.now_ns, &mut programs);
        key += 1;
        if let Some(at) = segments(&mut reader).first() {
            break *at;
        }
    };
    let bytes = 100..2000;
    let (read, is_programmed) = reader.locate(at, &bytes);
    let (mut before, mut after) = (vec![0; bytes.len()], vec![0; bytes.len()]);
    assert!(!is_programmed && rig.core.read_segment(&read, &mut before));
    let block = rig.medium.geometry().split(read.at).0;
    for (id, io) in programs {
        rig.world.wear_out = matches!(&io, Io::Program { at, .. } if at.block == block);
        rig.execute(id, io);
    }
    rig.background();
    assert!(!segments(&mut rig.core.reader().versions(rig.namespace).unwrap()).contains(&at), "it has another place");
    assert!(rig.core.read_segment(&read, &mut after) && before == after);
    drop(reader);
    rig.background();
    assert!(!rig.core.read_segment(&read, &mut after), "it is kept for nobody");
    rig.settle();
    assert_eq!(rig.core.stats().bad_blocks, 1);
}

fn image(rig: &Rig, key: u64, value: &[u8]) -> Arc<AlignedBuf> {
    let buf = AlignedBuf::zeroed(image_bytes(rig.core.geometry(), Key::from(key), value.len()));
    let value = (value, kaml_crc::crc32c(value));
    encode_image(rig.core.geometry(), rig.namespace, Key::from(key), value, rig.core.last_sequence(), buf)
}

fn placed(rig: &Rig, key: u64, ticket: u64) -> Op<'static> {
    let (namespace, body) = (rig.namespace, Body::Placed { ticket });
    Op { namespace, key: Key::from(key).into(), body, condition: Condition::Always, expires: Default::default() }
}

/// Goal:   a frame that a power cut interrupted is taken back although a read of the value that it names fails: what it would have replaced
///         exists.
/// Method: the frame reaches the ring and the program, which nothing has made durable, is lost; while the device is opened one read of its place fails, the first, the second, and
///         so on.
#[test]
fn failed_reads_do_not_make_torn_values_whole() {
    for failing in 0..5 {
        let mut rig = Rig::new();
        let value = vec![7u8; DIRECT_BYTES];
        rig.put(2, Some(b"old")).unwrap();
        rig.put_large(1, &value);
        let ticket = rig.core.place(rig.namespace, Key::from(2u64), image(&rig, 2, &value)).unwrap();
        let (id, io) = rig.core.take_program(ticket).expect("it is alone");
        let Io::Program { at: PageAddr { block, page }, .. } = io else { panic!("a program") };
        rig.core.complete(Completion { id, io, result: Ok(()) });
        rig.core.stage(&[placed(&rig, 2, ticket)]).unwrap();
        let (_, mut write) = rig.core.begin_persist().expect("one at a time");
        rig.medium.execute(&mut write).unwrap();
        let torn = rig.core.geometry().chunk_at(block, page * rig.core.geometry().chunks_per_page());
        let reads = AtomicU64::new(0);
        let watch = |seen: Access<'_>| match seen {
            Access::Operation(Io::Read { at, .. })
                if *at == torn && reads.fetch_add(1, Ordering::Relaxed) == failing =>
            {
                Err(MediumError::ReadFailed { what: "the value".into(), error: "uncorrectable".into() })
            }
            Access::Operation(_) | Access::RingRead => Ok(()),
        };
        let medium = Watched { medium: rig.medium.clone(), watch, before: |queue| queue };
        rig.core = Core::open(&medium).unwrap().0;
        assert!(reads.into_inner() > 3, "it is looked at");
        assert_eq!(rig.get(2), Some(b"old".to_vec()), "read {failing} failed");
    }
}

/// Goal:   collection of a record that is longer than three write buffers ends, although its new block fails when two are programmed.
/// Method: large values are overwritten until collection moves some; the third program of moved records in a block fails.
#[test]
fn moved_long_records_whose_block_fails_late() {
    let flash =
        Geometry { pages_per_block: 512, blocks_per_die: 20, dies_per_channel: 1, ring_bytes: 4 << 20, ..geometry() };
    let mut rig = Rig::on(flash);
    let value = vec![9u8; 900 << 10];
    for key in [1000, 1001, 1002, 1003, 1000] {
        rig.put_large(key, &value);
    }
    rig.settle();
    let mut moves_in = BTreeMap::<u32, u32>::new();
    let mut step = |rig: &mut Rig| {
        rig.now_ns += 200_000_000;
        let mut out = Vec::new();
        rig.core.poll(rig.now_ns, &mut out);
        for (id, io) in out {
            if let Io::Program { at, urgent: false, data, .. } = &io
                && data.len() == 256 << 10
                && rig.world.bad_blocks.is_empty()
            {
                let count = moves_in.entry(at.block.0).or_default();
                *count += 1;
                if *count == 3 {
                    rig.world.bad_blocks.insert(at.block.0);
                }
            }
            rig.execute(id, io);
        }
    };
    for key in (0..200).map(|round| 2000 + round % 13) {
        let image = image(&rig, key, &value);
        let ticket = loop {
            match rig.core.place(rig.namespace, Key::from(key), image.clone()) {
                Ok(ticket) => break ticket,
                Err(error) => assert_eq!(error, StageError::Busy),
            }
            step(&mut rig);
        };
        while !rig.core.is_placed(ticket) {
            step(&mut rig);
        }
        rig.core.stage(&[placed(&rig, key, ticket)]).unwrap();
        let (id, io) = rig.core.begin_persist().unwrap();
        rig.execute(id, io);
        if !rig.world.bad_blocks.is_empty() {
            break;
        }
    }
    assert!(rig.core.stats().program_failures > 0, "{:?}", rig.core.stats());
    (0..300).for_each(|_| rig.background());
    assert!(rig.core.is_idle(), "collection never ends: {:?}", rig.core.stats());
    assert_eq!(rig.get(1001).as_ref(), Some(&value));
    rig.audit();
}
