//! `kaml export`: restores a directory tree, or writes JSON Lines.

use super::import::Failed;
use crate::failure::Failure;
use crate::interrupt::{self, Interrupt};
use crate::moment::Moment;
use crate::place::Place;
use crate::restore::{self, Restore};
use crate::shelf::Shelf;
use crate::store::{self, PlaceArgument};
use crate::tree::{Found, Kind, Node, Tree};
use crate::walk::shown;
use crate::whole::{self, WholeFile};
use crate::{keys, old_tree, output, parallel, size};
use clap::{Args, ValueEnum};
use kaml::{KeyBuf, KeyKind, NamespaceId, NamespaceInfo, NamespaceKind};
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Keys fetched from the device at a time.
const PAGE_KEYS: usize = 4096;

/// Flags of `kaml export`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml export data.kaml restored --namespace photos
  kaml export data.kaml summer --namespace photos --prefix 2026/summer
  kaml export data.kaml notes.jsonl --namespace notes
  kaml export data.kaml - --namespace notes | gzip > notes.jsonl.gz

A namespace that a directory was imported into is restored as a directory, with modes, times, attributes and links, and \
by root with owners. Set-user-ID and set-group-ID bits and capabilities \
are set only on files that belong to the recorded user and group. Paths that cannot be restored are named on standard error; \
all others are restored, and the exit code is 1. Other namespaces are written as JSON Lines, and versioned ones with their newest versions. \
A file gets its name when it is whole, and is durable when the command ends.")]
pub struct Arguments {
    #[command(flatten)]
    device: PlaceArgument,
    /// Directory, file, or `-` (also /dev/stdout) for standard output
    target: PathBuf,
    /// Name of the namespace
    #[arg(long, short)]
    namespace: String,
    /// Only what is below this path, without the path itself
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    prefix: OsString,
    /// Output format [default: a tree if the namespace has one and the target is not standard output]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The tree as it was in this snapshot of a versioned namespace
    #[arg(long, value_name = "VERSION")]
    as_of: Option<u32>,
    /// Files belong to the user that runs this, also as root
    #[arg(long)]
    no_owner: bool,
    /// Print the results as JSON, on standard error if the records go to standard output
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A directory tree
    Tree,
    /// JSON Lines
    Jsonl,
}

/// Fails with what has been done so far if the user asked to stop.
type Stop<'a> = dyn Fn(&dyn Fn() -> String) -> Result<(), Failure> + Sync + 'a;

/// What was done.
#[derive(Default, Serialize)]
struct Report {
    entries: u64,
    value_bytes: u64,
    seconds: f64,
    /// Records next to a tree of an earlier version, which belong to no file.
    #[serde(skip_serializing_if = "is_0")]
    left_out_records: u64,
    /// Files and directories without the set-user-ID or set-group-ID bit that they had.
    #[serde(skip_serializing_if = "is_0")]
    set_id_dropped: u64,
    /// Extended attributes that were not set.
    #[serde(skip_serializing_if = "is_0")]
    attributes_dropped: u64,
    /// What could not be restored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<Failed>,
}

/// Entries restored so far, for a caller that ends the process meanwhile.
static RESTORED: AtomicU64 = AtomicU64::new(0);

fn is_0(number: &u64) -> bool {
    *number == 0
}

