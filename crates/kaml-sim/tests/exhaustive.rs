//! Power is cut all over small workloads that together go through every mechanism of the firmware. Here one operation in a
//! few is cut, so builds that are not optimised take seconds; `kaml-lab sim run --exhaustive` cuts every one.

use kaml_sim::{Cuts, Plan, Small, Totals, run};

fn exhaust(small: Small, seeds: std::ops::Range<u64>, one_in: u64) -> Totals {
    let mut totals = Totals::default();
    for seed in seeds {
        let plan = Plan { seed, small: Some(small), cuts: Cuts::OneIn(one_in) };
        totals.add(&run(&plan).unwrap_or_else(|failure| panic!("{failure}")));
    }
    println!("{small:?}: {totals:?}");
    totals
}

/// Goal:   Puts of several records over several namespaces and logs survive a cut at any operation.
/// Method: fork at an operation of the medium, open, compare, check the accounts, continue; recoveries are cut too.
#[test]
fn puts_over_several_logs() {
    let totals = exhaust(Small::Puts, 0..10, 2);
    assert!(totals.recovery_cuts > 20, "{totals:?}");
}

/// Goal:   the same while blocks are collected.
/// Method: overwrites of a device that is as full as it takes; what it refuses is not moved, so many seeds.
#[test]
fn collection() {
    let totals = exhaust(Small::Collection, 0..14, 60);
    assert!(totals.relocated_bytes > 1 << 19, "{totals:?}");
}

/// Goal:   the same while the index grows.
/// Method: thousands of keys with tiny values.
#[test]
fn index_growth() {
    let totals = exhaust(Small::Growth, 0..3, 2);
    assert!(totals.counts.operations > 5_000, "{totals:?}");
}

/// Goal:   the same during roots, checkpoints and index loads.
/// Method: a root every few commands, indexes out of memory.
#[test]
fn roots_and_checkpoints() {
    exhaust(Small::Checkpoint, 0..8, 2);
}

/// Goal:   the same for values that are programmed ahead of their Put.
/// Method: a third of all values is larger than the ring takes.
#[test]
fn large_values() {
    exhaust(Small::Direct, 0..6, 2);
}

/// Goal:   the same for writes and trims of blocks, whole units and parts of them.
/// Method: a namespace of blocks and one of records, its index out of memory occasionally.
#[test]
fn blocks() {
    exhaust(Small::Blocks, 0..6, 2);
}

/// Goal:   blocks survive what flash can do, over several lives.
/// Method: a namespace of blocks on flash with a mix of faults that each seed draws; some cuts.
#[test]
fn blocks_on_failing_flash() {
    for seed in 0..6 {
        let plan = Plan { seed, small: Some(Small::Disks), cuts: Cuts::OneIn(60) };
        let totals = run(&plan).unwrap_or_else(|failure| panic!("{failure}"));
        println!("{totals:?}");
    }
}

/// Goal:   versions, snapshots, rollbacks and merges survive cuts, together with records.
/// Method: a versioned namespace and one of records; all histories and snapshots are compared.
#[test]
fn versions() {
    let totals = exhaust(Small::Versions, 0..3, 4);
    assert!(totals.recovery_cuts > 10, "{totals:?}");
}

/// Goal:   a namespace with its index on flash merges by itself, and loses nothing at any cut meanwhile.
/// Method: one such namespace with few keys, which are put often; the firmware must have requested merges.
#[test]
fn an_index_on_flash() {
    let totals = exhaust(Small::OnFlash, 0..2, 50);
    assert!(totals.recovery_cuts > 10 && totals.counts.requested_merges > 0, "{totals:?}");
}

/// Goal:   versions survive what flash can do, over several lives.
/// Method: a versioned namespace on flash with a mix of faults that each seed draws; some cuts.
#[test]
fn versions_on_failing_flash() {
    for seed in [0, 1, 2, 3, 372, 1438] {
        let plan = Plan { seed, small: Some(Small::Pasts), cuts: Cuts::OneIn(60) };
        let totals = run(&plan).unwrap_or_else(|failure| panic!("{failure}"));
        println!("{totals:?}");
    }
}

/// Goal:   Puts under conditions are judged by what was staged before them, and are whole or leave nothing; namespaces that go while
///         they are in use, and move to other logs, keep to what completed.
/// Method: few keys, many Puts at once, some of byte strings; the model knows which conditions hold, and the logs of each namespace.
#[test]
fn conditions() {
    let totals = exhaust(Small::Conditions, 0..12, 2);
    let counts = &totals.counts;
    assert!(counts.conditions_held > 100 && counts.conditions_failed > 100, "{totals:?}");
    assert!(counts.moves > 20 && counts.moves_refused > 5, "{totals:?}");
    assert!(counts.deleted_in_use > 5 && counts.orphaned > 5, "{totals:?}");
}

/// Goal:   keys above 16 bytes keep what keys below do, in order and in none: whole Puts or nothing of them, the order of an ordered namespace.
/// Method: short and long keys of small and large values, under conditions; indexes leave memory, roots and checkpoints often.
#[test]
fn long_keys() {
    let totals = exhaust(Small::LongKeys, 0..12, 2);
    let counts = &totals.counts;
    assert!(counts.conditions_held > 100 && counts.conditions_failed > 50, "{totals:?}");
    assert!(counts.strings_found > 50 && counts.strings_absent > 50 && counts.clustered > 20, "{totals:?}");
    assert!(counts.deleted_in_ranges > 50, "{totals:?}");
}

/// Goal:   snapshots show what was committed when they were opened, while collection moves records and namespaces are deleted; no cut leaves
///         anything of them.
/// Method: reads and listings through several snapshots all the time, compared with copies of the model; deletes of ranges.
#[test]
fn snapshots() {
    let totals = exhaust(Small::Snapshots, 0..8, 40);
    let counts = &totals.counts;
    assert!(counts.snapshots > 100 && counts.snapshot_reads > 2000 && counts.snapshot_listings > 100, "{totals:?}");
    assert!(totals.relocated_bytes > 0 && counts.deleted_in_ranges > 50, "{totals:?}");
}

/// Goal:   large values survive cuts while their callers program them.
/// Method: one large value after the other, under conditions.
#[test]
fn large_values_of_lone_callers() {
    let totals = exhaust(Small::Large, 0..12, 2);
    assert!(totals.counts.own_programs > 50, "{totals:?}");
}

/// Goal:   a large value whose program fails is put all the same.
/// Method: the same on flash where programs fail or find no space below, over several lives; some cuts.
#[test]
fn large_values_whose_programs_fail() {
    let totals = exhaust(Small::LargeFailures, 0..6, 30);
    assert!(totals.counts.own_programs > 100, "{totals:?}");
}

/// Goal:   the same while namespaces come and go.
/// Method: one command in five creates or deletes one.
#[test]
fn namespaces_come_and_go() {
    exhaust(Small::Namespaces, 0..6, 2);
}

/// Goal:   the same while the size of the device changes, by command and by itself.
/// Method: a device that is filled to more than it had room for at first; indexes leave memory and come back with more bits.
#[test]
fn sizes_change() {
    let totals = exhaust(Small::Resized, 0..16, 10);
    assert!(totals.counts.resized > 100, "{totals:?}");
}

/// Goal:   the same for records that expire: they are seen until their time and never after it, also over a cut.
/// Method: most values expire, small and large ones under keys of every length; time passes on the device between operations.
#[test]
fn expiry() {
    let totals = exhaust(Small::Expiry, 0..3, 40);
    assert!(totals.counts.expired > 300, "{totals:?}");
}
