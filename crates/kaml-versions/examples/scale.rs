//! Counts what lookups and inserts cost at the paper's scale.
//!
//! Lives here:       the keys, flash that keeps headers and makes values up, the counters, the report.
//! Implements:       paper:Muninn 6.3 (Figure 9); docs/versioned.md "Measured".
//!
//! Usage: `scale [--keys 50M] [--buffer-mib 128] [--pattern seq|random|pareto] [--sizes 1024|64-1983] [--choices 3]
//! [--fingerprint 14] [--lookups 200K]`. A key-value pair of 1024 bytes has its header and key in it.

use kaml_versions::{Columns, Error, HEADER_BYTES, Key, Kind, Parameters, Place, SegmentAt, Version, records};
use rustix::time::{ClockId, clock_gettime};

/// Flash that keeps of each record all but its value, which is made up again when it is read.
struct MadeUpFlash {
    page_bytes: usize,
    segment_pages: usize,
    heads: Vec<u8>,
    /// Where the heads of each page begin.
    pages: Vec<u64>,
    page_writes: u64,
    page_reads: u64,
    page: Vec<u8>,
}

/// CPU time of this thread in seconds: what else runs on the machine does not count.
fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// The value of a version.
fn fill_value(sequence: u64, value: &mut [u8]) {
    let mut chunks = value.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&sequence.to_le_bytes());
    }
    chunks.into_remainder().fill(sequence as u8);
}

impl MadeUpFlash {
    fn new(parameters: &Parameters) -> MadeUpFlash {
        MadeUpFlash {
            page_bytes: parameters.page_bytes as usize,
            segment_pages: parameters.segment_pages as usize,
            heads: Vec::new(),
            pages: vec![0],
            page_writes: 0,
            page_reads: 0,
            page: Vec::new(),
        }
    }

    fn program(&mut self, image: &[u8]) -> Result<SegmentAt, Error> {
        let at = (self.pages.len() - 1) / self.segment_pages;
        for page in image.chunks_exact(self.page_bytes) {
            for record in records(page) {
                let (version, bytes) = record?;
                self.heads.extend_from_slice(&bytes[..HEADER_BYTES + version.key.len()]);
            }
            self.pages.push(self.heads.len() as u64);
            self.page_writes += 1;
        }
        Ok(SegmentAt::new(at as u64).expect("fewer than 2^48 segments"))
    }

    fn read(&mut self, at: SegmentAt, page: u32) -> Result<(), Error> {
        self.page_reads += 1;
        let page = at.get() as usize * self.segment_pages + page as usize;
        let mut heads = &self.heads[self.pages[page] as usize..self.pages[page + 1] as usize];
        self.page.clear();
        while !heads.is_empty() {
            let key_len = usize::from(heads[14]);
            let value_len = u32::from_le_bytes(heads[8..12].try_into().expect("four bytes")) as usize;
            let sequence = u64::from_le_bytes(heads[16..24].try_into().expect("eight bytes"));
            let (head, rest) = heads.split_at(HEADER_BYTES + key_len);
            self.page.extend_from_slice(head);
            let start = self.page.len();
            self.page.resize(start + value_len, 0);
            fill_value(sequence, &mut self.page[start..]);
            heads = rest;
        }
        self.page.resize(self.page_bytes, 0);
        Ok(())
    }
}

/// Marsaglia's xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

struct Options {
    keys: u64,
    buffer_mib: u64,
    pattern: String,
    sizes: (u64, u64),
    choices: u32,
    fingerprint_bits: u32,
    lookups: u64,
}

fn number(text: &str) -> Result<u64, String> {
    let (digits, scale) = match text.strip_suffix(['K', 'M']) {
        Some(digits) if text.ends_with('K') => (digits, 1000),
        Some(digits) => (digits, 1_000_000),
        None => (text, 1),
    };
    digits.parse::<u64>().map(|n| n * scale).map_err(|_| format!("{text}: not a number"))
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        keys: 1_000_000,
        buffer_mib: 128,
        pattern: "seq".to_owned(),
        sizes: (1024, 1024),
        choices: 3,
        fingerprint_bits: 14,
        lookups: 200_000,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or(format!("{name}: needs a value"))?;
        match name.as_str() {
            "--keys" => options.keys = number(&value)?,
            "--buffer-mib" => options.buffer_mib = number(&value)?,
            "--pattern" => options.pattern = value,
            "--choices" => options.choices = number(&value)? as u32,
            "--fingerprint" => options.fingerprint_bits = number(&value)? as u32,
            "--lookups" => options.lookups = number(&value)?,
            "--sizes" => {
                let (low, high) = value.split_once('-').unwrap_or((&value, &value));
                options.sizes = (number(low)?, number(high)?);
            }
            _ => return Err(format!("{name}: unknown")),
        }
    }
    Ok(options)
}

/// The key of the `i`-th insert. Pareto is Basho's `pareto_int`: Lomax with shape 1.5 and mean a fifth of the largest.
fn key_of(options: &Options, i: u64, random: &mut Random) -> u64 {
    match options.pattern.as_str() {
        "random" => random.below(options.keys),
        "pareto" => {
            let scale = options.keys as f64 * 0.2 * 0.5;
            (scale * (random.unit().powf(-1.0 / 1.5) - 1.0)) as u64
        }
        _ => i,
    }
}

#[derive(Default)]
struct Reads {
    lookups: u64,
    pages: u64,
    three_or_more: u64,
    missing: u64,
    wrong: u64,
}

