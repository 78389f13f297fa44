//! Namespaces that are deleted while others are at work: what they held is counted next to the core.

mod common;

use common::{Life, Rng, geometry, value};
use kaml_device::{Body, Condition, Core, Deletion, Error, Key, KeyKind, NamespaceOptions, Op, StageError};
use kaml_flash::{MemoryMedium, Packing};
use std::collections::BTreeSet;

/// Records of each namespace.
const RECORDS: u64 = 3600;
/// Overwritten records after which collection has been in all blocks.
const OVERWRITTEN: u64 = 20_000;
/// The same while a deleted namespace is counted. Collection enters each block once then, and leaves its records of that namespace there.
const OVERWRITTEN_MEANWHILE: u64 = 8_000;

fn put(life: &mut Life, namespace: u32, key: u64, value: &[u8]) -> Result<(), Error> {
    let body = Body::Value { value, crc32c: kaml_crc::crc32c(value) };
    let op =
        Op { namespace, key: Key::from(key).into(), body, condition: Condition::Always, expires: Default::default() };
    life.commit(|core| core.stage(&[op])).expect("power stays")
}

fn value_of(namespace: u32, key: u64, version: u64) -> Vec<u8> {
    value(u64::from(namespace) << 48 | key << 24 | version, 300 + (key % 700) as usize)
}

/// A device whose records of two namespaces lie between each other.
fn between() -> (Life, u32, u32) {
    let medium = MemoryMedium::new(geometry(Packing::Across, 40));
    Core::format(&medium).unwrap();
    let mut life = Life::open(&medium, 1).unwrap();
    let options = NamespaceOptions::records(KeyKind::U64);
    let [gone, busy] = ["gone", "busy"].map(|name| life.core.create_namespace(name, &options).unwrap());
    settle(&mut life);
    for key in 0..RECORDS {
        put(&mut life, gone, key, &value_of(gone, key, 0)).unwrap();
        put(&mut life, busy, key, &value_of(busy, key, 0)).unwrap();
    }
    (life, gone, busy)
}

fn settle(life: &mut Life) {
    let request = life.core.request_root(true);
    life.until(|core| core.roots_done() >= request).expect("power stays");
}

/// Everything is programmed, indexes too.
fn write_out(life: &mut Life) {
    settle(life);
    let request = life.core.request_checkpoint();
    life.until(|core| core.roots_done() >= request).expect("power stays");
}

fn delete(life: &mut Life, namespace: u32) -> Deletion {
    life.core.delete_namespace(namespace, &BTreeSet::new()).unwrap()
}

/// Overwrites records, so blocks are collected; what each key has in the end.
fn overwrite(life: &mut Life, namespace: u32, rounds: u64) -> Vec<Vec<u8>> {
    let mut newest: Vec<Vec<u8>> = (0..RECORDS).map(|key| value_of(namespace, key, 0)).collect();
    for round in 1..=rounds {
        let key = round.wrapping_mul(0x9E37_79B9_7F4A_7C15) % RECORDS;
        newest[key as usize] = value_of(namespace, key, round);
        put(life, namespace, key, &newest[key as usize]).unwrap();
    }
    newest
}

fn compare(life: &mut Life, namespace: u32, expected: &[Vec<u8>]) {
    for (key, expected) in (0..).zip(expected) {
        assert_eq!(life.get(namespace, key).as_ref(), Some(expected), "key {key}");
    }
}

