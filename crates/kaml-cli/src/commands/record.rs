//! `kaml put`, `kaml get`: one record.

use crate::commands::versions::{AtArguments, keeps_versions};
use crate::failure::Failure;
use crate::keys::{self, KeyArgument};
use crate::output;
use crate::size;
use crate::store::{self, PlaceArgument};
use crate::tree::Tree;
use crate::ttl;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use kaml::{At, Batch, Condition, Expiry, KeyKind};
use serde_json::{Map, Value, json};
use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

/// A value lies in one erase block, and these have no more.
const VALUE_BYTES_MAX: u64 = 1 << 30;

/// Which record.
#[derive(Args)]
struct Record {
    #[command(flatten)]
    device: PlaceArgument,
    /// Name of the namespace
    namespace: String,
    #[command(flatten)]
    key: KeyArgument,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Flags of `kaml put`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml put data.kaml notes hello world
  kaml put data.kaml notes photo --file photo.jpg
  date | kaml put data.kaml notes today -
  kaml put data.kaml counters 42 --u64 one --if-absent
  kaml put data.kaml notes token secret --ttl 1h")]
pub struct PutArguments {
    #[command(flatten)]
    record: Record,
    /// The value as text; `-` reads standard input
    #[arg(required_unless_present = "file", conflicts_with = "file", allow_negative_numbers = true)]
    value: Option<String>,
    /// Read the value from a file
    #[arg(long, short)]
    file: Option<PathBuf>,
    /// Store only if the key does not exist yet
    #[arg(long, conflicts_with = "if_present")]
    if_absent: bool,
    /// Store only if the key exists already
    #[arg(long)]
    if_present: bool,
    /// Let the record expire after so long, for example 90s, 15m, 1h or 7d [default: as its namespace]
    #[arg(long, value_name = "TIME", value_parser = ttl::parse)]
    ttl: Option<Duration>,
    /// Let the record not expire, whatever the default of its namespace is
    #[arg(long, conflicts_with = "ttl")]
    no_ttl: bool,
}

/// Flags of `kaml get`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml get data.kaml notes hello
  kaml get data.kaml notes photo --output photo.jpg
  kaml get data.kaml notes 0x00ff --hex --json
  kaml get data.kaml past hello --as-of 2
  kaml get nvme+tcp://127.0.0.1:4420/NQN notes hello
  kaml get /dev/ng0n1 notes hello

The value is written as it is, without a newline. If the key does not exist, the exit code is 3. The key of a file that a directory was imported \
with is its path.")]
pub struct GetArguments {
    #[command(flatten)]
    record: Record,
    /// Write the value to a file
    #[arg(long, short, conflicts_with = "json")]
    output: Option<PathBuf>,
    #[command(flatten)]
    at: AtArguments,
}

/// Reads a value, up to the largest that any device takes.
fn read_value(from: impl Read, name: impl Display) -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    from.take(VALUE_BYTES_MAX + 1).read_to_end(&mut value).map_err(Failure::io(&name))?;
    match value.len() as u64 {
        ..=VALUE_BYTES_MAX => Ok(value),
        _ => {
            Err(Failure::Failed(format!("{name}: longer than {}, and so than any value", size::show(VALUE_BYTES_MAX))))
        }
    }
}

impl PutArguments {
    fn value(&self) -> Result<Vec<u8>, Failure> {
        match (&self.file, self.value.as_deref()) {
            (Some(path), _) => {
                let file = File::open(path).map_err(Failure::io(path.display()))?;
                read_value(file, path.display())
            }
            (None, Some("-")) => read_value(std::io::stdin().lock(), "standard input"),
            (None, text) => Ok(text.unwrap_or_default().as_bytes().to_vec()),
        }
    }

