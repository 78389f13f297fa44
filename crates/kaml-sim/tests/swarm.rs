//! Seeds with everything mixed: shapes, faults, interleavings, lives; and the same seed twice.

use kaml_sim::{Cuts, Plan, Totals, run};

/// Goal:   nothing that flash and power can do loses or changes what was answered.
/// Method: a few seeds of the swarm; the continuous run takes hundreds.
#[test]
fn a_few_seeds() {
    let mut totals = Totals::default();
    for seed in 0..14 {
        let plan = Plan { seed, small: None, cuts: Cuts::OneIn(60) };
        totals.add(&run(&plan).unwrap_or_else(|failure| panic!("{failure}")));
    }
    println!("{totals:?}");
    assert!(totals.cuts > 200 && totals.counts.operations > 10_000, "{totals:?}");
}

/// Goal:   the same seed does the same, whatever cuts are tried beside it.
/// Method: trace hashes of one seed under different plans.
#[test]
fn seeds_are_deterministic() {
    for seed in 0..6 {
        let hash = |cuts| run(&Plan { seed, small: None, cuts }).map(|totals| (totals.trace_hash, totals.mutations));
        assert_eq!(hash(Cuts::OneIn(500)), hash(Cuts::OneIn(500)));
        assert_eq!(hash(Cuts::OneIn(500)), hash(Cuts::Only(100)));
    }
}
