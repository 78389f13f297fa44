//! `kaml info`.

use super::namespace::View;
use crate::failure::Failure;
use crate::output;
use crate::store::DeviceArgument;
use clap::Args;
use kaml::{DeviceInfo, Stats};
use serde::Serialize;

/// Flags of `kaml info`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml info data.kaml
  kaml info data.kaml --json | jq .stats.free_blocks")]
pub struct Arguments {
    #[command(flatten)]
    device: DeviceArgument,
    /// Everything as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Info<'a> {
    device: DeviceInfo,
    stats: Stats,
    namespaces: Vec<View<'a>>,
}

impl Arguments {
    /// Shows the device.
    pub fn run(self) -> Result<(), Failure> {
        let device = self.device.open_to_read()?;
        let namespaces = device.namespaces();
        let info = Info { device: device.info(), stats: device.stats(), namespaces: View::of_all(&namespaces) };
        if self.json {
            return output::json(&info);
        }
        let head = serde_json::to_value(&info.device).map_err(|error| Failure::Failed(error.to_string()))?;
        let rows = head.as_object().into_iter().flatten().map(|(name, value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            vec![name.replace('_', " "), text]
        });
        output::line(output::table(&["device", ""], 2, rows))?;
        output::line("")?;
        output::line(space_table(&info.stats))?;
        output::line("")?;
        output::line(super::namespace::table(&namespaces))
    }
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
