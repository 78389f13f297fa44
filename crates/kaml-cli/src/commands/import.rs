//! `kaml import`: a directory tree, or JSON Lines.

use crate::failure::Failure;
use crate::intake::{Intake, NotStored};
use crate::interrupt::Interrupt;
use crate::place::Place;
use crate::store::{self, PlaceArgument};
use crate::tree::Tree;
use crate::walk::{self, Entry, Walk, shown};
use crate::{jsonl, output, parallel, place, size};
use clap::Args;
use kaml::{Batch, KeyKind, NamespaceInfo, NamespaceKind, NamespaceOptions};
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Error, ErrorKind, IsTerminal, Read, Write};
use std::ops::Bound;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A byte of a value takes at most this many in a line: `\u0000`.
const ESCAPED_BYTES: u64 = 6;
/// The rest of a line takes less.
const LINE_BYTES: u64 = 1 << 16;

/// Flags of `kaml import`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml import data.kaml ~/photos --namespace photos
  kaml import data.kaml ~/photos --namespace photos --delete
  kaml import data.kaml ~/documents --namespace photos --prefix old/documents
  kaml import data.kaml records.jsonl --namespace notes
  zcat dump.jsonl.gz | kaml import data.kaml - --namespace notes --batch 1000

A directory goes into a namespace with --keys ordered, made if it is missing, or into one with --versioned, which keeps earlier states. Each file is stored under its path: `kaml ls` lists them, \
`kaml cat` and `kaml get` read them, `kaml export` restores them. A file becomes visible by one atomic Put (larger than 256 KiB: pieces first). \
Importing again replaces files. Files that no longer exist are kept, or deleted with --delete. \
The device itself and sockets are left out, and named on standard error. Paths that cannot be read, or that are longer than 1007 bytes, are named, too; \
all others are stored, and the exit code is 1. An import also removes what a killed import left. docs/trees.md lists what a tree keeps.

JSON Lines have one object on each line, {\"key\": text} or {\"key_u64\": integer} or {\"key_hex\": digits} with \
{\"value\": text} or {\"value_base64\": …}; each batch of lines is one atomic Put. An integer under \"key\" means the \
same as under \"key_u64\": eight bytes, the highest first.

Ctrl-C stops after the current Puts. Several threads store a tree.")]
pub struct Arguments {
    #[command(flatten)]
    device: PlaceArgument,
    /// A directory, a file of JSON Lines, or `-` for JSON Lines from standard input
    source: PathBuf,
    /// Name of the namespace, created if it is missing
    #[arg(long, short)]
    namespace: String,
    /// Store a directory below this path of the namespace
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    prefix: OsString,
    /// Delete what the directory does not have (below --prefix, if that is given)
    #[arg(long)]
    delete: bool,
    /// Lines in one atomic Put; fewer if they exceed 1 MiB or the largest Put of the device
    #[arg(long, default_value_t = 256)]
    batch: usize,
    /// Print the results as JSON
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
    /// What could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<Failed>,
    /// Files whose import was interrupted earlier, and of which pieces have been deleted.
    #[serde(skip_serializing_if = "is_0")]
    removed_uploads: u64,
    /// Paths that the directory does not have.
    #[serde(skip_serializing_if = "is_0")]
    deleted: u64,
}

fn is_0(number: &u64) -> bool {
    *number == 0
}

/// Something that was not stored or restored.
#[derive(Debug, Serialize, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failed {
    path: String,
    error: String,
}

impl Failed {
    /// Without the path in the reason, if that begins with it.
    pub fn new(path: &Path, error: impl ToString) -> Failed {
        let (path, error) = (shown(path), error.to_string());
        let error = error.strip_prefix(&format!("{path}: ")).unwrap_or(&error).to_owned();
        Failed { path, error }
    }

    /// Lists them on standard error.
    pub fn list(failed: &mut [Failed]) {
        failed.sort();
        for Failed { path, error } in failed {
            // If standard error is closed, the report and the exit code have to do.
            let _ = writeln!(std::io::stderr(), "kaml: {path}: {error}");
        }
    }
}

/// Something in a tree that was not stored.
#[derive(Serialize)]
struct LeftOut {
    path: String,
    is: &'static str,
}

/// Entries stored so far, for a caller that ends the process meanwhile.
static STORED: AtomicU64 = AtomicU64::new(0);

