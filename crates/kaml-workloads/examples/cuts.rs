//! What cuts of the power may leave of a disk, made of a log of its writes; see `tests/power-cut/run`.
//!
//! Lives here:       the disk's partitions, reading the log, choosing cuts and what each leaves.
//! Lives elsewhere:  the batches and what they must leave (`kaml_workloads::kill`), the machine whose disk it is (`tests/power-cut`).
//!
//! The log is QEMU's (`blklogwrites`, the format of Linux's dm-log-writes): writes and flushes in the order of their ends. A
//! cut after one of them leaves every write before the last flush, every one that was to bypass the cache (FUA), and of the others
//! each sector or not. The disk has two partitions: one is the device's, or has a file system with the device in a file, on the other
//! stands what completed.

use kaml_workloads::keys::Rng;
use kaml_workloads::kill::{self, LANES};
use std::error::Error;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::process::Command;

const SECTOR: usize = 512;
/// The device's partition.
const DEVICE: Range<usize> = 1 << 20..161 << 20;
/// What completed.
const ANSWERS: Range<usize> = 161 << 20..193 << 20;
const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
/// Where the device is in the file system.
const FILE: &str = "device.kaml";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[1..] {
        ["prepare", disk, place] => prepare(disk, place),
        ["check", disk, log, place, count, seed] => check(disk, log, place, count.parse()?, seed.parse()?),
        _ => Err("usage: cuts prepare DISK disk|file | cuts check DISK LOG disk|file COUNT SEED\nDISK: as it was before the log".into()),
    }
}

/// Makes the disk, with a file system if the device is to be a file.
fn prepare(path: &str, place: &str) -> Result<()> {
    let mut disk = File::create(path)?;
    disk.set_len(ANSWERS.end as u64)?;
    let mut head = [0; SECTOR];
    for (number, part) in [DEVICE, ANSWERS].iter().enumerate() {
        let entry = &mut head[446 + 16 * number..][..16];
        entry[4] = 0x83; // Linux
        entry[8..12].copy_from_slice(&((part.start / SECTOR) as u32).to_le_bytes());
        entry[12..].copy_from_slice(&((part.len() / SECTOR) as u32).to_le_bytes());
    }
    head[510..].copy_from_slice(&[0x55, 0xaa]);
    disk.write_all(&head)?;
    if place == "file" {
        let (offset, size) = (format!("offset={}", DEVICE.start), format!("{}k", DEVICE.len() >> 10));
        run("mke2fs", &["-q", "-t", "ext4", "-E", &offset, path, &size], 0)?;
    }
    Ok(())
}

