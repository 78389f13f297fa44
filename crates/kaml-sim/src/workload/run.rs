//! Executing a workload on a modelled device.
//!
//! Lives here:       which host does what next, and when it was done.
//! Lives elsewhere:  the file (`super`), commands of a device (`rig`).
//!
//! A record that is being changed is used by no other command, so what a Get must find is known, and is compared.

use super::{CommandMix, HostLoad, Keys, LoadReport, Policies, Weight, WorkloadError, WorkloadFile, WorkloadReport};
use crate::board::Board;
use crate::load::{Ask, Sheet};
use crate::rig::{Class, Command, Record, Rig, RigError};
use crate::rng::{Rng, mix};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Hosts that fill a device.
const FILLING: usize = 32;
const COMMANDS: [&str; 3] = ["get", "put", "insert"];
const GET: usize = 0;
const INSERT: usize = 2;
/// Tries to find a record that nobody uses; then the ones after it are tried in turn.
const TRIES: u32 = 16;

/// A namespace while it is used.
struct Space {
    sizes: Vec<Weight>,
    weights: u64,
    /// The class of Puts of the first size; those of the other sizes follow, and then those of Gets.
    first_class: usize,
    /// By record: its size, by number.
    size_of: Vec<u16>,
    /// Records that are being changed, and how many Gets of others are in progress.
    changing: BTreeSet<u64>,
    reading: BTreeMap<u64, u32>,
    /// Sums of weights by rank, if a load needs them.
    zipf: Vec<f64>,
}

impl Space {
    fn size(&self, rng: &mut Rng) -> u16 {
        let mut at = rng.below(self.weights);
        let mut number = 0;
        while at >= u64::from(self.sizes[number].weight) {
            at -= u64::from(self.sizes[number].weight);
            number += 1;
        }
        number as u16
    }

    fn rank(&self, rng: &mut Rng) -> u64 {
        let unit = (rng.draw() >> 11) as f64 / (1u64 << 53) as f64;
        let at = unit * self.zipf.last().copied().unwrap_or(0.0);
        self.zipf.partition_point(|sum| *sum <= at) as u64
    }

    fn pick(&self, keys: Keys, rng: &mut Rng) -> u64 {
        let count = self.size_of.len() as u64;
        match keys {
            Keys::Even => rng.below(count),
            Keys::Zipf => mix(self.rank(rng)) % count,
            Keys::Latest => count - 1 - self.rank(rng).min(count - 1),
            Keys::Hot(percent) if rng.below(100) < u64::from(percent) => rng.below((count / 100).max(1)),
            Keys::Hot(_) => rng.below(count),
        }
    }

    /// A record that nobody changes, and if it is to be changed, that nobody reads.
    fn pick_free(&self, keys: Keys, (changes, taken): (bool, &[u64]), rng: &mut Rng) -> u64 {
        let is_read = |number: &u64| changes && self.reading.contains_key(number);
        let free = |number: &u64| !self.changing.contains(number) && !is_read(number) && !taken.contains(number);
        let tried = (0..TRIES).map(|_| self.pick(keys, rng)).find(free);
        let count = self.size_of.len() as u64;
        tried.unwrap_or_else(|| {
            let first = rng.below(count);
            (0..count).map(|i| (first + i) % count).find(free).expect("there are more records than hosts use")
        })
    }
}

/// A host and its command.
#[derive(Clone, Default)]
struct Host {
    load: usize,
    is_clock: bool,
    command: usize,
    /// Records and their sizes.
    records: Vec<(u64, u16)>,
    began: u64,
}

/// A load while it runs.
struct Running<'a> {
    load: &'a HostLoad,
    space: usize,
    issued: u64,
    completed: u64,
    sheets: Vec<Sheet>,
    /// Of an open loop: hosts without a command, and arrivals without a host.
    idle: Vec<usize>,
    waiting: VecDeque<u64>,
}

impl Running<'_> {
    fn total(&self) -> u64 {
        self.load.warm_up + self.load.commands
    }
}

impl CommandMix {
    fn draw(&self, rng: &mut Rng) -> usize {
        let weights = self.weights();
        let mut at = rng.below(weights.iter().map(|weight| u64::from(*weight)).sum());
        let mut command = 0;
        while at >= u64::from(weights[command]) {
            at -= u64::from(weights[command]);
            command += 1;
        }
        command
    }
}

