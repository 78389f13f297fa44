//! Why the model misses a claim of a paper, computed from the board, and the parameter of the board that would meet it.
//!
//! Lives here:       the sums of docs/experiments.md.
//! Lives elsewhere:  what each part takes (`controller`, `timing`), the claims (`micro`, `logs`).

use crate::board::Board;

/// Bytes of a ring frame of one write of a unit, and of one record of each size below it, in sectors.
const UNIT_FRAME: f64 = 4608.0;
const SMALL: [(f64, f64); 3] = [(512.0, 1024.0), (1024.0, 1536.0), (2048.0, 2560.0)];

/// What a Put of a host alone takes without the bytes of its frame, in nanoseconds.
fn put_ns(board: &Board, value_bytes: f64) -> f64 {
    let (link, cores) = (&board.link, &board.controller);
    let cycles = cores.command_cycles + cores.probe_cycles + cores.record_cycles + cores.operation_cycles;
    let core_ns = cycles as f64 * 1e3 / cores.core_mhz as f64;
    let link_ns = (link.host_ns + 6 * link.one_way_ns) as f64 + value_bytes * 1e3 / link.bytes_per_us as f64;
    link_ns + core_ns + board.flash.buffer_write_ns as f64
}

/// The bandwidth of the buffer in bytes a microsecond with which a Put of every small size takes `ratio` of a write.
pub(super) fn buffer_for_small_insert(board: &Board, ratio: f64) -> f64 {
    let needed =
        |(value, frame): (f64, f64)| (ratio * UNIT_FRAME - frame) * 1e3 / ((1.0 - ratio) * put_ns(board, value));
    SMALL.map(needed).into_iter().fold(f64::MAX, f64::min)
}

/// Figure 6: a Put of a small record against a write to a unit that has nothing yet.
pub(super) fn small_insert(board: &Board, ratio: f64) -> String {
    let buffer = board.flash.buffer_bytes_per_us as f64;
    let ours = SMALL.map(|(value, frame)| {
        let put = put_ns(board, value);
        format!("{:.2}", (put + frame * 1e3 / buffer) / (put + UNIT_FRAME * 1e3 / buffer))
    });
    let more = SMALL.map(|(value, frame)| {
        let put = put_ns(board, value);
        ((put + frame * 1e3 / buffer) / ratio - put - UNIT_FRAME * 1e3 / buffer) / 1e3
    });
    let (least, most) = more.into_iter().fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)));
    format!(
        "A host alone waits for nobody, and a write to a unit without content reads no flash. So the two differ only in the bytes of \
         their ring frame ({} of {UNIT_FRAME} for 512 B), and the board gives {}. The ratio is {ratio} if a write takes {least:.1} to \
         {most:.1} µs more, or with `buffer_bytes_per_us = {:.0}` in `[flash]`.",
        SMALL[0].1,
        ours.join(", "),
        buffer_for_small_insert(board, ratio).floor(),
    )
}

/// Figures 5 and 6: why a Get of a small record is faster than a read, where the paper has them equal.
pub(super) fn small_gets(board: &Board) -> String {
    let chunk = f64::from(board.geometry.chunk_bytes);
    let channel_us = |bytes: f64| (bytes / chunk).ceil() * chunk / board.flash.channel_bytes_per_us as f64;
    let header = 40.0; // of a record whose key is a number
    format!(
        "Gets of small records are faster here than in the paper. One checksum covers a unit, so a read fetches all of it: {:.0} µs on \
         the channel. A Get of {:.0} B fetches the chunks of its record: {:.0} µs. And half of the units cross into another page, which takes \
         another {} µs where its plane has another place. The two would be equal on flash that moves whole code words of a unit, which a \
         board's file cannot express.",
        channel_us(4096.0 + header),
        SMALL[0].0,
        channel_us(SMALL[0].0 + header),
        board.flash.read_ns[0] / 1000,
    )
}

/// The cycles of a command with which Puts of four records reach `gain` times the records a second of Puts of one, from
/// the records a second of Puts of four on this board at each value size.
///
/// Hosts in a closed loop wait for their own commands, so a Put of four takes the additional time too. With `n` hosts that
/// have a latency of `l` for a Put of four, and `c` cores that take `s` for a command, a command of `t` gives at most `c/t` Puts of
/// one and at least `n/(l+t-s)` Puts of four a second.
pub(super) fn command_cycles_for_batches(board: &Board, (hosts, per_s): (usize, &[f64]), gain: f64) -> f64 {
    const BATCH: f64 = 4.0;
    let cores = &board.controller;
    let slowest = per_s.iter().copied().fold(f64::MAX, f64::min);
    let (hosts, per_us) = (hosts as f64, cores.core_mhz as f64);
    let (latency, command) = (hosts * BATCH * 1e6 / slowest, cores.command_cycles as f64 / per_us);
    let bound = gain * cores.command_cores as f64;
    bound * (latency - command).max(0.0) / (BATCH * hosts - bound).max(1.0) * per_us
}