/// Runs a program whose exit code may be up to `worst`.
fn run(program: &str, arguments: &[&str], worst: i32) -> Result<()> {
    let output = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.code().is_none_or(|code| code > worst) {
        return Err(format!("{program}: {}{}", output.status, String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(())
}

/// A write, or a flush without bytes.
struct Done {
    disk: Range<usize>,
    flags: u64,
    data: Vec<u8>,
}

/// Reads a log entry by entry.
struct Log {
    file: File,
    left: u64,
    sector: u64,
    at: u64,
}

impl Log {
    fn open(path: &str) -> Result<Log> {
        let mut file = File::open(path)?;
        let mut head = [0; 28];
        file.read_exact(&mut head)?;
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let sector = u64::from(u32::from_le_bytes(head[24..28].try_into()?));
        if number(0) != MAGIC || number(8) != 1 {
            return Err(format!("{path} is no log of writes").into());
        }
        Ok(Log { file, left: number(16), sector, at: sector })
    }

    fn next(&mut self) -> Result<Option<Done>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let mut entry = [0; 24];
        self.file.seek(SeekFrom::Start(self.at))?;
        self.file.read_exact(&mut entry)?;
        let [first, count, flags] =
            [0, 8, 16].map(|at| u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes")));
        self.at += self.sector;
        let (start, bytes) = ((first * self.sector) as usize, count * self.sector);
        let mut data = Vec::new();
        // It has no bytes of what is discarded.
        if flags & DISCARD == 0 {
            data.resize(bytes as usize, 0);
            self.file.seek(SeekFrom::Start(self.at))?;
            self.file.read_exact(&mut data)?;
            self.at += bytes;
        }
        Ok(Some(Done { disk: start..start + bytes as usize, flags, data }))
    }
}

/// What a program has completed, by lane, as far as the disk was flushed.
#[derive(Default)]
struct Answers {
    text: Vec<u8>,
    told: [u64; LANES as usize],
}

impl Answers {
    fn take(&mut self, data: &[u8]) {
        self.text.extend(data.iter().filter(|byte| **byte != 0));
        while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.text.drain(..=end).collect();
            // A line that a kill cut short does not count.
            let line = String::from_utf8_lossy(&line);
            let Some((lane, batch)) = line.strip_suffix(".\n").and_then(|line| line.split_once(' ')) else { continue };
            if let (Ok(lane), Ok(batch)) = (lane.parse::<usize>(), batch.parse::<u64>()) {
                self.told[lane] = self.told[lane].max(batch);
            }
        }
    }
}

/// What a cut leaves of writes that are not sure.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    Nothing,
    Writes,
    Sectors,
}

fn check(disk: &str, log: &str, place: &str, count: usize, seed: u64) -> Result<()> {
    let mut rng = Rng::new(seed);
    let (first, total) = cuttable(log)?;
    // Half of them right after an answer.
    let mut cuts: Vec<(usize, bool)> =
        (0..count).map(|cut| (first + rng.below((total - first) as u64) as usize, cut % 2 == 0)).collect();
    cuts.sort_unstable();
    let mut durable = vec![0; ANSWERS.end];
    File::open(disk)?.read_exact(&mut durable)?;
    let (mut unsure, mut answers, mut at) = (Vec::new(), Answers::default(), 0);
    let (mut problems, mut left_out, mut made) = (0, 0, 0);
    let mut cuts = cuts.into_iter().peekable();
    let mut log = Log::open(log)?;
    while let Some(done) = log.next()? {
        let is_answer = ANSWERS.contains(&done.disk.start) && !done.data.is_empty();
        if is_answer {
            answers.take(&done.data);
        }
        if done.flags & FLUSH != 0 {
            unsure.drain(..).for_each(|done: Done| apply(&mut durable, &done, || true));
        }
        if !done.disk.is_empty() {
            unsure.push(done);
        }
        at += 1;
        while cuts.next_if(|(cut, behind_answer)| *cut < at && (is_answer || !behind_answer)).is_some() {
            let leaves = [Leaves::Nothing, Leaves::Writes, Leaves::Sectors][rng.below(3) as usize];
            let mut left = durable.clone();
            for done in &unsure {
                let whole = done.flags & FUA != 0 || matches!(leaves, Leaves::Writes) && rng.below(2) == 0;
                let torn = matches!(leaves, Leaves::Sectors);
                apply(&mut left, done, || {
                    let is_left = whole || torn && rng.below(2) == 0;
                    left_out += u64::from(!is_left);
                    is_left
                });
            }
            made += 1;
            let kept = Path::new(disk).with_extension("left");
            for problem in examine(&kept, &left[DEVICE], place, answers.told)? {
                println!("cut after write {at} of {total}, {leaves:?} left: {problem}");
                problems += 1;
            }
            if problems > 0 {
                return Err(format!("{}: what the cut left", kept.display()).into());
            }
        }
    }
    let told: u64 = answers.told.iter().sum();
    if told == 0 || made < count / 2 || left_out == 0 {
        return Err(format!("too little to see: {told} answers, {made} cuts, {left_out} sectors left out").into());
    }
    println!(
        "ok: {made} cuts after {told} acknowledgements and {total} writes and flushes; they left out {left_out} sectors"
    );
    Ok(())
}

/// The first entry after which a cut may come: with an answer, so the device is made; and how many entries there are.
fn cuttable(path: &str) -> Result<(usize, usize)> {
    let (mut log, mut first, mut total) = (Log::open(path)?, None, 0);
    while let Some(done) = log.next()? {
        if first.is_none() && ANSWERS.contains(&done.disk.start) && !done.data.is_empty() {
            first = Some(total);
        }
        total += 1;
    }
    Ok((first.ok_or("nothing was acknowledged")?, total))
}

/// Does what a write did to those sectors of the disk that are `left`.
fn apply(disk: &mut [u8], done: &Done, mut left: impl FnMut() -> bool) {
    let end = done.disk.end.min(disk.len());
    for at in (done.disk.start..end).step_by(SECTOR).filter(|_| left()) {
        let sector = &mut disk[at..at + SECTOR];
        match done.flags & DISCARD {
            0 => sector.copy_from_slice(&done.data[at - done.disk.start..][..SECTOR]),
            _ => sector.fill(0),
        }
    }
}

/// Opens what remains, and compares it with what completed.
fn examine(path: &Path, left: &[u8], place: &str, told: [u64; LANES as usize]) -> Result<Vec<String>> {
    fs::write(path, left)?;
    let mut device = path.to_owned();
    if place == "file" {
        let name = path.to_str().ok_or("a path that is no text")?;
        device = path.with_extension("kaml");
        // 1: it has mended what a cut leaves.
        run("e2fsck", &["-fy", name], 1)?;
        run("debugfs", &["-R", &format!("dump /{FILE} {}", device.display()), name], 0)?;
    }
    let (heads, mut problems) = match kill::inspect(&device) {
        Ok(found) => found,
        Err(error) => return Ok(vec![error.to_string()]),
    };
    for (lane, (is, told)) in heads.into_iter().zip(told).enumerate() {
        if is < told {
            problems.push(format!("lane {lane} is at batch {is}, acknowledged was {told}"));
        }
    }
    Ok(problems)
}
