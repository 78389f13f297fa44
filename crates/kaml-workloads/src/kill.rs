//! Kill cycles: a child process writes batches over three namespaces until it is killed; nothing may be lost or halved.
//!
//! Lives here:       the workload of the child, the model of what it leaves, the comparison.
//! Lives elsewhere:  the command line that runs the child (`kaml-cli`).
//!
//! Several lanes (threads) put batches one after another; batch `s` of a lane writes its head record (which holds `s`)
//! in the first namespace, a record in each of the other two, and sometimes deletes one. What a lane leaves after batch
//! `s` follows from `s` alone. The child prints `lane s.` after each acknowledged batch; the parent kills it at a random
//! moment, also while it is still recovering, reopens, and demands of each lane: the state after its last
//! acknowledged batch, or after the one that followed.

use crate::Error;
use crate::keys::Rng;
use kaml::{Batch, CreateOptions, Device, KeyKind, NamespaceId, NamespaceOptions, OpenOptions};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Threads of the child.
pub const LANES: u64 = 4;
/// Keys of a lane in each of the two record namespaces.
const SLOTS: u64 = 64;
/// The longest time that a child is left alive.
const LIFE_MAX: Duration = Duration::from_millis(120);
/// Names of the namespaces; the first holds the heads.
const NAMES: [&str; 3] = ["heads", "small", "large"];

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Cycles {
    /// How many.
    pub count: u32,
    /// Bytes of the device; small, so garbage collection takes part.
    pub capacity: u64,
    /// Of the moments of the kills.
    pub seed: u64,
    /// The program and its first arguments that run [`child`]; the path of the device is appended.
    pub program: PathBuf,
    /// See `program`.
    pub arguments: Vec<String>,
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// Cycles that were run.
    pub cycles: u32,
    /// Batches acknowledged over all cycles.
    pub acknowledged_batches: u64,
    /// Batches that were not acknowledged and found whole.
    pub unacknowledged_but_whole: u64,
    /// Children killed before they acknowledged anything.
    pub killed_before_first: u32,
    /// The slowest reopening.
    pub reopen_ns_max: u64,
    /// Bytes that garbage collection relocated, in the sessions of the parent.
    pub relocated_bytes: u64,
    /// The seed.
    pub seed: u64,
    /// What went wrong, one line each; the run stops at the first cycle that has any.
    pub problems: Vec<String>,
}

fn key(lane: u64, slot: u64) -> u64 {
    lane << 32 | slot
}

/// The values of batch `s`: pseudo-random bytes of a pseudo-random length, occasionally a large one.
fn value(lane: u64, s: u64, namespace: u64) -> Vec<u8> {
    let mut rng = Rng::new(lane << 56 ^ s << 2 ^ namespace);
    let bytes = match (namespace, rng.below(16)) {
        (1, _) => rng.below(2000),
        (_, 0) => rng.below(200_000),
        _ => rng.below(9000),
    };
    let mut value = vec![0; bytes as usize];
    value.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]));
    value
}

/// The slot of the last namespace that batch `s` deletes.
fn deleted(s: u64) -> Option<u64> {
    (s % 8 == 3).then_some((s + SLOTS / 2) % SLOTS)
}

fn batch(namespaces: &[NamespaceId; 3], lane: u64, s: u64) -> Batch {
    let mut batch = Batch::new();
    batch.put(namespaces[0], key(lane, 0), &s.to_le_bytes());
    batch.put(namespaces[1], key(lane, s % SLOTS), &value(lane, s, 1));
    batch.put(namespaces[2], key(lane, s % SLOTS), &value(lane, s, 2));
    if let Some(slot) = deleted(s) {
        batch.delete(namespaces[2], key(lane, slot));
    }
    batch
}

/// Which batch wrote each slot of a lane, after batch `s`.
fn model(s: u64) -> [BTreeMap<u64, u64>; 2] {
    let mut slots = [BTreeMap::new(), BTreeMap::new()];
    // What came before the last two rounds is overwritten or deleted by them.
    for s in (s + 1).saturating_sub(2 * SLOTS).max(1)..=s {
        slots.iter_mut().for_each(|slots| {
            slots.insert(s % SLOTS, s);
        });
        if let Some(slot) = deleted(s) {
            slots[1].remove(&slot);
        }
    }
    slots
}

