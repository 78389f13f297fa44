//! Indexes that are not in memory and cannot be read.

use crate::rig::{Rig, value};
use kaml_device::{Error, KeyKind, NamespaceOptions, StageError, VersionOptions};
use std::collections::{BTreeMap, BTreeSet};

/// Goal:   where records of a failed block wait for an index that cannot be read the device stops and reports it, and nothing of
///         them is lost: they exist when it is opened again.
/// Method: as above, with indexes that cannot be loaded for a while.
#[test]
fn failed_blocks_do_not_wait_for_lost_indexes_for_ever() {
    let mut rig = Rig::new();
    rig.put(1, Some(b"kept")).unwrap();
    rig.unload_and_wear_out(1);
    rig.world.lost_index = Some(rig.namespace);
    rig.core.request_root(true);
    (0..200).for_each(|_| rig.background());
    let stopped = rig.core.stopped();
    assert!(stopped.as_ref().is_some_and(|why| why.to_string().contains("the index of namespace 1")), "{stopped:?}");
    rig.reopen();
    rig.compare(&BTreeMap::from([(1, b"kept".to_vec())]), 3);
}

/// Goal:   an index that only collection needs and cannot get does not stop the device when another namespace's block fails.
/// Method: records of one namespace lie between garbage, and its index cannot be loaded; another is put until collection has requested
///         it often, and then its blocks fail.
#[test]
fn blocks_fail_beside_an_index_that_collection_lacks() {
    let (mut rig, ..) = between_records_of_a_lost_index();
    for round in 0..20_000u64 {
        rig.put(round % 1100 * 2 + 1, Some(&value(1, round))).unwrap();
        rig.world.wear_out |= rig.lost_asked > 20;
        if rig.core.stats().program_failures > 2 {
            break;
        }
    }
    assert!(rig.core.stats().program_failures > 2, "{} {:?}", rig.lost_asked, rig.core.stats());
    assert_eq!(rig.core.stopped(), None);
}

/// A namespace, loaded, whose records lie between those of another one, whose index has left memory and cannot be loaded again; the
/// namespaces of both.
fn between_records_of_a_lost_index() -> (Rig, u32, u32) {
    let mut rig = Rig::new();
    let (lost, options) = (rig.namespace, NamespaceOptions::records(KeyKind::U64));
    let busy = rig.core.create_namespace("busy", &options).unwrap();
    rig.settle(); // it exists after a root reports it
    for key in 0..2200 {
        rig.namespace = if key % 2 == 0 { lost } else { busy };
        rig.put(key, Some(&value(key, 0))).unwrap();
    }
    rig.namespace = lost;
    rig.unload();
    (rig.namespace, rig.world.lost_index) = (busy, Some(lost));
    (rig, busy, lost)
}

/// Goal:   an index that cannot be loaded keeps no other namespace waiting: after some tries collection leaves blocks with its records
///         alone. When it is back nothing is missing, and these blocks are collected again.
/// Method: another namespace is overwritten many times next to it; then the index can be read again, and both are overwritten.
#[test]
fn collection_goes_on_without_a_lost_index() {
    let (mut rig, busy, lost) = between_records_of_a_lost_index();
    let mut model: BTreeMap<u64, Vec<u8>> = (0..1100).map(|i| (2 * i, value(2 * i, 0))).collect();
    for round in 0..20_000u64 {
        rig.put(round % 1100 * 2 + 1, Some(&value(1, round))).unwrap();
    }
    assert!((50..100).contains(&rig.lost_asked), "asked {} times", rig.lost_asked);
    let free = rig.core.stats().free_blocks;
    rig.world.lost_index = None;
    rig.namespace = lost;
    rig.compare(&model, 2200);
    for round in 0..20_000u64 {
        rig.namespace = if round % 8 == 0 { lost } else { busy };
        let key = round % 1100 * 2 + u64::from(rig.namespace == busy);
        rig.put(key, Some(&value(key, round))).unwrap();
        if rig.namespace == lost {
            model.insert(key, value(key, round));
        }
    }
    rig.namespace = lost;
    rig.settle();
    rig.compare(&model, 2200);
    let stats = rig.core.stats();
    assert!(stats.relocated_bytes > 1 << 20 && stats.bad_blocks == 0, "{free} blocks were free: {stats:?}");
    rig.reopen();
    rig.compare(&model, 2200);
}

/// Goal:   a namespace whose index cannot be loaded can be deleted, and its space comes back; with another such one it comes back
///         when that is deleted, too.
/// Method: one or two of three namespaces are lost and deleted; then all that is accounted as live is found, and there is room again
///         for as much as they held. Compared at last, also after the device is opened again.
#[test]
fn lost_namespaces_are_deleted() {
    for lost_count in [1, 2] {
        let (mut rig, busy, lost) = between_records_of_a_lost_index();
        let mut model: BTreeMap<u64, Vec<u8>> = (0..1100).map(|i| (2 * i + 1, value(2 * i + 1, 0))).collect();
        let versions = VersionOptions { buffer_bytes: 64 << 10, ..VersionOptions::default() };
        let more = rig.core.create_namespace("more", &versions.into()).unwrap();
        rig.settle();
        rig.namespace = more;
        (0..100).for_each(|key| rig.put(key, Some(&value(key, 0))).unwrap());
        rig.settle();
        rig.unload();
        let live = rig.core.stats().live_bytes;
        let mut known_lost = BTreeSet::new();
        let mut delete = |rig: &mut Rig, id| {
            let deletion = loop {
                match rig.core.delete_namespace(id, &known_lost) {
                    Ok(deletion) => break deletion,
                    Err(StageError::NeedIndex(needed)) if needed == lost || (needed, lost_count) == (more, 2) => {
                        assert!(known_lost.insert(needed));
                    }
                    Err(StageError::NeedIndex(needed)) => rig.core.load_index(&rig.medium, needed).unwrap(),
                    Err(error) => panic!("{error:?}"),
                }
            };
            rig.core.finish_deletion(deletion.count(rig.core.geometry()));
            let again = rig.core.delete_namespace(id, &known_lost).err();
            assert_eq!(again, Some(Error::UnknownNamespace(id).into()));
        };
        delete(&mut rig, lost);
        if lost_count == 2 {
            assert_eq!(rig.core.stats().live_bytes, live, "they may be the other's");
        }
        delete(&mut rig, more);
        rig.namespace = busy;
        rig.settle();
        rig.audit();
        let left = rig.core.stats().live_bytes;
        assert!((live / 3..live / 2).contains(&left), "{left} of {live}");
        for key in 0..1100 {
            rig.put(2 * key, Some(&value(2 * key, 1))).unwrap();
            model.insert(2 * key, value(2 * key, 1));
        }
        rig.settle();
        rig.compare(&model, 2200);
        rig.audit();
        rig.reopen();
        rig.compare(&model, 2200);
    }
}
