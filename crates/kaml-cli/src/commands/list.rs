//! `kaml list`.

use crate::failure::Failure;
use crate::store::{self, PlaceArgument};
use crate::{keys, output};
use clap::Args;
use serde_json::Value;

/// Keys fetched from the device at a time.
const PAGE_KEYS: usize = 4096;

/// Flags of `kaml list`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml list data.kaml notes
  kaml list data.kaml notes --limit 10
  kaml list data.kaml notes --json | jq -r .key

One key a line, in no particular order; with --json, one JSON object a line.")]
pub struct Arguments {
    #[command(flatten)]
    device: PlaceArgument,
    /// Name of the namespace
    namespace: String,
    /// At most so many keys
    #[arg(long)]
    limit: Option<usize>,
    /// Always in hexadecimal digits
    #[arg(long, conflicts_with = "json")]
    hex: bool,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Lists the keys.
    pub fn run(self) -> Result<(), Failure> {
        let device = self.device.open_to_read()?;
        let namespace = store::namespace_of_records(&*device, &self.namespace)?;
        let mut left = self.limit.unwrap_or(usize::MAX);
        let mut after = None;
        while left > 0 {
            let page = device.list(namespace.id, after, left.min(PAGE_KEYS))?;
            left -= page.len();
            after = match page.last() {
                Some(last) => Some(*last),
                None => break,
            };
            let show = |key: &kaml::Key| match (self.hex, self.json) {
                (true, _) => keys::hex(key.as_bytes()),
                (_, true) => Value::Object(keys::to_json(key, namespace.keys)).to_string(),
                _ => keys::show(key, namespace.keys),
            };
            output::text(&page.iter().map(|key| show(key) + "\n").collect::<String>())?;
        }
        Ok(())
    }
}
