//! `kaml quickstart`: store a tree, be killed in the middle of overwriting it, recover, verify every byte, look back.
//!
//! Lives here:       the story, its child process, the screen.
//! Lives elsewhere:  everything that is shown to work (`kaml`), the records of a tree (`tree`), the act about versions
//!                   (`quickstart_past`).
//!
//! The child overwrites every second file (by a bit of a hash of its path) with a second version from several threads and reports each acknowledged Put
//! by one line on its standard output. When half of them are acknowledged it kills itself with SIGKILL while the other
//! threads are inside a Put. So each file is afterwards one of: acknowledged (must be new), begun at most (old or new, but
//! contents and metadata of the same version), not chosen (must be old).

use super::quickstart_past::look_back;
use crate::failure::Failure;
use crate::interrupt;
use crate::keys;
use crate::output::{self, Paint};
use crate::parallel;
use crate::size::{show, show_count, show_ns};
use crate::store;
use crate::tree::{Kind, Metadata, PATH_BYTES_MAX, Tree};
use crate::walk::{self, Entry};
use clap::Args;
use kaml::{CreateOptions, Device, KeyKind, NamespaceOptions, OpenOptions, Stats};
use kaml_terminal::passing::Passing;
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Name of the hidden subcommand that the child process runs.
pub const WRITER: &str = "quickstart-writer";
/// Directories that are not worth storing.
const SKIPPED: [&str; 2] = [".git", "target"];
/// Files larger than this are skipped, and no more than this in total, to keep the demonstration short. Each is one Put with its contents in one
/// record, of which the smallest device used here, 320 MiB, takes 2.6 MiB.
const FILE_BYTES_MAX: u64 = 2 << 20;
/// See above.
const TREE_BYTES_MAX: u64 = 512 << 20;
/// See above.
const TREE_FILES_MAX: usize = 20_000;
/// Begins the second version of every file.
const SECOND_VERSION: &[u8] = b"second version\n";
/// The attribute that the metadata of a second version have.
const VERSION: &[u8] = b"user.kaml.version";
/// The namespace of the files.
const FILES: &str = "files";

/// Flags of `kaml quickstart`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml quickstart
  kaml quickstart ~/documents
  kaml quickstart --keep demo.kaml && kaml info demo.kaml")]
pub struct Arguments {
    /// The tree to store, without .git and target directories
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Make the device here and keep it [default: a temporary file]
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

/// Flags of the child process.
#[derive(Args)]
pub struct WriterArguments {
    device: PathBuf,
    dir: PathBuf,
}

/// What happened.
#[derive(Debug, Default, Serialize)]
struct Report {
    device: String,
    description: String,
    files: usize,
    files_passed_over: usize,
    value_bytes: u64,
    store_seconds: f64,
    put_p50_ns: u64,
    put_p99_ns: u64,
    get_p50_ns: u64,
    get_p99_ns: u64,
    ring_bytes_per_user_byte: f64,
    page_bytes_per_user_byte: f64,
    write_amplification: f64,
    planned_overwrites: usize,
    acknowledged_overwrites: usize,
    killed_by_signal: Option<i32>,
    reopen_ns: u64,
    verified_files: usize,
    verified_bytes: u64,
    new_files: usize,
    old_files: usize,
    new_but_unacknowledged: usize,
    changed_on_disk: usize,
    past_files: usize,
    past_snapshot: u32,
    checked_records: u64,
    live_bytes: u64,
    capacity_bytes: u64,
    free_blocks: u64,
    block_count: u64,
    erase_min: u64,
    erase_max: u64,
    seconds: f64,
    problems: Vec<String>,
}

impl Arguments {
    /// A directory for the device, or the device that is to be kept after its story is over.
    fn scratch(&self) -> Result<Passing, Failure> {
        let Some(path) = &self.keep else {
            return Passing::directory(&std::env::temp_dir()).map_err(Failure::io("making a temporary directory"));
        };
        store::refuse_remote(path)?;
        Passing::file(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                Failure::Failed(format!("{} exists; quickstart makes a new device", path.display()))
            }
            _ => Failure::io(path.display())(error),
        })
    }

    /// Prints the story; fails if anything was lost.
    pub fn run(self) -> Result<(), Failure> {
        let started = Instant::now();
        interrupt::ends_it(String::new())?;
        let scratch = self.scratch()?;
        let path = if self.keep.is_some() { scratch.path().into() } else { scratch.path().join("quickstart.kaml") };
        let (chosen_files, passed_over) = choose_files(&self.dir, &path)?;
        let mut report = Report { files_passed_over: passed_over, ..Report::default() };
        let screen = Screen { quiet: self.json, paint: Paint::detect() };
        let files = store_all(&path, chosen_files, &mut report)?;
        let told = self.overwrite_and_verify(&path, &files, &screen, &mut report);
        if self.keep.is_some() {
            scratch.keep();
        }
        told?;
        report.seconds = started.elapsed().as_secs_f64();
        screen.verified(&report, self.keep.as_deref())?;
        if self.json {
            output::json(&report)?;
        }
        match report.problems.len() {
            0 => Ok(()),
            n => Err(Failure::Failed(format!("quickstart: {n} problems"))),
        }
    }

    fn overwrite_and_verify(
        &self,
        path: &Path,
        files: &[Entry],
        screen: &Screen,
        report: &mut Report,
    ) -> Result<(), Failure> {
        screen.stored(report)?;
        let acknowledged = overwrite_in_child(path, &self.dir, report)?;
        screen.killed(report)?;
        verify(path, files, &acknowledged, report)
    }
}