impl WorkloadFile {
    /// Executes it on a fresh device. `progress` receives commands done and all.
    ///
    /// # Errors
    /// [`WorkloadError::Policy`] for a policy that nobody made, [`WorkloadError::Rig`] if the device refuses something, a full device for example.
    pub fn run(
        &self,
        board: &Board,
        seed: u64,
        policies: &Policies,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<WorkloadReport, WorkloadError> {
        let mut rig = Rig::new(board, seed)?;
        if let Some(name) = &self.policy {
            policies.choose(name, &mut rig)?;
        }
        let mut classes: Vec<Class> = Vec::new();
        let mut spaces = Vec::new();
        for space in &self.namespaces {
            let id = rig.create_records(&space.name, space.logs.clone())?;
            let sizes = space.value_bytes.all();
            let first_class = classes.len();
            classes.extend(sizes.iter().map(|size| (id, Ask::Put, size.bytes)));
            classes.extend(sizes.iter().map(|size| (id, Ask::Get, size.bytes)));
            let uses = |load: &HostLoad| load.namespace == space.name && matches!(load.keys, Keys::Zipf | Keys::Latest);
            let mut sum = 0.0;
            let weight = |rank: u64| {
                sum += 1.0 / (rank + 1) as f64;
                sum
            };
            let ranks = if self.loads.iter().any(uses) { space.records } else { 0 };
            let zipf = (0..ranks).map(weight).collect();
            let weights = sizes.iter().map(|size| u64::from(size.weight)).sum();
            spaces.push(Space {
                sizes,
                weights,
                first_class,
                size_of: Vec::new(),
                changing: BTreeSet::new(),
                reading: BTreeMap::new(),
                zipf,
            });
        }
        rig.rest()?;
        let mut hosts = Vec::new();
        let mut loads = Vec::new();
        for (at, load) in self.loads.iter().enumerate() {
            let space = self.namespaces.iter().position(|space| space.name == load.namespace).expect("checked");
            let first = hosts.len();
            hosts.resize(first + load.hosts, Host { load: at, ..Host::default() });
            let idle = if load.per_s.is_some() { (first..hosts.len()).rev().collect() } else { Vec::new() };
            if load.per_s.is_some() {
                hosts.push(Host { load: at, is_clock: true, ..Host::default() });
            }
            let sheets = COMMANDS.iter().map(|_| Sheet::new()).collect();
            loads.push(Running { load, space, issued: 0, completed: 0, sheets, idle, waiting: VecDeque::new() });
        }
        rig.begin_program(&classes, hosts.len().max(FILLING));
        let mut run = Run { rig, spaces, hosts, loads, rng: Rng::new(seed) };
        run.fill(&self.namespaces)?;
        let before = run.rig.stats();
        run.measure(progress)?;
        let after = run.rig.stats();
        let fingerprint = format!("{:016x}", run.rig.trace_hash());
        let put = (after.record_bytes - before.record_bytes).max(1) as f64;
        Ok(WorkloadReport {
            loads: run.loads.iter().flat_map(Running::report).collect(),
            write_amplification: (after.page_bytes - before.page_bytes) as f64 / put,
            erases: after.erase_count - before.erase_count,
            fingerprint,
        })
    }
}

impl Running<'_> {
    fn report(&self) -> Vec<LoadReport> {
        let used = COMMANDS.into_iter().zip(&self.sheets).filter(|(_, sheet)| sheet.commands > 0);
        let report = |(command, sheet): (&'static str, &Sheet)| LoadReport {
            namespace: self.load.namespace.clone(),
            command,
            commands: sheet.commands,
            per_s: sheet.commands_per_s(),
            megabytes_per_s: sheet.megabytes_per_s(),
            mean_us: sheet.mean_us(),
            p50_us: sheet.quantile_us(0.5),
            p99_us: sheet.quantile_us(0.99),
            p999_us: sheet.quantile_us(0.999),
        };
        used.map(report).collect()
    }
}

struct Run<'a> {
    rig: Rig,
    spaces: Vec<Space>,
    hosts: Vec<Host>,
    loads: Vec<Running<'a>>,
    rng: Rng,
}

