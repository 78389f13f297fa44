//! Merges on full devices: deletes of a versioned namespace continue until it is empty, and its space returns.

#[allow(dead_code, reason = "what happens is chosen here, not by a seed")]
mod common;
#[path = "common/merging.rs"]
mod merging;

use common::{Life, Rng, geometry, value};
use kaml_device::{Body, Condition, Core, Error, Key, KeyKind, NamespaceOptions, Op, VersionOptions};
use kaml_flash::{MemoryMedium, Packing};
use kaml_versions::{Command, Retention};

const NOTHING: Retention = Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: true, keep_internal: false };

/// A full namespace, and how it is emptied.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Of the merges: nothing of deleted keys is kept.
    rules: Retention,
    /// A snapshot of half of it, which is forgotten when deletes are refused for the first time.
    has_snapshot: bool,
    order: Order,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Forwards,
    Backwards,
    Random,
    /// Some keys are deleted again and again before the others.
    Repeated,
}

/// A device with an empty versioned namespace.
fn empty(buffer_bytes: u64) -> (Life, u32) {
    let medium = MemoryMedium::new(geometry(Packing::Across, 40));
    Core::format(&medium).unwrap();
    let mut life = Life::open(&medium, 1).unwrap();
    let options = VersionOptions { buffer_bytes, ..VersionOptions::default() };
    let options = NamespaceOptions::versions(KeyKind::U64, options);
    let namespace = life.core.create_namespace("versions", &options).unwrap();
    rest(&mut life);
    (life, namespace)
}

/// Background work continues until nothing of it remains.
fn rest(life: &mut Life) {
    for _ in 0..2 {
        let request = life.core.request_root(true);
        life.until(|core| core.roots_done() >= request).expect("power stays");
    }
}

fn op(namespace: u32, key: u64, value: Option<&[u8]>) -> Op<'_> {
    let body = value.map_or(Body::Delete, |value| Body::Value { value, crc32c: kaml_crc::crc32c(value) });
    Op { namespace, key: Key::from(key).into(), body, condition: Condition::Always, expires: Default::default() }
}

/// Puts records until the device is full; how many.
fn fill(life: &mut Life, namespace: u32, lengths: &[usize], mut each: impl FnMut(&mut Life, u64)) -> u64 {
    let values: Vec<Vec<u8>> = lengths.iter().map(|bytes| value(7, *bytes)).collect();
    let batch = if lengths.iter().all(|bytes| *bytes < 1000) { 16 } else { 1 };
    let mut count = 0;
    loop {
        let put = |key: u64| op(namespace, key, Some(&values[key as usize % values.len()]));
        let ops: Vec<Op<'_>> = (count..count + batch).map(put).collect();
        match life.commit(|core| core.stage(&ops)).expect("power stays") {
            Ok(()) => count += batch,
            Err(Error::Full { .. }) => return count,
            Err(other) => panic!("record {count}: {other}"),
        }
        each(life, count);
    }
}

fn keys(order: Order, count: u64) -> Vec<u64> {
    let mut keys: Vec<u64> = (0..count).collect();
    let mut rng = Rng::new(5);
    match order {
        Order::Forwards => {}
        Order::Backwards => keys.reverse(),
        Order::Random => (1..keys.len()).for_each(|at| keys.swap(at, rng.below(at as u64 + 1) as usize)),
        Order::Repeated => {
            let again: Vec<u64> = (0..2 * count).map(|at| at % 50).collect();
            keys.splice(0..0, again);
        }
    }
    keys
}

fn merge(life: &mut Life, namespace: u32, rules: &Retention) -> u64 {
    life.merge(namespace, rules, |core| core.merge_segments_max(namespace)).expect("a merge has room")
}

fn command(life: &mut Life, namespace: u32, command: Command) {
    let stage = |core: &mut Core| core.stage_version_command(namespace, command).map(|(frame, _)| frame);
    life.commit(stage).expect("power stays").expect("a command");
}

/// Deletes one key after the other, with a merge whenever one is refused; how many merges that took.
fn empty_it(life: &mut Life, namespace: u32, case: &Case, count: u64) -> u64 {
    let mut merges = 0;
    for key in keys(case.order, count) {
        let delete = |core: &mut Core| core.stage(&[op(namespace, key, None)]);
        match life.commit(delete).expect("power stays") {
            Ok(()) => continue,
            Err(Error::Full { .. }) => {}
            Err(other) => panic!("{case:?}, key {key}: {other}"),
        }
        if merges == 0 && case.has_snapshot {
            command(life, namespace, Command::ForgetThrough(1));
        }
        let dropped = merge(life, namespace, &case.rules);
        merges += 1;
        let again = life.commit(delete).expect("power stays");
        assert!(
            again.is_ok(),
            "{case:?}, key {key} of {count} after merge {merges}, which dropped {dropped}: {again:?}"
        );
    }
    if merges == 0 && case.has_snapshot {
        command(life, namespace, Command::ForgetThrough(1));
    }
    // The first one keeps what is newer than a version in the kept stream, which it drops; the second one finds none there.
    for _ in 0..2 {
        merge(life, namespace, &case.rules);
    }
    rest(life);
    merges
}

/// Goal:   a full versioned namespace accepts deletes until it is empty: a merge after a refused one makes room for the next, whatever the
///         values and the order, if the rules and the snapshots keep nothing of deleted keys. Emptied, the device takes as much as a new one.
/// Method: fill, delete key by key, merge when a delete is refused; a snapshot is forgotten then. Then nothing is in use, and it is filled again.
#[test]
fn full_namespaces_are_emptied_by_deletes_and_merges() {
    let lengths: [&[usize]; 5] = [&[1], &[40], &[900], &[1, 3000, 60, 500], &[20_000, 9, 31_000, 700]];
    let orders = [Order::Forwards, Order::Backwards, Order::Random, Order::Repeated];
    for (at, lengths) in lengths.into_iter().enumerate() {
        for (also, order) in orders.into_iter().enumerate() {
            let rules = Retention { keep_since_ns: (also == 1).then_some(u64::MAX), ..NOTHING };
            let buffer_bytes = [0, 64 << 10][(at + also) % 2];
            let lengths = if buffer_bytes == 0 || lengths[0] < 9000 { lengths } else { &[3000, 9, 4000, 700] };
            let case = Case { rules, has_snapshot: also == 2, order };
            let (mut life, namespace) = empty(buffer_bytes);
            let mut is_taken = !case.has_snapshot;
            let count = fill(&mut life, namespace, lengths, |life, _| {
                if !is_taken && life.core.stats().live_bytes > 3 << 20 {
                    command(life, namespace, Command::Snapshot);
                    is_taken = true;
                }
            });
            let merges = empty_it(&mut life, namespace, &case, count);
            let left = life.core.stats().live_bytes;
            let again = fill(&mut life, namespace, lengths, |_, _| {});
            println!(
                "{case:?}, {lengths:?}, buffer {buffer_bytes}: {count} records, {merges} merges, {left} bytes left, then {again} records"
            );
            assert_eq!(left, 0, "{case:?}");
            assert!(again * 100 >= count * 97, "{case:?}: {again} of {count}");
            life.audit();
        }
    }
}
