//! `kaml namespace create|list|set|delete`.

use crate::commands::versions::keeps_versions;
use crate::failure::Failure;
use crate::store::{self, PlaceArgument};
use crate::{output, size, ttl};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand, ValueEnum};
use kaml::{
    BlockOptions, Compression, IndexPlace, KeyKind, MergePolicy, NamespaceChange, NamespaceInfo, NamespaceKind,
    NamespaceOptions, VersionIndex, VersionOptions,
};
use serde::Serialize;
use std::num::NonZeroU64;
use std::time::Duration;

/// Flags of `kaml namespace`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml namespace create data.kaml notes
  kaml namespace create data.kaml counters --keys u64 --logs 0
  kaml namespace create data.kaml disk --block 4096 --size 1GiB
  kaml namespace create data.kaml sessions --ttl 1h
  kaml namespace create data.kaml documents --compression zstd
  kaml namespace create data.kaml articles --keys u64 --index flash
  kaml namespace create data.kaml past --versioned
  kaml namespace create data.kaml log --versioned --buffer 1MiB --merge-when-low --keep-last 10
  kaml namespace list data.kaml
  kaml namespace set data.kaml notes --rename letters
  kaml namespace set data.kaml past --merge-when-low --keep-days 30
  kaml namespace delete data.kaml letters")]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Create a namespace
    Create {
        #[command(flatten)]
        target: Target,
        /// Kind of keys
        #[arg(long, value_enum, default_value_t, conflicts_with = "block")]
        keys: Keys,
        /// Create a disk of logical blocks of this many bytes (512 or 4096) instead of records
        #[arg(long, value_name = "BYTES", value_parser = size::parse, requires = "size")]
        block: Option<u64>,
        /// Bytes of the disk, for example 1GiB; can be more than the device has
        #[arg(long, value_parser = size::parse, requires = "block")]
        size: Option<u64>,
        /// Bytes that are mapped together; a smaller write first reads the remainder [default: 4096]
        #[arg(long, value_name = "BYTES", value_parser = size::parse, requires = "block")]
        unit: Option<u64>,
        /// Where its index is: `flash` takes about two bytes of memory for each key, for keys of at most 16 bytes
        #[arg(long, value_enum, default_value_t, conflicts_with_all = ["block", "versioned", "ttl", "compression"])]
        index: Place,
        /// Keep every version of every record
        #[arg(long, conflicts_with = "block")]
        versioned: bool,
        /// Buffer for versions that are not yet in segments, for example 16MiB [default: a quarter of the commit ring]
        #[arg(long, value_name = "BYTES", value_parser = size::parse, requires = "versioned")]
        buffer: Option<u64>,
        #[command(flatten)]
        shape: ShapeArguments,
        #[command(flatten)]
        policy: PolicyArguments,
        /// Let records expire so long after they were put, for example 90s, 15m, 1h or 7d
        #[arg(long, value_name = "TIME", value_parser = ttl::parse, conflicts_with_all = ["block", "versioned"])]
        ttl: Option<Duration>,
        /// How values are compressed where that saves room: lz4, zstd or none
        #[arg(long, value_name = "METHOD", default_value_t, conflicts_with_all = ["block", "versioned"])]
        compression: Compression,
        /// Logs that its records are written to, for example 0,1 [default: all]
        #[arg(long, value_delimiter = ',')]
        logs: Vec<u32>,
    },
    /// Show all namespaces
    List {
        #[command(flatten)]
        device: PlaceArgument,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Rename, move to other logs, or set what expires or is dropped when space runs low
    Set {
        #[command(flatten)]
        target: Target,
        /// Its new name
        #[arg(long)]
        rename: Option<String>,
        /// Logs that its records are written to from now on, or `all`
        #[arg(long)]
        logs: Option<Logs>,
        #[command(flatten)]
        policy: PolicyArguments,
        /// Drop versions only with `kaml merge`
        #[arg(long, conflicts_with = "merge_when_low")]
        never_merge: bool,
        /// Let records that are put from now on expire after so long; present ones keep their times
        #[arg(long, value_name = "TIME", value_parser = ttl::parse)]
        ttl: Option<Duration>,
        /// Let records that are put from now on not expire
        #[arg(long, conflicts_with = "ttl")]
        no_ttl: bool,
        /// How values that are put from now on are compressed: lz4, zstd or none; present ones remain as they are
        #[arg(long, value_name = "METHOD")]
        compression: Option<Compression>,
    },
    /// Delete a namespace and all its records
    Delete {
        #[command(flatten)]
        target: Target,
        /// Read nothing of it: for a local device that does not open because this namespace is damaged
        #[arg(long)]
        damaged: bool,
    },
}