/// Figure 7: what four records of a Put gain.
pub(super) fn batches(board: &Board, (hosts, per_s): (usize, &[f64]), gain: f64) -> String {
    let cores = &board.controller;
    let commands = cores.command_cores as f64 * cores.core_mhz as f64 * 1e6 / cores.command_cycles as f64;
    let record = (cores.probe_cycles + cores.record_cycles) as f64;
    let most = (record + cores.operation_cycles as f64) / record;
    format!(
        "A batch saves commands and ring writes. Commands are not the limit here: {} cores take {:.0} thousand a second. Of the core that \
         has the firmware's state a record takes {record:.0} cycles and a ring write {}, so batches gain {most:.2} at most there. Larger \
         records are limited by the ring and the dies, whatever the batch. The gain is {gain:.2} for all sizes if commands are the limit of \
         {hosts} hosts with one record a Put: with `command_cycles = {:.0}` in `[controller]`.",
        cores.command_cores,
        commands / 1e3,
        cores.operation_cycles,
        command_cycles_for_batches(board, (hosts, per_s), gain).ceil(),
    )
}

/// Figure 8: what more logs gain.
pub(super) fn logs(board: &Board, few: u32, many: u32) -> String {
    const BUFFERS_OF_LOG: u64 = 3;
    const BUFFER_BYTES: u64 = 256 << 10;
    let spoken = |logs: u32| (u64::from(logs) * BUFFERS_OF_LOG * BUFFER_BYTES + board.geometry.ring_bytes / 8) >> 20;
    let ring = board.geometry.ring_bytes >> 20;
    format!(
        "Chips bound the gain to {:.1}, so {} needs another cause, which the paper does not name. Below that the ring is the limit: {many} logs \
         have {} of its {ring} MiB in buffers that fill or are programmed, or wait for a root; {few} logs have {}. With `ring_bytes = {}` in \
         `[geometry]`, 8 MiB a log, hosts wait less for roots.",
        f64::from(many) / f64::from(few),
        super::paper::LOGS.says,
        spoken(many),
        spoken(few),
        u64::from(many) * (8 << 20),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Experiment, Settings};

    fn settings(board: Board) -> Settings {
        Settings { board, seed: 1, quick: true, keys: 0, preconditioned: 0 }
    }

    fn claim(experiment: Experiment, board: Board, what: &str) -> crate::Claim {
        let outcome = experiment.run(&settings(board), &mut |_, _, _| {}).unwrap();
        outcome.claims.into_iter().find(|claim| claim.what.starts_with(what)).unwrap()
    }

    /// Goal:   the parameter that a reason names meets the claim.
    /// Method: the latency of inserts on the paper's board, which misses, and on one with the named buffer.
    #[test]
    fn the_named_buffer_meets_the_claim() {
        let mut board = Board::preset("kaml-2017").unwrap();
        let what = "Insert / write latency below";
        assert!(!claim(Experiment::Fig6, board.clone(), what).met);
        board.flash.buffer_bytes_per_us = buffer_for_small_insert(&board, 0.75) as u64;
        let met = claim(Experiment::Fig6, board, what);
        assert!(met.met, "{met:?}");
    }

    /// Goal:   the cost of a command that a reason names meets the claim.
    /// Method: the time to fill on the paper's board, which misses, and on one with the named cycles.
    #[test]
    fn the_named_cycles_meet_the_claim() {
        let mut board = Board::preset("kaml-2017").unwrap();
        let missed = claim(Experiment::Fig7, board.clone(), "time to fill");
        assert!(!missed.met);
        let reason = missed.reason.unwrap();
        let cycles = reason.split("command_cycles = ").nth(1).and_then(|rest| rest.split('`').next()).unwrap();
        board.controller.command_cycles = cycles.parse().unwrap();
        let met = claim(Experiment::Fig7, board, "time to fill");
        assert!(met.met, "{met:?}");
    }
}