impl Arguments {
    /// Exports.
    pub fn run(self) -> Result<(), Failure> {
        let to_stdout = output::is_stdout(&self.target);
        let found = std::fs::metadata(&self.target);
        // The reader can be slow, or stop; either way no file remains.
        let is_stream = to_stdout || found.is_ok_and(|found| !found.is_file() && !found.is_dir());
        let interrupt = if is_stream {
            interrupt::ends_it(String::new())?;
            None
        } else {
            let interrupt = Interrupt::listen()?;
            if !self.device.is_here() {
                let target = self.target.clone();
                interrupt.ends_soon(move || {
                    restore::close_directories();
                    match RESTORED.load(Ordering::Relaxed) {
                        0 => format!(": {} is not written", shown(&target)),
                        count => format!(": {count} entries are restored"),
                    }
                })?;
            }
            Some(interrupt)
        };
        let stop = |done: &dyn Fn() -> String| interrupt.as_ref().map_or(Ok(()), |interrupt| interrupt.check(done));
        let started = Instant::now();
        let device = self.device.open_to_read()?;
        let info = store::namespace(&*device, &self.namespace)?;
        let format = match self.format {
            Some(format) => format,
            None if !self.prefix.is_empty() || self.as_of.is_some() => Format::Tree,
            None if !to_stdout && self.is_tree(&*device, &info)? => Format::Tree,
            None => Format::Jsonl,
        };
        let mut report = Report::default();
        if format == Format::Tree && to_stdout {
            return Err(Failure::Usage("a tree cannot be written to standard output; --format jsonl can".into()));
        }
        if format == Format::Jsonl && (!self.prefix.is_empty() || self.as_of.is_some()) {
            return Err(Failure::Usage("--prefix and --as-of are for trees".into()));
        }
        match format {
            Format::Tree => self.tree(&*device, &stop, &mut report)?,
            Format::Jsonl if to_stdout => {
                let open = || Ok(std::io::stdout().lock());
                let never = |_: &_| ""; // Ctrl-C ends it there
                drop(self.lines(&*device, open, Failure::output, never, &stop, &mut report)?);
            }
            Format::Jsonl => {
                let create = || self.device.create_beside(&self.target);
                let wrong = Failure::io(self.target.display());
                let file = self.lines(&*device, create, &wrong, WholeFile::unfinished, &stop, &mut report)?;
                file.finish().map_err(wrong)?;
            }
        }
        report.seconds = started.elapsed().as_secs_f64();
        Failed::list(&mut report.failed);
        self.show(&report, to_stdout)?;
        match report.failed.len() {
            0 => Ok(()),
            count => {
                let what = if count == 1 { "path is" } else { "paths are" };
                Err(Failure::Failed(format!("{}: {count} {what} not restored; the others are", shown(&self.target))))
            }
        }
    }

    fn show(&self, report: &Report, to_stdout: bool) -> Result<(), Failure> {
        match (self.json, to_stdout) {
            (true, false) => output::json(report),
            (true, true) => {
                let text = serde_json::to_string(report).map_err(|error| Failure::Failed(error.to_string()))?;
                writeln!(std::io::stderr(), "{text}").map_err(Failure::io("standard error"))
            }
            (false, true) => Ok(()),
            (false, false) => {
                let (count, bytes) = (size::show_count(report.entries), size::show(report.value_bytes));
                output::line(format!("{count} entries, {bytes} in {:.2} s", report.seconds))
            }
        }
    }

    /// Whether a namespace begins with a path that has metadata, or is that of a tree of an earlier version.
    fn is_tree(&self, device: &dyn Place, info: &NamespaceInfo) -> Result<bool, Failure> {
        if let NamespaceKind::Versions(KeyKind::Bytes, _) = info.kind {
            return Ok(Shelf::open(device, info, self.as_of)?.holds_tree()?);
        }
        if info.keys() != KeyKind::Ordered {
            return Ok(old_metadata_of(device, info)?.is_some());
        }
        let first = Tree::open(device, info, b"")?.paths().next().transpose()?;
        Ok(first.is_some_and(|found| found.has_metadata()))
    }

