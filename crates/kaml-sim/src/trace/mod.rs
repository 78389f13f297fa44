//! Traces of real workloads, read as a stream: block traces, cache traces, and lines that a regular expression describes.
//!
//! Lives here:       records, the formats by name, errors with the line and the remedy.
//! Lives elsewhere:  the fields of each format (`formats`), bounded lines (`lines`), replaying (`rig`).
//! Implements:       docs/guide/research.md "Traces".
//!
//! Memory does not grow with the trace: one line, and the operations that it means.

mod formats;
mod lines;
mod pattern;

pub use pattern::{Pattern, PatternError};

use lines::Input;
use std::collections::VecDeque;
use std::io::BufRead;

/// One operation of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceRecord {
    /// When it was requested, in nanoseconds; only differences mean something.
    pub at_ns: u64,
    /// What was requested.
    pub op: TraceOp,
}

/// What a record of a trace requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceOp {
    /// A read of bytes of a volume.
    Read(Extent),
    /// A write of bytes of a volume.
    Write(Extent),
    /// A get of an object; a cache stores that many bytes after a miss.
    Get {
        /// The object.
        key: u64,
        /// Its bytes, if it has to be stored.
        fill: Option<u32>,
    },
    /// A put of an object.
    Put {
        /// The object.
        key: u64,
        /// Its bytes.
        bytes: u32,
    },
    /// A delete of an object.
    Delete {
        /// The object.
        key: u64,
    },
}

/// Bytes of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The volume; numbers and hashes of names.
    pub volume: u64,
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub bytes: u32,
}

/// A format of traces.
#[derive(Clone, Debug)]
pub enum TraceFormat {
    /// MSR Cambridge: `time,host,disk,Read|Write,offset,bytes,response`, time in units of 100 ns.
    Msr,
    /// Alibaba: `device,R|W,offset,bytes,time`, time in microseconds.
    Alibaba,
    /// Tencent: `time,offset,size,0|1,volume`, time in seconds, offset and size in sectors of 512 bytes, 1 is a write.
    Tencent,
    /// MQSim and DiskSim: `time device sector sectors 0|1`, time in nanoseconds, or in milliseconds if it has a point; 1 is a read.
    Mqsim,
    /// Twitter: `time,key,key bytes,value bytes,client,operation,TTL`, time in seconds.
    Twitter,
    /// CacheLib: a head that names the columns `key`, `op`, `size`, and if it likes `op_time` and `op_count`.
    Cachelib,
    /// libCacheSim's oracleGeneral: 24 bytes for each get: time, object, bytes, next access.
    OracleGeneral,
    /// Mooncake FAST'25: a request of JSON for each line, with the hashes of its blocks; each block is an object of so many bytes.
    Mooncake {
        /// Bytes of the cached keys and values of a block of 512 tokens.
        block_bytes: u32,
    },
    /// Lines that a regular expression describes.
    Regex(Box<Pattern>),
}

/// Why a trace cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("line {line}: {error}")]
    Io {
        /// The line, from 1.
        line: u64,
        /// The system's error.
        error: std::io::Error,
    },
    /// A line without end.
    #[error(
        "line {line} is longer than {most} bytes; this is no text of the format {format}, or it must be decompressed first"
    )]
    TooLong {
        /// The line, from 1.
        line: u64,
        /// The longest that is read.
        most: usize,
        /// The format.
        format: &'static str,
    },
    /// A line with too few fields.
    #[error(
        "line {line} has no field {field} ({name}); {format} has the fields {fields}; choose another --format, or --skip-bad"
    )]
    Missing {
        /// The line, from 1.
        line: u64,
        /// The field, from 1.
        field: usize,
        /// Its meaning.
        name: &'static str,
        /// The format.
        format: &'static str,
        /// All fields of the format.
        fields: &'static str,
    },
    /// A field with something else than the format has there.
    #[error(
        "line {line}: {name} is `{found}`, but {format} has {expected} there; mend the line, choose another --format, or --skip-bad"
    )]
    Field {
        /// The line, from 1.
        line: u64,
        /// The field's meaning.
        name: &'static str,
        /// The beginning of its contents.
        found: String,
        /// The format.
        format: &'static str,
        /// What the format has there.
        expected: &'static str,
    },
    /// The file ends within a record.
    #[error(
        "record {record} has {found} bytes of {bytes}; the file is cut short: fetch it again, or --skip-bad to leave the end out"
    )]
    CutShort {
        /// The record, from 1.
        record: u64,
        /// Its bytes in the file.
        found: usize,
        /// The bytes of a record.
        bytes: usize,
    },
    /// The bytes are those of an archive.
    #[error("the trace is compressed; pipe it through `{tool}` and give - as its name")]
    Compressed {
        /// What decompresses it.
        tool: &'static str,
    },
    /// A line that the regular expression does not match.
    #[error("line {line} does not match the regular expression: `{found}`; change --regex, or --skip-bad")]
    NoMatch {
        /// The line, from 1.
        line: u64,
        /// Its beginning.
        found: String,
    },
}

