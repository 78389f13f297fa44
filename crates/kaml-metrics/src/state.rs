//! The state of a device at a moment, as monitors get it.
//!
//! Lives here:       collecting it, its shape as JSON.
//! Lives elsewhere:  which metric each figure is (`catalog`).

use kaml::{
    Activity, BlockMap, BlockState, Device, KeyKind, LatencyHistogram, LatencyHistograms, NamespaceInfo, NamespaceKind,
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// Cells of the map of blocks at most, but one for each log.
const CELLS_MAX: usize = 2000;
/// Namespaces that are listed; more are only counted.
const NAMESPACES_MAX: usize = 1000;

/// How much a caller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The figures of all metrics.
    Figures,
    /// These, and the map of blocks.
    Everything,
}

/// A device at a moment.
///
/// The parts are JSON because a device that is used over a network shows fewer figures than one that is open here: what is missing
/// is in no metric.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct State {
    /// The version of KAML that made it.
    pub version: String,
    /// When it was made, in milliseconds since 1970.
    pub time_ms: u64,
    /// What the device is: the fields of [`kaml::DeviceInfo`].
    pub device: Value,
    /// What it has done: the fields of [`kaml::Stats`] and `write_amplification`.
    pub stats: Value,
    /// Whether the device takes no more changes because something failed.
    pub is_stopped: bool,
    /// What failed.
    pub stopped: Option<String>,
    /// How many namespaces there are.
    pub namespace_count: usize,
    /// The first thousand of them.
    pub namespaces: Vec<Value>,
    /// What it is doing: the fields of [`kaml::Activity`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activity: Option<Value>,
    /// What snapshots keep: the fields of [`kaml::SnapshotStats`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<Value>,
    /// Histograms of the latencies of `put`, `get` and `commit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Value>,
    /// Blocks: how many are in each state, and the map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Value>,
    /// Hosts that are connected, if the device is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<Host>>,
}

/// A host that is connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Its qualified name.
    pub name: String,
    /// The number of its controller: a host can have several.
    pub controller: u16,
    /// Its address.
    pub peer: String,
    /// Its I/O queues.
    pub queue_count: usize,
    /// Commands that it has sent.
    pub command_count: u64,
    /// How long it has been connected, in seconds.
    pub connected_seconds: u64,
}

impl State {
    /// The state of a device that is open in this process. Puts wait for it no longer than some tens of microseconds.
    pub fn of(device: &Device, detail: Detail) -> State {
        let stats = device.stats();
        let mut fields = object(&stats);
        fields.insert("write_amplification".into(), json!(stats.write_amplification()));
        let cells_max = if detail == Detail::Everything { CELLS_MAX } else { 0 };
        let snapshots = device.snapshot_stats();
        State {
            activity: Some(activity(&device.activity())),
            snapshots: Some(json!({
                "open_count": snapshots.open_count,
                "expired_count": snapshots.expired_count,
                "kept_bytes": snapshots.kept_bytes,
                "entry_count": snapshots.entry_count,
                "memory_bytes": snapshots.memory_bytes,
            })),
            latency: Some(latency(&device.latency_histograms())),
            blocks: Some(blocks(&device.block_map(cells_max), detail)),
            ..State::of_parts(object(&device.info()).into(), fields.into(), &device.namespaces())
        }
        .stopped(device.stopped().map(|error| error.to_string()))
    }

    /// The state of a device of which only this is known.
    pub fn of_parts(device: Value, stats: Value, namespaces: &[NamespaceInfo]) -> State {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        State {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            device,
            stats,
            is_stopped: false,
            stopped: None,
            namespace_count: namespaces.len(),
            namespaces: namespaces.iter().take(NAMESPACES_MAX).map(namespace).collect(),
            activity: None,
            snapshots: None,
            latency: None,
            blocks: None,
            hosts: None,
        }
    }

    fn stopped(self, why: Option<String>) -> State {
        State { is_stopped: why.is_some(), stopped: why, ..self }
    }

    /// The same with the hosts that are connected.
    pub fn with_hosts(self, hosts: Vec<Host>) -> State {
        State { hosts: Some(hosts), ..self }
    }
}

/// The fields of something as JSON.
fn object(of: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(of) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) | Err(_) => Map::new(),
    }
}

