//! Reading all that is whole of a damaged device, into another one if there is one.
//!
//! Lives here:       records and blocks one after the other; what could not be read, and what the new device did not take.
//! Lives elsewhere:  the new device (`target`), what is shown (`salvage`).

use super::target::Target;
use super::{Missing, Report, Space};
use crate::commands::export::for_each_key;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::{keys, place};
use kaml::{Batch, BlockOptions, Device, Expiry, KeyBuf, NamespaceId, NamespaceInfo, NamespaceKind, SalvageReport};
use kaml_terminal::progress::named_bar;
use serde_json::{Map, Value, json};

/// Records of one Put to the new device.
const BATCH_RECORDS: usize = 256;
/// Blocks read at a time, in bytes.
const BLOCKS_BYTES: u64 = 1 << 20;

/// A damaged device and what is known of it.
pub struct Source<'a> {
    pub device: &'a Device,
    pub found: &'a SalvageReport,
    pub interrupt: &'a Interrupt,
}

/// How reading ended.
pub enum Copied {
    /// All was read.
    All(Report),
    /// The new device is full, and a larger one can be made.
    TooSmall,
}

impl Source<'_> {
    /// Reads everything. A target that does not take a record is too small if it `may_grow`; else the record is missing in it.
    pub fn copy(&self, target: Option<&Target>, may_grow: bool) -> Result<Copied, Failure> {
        let mut report = Report { problems: self.found.problems.clone(), ..Report::default() };
        for (_, name) in &self.found.dropped {
            report.problems.push(format!("namespace {name:?}: nothing of it can be read"));
        }
        let infos = self.device.namespaces();
        let mut into = Vec::new();
        // All of them before the first record: buffers of versions need room that records may take.
        for info in &infos {
            match target.map(|target| target.namespace_like(info)).transpose() {
                Ok(namespace) => into.push(namespace),
                Err(error) if may_grow && is_full(&error) => return Ok(Copied::TooSmall),
                Err(error) => return Err(error.into()),
            }
        }
        let limit = target.map_or(0, |target| place::batch_limit(target.device()));
        for (info, into) in infos.iter().zip(into) {
            let rebuilt = self.found.rebuilt.contains(&info.id);
            let space = Space { name: info.name.clone(), rebuilt, ..Space::default() };
            let target = target.map(Target::device).zip(into);
            let missing = &mut report.missing;
            let pending = Pending { batch: Batch::new(), records: Vec::new(), limit, too_long: None };
            let mut copy = Copy { source: self, info, target, may_grow, is_too_small: false, pending, space, missing };
            match copy.run() {
                Err(_) if copy.is_too_small => return Ok(Copied::TooSmall),
                run => run?,
            }
            report.namespaces.push(copy.space);
        }
        Ok(Copied::All(report))
    }
}

/// Whether a larger device would take what was refused.
fn is_full(error: &kaml::Error) -> bool {
    matches!(error, kaml::Error::Full { .. } | kaml::Error::BadVersionOptions(_))
}

/// Whether a record was refused for what it is, and another one can be taken.
fn is_refusal(error: &kaml::Error) -> bool {
    matches!(error, kaml::Error::Full { .. }) || error.is_too_large()
}

/// One namespace on its way.
struct Copy<'a> {
    source: &'a Source<'a>,
    info: &'a NamespaceInfo,
    target: Option<(&'a Device, NamespaceId)>,
    may_grow: bool,
    is_too_small: bool,
    pending: Pending,
    space: Space,
    missing: &'a mut Vec<Missing>,
}

/// Records that are read and not stored yet.
struct Pending {
    batch: Batch,
    records: Vec<(KeyBuf, Vec<u8>, Expiry)>,
    /// Bytes of a batch at most.
    limit: u64,
    /// Length of the shortest value for which the new device had no room, and why: longer ones are not tried any more.
    too_long: Option<(usize, String)>,
}

