//! Counts what lookups and inserts cost at the paper's scale.
//!
//! Lives here:       the keys, the counters, the report.
//! Lives elsewhere:  flash that makes values up (`flash`), putting and finding (`subject`).
//! Implements:       paper:Muninn 6.3 (Figure 9); docs/versioned.md "Measured".
//!
//! Usage: `scale [--keys 50M] [--space 50M] [--buffer-mib 128] [--pattern seq|random|pareto] [--sizes 1024|64-1983] [--choices 3]
//! [--fingerprint 14] [--rows 234] [--index columns|bloom] [--combined 64] [--lookups 200K]`. A key-value pair of 1024 bytes has its header and key in it.

mod flash;
mod subject;

use flash::{MadeUpFlash, fill_value};
use kaml_versions::{BloomOptions, Columns, Error, HEADER_BYTES, Index, Key, Kind, Parameters, ValueShape, Version};
use rustix::time::{ClockId, clock_gettime};
use subject::{Meters, Subject};

/// CPU time of this thread in seconds: what else runs on the machine does not count.
fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
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

#[derive(Debug)]
struct Options {
    keys: u64,
    /// Keys are drawn from this many.
    space: Option<u64>,
    buffer_mib: u64,
    pattern: String,
    sizes: (u64, u64),
    choices: u32,
    fingerprint_bits: u32,
    rows: Option<u32>,
    bloom: bool,
    combined: u32,
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
        space: None,
        buffer_mib: 128,
        pattern: "seq".to_owned(),
        sizes: (1024, 1024),
        choices: 3,
        fingerprint_bits: 14,
        rows: None,
        bloom: false,
        combined: 64,
        lookups: 200_000,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or(format!("{name}: needs a value"))?;
        match name.as_str() {
            "--keys" => options.keys = number(&value)?,
            "--space" => options.space = Some(number(&value)?),
            "--buffer-mib" => options.buffer_mib = number(&value)?,
            "--pattern" => options.pattern = value,
            "--choices" => options.choices = number(&value)? as u32,
            "--fingerprint" => options.fingerprint_bits = number(&value)? as u32,
            "--lookups" => options.lookups = number(&value)?,
            "--rows" => options.rows = Some(number(&value)? as u32),
            "--index" => options.bloom = value == "bloom",
            "--combined" => options.combined = number(&value)? as u32,
            "--sizes" => {
                let (low, high) = value.split_once('-').unwrap_or((&value, &value));
                options.sizes = (number(low)?, number(high)?);
            }
            _ => return Err(format!("{name}: unknown")),
        }
    }
    Ok(options)
}

impl Options {
    fn space(&self) -> u64 {
        self.space.unwrap_or(self.keys)
    }

