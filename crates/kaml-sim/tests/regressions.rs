//! What the simulator found once, by the seed that found it. A seed means something else when the drawing of scenarios
//! changes; the small workloads are tried at every cut in any case.

use kaml_sim::{Cuts, Plan, Small, run};

fn passes(seed: u64, small: Option<Small>, cut: u64) {
    run(&Plan { seed, small, cuts: Cuts::Only(cut) }).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Goal:   an index that was taken out of memory can be loaded again at any time.
/// Method: the seed that unloaded one whose snapshot was still in write buffers.
#[test]
fn unloaded_indexes_are_on_the_medium() {
    passes(0, Some(Small::Checkpoint), 130);
}

/// Goal:   blocks that ring frames name become free in the end.
/// Method: the seed whose Puts waited for ever behind roots that freed nothing.
#[test]
fn blocks_named_by_ring_frames_become_free() {
    passes(0, Some(Small::Direct), 154);
}

/// Goal:   large values of failed blocks find a place, and lost metadata is replaced, with few blocks left.
/// Method: the seed that stopped, and then waited for ever.
#[test]
fn failed_blocks_with_few_left() {
    passes(5, None, 2201);
}

/// Goal:   a record whose program fails while the device is being opened is not lost.
/// Method: the seed that lost one, the cut that showed it.
#[test]
fn programs_that_fail_while_opening() {
    passes(34, None, 523);
    passes(9, None, 1769);
}

/// Goal:   a block that failed stays out of use over an opening, and failed blocks do not wait for what waits for them.
/// Method: the seed that did both.
#[test]
fn failed_blocks_are_remembered() {
    passes(43, None, 0);
}
