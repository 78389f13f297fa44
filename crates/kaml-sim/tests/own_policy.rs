//! A policy of collection from another crate.

use kaml_sim::{Board, CollectionCandidate, CollectionRule, Policies, WorkloadFile};

#[path = "../examples/own_policy.rs"]
mod example;

/// Goal:   a policy of one's own needs less than 60 lines.
/// Method: the example, counted and run; it compares the policy with two of the firmware's.
#[test]
fn the_example_is_short_and_runs() {
    assert!(include_str!("../examples/own_policy.rs").lines().count() < 60);
    example::main().unwrap();
}

/// Collects the block with the least garbage.
#[derive(Debug)]
struct Worst;

impl CollectionRule for Worst {
    fn worth(&self, block: &CollectionCandidate) -> f64 {
        block.live
    }
}

/// Goal:   a policy from another crate decides, by its name, and hides the firmware's of the same name.
/// Method: the worst policy there is: it must write much more than greedy does, also when it is named so.
#[test]
fn an_own_policy_decides() {
    let mut board = Board::preset("kaml-2017").unwrap();
    (board.geometry.channel_count, board.geometry.dies_per_channel) = (2, 1);
    (board.geometry.blocks_per_die, board.geometry.pages_per_block) = (64, 32);
    (board.geometry.packing, board.geometry.ring_bytes) = (kaml_flash::Packing::Across, 4 << 20);
    let text = "policy = \"greedy\"\n[[namespace]]\nname = \"a\"\nrecords = 3500\nvalue_bytes = 4096\n\
                [[load]]\nnamespace = \"a\"\nhosts = 8\nmix = { put = 1 }\nwarm_up = 6000\ncommands = 6000\n";
    let run = |policies: &Policies| {
        let report = WorkloadFile::parse(text).unwrap().run(&board, 1, policies, &mut |_, _| {}).unwrap();
        report.write_amplification
    };
    let greedy = run(&Policies::new());
    let worst = run(&Policies::new().with("greedy", || Box::new(Worst)));
    assert!(worst > 1.2 * greedy, "{worst} is not much more than {greedy}");
}