impl Copy<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        match self.info.kind {
            NamespaceKind::Blocks(options) => return self.blocks(&options),
            NamespaceKind::Records(_) | NamespaceKind::Versions(..) => {}
        }
        let bar = named_bar(self.info.record_count, &self.info.name);
        let (device, id) = (self.source.device, self.info.id);
        for_each_key(device, id, |key| {
            self.check_interrupt()?;
            bar.inc(1);
            self.record(key)
        })?;
        self.flush()?;
        bar.finish_and_clear();
        Ok(())
    }

    fn check_interrupt(&self) -> Result<(), Failure> {
        let left = if self.target.is_some() { "; no new device was made" } else { "" };
        let (count, name) = (self.space.records, &self.info.name);
        self.source.interrupt.check(|| format!("{count} records of {name:?} were read{left}"))
    }

    fn record(&mut self, key: KeyBuf) -> Result<(), Failure> {
        match self.source.device.get(self.info.id, &key) {
            Ok(Some(value)) => {
                self.space.records += 1;
                self.space.value_bytes += value.len() as u64;
                let Some((_, id)) = self.target else { return Ok(()) };
                let Pending { batch, limit, .. } = &self.pending;
                if batch.len() == BATCH_RECORDS || place::is_full(batch, value.len(), *limit) {
                    self.flush()?;
                }
                let expiry = match self.info.kind {
                    NamespaceKind::Records(_) => {
                        self.source.device.expiry(self.info.id, &key)?.unwrap_or(Expiry::Never)
                    }
                    NamespaceKind::Blocks(_) | NamespaceKind::Versions(..) => Expiry::Default,
                };
                self.pending.batch.put(id, &key, &value).expires(expiry);
                self.pending.records.push((key, value, expiry));
            }
            Ok(None) => {}
            Err(error) => {
                self.space.unreadable += 1;
                self.miss(keys::show(&key, self.info.keys()), keys::to_json(&key, self.info.keys()), error.to_string());
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let Some((device, id)) = self.target.filter(|_| !self.pending.batch.is_empty()) else { return Ok(()) };
        let written = device.write(&self.pending.batch);
        self.pending.batch.clear();
        let records = std::mem::take(&mut self.pending.records);
        if self.refusal(written)?.is_none() {
            return Ok(());
        }
        // Others of the batch may still be taken.
        for (key, value, expiry) in records {
            if let Some(why) = self.put(device, id, &key, (&value, expiry))? {
                self.space.records -= 1;
                self.space.value_bytes -= value.len() as u64;
                self.space.refused += 1;
                self.miss(keys::show(&key, self.info.keys()), keys::to_json(&key, self.info.keys()), why);
            }
        }
        Ok(())
    }

    /// Puts one record; returns the reason if it is refused.
    fn put(
        &mut self,
        device: &Device,
        id: NamespaceId,
        key: &KeyBuf,
        (value, expiry): (&[u8], Expiry),
    ) -> Result<Option<String>, Failure> {
        if let Some((_, why)) = self.pending.too_long.as_ref().filter(|(length, _)| value.len() >= *length) {
            return Ok(Some(why.clone()));
        }
        let refused = self.refusal(device.put_expiring(id, key, value, expiry))?;
        if let Some(why) = &refused {
            self.pending.too_long = Some((value.len(), why.clone()));
        }
        Ok(refused)
    }

    /// Why the new device does not take something, if that is no failure of all of it.
    fn refusal(&mut self, written: Result<(), kaml::Error>) -> Result<Option<String>, Failure> {
        match written {
            Ok(()) => Ok(None),
            Err(error) => {
                self.is_too_small = self.may_grow && is_full(&error);
                if self.is_too_small || !is_refusal(&error) { Err(error.into()) } else { Ok(Some(error.to_string())) }
            }
        }
    }

    fn miss(&mut self, what: String, key: Map<String, Value>, why: String) {
        self.missing.push(Missing { namespace: self.info.name.clone(), what, key, why });
    }

    fn miss_block(&mut self, block: u64, why: String) {
        self.miss(format!("block {block}"), Map::from_iter([("block".to_owned(), json!(block))]), why);
    }

    /// Blocks that hold something else than zeroes; block by block where a read of many fails.
    fn blocks(&mut self, options: &BlockOptions) -> Result<(), Failure> {
        let block_bytes = u64::from(options.block_bytes);
        let step = (BLOCKS_BYTES / block_bytes).max(1);
        let mut bytes = vec![0; (step * block_bytes) as usize];
        for first in (0..options.block_count).step_by(step as usize) {
            self.check_interrupt()?;
            let count = step.min(options.block_count - first);
            let bytes = &mut bytes[..(count * block_bytes) as usize];
            if self.source.device.block_read(self.info.id, first, bytes).is_ok() {
                self.keep_blocks(block_bytes as usize, first, bytes)?;
                continue;
            }
            for (block, bytes) in (first..).zip(bytes.chunks_mut(block_bytes as usize)) {
                match self.source.device.block_read(self.info.id, block, bytes) {
                    Ok(()) => self.keep_blocks(block_bytes as usize, block, bytes)?,
                    Err(error) => {
                        self.space.unreadable += 1;
                        self.miss_block(block, error.to_string());
                    }
                }
            }
        }
        Ok(())
    }

    fn keep_blocks(&mut self, block_bytes: usize, first: u64, bytes: &[u8]) -> Result<(), Failure> {
        let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
        let mut at = first;
        for run in bytes.chunks(block_bytes).collect::<Vec<_>>().chunk_by(|a, b| is_zero(a) == is_zero(b)) {
            if !is_zero(run[0]) {
                self.write_blocks(at, run)?;
            }
            at += run.len() as u64;
        }
        Ok(())
    }

    fn write_blocks(&mut self, first: u64, run: &[&[u8]]) -> Result<(), Failure> {
        self.space.records += run.len() as u64;
        self.space.value_bytes += (run.len() * run[0].len()) as u64;
        let Some((into, id)) = self.target else { return Ok(()) };
        if self.refusal(into.block_write(id, first, &run.concat()))?.is_none() {
            return Ok(());
        }
        for (block, bytes) in (first..).zip(run) {
            if let Some(why) = self.refusal(into.block_write(id, block, bytes))? {
                self.space.records -= 1;
                self.space.value_bytes -= bytes.len() as u64;
                self.space.refused += 1;
                self.miss_block(block, why);
            }
        }
        Ok(())
    }
}
