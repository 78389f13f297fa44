//! `kaml export`: restores a directory tree, or writes JSON Lines.

use crate::failure::Failure;
use crate::interrupt::{self, Interrupt};
use crate::place::Place;
use crate::restore::Restore;
use crate::store::{self, PlaceArgument};
use crate::tree::{self, Kind, Metadata, Tree};
use crate::whole::WholeFile;
use crate::{keys, output, parallel, size};
use clap::{Args, ValueEnum};
use kaml::{Key, NamespaceId};
use serde::Serialize;
use serde_json::Value;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Keys fetched from the device at a time.
const PAGE_KEYS: usize = 4096;

/// Flags of `kaml export`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml export data.kaml restored --namespace photos
  kaml export data.kaml notes.jsonl --namespace notes
  kaml export data.kaml - --namespace notes | gzip > notes.jsonl.gz

A namespace that was imported from a directory (it has a NAME.meta beside it) is restored as a directory, with modes and \
times, and every file is verified against the hash in its metadata; others are written as JSON Lines, of those that keep \
versions the newest ones. Files come under their \
names when they are whole, and are durable when the command ends.")]
pub struct Arguments {
    #[command(flatten)]
    device: PlaceArgument,
    /// Directory, file, or `-` (also /dev/stdout) for standard output
    target: PathBuf,
    /// Name of the namespace
    #[arg(long, short)]
    namespace: String,
    /// As what [default: a tree if NAME.meta exists and the target is not standard output]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// What was done as JSON, on standard error if the records go to standard output
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

/// Fails with what has been done so far if the person asked to stop.
type Stop<'a> = dyn Fn(&dyn Fn() -> String) -> Result<(), Failure> + Sync + 'a;

/// What was done.
#[derive(Default, Serialize)]
struct Report {
    entries: u64,
    value_bytes: u64,
    seconds: f64,
    /// Records beside a tree, which are of no file.
    #[serde(skip_serializing_if = "is_0")]
    left_out_records: u64,
}

fn is_0(number: &u64) -> bool {
    *number == 0
}

impl Arguments {
    /// Exports.
    pub fn run(self) -> Result<(), Failure> {
        let to_stdout = output::is_stdout(&self.target);
        let found = std::fs::metadata(&self.target);
        // Who reads may do so slowly, or not at all, and nothing is left behind.
        let is_stream = to_stdout || found.is_ok_and(|found| !found.is_file() && !found.is_dir());
        let interrupt = if is_stream {
            interrupt::ends_it(String::new())?;
            None
        } else {
            Some(Interrupt::listen()?)
        };
        let stop = |done: &dyn Fn() -> String| interrupt.as_ref().map_or(Ok(()), |interrupt| interrupt.check(done));
        let started = Instant::now();
        let device = self.device.open_to_read()?;
        let is_tree = store::namespace(&*device, &tree::namespace_names(&self.namespace).1).is_ok();
        let format = self.format.unwrap_or(if is_tree && !to_stdout { Format::Tree } else { Format::Jsonl });
        let mut report = Report::default();
        if format == Format::Tree && to_stdout {
            return Err(Failure::Usage("a tree cannot be written to standard output; --format jsonl can".into()));
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
        self.show(&report, to_stdout)
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

    fn tree(&self, device: &dyn Place, stop: &Stop<'_>, report: &mut Report) -> Result<(), Failure> {
        let (contents, metadata) = tree::namespace_names(&self.namespace);
        let info = store::namespace(device, &metadata)?;
        let tree = Tree { device, contents: store::namespace(device, &contents)?.id, metadata: info.id };
        if std::fs::metadata(&self.target).is_ok_and(|found| !found.is_dir()) {
            let text = format!("{}: is no directory; --format jsonl writes to files", self.target.display());
            return Err(Failure::Usage(text));
        }
        std::fs::create_dir_all(&self.target).map_err(Failure::io(self.target.display()))?;
        let directory = std::fs::File::open(&self.target).map_err(Failure::io(self.target.display()))?;
        let bar = super::check::bytes_bar(info.record_count);
        let (count, bytes, of_files) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let (directories, links) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let restoring = Restore::new(&tree, &self.target, self.device.identity());
        let restore = |metadata: &Metadata| {
            bytes.fetch_add(restoring.path(metadata)?, Ordering::Relaxed);
            count.fetch_add(1, Ordering::Relaxed);
            bar.inc(1);
            Ok::<(), Failure>(())
        };
        let restored = for_each_page(device, info.id, |page| {
            let goes_on = || stop(&String::new).is_ok();
            parallel::for_each(page, goes_on, |key| {
                let Some(metadata) = tree.metadata(key)? else { return Ok(()) };
                of_files.fetch_add(metadata.record_count(), Ordering::Relaxed);
                if tree.is_gone(&metadata)? {
                    return Ok(());
                }
                if metadata.kind == Kind::Link {
                    links.lock().expect("no panics under this lock").push(metadata);
                    return Ok(());
                }
                restore(&metadata)?;
                if metadata.kind == Kind::Directory {
                    directories.lock().expect("no panics under this lock").push(metadata);
                }
                Ok(())
            })?;
            stop(&String::new)
        });
        // When nothing else is made any more: nobody must come through a link that was not there when it looked.
        let links: Vec<Metadata> = links.into_inner().expect("no panics under this lock");
        let restored = restored.and_then(|()| links.iter().try_for_each(restore));
        (report.entries, report.value_bytes) = (count.into_inner(), bytes.into_inner());
        stop(&|| format!("{} entries are restored", report.entries))?;
        restored?;
        restoring.finish(directories.into_inner().expect("no panics under this lock"))?;
        // Once for all of them: their owner may do away with the device.
        let durable = rustix::fs::syncfs(directory);
        durable.map_err(|error| Failure::io(format!("making {} durable", self.target.display()))(error.into()))?;
        bar.finish_and_clear();
        let contents = store::namespace(device, &contents)?;
        if contents.versions.is_none() {
            report.left_out_records = contents.record_count.saturating_sub(of_files.into_inner());
        }
        if report.left_out_records > 0 {
            let (count, name) = (size::show_count(report.left_out_records), &contents.name);
            let what = "of no file of the tree and left out; --format jsonl writes all records";
            // If standard error is closed, the report has to do.
            let _ = writeln!(std::io::stderr(), "kaml: records of `{name}` that are {what}: {count}");
        }
        Ok(())
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
        for_each_key(device, info.id, |key| {
            stop(&|| format!("{} {}", self.target.display(), unfinished(target.get_ref())))?;
            // Of a device that is served others may delete it meanwhile.
            let Some(value) = device.get(info.id, key)? else { return Ok(()) };
            let object = super::record::to_json(keys::to_json(&key, info.keys), &value);
            report.entries += 1;
            report.value_bytes += value.len() as u64;
            writeln!(target, "{}", Value::Object(object)).map_err(&wrong)
        })?;
        target.into_inner().map_err(|error| wrong(error.into_error()))
    }
}

/// Every key of a namespace, in the order of its listing.
pub fn for_each_key(
    device: &dyn Place,
    namespace: NamespaceId,
    mut each: impl FnMut(Key) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for_each_page(device, namespace, |page| page.into_iter().try_for_each(&mut each))
}

fn for_each_page(
    device: &dyn Place,
    namespace: NamespaceId,
    mut each: impl FnMut(Vec<Key>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut after = None;
    loop {
        let page = device.list(namespace, after, PAGE_KEYS)?;
        after = match page.last() {
            None => return Ok(()),
            last => last.copied(),
        };
        each(page)?;
    }
}
