//! Experiments: the same figures for the same seed, and figures that the board's numbers explain.

use kaml_sim::{Ask, Board, Experiment, Load, Order, Rig, Settings};

/// A few blocks of the paper's board without spread, so times are sums.
fn exact() -> Board {
    let mut board = Board::preset("kaml-2017").unwrap();
    board.geometry.blocks_per_die = 16;
    board.geometry.pages_per_block = 32;
    board.flash.spread_percent = 0;
    board
}

fn load(space: u32, ask: Ask, hosts: usize, commands: u64) -> Load {
    Load {
        space,
        ask,
        bytes: 1000,
        batch: 1,
        records: 0..2000,
        order: Order::Turn,
        hosts,
        warm_up: 0,
        commands: Some(commands),
    }
}

/// Goal:   a Get from idle flash takes what host, link, core, die and channel take; a Put waits for no flash at all.
/// Method: one host on a board without spread; the sum of the parts by hand.
#[test]
fn latencies_are_sums() {
    let board = exact();
    let mut rig = Rig::new(&board, 1).unwrap();
    let space = rig.create_records("records", Vec::new()).unwrap();
    rig.rest().unwrap();
    let put = rig.run(&[load(space, Ask::Put, 1, 2000)]).unwrap().pop().unwrap();
    rig.settle().unwrap();
    let get = rig.run(&[load(space, Ask::Get, 1, 100)]).unwrap().pop().unwrap();

    let (link, cores, flash) = (&board.link, &board.controller, &board.flash);
    let cycles = |cycles: u64| cycles * 1000 / cores.core_mhz;
    let around = link.host_ns + 4 * link.one_way_ns;
    let read_bytes = 9 * 128; // a header of 40 bytes and the value, in chunks
    let expected = around
        + cycles(cores.command_cycles + cores.probe_cycles)
        + cycles(cores.operation_cycles)
        + flash.read_ns[0]
        + flash.channel_command_ns
        + read_bytes * 1000 / flash.channel_bytes_per_us
        + 1000 * 1000 / link.bytes_per_us;
    let near = |found: u64, expected: u64| found.abs_diff(expected) <= expected / 1000 + 2;
    assert!(near(get.latency.min(), expected), "{} is not {expected}", get.latency.min());

    let frame_bytes = 1536; // the record and its frame's header, in sectors
    let expected = around
        + cycles(cores.command_cycles)
        + 2 * link.one_way_ns
        + 1000 * 1000 / link.bytes_per_us
        + cycles(cores.probe_cycles + cores.record_cycles + cores.operation_cycles)
        + frame_bytes * 1000 / flash.buffer_bytes_per_us
        + flash.buffer_write_ns;
    assert!(near(put.latency.min(), expected), "{} is not {expected}", put.latency.min());
}

/// Goal:   hosts together get no more than dies can program, and nearly that.
/// Method: many hosts, more data than buffers take, on all dies and on one.
#[test]
fn dies_bound_bandwidth() {
    let mut board = exact();
    // More than is written: a log without erased blocks would continue to other dies.
    (board.geometry.blocks_per_die, board.geometry.pages_per_block) = (40, 256);
    let pages_per_s = 1e9 * f64::from(board.flash.planes) * 2.0 / board.flash.program_ns.iter().sum::<u64>() as f64;
    let one_die = pages_per_s * 64.0 / 9.0 * 1000.0 / 1e6;
    let mut rig = Rig::new(&board, 1).unwrap();
    let space = rig.create_records("records", vec![5]).unwrap();
    rig.rest().unwrap();
    let puts = Load { order: Order::Even, warm_up: 40_000, ..load(space, Ask::Put, 32, 10_000) };
    let found = rig.run(&[puts]).unwrap().pop().unwrap().megabytes_per_s();
    assert!(found < one_die && found > 0.7 * one_die, "{found} MB/s, a die programs {one_die}");
}

/// Goal:   what blocks and records hold comes back through every kind of command; the rig itself compares the bytes.
/// Method: blocks of less than a unit written, then read; records put in batches, then got; both at once.
#[test]
fn all_commands_work() {
    let mut rig = Rig::new(&exact(), 1).unwrap();
    let records = rig.create_records("records", Vec::new()).unwrap();
    let blocks = rig.create_blocks("blocks", 2 << 20).unwrap();
    let puts = Load { batch: 4, ..load(records, Ask::Put, 3, 500) };
    let writes = Load { bytes: 1024, ..load(blocks, Ask::Write, 3, 2000) };
    rig.run(&[puts, writes.clone()]).unwrap();
    let random = Load { order: Order::Even, ..writes };
    let gets = Load { order: Order::Hot(90), ..load(records, Ask::Get, 5, 1000) };
    rig.run(&[random.clone(), gets]).unwrap();
    let reads = rig.run(&[Load { ask: Ask::Read, ..random }]).unwrap().pop().unwrap();
    assert_eq!((reads.commands, reads.bytes), (2000, 2000 * 1024));
}

/// Goal:   the same board and seed give the same bytes, and another seed does not.
/// Method: the one with the most different things in it, twice.
#[test]
fn figures_repeat() {
    let run = |experiment: Experiment, seed| {
        let settings =
            Settings { board: Board::preset("kaml-2017").unwrap(), seed, quick: true, keys: 0, preconditioned: 0 };
        let outcome = experiment.run(&settings, &mut |_, _, _| {}).unwrap();
        (outcome.csv(), outcome.svg())
    };
    let first = run(Experiment::Logs, 1);
    assert!(first == run(Experiment::Logs, 1));
    assert!(first != run(Experiment::Logs, 2));
}

/// Goal:   what the paper's index and ours cost is counted, every value found is the right one, and figures repeat.
/// Method: the smallest run of Figure 9, twice; it compares all values itself. Ours reads a page for a key and hardly any
///         for none, at any size.
#[test]
fn versions_are_counted() {
    let run = || {
        let settings =
            Settings { board: Board::preset("kaml-2017").unwrap(), seed: 1, quick: true, keys: 0, preconditioned: 0 };
        Experiment::MuninnFig9.run(&settings, &mut |_, _, _| {}).unwrap()
    };
    let outcome = run();
    assert_eq!(outcome.csv(), run().csv());
    let met = |what: &str| outcome.claims.iter().any(|claim| claim.what.starts_with(what) && claim.met);
    for what in ["columns: page reads, average", "columns: page reads, oldest", "columns: page reads, absent"] {
        assert!(met(what), "{:?}", outcome.claims);
    }
    assert!(met("columns: history of 64"), "{:?}", outcome.claims);
}