#[derive(Args)]
struct Target {
    #[command(flatten)]
    device: PlaceArgument,
    /// Name of the namespace
    #[arg(value_name = "NAMESPACE")]
    name: String,
    /// Print the namespace as JSON
    #[arg(long)]
    json: bool,
}

fn at_least_one() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..)
}

/// The shape of a versioned namespace: parameters of the Muninn paper's Table 1.
#[derive(Args)]
struct ShapeArguments {
    /// Number of chains of segments (rows) [default: chosen from the buffer]
    #[arg(long, value_name = "COUNT", requires = "versioned", value_parser = at_least_one())]
    rows: Option<u32>,
    /// Bytes of a segment: whole program units that fill an erase block except for a 64th [default: up to 1MiB]
    #[arg(long, value_name = "BYTES", value_parser = size::parse, requires = "versioned")]
    segment: Option<u64>,
}

impl ShapeArguments {
    /// For a versioned namespace without a policy.
    fn options(&self, buffer_bytes: u64) -> Result<VersionOptions, Failure> {
        let segment = self.segment.unwrap_or(0);
        if self.segment == Some(0) {
            return Err(Failure::Usage("--segment 0: a segment has bytes".into()));
        }
        let too_large = |_| Failure::Usage(format!("--segment {segment}: that is too large"));
        Ok(VersionOptions {
            buffer_bytes,
            segment_bytes: u32::try_from(segment).map_err(too_large)?,
            rows: self.rows.unwrap_or(0),
            ..VersionOptions::default()
        })
    }
}

/// What a versioned namespace drops when space runs low.
#[derive(Args)]
struct PolicyArguments {
    /// Drop old versions when less than a quarter of the space remains; what snapshots see is kept
    #[arg(long)]
    merge_when_low: bool,
    /// Then keep this many of the newest versions of each key
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "merge_when_low")]
    keep_last: u32,
    /// Then keep everything put in this many days before
    #[arg(long, value_name = "DAYS", requires = "merge_when_low")]
    keep_days: Option<u32>,
    /// Then keep the newest version of each key from each group of segments that was filled together
    #[arg(long, requires = "merge_when_low")]
    keep_internal: bool,
}

impl PolicyArguments {
    fn policy(&self) -> Option<MergePolicy> {
        let keep_for_ns = u64::from(self.keep_days.unwrap_or(0)).saturating_mul(DAY_NS);
        let (keep_last, keep_internal) = (self.keep_last, self.keep_internal);
        let policy = MergePolicy { keep_last, keep_for_ns, keep_internal, ..MergePolicy::default() };
        self.merge_when_low.then_some(policy)
    }
}

const DAY_NS: u64 = 86_400 * 1_000_000_000;

/// Which keys a namespace takes.
#[derive(Clone, Copy, Default, ValueEnum)]
enum Keys {
    /// 1 to 16 bytes
    #[default]
    Bytes,
    /// 64-bit integers: faster, and smaller in memory
    U64,
    /// 1 to 1024 bytes
    Any,
    /// 1 to 1024 bytes, listed in their order
    Ordered,
}