    fn tree(&self, device: &dyn Place, stop: &Stop<'_>, report: &mut Report) -> Result<(), Failure> {
        let info = store::namespace(device, &self.namespace)?;
        let old = match old_metadata_of(device, &info)? {
            Some(metadata) if self.prefix.is_empty() => Some(old_tree::nodes(device, info.id, metadata)?),
            _ => None,
        };
        let tree = match old {
            Some(_) => Tree::of_old(device, info.id),
            None => Tree::open_as_of(device, &info, self.prefix.as_bytes(), self.as_of)?,
        };
        if std::fs::metadata(&self.target).is_ok_and(|found| !found.is_dir()) {
            let text = format!("{}: is no directory; --format jsonl writes to files", shown(&self.target));
            return Err(Failure::Usage(text));
        }
        if !self.prefix.is_empty() && tree.paths().next().is_none() && tree.find(self.prefix.as_bytes())?.is_none() {
            let prefix = shown(Path::new(&self.prefix));
            return Err(Failure::NotFound(format!("namespace `{}` has no path below `{prefix}`", self.namespace)));
        }
        std::fs::create_dir_all(&self.target).map_err(Failure::io(shown(&self.target)))?;
        let directory = std::fs::File::open(&self.target).map_err(Failure::io(shown(&self.target)))?;
        whole::remove_abandoned(&self.target);
        let bar = kaml_terminal::progress::bar(info.record_count);
        let restoring = Restore::new(&tree, &self.target, self.device.identity(), !self.no_owner);
        let restored = Restored::new(device, &self.target);
        let goes_on = || stop(&String::new).is_ok();
        let is_old = old.is_some();
        let old_records = old.iter().flatten().flatten().filter_map(|node| node.old.as_ref());
        let old_records: u64 = old_records.map(old_tree::Contents::record_count).sum();
        let stopped = match old {
            Some(nodes) => parallel::for_each(nodes, goes_on, |node| {
                bar.inc(1);
                match node {
                    Ok(node) => restored.node(&restoring, node),
                    Err((path, failure)) => restored.note(&PathBuf::from(path), failure),
                }
            }),
            None => parallel::for_each(tree.paths(), goes_on, |found| {
                bar.inc(2);
                restored.path(&tree, &restoring, found?)
            }),
        };
        // When nothing else is made any more: nobody must come through a link that did not exist when it looked.
        let mut later = std::mem::take(&mut *restored.later.lock().expect("no panics under this lock"));
        later.sort_by_key(|node| matches!(node.metadata.kind, Kind::HardLink(_))); // a hard link can lead to another link
        let stopped = stopped.and_then(|()| {
            later.iter().try_for_each(|node| {
                stop(&String::new)?;
                restored.make(&restoring, node)
            })
        });
        (report.entries, report.value_bytes) =
            (RESTORED.load(Ordering::Relaxed), restored.bytes.load(Ordering::Relaxed));
        stop(&|| format!("{} entries are restored", report.entries))?;
        stopped?;
        let directories = restored.directories.into_inner().expect("no panics under this lock");
        let mut failed = restored.failed.into_inner().expect("no panics under this lock");
        restoring.finish(directories, |node, failure| {
            failed.push(Failed::new(&restoring.place_of(&node.path), failure));
        });
        (report.set_id_dropped, report.attributes_dropped) = restoring.dropped();
        drop(restoring);
        report.failed = failed;
        // Once for all of them: their owner may do away with the device.
        let durable = rustix::fs::syncfs(directory);
        durable.map_err(|error| Failure::io(format!("making {} durable", shown(&self.target)))(error.into()))?;
        bar.finish_and_clear();
        if is_old && report.failed.is_empty() {
            report.left_out_records = info.record_count.saturating_sub(old_records);
        }
        self.warn(&info.name, report);
        Ok(())
    }

    fn warn(&self, name: &str, report: &Report) {
        // If standard error is closed, the report has to do.
        let mut stderr = std::io::stderr();
        if report.left_out_records > 0 {
            let count = size::show_count(report.left_out_records);
            let what = "of no file of the tree and left out";
            let _ = writeln!(
                stderr,
                "kaml: records of `{name}` that are {what}; --format jsonl writes all records: {count}"
            );
        }
        if report.set_id_dropped > 0 {
            let count = size::show_count(report.set_id_dropped);
            let what = "have no set-user-ID or set-group-ID bit, because they do not belong to their old owner";
            let _ = writeln!(stderr, "kaml: {count} paths that had one {what}");
        }
        if report.attributes_dropped > 0 {
            let count = size::show_count(report.attributes_dropped);
            let _ = writeln!(stderr, "kaml: extended attributes that could not be set: {count}");
        }
    }

