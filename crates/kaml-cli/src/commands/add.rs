//! `kaml add`: counters.

use crate::failure::Failure;
use crate::keys::{self, KeyArgument};
use crate::output;
use crate::store::{self, PlaceArgument};
use crate::ttl;
use clap::Args;
use kaml::{Batch, Expiry, Operand};
use serde_json::json;
use std::time::Duration;

/// Flags of `kaml add`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml add data.kaml notes visits
  kaml add data.kaml notes visits 10
  kaml add data.kaml notes visits -- -3
  kaml add data.kaml notes largest 17 --max
  kaml add data.kaml notes requests 1 --ttl 60s

A counter is a value of 8 bytes: a signed number of 64 bits, little-endian. A key that does not exist counts as 0.")]
pub struct Arguments {
    #[command(flatten)]
    device: PlaceArgument,
    /// Name of the namespace
    namespace: String,
    #[command(flatten)]
    key: KeyArgument,
    /// The number to add
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    number: i64,
    /// Store the larger of the counter and the number instead of the sum
    #[arg(long, conflicts_with = "min")]
    max: bool,
    /// Store the smaller of the counter and the number instead of the sum
    #[arg(long)]
    min: bool,
    /// Let the counter expire after so long, counted from now [default: a counter that exists keeps its time]
    #[arg(long, value_name = "TIME", value_parser = ttl::parse)]
    ttl: Option<Duration>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Changes the counter and prints it.
    pub fn run(self) -> Result<(), Failure> {
        let device = self.device.open()?;
        let namespace = store::namespace_of_records(&*device, &self.namespace)?;
        let key = self.key.key(namespace.keys())?;
        let operand = match (self.max, self.min) {
            (true, _) => Operand::Max(self.number),
            (_, true) => Operand::Min(self.number),
            _ => Operand::Add(self.number),
        };
        let mut batch = Batch::new();
        batch.apply(namespace.id, &key, operand).expires(self.ttl.map_or(Expiry::Default, Expiry::After));
        let values = ttl::local(&*device, "changing a counter")?.write_returning(&batch)?;
        store::close(device);
        let value = values.first().copied().unwrap_or_default();
        if self.json {
            let mut answer = keys::to_json(&key, namespace.keys());
            answer.insert("counter".into(), json!(value));
            return output::json(&answer);
        }
        output::line(value)
    }
}
