//! Power is cut all over small workloads that together go through every mechanism of the firmware. Here one operation in a
//! few is cut, so that builds that are not optimised take seconds; `kaml sim run --exhaustive` cuts every one.

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
/// Method: fork at an operation of the medium, open, compare, check the accounts, go on; recoveries are cut too.
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
/// Method: a namespace of blocks beside one of records, its index out of memory now and then.
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

/// Goal:   versions, snapshots, rollbacks and merges survive cuts, beside records.
/// Method: a versioned namespace beside one of records; all histories and snapshots are compared.
#[test]
fn versions() {
    let totals = exhaust(Small::Versions, 0..3, 4);
    assert!(totals.recovery_cuts > 10, "{totals:?}");
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
///         they are in use, and move to other logs, keep to what was answered.
/// Method: few keys, many Puts at once, some of byte strings; the model knows which conditions hold, and the logs of each namespace.
#[test]
fn conditions() {
    let totals = exhaust(Small::Conditions, 0..12, 2);
    let counts = &totals.counts;
    assert!(counts.conditions_held > 100 && counts.conditions_failed > 100, "{totals:?}");
    assert!(counts.moves > 20 && counts.moves_refused > 5, "{totals:?}");
    assert!(counts.deleted_in_use > 5 && counts.orphaned > 5, "{totals:?}");
}

/// Goal:   a large value and the frame that names it survive a cut while both are being written.
/// Method: one large value after the other; program and ring write at once with a flush behind them, or one after the other.
#[test]
fn large_values_beside_their_frames() {
    let totals = exhaust(Small::Beside, 0..12, 2);
    assert!(totals.counts.beside > 50, "{totals:?}");
}

/// Goal:   a large value whose program fails beside its frame is put all the same, and until then there or not.
/// Method: the same on flash where programs fail or find no space below, over several lives; some cuts.
#[test]
fn large_values_whose_programs_fail() {
    let totals = exhaust(Small::Withdrawn, 0..6, 30);
    assert!(totals.counts.beside > 100 && totals.counts.withdrawn > 5, "{totals:?}");
}

/// Goal:   the same while namespaces come and go.
/// Method: one command in five creates or deletes one.
#[test]
fn namespaces_come_and_go() {
    exhaust(Small::Namespaces, 0..6, 2);
}