    /// Stores the record.
    pub fn run(self) -> Result<(), Failure> {
        let value = self.value()?;
        let device = self.record.device.open()?;
        let namespace = store::namespace_of_records(&*device, &self.record.namespace)?;
        let key = self.record.key.key(namespace.keys())?;
        let condition = match (self.if_absent, self.if_present) {
            (true, _) => Condition::IfAbsent,
            (_, true) => Condition::IfPresent,
            _ => Condition::Always,
        };
        let expiry = match (self.ttl, self.no_ttl) {
            (Some(ttl), _) => Expiry::After(ttl),
            (None, true) => Expiry::Never,
            (None, false) => Expiry::Default,
        };
        let put = match expiry {
            Expiry::Default => device.put_if(namespace.id, (&key).into(), &value, condition),
            expiry => {
                let mut batch = Batch::new();
                match condition {
                    Condition::IfAbsent => batch.put_if_absent(namespace.id, &key, &value),
                    Condition::IfPresent => batch.put_if_present(namespace.id, &key, &value),
                    Condition::Always | Condition::UnchangedSince(_) => batch.put(namespace.id, &key, &value),
                };
                batch.expires(expiry);
                ttl::local(&*device, "--ttl")?.write(&batch)
            }
        };
        put.map_err(|error| {
            if !error.is_conflict() {
                return error.into();
            }
            let is = if self.if_absent { "exists already" } else { "does not exist" };
            Failure::Condition(format!("{}: key `{}` {is}", namespace.name, self.record.key.text()))
        })?;
        store::close(device);
        if self.record.json {
            let mut answer = keys::to_json(&key, namespace.keys());
            answer.insert("bytes".into(), json!(value.len()));
            return output::json(&answer);
        }
        Ok(())
    }
}

impl GetArguments {
    /// Writes the value.
    pub fn run(self) -> Result<(), Failure> {
        let device = self.record.device.open_to_read()?;
        let namespace = store::namespace_of_records(&*device, &self.record.namespace)?;
        let key = self.record.key.key(namespace.keys())?;
        let absent = || {
            let (space, key) = (&namespace.name, self.record.key.text());
            Failure::NotFound(match self.at.at() {
                None | Some(At::Latest) => format!("{space}: no key `{key}`"),
                Some(At::Snapshot(snapshot)) => format!("{space}: no key `{key}` in snapshot {snapshot}"),
                Some(At::Back(count)) => format!("{space}: key `{key}` did not exist {count} changes ago"),
            })
        };
        let value = match self.at.at() {
            None => match device.get(namespace.id, (&key).into())? {
                None if namespace.keys() == KeyKind::Ordered => {
                    Tree::open(&*device, &namespace, b"")?.contents(key.as_bytes())?
                }
                value => value,
            },
            Some(at) => {
                keeps_versions(&namespace)?;
                device.get_version(namespace.id, keys::short(&key)?, at)?
            }
        };
        let value = value.ok_or_else(absent)?;
        if let Some(path) = self.output.as_deref().filter(|path| !output::is_stdout(path)) {
            let mut file = self.record.device.create_beside(path)?;
            return file.write_all(&value).and_then(|()| file.finish()).map_err(Failure::io(path.display()));
        }
        if self.record.json {
            return output::json(&to_json(keys::to_json(&key, namespace.keys()), &value));
        }
        output::bytes(&value)
    }
}

/// Adds the value: `value` for text, `value_base64` for other bytes.
pub fn to_json(mut object: Map<String, Value>, value: &[u8]) -> Map<String, Value> {
    match std::str::from_utf8(value) {
        Ok(text) => object.insert("value".into(), json!(text)),
        Err(_) => object.insert("value_base64".into(), json!(BASE64.encode(value))),
    };
    object
}

/// The value of a JSON object with one of those fields; an error names the field.
pub fn value_from_json(object: &Map<String, Value>) -> Result<Vec<u8>, String> {
    match (object.get("value"), object.get("value_base64")) {
        (Some(Value::String(text)), None) => Ok(text.as_bytes().to_vec()),
        (None, Some(Value::String(text))) => {
            BASE64.decode(text).map_err(|error| format!("field \"value_base64\": {error}"))
        }
        (Some(_), Some(_)) => Err("fields \"value\" and \"value_base64\": one value is enough".into()),
        (Some(_), None) => Err("field \"value\": must be text; value_base64 takes any bytes".into()),
        (None, Some(_)) => Err("field \"value_base64\": must be text".into()),
        (None, None) => Err("no value: needs `value` (text) or `value_base64`".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   a value survives JSON, text or not.
    /// Method: text, the empty value, and bytes that are no text, there and back.
    #[test]
    fn values_survive_json() {
        for value in [&b"text \"quoted\"\n"[..], b"", &[0, 159, 146, 150]] {
            assert_eq!(value_from_json(&to_json(Map::new(), value)).as_deref(), Ok(value));
        }
        assert!(value_from_json(&Map::new()).is_err());
        assert!(value_from_json(&Map::from_iter([("value_base64".into(), json!("?"))])).is_err());
    }
}