    /// Opens the target only when there is something to be written to it.
    fn lines<W: Write>(
        &self,
        device: &dyn Place,
        target: impl FnOnce() -> Result<W, Failure>,
        wrong: impl Fn(std::io::Error) -> Failure,
        unfinished: impl Fn(&W) -> &'static str,
        stop: &Stop<'_>,
        report: &mut Report,
    ) -> Result<W, Failure> {
        let info = store::namespace_of_records(device, &self.namespace)?;
        let mut target = BufWriter::with_capacity(1 << 18, target()?);
        let moment = Moment::now(device, &info)?;
        moment.for_each_key(|key| {
            stop(&|| format!("{} {}", self.target.display(), unfinished(target.get_ref())))?;
            // Of a device that is served others may delete it meanwhile.
            let Some(value) = moment.get((&key).into())? else { return Ok(()) };
            let object = super::record::to_json(keys::to_json(&key, info.keys()), &value);
            report.entries += 1;
            report.value_bytes += value.len() as u64;
            writeln!(target, "{}", Value::Object(object)).map_err(&wrong)
        })?;
        target.into_inner().map_err(|error| wrong(error.into_error()))
    }
}

/// The namespace of metadata that trees of earlier versions have.
pub fn old_metadata(name: &str) -> String {
    format!("{name}.meta")
}

fn old_metadata_of(device: &dyn Place, info: &NamespaceInfo) -> Result<Option<NamespaceId>, Failure> {
    let name = old_metadata(&info.name);
    let found = device.namespaces()?.into_iter().find(|info| info.name == name);
    Ok(found.filter(|_| info.keys() != KeyKind::Ordered).map(|info| info.id))
}

/// What an export of a tree has come to.
struct Restored<'a> {
    device: &'a dyn Place,
    target: &'a Path,
    bytes: AtomicU64,
    directories: Mutex<Vec<Node>>,
    /// Links.
    later: Mutex<Vec<Node>>,
    failed: Mutex<Vec<Failed>>,
}

impl<'a> Restored<'a> {
    fn new(device: &'a dyn Place, target: &'a Path) -> Restored<'a> {
        let (directories, later, failed) = (Mutex::default(), Mutex::default(), Mutex::default());
        Restored { device, target, bytes: AtomicU64::new(0), directories, later, failed }
    }

    /// Restores a path, and notes it if that cannot be done. Fails if nothing more can be done.
    fn path(&self, tree: &Tree<'_>, restoring: &Restore<'_>, found: Found) -> Result<(), Failure> {
        let path = restoring.place_of(&found.path);
        match tree.look(found) {
            Ok(None) => Ok(()),
            Ok(Some(node)) => self.node(restoring, node),
            Err(failure) => self.note(&path, failure),
        }
    }

    fn node(&self, restoring: &Restore<'_>, node: Node) -> Result<(), Failure> {
        match node.metadata.kind {
            Kind::Link(_) | Kind::HardLink(_) => {
                self.later.lock().expect("no panics under this lock").push(node);
                Ok(())
            }
            _ => self.make(restoring, &node),
        }
    }

    fn make(&self, restoring: &Restore<'_>, node: &Node) -> Result<(), Failure> {
        match restoring.path(node) {
            Err(failure @ Failure::Usage(_)) => return Err(failure),
            Err(failure) => return self.note(&restoring.place_of(&node.path), failure),
            Ok(bytes) => drop(self.bytes.fetch_add(bytes, Ordering::Relaxed)),
        }
        RESTORED.fetch_add(1, Ordering::Relaxed);
        if node.metadata.kind == Kind::Directory {
            self.directories.lock().expect("no panics under this lock").push(node.clone());
        }
        Ok(())
    }

    /// Notes a failure, unless each of the next paths would fail the same way.
    fn note(&self, path: &Path, failure: Failure) -> Result<(), Failure> {
        let is_full = rustix::fs::statvfs(self.target)
            .is_ok_and(|found| found.f_bavail == 0 || found.f_ffree == 0 && found.f_files > 0);
        if is_full || self.device.is_lost() {
            return Err(failure);
        }
        self.failed.lock().expect("no panics under this lock").push(Failed::new(path, failure));
        Ok(())
    }
}

/// Every key of a namespace, in the order of its listing.
pub fn for_each_key(
    device: &dyn Place,
    namespace: NamespaceId,
    mut each: impl FnMut(KeyBuf) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut after: Option<KeyBuf> = None;
    loop {
        let page = device.list(namespace, after.as_ref(), PAGE_KEYS)?;
        after = match page.last() {
            None => return Ok(()),
            last => last.cloned(),
        };
        page.into_iter().try_for_each(&mut each)?;
    }
}
