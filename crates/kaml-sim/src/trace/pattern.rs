//! Lines that a regular expression describes.
//!
//! Lives here:       the names of groups and what they mean.

use super::formats::{TextLine, decimal, number_of, scaled, shown};
use super::{Extent, TraceError, TraceOp, TraceRecord};
use regex::bytes::Regex;

/// A regular expression with the groups `op`, `size`, and `offset` (block traces) or `key` (cache traces); `time` and `volume` if it likes.
///
/// ```
/// let pattern = kaml_sim::Pattern::new(r"(?<op>[RW]) (?<offset>\d+)\+(?<size>\d+)", 1, 512);
/// assert!(pattern.is_ok());
/// assert!(kaml_sim::Pattern::new("no groups", 1, 1).is_err());
/// ```
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
    time_ns: u64,
    unit_bytes: u64,
    is_blocks: bool,
}

/// Why a regular expression describes no trace.
#[derive(Debug, thiserror::Error)]
pub enum PatternError {
    /// It is none.
    #[error(transparent)]
    Syntax(#[from] regex::Error),
    /// A group is missing.
    #[error("the regular expression has no group `{0}`; write for example (?<{0}>\\d+)")]
    Group(&'static str),
    /// It has both or none of the groups that distinguish blocks and objects.
    #[error("the regular expression needs either a group `offset` (a block trace) or a group `key` (a cache trace)")]
    Kind,
}

impl Pattern {
    /// A description. Times are in units of `time_ns` nanoseconds, offsets and sizes in units of `unit_bytes` bytes.
    ///
    /// # Errors
    /// It is no regular expression, or groups are missing.
    pub fn new(text: &str, time_ns: u64, unit_bytes: u64) -> Result<Pattern, PatternError> {
        let regex = Regex::new(text)?;
        let has = |name: &str| regex.capture_names().flatten().any(|group| group == name);
        let is_blocks = match (has("offset"), has("key")) {
            (true, false) => true,
            (false, true) => false,
            _ => return Err(PatternError::Kind),
        };
        match ["op", "size"].into_iter().find(|name| !has(name)) {
            Some(missing) => Err(PatternError::Group(missing)),
            None => Ok(Pattern { regex, time_ns, unit_bytes, is_blocks }),
        }
    }

    pub(super) fn read(&self, line: &TextLine<'_>) -> Result<TraceRecord, TraceError> {
        let no_match = || TraceError::NoMatch { line: line.number, found: shown(line.text) };
        let groups = self.regex.captures(line.text).ok_or_else(no_match)?;
        let group = |name: &str| groups.name(name).map(|found| found.as_bytes());
        let bad = |name: &'static str, expected: &'static str| TraceError::Field {
            line: line.number,
            name,
            found: shown(group(name).unwrap_or(b"")),
            format: line.format,
            expected,
        };
        let units = |name: &str| decimal(group(name)?)?.checked_mul(self.unit_bytes);
        let at_ns = match group("time") {
            Some(time) => scaled(time, self.time_ns).ok_or_else(|| bad("time", "a time that is not negative"))?,
            None => 0,
        };
        let size = || {
            units("size").and_then(|bytes| u32::try_from(bytes).ok()).ok_or_else(|| bad("size", "a size below 4 GiB"))
        };
        let op = group("op").unwrap_or(b"").to_ascii_lowercase();
        let op = match (&op[..], self.is_blocks) {
            (b"r" | b"read" | b"w" | b"write", true) => {
                let offset = units("offset").filter(|offset| *offset < 1 << 62);
                let offset = offset.ok_or_else(|| bad("offset", "an offset below 2^62 bytes"))?;
                let extent = Extent { volume: group("volume").map_or(0, number_of), offset, bytes: size()? };
                if op[0] == b'r' { TraceOp::Read(extent) } else { TraceOp::Write(extent) }
            }
            (_, true) => return Err(bad("op", "r, read, w or write")),
            (op, false) => {
                let key = number_of(group("key").unwrap_or(b""));
                match op {
                    b"r" | b"read" | b"g" | b"get" => TraceOp::Get { key, fill: None },
                    b"w" | b"write" | b"p" | b"put" | b"s" | b"set" => TraceOp::Put { key, bytes: size()? },
                    b"d" | b"del" | b"delete" => TraceOp::Delete { key },
                    _ => return Err(bad("op", "get, put or delete")),
                }
            }
        };
        Ok(TraceRecord { at_ns, op })
    }
}
