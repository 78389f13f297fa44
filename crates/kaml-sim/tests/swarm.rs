//! Seeds with everything mixed: shapes, faults, interleavings, lives; and the same seed twice.

use kaml_sim::{Cuts, Plan, Totals, run};

/// Goal:   nothing that flash and power can do loses or changes what completed, whatever hosts do.
/// Method: a few seeds of the swarm; the continuous run takes hundreds. They must have come by everything.
#[test]
fn a_few_seeds() {
    let mut totals = Totals::default();
    for seed in 0..14 {
        let plan = Plan { seed, small: None, cuts: Cuts::OneIn(60) };
        totals.add(&run(&plan).unwrap_or_else(|failure| panic!("{failure}")));
    }
    println!("{totals:?}");
    assert!(totals.cuts > 200 && totals.counts.operations > 10_000, "{totals:?}");
    everything_happened(&totals);
}

/// What hosts can do happened, and came out one way and the other; power was cut where it seldom is.
fn everything_happened(totals: &Totals) {
    let counts = &totals.counts;
    let happened = [
        ("a put under conditions that held", counts.conditions_held),
        ("a put under conditions that did not", counts.conditions_failed),
        ("a byte string that was found", counts.strings_found),
        ("a byte string that was not", counts.strings_absent),
        ("a record that a snapshot was asked for", counts.snapshot_reads),
        ("a listing of a snapshot", counts.snapshot_listings),
        ("a namespace moved to other logs", counts.moves),
        ("a namespace not moved to logs that do not exist", counts.moves_refused),
        ("a namespace deleted while it was in use", counts.deleted_in_use),
        ("a command whose namespace had gone", counts.orphaned),
        ("a large value programmed by its caller", counts.own_programs),
        ("a cut while something was read", totals.read_cuts),
        ("a cut during formatting that left a device", totals.formats_whole),
        ("a cut during formatting that left none", totals.format_cuts - totals.formats_whole),
    ];
    let missing: Vec<&str> = happened.iter().filter(|(_, count)| *count == 0).map(|(what, _)| *what).collect();
    assert!(missing.is_empty(), "never seen: {missing:?}; {totals:?}");
}

/// Goal:   the same seed does the same, whatever cuts are tried next to it.
/// Method: trace hashes of one seed under different plans.
#[test]
fn seeds_are_deterministic() {
    for seed in 0..6 {
        let hash = |cuts| run(&Plan { seed, small: None, cuts }).map(|totals| (totals.trace_hash, totals.mutations));
        assert_eq!(hash(Cuts::OneIn(500)), hash(Cuts::OneIn(500)));
        assert_eq!(hash(Cuts::OneIn(500)), hash(Cuts::Only(100)));
    }
}
