//! `kaml salvage`: what can still be read of a damaged device, into a new one.

use super::check::bytes_bar;
use super::create::Durability;
use super::export::for_each_key;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::{output, place, size, store};
use clap::Args;
use kaml::{
    Batch, BloomOptions, CreateOptions, Device, Key, NamespaceId, NamespaceInfo, NamespaceOptions, VersionIndex,
    VersionOptions,
};
use serde::Serialize;
use std::path::PathBuf;

/// Flags of `kaml salvage`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml salvage broken.kaml                        # what can be read, and what is damaged
  kaml salvage broken.kaml --into new.kaml        # and keep it
  kaml salvage broken.kaml --into new.kaml --json

Nothing is written to the damaged device. Where an index or the journal is damaged, all pages are scanned and the newest \
record of each key counts; records that were deleted since their index was last written whole may be back then. Of \
namespaces that keep versions the newest ones are copied. Where something was written over the device's beginning, what says \
how it was made is taken from its end.

Exits with 1 if anything could not be read.")]
pub struct Arguments {
    /// The damaged device
    #[arg(value_name = "DEVICE")]
    path: PathBuf,
    /// Make this device and copy into it everything that can be read
    #[arg(long, value_name = "NEW")]
    into: Option<PathBuf>,
    /// Bytes of flash of the new device [default: as the damaged one]
    #[arg(long, short, value_parser = size::parse, requires = "into")]
    capacity: Option<u64>,
    /// What an acknowledged put to the new device survives
    #[arg(long, value_enum, default_value_t, requires = "into")]
    durability: Durability,
    /// Overwrite whatever is at NEW
    #[arg(long, requires = "into")]
    force: bool,
    /// What was found as JSON
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Default, Serialize)]
struct Report {
    namespaces: Vec<Space>,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct Space {
    name: String,
    /// Records, or blocks that hold data.
    records: u64,
    value_bytes: u64,
    unreadable: u64,
    /// Found by scanning pages.
    rebuilt: bool,
}

/// Records of one Put to the new device.
const BATCH_RECORDS: usize = 256;
/// Blocks read at a time, in bytes.
const BLOCKS_BYTES: u64 = 1 << 20;
/// Problems beyond this are counted and not told one by one.
const PROBLEMS_MAX: usize = 1000;

impl Arguments {
    /// Salvages.
    pub fn run(self) -> Result<(), Failure> {
        store::refuse_remote(&self.path)?;
        if let Some(into) = &self.into {
            store::refuse_remote(into)?;
            let is_taken = |found: std::fs::Metadata| found.is_file() && found.len() > 0;
            if !self.force && std::fs::metadata(into).is_ok_and(is_taken) {
                return Err(Failure::Failed(format!("{}: not empty; --force overwrites it", into.display())));
            }
            if store::identity(into).is_some_and(|found| Some(found) == store::identity(&self.path)) {
                return Err(Failure::Usage(format!("{}: is the damaged device itself", into.display())));
            }
        }
        let interrupt = Interrupt::listen()?;
        let bar = bytes_bar(0).with_message("blocks scanned");
        let (device, found) = Device::salvage(&self.path, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        })?;
        bar.finish_and_clear();
        let into = self.new_device(&device)?;
        let limit = into.as_ref().map_or(0, |into| place::batch_limit(into));
        let mut report = Report { problems: found.problems, ..Report::default() };
        for (_, name) in &found.dropped {
            report.problems.push(format!("namespace {name:?}: nothing of it can be read"));
        }
        for info in device.namespaces() {
            let rebuilt = found.rebuilt.contains(&info.id);
            let mut space = Space { name: info.name.clone(), records: 0, value_bytes: 0, unreadable: 0, rebuilt };
            let target = into.as_ref().map(|into| like(into, &info)).transpose()?;
            let batch = Batch::new();
            let mut copy = Copy { device: &device, info: &info, target, batch, limit, space: &mut space };
            copy.run(&interrupt, &mut report.problems)?;
            report.namespaces.push(space);
        }
        if let Some(into) = into {
            into.close()?;
        }
        self.show(report)
    }

    fn new_device(&self, device: &Device) -> Result<Option<Device>, Failure> {
        let Some(path) = &self.into else { return Ok(None) };
        let size = std::fs::metadata(&self.path).map_err(Failure::io(self.path.display()))?.len();
        // A block device says nothing of its size there; flash is more than eight ninths of a device.
        let known = if size > 0 { size } else { device.info().flash_bytes * 9 / 8 };
        let capacity = self.capacity.unwrap_or(known);
        let durability = self.durability.into();
        let options = CreateOptions { durability, force: self.force, ..CreateOptions::new(capacity) };
        Ok(Some(Device::create(path, &options)?))
    }

