//! `kaml delete`: one record, or a range of them.

use crate::failure::Failure;
use crate::keys::{self, KeyArgument, OptionalKey};
use crate::place::Place;
use crate::range::{RangeArguments, as_slices, check_order};
use crate::store::{self, PlaceArgument};
use crate::tree::{self, Tree};
use crate::{output, size};
use clap::Args;
use kaml::{Batch, KeyKind, NamespaceInfo};
use serde_json::json;

/// Flags of `kaml delete`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml delete data.kaml notes hello --must-exist
  kaml delete data.kaml notes hello
  kaml delete data.kaml articles --prefix 2025/ --yes
  kaml delete data.kaml articles --from b --to d --yes

Deleting a missing key succeeds. With --must-exist the exit code is then 3. A path of an imported directory is deleted with its metadata.
--prefix, --from and --to delete all keys of a range, of a namespace with --keys ordered, in one atomic step. Without --yes the command only \
reports how many there are, and exits with 2.")]
pub struct Arguments {
    #[command(flatten)]
    device: PlaceArgument,
    /// Name of the namespace
    namespace: String,
    #[command(flatten)]
    key: OptionalKey,
    #[command(flatten)]
    range: RangeArguments,
    /// Fail if the key does not exist, or no key of the range
    #[arg(long)]
    must_exist: bool,
    /// Delete the range: there is no way back
    #[arg(long)]
    yes: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Deletes.
    pub fn run(self) -> Result<(), Failure> {
        match (self.key.given(), self.range.is_given()) {
            (Some(key), false) if !self.yes => {
                let device = self.device.open()?;
                let namespace = store::namespace_of_records(&*device, &self.namespace)?;
                self.record(&*device, &namespace, &key)?;
                store::close(device);
                match self.json {
                    true => output::json(&keys::to_json(&key.key(namespace.keys())?, namespace.keys())),
                    false => Ok(()),
                }
            }
            (Some(_), false) => Err(Failure::Usage("--yes is for --prefix, --from and --to".into())),
            (None, true) => self.all_of_range(),
            (Some(_), true) => Err(Failure::Usage("either a key or a range: --prefix, --from and --to".into())),
            (None, false) => {
                Err(Failure::Usage("which records? Name a key, or a range with --prefix, --from, --to".into()))
            }
        }
    }

    fn record(&self, device: &dyn Place, namespace: &NamespaceInfo, name: &KeyArgument) -> Result<(), Failure> {
        let key = name.key(namespace.keys())?;
        let is_missing = || Failure::NotFound(format!("{}: no key `{}`", namespace.name, name.text()));
        if namespace.keys() == KeyKind::Ordered
            && let Ok(metadata) = tree::metadata_key(key.as_bytes())
            && device.exists(namespace.id, (&metadata).into())?
        {
            // A path of a tree, with all that is next to it.
            Tree::open(device, namespace, b"")?.delete(key.as_bytes())?;
            return Ok(());
        }
        let mut batch = Batch::new();
        match self.must_exist {
            true => batch.delete_if_present(namespace.id, &key),
            false => batch.delete(namespace.id, &key),
        };
        device.write(&batch).map_err(|error| match error.is_conflict() {
            true => is_missing(),
            false => error.into(),
        })
    }

    fn all_of_range(&self) -> Result<(), Failure> {
        let device = if self.yes { self.device.open()? } else { self.device.open_to_read()? };
        let namespace = store::namespace_of_records(&*device, &self.namespace)?;
        check_order(&namespace, "--prefix, --from and --to")?;
        let bounds = self.range.bounds()?;
        if !self.yes {
            let count = size::show_count(device.count_range(namespace.id, as_slices(&bounds))?);
            let text = format!("namespace `{}`: keys in this range: {count}; --yes deletes them", namespace.name);
            return Err(Failure::Usage(text));
        }
        let count = device.delete_range(namespace.id, as_slices(&bounds))?;
        if count == 0 && self.must_exist {
            return Err(Failure::NotFound(format!("{}: no key in this range", namespace.name)));
        }
        store::close(device);
        match self.json {
            true => output::json(&json!({ "namespace": namespace.name, "deleted": count })),
            false => output::line(format!("deleted: {}", size::show_count(count))),
        }
    }
}