/// The regular files to store, and how many were passed over for their size.
fn choose_files(dir: &Path, device: &Path) -> Result<(Vec<Entry>, usize), Failure> {
    if !dir.is_dir() {
        return Err(Failure::Failed(format!("{}: no such directory", dir.display())));
    }
    let mut passed_over = 0;
    let mut bytes = 0;
    let mut files = Vec::new();
    for entry in walk::walk(dir, &SKIPPED, store::identity(device))?.entries {
        if !std::fs::symlink_metadata(&entry.source).is_ok_and(|metadata| metadata.is_file()) {
            continue;
        }
        let fits = entry.bytes <= FILE_BYTES_MAX && bytes + entry.bytes <= TREE_BYTES_MAX;
        let is_long = entry.path.as_os_str().len() > PATH_BYTES_MAX;
        if !fits || is_long || files.len() >= TREE_FILES_MAX || std::fs::File::open(&entry.source).is_err() {
            passed_over += 1;
            continue;
        }
        bytes += entry.bytes;
        files.push(entry);
    }
    if files.is_empty() {
        return Err(Failure::Failed(format!("{}: no files to store", dir.display())));
    }
    Ok((files, passed_over))
}

/// Whether the child overwrites a file: by a bit of a hash, so both processes agree even if files come or go.
fn chosen(entry: &Entry) -> bool {
    xxhash_rust::xxh3::xxh3_64(entry.path.as_os_str().as_bytes()) & 1 == 1
}

fn open_tree(device: &Device) -> Result<Tree<'_>, Failure> {
    Tree::open(device, &store::namespace(device, FILES)?, b"")
}

/// Stores files; returns those that still existed.
fn store_all(path: &Path, mut files: Vec<Entry>, report: &mut Report) -> Result<Vec<Entry>, Failure> {
    let bytes: u64 = files.iter().map(|entry| entry.bytes).sum();
    let capacity = (bytes * 3 + files.len() as u64 * 4096 + (256 << 20)).next_multiple_of(64 << 20);
    let device = Device::create(path, &CreateOptions::new(capacity))?;
    device.create_namespace(FILES, &NamespaceOptions::records(KeyKind::Ordered))?;
    let tree = open_tree(&device)?;
    let started = Instant::now();
    let mut is_stored = Vec::with_capacity(files.len());
    for entry in &files {
        let version = read_version(entry, 1)?;
        is_stored.push(version.is_some());
        if let Some((metadata, contents)) = version {
            tree.put(path_of(entry), &metadata, Some(&contents))?;
            report.value_bytes += contents.len() as u64;
        }
    }
    report.store_seconds = started.elapsed().as_secs_f64();
    let mut is_stored = is_stored.into_iter();
    report.files_passed_over += files.len();
    files.retain(|_| is_stored.next().expect("one for each file"));
    report.files_passed_over -= files.len();
    report.files = files.len();
    report.planned_overwrites = files.iter().filter(|entry| chosen(entry)).count();
    device.settle()?;
    let info = device.info();
    (report.device, report.description) = (path.display().to_string(), info.description.clone());
    report.take_put_figures(&device.stats());
    device.close()?;
    Ok(files)
}

/// A version of a file as it is now; nothing if it has gone since it was chosen.
fn read_version(entry: &Entry, version: u32) -> Result<Option<(Metadata, Vec<u8>)>, Failure> {
    let Some(contents) = read_if_there(entry)? else { return Ok(None) };
    match std::fs::symlink_metadata(&entry.source) {
        Ok(found) => {
            let mut metadata = Metadata::new(Kind::File, &found);
            metadata.attributes.extend((version == 2).then(|| (VERSION.into(), b"2"[..].into())));
            Ok(Some((metadata, contents)))
        }
        Err(_) if !entry.source.exists() => Ok(None),
        Err(error) => Err(Failure::io(entry.source.display())(error)),
    }
}