    fn show(&self, mut report: Report) -> Result<(), Failure> {
        let untold = report.problems.len().saturating_sub(PROBLEMS_MAX);
        report.problems.truncate(PROBLEMS_MAX);
        if untold > 0 {
            report.problems.push(format!("and {untold} more"));
        }
        if self.json {
            output::json(&report)?;
        } else {
            report.problems.iter().try_for_each(output::line)?;
            let rows = report.namespaces.iter().map(|space| {
                let how = if space.rebuilt { "scanned" } else { "index" };
                let (records, bytes) = (size::show_count(space.records), size::show(space.value_bytes));
                vec![space.name.clone(), how.to_owned(), records, bytes, size::show_count(space.unreadable)]
            });
            output::line(output::table(&["namespace", "found by", "records", "bytes", "unreadable"], 2, rows))?;
        }
        match report.problems.len() {
            0 => Ok(()),
            n => Err(Failure::Failed(format!("{}: {n} problems found", self.path.display()))),
        }
    }
}

/// A namespace of the same kind in the new device, which may have other dies and another ring: their shares are as by default.
fn like(into: &Device, info: &NamespaceInfo) -> Result<(Device, NamespaceId), Failure> {
    let merge_when_low = info.merge_when_low;
    let versions = info.versions.map(|shape| {
        let bloom = matches!(shape.index, VersionIndex::Bloom(_)).then(BloomOptions::default);
        VersionOptions { bloom, merge_when_low, ..VersionOptions::default() }
    });
    let options = NamespaceOptions { keys: info.keys, logs: Vec::new(), blocks: info.blocks, versions };
    Ok((into.clone(), into.create_namespace(&info.name, &options)?))
}

/// One namespace on its way.
struct Copy<'a> {
    device: &'a Device,
    info: &'a NamespaceInfo,
    target: Option<(Device, NamespaceId)>,
    batch: Batch,
    /// Bytes of a batch at most.
    limit: u64,
    space: &'a mut Space,
}

impl Copy<'_> {
    fn run(&mut self, interrupt: &Interrupt, problems: &mut Vec<String>) -> Result<(), Failure> {
        let bar = bytes_bar(self.info.record_count).with_message(self.info.name.clone());
        let name = self.info.name.clone();
        let left = if self.target.is_some() { "; the new device holds no more than that" } else { "" };
        let done = |space: &Space| format!("{} records of {name:?} are read{left}", space.records);
        if self.info.blocks.is_some() {
            self.blocks(&mut |space| interrupt.check(|| done(space)), problems)?;
        } else {
            let (device, id) = (self.device, self.info.id);
            for_each_key(device, id, |key| {
                interrupt.check(|| done(self.space))?;
                bar.inc(1);
                self.record(key, problems)
            })?;
            self.flush()?;
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn record(&mut self, key: Key, problems: &mut Vec<String>) -> Result<(), Failure> {
        match self.device.get(self.info.id, key) {
            Ok(Some(value)) => {
                self.space.records += 1;
                self.space.value_bytes += value.len() as u64;
                let Some((_, id)) = self.target else { return Ok(()) };
                if self.batch.len() == BATCH_RECORDS || place::is_full(&self.batch, value.len(), self.limit) {
                    self.flush()?;
                }
                self.batch.put(id, key, &value);
            }
            Ok(None) => {}
            Err(error) => {
                self.space.unreadable += 1;
                problems.push(format!("namespace {:?}: {error}", self.info.name));
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        if let Some((into, _)) = &self.target
            && !self.batch.is_empty()
        {
            into.write(&self.batch)?;
            self.batch.clear();
        }
        Ok(())
    }

    /// Blocks that hold something else than zeroes; block by block where a read of many fails.
    fn blocks(
        &mut self,
        check: &mut dyn FnMut(&Space) -> Result<(), Failure>,
        problems: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let options = self.info.blocks.expect("a namespace of blocks");
        let block_bytes = u64::from(options.block_bytes);
        let step = (BLOCKS_BYTES / block_bytes).max(1);
        let mut bytes = vec![0; (step * block_bytes) as usize];
        for first in (0..options.block_count).step_by(step as usize) {
            check(self.space)?;
            let count = step.min(options.block_count - first);
            let bytes = &mut bytes[..(count * block_bytes) as usize];
            if self.device.block_read(self.info.id, first, bytes).is_ok() {
                self.keep_blocks(first, bytes)?;
                continue;
            }
            for (block, bytes) in (first..).zip(bytes.chunks_mut(block_bytes as usize)) {
                match self.device.block_read(self.info.id, block, bytes) {
                    Ok(()) => self.keep_blocks(block, bytes)?,
                    Err(error) => {
                        self.space.unreadable += 1;
                        problems.push(format!("namespace {:?}: block {block}: {error}", self.info.name));
                    }
                }
            }
        }
        Ok(())
    }

    fn keep_blocks(&mut self, first: u64, bytes: &[u8]) -> Result<(), Failure> {
        let block_bytes = self.info.blocks.expect("a namespace of blocks").block_bytes as usize;
        let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
        let mut at = first;
        for run in bytes.chunks(block_bytes).collect::<Vec<_>>().chunk_by(|a, b| is_zero(a) == is_zero(b)) {
            if !is_zero(run[0]) {
                self.space.records += run.len() as u64;
                self.space.value_bytes += (run.len() * block_bytes) as u64;
                if let Some((into, id)) = &self.target {
                    into.block_write(*id, at, &run.concat())?;
                }
            }
            at += run.len() as u64;
        }
        Ok(())
    }
}
