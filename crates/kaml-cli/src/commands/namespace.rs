//! `kaml namespace create|list|set|delete`.

use crate::commands::versions::keeps_versions;
use crate::failure::Failure;
use crate::store::{self, PlaceArgument};
use crate::{output, size};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand, ValueEnum};
use kaml::{
    BlockOptions, BloomOptions, KeyKind, MergePolicy, NamespaceChange, NamespaceInfo, NamespaceOptions, VersionIndex,
    VersionOptions,
};
use serde::Serialize;

/// Flags of `kaml namespace`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml namespace create data.kaml notes
  kaml namespace create data.kaml counters --keys u64 --logs 0,1
  kaml namespace create data.kaml disk --block 4096 --size 1GiB
  kaml namespace create data.kaml past --versioned
  kaml namespace create data.kaml log --versioned --merge-when-low --keep-last 10
  kaml namespace create data.kaml paper --versioned --index bloom --bloom-hashes 7
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
    /// Make a namespace
    Create {
        #[command(flatten)]
        target: Target,
        /// Which keys it takes
        #[arg(long, value_enum, default_value_t, conflicts_with = "block")]
        keys: Keys,
        /// Hold logical blocks of so many bytes, 512 or 4096, instead of records
        #[arg(long, value_name = "BYTES", value_parser = size::parse, requires = "size")]
        block: Option<u64>,
        /// Bytes of all blocks, for example 1GiB; may be more than the device has
        #[arg(long, value_parser = size::parse, requires = "block")]
        size: Option<u64>,
        /// Bytes that are mapped together: writes of less read the rest first [default: 4096]
        #[arg(long, value_name = "BYTES", value_parser = size::parse, requires = "block")]
        unit: Option<u64>,
        /// Keep every version of every record
        #[arg(long, conflicts_with = "block")]
        versioned: bool,
        /// Memory for versions before they are written together, for example 16MiB [default: a quarter of the commit ring]
        #[arg(long, value_name = "BYTES", value_parser = size::parse, requires = "versioned")]
        buffer: Option<u64>,
        #[command(flatten)]
        shape: ShapeArguments,
        #[command(flatten)]
        policy: PolicyArguments,
        /// Logs that its records go to, for example 0,1 [default: all]
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
    /// Rename a namespace, move it to other logs, or say what may go when space runs low
    Set {
        #[command(flatten)]
        target: Target,
        /// Its new name
        #[arg(long)]
        rename: Option<String>,
        /// Logs that its records go to from now on, or `all`
        #[arg(long)]
        logs: Option<Logs>,
        #[command(flatten)]
        policy: PolicyArguments,
        /// Let no version go unless `kaml merge` is told so
        #[arg(long, conflicts_with = "merge_when_low")]
        never_merge: bool,
    },
    /// Delete a namespace and all its records
    Delete {
        #[command(flatten)]
        target: Target,
        /// Read nothing of it: for a device here that cannot be opened because this namespace is damaged
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
    /// The namespace as JSON
    #[arg(long)]
    json: bool,
}

/// How versions are found again.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum IndexKind {
    /// Retrieval tables: full segments, one read for a lookup
    #[default]
    Columns,
    /// The Bloom filters of the Muninn paper, to compare with
    Bloom,
}

fn at_least_one() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..)
}

