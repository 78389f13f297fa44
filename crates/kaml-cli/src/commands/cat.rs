//! `kaml cat`: the contents of a file of a tree.

use crate::failure::Failure;
use crate::store::{self, PlaceArgument};
use crate::tree::Tree;
use crate::walk::{as_path, shown};
use crate::{interrupt, output, size};
use clap::Args;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Zeros of holes are written in pieces of this size.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Flags of `kaml cat`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml cat data.kaml photos 2026/summer/sea.jpg > sea.jpg
  kaml cat data.kaml photos 2026/summer/sea.jpg --offset 1KiB --length 512

The contents are written as they are read, piece by piece. A range reads only the pieces that it touches. A range beyond the end of the file is empty.")]
pub struct Arguments {
    #[command(flatten)]
    device: PlaceArgument,
    /// Name of the namespace that a directory was imported into
    namespace: String,
    /// A file of the tree
    #[arg(value_name = "PATH")]
    file: OsString,
    /// Begin at this byte
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "0")]
    offset: u64,
    /// Write so many bytes [default: all]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    length: Option<u64>,
    /// As it was in this snapshot of a versioned namespace
    #[arg(long, value_name = "VERSION")]
    as_of: Option<u32>,
}

impl Arguments {
    /// Writes them.
    pub fn run(self) -> Result<(), Failure> {
        interrupt::ends_it(String::new())?;
        let device = self.device.open_to_read()?;
        let info = store::namespace(&*device, &self.namespace)?;
        let tree = Tree::open_as_of(&*device, &info, b"", self.as_of)?;
        let path = self.file.as_bytes();
        let name = shown(as_path(path));
        let node = tree.find(path)?;
        let node = node.ok_or_else(|| Failure::NotFound(format!("namespace `{}` has no file `{name}`", info.name)))?;
        let end = self.length.map_or(u64::MAX, |length| self.offset.saturating_add(length));
        let mut at = self.offset;
        let read = tree.resolve(&node).and_then(|file| {
            tree.read(&file, self.offset..end, &mut |offset, bytes| {
                zeros(&mut at, offset)?;
                at += bytes.len() as u64;
                output::bytes(bytes)
            })
        });
        let bytes = read.map_err(|failure| match failure {
            Failure::Failed(what) => Failure::Failed(format!("{name}: {what}")),
            failure => failure,
        })?;
        zeros(&mut at, bytes.min(end))
    }
}

/// Writes what a hole has.
fn zeros(at: &mut u64, to: u64) -> Result<(), Failure> {
    while *at < to {
        let count = (to - *at).min(ZEROS.len() as u64);
        output::bytes(&ZEROS[..count as usize])?;
        *at += count;
    }
    Ok(())
}
