//! `kaml ls`: the files of a tree.

use super::versions::show_time;
use crate::failure::Failure;
use crate::store::{self, PlaceArgument};
use crate::tree::{Kind, Node, Tree, is_path};
use crate::walk::{as_path, shown};
use crate::{keys, output};
use clap::Args;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Flags of `kaml ls`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml ls data.kaml photos
  kaml ls data.kaml photos 2026 -l
  kaml ls data.kaml photos -R
  kaml ls data.kaml photos -R --json | jq -r .path

One name on each line, in the order of bytes; with -R the whole path of everything below; with --json one object on each line. Sizes, which -l and \
--json show, are read from small files themselves. Times are in UTC. Names that have line breaks or the like are shown with escapes; \
--json has their exact bytes.")]
pub struct Arguments {
    #[command(flatten)]
    device: PlaceArgument,
    /// Name of the namespace that a directory was imported into
    namespace: String,
    /// A directory or a file of the tree
    #[arg(value_name = "PATH", default_value = "", hide_default_value = true)]
    file: OsString,
    /// Show kind and mode, owner, group, size, time and targets of links
    #[arg(short = 'l', long, conflicts_with = "json")]
    long: bool,
    /// Show everything below, too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// As it was in this snapshot of a versioned namespace
    #[arg(long, value_name = "VERSION")]
    as_of: Option<u32>,
    /// One JSON object on each line
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Lists them.
    pub fn run(self) -> Result<(), Failure> {
        let device = self.device.open_to_read()?;
        let info = store::namespace(&*device, &self.namespace)?;
        let path = self.file.as_bytes();
        let tree = Tree::open_as_of(&*device, &info, path, self.as_of)?;
        let whole = Tree::open_as_of(&*device, &info, b"", self.as_of)?;
        let node = if path.is_empty() { None } else { whole.find(tree.directory())? };
        if let Some(node) = node.as_ref().filter(|node| node.metadata.kind != Kind::Directory) {
            return self.show(&tree, &node.path, Some(node));
        }
        let (mut paths, mut is_empty) = (tree.paths(), true);
        while let Some(found) = paths.next().transpose()? {
            let below = tree.below(&found.path).unwrap_or_default();
            if !is_path(below) {
                continue; // a record that no path leads to
            }
            is_empty = false;
            let Some(slash) = below.iter().position(|byte| *byte == b'/').filter(|_| !self.recursive) else {
                let path = found.path.clone();
                if let Some(node) = tree.look(found)? {
                    self.show(&tree, &path, Some(&node))?;
                }
                continue;
            };
            // Of a directory without metadata there is only what is in it.
            let directory = tree.path(&below[..slash]);
            if tree.find(&directory)?.is_none() {
                self.show(&tree, &directory, None)?;
            }
            paths.skip_below(&directory);
        }
        if is_empty && node.is_none() && !path.is_empty() {
            return Err(Failure::NotFound(format!("namespace `{}` has no path `{}`", info.name, shown(as_path(path)))));
        }
        Ok(())
    }

    fn show(&self, tree: &Tree<'_>, path: &[u8], node: Option<&Node>) -> Result<(), Failure> {
        if self.json {
            return output::line(Value::Object(to_json(tree, path, node)?));
        }
        let is_listed_whole = self.recursive || tree.below(path).is_none();
        let name = if is_listed_whole { path } else { tree.below(path).unwrap_or(path) };
        let name = shown(as_path(name));
        if !self.long {
            return output::line(name);
        }
        let Some(node) = node else {
            return output::line(format!("d?????????     ?     ?            ? {:20} {name}", "?"));
        };
        let metadata = &node.metadata;
        let (uid, gid) =
            metadata.owner.map_or(("?".into(), "?".into()), |(uid, gid)| (uid.to_string(), gid.to_string()));
        let time = metadata.modified.map_or("?".into(), |(seconds, _)| time(seconds));
        let target = match &metadata.kind {
            Kind::Link(target) => format!(" -> {}", shown(as_path(target.as_bytes()))),
            Kind::HardLink(first) => format!(" = {}", shown(as_path(first.as_bytes()))),
            _ => String::new(),
        };
        let size = match &metadata.kind {
            Kind::CharacterDevice(major, minor) | Kind::BlockDevice(major, minor) => format!("{major}, {minor}"),
            _ => bytes(tree, node)?.map_or_else(|| "-".into(), |bytes| bytes.to_string()),
        };
        output::line(format!("{} {uid:>5} {gid:>5} {size:>12} {time:20} {name}{target}", mode(node)))
    }
}

/// To the second; times before 1970 are those of 1970.
fn time(seconds: i64) -> String {
    show_time(u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000_000))
}

/// Bytes of the contents of a file.
fn bytes(tree: &Tree<'_>, node: &Node) -> Result<Option<u64>, Failure> {
    match node.metadata.kind {
        Kind::File | Kind::Pieces(_) => tree.read(node, 0..0, &mut |_, _| Ok(())).map(Some),
        // Where the first name has gone, there is no size.
        Kind::HardLink(_) => match tree.resolve(node) {
            Ok(file) => bytes(tree, &file),
            Err(_) => Ok(None),
        },
        _ => Ok(None),
    }
}

fn kind(kind: &Kind) -> (char, &'static str) {
    match kind {
        Kind::File | Kind::Pieces(_) | Kind::HardLink(_) => ('-', "file"),
        Kind::Directory => ('d', "directory"),
        Kind::Link(_) => ('l', "link"),
        Kind::Fifo => ('p', "fifo"),
        Kind::CharacterDevice(..) => ('c', "character device"),
        Kind::BlockDevice(..) => ('b', "block device"),
    }
}

/// As `ls -l` writes it.
fn mode(node: &Node) -> String {
    let bits = node.metadata.mode;
    let mut text = String::from(kind(&node.metadata.kind).0);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let has = |bit: u32| bits >> shift & bit != 0;
        text.push(if has(4) { 'r' } else { '-' });
        text.push(if has(2) { 'w' } else { '-' });
        text.push(match (bits & special != 0, has(1)) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

fn to_json(tree: &Tree<'_>, path: &[u8], node: Option<&Node>) -> Result<Map<String, Value>, Failure> {
    let mut object = Map::new();
    let mut text = |name: &str, bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.into(), json!(text)),
        Err(_) => object.insert(format!("{name}_hex"), json!(keys::hex(bytes))),
    };
    text("path", path);
    let Some(node) = node else {
        object.insert("kind".into(), json!("directory"));
        return Ok(object);
    };
    match &node.metadata.kind {
        Kind::Link(target) => drop(text("target", target.as_bytes())),
        Kind::HardLink(first) => drop(text("hard_link_to", first.as_bytes())),
        _ => {}
    }
    object.insert("kind".into(), json!(kind(&node.metadata.kind).1));
    object.insert("mode".into(), json!(node.metadata.mode));
    if let Some(bytes) = bytes(tree, node)? {
        object.insert("bytes".into(), json!(bytes));
    }
    if let Some((uid, gid)) = node.metadata.owner {
        object.extend([("uid".into(), json!(uid)), ("gid".into(), json!(gid))]);
    }
    if let Some((seconds, nanoseconds)) = node.metadata.modified {
        object.extend([("mtime_s".into(), json!(seconds)), ("mtime_ns".into(), json!(nanoseconds))]);
    }
    Ok(object)
}