impl Arguments {
    /// Imports.
    pub fn run(self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let started = Instant::now();
        let from_stdin = self.source == Path::new("-");
        let is_tree = !from_stdin && self.source.is_dir();
        if !is_tree && (self.delete || !self.prefix.is_empty()) {
            return Err(Failure::Usage("--delete and --prefix are for a directory".into()));
        }
        if !self.device.is_here() {
            let what = if is_tree { "entries" } else { "records" };
            let stored = move || format!(": {} {what} are stored, each whole", STORED.load(Ordering::Relaxed));
            interrupt.ends_soon(stored)?;
        }
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
        Failed::list(&mut report.failed);
        self.show(&report)?;
        match report.failed.len() {
            0 => Ok(()),
            count => {
                let what = if count == 1 { "path is" } else { "paths are" };
                Err(Failure::Failed(format!("{}: {count} {what} not stored; the others are", self.source.display())))
            }
        }
    }

    fn show(&self, report: &Report) -> Result<(), Failure> {
        if self.json {
            return output::json(report);
        }
        let (count, bytes) = (size::show_count(report.entries), size::show(report.value_bytes));
        let deleted = match report.deleted {
            0 => String::new(),
            count => format!(", {} deleted", size::show_count(count)),
        };
        output::line(format!("{count} entries, {bytes} in {:.2} s{deleted}", report.seconds))
    }

    fn tree(&self, device: &dyn Place, interrupt: &Interrupt, report: &mut Report) -> Result<(), Failure> {
        check_tree(&device.namespaces()?, &self.namespace)?;
        let Walk { entries, left_out, failed } = walk::walk(&self.source, &[], self.device.identity())?;
        report.failed.extend(failed.into_iter().map(|(path, error)| Failed::new(&path, error)));
        let info = self.ordered_namespace(device)?;
        let tree = Tree::open(device, &info, self.prefix.as_bytes())?;
        report.removed_uploads = tree.delete_unfinished()?;
        for (path, is) in left_out {
            let path = shown(&path);
            // If standard error is closed, the report has to do.
            let _ = writeln!(std::io::stderr(), "kaml: {path} is left out: it is {is}");
            report.left_out.push(LeftOut { path, is });
        }
        let bar = kaml_terminal::progress::bar(entries.iter().map(|entry| entry.bytes).sum());
        let proceed = |bytes| {
            bar.inc(bytes);
            !interrupt.is_asked()
        };
        let (bytes, failed) = (AtomicU64::new(0), Mutex::new(BTreeMap::new()));
        let intake = Intake { tree: &tree, root: &self.source, proceed: &proceed };
        let store = |entry: &Entry| {
            match intake.store(entry) {
                Ok(stored) => {
                    bytes.fetch_add(stored, Ordering::Relaxed);
                    STORED.fetch_add(1, Ordering::Relaxed);
                }
                Err(NotStored::Source(what)) if !device.is_lost() => {
                    let failure = Failed::new(&entry.source, what);
                    failed.lock().expect("nothing panics under this lock").insert(entry.path.clone(), failure);
                }
                Err(NotStored::Source(what)) => return Err(at(&entry.source, Failure::Failed(what))),
                Err(NotStored::Device(failure)) => return Err(at(&entry.source, failure)),
                Err(NotStored::Stopped) => {}
            }
            Ok(())
        };
        let (others, files): (Vec<&Entry>, Vec<&Entry>) = entries.iter().partition(|entry| entry.first_name.is_some());
        let goes_on = || !interrupt.is_asked();
        let stored = parallel::for_each(files, goes_on, store).and_then(|()| {
            // Other names of files, when these are stored.
            parallel::for_each(others, goes_on, |entry| {
                let first = entry.first_name.as_ref();
                let is_missing = |first| failed.lock().expect("nothing panics under this lock").contains_key(first);
                match first.filter(|first| is_missing(*first)) {
                    Some(_) => store(&Entry { first_name: None, ..entry.clone() }),
                    None => store(entry),
                }
            })
        });
        (report.entries, report.value_bytes) = (STORED.load(Ordering::Relaxed), bytes.into_inner());
        report.failed.extend(failed.into_inner().expect("nothing panics under this lock").into_values());
        bar.finish_and_clear();
        interrupt.check(|| format!("{} entries are stored, each whole", report.entries))?;
        stored?;
        if self.delete {
            self.delete_others(&tree, &entries, report)?;
        }
        Ok(())
    }

    /// Deletes what the directory does not have, if all of it could be looked at.
    fn delete_others(&self, tree: &Tree<'_>, entries: &[Entry], report: &mut Report) -> Result<(), Failure> {
        if !report.failed.is_empty() {
            // If standard error is closed, the report has to do.
            let _ = writeln!(std::io::stderr(), "kaml: nothing is deleted, because some paths are not stored");
            return Ok(());
        }
        let exists: HashSet<_> = entries.iter().map(|entry| tree.path(entry.path.as_os_str().as_bytes())).collect();
        for found in tree.paths() {
            let found = found?;
            if !exists.contains(&found.path) {
                tree.delete(&found.path)?;
                report.deleted += 1;
            }
        }
        Ok(())
    }

