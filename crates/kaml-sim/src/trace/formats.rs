//! The fields of each format.
//!
//! Lives here:       what a line means.
//! Lives elsewhere:  lines (`lines`), regular expressions (`pattern`).
//!
//! | format | source |
//! |---|---|
//! | msr | Narayanan et al., FAST '08; SNIA IOTTA |
//! | alibaba | github.com/alibaba/block-traces |
//! | tencent | Zhang et al., ATC '20; SNIA IOTTA |
//! | mqsim | MQSim's ASCII traces, as DiskSim's |
//! | twitter | github.com/twitter/cache-trace |
//! | cachelib | CacheLib's kvcache traces |
//! | oraclegeneral | libCacheSim |
//! | mooncake | github.com/kvcache-ai/Mooncake, FAST25-release |

use super::{Extent, TraceError, TraceOp, TraceRecord};
use crate::rng::mix;
use serde::Deserialize;
use std::collections::VecDeque;

/// Bytes of a record of oracleGeneral.
pub(super) const ORACLE_BYTES: usize = 24;
/// A sector of Tencent's and MQSim's traces.
const SECTOR_BYTES: u64 = 512;
/// One record of CacheLib can mean at most so many operations; more are a mistake.
const OP_COUNT_MAX: u64 = 1 << 20;

/// A line with what errors about it contain.
pub(super) struct TextLine<'a> {
    pub(super) number: u64,
    pub(super) text: &'a [u8],
    pub(super) format: &'static str,
}

/// Where CacheLib's columns are.
pub(super) struct Columns {
    key: usize,
    op: usize,
    size: usize,
    time: Option<usize>,
    count: Option<usize>,
}

/// The beginning of a text, to be shown.
pub(super) fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(60)]).into_owned()
}

/// A decimal number.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |number, digit| {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 { None } else { number.checked_mul(10)?.checked_add(digit.into()) }
    })
}

/// A decimal number with parts, times a power of ten that makes parts whole.
pub(super) fn scaled(text: &[u8], scale: u64) -> Option<u64> {
    let Some(point) = text.iter().position(|byte| *byte == b'.') else { return decimal(text)?.checked_mul(scale) };
    let (whole, parts) = (&text[..point], &text[point + 1..]);
    let whole = if whole.is_empty() { 0 } else { decimal(whole)? }.checked_mul(scale)?;
    let mut weight = scale;
    let parts = parts.iter().try_fold(0u64, |sum, digit| {
        let digit = digit.wrapping_sub(b'0');
        weight /= 10;
        if digit > 9 { None } else { sum.checked_add(u64::from(digit) * weight) }
    })?;
    whole.checked_add(parts)
}

/// A number of a name: itself if it is one, or a hash.
pub(super) fn number_of(name: &[u8]) -> u64 {
    decimal(name).unwrap_or_else(|| {
        // FNV-1a, and mixed: names differ in their last letters.
        mix(name
            .iter()
            .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3)))
    })
}

type Result<T> = std::result::Result<T, TraceError>;

/// The fields of a line, split.
struct Fields<'a, const N: usize> {
    line: &'a TextLine<'a>,
    all: [&'a [u8]; N],
    names: &'static str,
}

impl<'a> TextLine<'a> {
    fn bad(&self, name: &'static str, found: &[u8], expected: &'static str) -> TraceError {
        TraceError::Field { line: self.number, name, found: shown(found), format: self.format, expected }
    }

