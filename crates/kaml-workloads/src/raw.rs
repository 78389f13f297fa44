//! The raw device: what direct I/O on an ordinary file reaches without any store.
//!
//! Lives here:       random reads at a depth, sequential reads, durable sequential writes.
//! Lives elsewhere:  what is compared with it (`micro`).

use crate::figures::{Meter, histogram, record};
use crate::keys::Rng;
use crate::scratch::Scratch;
use crate::together;
use crate::uring::Loop;
use crate::{Error, Figures};
use kaml_flash::AlignedBuf;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Pages of the file; transfers of whole pages start at multiples of it, others at any sector, as records do.
const ALIGN_BYTES: u64 = 4096;
/// The smallest sector.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// Random reads.
#[derive(Clone, Copy, Debug)]
pub struct RandomReads {
    /// Bytes of a read, a multiple of 512.
    pub bytes: usize,
    /// Reads in flight; 1 is a plain `pread`.
    pub depth: usize,
    /// How long.
    pub duration: Duration,
    /// Where the random offsets begin.
    pub seed: u64,
}

/// Reads at random offsets of a scratch file.
pub fn random_reads(scratch: &Scratch, reads: &RandomReads) -> Result<Figures, Error> {
    if reads.bytes == 0 || !reads.bytes.is_multiple_of(512) || reads.bytes as u64 + ALIGN_BYTES > scratch.bytes() {
        return Err(Error::Parameters(format!("{} B is not a size of direct reads from this file", reads.bytes)));
    }
    match reads.depth {
        0 => Err(Error::Parameters("a depth of 0 reads nothing".into())),
        1 => pread(scratch, reads),
        _ => reads_in_flight(scratch, reads),
    }
}

/// Where a read of `bytes` lies at random in `area_bytes`.
pub(crate) fn random_offset(rng: &mut Rng, area_bytes: u64, bytes: usize) -> u64 {
    let align = if (bytes as u64).is_multiple_of(ALIGN_BYTES) { ALIGN_BYTES } else { SECTOR_BYTES };
    rng.below((area_bytes - bytes as u64) / align) * align
}

fn pread(scratch: &Scratch, reads: &RandomReads) -> Result<Figures, Error> {
    let file = scratch.open(false)?;
    let mut into = AlignedBuf::zeroed(reads.bytes);
    let mut rng = Rng::new(reads.seed);
    let mut latencies = histogram();
    let meter = Meter::start();
    let mut begun = Instant::now();
    let begin = begun;
    while latencies.is_empty() || begun - begin < reads.duration {
        let offset = random_offset(&mut rng, scratch.bytes(), reads.bytes);
        file.read_exact_at(&mut into, offset).map_err(Error::io("reading"))?;
        let now = Instant::now();
        record(&mut latencies, now - begun);
        begun = now;
    }
    Ok(figures(meter, "raw random reads", reads.bytes, reads.depth, &latencies))
}

fn reads_in_flight(scratch: &Scratch, reads: &RandomReads) -> Result<Figures, Error> {
    let mut ring = Loop::new(scratch.open(false)?, reads.depth, reads.bytes)?;
    let mut rng = Rng::new(reads.seed);
    let mut latencies = histogram();
    let mut begun = vec![Instant::now(); reads.depth];
    let mut done: Vec<usize> = (0..reads.depth).collect();
    let meter = Meter::start();
    let start = Instant::now();
    let mut primed = false;
    loop {
        let now = Instant::now();
        for slot in done.drain(..) {
            if primed {
                record(&mut latencies, now - begun[slot]);
            }
            if !primed || now - start < reads.duration {
                begun[slot] = now;
                ring.read(slot, random_offset(&mut rng, scratch.bytes(), reads.bytes), reads.bytes);
            }
        }
        primed = true;
        if ring.in_flight() == 0 {
            break;
        }
        ring.wait(|_| reads.bytes, &mut done)?;
    }
    Ok(figures(meter, "raw random reads", reads.bytes, reads.depth, &latencies))
}

/// Sequential transfers.
#[derive(Clone, Copy, Debug)]
pub struct Sequential {
    /// Bytes of one transfer, a multiple of 4096.
    pub bytes: usize,
    /// Transfers in flight (each on a thread of its own).
    pub depth: usize,
    /// How many each thread skips: those of runs before this one. A disk has what was last written in its cache.
    pub skipped: u64,
    /// For writes: one `fdatasync` per so many of them, by each thread.
    pub writes_per_sync: usize,
    /// The memory is in huge pages: the kernel splits requests with more pages than the disk accepts.
    pub huge_pages: bool,
    /// How long; at least one transfer each.
    pub duration: Duration,
}

