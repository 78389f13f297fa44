//! `kaml snapshot`, `history`, `undo`, `rollback`, `diff`, `merge`: versioned namespaces.

use crate::failure::Failure;
use crate::interrupt::{self, Interrupt};
use crate::keys::{self, KeyArgument};
use crate::place::Place;
use crate::store::{self, PlaceArgument};
use crate::{output, size};
use clap::Args;
use kaml::{At, Difference, MergeReport, NamespaceInfo, NamespaceKind, Retention, VersionKind};
use serde_json::json;
use std::ops::ControlFlow;
use std::time::{SystemTime, UNIX_EPOCH};

/// Which namespace.
#[derive(Args)]
struct Target {
    #[command(flatten)]
    device: PlaceArgument,
    /// Name of a versioned namespace
    namespace: String,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Target {
    fn open(&self) -> Result<(Box<dyn Place>, NamespaceInfo), Failure> {
        let device = self.device.open()?;
        let namespace = versioned(&*device, &self.namespace)?;
        Ok((device, namespace))
    }

    fn open_to_read(&self) -> Result<(Box<dyn Place>, NamespaceInfo), Failure> {
        let device = self.device.open_to_read()?;
        let namespace = versioned(&*device, &self.namespace)?;
        Ok((device, namespace))
    }