    /// The first fields; there can be more.
    fn fields<const N: usize>(
        &'a self,
        mut split: impl Iterator<Item = &'a [u8]>,
        names: &'static str,
    ) -> Result<Fields<'a, N>> {
        let mut all = [&b""[..]; N];
        for (i, field) in all.iter_mut().enumerate() {
            *field = split.next().map(<[u8]>::trim_ascii).ok_or_else(|| TraceError::Missing {
                line: self.number,
                field: i + 1,
                name: names.split(',').nth(i).unwrap_or(""),
                format: self.format,
                fields: names,
            })?;
        }
        Ok(Fields { line: self, all, names })
    }

    fn commas(&'a self) -> impl Iterator<Item = &'a [u8]> {
        self.text.split(|byte| *byte == b',')
    }

    pub(super) fn msr(&self) -> Result<TraceRecord> {
        let fields = self.fields::<6>(self.commas(), "time,host,disk,type,offset,size")?;
        let op = match fields.all[3] {
            b"Read" | b"read" => TraceOp::Read,
            b"Write" | b"write" => TraceOp::Write,
            other => return Err(self.bad("type", other, "Read or Write")),
        };
        let volume = number_of(fields.all[1]) ^ mix(fields.number(2)?);
        let extent = Extent { volume, offset: fields.offset(4, 1)?, bytes: fields.bytes(5, 1)? };
        Ok(TraceRecord { at_ns: fields.number(0)?.wrapping_mul(100), op: op(extent) })
    }

    pub(super) fn alibaba(&self) -> Result<TraceRecord> {
        let fields = self.fields::<5>(self.commas(), "device,opcode,offset,length,time")?;
        let op = match fields.all[1] {
            b"R" | b"r" => TraceOp::Read,
            b"W" | b"w" => TraceOp::Write,
            other => return Err(self.bad("opcode", other, "R or W")),
        };
        let extent =
            Extent { volume: number_of(fields.all[0]), offset: fields.offset(2, 1)?, bytes: fields.bytes(3, 1)? };
        Ok(TraceRecord { at_ns: fields.time(4, 1_000)?, op: op(extent) })
    }

    pub(super) fn tencent(&self) -> Result<TraceRecord> {
        let fields = self.fields::<5>(self.commas(), "time,offset,size,type,volume")?;
        let op = match fields.all[3] {
            b"0" => TraceOp::Read,
            b"1" => TraceOp::Write,
            other => return Err(self.bad("type", other, "0 (read) or 1 (write)")),
        };
        let extent = Extent {
            volume: number_of(fields.all[4]),
            offset: fields.offset(1, SECTOR_BYTES)?,
            bytes: fields.bytes(2, SECTOR_BYTES)?,
        };
        Ok(TraceRecord { at_ns: fields.time(0, 1_000_000_000)?, op: op(extent) })
    }

    pub(super) fn mqsim(&self) -> Result<TraceRecord> {
        let split = self.text.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        let fields = self.fields::<5>(split, "time,device,sector,sectors,type")?;
        let op = match fields.all[4] {
            b"1" => TraceOp::Read,
            b"0" => TraceOp::Write,
            other => return Err(self.bad("type", other, "0 (write) or 1 (read)")),
        };
        let is_ms = fields.all[0].contains(&b'.');
        let extent = Extent {
            volume: number_of(fields.all[1]),
            offset: fields.offset(2, SECTOR_BYTES)?,
            bytes: fields.bytes(3, SECTOR_BYTES)?,
        };
        Ok(TraceRecord { at_ns: fields.time(0, if is_ms { 1_000_000 } else { 1 })?, op: op(extent) })
    }

    pub(super) fn twitter(&self) -> Result<TraceRecord> {
        let fields = self.fields::<6>(self.commas(), "time,key,key size,value size,client,operation")?;
        let (key, bytes) = (number_of(fields.all[1]), fields.bytes(3, 1)?);
        let op = match fields.all[5] {
            b"get" | b"gets" => TraceOp::Get { key, fill: None },
            b"set" | b"add" | b"replace" | b"cas" | b"append" | b"prepend" | b"incr" | b"decr" => {
                TraceOp::Put { key, bytes }
            }
            b"delete" => TraceOp::Delete { key },
            other => return Err(self.bad("operation", other, "an operation of memcached, as get or set")),
        };
        Ok(TraceRecord { at_ns: fields.time(0, 1_000_000_000)?, op })
    }

    /// The head of a CacheLib trace.
    pub(super) fn columns(&self) -> Result<Columns> {
        let at = |name: &[u8]| self.commas().position(|column| column.trim_ascii() == name);
        let needed = |name: &'static str| {
            at(name.as_bytes()).ok_or_else(|| self.bad("the head", self.text, "the columns key, op and size"))
        };
        Ok(Columns {
            key: needed("key")?,
            op: needed("op")?,
            size: needed("size")?,
            time: at(b"op_time"),
            count: at(b"op_count"),
        })
    }

    /// A record, and how often it comes.
    pub(super) fn cachelib(&self, columns: &Columns) -> Result<(TraceRecord, usize)> {
        let at = |column: usize, name: &'static str| {
            self.commas().nth(column).map(<[u8]>::trim_ascii).ok_or(TraceError::Missing {
                line: self.number,
                field: column + 1,
                name,
                format: self.format,
                fields: "of its first line",
            })
        };
        let number = |column: usize, name: &'static str| {
            let field = at(column, name)?;
            decimal(field).ok_or_else(|| self.bad(name, field, "a whole number"))
        };
        let key = number_of(at(columns.key, "key")?);
        let size = number(columns.size, "size")?;
        let bytes = u32::try_from(size).unwrap_or(u32::MAX);
        let op = match at(columns.op, "op")? {
            b"GET" | b"get" | b"GET_LEASE" | b"1" => TraceOp::Get { key, fill: Some(bytes).filter(|bytes| *bytes > 0) },
            b"SET" | b"set" | b"SET_LEASE" | b"2" => TraceOp::Put { key, bytes },
            b"DELETE" | b"delete" | b"3" => TraceOp::Delete { key },
            other => return Err(self.bad("op", other, "GET, GET_LEASE, SET, SET_LEASE or DELETE")),
        };
        let seconds = columns.time.map_or(Ok(0), |column| number(column, "op_time"))?;
        let count = columns.count.map_or(Ok(1), |column| number(column, "op_count"))?;
        if count > OP_COUNT_MAX {
            return Err(self.bad("op_count", count.to_string().as_bytes(), "at most 2^20 operations"));
        }
        Ok((TraceRecord { at_ns: seconds.saturating_mul(1_000_000_000), op }, count as usize))
    }

    pub(super) fn mooncake(&self, block_bytes: u32, into: &mut VecDeque<TraceRecord>) -> Result<()> {
        #[derive(Deserialize)]
        struct Request {
            timestamp: f64,
            hash_ids: Vec<u64>,
        }
        let expected = "a request with timestamp (milliseconds) and hash_ids (numbers)";
        let request: Request =
            serde_json::from_slice(self.text).map_err(|_| self.bad("the line", self.text, expected))?;
        let at_ns = (request.timestamp * 1e6) as u64;
        let get = |key| TraceRecord { at_ns, op: TraceOp::Get { key, fill: Some(block_bytes) } };
        into.extend(request.hash_ids.into_iter().map(get));
        Ok(())
    }
}

