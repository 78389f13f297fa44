//! `kaml watch`.
//!
//! Lives here:       flags, changes as lines and as JSON.
//! Lives elsewhere:  the change stream (`kaml`, `kaml_nvme::host`).

use super::record::to_json;
use crate::failure::Failure;
use crate::store::PlaceArgument;
use crate::{keys, output};
use clap::Args;
use kaml::{
    Change, Changes, Changeset, Device, Error, KeyBuf, KeyKind, NamespaceId, NamespaceInfo, NamespaceKind, Position,
    VersionCommand,
};
use kaml_nvme::host::{RemoteChanges, RemoteDevice};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a look waits for the next change.
const LOOK: Duration = Duration::from_secs(60);

/// Flags of `kaml watch`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml watch nvme+tcp://127.0.0.1:4420/NQN
  kaml watch nvme+tcp://127.0.0.1:4420/NQN --namespace notes --json
  kaml watch data.kaml --position
  kaml watch data.kaml --since \"$(kaml watch data.kaml --position)\"

Shows what is committed, in the order of commits: from now on, or from a position on. Each line begins with the position after its commit; store it, \
and --since continues after it, also after restarts and crashes. With --json each line is one commit. A device file that is named directly does not change meanwhile, so the \
command ends when everything is shown. Exit code 3: the changes after the position are not on the device any more.")]
pub struct Arguments {
    #[command(flatten)]
    device: PlaceArgument,
    /// Only this namespace
    #[arg(long, short)]
    namespace: Option<String>,
    /// Begin after this position
    #[arg(long, value_name = "POSITION")]
    since: Option<String>,
    /// End when everything that is committed is shown
    #[arg(long)]
    once: bool,
    /// Print the present position, and end
    #[arg(long, conflicts_with_all = ["namespace", "since", "json"])]
    position: bool,
    /// One JSON object on each line, for each commit
    #[arg(long)]
    json: bool,
}

/// A change stream, wherever it comes from.
enum Stream {
    Local(Changes),
    Remote(Box<RemoteChanges>),
}

impl Stream {
    fn next_within(&mut self, timeout: Duration) -> Result<Option<Changeset>, Error> {
        match self {
            Stream::Local(changes) => changes.next_within(timeout),
            Stream::Remote(changes) => changes.next_within(timeout),
        }
    }
}

/// A device whose changes are read.
enum Source {
    Local(Device),
    Remote(Box<RemoteDevice>),
}

impl Arguments {
    /// Shows changes until it is ended.
    pub fn run(self) -> Result<(), Failure> {
        let source = match self.device.remote()? {
            Some(remote) => Source::Remote(Box::new(remote)),
            None => Source::Local(self.device.local().open_to_read()?),
        };
        if self.position {
            return output::line(match &source {
                Source::Local(device) => device.position()?,
                Source::Remote(device) => device.position()?,
            });
        }
        let since = self.since.as_deref().map(str::parse::<Position>).transpose()?;
        let (mut stream, is_still) = match &source {
            Source::Local(device) => (Stream::Local(device.changes(since.as_ref())?), true),
            Source::Remote(device) => (Stream::Remote(Box::new(device.changes(since.as_ref())?)), false),
        };
        let timeout = if self.once || is_still { Duration::ZERO } else { LOOK };
        let mut spaces: BTreeMap<NamespaceId, NamespaceInfo> = BTreeMap::new();
        loop {
            match stream.next_within(timeout)? {
                Some(set) => self.show(&set, &mut spaces)?,
                None if timeout.is_zero() => return self.check(&spaces),
                None => {}
            }
        }
    }

    /// A namespace that does not exist is reported, where it cannot come any more.
    fn check(&self, spaces: &BTreeMap<NamespaceId, NamespaceInfo>) -> Result<(), Failure> {
        match self.namespace.as_ref().filter(|name| spaces.values().all(|info| info.name != **name)) {
            Some(name) => Err(Error::UnknownNamespaceName(name.clone()).into()),
            None => Ok(()),
        }
    }

    fn show(&self, set: &Changeset, spaces: &mut BTreeMap<NamespaceId, NamespaceInfo>) -> Result<(), Failure> {
        let (mut lines, mut objects) = (String::new(), Vec::new());
        for change in &set.changes {
            if let Change::Namespace(info) = change {
                spaces.insert(info.id, info.clone());
            }
            let shown = Shown::of(change, spaces);
            if let Change::NamespaceDeleted { namespace, .. } = change {
                spaces.remove(namespace);
            }
            let Some(shown) = shown.filter(|shown| self.namespace.as_ref().is_none_or(|name| *name == shown.space))
            else {
                continue;
            };
            match self.json {
                true => objects.push(shown.object()),
                false => lines.push_str(&format!("{} {}\n", set.position, shown.line())),
            }
        }
        if !objects.is_empty() {
            lines = format!("{}\n", json!({ "position": set.position.to_string(), "changes": objects }));
        }
        if lines.is_empty() { Ok(()) } else { output::text(&lines) }
    }
}

