//! `kaml create`.

use crate::failure::Failure;
use crate::whole::{self, Temporary};
use crate::{interrupt, output, size, store};
use clap::Args;
use indicatif::ProgressBar;
use kaml::{CreateOptions, Device, DeviceInfo};
use kaml_terminal::flags::Durability;
use kaml_terminal::progress;
use std::path::{Path, PathBuf};

/// Flags of `kaml create`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml create data.kaml --capacity 1GiB
  kaml create cache.kaml --capacity 20G --durability process
  kaml create growing.kaml --grow-up-to 50G
  kaml create busy.kaml --capacity 64G --prewrite
  kaml create /dev/nvme1n1 --capacity 200G --force")]
pub struct Arguments {
    /// Device file (made sparse) or block device
    #[arg(value_name = "DEVICE")]
    path: PathBuf,
    /// Bytes of the file or block device, for example 64MiB or 1G [default: up to 353MiB if it grows]
    #[arg(long, short, value_parser = size::parse, required_unless_present = "grow_up_to")]
    capacity: Option<u64>,
    /// Grow when space runs low, up to so many bytes
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    grow_up_to: Option<u64>,
    /// What an acknowledged put survives
    #[arg(long, value_enum, default_value_t)]
    durability: Durability,
    /// Write every block now: durable puts are faster until the device has been filled one time
    #[arg(long)]
    prewrite: bool,
    /// Overwrite whatever exists
    #[arg(long)]
    force: bool,
    /// Bytes of an erase block [default: chosen from the capacity]
    #[arg(long, value_parser = size::parse, help_heading = "Geometry")]
    block_bytes: Option<u64>,
    /// Number of dies; one log appends to each [default: chosen from the capacity]
    #[arg(long, help_heading = "Geometry")]
    dies: Option<u32>,
    /// Bytes of a chunk, the unit of space of a record [default: chosen]
    #[arg(long, value_parser = size::parse, help_heading = "Geometry")]
    chunk_bytes: Option<u64>,
    /// Bytes of the commit ring [default: chosen from the capacity and the dies]
    #[arg(long, value_parser = size::parse, help_heading = "Geometry")]
    ring_bytes: Option<u64>,
    /// Print the new device as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn options(&self) -> Result<CreateOptions, Failure> {
        let chunk_bytes = self.chunk_bytes.map(u32::try_from).transpose();
        Ok(CreateOptions {
            block_bytes: self.block_bytes,
            die_count: self.dies,
            chunk_bytes: chunk_bytes.map_err(|_| Failure::Usage("--chunk-bytes: 4 GiB or more".into()))?,
            ring_bytes: self.ring_bytes,
            durability: self.durability.into(),
            prewrite: self.prewrite,
            force: self.force,
            grow_up_to: self.grow_up_to,
            ..CreateOptions::new(self.capacity.unwrap_or(0))
        })
    }

    /// Creates the device and prints what it is.
    pub fn run(self) -> Result<(), Failure> {
        store::refuse_remote(&self.path)?;
        let options = self.options()?;
        let exists = std::fs::symlink_metadata(&self.path).is_ok();
        let what = "is half made, and no device; `kaml create --force` makes it anew";
        interrupt::ends_it(if exists { format!(": {} {what}", self.path.display()) } else { String::new() })?;
        let info = if exists { self.make(&self.path, &options)? } else { self.make_beside(&options)? };
        if self.json {
            return output::json(&info);
        }
        output::line(format!("created {}: {}", self.path.display(), info.description))?;
        super::info::sizes(&info).iter().try_for_each(|(name, value)| output::line(format!("{name}: {value}")))
    }

    /// Creates a device on a new file: it gets its name when it is whole.
    fn make_beside(&self, options: &CreateOptions) -> Result<DeviceInfo, Failure> {
        let failed = Failure::io(self.path.display());
        // The device locks the file as long as it is open.
        let (temporary, file) = Temporary::file(&self.path, 0o600).map_err(&failed)?;
        drop(file);
        let made = self.make(temporary.path(), options);
        // Nobody knows the temporary name.
        let (temporary_name, name) = (temporary.path().display().to_string(), self.path.display().to_string());
        let mut made = made.map_err(|failure| match failure {
            Failure::Failed(what) => Failure::Failed(what.replace(&temporary_name, &name)),
            Failure::Usage(what) => Failure::Usage(what.replace(&temporary_name, &name)),
            other => other,
        })?;
        made.description = made.description.replace(&temporary_name, &name);
        temporary.rename_new(&self.path).map_err(&failed)?;
        whole::sync_directory(&self.path).map_err(failed)?;
        Ok(made)
    }

    fn make(&self, path: &Path, options: &CreateOptions) -> Result<DeviceInfo, Failure> {
        let bar = bar(self.json);
        let device = Device::create_with(path, options, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let device = device?;
        let info = device.info();
        device.close()?;
        Ok(info)
    }
}

fn bar(hidden: bool) -> ProgressBar {
    if hidden { ProgressBar::hidden() } else { progress::bytes_bar(0) }
}