impl Sequential {
    fn check(&self, scratch: &Scratch) -> Result<(), Error> {
        let fits = self.bytes > 0 && self.bytes.is_multiple_of(ALIGN_BYTES as usize);
        if !fits || self.depth == 0 || self.writes_per_sync == 0 || (self.bytes * self.depth) as u64 > scratch.bytes() {
            return Err(Error::Parameters(format!("{self:?} does not fit a file of {} B", scratch.bytes())));
        }
        Ok(())
    }
}

/// Writes round and round a scratch file, each (or each few) followed by `fdatasync`.
pub fn sequential_writes(scratch: &Scratch, writes: &Sequential) -> Result<Figures, Error> {
    let what = format!("raw sequential writes, fdatasync per {}", writes.writes_per_sync);
    sequential(scratch, writes, &what, |file, buffer, offset, count| {
        file.write_all_at(buffer, offset)?;
        if count.is_multiple_of(writes.writes_per_sync as u64) { file.sync_data() } else { Ok(()) }
    })
}

/// Reads round and round a scratch file.
pub fn sequential_reads(scratch: &Scratch, reads: &Sequential) -> Result<Figures, Error> {
    sequential(scratch, reads, "raw sequential reads", |file, buffer, offset, _| file.read_exact_at(buffer, offset))
}

fn sequential(
    scratch: &Scratch,
    run: &Sequential,
    what: &str,
    transfer: impl Fn(&std::fs::File, &mut AlignedBuf, u64, u64) -> std::io::Result<()> + Sync,
) -> Result<Figures, Error> {
    run.check(scratch)?;
    let file = scratch.open(false)?;
    let share = scratch.bytes() / run.depth as u64 / run.bytes as u64 * run.bytes as u64;
    let meter = Meter::start();
    let begin = Instant::now();
    let one = |thread: usize| {
        let make = if run.huge_pages { AlignedBuf::for_transfers } else { AlignedBuf::zeroed };
        let mut buffer = make(run.bytes);
        buffer.fill(0x5a);
        let mut latencies = histogram();
        let mut begun = Instant::now();
        let mut count = 0u64;
        while count == 0 || begun - begin < run.duration {
            let offset = thread as u64 * share + (run.skipped + count) * run.bytes as u64 % share;
            count += 1;
            transfer(&file, &mut buffer, offset, count).map_err(Error::io("direct I/O"))?;
            let now = Instant::now();
            record(&mut latencies, now - begun);
            begun = now;
        }
        Ok::<_, Error>(latencies)
    };
    let latencies = std::thread::scope(|scope| {
        let one = &one;
        let threads = together::start(scope, None, (0..run.depth).map(|thread| move || one(thread)))?;
        Ok::<_, Error>(together::join(threads)?.into_iter().fold(histogram(), |all, of_thread| all + of_thread))
    })?;
    Ok(figures(meter, what, run.bytes, run.depth, &latencies))
}

fn figures(meter: Meter, what: &str, bytes: usize, depth: usize, latencies: &hdrhistogram::Histogram<u64>) -> Figures {
    let count = latencies.len();
    meter.stop(format!("{what}: {bytes} B, depth {depth}"), count, count * bytes as u64, latencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   each measurement transfers what it reports.
    /// Method: short runs at depth 1 and 4; bytes must be operations times size, and the disk counters, where the
    ///         system keeps them, must have seen the reads.
    #[test]
    fn raw_runs_count_what_they_transfer() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let scratch = Scratch::create(dir.path(), 8 << 20).unwrap();
        let duration = Duration::from_millis(30);
        for depth in [1, 4] {
            let reads = RandomReads { bytes: 4096, depth, duration, seed: 1 };
            let figures = random_reads(&scratch, &reads).unwrap();
            assert!(figures.operations > 0 && figures.bytes == figures.operations * 4096, "{figures:?}");
            if let Some(fetched) = figures.disk_read_bytes.filter(|fetched| *fetched > 0) {
                assert!(fetched >= figures.bytes, "{figures:?}");
            }
            for huge_pages in [false, true] {
                let run = Sequential { bytes: 1 << 20, depth, skipped: 5, writes_per_sync: 2, huge_pages, duration };
                assert!(sequential_writes(&scratch, &run).unwrap().bytes >= 1 << 20);
                assert!(sequential_reads(&scratch, &run).unwrap().bytes >= 1 << 20);
            }
        }
    }

    /// Goal:   sizes that direct I/O cannot do are refused with words, not with EINVAL.
    /// Method: an odd size, a read larger than the file, depth 0.
    #[test]
    fn impossible_reads_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::create(dir.path(), 1 << 20).unwrap();
        let reads = RandomReads { bytes: 1000, depth: 1, duration: Duration::ZERO, seed: 1 };
        for bad in [reads, RandomReads { bytes: 1 << 20, ..reads }, RandomReads { bytes: 512, depth: 0, ..reads }] {
            assert!(matches!(random_reads(&scratch, &bad), Err(Error::Parameters(_))), "{bad:?}");
        }
    }
}