impl Reads {
    fn print(&self, what: &str, seconds: f64) {
        let mean = self.pages as f64 / self.lookups as f64;
        let three = self.three_or_more as f64 / self.lookups as f64;
        let us = seconds * 1e6 / self.lookups as f64;
        println!(
            "{what:22} {mean:.4} page reads, {three:.1e} with 3 or more, {us:.2} us, missing {} wrong {}",
            self.missing, self.wrong
        );
    }
}

/// Looks keys up and counts. `newest` is the sequence that must be found, if known.
fn look_up(
    columns: &Columns,
    flash: &mut MadeUpFlash,
    keys: impl Iterator<Item = (u64, Option<u64>)>,
) -> Result<Reads, Error> {
    let mut reads = Reads::default();
    for (key, newest) in keys {
        let before = flash.page_reads;
        let mut search = columns.search(&Key::from(key), u64::MAX);
        let mut found = None;
        while let Some(place) = search.next() {
            found = match place {
                Place::Buffered(version, _) => Some(version),
                Place::Page(candidate) => {
                    flash.read(candidate.at, candidate.page)?;
                    search.check(&candidate, &flash.page)?.map(|(version, _)| version)
                }
            };
            if found.is_some() {
                break;
            }
        }
        let pages = flash.page_reads - before;
        reads.lookups += 1;
        reads.pages += pages;
        reads.three_or_more += u64::from(pages >= 3);
        reads.missing += u64::from(found.is_none());
        reads.wrong += u64::from(newest.is_some() && found.map(|v| v.sequence) != newest);
    }
    Ok(reads)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = options()?;
    let mut parameters = Parameters::for_buffer(options.buffer_mib << 20, 42);
    parameters.choices = options.choices;
    parameters.fingerprint_bits = options.fingerprint_bits;
    let mut columns = Columns::new(parameters)?;
    let mut flash = MadeUpFlash::new(&parameters);
    let mut random = Random(88172645463325252);
    let mut value = vec![0; options.sizes.1 as usize];
    let head = HEADER_BYTES as u64 + 8;
    let (mut sealed_records, mut sealed_bytes) = (0u64, 0u64);
    let (mut seal_seconds, mut flash_seconds) = (0.0, 0.0);
    let start = cpu_seconds();
    let keys_seen = options.pattern == "seq";
    for i in 0..options.keys {
        let sequence = i + 1;
        let key = Key::from(key_of(&options, i, &mut random));
        let pair = options.sizes.0 + random.below(options.sizes.1 - options.sizes.0 + 1);
        let value = &mut value[..pair.saturating_sub(head) as usize];
        fill_value(sequence, value);
        let version = Version {
            key,
            kind: Kind::Value,
            value_len: value.len() as u32,
            value_crc: 0,
            sequence,
            time_ns: 0,
            user_version: 0,
            ordinal: 0,
        };
        columns.insert(&version, value)?;
        if let Some(row) = columns.wants_seal(&key) {
            let begun = cpu_seconds();
            let sealed = columns.seal(row).expect("not empty");
            let built = cpu_seconds();
            let at = flash.program(&sealed.image)?;
            let programmed = cpu_seconds();
            columns.install(&sealed, at);
            flash_seconds += programmed - built;
            seal_seconds += cpu_seconds() - begun - (programmed - built);
            sealed_records += u64::from(sealed.records);
            sealed_bytes += sealed.record_bytes as u64;
        }
    }
    let insert_seconds = cpu_seconds() - start;
    let segments = columns.segment_count();
    let segment_bytes = parameters.segment_bytes() as f64;
    println!(
        "keys {} pattern {} sizes {:?} rows {} segments {segments}",
        options.keys, options.pattern, options.sizes, parameters.rows
    );
    println!("utilisation            {:.4}", sealed_bytes as f64 / (segments as f64 * segment_bytes));
    let writes = flash.page_writes as f64 / sealed_records as f64;
    println!("page writes per insert {writes:.5}");
    let memory = columns.memory();
    println!(
        "DRAM per sealed key    {:.4} B; buffer {} B",
        memory.index_bytes as f64 / sealed_records as f64,
        memory.buffer_bytes
    );
    let per_key = |seconds: f64| seconds * 1e6 / options.keys as f64;
    let insert = per_key(insert_seconds - flash_seconds);
    println!(
        "insert                 {insert:.3} us CPU per key, value made up included; {:.3} sealing",
        per_key(seal_seconds)
    );
    let (all, live) = columns.live_estimate();
    println!("live estimate          {:.4}", live as f64 / all as f64);
    let n = options.lookups;
    let timed = |what: &str, flash: &mut MadeUpFlash, keys: &mut dyn Iterator<Item = (u64, Option<u64>)>| {
        let start = cpu_seconds();
        let reads = look_up(&columns, flash, keys)?;
        reads.print(what, cpu_seconds() - start);
        Ok::<(), Error>(())
    };
    let sequence_of = |key: u64| keys_seen.then_some(key + 1);
    let total = options.keys;
    let any = |random: &mut Random| {
        let key = random.below(total);
        (key, sequence_of(key))
    };
    timed("average age", &mut flash, &mut (0..n).map(|_| any(&mut random)))?;
    let oldest = (total / 50).max(1);
    timed(
        "oldest 2 %",
        &mut flash,
        &mut (0..n).map(|_| {
            let key = random.below(oldest);
            (key, sequence_of(key))
        }),
    )?;
    let start = cpu_seconds();
    let probed = (0..n).filter(|i| columns.search(&Key::from(1 << 61 | i), u64::MAX).next().is_some()).count();
    let us = (cpu_seconds() - start) * 1e6 / n as f64;
    println!("absent, memory only    {us:.3} us CPU, {probed} candidates");
    timed("absent", &mut flash, &mut (0..n).map(|i| (1 << 60 | i, None)))?;
    Ok(())
}
