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
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Error, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A byte of a value takes at most so many in a line: `\u0000`.
const ESCAPED_BYTES: u64 = 6;
/// The rest of a line takes less.
const LINE_BYTES: u64 = 1 << 16;

/// Flags of `kaml import`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml import data.kaml ~/photos --namespace photos
  kaml import data.kaml records.jsonl --namespace notes
  zcat dump.jsonl.gz | kaml import data.kaml - --namespace notes --batch 1000

A directory becomes two namespaces, NAME with the contents and NAME.meta with the metadata; each file is one atomic Put \
(larger than 4 MiB: parts first, then the metadata that makes them visible). Of a tree the device itself, sockets, pipes \
and devices are left out, and named on standard error. Importing a tree again replaces files that have changed; files that \
have gone from it since stay stored.

JSON Lines hold one object a line, {\"key\": text} or {\"key_u64\": integer} or {\"key_hex\": digits} with \
{\"value\": text} or {\"value_base64\": …}; each batch of lines is one atomic Put. An integer under \"key\" is one under \
\"key_u64\": eight bytes, the highest first.

Ctrl-C stops after the current Puts: a tree is stored by several threads.")]
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
        let from_stdin = self.source == Path::new("-");
        let is_tree = !from_stdin && self.source.is_dir();
        let device = if from_stdin || self.source.exists() {
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
        if let Err(failure) = outcome {
            let _recovers = device.close();
            let stored = if is_tree { "entries are stored" } else { "records are stored" };
            return Err(match failure {
                Failure::Failed(what) => Failure::Failed(format!("{what}; {} {stored}", report.entries)),
                failure => failure,
            });
        }
        store::close(device);
        report.seconds = started.elapsed().as_secs_f64();
        if self.json {
            return output::json(&report);
        }
        let (count, bytes) = (size::show_count(report.entries), size::show(report.value_bytes));
        output::line(format!("{count} entries, {bytes} in {:.2} s", report.seconds))
    }

    fn tree(&self, device: &dyn Place, interrupt: &Interrupt, report: &mut Report) -> Result<(), Failure> {
        let (contents, metadata) = tree::namespace_names(&self.namespace);
        check_tree(&device.namespaces()?, &contents, &metadata)?;
        let tree::Walk { entries, left_out } = tree::walk(&self.source, &[], self.device.identity())?;
        let metadata = store::namespace_or_new(device, &metadata)?.id; // the longer name: if it is too long, neither is made
        let contents = store::namespace_or_new(device, &contents)?.id;
        let tree = Tree { device, contents, metadata };
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
                let stored = tree.store(entry).map_err(|failure| at(&entry.source, failure))?;
                bytes.fetch_add(stored, Ordering::Relaxed);
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
        let (mut input, bytes) = self.open_lines(interrupt)?;
        // One that is not there yet is made when the first line has turned out to be good.
        let found = device.namespaces()?.into_iter().find(|info| info.name == self.namespace);
        let mut namespace = found.map_or(Ok(None), |info| store::holds_records(info).map(Some))?;
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
        let line_bytes_max = device.value_bytes_max().saturating_mul(ESCAPED_BYTES).saturating_add(LINE_BYTES);
        let lines = std::iter::from_fn(|| next_line(&mut *input, line_bytes_max).transpose());
        for (line, number) in lines.zip(1..) {
            let wrong = |what: String| Failure::Failed(format!("{}, line {number}: {what}", self.source.display()));
            let line = match line {
                Err(_) if interrupt.is_asked() => break,
                line => line.map_err(|error| wrong(error.to_string()))?,
            };
            line_count = number;
            bar.inc(line.len() as u64 + 1);
            if line.trim().is_empty() {
                continue;
            }
            let keys = namespace.as_ref().map_or(KeyKind::Bytes, |info| info.keys);
            let (key, value) = record(&line, keys, device.value_bytes_max()).map_err(wrong)?;
            let id = match &namespace {
                Some(info) => info.id,
                None => namespace.insert(store::namespace_or_new(device, &self.namespace)?).id,
            };
            if place::is_full(&batch, value.len(), limit) {
                put(&mut batch, number - 1)?;
            }
            batch.put(id, key, &value);
            if batch.len() >= self.batch.max(1) {
                put(&mut batch, number)?;
            }
        }
        if !batch.is_empty() && !interrupt.is_asked() {
            put(&mut batch, line_count)?;
        }
        interrupt.check(|| format!("{} records are stored", report.entries))?;
        if namespace.is_none() {
            store::namespace_or_new(device, &self.namespace)?;
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Says which lines were not stored.
    fn wrong_before(&self, line: usize, failure: Failure) -> Failure {
        Failure::Failed(format!("{}, in the batch that ends with line {line}: {failure}", self.source.display()))
    }

    fn open_lines(&self, interrupt: &Interrupt) -> Result<(Box<dyn BufRead>, u64), Failure> {
        if self.source == Path::new("-") {
            // Not through the buffer of `Stdin`: what is in it cannot be waited for.
            let stdin = std::io::stdin().as_fd().try_clone_to_owned().map_err(Failure::io("standard input"))?;
            return Ok((Box::new(BufReader::with_capacity(1 << 18, interrupt.reads(File::from(stdin)))), 0));
        }
        // A pipe that nobody writes to yet is waited for like one that nothing comes from.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
        let file = options.open(&self.source).map_err(Failure::io(self.source.display()))?;
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        Ok((Box::new(BufReader::with_capacity(1 << 18, interrupt.reads(file))), bytes))
    }
}

/// The next line without its end, if it is not so long that no device's value could be in it: a file of something else may have
/// no lines at all.
fn next_line(input: &mut dyn BufRead, bytes_max: u64) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    input.take(bytes_max).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    match line.pop_if(|last| *last == b'\n') {
        None if line.len() as u64 == bytes_max => Err(Error::other(format!("longer than {bytes_max} bytes"))),
        _ => String::from_utf8(line).map(Some).map_err(|error| Error::new(ErrorKind::InvalidData, error.utf8_error())),
    }
}

/// Says which path could not be stored.
fn at(source: &Path, failure: Failure) -> Failure {
    let path = source.display().to_string();
    match failure {
        Failure::Failed(what) if !what.contains(&path) => Failure::Failed(format!("{path}: {what}")),
        failure => failure,
    }
}

/// Refuses to mix a tree with records that are none, before anything is made for it.
fn check_tree(found: &[NamespaceInfo], contents: &str, metadata: &str) -> Result<(), Failure> {
    let find = |name: &str| found.iter().find(|info| info.name == name);
    let (is_tree, has_records) = (find(metadata).is_some(), |info: &&NamespaceInfo| info.record_count > 0);
    for info in [contents, metadata].into_iter().filter_map(find) {
        if info.blocks.is_some() || info.keys == KeyKind::U64 {
            let takes = if info.blocks.is_some() { "blocks" } else { "keys that are integers" };
            return Err(Failure::Usage(format!("namespace `{}` takes {takes}, a tree has paths", info.name)));
        }
    }
    if find(contents).filter(has_records).is_some() && !is_tree {
        let text = format!("namespace `{contents}` holds records that are no tree; --namespace another one");
        return Err(Failure::Usage(text));
    }
    if find(metadata).filter(has_records).is_some() && find(contents).is_none() {
        let text =
            format!("namespace `{metadata}` holds records, but there is no `{contents}`; --namespace another one");
        return Err(Failure::Usage(text));
    }
    Ok(())
}

/// The record that a line holds, if a namespace of such keys and the device take it.
fn record(line: &str, keys: KeyKind, value_bytes_max: u64) -> Result<(Key, Vec<u8>), String> {
    let Ok(Value::Object(object)) = serde_json::from_str(line) else { return Err("not a JSON object".into()) };
    let key = keys::from_json(&object)?;
    let value = super::record::value_from_json(&object)?;
    if keys == KeyKind::U64 && key.as_u64().is_none() {
        return Err(format!("key `{key}` is not a 64-bit integer, which this namespace takes"));
    }
    if value.len() as u64 > value_bytes_max {
        return Err(format!("a value of {} bytes; this device takes at most {value_bytes_max}", value.len()));
    }
    Ok((key, value))
}
