//! No space below, and a full device.

use crate::rig::{Rig, value};
use kaml_device::{Error, NamespaceChange};
use kaml_flash::{Io, MediumError};
use std::collections::BTreeMap;

/// Goal:   no space below is reported, loses nothing, and ends by itself.
/// Method: fail all programs and erases with no space; puts are refused while reads and deletes work; then let them succeed.
#[test]
fn no_space_below_is_survived() {
    let mut rig = Rig::new();
    let mut model = BTreeMap::new();
    for key in 0..100 {
        rig.put(key, Some(&value(key, 0))).unwrap();
        model.insert(key, value(key, 0));
    }
    rig.world.no_space = true;
    let refused = (0..2000).find_map(|i| match rig.put(i % 100, Some(&value(i % 100, 1))) {
        Ok(()) => {
            model.insert(i % 100, value(i % 100, 1));
            None
        }
        Err(error) => Some(error),
    });
    assert!(matches!(refused, Some(Error::Medium(MediumError::NoSpace { .. }))), "{refused:?}");
    rig.compare(&model, 100);
    rig.put(5, None).unwrap();
    model.remove(&5);
    rig.world.no_space = false;
    rig.background();
    rig.put(6, Some(b"again")).unwrap();
    model.insert(6, b"again".to_vec());
    rig.settle();
    rig.compare(&model, 100);
    rig.reopen();
    rig.compare(&model, 100);
}

/// Goal:   deletes do not wait forever where there is no space below: as many as the ring takes are accepted, then they get an error.
/// Method: fail all programs and erases with no space and delete until that is refused; reads continue, what was accepted holds; then let
///         them succeed.
#[test]
fn deletes_are_told_of_no_space_below() {
    let mut rig = Rig::new();
    let mut model: BTreeMap<u64, Vec<u8>> = (0..100).map(|key| (key, value(key, 0))).collect();
    model.iter().for_each(|(key, value)| rig.put(*key, Some(value)).unwrap());
    rig.world.no_space = true;
    let refused = (0..100_000).find_map(|i| {
        let refused = rig.put(i % 50, None).err();
        if refused.is_none() {
            model.remove(&(i % 50));
        }
        refused
    });
    assert!(matches!(refused, Some(Error::Medium(MediumError::NoSpace { .. }))), "{refused:?}");
    assert_eq!(model.len(), 50);
    rig.compare(&model, 100);
    rig.world.no_space = false;
    rig.background();
    rig.put(60, None).unwrap();
    model.remove(&60);
    rig.settle();
    rig.compare(&model, 100);
    rig.reopen();
    rig.compare(&model, 100);
}

/// Goal:   a program that is tried again comes before those of later pages, whatever came up while it was in progress.
/// Method: a program finds no space and is handed out again; Puts fill the next pages meanwhile; it finds none again just when it is due.
#[test]
fn programs_tried_again_keep_their_order() {
    let mut rig = Rig::new();
    let one_log = NamespaceChange { logs: Some(vec![0]), ..NamespaceChange::default() };
    rig.core.set_namespace(rig.namespace, &one_log).unwrap();
    rig.poll_after_puts = false;
    rig.world.no_space = true;
    let mut key = 0;
    let mut next_program = |rig: &mut Rig| {
        while !rig.core.has_background() {
            rig.put(key, Some(&[7; 4000])).unwrap();
            key += 1;
        }
    };
    next_program(&mut rig);
    rig.background();
    let mut started = Vec::new();
    rig.now_ns += 200_000_000;
    rig.core.poll(rig.now_ns, &mut started);
    next_program(&mut rig);
    started.drain(..).for_each(|(id, io)| rig.execute(id, io));
    rig.now_ns += 200_000_000;
    rig.core.poll(rig.now_ns, &mut started);
    let places = started.iter().filter_map(|(_, io)| if let Io::Program { at, .. } = io { Some(*at) } else { None });
    let places: Vec<_> = places.collect();
    assert!(places.len() > 1 && places.is_sorted(), "{places:?}");
}

/// Goal:   a root waits for pages that are programmed again after there was no space for them.
/// Method: fail a root's programs with no space, hand them out again and keep them in progress: nothing is flushed.
#[test]
fn roots_wait_for_programs_tried_again() {
    let mut rig = Rig::new();
    rig.put(1, Some(b"kept")).unwrap();
    rig.world.no_space = true;
    let request = rig.core.request_root(true);
    rig.background();
    assert!(rig.core.is_waiting_for_space());
    rig.background();
    let mut under_way = Vec::new();
    (0..10).for_each(|_| rig.core.poll(rig.now_ns, &mut under_way));
    assert!(rig.core.is_waiting_for_space() && under_way.is_empty(), "nothing continues before they are tried again");
    rig.world.no_space = false;
    for _ in 0..10 {
        rig.now_ns += 200_000_000;
        rig.core.poll(rig.now_ns, &mut under_way);
    }
    let count = |is: fn(&Io) -> bool| under_way.iter().filter(|(_, io)| is(io)).count();
    assert!(count(|io| matches!(io, Io::Program { .. })) > 0);
    assert_eq!(count(|io| matches!(io, Io::Flush | Io::WriteRoot { .. })), 0);
    under_way.into_iter().for_each(|(id, io)| rig.execute(id, io));
    while rig.core.roots_done() < request {
        rig.background();
    }
    rig.reopen();
    assert_eq!(rig.get(1).unwrap(), b"kept");
}

/// Goal:   a full device refuses new data early and clearly, takes deletes, and gets its space back.
/// Method: fill until refused; delete half; fill again; overwrite at the limit for long.
#[test]
fn a_full_device_recovers_its_space() {
    let mut rig = Rig::new();
    let big = vec![7u8; 5000];
    let fill = |rig: &mut Rig, from: u64| {
        (from..).find(|key| match rig.put(*key, Some(&big)) {
            Ok(()) => false,
            Err(Error::Full { .. }) => true,
            Err(error) => panic!("{error}"),
        })
    };
    let count = fill(&mut rig, 0).unwrap();
    let stats = rig.core.stats();
    assert!(stats.live_bytes > stats.capacity_bytes * 9 / 10, "{stats:?}");
    assert!(stats.capacity_bytes > 80 * 131_072 / 2, "{stats:?}");
    for key in (0..count).step_by(2) {
        rig.put(key, None).unwrap();
    }
    let more = fill(&mut rig, count).unwrap() - count;
    assert!(more >= count / 2 - count / 50, "{count} {more}");
    rig.put(1, None).unwrap();
    for round in 0..3000u64 {
        let key = count + round * 31 % more;
        rig.put(key, None).unwrap();
        rig.put(key, Some(&vec![round as u8; 4900])).unwrap();
    }
    rig.settle();
    assert_eq!(rig.get(3).unwrap(), vec![7; 5000]);
}