/// The shape of a versioned namespace: parameters of the Muninn paper's Table 1.
#[derive(Args)]
struct ShapeArguments {
    /// How versions are found again
    #[arg(long, value_enum, default_value_t, requires = "versioned")]
    index: IndexKind,
    /// Chains of segments that keys are spread over [default: as suits the buffer]
    #[arg(long, value_name = "COUNT", requires = "versioned", value_parser = at_least_one())]
    rows: Option<u32>,
    /// Bytes of a segment, whole program units that fill an erase block but for a 64th [default: up to 1MiB]
    #[arg(long, value_name = "BYTES", value_parser = size::parse, requires = "versioned")]
    segment: Option<u64>,
    /// Filters with one place for a key each, at most 15 [default: 7]
    #[arg(long, value_name = "COUNT", requires = "versioned", value_parser = at_least_one())]
    bloom_hashes: Option<u32>,
    /// All filters take as many keys; else each takes half of those of the one before it
    #[arg(long, requires = "versioned")]
    bloom_even: bool,
    /// Keys that the filters of a segment take together [default: one for each KiB]
    #[arg(long, value_name = "COUNT", requires = "versioned", value_parser = at_least_one())]
    bloom_keys: Option<u32>,
    /// Keys that the overflow map of a segment takes [default: a 32nd of --bloom-keys]
    #[arg(long, value_name = "COUNT", requires = "versioned", value_parser = at_least_one())]
    bloom_overflow_keys: Option<u32>,
    /// False positives of the first table's filters, in millionths [default: 500]
    #[arg(long, value_name = "MILLIONTHS", requires = "versioned", value_parser = at_least_one())]
    bloom_false_positives: Option<u32>,
    /// Each next table has so many thousandths of that rate [default: 1010]
    #[arg(long, value_name = "THOUSANDTHS", requires = "versioned", value_parser = at_least_one())]
    bloom_growth: Option<u32>,
    /// Segments of a table, at most 64 [default: 64]
    #[arg(long, value_name = "COUNT", requires = "versioned", value_parser = at_least_one())]
    bloom_combined: Option<u32>,
}

impl ShapeArguments {
    /// Of a versioned namespace without a policy.
    fn options(&self, buffer_bytes: u64) -> Result<VersionOptions, Failure> {
        let bloom = BloomOptions {
            hashes: self.bloom_hashes.unwrap_or(0),
            is_even: self.bloom_even,
            segment_keys: self.bloom_keys.unwrap_or(0),
            overflow_keys: self.bloom_overflow_keys.unwrap_or(0),
            false_positives_ppm: self.bloom_false_positives.unwrap_or(0),
            growth_permille: self.bloom_growth.unwrap_or(0),
            combined: self.bloom_combined.unwrap_or(0),
        };
        if self.index == IndexKind::Columns && bloom != BloomOptions::default() {
            return Err(Failure::Usage("the parameters of filters need --index bloom".into()));
        }
        let segment = self.segment.unwrap_or(0);
        if self.segment == Some(0) {
            return Err(Failure::Usage("--segment 0: a segment has bytes".into()));
        }
        let too_large = |_| Failure::Usage(format!("--segment {segment}: that is too large"));
        Ok(VersionOptions {
            buffer_bytes,
            segment_bytes: u32::try_from(segment).map_err(too_large)?,
            rows: self.rows.unwrap_or(0),
            bloom: (self.index == IndexKind::Bloom).then_some(bloom),
            ..VersionOptions::default()
        })
    }
}

/// What of a versioned namespace may go when space runs low.
#[derive(Args)]
struct PolicyArguments {
    /// Give the space of old versions back when less than a quarter is left; what snapshots see stays
    #[arg(long)]
    merge_when_low: bool,
    /// Keep so many of the newest versions of each key then
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "merge_when_low")]
    keep_last: u32,
    /// Keep everything put in so many days before
    #[arg(long, value_name = "DAYS", requires = "merge_when_low")]
    keep_days: Option<u32>,
    /// Keep the newest version of each key from each time that segments were filled together
    #[arg(long, requires = "merge_when_low")]
    keep_internal: bool,
}