/// Where the index of a namespace is.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Place {
    /// In memory: 10 to 30 bytes for each key
    #[default]
    Memory,
    /// On flash: about two bytes of memory for each stored record
    Flash,
}

/// Logs on the command line.
#[derive(Clone)]
struct Logs(Vec<u32>);

impl std::str::FromStr for Logs {
    type Err = String;
    fn from_str(text: &str) -> Result<Logs, String> {
        if text == "all" {
            return Ok(Logs(Vec::new()));
        }
        let log = |word: &str| word.trim().parse().map_err(|error| format!("`{word}` is not a log: {error}"));
        text.split(',').map(log).collect::<Result<_, _>>().map(Logs)
    }
}

impl Arguments {
    /// Runs the command.
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::Create {
                target,
                keys,
                logs,
                block,
                size,
                unit,
                index,
                versioned,
                buffer,
                shape,
                policy,
                ttl,
                compression,
            } => {
                let merge_when_low = policy.policy();
                if merge_when_low.is_some() && !versioned {
                    return Err(Failure::Usage("--merge-when-low needs --versioned".into()));
                }
                let keys = match keys {
                    Keys::Bytes => KeyKind::Bytes,
                    Keys::U64 => KeyKind::U64,
                    Keys::Any => KeyKind::Any,
                    Keys::Ordered => KeyKind::Ordered,
                };
                let kind = match (block.zip(size), versioned) {
                    (Some((block, size)), _) => NamespaceKind::Blocks(block_options(block, size, unit)?),
                    (None, true) => {
                        let versions = shape.options(buffer.unwrap_or(0))?;
                        NamespaceKind::Versions(keys, VersionOptions { merge_when_low, ..versions })
                    }
                    (None, false) => NamespaceKind::Records(keys),
                };
                let device = target.device.open()?;
                let mut options = NamespaceOptions::new(kind).with_logs(logs).with_compression(compression);
                if index == Place::Flash {
                    options = options.with_index(IndexPlace::Flash);
                }
                if let Some(ttl) = ttl {
                    ttl::local(&*device, "--ttl")?;
                    options = options.with_ttl(ttl);
                }
                device.create_namespace(&target.name, &options)?;
                target.show(&store::namespace(&*device, &target.name)?, "created")?;
                store::close(device);
                Ok(())
            }
            Action::List { device, json } => {
                let namespaces = device.open_to_read()?.namespaces()?;
                if json { output::json(&View::of_all(&namespaces)) } else { output::line(table(&namespaces)) }
            }
            Action::Set {
                rename: None,
                logs: None,
                never_merge: false,
                ttl: None,
                no_ttl: false,
                compression: None,
                policy,
                ..
            } if !policy.merge_when_low => {
                let flags = "--rename, --logs, --ttl, --no-ttl, --compression, --merge-when-low or --never-merge";
                Err(Failure::Usage(format!("nothing to set: give {flags}")))
            }
            Action::Set { target, rename, logs, policy, never_merge, ttl, no_ttl, compression } => {
                let device = target.device.open()?;
                let info = store::namespace(&*device, &target.name)?;
                if policy.merge_when_low || never_merge {
                    keeps_versions(&info)?;
                }
                let name = rename.clone().unwrap_or_else(|| target.name.clone());
                let merge_when_low = policy.policy().map(Some).or(never_merge.then_some(None));
                if ttl.is_some() || no_ttl {
                    ttl::local(&*device, "--ttl")?;
                }
                let default_ttl_ms = match ttl {
                    Some(ttl) => Some(NamespaceOptions::default().with_ttl(ttl).default_ttl_ms),
                    None => no_ttl.then_some(None),
                };
                let logs = logs.map(|logs| logs.0);
                let change = NamespaceChange { name: rename, logs, merge_when_low, default_ttl_ms, compression };
                device.set_namespace(info.id, &change)?;
                target.show(&store::namespace(&*device, &name)?, "changed")?;
                store::close(device);
                Ok(())
            }
            Action::Delete { target, damaged: true } => {
                let (device, info) = target.device.local().open_without(&target.name)?;
                target.show(&info, "deleted")?;
                Ok(device.close()?)
            }
            Action::Delete { target, damaged: false } => {
                let device = target.device.open()?;
                let info = store::namespace(&*device, &target.name)?;
                device.delete_namespace(info.id)?;
                target.show(&info, "deleted")?;
                store::close(device);
                Ok(())
            }
        }
    }
}

