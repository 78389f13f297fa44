//! `kaml count`.

use crate::failure::Failure;
use crate::moment::Moment;
use crate::output;
use crate::range::{RangeArguments, as_slices, check_order};
use crate::store::{self, PlaceArgument};
use clap::Args;
use kaml::{KeyKind, NamespaceKind};
use serde_json::json;

/// Flags of `kaml count`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml count data.kaml notes
  kaml count data.kaml articles --prefix 2026/
  kaml count data.kaml articles --from b --to d --json

--prefix, --from and --to are for namespaces with --keys ordered. Counting reads no values. In a versioned namespace each key that exists is \
listed and counted once.")]
pub struct Arguments {
    #[command(flatten)]
    device: PlaceArgument,
    /// Name of the namespace
    namespace: String,
    #[command(flatten)]
    range: RangeArguments,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Counts the keys.
    pub fn run(self) -> Result<(), Failure> {
        let device = self.device.open_to_read()?;
        let namespace = store::namespace_of_records(&*device, &self.namespace)?;
        if self.range.is_given() {
            check_order(&namespace, "--prefix, --from and --to")?;
        }
        let count = match namespace.kind {
            NamespaceKind::Records(KeyKind::Ordered) => {
                Moment::now(&*device, &namespace)?.count_range(as_slices(&self.range.bounds()?))?
            }
            NamespaceKind::Records(_) if device.counts_records() => namespace.record_count,
            _ => {
                let mut count = 0;
                Moment::now(&*device, &namespace)?.for_each_key(|_| {
                    count += 1;
                    Ok(())
                })?;
                count
            }
        };
        match self.json {
            true => output::json(&json!({ "namespace": namespace.name, "count": count })),
            false => output::line(count.to_string()),
        }
    }
}