    fn answer(&self, json: serde_json::Value, text: String) -> Result<(), Failure> {
        if self.json { output::json(&json) } else { output::line(text) }
    }
}

/// A versioned namespace, by its name.
fn versioned(device: &dyn Place, name: &str) -> Result<NamespaceInfo, Failure> {
    let namespace = store::namespace(device, name)?;
    keeps_versions(&namespace).map(|()| namespace)
}

/// Refuses a namespace that is not versioned, by its name.
pub fn keeps_versions(namespace: &NamespaceInfo) -> Result<(), Failure> {
    match namespace.kind {
        NamespaceKind::Versions(..) => Ok(()),
        NamespaceKind::Records(_) | NamespaceKind::Blocks(_) => {
            Err(Failure::Usage(format!("namespace `{}` does not keep versions", namespace.name)))
        }
    }
}

/// Flags of `kaml snapshot`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml snapshot data.kaml past              # take one; prints its number
  kaml snapshot data.kaml past --list
  kaml snapshot data.kaml past --forget 3   # the next merge drops what only it sees
  kaml get data.kaml past hello --as-of 2   # read what it sees

A snapshot copies nothing and takes a few bytes, whatever the size of the namespace.")]
pub struct SnapshotArguments {
    #[command(flatten)]
    target: Target,
    /// Show all snapshots instead
    #[arg(long, conflicts_with = "forget")]
    list: bool,
    /// Forget a snapshot instead
    #[arg(long, value_name = "SNAPSHOT")]
    forget: Option<u32>,
}

impl SnapshotArguments {
    /// Takes, shows or forgets.
    pub fn run(self) -> Result<(), Failure> {
        let target = &self.target;
        if self.list {
            let (device, namespace) = target.open_to_read()?;
            let stats = device.version_stats(namespace.id)?;
            if target.json {
                let one = |s: &kaml::SnapshotInfo| json!({ "snapshot": s.version, "time": show_time(s.time_ns) });
                return output::json(&stats.snapshots.iter().map(one).collect::<Vec<_>>());
            }
            let rows = stats.snapshots.iter().map(|s| vec![s.version.to_string(), show_time(s.time_ns)]);
            return output::line(output::table(&["snapshot", "taken"], 2, rows));
        }
        let (device, namespace) = target.open()?;
        let version = match self.forget {
            Some(version) => device.forget_snapshot(namespace.id, version).map(|()| version)?,
            None => device.snapshot(namespace.id)?,
        };
        store::close(device);
        let what = if self.forget.is_some() { "forgot" } else { "took" };
        target.answer(json!({ "snapshot": version }), format!("{what} snapshot {version} of `{}`", namespace.name))
    }
}

/// Flags of `kaml history`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml history data.kaml past hello
  kaml history data.kaml past hello --limit 5 --json
  kaml get data.kaml past hello --back 2      # read the version two before the newest

The newest version is first. `hidden` marks versions that a rollback hid.")]
pub struct HistoryArguments {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    key: KeyArgument,
    /// Maximum number of versions
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

impl HistoryArguments {
    /// Shows the versions of a key.
    pub fn run(self) -> Result<(), Failure> {
        let (device, namespace) = self.target.open_to_read()?;
        let key = self.key.key(namespace.keys())?;
        let past =
            device.history(namespace.id, keys::short(&key)?, self.limit.map_or(usize::MAX, |limit| limit as usize))?;
        if past.is_empty() {
            return Err(Failure::NotFound(format!("{}: no key `{}`", namespace.name, self.key.text())));
        }
        let is_deleted = |past: &kaml::Past| past.version.kind == VersionKind::Tombstone;
        if self.target.json {
            let one = |past: &kaml::Past| {
                json!({
                    "user_version": past.version.user_version,
                    "time": show_time(past.version.time_ns),
                    "bytes": past.version.value_len,
                    "deleted": is_deleted(past),
                    "hidden": !past.is_seen,
                    "sequence": past.version.sequence,
                })
            };
            return output::json(&past.iter().map(one).collect::<Vec<_>>());
        }
        let mut back = 0;
        let row = |past: &kaml::Past| {
            let place = if past.is_seen { back.to_string() } else { "hidden".into() };
            back += u32::from(past.is_seen);
            let size = if is_deleted(past) { "deleted".into() } else { size::show(past.version.value_len.into()) };
            vec![place, past.version.user_version.to_string(), show_time(past.version.time_ns), size]
        };
        output::line(output::table(&["back", "user version", "put", "size"], 3, past.iter().map(row)))
    }
}

/// Flags of `kaml undo`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml undo data.kaml past hello          # its content before the last change
  kaml undo data.kaml past hello --count 3

The old content becomes the newest version, so an undo can be undone.")]
pub struct UndoArguments {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    key: KeyArgument,
    /// Changes to undo
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
}

impl UndoArguments {
    /// Undoes changes of a key.
    pub fn run(self) -> Result<(), Failure> {
        let (device, namespace) = self.target.open()?;
        let key = self.key.key(namespace.keys())?;
        let is_there = device.undo(namespace.id, keys::short(&key)?, self.count)?;
        store::close(device);
        let name = self.key.text();
        let changes = if self.count == 1 { "change".to_owned() } else { format!("{} changes", self.count) };
        let text = if is_there { "as it was before" } else { "deleted, as it did not exist before" };
        self.target.answer(json!({ "there": is_there }), format!("`{name}` is {text} its last {changes}"))
    }
}

/// Flags of `kaml rollback`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml rollback data.kaml past 2

The present state becomes a snapshot first, so a rollback can be undone by another rollback.")]
pub struct RollbackArguments {
    #[command(flatten)]
    target: Target,
    /// The snapshot to return to
    snapshot: u32,
}

impl RollbackArguments {
    /// Rolls a namespace back.
    pub fn run(self) -> Result<(), Failure> {
        let (device, namespace) = self.target.open()?;
        let before = device.roll_back(namespace.id, self.snapshot)?;
        store::close(device);
        let name = &namespace.name;
        let text = format!("`{name}` is as in snapshot {}; snapshot {before} is its state before", self.snapshot);
        self.target.answer(json!({ "snapshot": self.snapshot, "before": before }), text)
    }
}

/// Flags of `kaml diff`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml diff data.kaml past 1         # since snapshot 1
  kaml diff data.kaml past 1 3       # between two snapshots

A line for each key: + added, - removed, ~ changed.")]
pub struct DiffArguments {
    #[command(flatten)]
    target: Target,
    /// From this snapshot
    from: u32,
    /// To this one [default: now]
    to: Option<u32>,
}

impl DiffArguments {
    /// Shows which keys differ.
    pub fn run(self) -> Result<(), Failure> {
        let (device, namespace) = self.target.open_to_read()?;
        let mut shown = Ok(());
        device.diff(namespace.id, Some(self.from), self.to, &mut |key, difference| {
            let (sign, word) = match difference {
                Difference::Added => ('+', "added"),
                Difference::Removed => ('-', "removed"),
                Difference::Changed => ('~', "changed"),
            };
            shown = if self.target.json {
                let mut object = keys::to_json(&key.into(), namespace.keys());
                object.insert("difference".into(), json!(word));
                output::line(serde_json::Value::Object(object))
            } else {
                output::line(format!("{sign} {}", keys::show(&key.into(), namespace.keys())))
            };
            shown.is_ok()
        })?;
        shown
    }
}

/// Flags of `kaml merge`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml merge data.kaml past --dry-run            # what would be dropped, and its size
  kaml merge data.kaml past --keep-last 10
  kaml merge data.kaml past --keep-days 30 --drop-snapshots

The newest version of each key is always kept. Versions that snapshots see are kept, unless --drop-snapshots forgets the \
snapshots. Versions are dropped from groups of segments with enough to drop; others are kept until a later merge. Ctrl-C \
ends the merge; versions dropped by then are gone. Without this command nothing is dropped, unless the namespace is merged \
when space runs low (kaml namespace set --merge-when-low).")]
pub struct MergeArguments {
    #[command(flatten)]
    target: Target,
    /// Show what would be dropped, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Keep this many of the newest versions of each key
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    keep_last: u32,
    /// Keep everything put within this many days
    #[arg(long, value_name = "DAYS")]
    keep_days: Option<u32>,
    /// Keep the newest version of each key from each group of segments that was filled together
    #[arg(long)]
    keep_internal: bool,
    /// Forget all snapshots first
    #[arg(long)]
    drop_snapshots: bool,
}

impl MergeArguments {
    fn retention(&self) -> Retention {
        let since = |days: u32| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
            now.saturating_sub(u64::from(days) * 86_400 * 1_000_000_000)
        };
        Retention {
            keep_last: self.keep_last,
            keep_since_ns: self.keep_days.map(since),
            keep_snapshots: !self.drop_snapshots,
            keep_internal: self.keep_internal,
        }
    }