    /// The key of the `i`-th insert. Pareto is Basho's `pareto_int`: Lomax with shape 1.5 and a mean of a fifth of the
    /// largest, which few draws exceed; those are drawn again.
    fn key(&self, i: u64, random: &mut Random) -> u64 {
        match self.pattern.as_str() {
            "random" => random.below(self.space()),
            "pareto" => loop {
                let scale = self.space() as f64 * 0.2 * 0.5;
                let key = (scale * (random.unit().powf(-1.0 / 1.5) - 1.0)) as u64;
                if key < self.space() {
                    return key;
                }
            },
            _ => i % self.space(),
        }
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

/// Looks keys up and counts, with the sequence that must be found, if known.
fn look_up(
    what: &str,
    subject: &Subject,
    flash: &mut MadeUpFlash,
    keys: impl Iterator<Item = (u64, Option<u64>)>,
) -> Result<(), Error> {
    let mut reads = Reads::default();
    let begun = cpu_seconds();
    for (key, newest) in keys {
        let before = flash.page_reads;
        let found = subject.newest(flash, &Key::from(key))?;
        let pages = flash.page_reads - before;
        reads.lookups += 1;
        reads.pages += pages;
        reads.three_or_more += u64::from(pages >= 3);
        reads.missing += u64::from(found.is_none());
        reads.wrong += u64::from(newest.is_some() && found.map(|version| version.sequence) != newest);
    }
    reads.print(what, cpu_seconds() - begun);
    Ok(())
}

/// Puts all keys; prints what it cost.
fn put_all(options: &Options, subject: &mut Subject, flash: &mut MadeUpFlash) -> Result<(), Error> {
    let mut random = Random(88_172_645_463_325_252);
    let mut value = vec![0; options.sizes.1 as usize];
    let head = HEADER_BYTES as u64 + 8;
    let mut meters = Meters::default();
    let begun = cpu_seconds();
    for i in 0..options.keys {
        let key = Key::from(options.key(i, &mut random));
        let pair = options.sizes.0 + random.below(options.sizes.1 - options.sizes.0 + 1);
        let value = &mut value[..pair.saturating_sub(head) as usize];
        fill_value(i + 1, value);
        let version = Version {
            key,
            kind: Kind::Value,
            value_len: value.len() as u32,
            value_crc: 0,
            sequence: i + 1,
            time_ns: 0,
            user_version: 0,
            ordinal: 0,
        };
        subject.put(flash, &version, value, &mut meters)?;
    }
    let seconds = cpu_seconds() - begun - meters.flash_seconds;
    let sealed = meters.sealed_records as f64;
    let Subject(columns) = subject;
    let page_bytes = columns.parameters().page_bytes;
    let (segments, segment_bytes) = (columns.segment_count(), columns.parameters().segment_bytes());
    println!("segments               {segments}, {sealed} versions in them");
    let room = segments * segment_bytes as u64 - meters.table_pages * u64::from(page_bytes);
    println!("utilisation            {:.4} of the pages for versions", meters.sealed_bytes as f64 / room as f64);
    println!("page writes per insert {:.5}, tables included", flash.page_writes as f64 / sealed);
    let index_bytes = columns.memory().index_bytes;
    println!("DRAM per sealed key    {:.4} B without the page buffer", index_bytes as f64 / sealed);
    println!("insert                 {:.3} us CPU, making the value up included", seconds * 1e6 / options.keys as f64);
    let (all, live) = columns.live_estimate();
    let (all, live) = (all as f64, live as f64);
    println!("live estimate          {:.4}, truly {:.4}", live / all, flash.distinct_keys as f64 / all);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = options()?;
    let mut parameters = Parameters::for_buffer(options.buffer_mib << 20, 42);
    let shape = ValueShape { fingerprint_bits: options.fingerprint_bits, choices: options.choices };
    parameters.index = Index::Columns(shape);
    if options.bloom {
        parameters = parameters.with_bloom(&BloomOptions { combined: options.combined, ..BloomOptions::default() });
    }
    parameters.rows = options.rows.unwrap_or(parameters.rows);
    let mut subject = Subject(Columns::new(parameters)?);
    let (page_bytes, segment_pages) = (parameters.page_bytes, parameters.segment_pages);
    let mut flash = MadeUpFlash::new(page_bytes, segment_pages, options.space());
    println!("{options:?}");
    put_all(&options, &mut subject, &mut flash)?;
    let mut random = Random(1_234_567);
    let (n, keys) = (options.lookups, options.space());
    // With other patterns it is not known which put of a key was its last.
    let sequence_of = |key: u64| (options.pattern == "seq" && options.space.is_none()).then_some(key + 1);
    let mut among = |count: u64| {
        let key = random.below(count);
        (key, sequence_of(key))
    };
    look_up("average age", &subject, &mut flash, (0..n).map(|_| among(keys)))?;
    look_up("oldest 2 %", &subject, &mut flash, (0..n).map(|_| among((keys / 50).max(1))))?;
    look_up("newest 2 %", &subject, &mut flash, (0..n).map(|i| (keys - 1 - i % (keys / 50).max(1), None)))?;
    look_up("absent", &subject, &mut flash, (0..n).map(|i| (1 << 60 | i, None)))?;
    let begun = cpu_seconds();
    let hits = (0..n).filter(|i| subject.may_have(&Key::from(1 << 61 | i))).count();
    println!("absent, memory only    {:.3} us CPU, {hits} pages to read", (cpu_seconds() - begun) * 1e6 / n as f64);
    Ok(())
}