fn path_of(entry: &Entry) -> &[u8] {
    entry.path.as_os_str().as_bytes()
}

fn read_if_there(entry: &Entry) -> Result<Option<Vec<u8>>, Failure> {
    match std::fs::read(&entry.source) {
        Ok(contents) => Ok(Some(contents)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::io(entry.source.display())(error)),
    }
}

/// Runs the child until it has killed itself; returns the files whose Put it saw acknowledged.
fn overwrite_in_child(path: &Path, dir: &Path, report: &mut Report) -> Result<BTreeSet<String>, Failure> {
    use std::os::unix::process::ExitStatusExt;
    let program = std::env::current_exe().map_err(Failure::io("finding our own program"))?;
    let mut child = Command::new(program)
        .arg(WRITER)
        .arg("--")
        .args([path, dir])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Failure::io("starting the child process"))?;
    let lines = BufReader::new(child.stdout.take().expect("its output is piped")).lines();
    // A line that was cut short by the kill does not count: it has no full stop.
    let told = lines.map_while(Result::ok).filter_map(|line| Some(line.strip_suffix('.')?.to_owned()));
    let acknowledged: BTreeSet<String> = told.collect();
    let status = child.wait().map_err(Failure::io("waiting for the child process"))?;
    report.acknowledged_overwrites = acknowledged.len();
    report.killed_by_signal = status.signal();
    if status.signal().is_none() && report.planned_overwrites > 0 {
        return Err(Failure::Failed(format!("the child process ended with {status} instead of being killed")));
    }
    Ok(acknowledged)
}

impl WriterArguments {
    /// Overwrites until half is acknowledged, then dies.
    pub fn run(self) -> Result<(), Failure> {
        interrupt::dies_with_parent()?;
        let device = store::open(&self.device, &OpenOptions::default())?;
        let (files, _) = choose_files(&self.dir, &self.device)?;
        let work: Vec<&Entry> = files.iter().filter(|entry| chosen(entry)).collect();
        let tree = open_tree(&device)?;
        let acknowledged = AtomicUsize::new(0);
        let fatal = work.len().div_ceil(2);
        let overwrite = |entry: &Entry| {
            let Some((metadata, contents)) = read_version(entry, 2)? else { return Ok(()) };
            tree.put(path_of(entry), &metadata, Some(&[SECOND_VERSION, &contents].concat()))?;
            output::text(&format!("{}.\n", told_name(entry)))?;
            if acknowledged.fetch_add(1, Ordering::Relaxed) + 1 == fatal {
                die();
            }
            Ok(())
        };
        parallel::for_each(work, || true, overwrite)?;
        die(); // so many files have gone meanwhile
        Ok(())
    }
}

/// How the child names a file on a line: its path, whatever bytes are in it.
fn told_name(entry: &Entry) -> String {
    keys::hex(path_of(entry))
}

