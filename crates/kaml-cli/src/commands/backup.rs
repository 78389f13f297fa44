//! `kaml backup` and `kaml restore`.
//!
//! Lives here:       flags, files and streams, what is shown.
//! Lives elsewhere:  everything about backups (`kaml`).

use crate::failure::Failure;
use crate::place::Place;
use crate::store::{self, OptionalPlace, PlaceArgument};
use crate::whole::{self, Temporary, WholeFile};
use crate::{interrupt, output, size};
use clap::{Args, Subcommand};
use kaml::{BackupBase, BackupInfo, BackupReport, CreateOptions, Device, RestoreReport, RestoreSource};
use kaml_terminal::flags::Durability;
use kaml_terminal::progress;
use serde_json::json;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Flags of `kaml backup`.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  kaml backup data.kaml monday.backup
  kaml backup data.kaml tuesday.backup --since monday.backup
  kaml backup data.kaml - | zstd > monday.backup.zst
  kaml backup nvme+tcp://127.0.0.1:4420/NQN served.backup
  kaml backup verify monday.backup

A device that is served is backed up by its URL, while others use it. This host needs the right to read all \
namespaces. The file gets its name when it is whole. A stream that ends early has no end mark, and nothing restores it. \
An incremental backup has what has changed since the one that --since names, and is restored after it."
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    device: OptionalPlace,
    /// The backup; - for standard output
    #[arg(value_name = "FILE", required = true)]
    file: Option<PathBuf>,
    /// Only what has changed since this backup
    #[arg(long, value_name = "BACKUP")]
    since: Option<PathBuf>,
    /// Change nothing on the device; an incremental backup after this one has everything
    #[arg(long)]
    read_only: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// What to do instead of taking one.
#[derive(Subcommand)]
enum Command {
    /// Read a backup and verify everything in it
    Verify(VerifyArguments),
}

/// A backup that is to be taken.
struct Take {
    device: PlaceArgument,
    file: PathBuf,
    since: Option<PathBuf>,
    read_only: bool,
    json: bool,
}

/// Flags of `kaml backup verify`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml backup verify monday.backup
  zstd -d < monday.backup.zst | kaml backup verify -")]
struct VerifyArguments {
    /// The backup; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print what it has as JSON
    #[arg(long)]
    json: bool,
}

/// Flags of `kaml restore`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml restore monday.backup new.kaml
  kaml restore monday.backup tuesday.backup larger.kaml --capacity 64G
  zstd -d < monday.backup.zst | kaml restore - third.kaml
  kaml restore monday.backup /dev/nvme1n1 --force

