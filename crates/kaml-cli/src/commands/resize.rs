//! `kaml resize`.

use super::info::sizes;
use crate::failure::Failure;
use crate::store::DeviceArgument;
use crate::{output, size};
use clap::Args;
use serde::Serialize;

/// Flags of `kaml resize`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml resize data.kaml 2GiB
  kaml resize data.kaml 3GiB --json | cat

A file stays sparse: it takes space when blocks are first used. A block device, for example a logical volume, is made larger \
first. A smaller size is refused if what is stored does not fit. A program that has the device open changes its size itself: Device::resize in Rust.")]
pub struct Arguments {
    #[command(flatten)]
    device: DeviceArgument,
    /// Bytes of the file or block device from now on, for example 2GiB or 100G
    #[arg(value_name = "SIZE", value_parser = size::parse)]
    bytes: u64,
    /// Print the sizes as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Resized {
    /// Before.
    old_file_bytes: Option<u64>,
    old_usable_bytes: u64,
    file_bytes: Option<u64>,
    usable_bytes: u64,
    grows_up_to_bytes: Option<u64>,
}

impl Arguments {
    /// Changes the size and prints what it is.
    pub fn run(self) -> Result<(), Failure> {
        let device = self.device.open()?;
        let before = device.info();
        let resized = device.resize(self.bytes);
        let after = device.info();
        device.close()?;
        resized?;
        if self.json {
            return output::json(&Resized {
                old_file_bytes: before.file_bytes,
                old_usable_bytes: before.usable_bytes,
                file_bytes: after.file_bytes,
                usable_bytes: after.usable_bytes,
                grows_up_to_bytes: after.grows_up_to_bytes,
            });
        }
        output::line(format!("resized {}", self.device.path().display()))?;
        sizes(&after).iter().try_for_each(|(name, value)| output::line(format!("{name}: {value}")))
    }
}