impl PolicyArguments {
    fn policy(&self) -> Option<MergePolicy> {
        let keep_for_ns = u64::from(self.keep_days.unwrap_or(0)).saturating_mul(DAY_NS);
        let policy = MergePolicy { keep_last: self.keep_last, keep_for_ns, keep_internal: self.keep_internal };
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
    /// Does it.
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::Create { target, keys, logs, block, size, unit, versioned, buffer, shape, policy } => {
                let merge_when_low = policy.policy();
                if merge_when_low.is_some() && !versioned {
                    return Err(Failure::Usage("--merge-when-low needs --versioned".into()));
                }
                let keys = match keys {
                    Keys::Bytes => KeyKind::Bytes,
                    Keys::U64 => KeyKind::U64,
                };
                let blocks = block.zip(size).map(|(block, size)| block_options(block, size, unit)).transpose()?;
                let versions = match versioned {
                    true => Some(VersionOptions { merge_when_low, ..shape.options(buffer.unwrap_or(0))? }),
                    false => None,
                };
                let device = target.device.open()?;
                device.create_namespace(&target.name, &NamespaceOptions { keys, logs, blocks, versions })?;
                target.show(&store::namespace(&*device, &target.name)?, "created")?;
                store::close(device);
                Ok(())
            }
            Action::List { device, json } => {
                let namespaces = device.open_to_read()?.namespaces()?;
                if json { output::json(&View::of_all(&namespaces)) } else { output::line(table(&namespaces)) }
            }
            Action::Set { rename: None, logs: None, never_merge: false, policy, .. } if !policy.merge_when_low => {
                let flags = "--rename, --logs, --merge-when-low or --never-merge";
                Err(Failure::Usage(format!("nothing to set: give {flags}")))
            }
            Action::Set { target, rename, logs, policy, never_merge } => {
                let device = target.device.open()?;
                let info = store::namespace(&*device, &target.name)?;
                if policy.merge_when_low || never_merge {
                    keeps_versions(&info)?;
                }
                let name = rename.clone().unwrap_or_else(|| target.name.clone());
                let merge_when_low = policy.policy().map(Some).or(never_merge.then_some(None));
                let change = NamespaceChange { name: rename, logs: logs.map(|logs| logs.0), merge_when_low };
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

/// A namespace in JSON; the names of the fields stay.
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
    /// How versions are found again: `columns` or `bloom`, and the chains of segments.
    index: Option<&'static str>,
    rows: Option<u32>,
    /// Old versions go when space runs low.
    merge_when_low: bool,
    /// None: all of them.
    logs: Option<&'a [u32]>,
    record_count: u64,
    index_bytes: u64,
    loaded: bool,
}

impl View<'_> {
    fn of(info: &NamespaceInfo) -> View<'_> {
        View {
            id: info.id,
            name: &info.name,
            keys: show_kind(info),
            block_bytes: info.blocks.map(|blocks| blocks.block_bytes),
            unit_bytes: info.blocks.map(|blocks| blocks.unit_bytes),
            block_count: info.blocks.map(|blocks| blocks.block_count),
            versioned: info.versions.is_some(),
            buffer_bytes: info.versions.map(|versions| versions.buffer_bytes),
            segment_bytes: info.versions.map(|versions| versions.segment_bytes() as u64),
            index: info.versions.map(|versions| show_index(&versions.index)),
            rows: info.versions.map(|versions| versions.rows),
            merge_when_low: info.merge_when_low.is_some(),
            logs: (!info.logs.is_empty()).then_some(&info.logs),
            record_count: info.record_count,
            index_bytes: info.index_bytes,
            loaded: info.loaded,
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
    match info.blocks {
        Some(_) => "blocks".to_owned(),
        None => format!("{:?}", info.keys).to_lowercase(),
    }
}

/// `u64`, `u64, all versions`, or `8.00 GiB of 4096 B blocks`.
fn show_layout(info: &NamespaceInfo) -> String {
    match info.blocks {
        Some(blocks) => {
            let bytes = size::show(u64::from(blocks.block_bytes) * blocks.block_count);
            format!("{bytes} of {} B blocks", blocks.block_bytes)
        }
        None if info.merge_when_low.is_some() => format!("{}, versions while there is space", show_kind(info)),
        None if info.versions.is_some_and(|versions| matches!(versions.index, VersionIndex::Bloom(_))) => {
            format!("{}, all versions, by Bloom filters", show_kind(info))
        }
        None if info.versions.is_some() => format!("{}, all versions", show_kind(info)),
        None => show_kind(info),
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
            match info.versions {
                Some(_) if info.record_count == 1 => "1 version".into(),
                Some(_) => format!("{} versions", size::show_count(info.record_count)),
                None => size::show_count(info.record_count),
            },
            if info.loaded { size::show(info.index_bytes) } else { "not loaded".into() },
        ]
    });
    output::table(&["namespace", "keys", "logs", "records", "index"], 3, rows)
}