    /// The namespace; if it is missing it is made, unless the device cannot hold trees.
    fn ordered_namespace(&self, device: &dyn Place) -> Result<NamespaceInfo, Failure> {
        if device.namespaces()?.iter().any(|info| info.name == self.namespace) {
            return store::namespace(device, &self.namespace);
        }
        let options = NamespaceOptions::records(KeyKind::Ordered);
        let id = device.create_namespace(&self.namespace, &options)?;
        if let Err(error) = device.range(id, (Bound::Unbounded, Bound::Unbounded), false, 1) {
            device.delete_namespace(id)?;
            return Err(error.into());
        }
        store::namespace(device, &self.namespace)
    }

    fn lines(&self, device: &dyn Place, interrupt: &Interrupt, report: &mut Report) -> Result<(), Failure> {
        let (mut input, bytes) = self.open_lines(interrupt)?;
        // One that does not exist yet is made when the first line has turned out to be good.
        let found = device.namespaces()?.into_iter().find(|info| info.name == self.namespace);
        let mut namespace = found.map_or(Ok(None), |info| store::holds_records(info).map(Some))?;
        let bar = if std::io::stderr().is_terminal() {
            kaml_terminal::progress::bar(bytes)
        } else {
            indicatif::ProgressBar::hidden()
        };
        let limit = place::batch_limit(device);
        let mut batch = Batch::new();
        let mut put = |batch: &mut Batch, line: usize| -> Result<(), Failure> {
            device.write(batch).map_err(|error| self.wrong_before(line, error.into()))?;
            report.entries += batch.len() as u64;
            STORED.store(report.entries, Ordering::Relaxed);
            report.value_bytes += batch.value_bytes() as u64;
            batch.clear();
            interrupt.check(|| format!("{} records are stored", report.entries))
        };
        let mut line_count = 0;
        let line_bytes_max = device.value_bytes_max().saturating_mul(ESCAPED_BYTES).saturating_add(LINE_BYTES);
        let lines = std::iter::from_fn(|| next_line(&mut *input, line_bytes_max).transpose());
        for (line, number) in lines.zip(1..) {
            let wrong = |what: String| Failure::Failed(format!("{}, line {number}: {what}", shown(&self.source)));
            let line = match line {
                Err(_) if interrupt.is_asked() => break,
                line => line.map_err(|error| wrong(error.to_string()))?,
            };
            line_count = number;
            bar.inc(line.len() as u64 + 1);
            if line.trim().is_empty() {
                continue;
            }
            let keys = namespace.as_ref().map_or(KeyKind::Bytes, |info| info.keys());
            let (key, value) = jsonl::record(&line, number == 1, keys).map_err(wrong)?;
            let max = namespace.as_ref().map_or(device.value_bytes_max(), |info| device.value_bytes_max_of(info.id));
            if value.len() as u64 > max {
                let bytes = value.len() as u64;
                let namespace = namespace.as_ref().map(|info| info.id).filter(|_| max < device.value_bytes_max());
                return Err(wrong(kaml::Error::ValueTooLarge { bytes, max, namespace }.to_string()));
            };
            let id = match &namespace {
                Some(info) => info.id,
                None => namespace.insert(store::namespace_or_new(device, &self.namespace)?).id,
            };
            if place::is_full(&batch, value.len(), limit) {
                put(&mut batch, number - 1)?;
            }
            batch.put(id, &key, &value);
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

    /// Reports which lines were not stored.
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
        _ => {
            let text = String::from_utf8(line).map(Some);
            text.map_err(|error| Error::new(ErrorKind::InvalidData, jsonl::not_utf8(&error)))
        }
    }
}

/// Reports which path could not be stored.
fn at(source: &Path, failure: Failure) -> Failure {
    let path = source.display().to_string();
    match failure {
        Failure::Failed(what) if !what.contains(&path) => Failure::Failed(format!("{path}: {what}")),
        failure => failure,
    }
}

/// Refuses a namespace that cannot hold a tree, before anything is read.
fn check_tree(found: &[NamespaceInfo], name: &str) -> Result<(), Failure> {
    let find = |name: &str| found.iter().find(|info| info.name == name);
    match find(name) {
        // Records are under digests of their keys there.
        Some(NamespaceInfo { kind: NamespaceKind::Versions(KeyKind::Bytes, _), .. }) => Ok(()),
        Some(info) if info.keys() != KeyKind::Ordered => {
            let what = match find(&super::export::old_metadata(name)) {
                Some(_) => "holds a tree of an earlier version: `kaml export` it, and import it into another namespace",
                None => "a directory needs a namespace made with --keys ordered, or a name that is not in use",
            };
            Err(Failure::Usage(format!("namespace `{name}`: {what}")))
        }
        _ => Ok(()),
    }
}
