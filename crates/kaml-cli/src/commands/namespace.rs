//! `kaml namespace create|list|set|delete`.

use crate::failure::Failure;
use crate::store::{self, DeviceArgument};
use crate::{output, size};
use clap::{Args, Subcommand, ValueEnum};
use kaml::{KeyKind, NamespaceChange, NamespaceInfo, NamespaceOptions};
use serde::Serialize;

/// Flags of `kaml namespace`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml namespace create data.kaml notes
  kaml namespace create data.kaml counters --keys u64 --logs 0,1
  kaml namespace list data.kaml
  kaml namespace set data.kaml notes --rename letters
  kaml namespace delete data.kaml letters")]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a namespace
    Create {
        #[command(flatten)]
        target: Target,
        /// Which keys it takes
        #[arg(long, value_enum, default_value_t)]
        keys: Keys,
        /// Logs that its records go to, for example 0,1 [default: all]
        #[arg(long, value_delimiter = ',')]
        logs: Vec<u32>,
    },
    /// Show all namespaces
    List {
        #[command(flatten)]
        device: DeviceArgument,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Rename a namespace, or move it to other logs
    Set {
        #[command(flatten)]
        target: Target,
        /// Its new name
        #[arg(long)]
        rename: Option<String>,
        /// Logs that its records go to from now on, or `all`
        #[arg(long)]
        logs: Option<Logs>,
    },
    /// Delete a namespace and all its records
    Delete {
        #[command(flatten)]
        target: Target,
    },
}

#[derive(Args)]
struct Target {
    #[command(flatten)]
    device: DeviceArgument,
    /// Name of the namespace
    #[arg(value_name = "NAMESPACE")]
    name: String,
    /// The namespace as JSON
    #[arg(long)]
    json: bool,
}

/// Which keys a namespace takes.
#[derive(Clone, Copy, Default, ValueEnum)]
enum Keys {
    /// 1 to 16 bytes
    #[default]
    Bytes,
    /// 64-bit integers: faster, and smaller in memory
    U64,
}

/// Logs on the command line.
#[derive(Clone)]
struct Logs(Vec<u32>);

impl std::str::FromStr for Logs {
    type Err = String;
    fn from_str(text: &str) -> Result<Logs, String> {
        if text == "all" {
            return Ok(Logs(Vec::new()));
        }
        let log = |word: &str| word.trim().parse().map_err(|error| format!("`{word}` is not a log: {error}"));
        text.split(',').map(log).collect::<Result<_, _>>().map(Logs)
    }
}

impl Arguments {
    /// Does it.
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::Create { target, keys, logs } => {
                let keys = match keys {
                    Keys::Bytes => KeyKind::Bytes,
                    Keys::U64 => KeyKind::U64,
                };
                let device = target.device.open()?;
                device.create_namespace(&target.name, &NamespaceOptions { keys, logs })?;
                target.show(&store::namespace(&device, &target.name)?, "created")?;
                Ok(device.close()?)
            }
            Action::List { device, json } => {
                let namespaces = device.open_to_read()?.namespaces();
                if json { output::json(&View::of_all(&namespaces)) } else { output::line(table(&namespaces)) }
            }
            Action::Set { rename: None, logs: None, .. } => {
                Err(Failure::Usage("nothing to set: give --rename or --logs".into()))
            }
            Action::Set { target, rename, logs } => {
                let device = target.device.open()?;
                let id = device.namespace(&target.name)?;
                let name = rename.clone().unwrap_or_else(|| target.name.clone());
                device.set_namespace(id, &NamespaceChange { name: rename, logs: logs.map(|logs| logs.0) })?;
                target.show(&store::namespace(&device, &name)?, "changed")?;
                Ok(device.close()?)
            }
            Action::Delete { target } => {
                let device = target.device.open()?;
                let info = store::namespace(&device, &target.name)?;
                device.delete_namespace(info.id)?;
                target.show(&info, "deleted")?;
                Ok(device.close()?)
            }
        }
    }
}

impl Target {
    fn show(&self, info: &NamespaceInfo, what: &str) -> Result<(), Failure> {
        if self.json {
            output::json(&View::of(info))
        } else {
            output::line(format!("{what} namespace `{}`", info.name))
        }
    }
}

/// A namespace in JSON; the names of the fields stay.
#[derive(Serialize)]
pub struct View<'a> {
    id: u32,
    name: &'a str,
    /// `bytes` or `u64`.
    keys: String,
    /// None: all of them.
    logs: Option<&'a [u32]>,
    record_count: u64,
    index_bytes: u64,
    loaded: bool,
}

impl View<'_> {
    fn of(info: &NamespaceInfo) -> View<'_> {
        View {
            id: info.id,
            name: &info.name,
            keys: show_kind(info.keys),
            logs: (!info.logs.is_empty()).then_some(&info.logs),
            record_count: info.record_count,
            index_bytes: info.index_bytes,
            loaded: info.loaded,
        }
    }

    /// All of a device.
    pub fn of_all(namespaces: &[NamespaceInfo]) -> Vec<View<'_>> {
        namespaces.iter().map(View::of).collect()
    }
}

fn show_kind(kind: KeyKind) -> String {
    format!("{kind:?}").to_lowercase()
}

/// One row for each namespace.
pub fn table(namespaces: &[NamespaceInfo]) -> comfy_table::Table {
    let rows = namespaces.iter().map(|info| {
        vec![
            info.name.clone(),
            show_kind(info.keys),
            match info.logs.as_slice() {
                [] => "all".into(),
                logs => logs.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
            },
            size::show_count(info.record_count),
            if info.loaded { size::show(info.index_bytes) } else { "not loaded".into() },
        ]
    });
    output::table(&["namespace", "keys", "logs", "records", "index"], 3, rows)
}