    /// Drops old versions.
    pub fn run(self) -> Result<(), Failure> {
        let retention = self.retention();
        if let Some(remote) = self.target.device.remote()? {
            interrupt::ends_it(String::new())?; // who serves it notices that we are gone, and ends the merge
            let namespace = versioned(&remote, &self.target.namespace)?;
            let report = remote.merge(namespace.id, &retention, self.dry_run)?;
            return self.show(&report, Box::new(remote), &namespace);
        }
        let interrupt = Interrupt::listen()?;
        let device = self.target.device.local();
        let device = if self.dry_run { device.open_to_read()? } else { device.open()? };
        let namespace = versioned(&device, &self.target.namespace)?;
        let go_on = &mut |_, _| match interrupt.is_asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let report = match self.dry_run {
            true => device.merge_dry_run(namespace.id, &retention, go_on)?,
            false => device.merge(namespace.id, &retention, go_on)?,
        };
        if let Err(interrupted) = interrupt.check(|| self.text(&report)) {
            store::close(Box::new(device));
            return Err(interrupted);
        }
        self.show(&report, Box::new(device), &namespace)
    }

    fn text(&self, report: &MergeReport) -> String {
        let verb = if self.dry_run { "would go" } else { "are gone" };
        let (count, of, bytes) =
            (size::show_count(report.dropped), size::show_count(report.versions), size::show(report.dropped_bytes));
        format!("{count} of {of} versions {verb}, {bytes}")
    }

    fn show(&self, report: &MergeReport, device: Box<dyn Place>, namespace: &NamespaceInfo) -> Result<(), Failure> {
        let segment_bytes = device.version_stats(namespace.id)?.segment_bytes;
        store::close(device);
        let MergeReport { versions, kept, dropped, dropped_bytes, segments_read, segments_written } = report;
        let json = json!({
            "dry_run": self.dry_run,
            "versions": versions,
            "kept": kept,
            "dropped": dropped,
            "dropped_bytes": dropped_bytes,
            "segments_read": segments_read,
            "segments_written": segments_written,
            "segment_bytes": segment_bytes,
        });
        self.target.answer(json, self.text(report))
    }
}

/// Which version `kaml get` reads.
#[derive(Args)]
pub struct AtArguments {
    /// Read it as a snapshot sees it
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "back")]
    as_of: Option<u32>,
    /// Read the version this many before the newest
    #[arg(long, value_name = "COUNT")]
    back: Option<u32>,
}

impl AtArguments {
    /// The version, if one was requested.
    pub fn at(&self) -> Option<At> {
        self.as_of.map(At::Snapshot).or(self.back.map(At::Back))
    }
}

/// A time as people in UTC write it, to the second: `2026-01-31T12:00:00Z`.
pub fn show_time(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March, so a leap day is the last one; eras have 400 of them (Howard Hinnant's civil_from_days).
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   times are printed right, leap days and turns of centuries included.
    /// Method: some that `date -u` prints.
    #[test]
    fn times_are_told() {
        let told = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        told.into_iter().for_each(|(s, text)| assert_eq!(show_time(s * 1_000_000_000), text));
    }
}