fn block_options(block: u64, size: u64, unit: Option<u64>) -> Result<BlockOptions, Failure> {
    if block == 0 || !size.is_multiple_of(block) {
        return Err(Failure::Usage(format!("--size {size} is not a multiple of --block {block}")));
    }
    let bytes = |what: &str, bytes: u64| {
        u32::try_from(bytes).map_err(|_| Failure::Usage(format!("{what} {bytes}: that is too large")))
    };
    let options = BlockOptions::new(bytes("--block", block)?, size / block);
    let unit_bytes = unit.map_or(Ok(options.unit_bytes), |unit| bytes("--unit", unit))?;
    Ok(BlockOptions { unit_bytes, ..options })
}

impl Target {
    fn show(&self, info: &NamespaceInfo, what: &str) -> Result<(), Failure> {
        if self.json {
            output::json(&View::of(info))
        } else {
            output::line(format!("{what} namespace `{}`", info.name))
        }
    }
}

/// A namespace in JSON; the names of the fields do not change.
#[derive(Serialize)]
pub struct View<'a> {
    id: u32,
    name: &'a str,
    /// `bytes`, `u64`, or `blocks`.
    keys: String,
    /// Bytes of a logical block, of its mapping unit, and blocks; of a namespace of records nothing.
    block_bytes: Option<u32>,
    unit_bytes: Option<u32>,
    block_count: Option<u64>,
    /// It keeps every version; bytes of its page buffer and of a segment.
    versioned: bool,
    buffer_bytes: Option<u64>,
    segment_bytes: Option<u64>,
    /// Index of the versions: `columns` or `bloom`, and the chains of segments.
    index: Option<&'static str>,
    rows: Option<u32>,
    /// Old versions are dropped when space runs low.
    merge_when_low: bool,
    /// `memory` or `flash`; none: it keeps all versions.
    index_place: Option<&'static str>,
    /// None: all of them.
    logs: Option<&'a [u32]>,
    record_count: u64,
    index_bytes: u64,
    loaded: bool,
    /// Records expire after so many milliseconds by default; those that expire.
    default_ttl_ms: Option<u64>,
    expiring_count: u64,
    /// `none`, `lz4` or `zstd`; bytes of values since the device was opened, as given and as stored.
    compression: String,
    given_bytes: u64,
    stored_bytes: u64,
}

impl View<'_> {
    fn of(info: &NamespaceInfo) -> View<'_> {
        let (blocks, versions) = match info.kind {
            NamespaceKind::Records(_) => (None, None),
            NamespaceKind::Blocks(blocks) => (Some(blocks), None),
            NamespaceKind::Versions(_, versions) => (None, Some(versions)),
        };
        let shape = versions.map(|versions| versions.parameters);
        View {
            id: info.id,
            name: &info.name,
            keys: show_kind(info),
            block_bytes: blocks.map(|blocks| blocks.block_bytes),
            unit_bytes: blocks.map(|blocks| blocks.unit_bytes),
            block_count: blocks.map(|blocks| blocks.block_count),
            versioned: shape.is_some(),
            buffer_bytes: shape.map(|shape| shape.buffer_bytes),
            segment_bytes: shape.map(|shape| shape.segment_bytes() as u64),
            index: shape.map(|shape| show_index(&shape.index)),
            rows: shape.map(|shape| shape.rows),
            merge_when_low: versions.is_some_and(|versions| versions.merge_when_low.is_some()),
            index_place: match (info.index_place(), info.kind) {
                (IndexPlace::Flash, _) => Some("flash"),
                (_, NamespaceKind::Versions(..)) => None,
                (_, NamespaceKind::Records(_) | NamespaceKind::Blocks(_)) => Some("memory"),
            },
            logs: (!info.logs.is_empty()).then_some(&info.logs),
            record_count: info.record_count,
            index_bytes: info.index_bytes,
            loaded: info.loaded,
            default_ttl_ms: info.default_ttl_ms.map(NonZeroU64::get),
            expiring_count: info.expiring_count,
            compression: info.compression.to_string(),
            given_bytes: info.compressed.given_bytes,
            stored_bytes: info.compressed.stored_bytes,
        }
    }

    /// All of a device.
    pub fn of_all(namespaces: &[NamespaceInfo]) -> Vec<View<'_>> {
        namespaces.iter().map(View::of).collect()
    }
}

