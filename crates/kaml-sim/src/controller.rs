//! What lies between a host and the flash: the link and the controller's cores.
//!
//! Lives here:       their numbers, and when each of them is free again.
//! Lives elsewhere:  flash and the battery-backed buffer (`timing`), the order of commands (`rig`).
//! Implements:       paper:KAML V.A (four lanes of PCIe Gen 3, embedded cores of 500 MHz).
//!
//! The firmware's state has one writer, so one core carries it: it places records, swings index entries and starts
//! operations. The others take commands, look keys up and complete them.

use crate::board::{BYTES_PER_US_MAX, BoardError, NS_MAX, in_range};
use serde::Deserialize;

/// What the way between host and device takes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkTiming {
    /// Payload in each direction.
    pub bytes_per_us: u64,
    /// A message from one end to the other.
    pub one_way_ns: u64,
    /// Driver and library of a command, on the host; half before it and half after it.
    pub host_ns: u64,
}

/// What the controller's cores take, in their cycles.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerTiming {
    /// Clock of all cores.
    pub core_mhz: u64,
    /// Cores that take commands and complete them, next to the one that has the firmware's state.
    pub command_cores: usize,
    /// Taking a command and completing it.
    pub command_cycles: u64,
    /// Looking a key up.
    pub probe_cycles: u64,
    /// Placing a record and swinging its index entry, also when collection moves it.
    pub record_cycles: u64,
    /// Starting an operation on flash or buffer and hearing of its end.
    pub operation_cycles: u64,
}

/// More than anything takes of a core.
const CYCLES_MAX: u64 = 1_000_000_000;

impl LinkTiming {
    /// Names what no link has.
    pub(crate) fn check(&self) -> Result<(), BoardError> {
        in_range("bytes_per_us", self.bytes_per_us, 1..=BYTES_PER_US_MAX)?;
        in_range("one_way_ns", self.one_way_ns, 0..=NS_MAX)?;
        in_range("host_ns", self.host_ns, 0..=NS_MAX)
    }

    fn transfer(&self, bytes: u64) -> u64 {
        bytes * 1000 / self.bytes_per_us
    }
}

impl ControllerTiming {
    /// Names what no controller has.
    pub(crate) fn check(&self) -> Result<(), BoardError> {
        in_range("core_mhz", self.core_mhz, 1..=100_000)?;
        in_range("command_cores", self.command_cores as u64, 1..=1024)?;
        let cycles = [
            ("command_cycles", self.command_cycles),
            ("probe_cycles", self.probe_cycles),
            ("record_cycles", self.record_cycles),
            ("operation_cycles", self.operation_cycles),
        ];
        cycles.into_iter().try_for_each(|(name, cycles)| in_range(name, cycles, 0..=CYCLES_MAX))
    }

    fn ns(&self, cycles: u64) -> u64 {
        cycles * 1000 / self.core_mhz
    }
}

/// Link and cores at work. Whatever comes first is served first.
pub(crate) struct Controller {
    link: LinkTiming,
    cores: ControllerTiming,
    /// From the host, to the host.
    link_free_ns: [u64; 2],
    commands_free_ns: Vec<u64>,
    writer_free_ns: u64,
}

impl Controller {
    pub(crate) fn new(link: LinkTiming, cores: ControllerTiming) -> Controller {
        let commands_free_ns = vec![0; cores.command_cores];
        Controller { link, cores, link_free_ns: [0; 2], commands_free_ns, writer_free_ns: 0 }
    }

    /// A host asks; returns when a core has taken the command, looked up `probes` keys and fetched `bytes` of data. The
    /// doorbell, the request for the command and the command cross the link; so do a request for data and the data.
    pub(crate) fn take(&mut self, now: u64, bytes: u64, probes: u64) -> u64 {
        let arrived = now + self.link.host_ns / 2 + 3 * self.link.one_way_ns;
        let cycles = self.cores.command_cycles + probes * self.cores.probe_cycles;
        let core = self.commands_free_ns.iter_mut().min().expect("at least one core");
        *core = arrived.max(*core) + self.cores.ns(cycles);
        let taken = *core;
        if bytes == 0 { taken } else { self.cross(0, taken + self.link.one_way_ns, bytes) }
    }

    /// A completion is sent to a host, which has it then.
    pub(crate) fn answer(&mut self, now: u64, bytes: u64) -> u64 {
        self.cross(1, now, bytes) + self.link.host_ns.div_ceil(2)
    }

    fn cross(&mut self, direction: usize, now: u64, bytes: u64) -> u64 {
        let free = &mut self.link_free_ns[direction];
        *free = now.max(*free) + self.link.transfer(bytes);
        *free + self.link.one_way_ns
    }

    /// The writer looks `records` keys up and places their records; returns when it has.
    pub(crate) fn write(&mut self, now: u64, records: u64) -> u64 {
        self.occupy(now, records * (self.cores.probe_cycles + self.cores.record_cycles))
    }

    /// The writer moves `records` for collection.
    pub(crate) fn relocate(&mut self, now: u64, records: u64) {
        self.occupy(now, records * (self.cores.probe_cycles + self.cores.record_cycles));
    }

    /// The writer starts an operation; returns when it has.
    pub(crate) fn operate(&mut self, now: u64) -> u64 {
        self.occupy(now, self.cores.operation_cycles)
    }

    /// A core other than the writer's starts an operation; returns when it has.
    pub(crate) fn read(&mut self, now: u64) -> u64 {
        let core = self.commands_free_ns.iter_mut().min().expect("at least one core");
        *core = now.max(*core) + self.cores.ns(self.cores.operation_cycles);
        *core
    }

    fn occupy(&mut self, now: u64, cycles: u64) -> u64 {
        self.writer_free_ns = now.max(self.writer_free_ns) + self.cores.ns(cycles);
        self.writer_free_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller() -> Controller {
        let link = LinkTiming { bytes_per_us: 4000, one_way_ns: 100, host_ns: 1000 };
        let cores = ControllerTiming {
            core_mhz: 500,
            command_cores: 2,
            command_cycles: 1000,
            probe_cycles: 100,
            record_cycles: 200,
            operation_cycles: 50,
        };
        Controller::new(link, cores)
    }

    /// Goal:   a command alone takes the sum of its parts.
    /// Method: one that fetches 4000 bytes, its record, its operation, an answer without data and one with.
    #[test]
    fn a_command_takes_its_parts() {
        let mut idle = controller();
        let taken = idle.take(0, 4000, 1);
        assert_eq!(taken, 500 + 300 + 2200 + 100 + 1000 + 100);
        assert_eq!(idle.write(taken, 2), taken + 2 * 600);
        assert_eq!(idle.operate(taken), taken + 2 * 600 + 100);
        assert_eq!(idle.answer(10_000, 0), 10_000 + 100 + 500);
        assert_eq!(idle.answer(20_000, 8000), 20_000 + 2000 + 100 + 500);
    }

    /// Goal:   two cores take two commands at once and a third waits; data crosses one after the other.
    /// Method: three commands at one moment.
    #[test]
    fn cores_and_link_are_shared() {
        let mut busy = controller();
        let taken = [0; 3].map(|bytes| busy.take(0, bytes, 0));
        assert_eq!(taken, [2800, 2800, 4800]);
        let mut busy = controller();
        let fetched = [4000; 2].map(|bytes| busy.take(0, bytes, 0));
        assert_eq!(fetched, [4000, 5000]);
    }
}