impl TraceError {
    /// Whether the lines after this one can be read.
    pub fn is_of_one_line(&self) -> bool {
        matches!(self, TraceError::Missing { .. } | TraceError::Field { .. } | TraceError::NoMatch { .. })
            || matches!(self, TraceError::CutShort { .. })
    }
}

impl TraceFormat {
    /// The names of all formats.
    pub const NAMES: [&'static str; 9] =
        ["msr", "alibaba", "tencent", "mqsim", "twitter", "cachelib", "oraclegeneral", "mooncake", "regex"];

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            TraceFormat::Msr => "msr",
            TraceFormat::Alibaba => "alibaba",
            TraceFormat::Tencent => "tencent",
            TraceFormat::Mqsim => "mqsim",
            TraceFormat::Twitter => "twitter",
            TraceFormat::Cachelib => "cachelib",
            TraceFormat::OracleGeneral => "oraclegeneral",
            TraceFormat::Mooncake { .. } => "mooncake",
            TraceFormat::Regex(_) => "regex",
        }
    }
}

/// Reads a trace, record by record.
///
/// ```
/// use kaml_sim::{TraceFormat, TraceOp, TraceReader};
/// let text = "128166372003061629,hm,1,Read,383496192,32768,113736\n";
/// let mut trace = TraceReader::new(text.as_bytes(), TraceFormat::Msr);
/// let record = trace.next().unwrap().unwrap();
/// assert!(matches!(record.op, TraceOp::Read(extent) if extent.bytes == 32768));
/// assert!(trace.next().is_none());
/// ```
pub struct TraceReader<R> {
    input: Input<R>,
    format: TraceFormat,
    /// Operations of the last line that are not returned yet.
    queued: VecDeque<TraceRecord>,
    columns: Option<formats::Columns>,
    skip_bad: bool,
    skipped: u64,
    is_over: bool,
}

impl<R: BufRead> TraceReader<R> {
    /// A reader of a format.
    pub fn new(input: R, format: TraceFormat) -> TraceReader<R> {
        TraceReader {
            input: Input::new(input),
            format,
            queued: VecDeque::new(),
            columns: None,
            skip_bad: false,
            skipped: 0,
            is_over: false,
        }
    }

    /// Leaves out lines that cannot be understood, and counts them.
    #[must_use]
    pub fn skipping_bad(mut self, skip_bad: bool) -> TraceReader<R> {
        self.skip_bad = skip_bad;
        self
    }

    /// Lines that were left out.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Bytes of the input that were read.
    pub fn bytes_read(&self) -> u64 {
        self.input.bytes
    }

    /// Reads the next line; false at the end.
    fn refill(&mut self) -> Result<bool, TraceError> {
        let name = self.format.name();
        if let TraceFormat::OracleGeneral = self.format {
            let Some(bytes) = self.input.record::<{ formats::ORACLE_BYTES }>()? else { return Ok(false) };
            self.queued.push_back(formats::oracle(&bytes));
            return Ok(true);
        }
        let Some((line, text)) = self.input.line(name)? else { return Ok(false) };
        if text.trim_ascii().is_empty() {
            return Ok(true);
        }
        let line = formats::TextLine { number: line, text, format: name };
        let record = match &self.format {
            TraceFormat::Msr => line.msr()?,
            TraceFormat::Alibaba => line.alibaba()?,
            TraceFormat::Tencent => line.tencent()?,
            TraceFormat::Mqsim => line.mqsim()?,
            TraceFormat::Twitter => line.twitter()?,
            TraceFormat::Cachelib => match &self.columns {
                Some(columns) => {
                    let (record, count) = line.cachelib(columns)?;
                    self.queued.extend(std::iter::repeat_n(record, count));
                    return Ok(true);
                }
                None => {
                    self.columns = Some(line.columns()?);
                    return Ok(true);
                }
            },
            TraceFormat::Mooncake { block_bytes } => {
                line.mooncake(*block_bytes, &mut self.queued)?;
                return Ok(true);
            }
            TraceFormat::Regex(pattern) => pattern.read(&line)?,
            TraceFormat::OracleGeneral => unreachable!("not of lines"),
        };
        self.queued.push_back(record);
        Ok(true)
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<TraceRecord, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(record) = self.queued.pop_front() {
                return Some(Ok(record));
            }
            if self.is_over {
                return None;
            }
            match self.refill() {
                Ok(true) => {}
                Ok(false) => self.is_over = true,
                Err(error) if self.skip_bad && error.is_of_one_line() => self.skipped += 1,
                Err(error) => {
                    self.is_over = true;
                    return Some(Err(error));
                }
            }
        }
    }
}