fn show_index(index: &VersionIndex) -> &'static str {
    match index {
        VersionIndex::Columns(_) => "columns",
        VersionIndex::Bloom(_) => "bloom",
    }
}

fn show_kind(info: &NamespaceInfo) -> String {
    match info.kind {
        NamespaceKind::Blocks(_) => "blocks".to_owned(),
        NamespaceKind::Records(keys) | NamespaceKind::Versions(keys, _) => format!("{keys:?}").to_lowercase(),
    }
}

/// `u64`, `u64, all versions`, or `8.00 GiB of 4096 B blocks`.
fn show_layout(info: &NamespaceInfo) -> String {
    match info.kind {
        NamespaceKind::Blocks(blocks) => {
            let bytes = size::show(u64::from(blocks.block_bytes) * blocks.block_count);
            format!("{bytes} of {} B blocks", blocks.block_bytes)
        }
        NamespaceKind::Versions(..) if info.index_place() == IndexPlace::Flash => {
            format!("{}, index on flash", show_kind(info))
        }
        NamespaceKind::Versions(_, versions) if versions.merge_when_low.is_some() => {
            format!("{}, versions while there is space", show_kind(info))
        }
        NamespaceKind::Versions(_, versions) if matches!(versions.parameters.index, VersionIndex::Bloom(_)) => {
            format!("{}, all versions, by Bloom filters", show_kind(info))
        }
        NamespaceKind::Versions(..) => format!("{}, all versions", show_kind(info)),
        NamespaceKind::Records(_) => {
            let mut text = show_kind(info);
            if let Some(millis) = info.default_ttl_ms {
                text += &format!(", for {}", ttl::show(millis.get()));
            }
            match (info.compression, info.compressed.given_bytes) {
                (Compression::None, _) => {}
                (method, 0) => text += &format!(", {method}"),
                (method, _) => text += &format!(", {method} ({:.2})", info.compressed.ratio()),
            }
            text
        }
    }
}

/// One row for each namespace.
pub fn table(namespaces: &[NamespaceInfo]) -> comfy_table::Table {
    let rows = namespaces.iter().map(|info| {
        vec![
            info.name.clone(),
            show_layout(info),
            match info.logs.as_slice() {
                [] => "all".into(),
                logs => logs.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
            },
            match info.kind {
                NamespaceKind::Versions(..) if info.index_place() == IndexPlace::Flash => {
                    // Old ones that are not dropped yet are among them.
                    format!("at most {}", size::show_count(info.record_count))
                }
                NamespaceKind::Versions(..) if info.record_count == 1 => "1 version".into(),
                NamespaceKind::Versions(..) => format!("{} versions", size::show_count(info.record_count)),
                NamespaceKind::Records(_) | NamespaceKind::Blocks(_) => size::show_count(info.record_count),
            },
            if info.loaded { size::show(info.index_bytes) } else { "not loaded".into() },
        ]
    });
    output::table(&["namespace", "keys", "logs", "records", "index"], 3, rows)
}
