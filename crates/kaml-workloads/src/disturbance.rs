//! Whether something else was at work while figures were measured.
//!
//! Lives here:       processor time and transfers of other processes, time that the host took away, figures that vary too much.
//! Lives elsewhere:  rows that are marked with it (`compare`).
//!
//! Processes count as ours if they are this one or descend from it. Threads of the kernel count as nobody's: much of what they do, they do for
//! us. Processes of which the system does not show transfers are taken to have none.

use rustix::param::clock_ticks_per_second;
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

/// Share of one processor that others may take.
const PROCESSORS_MAX: f64 = 0.1;
/// Bytes a second that others may transfer.
const BYTES_PER_S_MAX: f64 = (4 << 20) as f64;
/// How many times its least value a figure may be among neighbouring runs, the extremes left out where there are enough runs for that.
const VARIES_MAX: f64 = 1.4;
/// With so many runs, the extremes are left out.
const RUNS_ENOUGH: usize = 5;
/// All threads of the kernel descend from this process.
const KERNEL_THREADS: u32 = 2;

/// Notes what others do, from its start on.
pub struct Watch {
    ours: u32,
    started: Instant,
    before: Snapshot,
}

/// What others have used so far.
#[derive(Clone, Debug, Default)]
struct Snapshot {
    /// Ticks that the host took away from all processors.
    stolen: u64,
    /// Ticks and bytes of each process.
    processes: BTreeMap<u32, Process>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Process {
    parent: u32,
    /// Its own, and those of its children that have ended.
    ticks: u64,
    bytes: u64,
}

impl Watch {
    /// Starts to watch.
    pub fn start() -> Watch {
        Watch::of(std::process::id())
    }

    /// Watches all that does not descend from this process.
    fn of(ours: u32) -> Watch {
        Watch { ours, started: Instant::now(), before: Snapshot::now() }
    }

    /// What disturbed the time since the start, if anything did.
    pub fn stop(self) -> Option<String> {
        found(&self.before, &Snapshot::now(), self.ours, self.started.elapsed())
    }
}

fn found(before: &Snapshot, after: &Snapshot, ours: u32, elapsed: Duration) -> Option<String> {
    let seconds = elapsed.as_secs_f64().max(1e-3);
    let processors = |ticks: u64| ticks as f64 / clock_ticks_per_second() as f64 / seconds;
    let stolen = processors(after.stolen.saturating_sub(before.stolen));
    if stolen > PROCESSORS_MAX {
        return Some(format!("the host took {stolen:.2} of a processor away"));
    }
    let (mut ticks, mut bytes) = (0, 0);
    for (id, process) in &after.processes {
        if after.descends(*id, ours) || after.descends(*id, KERNEL_THREADS) {
            continue;
        }
        let earlier = before.processes.get(id).copied().unwrap_or_default();
        ticks += process.ticks.saturating_sub(earlier.ticks);
        bytes += process.bytes.saturating_sub(earlier.bytes);
    }
    let taken = processors(ticks);
    if taken > PROCESSORS_MAX {
        return Some(format!("other processes took {taken:.2} of a processor"));
    }
    let rate = bytes as f64 / seconds;
    (rate > BYTES_PER_S_MAX).then(|| format!("other processes transferred {:.0} MB/s", rate / 1e6))
}

impl Snapshot {
    fn now() -> Snapshot {
        let stolen = fs::read_to_string("/proc/stat").ok().and_then(|text| stolen_of(&text)).unwrap_or(0);
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let process = |id: u32| {
            let mut process = process_of(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)?;
            process.bytes = fs::read_to_string(format!("/proc/{id}/io")).map_or(0, |text| transferred_of(&text));
            Some((id, process))
        };
        Snapshot { stolen, processes: ids.filter_map(process).collect() }
    }

    fn descends(&self, id: u32, from: u32) -> bool {
        let parent = |id: &u32| self.processes.get(id).map(|process| process.parent).filter(|parent| *parent != 0);
        std::iter::successors(Some(id), parent).take(self.processes.len() + 1).any(|id| id == from)
    }
}

/// The eighth figure of the line of all processors.
fn stolen_of(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("cpu "))?.split_whitespace().nth(7)?.parse().ok()
}