/// A change as it is shown.
struct Shown<'a> {
    what: &'static str,
    space: String,
    keys: KeyKind,
    key: Option<&'a KeyBuf>,
    value: Option<&'a [u8]>,
    more: Map<String, Value>,
}

impl<'a> Shown<'a> {
    fn of(change: &'a Change, spaces: &BTreeMap<NamespaceId, NamespaceInfo>) -> Option<Shown<'a>> {
        let of = |namespace: &NamespaceId, what| {
            let info = spaces.get(namespace);
            let space = info.map_or_else(|| namespace.to_string(), |info| info.name.clone());
            let keys = info.map_or(KeyKind::Bytes, NamespaceInfo::keys);
            Shown { what, space, keys, key: None, value: None, more: Map::new() }
        };
        let at = |sequence: u64, time_ns: u64| {
            Map::from_iter([("sequence".to_owned(), json!(sequence)), ("time_ns".to_owned(), json!(time_ns))])
        };
        Some(match change {
            Change::Namespace(info) => {
                let kind = match info.kind {
                    NamespaceKind::Records(_) => "records",
                    NamespaceKind::Blocks(_) => "blocks",
                    NamespaceKind::Versions(..) => "versions",
                };
                let more = Map::from_iter([("holds".to_owned(), json!(kind)), ("number".to_owned(), json!(info.id))]);
                Shown { more, ..of(&info.id, "namespace") }
            }
            Change::NamespaceDeleted { namespace, name } => {
                Shown { space: name.clone(), ..of(namespace, "namespace-deleted") }
            }
            Change::Put { namespace, key, value, expires } => {
                let more = expires.map(|time| ("expires_ms".to_owned(), json!(ms(time)))).into_iter().collect();
                Shown { key: Some(key), value: Some(value), more, ..of(namespace, "put") }
            }
            Change::Delete { namespace, key } => Shown { key: Some(key), ..of(namespace, "delete") },
            Change::DeleteRange { namespace, lower, upper } => {
                let more = Map::from_iter([("from".to_owned(), bound(lower)), ("to".to_owned(), bound(upper))]);
                Shown { more, ..of(namespace, "delete-range") }
            }
            Change::Version { namespace, key, value, sequence, time_ns, user_version } => {
                let mut more = at(*sequence, *time_ns);
                more.insert("version".to_owned(), json!(user_version));
                let what = if value.is_some() { "put" } else { "delete" };
                Shown { key: Some(key), value: value.as_deref(), more, ..of(namespace, what) }
            }
            Change::VersionCommand { namespace, sequence, time_ns, command } => {
                let (what, number) = match command {
                    VersionCommand::Snapshot => ("snapshot", None),
                    VersionCommand::RollBack(number) => ("rollback", Some(number)),
                    VersionCommand::Forget(number) => ("forget", Some(number)),
                    VersionCommand::ForgetThrough(number) => ("forget-through", Some(number)),
                };
                let mut more = at(*sequence, *time_ns);
                more.extend(number.map(|number| ("version".to_owned(), json!(number))));
                Shown { more, ..of(namespace, what) }
            }
            _ => return None,
        })
    }

    fn line(&self) -> String {
        let mut line = format!("{} {}", self.what, self.space);
        if let Some(key) = self.key {
            line.push_str(&format!("\t{}", keys::show(key, self.keys)));
        }
        if let Some(value) = self.value {
            line.push_str(&format!("\t{}", keys::show_value(value)));
        }
        if self.key.is_none() && !self.more.is_empty() {
            line.push_str(&format!("\t{}", Value::Object(self.more.clone())));
        }
        line
    }

    fn object(self) -> Value {
        let mut object =
            Map::from_iter([("change".to_owned(), json!(self.what)), ("namespace".to_owned(), json!(self.space))]);
        if let Some(key) = self.key {
            object.extend(keys::to_json(key, self.keys));
        }
        if let Some(value) = self.value {
            object = to_json(object, value);
        }
        object.extend(self.more);
        Value::Object(object)
    }
}

fn ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Where a range begins or ends: nothing, or the key and whether it belongs to the range.
fn bound(bound: &Bound<Vec<u8>>) -> Value {
    match bound {
        Bound::Unbounded => Value::Null,
        Bound::Included(key) => json!({ "key_hex": keys::hex(key), "included": true }),
        Bound::Excluded(key) => json!({ "key_hex": keys::hex(key), "included": false }),
    }
}