/// A record of oracleGeneral: every access is a get, and the object is stored after a miss.
pub(super) fn oracle(record: &[u8; ORACLE_BYTES]) -> TraceRecord {
    let four = |at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
    let key = u64::from(four(4)) | u64::from(four(8)) << 32;
    TraceRecord { at_ns: u64::from(four(0)) * 1_000_000_000, op: TraceOp::Get { key, fill: Some(four(12)) } }
}

impl<const N: usize> Fields<'_, N> {
    fn name(&self, field: usize) -> &'static str {
        self.names.split(',').nth(field).unwrap_or("")
    }

    fn number(&self, field: usize) -> Result<u64> {
        decimal(self.all[field]).ok_or_else(|| self.line.bad(self.name(field), self.all[field], "a whole number"))
    }

    fn time(&self, field: usize, scale: u64) -> Result<u64> {
        scaled(self.all[field], scale)
            .ok_or_else(|| self.line.bad(self.name(field), self.all[field], "a time that is not negative"))
    }

    fn offset(&self, field: usize, unit: u64) -> Result<u64> {
        let offset = self.number(field)?.checked_mul(unit).filter(|offset| *offset < 1 << 62);
        offset.ok_or_else(|| self.line.bad(self.name(field), self.all[field], "an offset below 2^62 bytes"))
    }

    fn bytes(&self, field: usize, unit: u64) -> Result<u32> {
        let bytes = self.number(field)?.checked_mul(unit).and_then(|bytes| u32::try_from(bytes).ok());
        bytes.ok_or_else(|| self.line.bad(self.name(field), self.all[field], "a size below 4 GiB"))
    }
}
