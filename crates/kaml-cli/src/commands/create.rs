//! `kaml create`.

use crate::failure::Failure;
use crate::{interrupt, output, size, store};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use kaml::{CreateOptions, Device};
use kaml_workloads::scratch::Passing;
use std::path::PathBuf;

/// Flags of `kaml create`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml create data.kaml --capacity 1GiB
  kaml create cache.kaml --capacity 20G --durability process
  kaml create busy.kaml --capacity 64G --prewrite
  kaml create /dev/nvme1n1 --capacity 200G --force")]
pub struct Arguments {
    /// Device file (made sparse) or block device
    #[arg(value_name = "DEVICE")]
    path: PathBuf,
    /// Bytes of flash to offer, for example 64MiB or 1G
    #[arg(long, short, value_parser = size::parse)]
    capacity: u64,
    /// What an acknowledged put survives
    #[arg(long, value_enum, default_value_t)]
    durability: Durability,
    /// Write every block once now: durable puts are faster until the device has been filled once
    #[arg(long)]
    prewrite: bool,
    /// Overwrite whatever is there
    #[arg(long)]
    force: bool,
    /// Bytes of an erase block [default: chosen from the capacity]
    #[arg(long, value_parser = size::parse, help_heading = "Geometry")]
    block_bytes: Option<u64>,
    /// Dies, each appended to by one log [default: chosen from the capacity]
    #[arg(long, help_heading = "Geometry")]
    dies: Option<u32>,
    /// Bytes of a chunk, the unit of space of a record [default: chosen]
    #[arg(long, value_parser = size::parse, help_heading = "Geometry")]
    chunk_bytes: Option<u64>,
    /// Bytes of the commit ring [default: chosen from the capacity and the dies]
    #[arg(long, value_parser = size::parse, help_heading = "Geometry")]
    ring_bytes: Option<u64>,
    /// The new device as JSON
    #[arg(long)]
    json: bool,
}

/// What an acknowledged put survives.
#[derive(Clone, Copy, Default, ValueEnum)]
pub enum Durability {
    /// Power loss
    #[default]
    Power,
    /// The death of the process, but not power loss; much faster
    Process,
}

impl From<Durability> for kaml::Durability {
    fn from(durability: Durability) -> kaml::Durability {
        match durability {
            Durability::Power => kaml::Durability::Power,
            Durability::Process => kaml::Durability::Process,
        }
    }
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
            ..CreateOptions::new(self.capacity)
        })
    }

    /// The file, if there is none yet: it goes if no device is made of it.
    fn half_made(&self) -> Result<Option<Passing>, Failure> {
        let exists = std::fs::symlink_metadata(&self.path).is_ok();
        let left =
            if exists { format!(": {} is half made, and no device", self.path.display()) } else { String::new() };
        interrupt::ends_it(left)?;
        if exists { Ok(None) } else { Passing::file(&self.path).map(Some).map_err(Failure::io(self.path.display())) }
    }

    /// Makes the device and says what it is.
    pub fn run(self) -> Result<(), Failure> {
        store::refuse_remote(&self.path)?;
        let options = self.options()?;
        let half_made = self.half_made()?;
        let bar = bar(self.json);
        let device = Device::create_with(&self.path, &options, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        use kaml::CreateError as E;
        let device = device.map_err(|error| match error {
            kaml::Error::Create(E::TooSmall { .. } | E::TooFewBlocks { .. } | E::Geometry(_)) => {
                Failure::Usage(error.to_string())
            }
            error => error.into(),
        })?;
        if let Some(half_made) = half_made {
            half_made.keep();
        }
        let info = device.info();
        device.close()?;
        if self.json {
            return output::json(&info);
        }
        output::line(format!("created {}: {}", self.path.display(), info.description))
    }
}

fn bar(hidden: bool) -> ProgressBar {
    if hidden {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {bytes} of {total_bytes} written once {elapsed}, {eta} to go");
    ProgressBar::new(0).with_style(style.expect("a fixed template"))
}
