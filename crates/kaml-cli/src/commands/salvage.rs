//! `kaml salvage`: what can still be read of a damaged device, into a new one.
//!
//! Lives here:       flags, how large the new device is, what is shown.
//! Lives elsewhere:  the new device until it is whole (`target`), reading and storing (`copy`).

mod copy;
mod target;

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::{output, size, store};
use clap::Args;
use copy::{Copied, Source};
use kaml::{CreateOptions, Device};
use kaml_terminal::flags::Durability;
use kaml_terminal::progress::named_bar;
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use target::Site;

/// Flags of `kaml salvage`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml salvage broken.kaml                        # list what can be read, and what is damaged
  kaml salvage broken.kaml --into new.kaml        # copy it to a new device
  kaml salvage broken.kaml --json

Nothing is written to the damaged device. If an index or the journal is damaged, all pages are scanned and the newest \
record of each key counts. Records that were deleted since their index was last written whole can then reappear. Of a \
versioned namespace, only the newest version of each key is copied. If the beginning of the device was overwritten, the \
description of the device is taken from its end.

A new file gets its name after everything is copied, so an interrupted salvage leaves no file. The file is made larger than \
the damaged device if its records need it. With --capacity, and on a disk, records that do not fit are left out. Records \
that are left out or cannot be read are listed with namespace and key.

Exits with 1 if anything is missing.")]
pub struct Arguments {
    /// The damaged device
    #[arg(value_name = "DEVICE")]
    path: PathBuf,
    /// Create this device and copy everything readable into it
    #[arg(long, value_name = "NEW")]
    into: Option<PathBuf>,
    /// Bytes of flash of the new device [default: that of the damaged one, or more if its records need more]
    #[arg(long, short, value_parser = size::parse, requires = "into")]
    capacity: Option<u64>,
    /// What an acknowledged put to the new device survives
    #[arg(long, value_enum, default_value_t, requires = "into")]
    durability: Durability,
    /// Overwrite NEW if it exists
    #[arg(long, requires = "into")]
    force: bool,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Default, Serialize)]
struct Report {
    namespaces: Vec<Space>,
    problems: Vec<String>,
    missing: Vec<Missing>,
}

/// A record or a block that could not be read, or that the new device did not take.
#[derive(Serialize)]
struct Missing {
    namespace: String,
    /// The key or block as lines show it.
    #[serde(skip)]
    what: String,
    /// The same in the fields that other commands use.
    #[serde(flatten)]
    key: Map<String, Value>,
    why: String,
}

#[derive(Default, Serialize)]
struct Space {
    name: String,
    /// Records, or blocks that hold data; of a new device, those in it.
    records: u64,
    value_bytes: u64,
    unreadable: u64,
    /// Not taken by the new device.
    refused: u64,
    /// Found by scanning pages.
    rebuilt: bool,
}

/// Problems, and records missing, beyond this are counted and not listed one by one.
const LINES_MAX: usize = 1000;
/// A new device is made a quarter larger so often at most: by then it is 28 times as large as at first.
const GROWTHS_MAX: u32 = 15;

impl Arguments {
    /// Salvages.
    pub fn run(self) -> Result<(), Failure> {
        store::refuse_remote(&self.path)?;
        let interrupt = Interrupt::listen()?;
        let site = self.into.as_deref().map(|into| Site::find(into, &self.path, self.force)).transpose()?;
        let bar = named_bar(0, "blocks");
        let (device, found) = Device::salvage(&self.path, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        })?;
        bar.finish_and_clear();
        let source = Source { device: &device, found: &found, interrupt: &interrupt };
        let report = match site {
            Some(site) => self.copy_to(&site, &source)?,
            None => self.read(&source)?,
        };
        self.show(report)
    }

    fn read(&self, source: &Source<'_>) -> Result<Report, Failure> {
        match source.copy(None, false)? {
            Copied::All(report) => Ok(report),
            Copied::TooSmall => unreachable!("nothing is copied"),
        }
    }

    /// Makes the new device; a larger one instead each time that it does not take everything.
    fn copy_to(&self, site: &Site, source: &Source<'_>) -> Result<Report, Failure> {
        let mut capacity = self.capacity.map_or_else(|| known_bytes(&self.path, source.device), Ok)?;
        let mut growths = if self.capacity.is_none() && site.can_grow() { GROWTHS_MAX } else { 0 };
        loop {
            let target =
                site.make(&CreateOptions { durability: self.durability.into(), ..CreateOptions::new(capacity) })?;
            let may_grow = growths > 0;
            let copied = match may_grow && !target.has_room_for(source.device) {
                true => Copied::TooSmall,
                false => source.copy(Some(&target), may_grow)?,
            };
            if let Copied::All(report) = copied {
                target.finish()?;
                return Ok(report);
            }
            growths -= 1;
            capacity += capacity / 4;
        }
    }

    fn show(&self, mut report: Report) -> Result<(), Failure> {
        let (problems, missing) = (report.problems.len(), report.missing.len());
        report.problems.truncate(LINES_MAX);
        if problems > LINES_MAX {
            report.problems.push(format!("and {} more", problems - LINES_MAX));
        }
        if self.json {
            output::json(&report)?;
        } else {
            report.problems.iter().try_for_each(output::line)?;
            let line = |m: &Missing| output::line(format!("namespace {:?}: {}: {}", m.namespace, m.what, m.why));
            report.missing.iter().take(LINES_MAX).try_for_each(line)?;
            if missing > LINES_MAX {
                output::line(format!("and {} more are missing; --json lists all", missing - LINES_MAX))?;
            }
            let rows = report.namespaces.iter().map(|space| {
                let how = if space.rebuilt { "scanned" } else { "index" };
                let (records, bytes) = (size::show_count(space.records), size::show(space.value_bytes));
                let [unreadable, refused] = [space.unreadable, space.refused].map(size::show_count);
                vec![space.name.clone(), how.to_owned(), records, bytes, unreadable, refused]
            });
            let header = ["namespace", "found by", "records", "bytes", "unreadable", "not stored"];
            output::line(output::table(&header, 2, rows))?;
        }
        let path = self.path.display();
        match (problems, missing) {
            (0, 0) => Ok(()),
            (_, 0) => Err(Failure::Failed(format!("{path}: {problems} problems found"))),
            _ => Err(Failure::Failed(format!(
                "{path}: {problems} problems found; {missing} records or blocks are missing"
            ))),
        }
    }
}

/// Bytes of flash like those of the damaged device.
fn known_bytes(path: &Path, device: &Device) -> Result<u64, Failure> {
    let size = std::fs::metadata(path).map_err(Failure::io(path.display()))?.len();
    // The metadata of a block device do not contain its size; flash is more than eight ninths of a device.
    Ok(if size > 0 { size } else { device.info().flash_bytes * 9 / 8 })
}
