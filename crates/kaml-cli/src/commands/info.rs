//! `kaml info`.

use super::namespace::View;
use crate::failure::Failure;
use crate::output;
use crate::store::PlaceArgument;
use clap::Args;
use kaml::{DeviceInfo, NamespaceInfo, Stats};
use kaml_nvme::host::RemoteDevice;
use serde::Serialize;

/// Flags of `kaml info`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml info data.kaml
  kaml info data.kaml --json | jq .stats.free_blocks
  kaml info nvme+tcp://127.0.0.1:4420/NQN")]
pub struct Arguments {
    #[command(flatten)]
    device: PlaceArgument,
    /// Everything as JSON
    #[arg(long)]
    json: bool,
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

/// What a device that is somewhere else tells of itself, if it is one of ours.
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
            return self.show_remote(&remote);
        }
        let device = self.device.local().open_to_read()?;
        let (device, stats, namespaces): (DeviceInfo, Stats, _) = (device.info(), device.stats(), device.namespaces());
        let space = space_table(&stats);
        self.show(&device, &stats, space, &namespaces)
    }

    fn show_remote(&self, remote: &RemoteDevice) -> Result<(), Failure> {
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

/// A row for each field.
fn fields_table(head: &str, fields: &impl Serialize) -> Result<comfy_table::Table, Failure> {
    let fields = serde_json::to_value(fields).map_err(|error| Failure::Failed(error.to_string()))?;
    let rows = fields.as_object().into_iter().flatten().map(|(name, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        vec![name.replace('_', " "), text]
    });
    Ok(output::table(&[head, ""], 2, rows))
}

fn space_table(stats: &Stats) -> comfy_table::Table {
    let rows = [
        ("live data", crate::size::show(stats.live_bytes)),
        ("capacity", crate::size::show(stats.capacity_bytes)),
        ("free blocks", format!("{} of {}", stats.free_blocks, stats.block_count)),
        ("erase counts", format!("{} to {}", stats.erase_min, stats.erase_max)),
        ("index memory", crate::size::show(stats.index_bytes)),
        ("opened in", crate::size::show_ns(stats.open_ns)),
    ];
    output::table(&["space", ""], 1, rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]))
}