fn namespaces(device: &Device) -> Result<[NamespaceId; 3], Error> {
    Ok([device.namespace(NAMES[0])?, device.namespace(NAMES[1])?, device.namespace(NAMES[2])?])
}

fn head(device: &Device, namespace: NamespaceId, lane: u64) -> Result<u64, Error> {
    let Some(bytes) = device.get(namespace, key(lane, 0))? else { return Ok(0) };
    let bytes = bytes.try_into().map_err(|_| Error::Wrong(format!("lane {lane}: its head is no number")))?;
    Ok(u64::from_le_bytes(bytes))
}

/// The child: puts until it is killed, reporting each acknowledged batch on `told`.
pub fn child(path: &Path, told: &(impl Fn(&str) -> std::io::Result<()> + Sync)) -> Result<(), Error> {
    let device = Device::open(path, &OpenOptions::default())?;
    let namespaces = namespaces(&device)?;
    let lane = |lane: u64| -> Result<(), Error> {
        for s in head(&device, namespaces[0], lane)? + 1.. {
            device.write(&batch(&namespaces, lane, s))?;
            told(&format!("{lane} {s}.\n")).map_err(Error::io("reporting to the parent"))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let lane = &lane;
        let lanes: Vec<_> = (0..LANES).map(|number| scope.spawn(move || lane(number))).collect();
        lanes.into_iter().try_for_each(|lane| lane.join().expect("a lane panicked"))
    })
}

/// Runs the cycles on a new device at `path`; `progress` receives the number of finished cycles.
pub fn run(path: &Path, cycles: &Cycles, progress: &mut dyn FnMut(u32)) -> Result<Outcome, Error> {
    let device = Device::create(path, &CreateOptions::new(cycles.capacity))?;
    for name in NAMES {
        device.create_namespace(name, &NamespaceOptions::records(KeyKind::U64))?;
    }
    device.close()?;
    let mut outcome = Outcome { seed: cycles.seed, ..Outcome::default() };
    let mut rng = Rng::new(cycles.seed);
    let mut last = [0u64; LANES as usize];
    while outcome.cycles < cycles.count && outcome.problems.is_empty() {
        let life = Duration::from_nanos(rng.below(LIFE_MAX.as_nanos() as u64));
        let acknowledged = live_and_die(path, cycles, life, last)?;
        outcome.killed_before_first += u32::from(acknowledged == last);
        outcome.acknowledged_batches += acknowledged.iter().sum::<u64>() - last.iter().sum::<u64>();
        let (found, problems) = examine(path, acknowledged, &mut outcome)?;
        outcome.unacknowledged_but_whole += found.iter().sum::<u64>().saturating_sub(acknowledged.iter().sum());
        last = found;
        let cycle = outcome.cycles;
        outcome.problems.extend(problems.into_iter().map(|what| format!("cycle {cycle}, alive {life:?}: {what}")));
        outcome.cycles += 1;
        progress(outcome.cycles);
    }
    Ok(outcome)
}

/// Returns the last acknowledged batch of each lane.
fn live_and_die(
    path: &Path,
    cycles: &Cycles,
    life: Duration,
    mut last: [u64; LANES as usize],
) -> Result<[u64; LANES as usize], Error> {
    let mut child = Command::new(&cycles.program)
        .args(&cycles.arguments)
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Error::io("starting the child process"))?;
    let told = BufReader::new(child.stdout.take().expect("its output is piped"));
    let complaints = child.stderr.take().expect("its errors are piped");
    let reader = std::thread::spawn(move || {
        for line in told.lines().map_while(Result::ok) {
            // A line cut short by the kill does not count.
            let Some((lane, s)) = line.strip_suffix('.').and_then(|line| line.split_once(' ')) else { continue };
            if let (Ok(lane), Ok(s)) = (lane.parse::<usize>(), s.parse()) {
                last[lane] = s;
            }
        }
        last
    });
    std::thread::sleep(life);
    child.kill().map_err(Error::io("killing the child process"))?;
    let status = child.wait().map_err(Error::io("waiting for the child process"))?;
    let acknowledged = reader.join().expect("the reader panicked");
    if std::os::unix::process::ExitStatusExt::signal(&status) != Some(9) {
        let mut words = String::new();
        let _ = std::io::Read::read_to_string(&mut { complaints }, &mut words);
        return Err(Error::Wrong(format!("the child ended by itself with {status}: {}", words.trim())));
    }
    Ok(acknowledged)
}

