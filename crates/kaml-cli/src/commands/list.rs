//! `kaml list`.

use crate::commands::record::to_json;
use crate::failure::Failure;
use crate::moment::Moment;
use crate::range::{RangeArguments, as_slices, check_order};
use crate::store::{self, PlaceArgument};
use crate::{keys, output};
use clap::Args;
use kaml::{KeyBuf, KeyKind, NamespaceInfo};
use serde_json::Value;
use std::ops::Bound;

/// Keys fetched from the device at a time.
const PAGE_KEYS: usize = 4096;
/// Records fetched from the device at a time: their values are in memory together.
const PAGE_RECORDS: usize = 64;

/// A key, and its value if values are shown.
type Shown = (KeyBuf, Option<Vec<u8>>);

/// Flags of `kaml list`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml list data.kaml notes
  kaml list data.kaml notes --limit 10
  kaml list data.kaml notes --json | jq -r .key
  kaml list data.kaml articles --prefix 2026/ --reverse
  kaml list data.kaml articles --from b --to d --values

One key on each line; with --json, one JSON object on each line. The keys of a namespace with --keys ordered come in
their order; --prefix, --from, --to and --reverse are for these. Other keys come in no particular order.
With --values a tab and the value follow each key: text on one line as it is, other values as 0x and hexadecimal digits.")]
pub struct Arguments {
    #[command(flatten)]
    device: PlaceArgument,
    /// Name of the namespace
    namespace: String,
    /// Maximum number of keys
    #[arg(long)]
    limit: Option<usize>,
    #[command(flatten)]
    range: RangeArguments,
    /// The last key first
    #[arg(long)]
    reverse: bool,
    /// Show keys and values in hexadecimal digits
    #[arg(long, conflicts_with = "json")]
    hex: bool,
    /// Show values, too
    #[arg(long)]
    values: bool,
    /// One JSON object on each line
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Lists the keys.
    pub fn run(self) -> Result<(), Failure> {
        let device = self.device.open_to_read()?;
        let namespace = store::namespace_of_records(&*device, &self.namespace)?;
        let is_bounded = self.reverse || self.range.is_given();
        if is_bounded {
            check_order(&namespace, "--prefix, --from, --to and --reverse")?;
        }
        let is_ordered = namespace.keys() == KeyKind::Ordered;
        let page_max = if self.values { PAGE_RECORDS } else { PAGE_KEYS };
        let mut bounds = self.range.bounds()?;
        let moment = Moment::now(&*device, &namespace)?;
        let (mut left, mut after) = (self.limit.unwrap_or(usize::MAX), None);
        while left > 0 {
            let count = left.min(page_max);
            let page: Vec<Shown> = match (is_ordered, self.values) {
                (true, true) => {
                    let found = moment.records(as_slices(&bounds), self.reverse, count)?;
                    found.into_iter().map(|(key, value)| (key, Some(value))).collect()
                }
                (true, false) => {
                    let found = moment.range(as_slices(&bounds), self.reverse, count)?;
                    found.into_iter().map(|key| (key, None)).collect()
                }
                (false, has_values) => {
                    let found = moment.list(after.as_ref(), count)?;
                    after = found.last().cloned();
                    self.with_values(&moment, found, has_values)?
                }
            };
            let last = page.last().map(|(key, _)| Bound::Excluded(key.as_bytes().to_vec()));
            if last.is_none() && (is_ordered || after.is_none()) {
                break;
            }
            left -= page.len();
            let lines = page.iter().map(|(key, value)| self.line(&namespace, key, value.as_deref()) + "\n");
            output::text(&lines.collect::<String>())?;
            if let Some(last) = last {
                *(if self.reverse { &mut bounds.1 } else { &mut bounds.0 }) = last;
            }
        }
        Ok(())
    }

    /// Keys with their values if they are wanted, without those that others have deleted meanwhile.
    fn with_values(&self, moment: &Moment<'_>, keys: Vec<KeyBuf>, has_values: bool) -> Result<Vec<Shown>, Failure> {
        if !has_values {
            return Ok(keys.into_iter().map(|key| (key, None)).collect());
        }
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some(value) = moment.get((&key).into())? {
                found.push((key, Some(value)));
            }
        }
        Ok(found)
    }

    /// The line of a record.
    fn line(&self, namespace: &NamespaceInfo, key: &KeyBuf, value: Option<&[u8]>) -> String {
        if self.json {
            let object = keys::to_json(key, namespace.keys());
            return Value::Object(match value {
                Some(value) => to_json(object, value),
                None => object,
            })
            .to_string();
        }
        let (key, value) = match self.hex {
            true => (keys::hex(key.as_bytes()), value.map(keys::hex)),
            false => (keys::show(key, namespace.keys()), value.map(keys::show_value)),
        };
        value.map_or_else(|| key.clone(), |value| format!("{key}\t{value}"))
    }
}
