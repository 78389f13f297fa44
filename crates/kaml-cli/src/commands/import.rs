//! `kaml import`: a directory tree, or JSON Lines.

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::place::Place;
use crate::store::{self, PlaceArgument};
use crate::tree::{self, Tree};
use crate::{keys, output, parallel, place, size};
use clap::Args;
use kaml::{Batch, Key, KeyKind, NamespaceInfo};
use serde::Serialize;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Flags of `kaml import`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml import data.kaml ~/photos --namespace photos
  kaml import data.kaml records.jsonl --namespace notes
  zcat dump.jsonl.gz | kaml import data.kaml - --namespace notes --batch 1000

A directory becomes two namespaces, NAME with the contents and NAME.meta with the metadata; each file is one atomic Put
(larger than 4 MiB: parts first, then the metadata that makes them visible). JSON Lines hold one object a line,
{\"key\": …} or {\"key_u64\": …} or {\"key_hex\": …} with {\"value\": text} or {\"value_base64\": …}; each batch of lines is
one atomic Put. Of a tree the device itself, sockets, pipes and devices
are left out, and named on standard error. Ctrl-C stops after the current Puts: a tree is stored by several threads.")]
pub struct Arguments {
    #[command(flatten)]
    device: PlaceArgument,
    /// A directory, a file of JSON Lines, or `-` for JSON Lines from standard input
    source: PathBuf,
    /// Name of the namespace, made if it is missing
    #[arg(long, short)]
    namespace: String,
    /// Lines in one atomic Put, fewer if they are more than 1 MiB or than the device takes at once
    #[arg(long, default_value_t = 256)]
    batch: usize,
    /// What was done as JSON
    #[arg(long)]
    json: bool,
}

/// What was done.
#[derive(Default, Serialize)]
struct Report {
    entries: u64,
    value_bytes: u64,
    seconds: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOut>,
}

/// Something in a tree that was not stored.
#[derive(Serialize)]
struct LeftOut {
    path: String,
    is: &'static str,
}

impl Arguments {
    /// Imports.
    pub fn run(self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let started = Instant::now();
        let is_tree = self.source.is_dir();
        let device = if is_tree || self.source == Path::new("-") || self.source.exists() {
            self.device.open()?
        } else {
            return Err(Failure::Failed(format!("{}: no such file or directory", self.source.display())));
        };
        let mut report = Report::default();
        let outcome = if is_tree {
            self.tree(&*device, &interrupt, &mut report)
        } else {
            self.lines(&*device, &interrupt, &mut report)
        };
        let closed = device.close();
        outcome?;
        closed?;
        report.seconds = started.elapsed().as_secs_f64();
        if self.json {
            return output::json(&report);
        }
        let (count, bytes) = (size::show_count(report.entries), size::show(report.value_bytes));
        output::line(format!("{count} entries, {bytes} in {:.2} s", report.seconds))
    }

    fn tree(&self, device: &dyn Place, interrupt: &Interrupt, report: &mut Report) -> Result<(), Failure> {
        let (contents, metadata) = tree::namespace_names(&self.namespace);
        let contents = store::namespace_or_new(device, &contents)?.id;
        let metadata = store::namespace_or_new(device, &metadata)?.id;
        let tree = Tree { device, contents, metadata };
        let tree::Walk { entries, left_out } = tree::walk(&self.source, &[], self.device.identity())?;
        for (path, is) in left_out {
            let path = path.display().to_string();
            // If standard error is closed, the report has to do.
            let _ = writeln!(std::io::stderr(), "kaml: {path} is left out: it is {is}");
            report.left_out.push(LeftOut { path, is });
        }
        let bar = super::check::bytes_bar(entries.iter().map(|entry| entry.bytes).sum());
        let (count, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let stored = parallel::for_each(
            &entries,
            || !interrupt.is_asked(),
            |entry| {
                bytes.fetch_add(tree.store(entry)?, Ordering::Relaxed);
                count.fetch_add(1, Ordering::Relaxed);
                bar.inc(entry.bytes);
                Ok(())
            },
        );
        (report.entries, report.value_bytes) = (count.into_inner(), bytes.into_inner());
        bar.finish_and_clear();
        stored?;
        interrupt.check(|| format!("{} entries are stored, each whole", report.entries))
    }

    fn lines(&self, device: &dyn Place, interrupt: &Interrupt, report: &mut Report) -> Result<(), Failure> {
        let namespace = store::namespace_or_new(device, &self.namespace)?;
        let (input, bytes) = self.open_lines()?;
        let bar = if std::io::stderr().is_terminal() {
            super::check::bytes_bar(bytes)
        } else {
            indicatif::ProgressBar::hidden()
        };
        let limit = place::batch_limit(device);
        let mut batch = Batch::new();
        let mut put = |batch: &mut Batch, line: usize| -> Result<(), Failure> {
            device.write(batch).map_err(|error| self.wrong_before(line, error.into()))?;
            report.entries += batch.len() as u64;
            report.value_bytes += batch.value_bytes() as u64;
            batch.clear();
            interrupt.check(|| format!("{} records are stored", report.entries))
        };
        let mut line_count = 0;
        for (line, number) in input.lines().zip(1..) {
            let wrong = |what: String| Failure::Failed(format!("{}, line {number}: {what}", self.source.display()));
            let line = line.map_err(|error| wrong(error.to_string()))?;
            line_count = number;
            bar.inc(line.len() as u64 + 1);
            if line.trim().is_empty() {
                continue;
            }
            let (key, value) = record(&line, &namespace, device.value_bytes_max()).map_err(wrong)?;
            if place::is_full(&batch, value.len(), limit) {
                put(&mut batch, number - 1)?;
            }
            batch.put(namespace.id, key, &value);
            if batch.len() >= self.batch.max(1) {
                put(&mut batch, number)?;
            }
        }
        if !batch.is_empty() {
            put(&mut batch, line_count)?;
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Says which lines were not stored.
    fn wrong_before(&self, line: usize, failure: Failure) -> Failure {
        Failure::Failed(format!("{}, in the batch that ends with line {line}: {failure}", self.source.display()))
    }

    fn open_lines(&self) -> Result<(Box<dyn BufRead>, u64), Failure> {
        if self.source == Path::new("-") {
            return Ok((Box::new(BufReader::new(std::io::stdin())), 0));
        }
        let file = File::open(&self.source).map_err(Failure::io(self.source.display()))?;
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        Ok((Box::new(BufReader::with_capacity(1 << 18, file)), bytes))
    }
}

/// The record that a line holds, if the namespace and the device take it.
fn record(line: &str, namespace: &NamespaceInfo, value_bytes_max: u64) -> Result<(Key, Vec<u8>), String> {
    let Ok(Value::Object(object)) = serde_json::from_str(line) else { return Err("not a JSON object".into()) };
    let key = keys::from_json(&object)?;
    let value = super::record::value_from_json(&object)?;
    if namespace.keys == KeyKind::U64 && key.as_u64().is_none() {
        return Err(format!("key `{key}` is not a 64-bit integer, which namespace {:?} takes", namespace.name));
    }
    if value.len() as u64 > value_bytes_max {
        return Err(format!("a value of {} bytes; this device takes at most {value_bytes_max}", value.len()));
    }
    Ok((key, value))
}