/// Reopens and compares; returns the batch that each lane is at, and what is wrong.
fn examine(
    path: &Path,
    acknowledged: [u64; LANES as usize],
    outcome: &mut Outcome,
) -> Result<([u64; LANES as usize], Vec<String>), Error> {
    let started = Instant::now();
    let device = Device::open(path, &OpenOptions::default())?;
    let reopen_ns = started.elapsed().as_nanos() as u64;
    outcome.reopen_ns_max = outcome.reopen_ns_max.max(reopen_ns);
    let (found, mut problems) = compare(&device)?;
    for (lane, (is, told)) in found.into_iter().zip(acknowledged).enumerate() {
        if is != told && is != told + 1 {
            problems.push(format!("lane {lane} is at batch {is}, acknowledged was {told}"));
        }
    }
    outcome.relocated_bytes += device.stats().relocated_bytes;
    device.close()?;
    Ok((found, problems))
}

/// Opens a device that [`child`] has put batches to; returns the last batch of each lane that exists, and what is wrong.
pub fn inspect(path: &Path) -> Result<([u64; LANES as usize], Vec<String>), Error> {
    let device = Device::open(path, &OpenOptions::default())?;
    let found = compare(&device)?;
    device.close()?;
    Ok(found)
}

/// Compares each lane with what its last batch must leave, and has the device check itself.
fn compare(device: &Device) -> Result<([u64; LANES as usize], Vec<String>), Error> {
    let namespaces = namespaces(device)?;
    let (mut found, mut problems) = ([0; LANES as usize], Vec::new());
    for lane in 0..LANES {
        found[lane as usize] = head(device, namespaces[0], lane)?;
        problems.extend(compare_lane(device, &namespaces, lane, found[lane as usize])?);
    }
    let check = device.check(&mut |_, _| {})?;
    problems.extend(check.problems.iter().map(|problem| format!("check: {problem}")));
    Ok((found, problems))
}

fn compare_lane(device: &Device, namespaces: &[NamespaceId; 3], lane: u64, s: u64) -> Result<Vec<String>, Error> {
    let mut problems = Vec::new();
    for (which, slots) in model(s).iter().enumerate() {
        let number = which as u64 + 1;
        for slot in 0..SLOTS {
            let is = device.get(namespaces[which + 1], key(lane, slot))?;
            let should = slots.get(&slot).map(|s| value(lane, *s, number));
            if is != should {
                let show =
                    |value: &Option<Vec<u8>>| value.as_ref().map_or("absent".into(), |v| format!("{} B", v.len()));
                let (name, is, should) = (NAMES[which + 1], show(&is), show(&should));
                problems.push(format!("lane {lane} at batch {s}: {name} slot {slot} is {is}, should be {should}"));
            }
        }
    }
    Ok(problems)
}

/// Writes a line to standard output at once; what [`child`] needs.
pub fn tell_stdout(line: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   the model is what the batches leave, and a lane that differs is noticed.
    /// Method: write batches to a device in memory, compare after each; then undo a part of one.
    #[test]
    fn the_model_follows_the_batches() {
        let device = Device::in_memory(&CreateOptions::new(256 << 20)).unwrap();
        for name in NAMES {
            let options = NamespaceOptions::records(KeyKind::U64);
            device.create_namespace(name, &options).unwrap();
        }
        let namespaces = namespaces(&device).unwrap();
        for s in 1..200 {
            device.write(&batch(&namespaces, 2, s)).unwrap();
            if s % 7 == 0 {
                assert_eq!(compare_lane(&device, &namespaces, 2, s).unwrap(), Vec::<String>::new());
            }
        }
        assert_eq!(head(&device, namespaces[0], 2).unwrap(), 199);
        assert!(!compare_lane(&device, &namespaces, 2, 198).unwrap().is_empty());
        device.put(namespaces[2], key(2, 199 % SLOTS), &value(2, 198, 2)).unwrap();
        assert_eq!(compare_lane(&device, &namespaces, 2, 199).unwrap().len(), 1);
    }
}
