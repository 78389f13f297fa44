//! `kaml info`.

use super::namespace::View;
use crate::failure::Failure;
use crate::output;
use crate::store::PlaceArgument;
use clap::Args;
use kaml::{DeviceInfo, NamespaceInfo, Stats};
use kaml_metrics::{Detail, State};
use kaml_nvme::host::RemoteDevice;
use serde::Serialize;

/// Flags of `kaml info`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml info data.kaml
  kaml info data.kaml --json | jq .stats.free_blocks
  kaml info data.kaml --prometheus > /var/lib/node_exporter/kaml.prom
  kaml info nvme+tcp://127.0.0.1:4420/NQN")]
pub struct Arguments {
    #[command(flatten)]
    device: PlaceArgument,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// Print everything as Prometheus text
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

#[derive(Serialize)]
struct Info<'a, D, S> {
    device: D,
    stats: S,
    namespaces: Vec<View<'a>>,
}

/// What is known of a device that is somewhere else.
#[derive(Serialize)]
struct RemoteInfo {
    path: String,
    transfer_bytes_max: usize,
    value_bytes_max: u64,
    batch_bytes_max: u64,
}

/// What a remote device reports about itself, if it is one of ours.
#[derive(Serialize)]
struct RemoteStats {
    put_count: u64,
    delete_count: u64,
    get_count: u64,
    host_bytes: u64,
    ring_bytes: u64,
    page_bytes: u64,
    relocated_bytes: u64,
    metadata_bytes: u64,
    live_bytes: u64,
    capacity_bytes: u64,
    free_blocks: u64,
    bad_blocks: u64,
    erase_count: u64,
    erase_min: u64,
    erase_max: u64,
}

impl Arguments {
    /// Shows the device.
    pub fn run(self) -> Result<(), Failure> {
        if let Some(remote) = self.device.remote()? {
            if self.prometheus {
                return output::text(&remote_state(&remote)?.prometheus());
            }
            return self.show_remote(&remote);
        }
        let device = self.device.local().open_to_read()?;
        if self.prometheus {
            return output::text(&State::of(&device, Detail::Figures).prometheus());
        }
        let (device, stats, namespaces): (DeviceInfo, Stats, _) = (device.info(), device.stats(), device.namespaces());
        let space = space_table(&device, &stats);
        self.show(&device, &stats, space, &namespaces)
    }

    fn show_remote(&self, remote: &RemoteDevice) -> Result<(), Failure> {
        let (info, stats) = remote_info(remote)?;
        let space = fields_table("space", &stats)?;
        self.show(&info, &stats, space, &remote.namespaces()?)
    }

    fn show<D: Serialize, S: Serialize>(
        &self,
        device: D,
        stats: S,
        space: comfy_table::Table,
        namespaces: &[NamespaceInfo],
    ) -> Result<(), Failure> {
        if self.json {
            return output::json(&Info { device, stats, namespaces: View::of_all(namespaces) });
        }
        output::line(fields_table("device", &device)?)?;
        output::line("")?;
        output::line(space)?;
        output::line("")?;
        output::line(super::namespace::table(namespaces))
    }
}

/// What a remote device reports about itself.
fn remote_info(remote: &RemoteDevice) -> Result<(RemoteInfo, Option<RemoteStats>), Failure> {
    let limits = kaml::store::Backing::limits(remote);
    let info = RemoteInfo {
        path: remote.name(),
        transfer_bytes_max: remote.transfer_bytes_max(),
        value_bytes_max: limits.value_bytes_max,
        batch_bytes_max: limits.batch_bytes_max,
    };
    let page = remote.page().map_err(|error| Failure::Failed(error.to_string()))?;
    let stats = page.map(|page| RemoteStats {
        put_count: page.put_count.get(),
        delete_count: page.delete_count.get(),
        get_count: page.get_count.get(),
        host_bytes: page.host_bytes.get(),
        ring_bytes: page.ring_bytes.get(),
        page_bytes: page.page_bytes.get(),
        relocated_bytes: page.relocated_bytes.get(),
        metadata_bytes: page.metadata_bytes.get(),
        live_bytes: page.live_bytes.get(),
        capacity_bytes: page.capacity_bytes.get(),
        free_blocks: page.free_blocks.get(),
        bad_blocks: page.bad_blocks.get(),
        erase_count: page.erase_count.get(),
        erase_min: page.erase_min.get(),
        erase_max: page.erase_max.get(),
    });
    Ok((info, stats))
}

/// The state of a remote device, as far as it is known.
pub fn remote_state(remote: &RemoteDevice) -> Result<State, Failure> {
    let (info, stats) = remote_info(remote)?;
    let value = |fields: serde_json::Result<serde_json::Value>| {
        fields.map_err(|error| Failure::Failed(format!("JSON: {error}")))
    };
    let (info, stats) = (value(serde_json::to_value(info))?, value(serde_json::to_value(stats))?);
    Ok(State::of_parts(info, stats, &remote.namespaces()?))
}

/// The sizes of a device in the words that `create`, `resize` and `info` share.
pub fn sizes(info: &DeviceInfo) -> Vec<(&'static str, String)> {
    let show =
        |bytes: u64| if bytes == u64::MAX { "what the file system takes".to_owned() } else { crate::size::show(bytes) };
    let mut sizes = Vec::new();
    if let Some(bytes) = info.file_bytes {
        sizes.push(("size", show(bytes)));
    }
    sizes.push(("usable", show(info.usable_bytes)));
    if let Some(bytes) = info.grows_up_to_bytes {
        sizes.push(("grows up to", show(bytes)));
    }
    sizes.push(("largest value", show(info.value_bytes_max)));
    sizes.push(("largest batch", show(info.batch_bytes_max)));
    sizes
}

/// A row for each field.
fn fields_table(head: &str, fields: &impl Serialize) -> Result<comfy_table::Table, Failure> {
    let fields = serde_json::to_value(fields).map_err(|error| Failure::Failed(error.to_string()))?;
    let rows = fields.as_object().into_iter().flatten().map(|(name, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        vec![name.replace('_', " "), text]
    });
    Ok(output::table(&[head, ""], 2, rows))
}

fn space_table(device: &DeviceInfo, stats: &Stats) -> comfy_table::Table {
    let rows = [
        ("live data", crate::size::show(stats.live_bytes)),
        ("free blocks", format!("{} of {}", stats.free_blocks, stats.block_count)),
        ("erase counts", format!("{} to {}", stats.erase_min, stats.erase_max)),
        ("index memory", crate::size::show(stats.index_bytes)),
        ("opened in", crate::size::show_ns(stats.open_ns)),
    ];
    let rows = sizes(device).into_iter().chain(rows);
    output::table(&["space", ""], 1, rows.map(|(name, value)| vec![name.to_owned(), value]))
}