A new file gets its name when it is whole. Over something that exists (--force), the device cannot be opened until \
the restore has ended.")]
pub struct RestoreArguments {
    /// A full backup, the incremental ones after it in their order, and the new device; - for standard input
    #[arg(value_name = "BACKUP... DEVICE", num_args = 2.., required = true)]
    paths: Vec<PathBuf>,
    /// Bytes of flash of the new device [default: as the one that was backed up, or the whole disk]
    #[arg(long, short, value_parser = size::parse)]
    capacity: Option<u64>,
    /// What an acknowledged put survives
    #[arg(long, value_enum, default_value_t)]
    durability: Durability,
    /// Overwrite whatever exists
    #[arg(long)]
    force: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

fn is_stream(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl Arguments {
    /// Takes or verifies a backup.
    pub fn run(self) -> Result<(), Failure> {
        let Arguments { command, device, file, since, read_only, json } = self;
        match (command, device.given(), file) {
            (Some(Command::Verify(arguments)), _, _) => arguments.run(),
            (None, Some(device), Some(file)) => Take { device, file, since, read_only, json }.run(),
            (None, _, _) => Err(Failure::Usage("name a device and a file".into())),
        }
    }
}

impl Take {
    fn run(self) -> Result<(), Failure> {
        let base = self.since.as_ref().map(BackupBase::open).transpose()?;
        if self.read_only && !self.device.is_here() {
            let why = "--read-only opens a file or disk; a backup over NVMe changes no record";
            return Err(Failure::Usage(why.into()));
        }
        interrupt::ends_it(": the backup is not written".into())?;
        if is_stream(&self.file) {
            let device = self.open()?;
            let report = take(&*device, &mut std::io::stdout(), base);
            store::close(device);
            return report.map(drop);
        }
        self.device.refuse_itself(&self.file)?;
        let device = self.open()?;
        let failed = Failure::io(self.file.display());
        let mut file = WholeFile::create(&self.file).map_err(&failed)?;
        let report = take(&*device, &mut file, base).and_then(|report| {
            file.finish().map_err(failed)?;
            Ok(report)
        });
        store::close(device);
        self.show(&report?)
    }

    fn open(&self) -> Result<Box<dyn Place>, Failure> {
        if self.read_only { self.device.open_to_read() } else { self.device.open() }
    }

    fn show(&self, report: &BackupReport) -> Result<(), Failure> {
        if self.json {
            return output::json(&json!({
                "namespaces": report.namespaces,
                "records": report.records,
                "versions": report.versions,
                "deleted": report.deleted,
                "bytes": report.bytes,
                "read_bytes": report.read_bytes,
                "is_incremental": report.is_incremental,
            }));
        }
        let what = contents(report.records, report.versions, report.deleted);
        output::line(format!("{}: {what}, {}", self.file.display(), size::show(report.bytes)))
    }
}

fn take(
    device: &dyn Place,
    out: &mut (dyn std::io::Write + Send),
    base: Option<BackupBase>,
) -> Result<BackupReport, Failure> {
    let bar = progress::bar(0);
    let report = device.backup(out, base, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    Ok(report?)
}

/// What a backup has, in words.
fn contents(records: u64, versions: u64, deleted: u64) -> String {
    let counts = [(records, "records"), (versions, "versions"), (deleted, "deleted keys")];
    let shown = counts.iter().filter(|(count, what)| *count > 0 || *what == "records");
    shown.map(|(count, what)| format!("{} {what}", size::show_count(*count))).collect::<Vec<_>>().join(", ")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl VerifyArguments {
    fn run(self) -> Result<(), Failure> {
        let info = match is_stream(&self.file) {
            true => kaml::verify_backup(&mut std::io::stdin(), "standard input")?,
            false => kaml::verify_backup_file(&self.file)?,
        };
        if self.json { output::json(&described(&info)) } else { self.show(&info) }
    }

    fn show(&self, info: &BackupInfo) -> Result<(), Failure> {
        let kind = info.base.map_or("full".to_owned(), |base| format!("incremental since {}", hex(&base)));
        let what = contents(info.records, info.versions, info.deleted);
        output::line(format!("{}: whole; {kind}, number {}", self.file.display(), hex(&info.backup)))?;
        output::line(format!("{} namespaces, {what}, {}", info.namespaces.len(), size::show(info.bytes)))
    }
}

fn described(info: &BackupInfo) -> serde_json::Value {
    json!({
        "backup": hex(&info.backup),
        "device": hex(&info.device),
        "base": info.base.map(|base| hex(&base)),
        "time_ns": info.time_ns,
        "live_bytes": info.live_bytes,
        "capacity_bytes": info.capacity_bytes,
        "namespaces": info.namespaces,
        "records": info.records,
        "versions": info.versions,
        "deleted": info.deleted,
        "bytes": info.bytes,
    })
}

impl RestoreArguments {
    /// Makes a device of backups.
    pub fn run(self) -> Result<(), Failure> {
        let Some((path, backups)) = self.paths.split_last() else {
            return Err(Failure::Usage("name a backup and a device".into()));
        };
        store::refuse_remote(path)?;
        let source = |backup: &PathBuf| match is_stream(backup) {
            true => RestoreSource::stream(std::io::stdin(), "standard input"),
            false => RestoreSource::file(backup),
        };
        let options = CreateOptions {
            durability: self.durability.into(),
            force: self.force,
            ..CreateOptions::new(self.capacity.unwrap_or(0))
        };
        let exists = std::fs::symlink_metadata(path).is_ok();
        let what = "is half restored and cannot be opened; `kaml restore --force` makes it anew";
        interrupt::ends_it(if exists { format!(": {} {what}", path.display()) } else { String::new() })?;
        let bytes = backups.iter().map(|backup| std::fs::metadata(backup).map_or(0, |found| found.len())).sum();
        let bar = progress::bytes_bar(bytes);
        let restore = |at: &Path| {
            Device::restore(backups.iter().map(source).collect(), at, &options, &mut |done| {
                bar.set_position(done);
                ControlFlow::Continue(())
            })
        };
        let report =
            if exists { restore(path).map_err(Failure::from)? } else { restore_under_temporary_name(path, restore)? };
        bar.finish_and_clear();
        self.show(path, &report)
    }

    fn show(&self, path: &Path, report: &RestoreReport) -> Result<(), Failure> {
        if self.json {
            return output::json(&json!({
                "backups": report.backups,
                "namespaces": report.namespaces,
                "records": report.records,
                "versions": report.versions,
                "deleted": report.deleted,
                "logs_dropped": report.logs_dropped,
            }));
        }
        let what = contents(report.records, report.versions, report.deleted);
        output::line(format!("{}: {} namespaces, {what}", path.display(), report.namespaces))?;
        match report.logs_dropped {
            0 => Ok(()),
            count => output::line(format!("{count} namespaces use all logs, because the device lacks some of theirs")),
        }
    }
}

/// Restores to a new file, which gets its name when it is whole.
fn restore_under_temporary_name(
    path: &Path,
    restore: impl FnOnce(&Path) -> Result<RestoreReport, kaml::Error>,
) -> Result<RestoreReport, Failure> {
    let failed = Failure::io(path.display());
    // The device locks the file as long as it is open.
    let (temporary, file) = Temporary::file(path, 0o600).map_err(&failed)?;
    drop(file);
    let (temporary_name, name) = (temporary.path().display().to_string(), path.display().to_string());
    let report = restore(temporary.path()).map_err(|error| match Failure::from(error) {
        // Nobody knows the temporary name.
        Failure::Failed(what) => Failure::Failed(what.replace(&temporary_name, &name)),
        Failure::Usage(what) => Failure::Usage(what.replace(&temporary_name, &name)),
        other => other,
    })?;
    temporary.rename_new(path).map_err(&failed)?;
    whole::sync_directory(path).map_err(failed)?;
    Ok(report)
}