/// The parent and the times of a process: fields 4 and 14 to 17. The name before them can contain anything, a bracket too.
fn process_of(text: &str) -> Option<Process> {
    let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_whitespace().collect();
    let times = fields.get(11..15)?.iter().map(|field| field.parse::<u64>());
    Some(Process { parent: fields[1].parse().ok()?, ticks: times.sum::<Result<u64, _>>().ok()?, bytes: 0 })
}

fn transferred_of(text: &str) -> u64 {
    let field = |line: &str| {
        let value = line.strip_prefix("read_bytes:").or_else(|| line.strip_prefix("write_bytes:"))?;
        value.trim().parse::<u64>().ok()
    };
    text.lines().filter_map(field).sum()
}

/// States by how much a figure varies among neighbouring runs, if that is too much.
pub fn varies(what: &str, figures: impl IntoIterator<Item = f64>) -> Option<String> {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    let ends = usize::from(figures.len() >= RUNS_ENOUGH);
    let (least, greatest) = (figures.get(ends)?, figures.get(figures.len().checked_sub(ends + 1)?)?);
    let times = greatest / least;
    (times.is_nan() || times > VARIES_MAX).then(|| format!("{what} varied by {times:.2} times from run to run"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   the figures of processes come from the right fields.
    /// Method: lines as the kernel writes them, one with a name that looks like fields, and lines that were cut off.
    #[test]
    fn the_fields_are_the_right_ones() {
        let line = "77 (a) 9 9 (b) S 41 1 1 0 -1 0 9 9 9 9 100 20 3 4 20 0 1 0 5";
        let process = process_of(line).unwrap();
        assert_eq!((process.parent, process.ticks), (41, 127));
        assert!(process_of("77 (a) S 41 1").is_none() && process_of("").is_none());
        assert_eq!(stolen_of("cpu  1 2 3 4 5 6 7 88 9 10\ncpu0 1 1 1 1 1 1 1 1\n"), Some(88));
        assert_eq!(transferred_of("rchar: 9\nread_bytes: 5\nwrite_bytes: 7\ncancelled_write_bytes: 9\n"), 12);
    }

    /// Goal:   work of others is reported, that of our own and that of the kernel is not.
    /// Method: two moments a second apart, with a process of each kind that uses half a processor or transfers.
    #[test]
    fn others_are_told_from_our_own() {
        let process = |parent, ticks, bytes| Process { parent, ticks, bytes };
        let before = [(1, process(0, 0, 0)), (2, process(0, 0, 0)), (10, process(1, 0, 0)), (20, process(1, 0, 0))];
        let before = Snapshot { stolen: 5, processes: before.into() };
        let after = |id: u32, process: Process, stolen: u64| {
            let mut after = before.clone();
            after.processes.insert(id, process);
            after.stolen = stolen;
            after
        };
        let half = clock_ticks_per_second() / 2;
        let look = |after: Snapshot| found(&before, &after, 10, Duration::from_secs(1));
        assert_eq!(look(after(11, process(10, half, 1 << 30), 5)), None, "a child");
        assert_eq!(look(after(3, process(2, half, 0), 5)), None, "the kernel");
        assert_eq!(look(after(20, process(1, half / 10, 1 << 20), 5)), None, "little");
        assert!(look(after(20, process(1, half, 0), 5)).unwrap().contains("0.50"), "a neighbour");
        assert!(look(after(21, process(1, 0, 50_000_000), 5)).unwrap().contains("50 MB/s"), "transfers of a new one");
        assert!(look(after(10, process(1, half, 0), half)).unwrap().contains("the host"), "stolen time");
    }

    /// Goal:   a busy neighbour is noticed on this system.
    /// Method: this thread is busy while all that does not descend from another process is watched.
    #[test]
    fn a_busy_neighbour_is_noticed() {
        let watch = Watch::of(u32::MAX);
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(300) {
            std::hint::black_box(started);
        }
        assert!(watch.stop().is_some());
    }

    /// Goal:   one odd run among five is no disturbance, two are; figures that are not numbers are one.
    /// Method: such runs.
    #[test]
    fn runs_that_vary_are_noticed() {
        assert_eq!(varies("it", [100.0, 101.0, 30.0, 99.0, 103.0]), None);
        assert!(varies("it", [100.0, 50.0, 30.0, 99.0, 103.0]).unwrap().starts_with("it varied by 2.00 times"));
        assert!(varies("it", [100.0, 50.0]).is_some() && varies("it", [100.0]).is_none() && varies("it", []).is_none());
        assert!(varies("it", [100.0, f64::NAN]).is_some());
    }
}