fn die() {
    // What follows does not matter if this succeeds, and the parent notices if it does not.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

fn verify(path: &Path, files: &[Entry], acknowledged: &BTreeSet<String>, report: &mut Report) -> Result<(), Failure> {
    let started = Instant::now();
    let device = store::open(path, &OpenOptions::default())?;
    report.reopen_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let tree = open_tree(&device)?;
    let mut problems = Vec::new();
    for entry in files {
        let outcome = verify_file(&tree, entry, acknowledged.contains(&told_name(entry)), report);
        problems.extend(outcome.err().map(|failure| failure.to_string()));
    }
    let stats = device.stats();
    report.take_get_figures(&stats);
    match look_back(&device, files) {
        Ok(past) => (report.past_files, report.past_snapshot) = past,
        Err(failure) => problems.push(failure.to_string()),
    }
    let check = device.check(&mut |_, _| {})?;
    report.checked_records = check.records;
    report.problems = problems;
    report.problems.extend(check.problems.iter().map(ToString::to_string));
    Ok(device.close()?)
}

/// Compares one file with what is on the disk; an error states what is wrong.
fn verify_file(tree: &Tree<'_>, entry: &Entry, acknowledged: bool, report: &mut Report) -> Result<(), Failure> {
    let wrong = |what: &str| Failure::Failed(format!("{}: {what}", entry.path.display()));
    let node = tree.find(path_of(entry))?.filter(|node| node.metadata.owner.is_some());
    let node = node.ok_or_else(|| wrong("its metadata or its contents are gone"))?;
    let mut stored = Vec::new();
    tree.read(&node, 0..u64::MAX, &mut |_, bytes| {
        stored.extend_from_slice(bytes);
        Ok(())
    })?;
    let metadata = &node.metadata;
    let recorded = if metadata.attributes.is_empty() { 1 } else { 2 };
    let (version, contents) = match stored.strip_prefix(SECOND_VERSION) {
        Some(contents) if recorded == 2 => (2, contents),
        _ => (1, stored.as_slice()),
    };
    match (recorded, version) {
        (1, 1) if acknowledged => return Err(wrong("its acknowledged new version is lost")),
        (1, 1) => report.old_files += 1,
        (2, 2) if !chosen(entry) => return Err(wrong("is new and was never overwritten")),
        (2, 2) => {
            report.new_files += 1;
            report.new_but_unacknowledged += usize::from(!acknowledged);
        }
        _ => return Err(wrong("contents and metadata are of different versions")),
    }
    if read_if_there(entry)?.as_deref() != Some(contents) {
        let is_as_then = |now: Metadata| now.modified == metadata.modified;
        if read_version(entry, version)?.is_some_and(|(now, _)| is_as_then(now)) {
            return Err(wrong("its bytes are not those of the file"));
        }
        report.changed_on_disk += 1; // or taken away, by someone else, since
    }
    report.verified_files += 1;
    report.verified_bytes += stored.len() as u64;
    Ok(())
}

impl Report {
    fn take_put_figures(&mut self, stats: &Stats) {
        let user = stats.host_bytes.max(1) as f64;
        self.ring_bytes_per_user_byte = stats.ring_bytes as f64 / user;
        self.page_bytes_per_user_byte = stats.page_bytes as f64 / user;
        self.write_amplification = stats.write_amplification();
        (self.put_p50_ns, self.put_p99_ns) = (stats.put_latency.p50_ns, stats.put_latency.p99_ns);
    }

    fn take_get_figures(&mut self, stats: &Stats) {
        (self.get_p50_ns, self.get_p99_ns) = (stats.get_latency.p50_ns, stats.get_latency.p99_ns);
        (self.live_bytes, self.capacity_bytes) = (stats.live_bytes, stats.capacity_bytes);
        (self.free_blocks, self.block_count) = (stats.free_blocks.into(), stats.block_count.into());
        (self.erase_min, self.erase_max) = (stats.erase_min.into(), stats.erase_max.into());
    }
}

/// Where the story is printed.
struct Screen {
    quiet: bool,
    paint: Paint,
}

impl Screen {
    fn row(&self, name: &str, text: impl std::fmt::Display) -> Result<(), Failure> {
        if self.quiet { Ok(()) } else { output::line(format!("  {}  {text}", self.paint.bold(format!("{name:<11}")))) }
    }

    fn stored(&self, r: &Report) -> Result<(), Failure> {
        let paint = self.paint;
        if !self.quiet {
            output::line(format!("\n  {}  {}\n", paint.bold("KAML quickstart"), paint.dim(&r.description)))?;
        }
        let (files, bytes) = (paint.figure(show_count(r.files as u64)), paint.figure(show(r.value_bytes)));
        self.row("stored", format!("{files} files, {bytes}; contents and metadata of each in one atomic Put"))?;
        let rate = show((r.value_bytes as f64 / r.store_seconds.max(1e-9)) as u64);
        let latency = format!("p50 {}, p99 {}", show_ns(r.put_p50_ns), show_ns(r.put_p99_ns));
        self.row(
            "",
            format!("{:.2} s, {rate}/s, each on stable storage when acknowledged: {latency}", r.store_seconds),
        )?;
        if r.files_passed_over > 0 {
            self.row("", paint.dim(format!("{} more passed over, to keep this short", r.files_passed_over)))?;
        }
        let chosen = show_count(r.planned_overwrites as u64);
        self.row(
            "overwriting",
            format!("{chosen} of them, in a child process, up to {} threads at once", parallel::THREADS),
        )
    }

    fn killed(&self, r: &Report) -> Result<(), Failure> {
        if r.planned_overwrites == 0 {
            return self.row("killed", "nobody: too few files to overwrite half of them");
        }
        let signal = r.killed_by_signal.map_or("nothing".into(), |signal| match signal {
            9 => "SIGKILL".to_owned(),
            other => format!("signal {other}"),
        });
        let count = show_count(r.acknowledged_overwrites as u64);
        let text = format!("by {} after {} acknowledged Puts", self.paint.bad(signal), self.paint.figure(count));
        self.row("killed", format!("{text}, in the middle of others"))
    }

    fn verified(&self, r: &Report, kept: Option<&Path>) -> Result<(), Failure> {
        let paint = self.paint;
        self.row("recovered", format!("in {}", paint.figure(show_ns(r.reopen_ns))))?;
        let (files, bytes) = (show_count(r.verified_files as u64), show(r.verified_bytes));
        let text = format!("{} files, {}, every byte", paint.figure(files), paint.figure(bytes));
        self.row("verified", format!("{text}; get p50 {}, p99 {}", show_ns(r.get_p50_ns), show_ns(r.get_p99_ns)))?;
        let unsaid = match r.new_but_unacknowledged {
            0 => String::new(),
            n => format!(" ({n} not yet acknowledged, and whole)"),
        };
        self.row("", format!("{} new{unsaid}, {} old, none in between", r.new_files, r.old_files))?;
        if r.changed_on_disk > 0 {
            self.row("", paint.dim(format!("{} were changed on disk meanwhile by someone else", r.changed_on_disk)))?;
        }
        if r.past_files > 0 {
            let (files, snapshot) = (show_count(r.past_files as u64), r.past_snapshot);
            self.row("looked back", format!("{files} files changed; snapshot {snapshot} shows them as they were"))?;
            self.row("rolled back", format!("to snapshot {snapshot}: all {files} are as they were"))?;
        }
        self.row("checked", format!("{} records on the medium", show_count(r.checked_records)))?;
        let (ring, page) = (r.ring_bytes_per_user_byte, r.page_bytes_per_user_byte);
        self.row("written", format!("{ring:.2} bytes to the ring and {page:.2} to pages for each byte stored"))?;
        let blocks = format!("{} of {} blocks free", show_count(r.free_blocks), show_count(r.block_count));
        let used = format!("{} of {}", show(r.live_bytes), show(r.capacity_bytes));
        self.row("space", format!("{used}, {blocks}, erase counts {} to {}", r.erase_min, r.erase_max))?;
        if self.quiet {
            return Ok(());
        }
        r.problems.iter().take(10).try_for_each(|problem| self.row("problem", paint.bad(problem)))?;
        let end = match r.problems.len() {
            0 => paint.good("Nothing acknowledged was lost, nothing is half there."),
            n => paint.bad(format!("{n} problems.")),
        };
        let took = paint.dim(format!("{:.1} s in all", Duration::from_secs_f64(r.seconds).as_secs_f64()));
        output::line(format!("\n  {end}  {took}"))?;
        let next = match kept {
            Some(path) => format!("kaml info {}", path.display()),
            None => "kaml quickstart --keep demo.kaml, then kaml info demo.kaml".into(),
        };
        output::line(format!("  {}\n", paint.dim(format!("Next: {next}; kaml --help"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// Goal:   files that are taken away while the story runs are no problem; other bytes of the same time are one.
    /// Method: files removed before they are stored and before they are verified, one changed, one changed and set back in time.
    #[test]
    fn files_may_go_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        let file = |name: u32| tree.join(name.to_string());
        (0..9).for_each(|name| std::fs::write(file(name), name.to_string()).unwrap());
        let device = dir.path().join("device");
        let (files, _) = choose_files(&tree, &device).unwrap();
        std::fs::remove_file(file(3)).unwrap();
        let mut report = Report::default();
        let files = store_all(&device, files, &mut report).unwrap();
        assert_eq!((files.len(), report.files, report.files_passed_over), (8, 8, 1));
        std::fs::remove_file(file(4)).unwrap();
        let then = std::fs::metadata(file(5)).unwrap().modified().unwrap();
        std::fs::write(file(5), "later").unwrap();
        File::options().write(true).open(file(5)).unwrap().set_modified(then + Duration::from_secs(1)).unwrap();
        verify(&device, &files, &BTreeSet::new(), &mut report).unwrap();
        assert_eq!((&report.problems, report.changed_on_disk), (&Vec::new(), 2), "{report:?}");
        assert_eq!((report.verified_files, report.old_files), (8, 8), "{report:?}");
        File::options().write(true).open(file(5)).unwrap().set_modified(then).unwrap();
        let device = store::open(&device, &OpenOptions::default()).unwrap();
        let changed = files.iter().find(|entry| entry.path == Path::new("5")).unwrap();
        let told = verify_file(&open_tree(&device).unwrap(), changed, false, &mut report).unwrap_err();
        assert_eq!(told.to_string(), "5: its bytes are not those of the file");
    }
}