fn activity(activity: &Activity) -> Value {
    let collection = &activity.collection;
    let open = |log: &kaml::LogActivity| -> Vec<Value> {
        let open = log.open.iter();
        open.map(|open| json!({"block": open.block, "class": open.class, "used_bytes": open.used_bytes})).collect()
    };
    let logs = activity.logs.iter().enumerate().map(|(number, log)| {
        json!({
            "log": number,
            "free_blocks": log.free_blocks,
            "erased_blocks": log.erased_blocks,
            "open_blocks": log.open.len(),
            "open": open(log),
        })
    });
    json!({
        "commit_count": activity.commit_count,
        "ring_used_bytes": activity.ring_used_bytes,
        "journal_pages": activity.journal_pages,
        "is_checkpointing": activity.is_checkpointing,
        "root_count": activity.root_count,
        "operation_count": activity.operation_count,
        "programming_bytes": activity.programming_bytes,
        "is_merging": activity.merging_namespace.is_some(),
        "merging_namespace": activity.merging_namespace,
        "collection": {
            "is_running": collection.is_running,
            "is_pacing": collection.is_pacing,
            "victim": collection.victim,
            "draining_blocks": collection.draining_blocks,
            "moving_records": collection.moving_records,
            "reclaimed_blocks": collection.reclaimed_blocks,
            "collect_below_blocks": collection.collect_below_blocks,
            "victim_count": collection.victim_count,
        },
        "logs": logs.collect::<Vec<_>>(),
    })
}

fn histogram(histogram: &LatencyHistogram) -> Value {
    json!({"bounds_ns": histogram.bounds_ns, "counts": histogram.counts, "sum_ns": histogram.sum_ns})
}

fn latency(all: &LatencyHistograms) -> Value {
    json!({"put": histogram(&all.put), "get": histogram(&all.get), "commit": histogram(&all.commit)})
}

/// The name of a state, and the letter that it has in the map.
fn name_of(state: BlockState) -> (&'static str, char) {
    match state {
        BlockState::Dirty => ("dirty", 'd'),
        BlockState::Erasing => ("erasing", 'e'),
        BlockState::Ready => ("ready", 'r'),
        BlockState::Open => ("open", 'o'),
        BlockState::Full => ("full", 'f'),
        BlockState::Draining => ("draining", 'm'),
        BlockState::Reclaimed => ("reclaimed", 'c'),
        BlockState::Bad => ("bad", 'b'),
        _ => ("other", '?'),
    }
}

/// The map in columns: a letter or a number for each cell, log after log.
fn blocks(map: &BlockMap, detail: Detail) -> Value {
    let states = map.state_counts.iter().map(|(state, count)| {
        let (name, letter) = name_of(*state);
        json!({"state": name, "letter": letter, "count": count})
    });
    let mut value = json!({"states": states.collect::<Vec<_>>(), "blocks_per_cell": map.blocks_per_cell});
    if detail == Detail::Everything {
        let cells = &map.cells;
        let mut log_cells: Vec<u32> = Vec::new();
        for cell in cells {
            log_cells.resize(log_cells.len().max(cell.log as usize + 1), 0);
            log_cells[cell.log as usize] += 1;
        }
        value["cells"] = json!({
            "of_logs": log_cells,
            "state": cells.iter().map(|cell| name_of(cell.state).1).collect::<String>(),
            "live_percent": cells.iter().map(|cell| (cell.live_share * 100.0).round() as u32).collect::<Vec<_>>(),
            "age_pages": cells.iter().map(|cell| cell.age_pages).collect::<Vec<_>>(),
            "erase_count": cells.iter().map(|cell| cell.erase_count).collect::<Vec<_>>(),
        });
    }
    value
}

fn namespace(info: &NamespaceInfo) -> Value {
    let (kind, keys) = match info.kind {
        NamespaceKind::Records(keys) => ("records", Some(keys)),
        NamespaceKind::Versions(keys, _) => ("versions", Some(keys)),
        NamespaceKind::Blocks(_) => ("blocks", None),
    };
    let keys = keys.map_or("", |keys| match keys {
        KeyKind::U64 => "u64",
        KeyKind::Bytes => "bytes",
        KeyKind::Any => "any",
        KeyKind::Ordered => "ordered",
    });
    json!({
        "id": info.id,
        "name": info.name,
        "kind": kind,
        "keys": keys,
        "record_count": info.record_count,
        "index_bytes": info.index_bytes,
        "is_loaded": info.loaded,
        "compression": info.compression.to_string(),
        "given_bytes": info.compressed.given_bytes,
        "stored_bytes": info.compressed.stored_bytes,
    })
}