impl Run<'_> {
    /// Stores the records that namespaces have before.
    fn fill(&mut self, namespaces: &[super::Space]) -> Result<(), RigError> {
        for (at, namespace) in namespaces.iter().enumerate() {
            let (mut next, mut in_flight) = (0, 0);
            let mut free: Vec<usize> = (0..FILLING).collect();
            while next < namespace.records || in_flight > 0 {
                if next < namespace.records
                    && let Some(host) = free.pop()
                {
                    let space = &mut self.spaces[at];
                    let size = space.size(&mut self.rng);
                    space.size_of.push(size);
                    let record = Record { class: space.first_class + usize::from(size), number: next };
                    self.rig.submit(vec![(host, Command::Put(vec![record]))])?;
                    (next, in_flight) = (next + 1, in_flight + 1);
                    continue;
                }
                free.push(self.rig.next_done()?);
                in_flight -= 1;
            }
        }
        self.rig.settle()
    }

    fn measure(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), RigError> {
        const REPORT: u64 = 1 << 12;
        let all: u64 = self.loads.iter().map(Running::total).sum();
        let mut done = 0;
        for host in 0..self.hosts.len() {
            if self.hosts[host].is_clock {
                self.pause(host)?;
            } else if self.loads[self.hosts[host].load].load.per_s.is_none() {
                self.start(host, self.rig.now_ns())?;
            }
        }
        while done < all {
            let host = self.rig.next_done()?;
            if self.hosts[host].is_clock {
                self.arrive(host)?;
                continue;
            }
            self.complete(host);
            done += 1;
            if done.is_multiple_of(REPORT) {
                progress(done, all);
            }
            let load = &mut self.loads[self.hosts[host].load];
            match (load.load.per_s, load.waiting.pop_front()) {
                (None, _) => self.start(host, self.rig.now_ns())?,
                (Some(_), Some(arrived)) => self.start(host, arrived)?,
                (Some(_), None) => load.idle.push(host),
            }
        }
        Ok(())
    }

    /// The clock of an open loop waits for the next arrival: evenly from none to twice the mean.
    fn pause(&mut self, host: usize) -> Result<(), RigError> {
        let mean_ns = 1e9 / self.loads[self.hosts[host].load].load.per_s.expect("only open loops have a clock");
        let ns = self.rng.below((2.0 * mean_ns) as u64 + 1);
        self.rig.submit(vec![(host, Command::Pause(ns))])
    }

    fn arrive(&mut self, clock: usize) -> Result<(), RigError> {
        let now = self.rig.now_ns();
        let load = &mut self.loads[self.hosts[clock].load];
        match load.idle.pop() {
            Some(host) => self.start(host, now)?,
            None => load.waiting.push_back(now),
        }
        let load = &self.loads[self.hosts[clock].load];
        if load.issued + (load.waiting.len() as u64) < load.total() { self.pause(clock) } else { Ok(()) }
    }

    /// A host does the next thing, if its load has one.
    fn start(&mut self, host: usize, began: u64) -> Result<(), RigError> {
        let running = &mut self.loads[self.hosts[host].load];
        if running.issued == running.total() {
            return Ok(());
        }
        running.issued += 1;
        let (load, rng) = (running.load, &mut self.rng);
        let space = &mut self.spaces[running.space];
        let command = load.mix.draw(rng);
        let mut records = Vec::new();
        for _ in 0..if command == GET { 1 } else { load.batch } {
            let taken: Vec<u64> = records.iter().map(|(number, _)| *number).collect();
            let (number, size) = match command {
                GET => {
                    let number = space.pick_free(load.keys, (false, &taken), rng);
                    (number, space.size_of[number as usize])
                }
                INSERT => {
                    let size = space.size(rng);
                    space.size_of.push(size);
                    (space.size_of.len() as u64 - 1, size)
                }
                _ => (space.pick_free(load.keys, (true, &taken), rng), space.size(rng)),
            };
            records.push((number, size));
        }
        match command {
            GET => *space.reading.entry(records[0].0).or_default() += 1,
            _ => space.changing.extend(records.iter().map(|(number, _)| *number)),
        }
        let gets = if command == GET { space.sizes.len() } else { 0 };
        let record = |(number, size): &(u64, u16)| Record {
            class: space.first_class + gets + usize::from(*size),
            number: *number,
        };
        let all: Vec<Record> = records.iter().map(record).collect();
        let submitted = if command == GET { Command::Get(all[0]) } else { Command::Put(all) };
        self.hosts[host] = Host { load: self.hosts[host].load, is_clock: false, command, records, began };
        self.rig.submit(vec![(host, submitted)])
    }

    fn complete(&mut self, host: usize) {
        let Host { load, command, records, began, .. } = std::mem::take(&mut self.hosts[host]);
        self.hosts[host].load = load;
        let running = &mut self.loads[load];
        let space = &mut self.spaces[running.space];
        let mut bytes = 0;
        for (number, size) in records {
            space.changing.remove(&number);
            if command == GET
                && let Some(count) = space.reading.get_mut(&number)
            {
                *count -= 1;
                if *count == 0 {
                    space.reading.remove(&number);
                }
            }
            space.size_of[number as usize] = size;
            bytes += u64::from(space.sizes[usize::from(size)].bytes);
        }
        running.completed += 1;
        if running.completed > running.load.warm_up {
            running.sheets[command].note(began, self.rig.now_ns(), bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        [[namespace]]
        name = "users"
        records = 3000
        value_bytes = [{ bytes = 512, weight = 9 }, { bytes = 4096 }]

        [[namespace]]
        name = "log"
        records = 500
        value_bytes = { low = 100, high = 1000 }
        logs = [0, 1]

        [[load]]
        namespace = "users"
        hosts = 8
        mix = { get = 90, put = 10 }
        keys = "zipf"
        commands = 4000
        warm_up = 100

        [[load]]
        namespace = "log"
        hosts = 16
        per_s = 20000
        mix = { insert = 1 }
        batch = 4
        commands = 500
    "#;

    fn board() -> Board {
        let mut board = Board::preset("kaml-2017").unwrap();
        board.geometry.blocks_per_die = 16;
        board.geometry.pages_per_block = 32;
        board
    }

    fn run(text: &str) -> Result<WorkloadReport, WorkloadError> {
        WorkloadFile::parse(text)?.run(&board(), 1, &Policies::new(), &mut |_, _| {})
    }

    /// Goal:   loads have their mixes, an open loop its rate, and results repeat; every Get compares what it finds.
    /// Method: a closed and an open loop at the same time, two times.
    #[test]
    fn loads_have_their_mixes_and_rates() {
        let report = run(TEXT).unwrap();
        assert_eq!(report, run(TEXT).unwrap());
        let of = |command| report.loads.iter().find(|load| load.command == command).unwrap();
        assert_eq!(of("get").commands + of("put").commands, 4000);
        assert!((300..500).contains(&of("put").commands), "{report:?}");
        let insert = of("insert");
        assert_eq!(insert.commands, 500);
        assert!((18_000.0..22_000.0).contains(&insert.per_s), "{insert:?}");
        assert!(of("get").mean_us > of("put").mean_us && insert.megabytes_per_s > 1.0, "{report:?}");
    }

    /// Goal:   a load that the device cannot carry waits longer and longer, as an open loop does; a closed one does not.
    /// Method: the same commands far above the device's rate, open and closed.
    #[test]
    fn an_open_loop_counts_waiting() {
        let open = TEXT.replace("per_s = 20000", "per_s = 1e7").replace("commands = 500", "commands = 4000");
        let closed = open.replace("per_s = 1e7", "");
        let p99 = |text: &str| run(text).unwrap().loads.iter().find(|load| load.command == "insert").unwrap().p99_us;
        let (open, closed) = (p99(&open), p99(&closed));
        assert!(open > 3.0 * closed, "{open} is not much more than {closed}");
    }

    /// Goal:   mistakes are refused with their place, and nothing panics.
    /// Method: one mistake each; each prefix of the text.
    #[test]
    fn mistakes_are_refused() {
        let mistakes = [
            ("\"log\"\n        hosts", "\"logs\"\n        hosts", "no namespace of this name"),
            ("hosts = 8", "hosts = 0", "hosts is 0"),
            ("records = 500", "records = 5", "too few for so many hosts"),
            ("low = 100", "low = 2000", "low is 2000 and high is 1000"),
            ("mix = { insert = 1 }", "mix = {}", "above 0"),
            ("per_s = 20000", "per_s = -1", "per_s must be"),
            ("batch = 4", "batch = 65", "batch must be"),
            ("keys = \"zipf\"", "keys = { hot = 101 }", "percentage"),
            ("commands = 500", "comands = 500", "comands"),
        ];
        for (old, new, what) in mistakes {
            assert!(TEXT.contains(old), "{old}");
            let error = WorkloadFile::parse(&TEXT.replace(old, new)).unwrap_err().to_string();
            assert!(error.contains(what), "{new}: {error}");
        }
        let named = format!("policy = \"lazy\"\n{TEXT}");
        let error = run(&named).unwrap_err().to_string();
        assert!(error.contains("lazy") && error.contains("balanced"), "{error}");
        for end in 0..TEXT.len() {
            let _ = WorkloadFile::parse(&TEXT[..end]);
        }
    }

    proptest::proptest! {
        /// Goal:   no text makes the reader panic.
        /// Method: the text above with some characters replaced.
        #[test]
        fn no_text_panics(places in proptest::collection::vec((0..TEXT.len(), b' '..b'~'), 1..8)) {
            let mut bytes = TEXT.as_bytes().to_vec();
            places.into_iter().for_each(|(at, byte)| bytes[at] = byte);
            let _ = WorkloadFile::parse(std::str::from_utf8(&bytes).unwrap());
        }
    }
}