/// Goal:   while what a deleted namespace held is counted, others continue, collection included: no block is erased too early, given up,
///         or lost to collection; nobody finds the namespace. Then its space exists again.
/// Method: blocks with records of both are collected many times before the count is handed in; the device is audited, used up to
///         what had been deleted, and opened again.
#[test]
fn others_go_on_while_a_namespace_is_counted() {
    let (mut life, gone, busy) = between();
    settle(&mut life);
    let before = life.core.stats();
    let deletion = delete(&mut life, gone);
    assert_eq!(put(&mut life, gone, 1, b"late"), Err(Error::UnknownNamespace(gone)));
    overwrite(&mut life, busy, OVERWRITTEN_MEANWHILE);
    settle(&mut life);
    let during = life.core.stats();
    assert!(during.relocated_bytes > before.relocated_bytes + (1 << 20), "{during:?}");
    assert_eq!(during.live_bytes, before.live_bytes, "it has not been counted");
    life.audit();
    life.core.finish_deletion(deletion.count(life.core.geometry()));
    settle(&mut life);
    let after = life.core.stats();
    assert_eq!((after.bad_blocks, after.damaged_records), (0, 0), "{after:?}");
    assert!((before.live_bytes / 3..before.live_bytes * 2 / 3).contains(&after.live_bytes), "{before:?} {after:?}");
    life.audit();
    for key in RECORDS..2 * RECORDS {
        put(&mut life, busy, key, &value_of(busy, key, 0)).unwrap();
    }
    let newest = overwrite(&mut life, busy, OVERWRITTEN);
    compare(&mut life, busy, &newest);
    settle(&mut life);
    life.audit();
    let mut life = Life::open(&life.medium, 2).unwrap();
    compare(&mut life, busy, &newest);
    assert!(life.core.namespace("gone").is_err());
    life.audit();
}

/// Goal:   a power cut while a deleted namespace is counted leaves it whole, or deletes it if a root contains the deletion.
/// Method: after collection has been in its blocks power fails, with and without a root; all is read and audited.
#[test]
fn power_goes_while_a_namespace_is_counted() {
    for has_root in [false, true] {
        let (mut life, gone, busy) = between();
        settle(&mut life);
        let _deletion = delete(&mut life, gone);
        let newest = if has_root { overwrite(&mut life, busy, OVERWRITTEN_MEANWHILE) } else { Vec::new() };
        if has_root {
            settle(&mut life);
        }
        let mut life = Life::open(&life.medium, 2).unwrap();
        assert_eq!(life.core.namespace("gone").is_err(), has_root);
        if has_root {
            compare(&mut life, busy, &newest);
        } else {
            let first = |space| (0..RECORDS).map(|key| value_of(space, key, 0)).collect::<Vec<_>>();
            compare(&mut life, gone, &first(gone));
            compare(&mut life, busy, &first(busy));
        }
        life.audit();
        let live = life.core.stats().live_bytes;
        let all = (0..RECORDS).map(|key| value_of(busy, key, 0).len() as u64).sum::<u64>();
        assert_eq!(live > all * 3 / 2, !has_root, "{live} of {all}");
    }
}

/// Goal:   what a namespace held whose index is lost is not mistaken for that of one which is being counted.
/// Method: one is deleted without its index while another one is counted: it has to wait, and then both are gone.
#[test]
fn a_lost_namespace_waits_for_what_is_counted() {
    let (mut life, lost, gone) = between();
    write_out(&mut life);
    assert_eq!(life.core.unload_index(lost), Ok(true));
    let deletion = delete(&mut life, gone);
    let known_lost = BTreeSet::from([lost]);
    assert_eq!(life.core.delete_namespace(lost, &known_lost).err(), Some(StageError::Busy));
    life.core.finish_deletion(deletion.count(life.core.geometry()));
    let deletion = life.core.delete_namespace(lost, &known_lost).unwrap();
    life.core.finish_deletion(deletion.count(life.core.geometry()));
    settle(&mut life);
    assert_eq!(life.core.stats().live_bytes, 0);
    life.audit();
}

/// Goal:   a device that is closed while a deleted namespace is counted opens with what is live accounted for, whenever the count comes.
/// Method: the count is handed in after all of what closing takes, or a part of it that the seed determines.
#[test]
fn devices_are_closed_while_a_namespace_is_counted() {
    let (mut late, mut early) = (0, 0);
    for seed in 1..30 {
        let (mut life, gone, busy) = between();
        write_out(&mut life);
        life.rng = Rng::new(seed);
        let deletion = delete(&mut life, gone);
        let closed = life.core.request_close();
        life.background(false).expect("power stays");
        *if life.core.roots_done() >= closed { &mut late } else { &mut early } += 1;
        life.core.finish_deletion(deletion.count(life.core.geometry()));
        life.until(|core| core.roots_done() >= closed).expect("power stays");
        let mut life = Life::open(&life.medium, 2).unwrap();
        let first: Vec<Vec<u8>> = (0..RECORDS).map(|key| value_of(busy, key, 0)).collect();
        compare(&mut life, busy, &first);
        life.audit();
    }
    assert!(late > 3 && early > 3, "{late} {early}");
}
