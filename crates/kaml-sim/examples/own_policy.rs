//! A policy of garbage collection of your own: written here, named, and compared with the firmware's on a modelled device.
//!
//! `cargo run --release -p kaml-sim --example own_policy`

use kaml_sim::{Board, CollectionCandidate, CollectionRule, Policies, WorkloadFile};

/// Cost and benefit as in the log-structured file system (Rosenblum and Ousterhout 1991): free space times age, over the cost of
/// reading a block and writing its live part again.
#[derive(Debug)]
struct CostBenefit;

impl CollectionRule for CostBenefit {
    fn worth(&self, block: &CollectionCandidate) -> f64 {
        (1.0 - block.live) * block.age as f64 / (1.0 + block.live)
    }
}

const WORKLOAD: &str = r#"
    [[namespace]]
    name = "records"
    records = 20000
    value_bytes = 4096

    [[load]]
    namespace = "records"
    hosts = 8
    mix = { put = 1 }
    keys = { hot = 90 }
    warm_up = 30000
    commands = 30000
"#;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Two dies, which the records fill by two thirds, so collection has something to do.
    let mut board = Board::preset("kaml-2017").ok_or("a preset is missing")?;
    (board.geometry.channel_count, board.geometry.dies_per_channel) = (2, 1);
    (board.geometry.blocks_per_die, board.geometry.pages_per_block) = (128, 64);
    (board.geometry.packing, board.geometry.ring_bytes) = (kaml_flash::Packing::Across, 8 << 20);

    let policies = Policies::new().with("cost-benefit", || Box::new(CostBenefit));
    for name in ["balanced", "greedy", "cost-benefit"] {
        let mut workload = WorkloadFile::parse(WORKLOAD)?;
        workload.policy = Some(name.to_owned());
        let report = workload.run(&board, 1, &policies, &mut |_, _| {})?;
        println!("{name:12} write amplification {:.3}, {} erases", report.write_amplification, report.erases);
    }
    Ok(())
}
